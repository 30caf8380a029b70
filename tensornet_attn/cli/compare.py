"""`compare`: runs side by side, as a table, as JSON, and as a page."""

from __future__ import annotations

from typing import Annotated

import typer

from tensornet_attn.cli.options import Json

Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders that `train --out` has written.")]
Page = Annotated[
    str | None, typer.Option("-o", "--output", metavar="FILE", help="Write a page of HTML; needs matplotlib.")
]
By = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="What to sort by, e.g. eval_loss; perplexity or bits where the task has them, else accuracy, else loss.",
        show_default=False,
    ),
]


def compare(runs: Runs, output: Page = None, by: By = None, as_json: Json = False) -> None:
    """Compare runs: means and intervals over seeds, costs, learning curves, pictures.

    Runs that differ in their seed alone are one row. Prints a table, and writes a page of HTML where -o names a file.
    """
    from tensornet_attn.cli.output import print_json, write
    from tensornet_attn.compare import compare as compared

    found = compared(runs, by)
    if output is not None:
        write(output, found.to_html())
    if output == "-":
        return
    if as_json:
        print_json(found.as_dict())
    else:
        print(found.to_text())
