"""The command `bench`: measures designs and handwritten PyTorch, or the speed targets."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensornet_attn.cli.modes import check, given, name_of
from tensornet_attn.cli.options import (
    Causal,
    Json,
    Legs,
    Number,
    Real,
    Settings,
    Text,
    flag,
    length,
    load,
    option,
    overrides,
    source_of,
)
from tensornet_attn.cli.output import as_json_text, print_json, write
from tensornet_attn.errors import TensornetError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensornet_attn.bench.case import Case
    from tensornet_attn.bench.run import Setting
    from tensornet_attn.spec import Design
    from tensornet_attn.spec.read import Source

OF_LENGTHS = ("n", "backend", "batch", "dtype")  # sizes of targets that only a GPU's have
GPU_BACKENDS, GPU_DTYPE = ("auto", "triton", "torch"), "bfloat16"  # on a CPU: torch first, in float32


def bench(
    context: typer.Context,
    designs: Annotated[
        list[str] | None,
        typer.Argument(metavar="DESIGN", help="Shipped names, patterns such as 'epa*', or YAML files."),
    ] = None,
    n: Annotated[str, typer.Option(metavar="N,...", help="Lengths of the query and key legs.")] = "512",
    against: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="Baselines: reference, eager, compile, sdpa, softmax, flex, fused, dense, fla, or your module:Class.",
        ),
    ] = "eager,compile,sdpa",
    backend: Annotated[
        str, typer.Option(metavar="NAME,...", help="Backends of our modules: auto, torch, inductor, cpp, triton.")
    ] = "torch",
    output: Annotated[Text, typer.Option("-o", "--output", metavar="FILE", help="Write the results as JSON.")] = None,
    plot: Annotated[Text, option("Plot the results as svg, png or pdf.", "FILE")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences per call.")] = 1,
    legs: Legs = None,
    settings: Settings = None,
    causal: Causal = None,
    dtype: Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    threads: Annotated[Number, option("Torch threads. [default: torch's, or 1 with --decoding]", min=1)] = None,
    repeats: Annotated[int, typer.Option(min=3, help="Maximum number of rounds.")] = 20,
    seconds: Annotated[
        float, typer.Option(min=0, help="Time limit per pass and length; at least three rounds run.")
    ] = 10.0,
    memory: Annotated[
        Real,
        option("Skip contestants that may need more memory. [default: 8, or half of the GPU's memory]", "GIB", min=0),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and inputs.")] = 0,
    targets: Annotated[
        bool, flag("--targets", "Measure the speed targets of these designs, or of all designs.")
    ] = False,
    rehearse: Annotated[
        bool, flag("--rehearse", "Run the GPU targets on this CPU at a small --n, only to check that they work.")
    ] = False,
    costs: Annotated[
        Text, option("Device that our modules are planned for: measured (on a GPU), or one of the cost table.", "NAME")
    ] = None,
    tune: Annotated[bool, flag("--tune", "Tune our Triton kernels before measuring; needs a GPU.")] = False,
    graphs: Annotated[bool, flag("--graphs", "Time CUDA graphs of the calls, without the host; needs a GPU.")] = False,
    uncompared: Annotated[
        bool, flag("--uncompared", "Measure your own layer even if its weights are not those of the design.")
    ] = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="Cases to compile and compare at once, in processes; timing stays one by one.")
    ] = 1,
    decoding: Annotated[
        bool, flag("--decoding", "Measure a decoding step after --n positions, against handwritten steps.")
    ] = False,
    regret: Annotated[
        bool,
        flag("--regret", "Compare predicted with measured times, and each choice of the planner with its candidates."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure designs against handwritten PyTorch.

    Prints median times, ratios and peak memory of a forward, and of a forward with backward. Contestants are
    interleaved in one process, after a comparison of each with the reference. With --device cuda and no design, bench
    measures all GPU targets; with --decoding, a step with a cache.
    """
    if regret:
        from tensornet_attn.cli.regret import measure

        chosen_designs = loaded(designs or ["*"], legs, settings)
        chosen_lengths = lengths(n) if "n" in given(context) else []
        measure(chosen_designs, chosen_lengths, batch, causal, seed, costs, threads, memory, output, as_json, _say)
        return
    on_gpu = device.partition(":")[0] == "cuda"
    aimed = targets or rehearse or (on_gpu and not designs and not decoding)
    gpu = rehearse or on_gpu
    _usage(context, bool(designs or decoding), aimed, gpu, [] if on_gpu else ["--tune"] * tune + ["--graphs"] * graphs)
    _writable(output, plot)
    import torch

    from tensornet_attn import compiler
    from tensornet_attn.bench.bench import Options
    from tensornet_attn.bench.case import Case
    from tensornet_attn.bench.run import Setting, of_cases, of_targets
    from tensornet_attn.bench.targets import targets_of

    if threads is not None or decoding:
        torch.set_num_threads(threads or 1)
    setting = Setting(device, dtype, seed, costs, tune, memory, repeats, seconds, graphs=graphs, jobs=jobs)
    if aimed:
        if gpu:
            setting = _for_gpu(context, setting, n, backend, batch)
        session = of_targets(targets_of(designs or (), gpu), setting, _say, gpu)
    elif decoding:
        from tensornet_attn.bench.decoding import of_decoding

        def case_of(source: Source, length: int, size: int) -> Case:
            design = compiler.load(source, overrides(legs, "--legs"), overrides(settings, "--set"))
            return Case(design, length, size, True, dtype, device, seed)

        session = of_decoding(_steps(context, designs, n, batch, case_of), listed(backend), setting, _say)
    else:
        names = Options(listed(against), listed(backend), uncompared=uncompared)
        chosen_designs = loaded(designs or [], legs, settings)
        cases = [
            Case(design, length, batch, causal, dtype, device, seed)
            for design in chosen_designs
            for length in lengths(n)
        ]
        session = of_cases(cases, names, setting, _say)
    session.run.command = command_line(context)
    for _ in session.measured():  # save after each result, so that an interruption loses none
        if output is not None:
            write(output, as_json_text(session.run.as_dict()))
    if plot is not None:
        from tensornet_attn.bench.plot import figure

        picture = io.BytesIO()
        figure(session.run.results).savefig(picture, format=Path(plot).suffix[1:])
        write(plot, picture.getvalue())
    if as_json:
        print_json(session.run.as_dict())
    else:
        print(session.text())
    if session.run.wrong:
        told = "not timed, because results differ from the reference or the layer raised an error:"
        raise TensornetError("\n".join([told, *session.run.wrong]))


