"""`bench`: designs measured beside hand-written PyTorch, or the speed that is aimed at."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensornet_attn.cli.options import Causal, Json, Legs, Settings, load
from tensornet_attn.errors import TensornetError

if TYPE_CHECKING:
    from tensornet_attn.bench.results import Result, Run
    from tensornet_attn.bench.run import Options

Designs = Annotated[
    list[str] | None,
    typer.Argument(metavar="DESIGN", help="Shipped names or patterns such as 'epa*', or YAML files."),
]
Lengths = Annotated[str, typer.Option("--n", metavar="N,...", help="Lengths.")]
Against = Annotated[str, typer.Option(metavar="NAME,...", help="reference, eager, compile, sdpa, softmax, flex.")]
Backends = Annotated[str, typer.Option("--backend", metavar="NAME,...", help="Ours: torch, inductor, or both.")]
File = Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Write the results as JSON.")]
Plot = Annotated[str | None, typer.Option(metavar="FILE", help="Draw the results: svg, png or pdf.")]
Batch = Annotated[int, typer.Option(min=1, help="Sequences of one call.")]
Dtype = Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of torch; as torch has them.")]
Repeats = Annotated[int, typer.Option(min=3, help="Rounds at most.")]
Seconds = Annotated[float, typer.Option(min=0, help="Of timing for each pass at each length; three rounds at least.")]
Memory = Annotated[float, typer.Option(min=0, metavar="GIB", help="Leave out what is predicted to need more.")]
Seed = Annotated[int, typer.Option(min=0, help="Of weights and inputs.")]
Targets = Annotated[
    bool,
    typer.Option("--targets", help="Measure the speed that is aimed at, of these designs or of all that have one."),
]

OF_CASES = ("n", "against", "backend", "batch", "legs", "settings", "causal", "dtype", "device")


def bench(
    context: typer.Context,
    designs: Designs = None,
    n: Lengths = "512",
    against: Against = "eager,compile,sdpa",
    backend: Backends = "torch",
    output: File = None,
    plot: Plot = None,
    batch: Batch = 1,
    legs: Legs = None,
    settings: Settings = None,
    causal: Causal = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    repeats: Repeats = 20,
    seconds: Seconds = 10.0,
    memory: Memory = 8.0,
    seed: Seed = 0,
    targets: Targets = False,
    as_json: Json = False,
) -> None:
    """Measure designs beside hand-written PyTorch.

    Forward, and forward with backward: medians, ratios and peak memory, contestants taking turns in one process. Each
    is compared with the reference before it is timed.
    """
    _usage(context, designs, targets)
    _writable(output, plot)
    import torch

    from tensornet_attn.bench.aim import target_results
    from tensornet_attn.bench.case import Case
    from tensornet_attn.bench.run import Bench, Options
    from tensornet_attn.bench.table import target_table, text
    from tensornet_attn.bench.targets import targets_of

    if threads is not None:
        torch.set_num_threads(threads)
    options = Options(listed(against), listed(backend), repeats=repeats, seconds=seconds, memory=memory)
    aims = targets_of(designs or ()) if targets else ()
    if targets:
        results = target_results(aims, options, _say, seed)
    else:
        loaded, given = [load(name, legs, settings) for name in spelled_out(designs or [])], lengths(n)
        cases = [Case(design, length, batch, causal, dtype, device, seed) for design in loaded for length in given]
        for case in cases:
            case.check()
        results = Bench(options, _say).results(cases)
    run = _run(command_line(context), device, options, seed)
    for _ in _measured(run, results):
        _write(output, run)
    if plot is not None:
        _plot(run, plot)
    print(
        _json(run) if as_json else target_table(zip(aims, run.results, strict=True)) if targets else text(run.results)
    )
    if run.wrong:
        raise TensornetError("\n".join(["numbers that are not the reference's, so not timed:", *run.wrong]))


def _usage(context: typer.Context, designs: list[str] | None, targets: bool) -> None:
    if not designs and not targets:
        raise typer.BadParameter("name a design to measure, or give --targets.")
    given = [name for name in OF_CASES if targets and _given(context, name)]
    if given:
        names = ", ".join(f"--{'set' if name == 'settings' else name}" for name in given)
        raise typer.BadParameter(f"--targets has its own sizes and contestants; leave out {names}.")


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def command_line(context: typer.Context) -> str:
    """The command that gives these results, with the options that were given."""
    words = ["tensornet-attn", "bench"]
    for option in context.command.params:
        if option.name is None or not _given(context, option.name):
            continue
        value = context.params[option.name]
        values = value if isinstance(value, list | tuple) else [value]
        if isinstance(value, bool):
            words.append(option.opts[0] if value else option.secondary_opts[0])
        elif option.param_type_name == "argument":
            words += map(str, values)
        else:
            words += [word for each in values for word in (option.opts[0], str(each))]
    return shlex.join(words)


def listed(text: str) -> list[str]:
    """The names of `a,b`, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def lengths(text: str) -> list[int]:
    """The numbers of `512,2048`."""
    found = []
    for word in listed(text):
        if not (word.isascii() and word.isdigit() and int(word)):
            raise typer.BadParameter(f"'{word}' is no length, e.g. --n 512,2048.", param_hint="'--n'")
        found.append(int(word))
    if not found:
        raise typer.BadParameter("give a length, e.g. --n 512,2048.", param_hint="'--n'")
    return found


