"""Arguments and options that several commands share, and the parsers of their values."""

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
    from tensornet_attn.cost.target import TargetOptions
    from tensornet_attn.models.read import ModelSpec
    from tensornet_attn.spec import Design

Pairs = list[str] | None
Text = str | None
Number = int | None
Real = float | None


_LENGTH = re.compile(r"([0-9]+)([kM]?)", re.ASCII)
_TIMES = {"": 1, "k": 1024, "M": 1024**2}


def length(text: str, least: int = 0) -> int:
    """Parses a number of positions: `4096`, `4k` for 4 x 1024, `1M` for 1024 x 1024. Raises BadParameter."""
    match = _LENGTH.fullmatch(text.strip())
    if match is None or int(match[1]) < least:
        raise typer.BadParameter(f"'{text}' is not a length, e.g. 4096, or 4k for 4 x 1024.")
    return int(match[1]) * _TIMES[match[2]]


def length_option(help_text: str, *names: str, least: int = 0) -> Any:
    return typer.Option(
        *names, help=help_text, metavar="LENGTH", show_default=False, parser=partial(length, least=least)
    )


def shipped(incomplete: str) -> list[str]:
    """Completes the name of a shipped design. If no name matches, the shell completes file names."""
    from tensornet_attn.spec import library

    return [name for name in library.names() if name.startswith(incomplete)]


def option(help_text: str, metavar: str | None = None, **others: Any) -> Any:
    """An option whose help text states its default."""
    return typer.Option(help=help_text, metavar=metavar, show_default=False, **others)


def flag(names: str, help_text: str) -> Any:
    return typer.Option(names, help=help_text)


DesignName = Annotated[
    str, typer.Argument(metavar="DESIGN", help="A shipped name, a YAML file, or - for stdin.", autocompletion=shipped)
]
Named = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A design or a model: a shipped name, a YAML file, or - for stdin.", autocompletion=shipped
    ),
]
Mixer = Annotated[
    str | None, typer.Option("--design", metavar="DESIGN", help="For a model: use this design in every layer.")
]
Legs = Annotated[Pairs, typer.Option("--legs", metavar="LEG=SIZE,...", help="Replace leg sizes, e.g. f=256,h=4.")]
Settings = Annotated[Pairs, typer.Option("--set", metavar="NAME=VALUE,...", help="Replace settings, e.g. k=2.")]
Causal = Annotated[bool | None, option("Override `causal` of the design.")]
TaskOptions = Annotated[Pairs, typer.Option("--options", metavar="NAME=VALUE,...", help="Options of the task.")]
Json = Annotated[bool, flag("--json", "Print JSON.")]
Output = Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Output file; - is stdout.")]
Backend = Annotated[str, typer.Option(help="reference, torch, inductor, cpp, triton or auto.")]
Workload = Annotated[str, typer.Option(help="Workload that the plan is optimised for: training, prefill or decoding.")]
Bucket = Annotated[str | None, typer.Option("--bucket", hidden=True, help="The old name of --workload.")]
Costs = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        help="Device that the plan is priced for, e.g. generic, cpu, h200, or this (see 'doctor --calibrate').",
    ),
]
CostsOnCpu = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="Device that the plan is priced for, e.g. cpu, generic, h200, or this (see 'doctor --calibrate'). "
        "[default: cpu; generic for decoding and Triton]",
        show_default=False,
    ),
]
Queries = Annotated[Number, length_option("Length of the query leg. [default: from --workload]", "--n")]
Keys = Annotated[Number, length_option("Length of the key leg. [default: n, or from --workload]", "--m")]
Batch = Annotated[int, typer.Option(min=0, help="Number of sequences.")]
Memory = Annotated[
    str | None, typer.Option(metavar="BYTES", help="Limit of the predicted peak memory, e.g. 2GiB or 500MB.")
]
Linear = Annotated[bool, flag("--linear-memory", "Refuse plans that store a tensor with a query and a key leg.")]


def priced_for(device: str | None) -> TargetOptions:
    """The option of a plan for a device; no option if no device was given."""
    return {} if device is None else {"device_costs": device}


def workload_of(workload: str, bucket: str | None) -> str:
    """The workload. Prints a warning on standard error if the deprecated option --bucket is used."""
    if bucket is not None:
        print("warning: --bucket is now called --workload.", file=sys.stderr)
    return workload if bucket is None else bucket


_NEXT = re.compile(r",(?=\s*[A-Za-z]\w*\s*=)")  # a comma inside min(a, b) does not start the next pair


def overrides(items: Pairs, option: str) -> dict[str, int | float | str]:
    """Parses `f=256,h=4`, from one or several options. A value is a number or an arithmetic expression."""
    pairs: dict[str, int | float | str] = {}
    for assignment in (assignment for argument in items or () for assignment in _NEXT.split(argument)):
        name, sign, value = (piece.strip() for piece in assignment.partition("="))
        if not (name and sign and value):
            raise typer.BadParameter(f"'{assignment}' is not NAME=VALUE, e.g. f=256.", param_hint=f"'{option}'")
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
    """Reads at most one byte more than the size limit from standard input, so that the reader reports a large file."""
    return sys.stdin.buffer.read(limits.FILE_BYTES + 1)


def source_of(name: str) -> str:
    """The argument for `ta.load`: the name or path itself, or for `-` the text on standard input."""
    if name != "-":
        return name
    yaml = standard_input().decode("utf-8", "surrogateescape")  # the reader reports the byte that is not UTF-8
    return yaml + "\n"  # `ta.load` reads a string with a line break as text, not as a name


def model_of(source: str, design: str | None, legs: Pairs, settings: Pairs) -> ModelSpec | None:
    """The model in a source, with the overrides applied. Returns None if the source is a design.

    `source` is a result of `source_of`. Raises DesignError, also if the name is neither a design nor a model.
    """
    from tensornet_attn.spec.sources import document_of

    document, reporter = document_of(source, "design or model")
    if not document.data and reporter.failed:
        raise DesignError(reporter.problems())
    if "model" in document.data:
        from tensornet_attn.models.read import load  # slow, and not needed for a design

        return load(source, **changes(design, overrides(legs, "--legs"), overrides(settings, "--set")))
    if design is not None:
        raise typer.BadParameter("the source is a design, and --design is for models.", param_hint="'--design'")
    return None


def changes(design: str | None, legs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The given overrides, as keyword arguments of `ta.models.load`."""
    arguments = {"design": design, "legs": legs, "settings": settings}
    return {key: argument for key, argument in arguments.items() if argument}


def load(name: str, legs: Pairs, settings: Pairs) -> Design:
    """The checked design of a command. Raises DesignError and InputError."""
    from tensornet_attn import compiler

    return compiler.load(source_of(name), legs=overrides(legs, "--legs"), settings=overrides(settings, "--set"))
