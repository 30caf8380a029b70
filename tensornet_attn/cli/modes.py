"""Modes of commands: which options exclude each other, and which options each mode reads. All others are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand

_PLAN = "backend device n m batch memory linear-memory"
_TARGETS = "device threads repeats seconds memory seed costs jobs output plot n batch backend dtype tune graphs"

# A given option of a row's name selects the row, and no other one may be given. "" is the mode without any. A mode
# refuses the options that only other modes read. An option in no row fits all modes.
MODES: dict[str, dict[str, str]] = {
    "show": {"": "", "text": "", "graph": "", "resolved": ""},
    "draw": {"": "", "plan": "n m", "cost": "n m"},
    "compile": {"": "workload", "bucket": ""},
    "explain": {
        "": f"workload {_PLAN} strict json",
        "bucket": f"{_PLAN} strict json",
        "rewrites": "json",
        "decoding": "json",
        "order": "device n m",
        "kernels": "dtype json",
    },
    "lattice": {"": "output format", "json": ""},
    "cost": {
        "": "designs n m batch dtype causal design legs set against against-legs beside over measure order plot",
        "table": "",
    },
    "evaluate": {"": "", "sliding-window": "context stride"},
    "bench": {
        "": f"{_TARGETS} against uncompared legs set causal",
        "targets": _TARGETS,
        "rehearse": _TARGETS,
        "decoding": "device threads repeats seconds memory seed output n batch backend legs set dtype",
        "regret": "threads memory seed costs output n batch legs set causal",
    },
    "doctor": {"": "json", "calibrate": "json output", "kernels": ""},
}


class Command(TyperCommand):
    """A command that refuses two modes at once, and options that its mode does not read."""

    def invoke(self, ctx: Any) -> Any:
        modes = MODES.get(self.name or "", {})
        chosen = [name for name in given(ctx) if name in modes]
        if len(chosen) > 1:
            raise typer.BadParameter(f"{_listed(chosen, 'and')} exclude each other; leave out all but one.", ctx)
        if modes:
            check(ctx, *chosen)
        return super().invoke(ctx)


def check(context: Any, mode: str = "") -> None:
    """Raises BadParameter if an option is given that the mode of the command does not read."""
    modes = MODES[context.info_name]
    for name in given(context):
        readers = [reader for reader, read in modes.items() if name in read.split()]
        if not readers or mode in readers or name == mode:
            continue
        if mode:
            raise typer.BadParameter(f"--{mode} does not use {_flag(name)}; leave out one of them.", context)
        raise typer.BadParameter(f"{_flag(name)} is for {_listed(readers, 'or')}; add that, or leave it out.", context)


def given(context: Any) -> list[str]:
    """The options on the command line, by their long names without dashes; arguments by the names in the signature."""
    sources = {parameter: context.get_parameter_source(parameter.name) for parameter in context.command.params}
    return [
        name_of(parameter)
        for parameter, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    ]


def name_of(parameter: Any) -> str:
    """`output` for `-o, --output`, and the name in the signature of an argument."""
    return str(max(parameter.opts, key=len)).lstrip("-")


def _flag(name: str) -> str:
    return name.upper() if name == "designs" else f"--{name}"


def _listed(names: Sequence[str], word: str) -> str:
    *first, last = map(_flag, names)
    return f"{', '.join(first)} {word} {last}" if first else last
