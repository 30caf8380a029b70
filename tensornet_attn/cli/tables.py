"""The papers' cost tables on the command line."""

from __future__ import annotations

from typing import Annotated

import typer

TableName = Annotated[
    str | None,
    typer.Option("--table", metavar="NAME", help="A paper's table beside our counts: epa, fish, mgk, ..., or all."),
]


def show_table(name: str, as_json: bool) -> None:
    """Prints a paper's table beside our counts, products in the order of the fewest FLOPs. Raises InputError.

    Of `all`, text has the tables one after the other, and JSON a list of them.
    """
    from tensornet_attn.cli.output import print_json, write
    from tensornet_attn.cost.devices import device_named
    from tensornet_attn.cost.paper import ALL, compare, tables_named
    from tensornet_attn.plan.order import split_best

    device = device_named("flops")
    tables = tables_named(name)
    found = [compare(table, lambda graph, sizes: split_best(graph, sizes, device)[0]) for table in tables]
    if as_json:
        dicts = [comparison.as_dict() for comparison in found]
        print_json(dicts if name == ALL else dicts[0])
    else:
        write("-", "\n".join(comparison.to_text() for comparison in found))
