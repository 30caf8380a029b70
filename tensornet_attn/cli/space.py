"""`space`: the size of a search space, samples with pictures, and what they cost."""

from __future__ import annotations

from typing import Annotated

import typer

from tensornet_attn.cli.options import Json, source_of

File = Annotated[str, typer.Argument(metavar="FILE", help="A YAML file that says 'space: 1', or - for stdin.")]
Samples = Annotated[int, typer.Option(min=1, max=1000, help="How many different designs to show.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the samples.")]
Length = Annotated[int | None, typer.Option("--n", min=1, help="Length of queries and keys; the file's if absent.")]
Page = Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Write a page of HTML with pictures.")]


def space(
    file: File, samples: Samples = 12, n: Length = None, seed: Seed = 0, output: Page = None, as_json: Json = False
) -> None:
    """Show how large a search space is, samples of it, and the range of their costs.

    Each sample is checked and priced, and keeps to the bounds of the file.
    """
    from dataclasses import replace

    from tensornet_attn.cli.output import print_json, write
    from tensornet_attn.search.read import load
    from tensornet_attn.search.survey import survey

    found = load(source_of(file))
    if n is not None:
        found = replace(found, bounds=replace(found.bounds, n=n))
    seen = survey(found, samples, seed)
    if output is not None:
        write(output, seen.to_html())
    if output == "-":
        return
    if as_json:
        print_json(seen.as_dict())
    else:
        print(seen.to_text())
