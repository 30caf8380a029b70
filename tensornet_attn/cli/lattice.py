"""The command lattice: which shipped designs contain which others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensornet_attn.cli.options import Json, Output

FORMATS = ("svg", "png", "dot", "txt")


def lattice(
    design: Annotated[
        str | None, typer.Argument(metavar="[DESIGN]", help="Only what contains it, or it contains.")
    ] = None,
    output: Output = "-",
    form: Annotated[str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}; by default the ending.")] = None,
    equal_sizes: Annotated[
        bool, typer.Option("--equal-sizes", help="Only what holds with the same sizes in both designs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show which shipped designs contain which others, at some sizes and weights."""
    from tensornet_attn.cli.output import print_json, write
    from tensornet_attn.draw.lattice import lattice_picture
    from tensornet_attn.special import special_cases

    suffix = form or (Path(output).suffix.lstrip(".") if output != "-" else "txt")
    if suffix not in FORMATS:
        hint = "'--format'" if form else "'--output'"
        raise typer.BadParameter(f"'{suffix}' is no format; one of {', '.join(FORMATS)}.", param_hint=hint)
    found = special_cases(design, equal_sizes)
    if as_json:
        print_json(
            [{"design": a, "contains": b, "causal": causal} for a, b, causal in sorted(found.edges(data="causal"))]
        )
    else:
        write(output, lattice_picture(found, suffix))
