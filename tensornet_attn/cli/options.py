"""Arguments and options that several commands share, and the values they stand for."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensornet_attn import limits
from tensornet_attn.errors import DesignError

if TYPE_CHECKING:
    from tensornet_attn.models.read import ModelSpec
    from tensornet_attn.spec import Design

Pairs = list[str] | None
Text = str | None
Number = int | None
Real = float | None


_LENGTH = re.compile(r"([0-9]+)([kM]?)", re.ASCII)
_TIMES = {"": 1, "k": 1024, "M": 1024**2}


def length(text: str, least: int = 0) -> int:
    """A number of positions: `4096`, `4k` for 4 times 1024, `1M` for 1024 times 1024. Raises BadParameter."""
    found = _LENGTH.fullmatch(text.strip())
    if found is None or int(found[1]) < least:
        raise typer.BadParameter(f"'{text}' is not a length, e.g. 4096, or 4k for 4 x 1024.")
    return int(found[1]) * _TIMES[found[2]]


def length_option(help_text: str, *names: str, least: int = 0) -> Any:
    """An option that takes a length."""
    return typer.Option(
        *names, help=help_text, metavar="LENGTH", show_default=False, parser=partial(length, least=least)
    )


def shipped(incomplete: str) -> list[str]:
    """What a shell completes a design's name to: shipped names; where none fits, the shell completes files."""
    from tensornet_attn.spec import library

    return [name for name in library.names() if name.startswith(incomplete)]


def option(help_text: str, metavar: str | None = None, **others: Any) -> Any:
    """An option whose help says what holds where it is absent."""
    return typer.Option(help=help_text, metavar=metavar, show_default=False, **others)


def flag(names: str, help_text: str) -> Any:
    """An option that is given or not."""
    return typer.Option(names, help=help_text)


DesignName = Annotated[
    str,
    typer.Argument(metavar="DESIGN", help="A shipped name, a YAML file, or - for stdin.", autocompletion=shipped),
]
Named = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A design or a model: a shipped name, a YAML file, or - for stdin.", autocompletion=shipped
    ),
]
Mixer = Annotated[str | None, typer.Option("--design", metavar="DESIGN", help="Of a model: the mixer of every layer.")]
Legs = Annotated[Pairs, typer.Option("--legs", metavar="LEG=SIZE,...", help="Replace leg sizes, e.g. f=256,h=4.")]
Settings = Annotated[Pairs, typer.Option("--set", metavar="NAME=VALUE,...", help="Replace settings, e.g. k=2.")]
Causal = Annotated[bool | None, option("Override the design's own `causal`.")]
TaskOptions = Annotated[Pairs, typer.Option("--options", metavar="NAME=VALUE,...", help="Options of the task.")]
Json = Annotated[bool, flag("--json", "Print JSON.")]
Output = Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The file to write; - is stdout.")]
Backend = Annotated[str, typer.Option(help="reference, torch, inductor, triton or auto.")]
Workload = Annotated[str, typer.Option(help="What it is planned for: training, prefill or decoding.")]
Bucket = Annotated[str | None, typer.Option("--bucket", hidden=True, help="The old name of --workload.")]
Costs = Annotated[
    str, typer.Option("--device", metavar="NAME", help="Of the cost table, e.g. generic, cpu, h200; or this.")
]
Queries = Annotated[Number, length_option("Length of the query leg; the workload's if absent.", "--n")]
Keys = Annotated[Number, length_option("Length of the key leg; n, else the workload's.", "--m")]
Batch = Annotated[int, typer.Option(min=0, help="Number of sequences.")]
Memory = Annotated[
    str | None, typer.Option(metavar="BYTES", help="What the predicted peak may reach, e.g. 2GiB or 500MB.")
]
Linear = Annotated[bool, flag("--linear-memory", "Refuse tensors with both a query and a key leg.")]


def workload_of(workload: str, bucket: str | None) -> str:
    """The workload. Its old option, --bucket, works with a warning on standard error."""
    if bucket is not None:
        print("warning: --bucket is now called --workload.", file=sys.stderr)
    return workload if bucket is None else bucket


_NEXT = re.compile(r",(?=\s*[A-Za-z]\w*\s*=)")  # a comma inside min(a, b) does not start the next pair


def overrides(items: Pairs, option: str) -> dict[str, int | float | str]:
    """The pairs of `f=256,h=4`, given once or several times; a value is a number or arithmetic."""
    pairs: dict[str, int | float | str] = {}
    for item in (part for text in items or () for part in _NEXT.split(text)):
        name, sign, value = (piece.strip() for piece in item.partition("="))
        if not (name and sign and value):
            raise typer.BadParameter(f"'{item}' is not NAME=VALUE, e.g. f=256.", param_hint=f"'{option}'")
        pairs[name] = _number(value)
    return pairs


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def standard_input() -> bytes:
    """What stands on standard input, one byte beyond the bound at most: the reader then says that it is too large."""
    return sys.stdin.buffer.read(limits.FILE_BYTES + 1)


def source_of(name: str) -> str:
    """What `ta.load` takes: the name or path itself, or the text on standard input for `-`."""
    if name != "-":
        return name
    text = standard_input().decode("utf-8", "surrogateescape")  # the reader names the byte that is not UTF-8
    return text + "\n"  # with a line end it is text, never a name


def model_of(source: str, design: str | None, legs: Pairs, settings: Pairs) -> ModelSpec | None:
    """The model that a source holds, with what is to be otherwise in it; None for a source that holds a design.

    `source`: what `source_of` gives. Raises DesignError, also for a name that is neither's.
    """
    from tensornet_attn.spec.sources import document_of

    document, reporter = document_of(source, "design or model")
    if not document.data and reporter.failed:
        raise DesignError(reporter.problems())
    if "model" in document.data:
        from tensornet_attn.models.read import load  # reading a design needs far less

        return load(source, **changes(design, overrides(legs, "--legs"), overrides(settings, "--set")))
    if design is not None:
        raise typer.BadParameter("this is a design; --design is for models.", param_hint="'--design'")
    return None


def changes(design: str | None, legs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `ta.models.load` is to override: only what was given."""
    given = {"design": design, "legs": legs, "settings": settings}
    return {key: value for key, value in given.items() if value}


def load(name: str, legs: Pairs, settings: Pairs) -> Design:
    """The checked design a command works on. Raises DesignError or InputError."""
    from tensornet_attn import compiler

    return compiler.load(source_of(name), legs=overrides(legs, "--legs"), settings=overrides(settings, "--set"))
