"""The Typer application with all commands. Commands import their dependencies when they run, for a short start-up."""

from __future__ import annotations

from typing import Annotated

import typer

from tensornet_attn.cli import analyse, bench, check, cost, designs, doctor, playground, search, train

# Rich's help costs 70 ms at every start, and its boxes break lines in pipes.
app = typer.Typer(
    name="tensornet-attn",
    help="Compile YAML tensor diagrams of attention layers to PyTorch modules.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from tensornet_attn.version import __version__

        print(f"tensornet-attn {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback()
def _options(version: Version = False) -> None:
    pass


app.command("list")(designs.list_designs)
app.command("show")(designs.show)
app.command("check")(check.check)
app.command("cost")(cost.cost)
app.command("draw")(designs.draw)
app.command("compile")(designs.compile_design)
app.command("warm")(designs.warm)
app.command("explain")(designs.explain)
app.command("schema")(designs.schema)
app.command("analyse")(analyse.analyse)
app.command("bench")(bench.bench)
app.command("lattice")(designs.lattice)
app.command("train")(train.train)
app.command("evaluate")(train.evaluate)
app.command("sample")(train.sample)
app.command("compare")(train.compare)
app.command("space")(search.space)
app.command("search")(search.search)
app.command("playground")(playground.playground)
app.command("doctor")(doctor.doctor)