def _steps(
    context: typer.Context, designs: list[str] | None, n: str, batch: int, make: Callable[[Source, int, int], Case]
) -> list[Case]:
    """The decoding steps to measure: given or default designs, lengths and batch sizes."""
    from tensornet_attn.bench.decoding import BATCHES, LENGTHS, usual_cases

    batches = [batch] if "batch" in given(context) else BATCHES
    chosen_lengths = lengths(n) if "n" in given(context) else []
    if not designs:
        return usual_cases(make, batches, chosen_lengths)
    return [
        make(source_of(name), m, size)
        for name in spelled_out(designs)
        for size in batches
        for m in chosen_lengths or LENGTHS
    ]


def _usage(context: typer.Context, named: bool, aimed: bool, gpu: bool, idle: list[str]) -> None:
    """Raises BadParameter for options that do not apply to targets, or need a GPU."""
    if not named and not aimed:
        raise typer.BadParameter("name a design to measure, or give --targets.")
    if aimed:
        check(context, "rehearse" if "rehearse" in given(context) else "targets")  # a GPU without designs: targets
    refused = [f"--{name}" for name in given(context) if name in OF_LENGTHS] if aimed and not gpu else []
    if refused:
        raise typer.BadParameter(f"--targets has its own sizes on a CPU; leave out {', '.join(refused)}.")
    if idle:
        raise typer.BadParameter(f"{idle[0]} needs a GPU; add --device cuda.")


