"""The Typer application with all commands. Commands import their dependencies when they run, for a short start-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from tensornet_attn.cli import analyse, bench, check, cost, designs, doctor, playground, search, train
from tensornet_attn.cli.modes import Command

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


COMMANDS: dict[str, Callable[..., None]] = {
    "list": designs.list_designs,
    "show": designs.show,
    "check": check.check,
    "cost": cost.cost,
    "draw": designs.draw,
    "compile": designs.compile_design,
    "warm": designs.warm,
    "explain": designs.explain,
    "schema": designs.schema,
    "analyse": analyse.analyse,
    "bench": bench.bench,
    "lattice": designs.lattice,
    "train": train.train,
    "evaluate": train.evaluate,
    "sample": train.sample,
    "compare": train.compare,
    "space": search.space,
    "search": search.search,
    "playground": playground.playground,
    "doctor": doctor.doctor,
}
for name, command in COMMANDS.items():
    app.command(name, cls=Command)(command)