def spelled_out(names: list[str]) -> list[str]:
    """Patterns as the shipped names that match. Raises InputError where none does."""
    from tensornet_attn.errors import InputError
    from tensornet_attn.spec import library

    found: list[str] = []
    for name in names:
        several = library.names(name) if any(sign in name for sign in "*?[") else [name]
        if not several:
            raise InputError(f"no shipped design matches '{name}'; 'tensornet-attn list' shows them all.")
        found += several
    return list(dict.fromkeys(found))


def _writable(output: str | None, plot: str | None) -> None:
    """Fails before an hour of measuring, not after: a missing folder, a missing plot library, an unknown ending."""
    from tensornet_attn.files import write_whole

    if plot is not None:
        from tensornet_attn.analyse.plots import need_matplotlib

        if Path(plot).suffix not in (".svg", ".png", ".pdf"):
            raise typer.BadParameter(f"'{plot}' does not end in .svg, .png or .pdf.", param_hint="'--plot'")
        need_matplotlib()
    for path in map(Path, filter(None, (output, plot))):
        if path.is_dir():
            raise IsADirectoryError(21, "is a folder, not a file", str(path))
        trial = path.with_name(f".{path.name}.trial")
        write_whole(trial, b"")
        trial.unlink()


def _run(command: str, device: str, options: Options, seed: int) -> Run:
    from tensornet_attn.bench.machine import load as load_of
    from tensornet_attn.bench.machine import machine
    from tensornet_attn.bench.results import Run

    return Run(command, machine(device), asdict(options) | {"seed": seed}, load=[load_of()])


def _measured(run: Run, results: Iterator[Result]) -> Iterator[None]:
    """Adds result after result to the run."""
    from tensornet_attn.bench.machine import load as load_of

    for result in results:
        run.results.append(result)
        yield
    run.finished = True
    run.load.append(load_of())
    yield


def _say(text: str) -> None:
    """Tells whoever waits at a terminal what is being done."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def _write(output: str | None, run: Run) -> None:
    """The results so far: what was measured outlives an interruption."""
    from tensornet_attn.cli.output import write

    if output is not None:
        write(output, _json(run) + "\n")


def _json(run: Run) -> str:
    return json.dumps(run.as_dict(), indent=2, ensure_ascii=False)


def _plot(run: Run, path: str) -> None:
    import io

    from tensornet_attn.bench.plot import figure
    from tensornet_attn.cli.output import write

    picture: Any = io.BytesIO()
    figure(run.results).savefig(picture, format=Path(path).suffix[1:])
    write(path, picture.getvalue())