def _for_gpu(context: typer.Context, setting: Setting, n: str, backend: str, batch: int) -> Setting:
    """The setting of GPU targets: their own, overridden by the options on the command line."""
    from dataclasses import replace

    replaced = lengths(n) if "n" in given(context) else [None]
    if len(replaced) > 1:
        raise typer.BadParameter("targets take a single length, which replaces their own.", param_hint="'--n'")
    usual: tuple[tuple[str, ...], str] = (GPU_BACKENDS, GPU_DTYPE)
    if setting.device.partition(":")[0] != "cuda":
        usual = ("torch", "triton"), setting.dtype
    return replace(
        setting,
        n=replaced[0],
        backends=tuple(listed(backend)) if "backend" in given(context) else usual[0],
        batch=batch if "batch" in given(context) else setting.batch,
        dtype=setting.dtype if "dtype" in given(context) else usual[1],
    )


def command_line(context: typer.Context) -> str:
    """The command line that reproduces these results."""
    words = ["tensornet-attn", "bench"]
    for parameter in context.command.params:
        if name_of(parameter) not in given(context):
            continue
        argument = context.params[parameter.name]
        arguments = argument if isinstance(argument, list | tuple) else [argument]
        if isinstance(argument, bool):
            words.append(parameter.opts[0] if argument else parameter.secondary_opts[0])
        elif parameter.param_type_name == "argument":
            words += map(str, arguments)
        else:
            words += [word for element in arguments for word in (parameter.opts[0], str(element))]
    return shlex.join(words)


def listed(listing: str) -> list[str]:
    """Splits `a,b` into names, without duplicates."""
    return list(dict.fromkeys(name.strip() for name in listing.split(",") if name.strip()))


def lengths(listing: str) -> list[int]:
    """Parses lengths such as `512,4k`. Raises BadParameter."""
    words = listed(listing)
    if not words:
        raise typer.BadParameter("give a length, e.g. --n 512,2048.", param_hint="'--n'")
    try:
        return [length(word, least=1) for word in words]
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint="'--n'") from None


def spelled_out(names: list[str]) -> list[str]:
    """Expands patterns to matching shipped names. Raises InputError if a pattern matches none."""
    from tensornet_attn.errors import InputError
    from tensornet_attn.spec import library

    expanded: list[str] = []
    for name in names:
        several = library.names(name) if any(sign in name for sign in "*?[") else [name]
        if not several:
            raise InputError(f"no shipped design matches '{name}'; 'tensornet-attn list' lists all of them.")
        expanded += several
    return list(dict.fromkeys(expanded))


def loaded(names: list[str], legs: list[str] | None, settings: list[str] | None) -> list[Design]:
    """The designs, with patterns expanded; those of a pattern that do not fit the sizes are skipped, with their error.

    Raises DesignError or InputError for a design that was named, and if none is left.
    """
    from tensornet_attn.errors import DesignError, InputError

    designs: list[Design] = []
    expanded = spelled_out(names)
    for name in expanded:
        try:
            designs.append(load(name, legs, settings))
        except (DesignError, InputError) as error:
            if name in names or (not designs and name == expanded[-1]):
                raise
            print(f"{name} is skipped: {error}", file=sys.stderr)
    return designs


def _writable(output: str | None, plot: str | None) -> None:
    """Checks before the measurement that the output files can be written: folder, plot library, file extension."""
    from tensornet_attn.files import folder_of

    if plot is not None:
        from tensornet_attn.analyse.plots import need_matplotlib

        if Path(plot).suffix not in (".svg", ".png", ".pdf"):
            raise typer.BadParameter(f"'{plot}' does not end in .svg, .png or .pdf.", param_hint="'--plot'")
        need_matplotlib()
    for path in map(Path, filter(None, (output, plot))):
        folder_of(path)


def _say(message: str) -> None:
    """Prints progress, on a terminal only."""
    if sys.stderr.isatty():
        print(message, file=sys.stderr)
