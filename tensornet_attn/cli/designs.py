"""The commands list, show, draw, compile, explain, schema and lattice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensornet_attn.cli import options
from tensornet_attn.cli.options import (
    Causal,
    DesignName,
    Json,
    Legs,
    Number,
    Output,
    Settings,
    Text,
    flag,
    length_option,
)
from tensornet_attn.cli.output import as_json_text, print_json, print_table, write

if TYPE_CHECKING:
    from tensornet_attn.runtime.triton.survey import Used
    from tensornet_attn.spec import Design

PICTURES = ("svg", "png", "dot", "tex", "mmd", "txt")
LATTICES = ("svg", "png", "dot", "txt")
KERNEL_DTYPES = ("bfloat16", "float16", "float32")


def list_designs(
    pattern: Annotated[str, typer.Argument(help="Only names that match the pattern, e.g. 'fish*'.")] = "*",
    models: Annotated[bool, flag("--models", "List models instead of designs.")] = False,
    as_json: Json = False,
) -> None:
    """List the shipped designs or models."""
    from tensornet_attn.errors import InputError
    from tensornet_attn.spec import library

    names = library.names(pattern, "model" if models else "design")
    kind, command = ("model", "list --models") if models else ("design", "list")
    if not names:
        raise InputError(f"no shipped {kind} matches '{pattern}'; 'tensornet-attn {command}' lists all of them.")
    if models:
        paths = {name: library.path_of(name, "model") for name in names}
        column, rows = "kind", [(name, value_of(path, "kind"), value_of(path, "about")) for name, path in paths.items()]
    else:
        column = "family"
        rows = [(name, library.family_of(name), value_of(library.path_of(name), "about")) for name in names]
    if as_json:
        print_json([dict(zip(("name", column, "about"), row, strict=True)) for row in rows])
    else:
        print_table((kind, column, "about"), rows)


def value_of(path: Path, key: str) -> str:
    """The value of a one-line key that occurs once in a shipped file. Much faster than parsing the file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith(f"{key}:"):
            return line.strip().removeprefix(f"{key}:").strip().strip("\"'")
    return ""


def show(
    name: options.Named,
    text: Annotated[bool, flag("--text", "Print the diagram as text.")] = False,
    graph: Annotated[bool, flag("--graph", "Print the checked graph.")] = False,
    resolved: Annotated[bool, flag("--resolved", "Print the YAML with all parents merged in.")] = False,
    design: options.Mixer = None,
    legs: Legs = None,
    settings: Settings = None,
) -> None:
    """Print the file of a design or model, or another form of it."""
    from tensornet_attn import compiler
    from tensornet_attn.graph import build
    from tensornet_attn.spec import library

    source = options.source_of(name)
    model = options.model_of(source, design, legs, settings)  # raises an error for any other name or file
    if model is not None and (text or graph):
        raise typer.BadParameter(f"'{name}' is a model; --text and --graph are for designs.")
    content = "" if model is None else model.to_yaml(whole=resolved)
    if model is None:
        loaded = compiler.load(source, options.overrides(legs, "--legs"), options.overrides(settings, "--set"))
        if text:
            from tensornet_attn.draw import to_text as diagram_text

            content = diagram_text(build(loaded), title=loaded.name, about=loaded.about or None)
        else:
            content = build(loaded).to_text() if graph else loaded.to_yaml()
    if not (text or graph or resolved or design or legs or settings or name == "-"):
        path = library.file_of(name)
        write("-", (Path(name) if path is None or Path(name).is_file() else path).read_bytes())
    else:
        write("-", content)


def draw(
    design: DesignName,
    output: Output = "-",
    form: Annotated[
        Text, typer.Option("--format", help=f"{', '.join(PICTURES)}. [default: the file's extension]")
    ] = None,
    causal: Causal = None,
    cache: Annotated[bool, flag("--cache", "Mark the tensors in the decoding cache.")] = False,
    theme: Annotated[str, typer.Option(help="light, dark or print (no colours, no background).")] = "light",
    plan: Annotated[bool, flag("--plan", "Colour the regions of the plan by implementation.")] = False,
    cost: Annotated[
        bool, flag("--cost", "Colour steps by their share of the work, and scale wires with leg sizes.")
    ] = False,
    n: Annotated[Number, length_option("For --plan and --cost: length of the query leg. [default: 1024]")] = None,
    m: Annotated[Number, length_option("For --plan and --cost: length of the key leg. [default: n]")] = None,
    legs: Legs = None,
    settings: Settings = None,
) -> None:
    """Draw a design as SVG, PNG, DOT, TikZ, Mermaid or text."""
    from tensornet_attn import compiler

    suffix = _format(output, form, PICTURES, f"'{output}' has no extension")
    overlay = "plan" if plan else "cost" if cost else None
    write(output, compiler.picture(options.load(design, legs, settings), suffix, causal, cache, theme, overlay, n, m))


def _format(output: str, form: str | None, formats: Sequence[str], unnamed: str = "'' is no format") -> str:
    """The format: `form` if given, else the file's extension, and txt on standard output. Raises BadParameter."""
    suffix = form or (Path(output).suffix.lstrip(".") if output != "-" else "txt")
    if suffix not in formats:
        wrong, hint = f"'{suffix}' is no format" if suffix else unnamed, "'--format'" if form else "'--output'"
        raise typer.BadParameter(f"{wrong}; choose one of {', '.join(formats)}.", param_hint=hint)
    return suffix


def compile_design(
    design: DesignName,
    output: Output = "-",
    backend: Annotated[str, typer.Option(help="torch, cpp, triton or auto.")] = "auto",
    causal: Causal = None,
    workload: options.Workload = "training",
    bucket: options.Bucket = None,
    device: options.Costs = "generic",
    n: options.Queries = None,
    m: options.Keys = None,
    batch: options.Batch = 1,
    memory: options.Memory = None,
    linear_memory: options.Linear = False,
    legs: Legs = None,
    settings: Settings = None,
    package: Annotated[bool, flag("--package", "Import runtime functions from tensornet_attn.runtime.")] = False,
) -> None:
    """Write the PyTorch module of a design.

    The module is one file that needs only torch, or torch and triton with --backend triton. With --package it is
    shorter and faster, and needs tensornet_attn. The module is correct for all lengths; the options only select what
    its plan is optimised for.
    """
    from tensornet_attn import compiler
    from tensornet_attn.cost.target import TargetOptions

    sizes = TargetOptions(n=n, m=m, batch=batch, memory=memory, linear_memory=linear_memory)
    target_options = TargetOptions(workload=options.workload_of(workload, bucket), device_costs=device) | sizes
    write(
        output, compiler.emit_source(options.load(design, legs, settings), causal, backend, package, **target_options)
    )


def warm(
    designs: Annotated[
        list[str],
        typer.Argument(metavar="DESIGN...", help="Shipped names or YAML files.", autocompletion=options.shipped),
    ],
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    causal: Causal = None,
    workload: options.Workload = "training",
    device: options.CostsOnCpu = None,
    n: options.Queries = None,
    m: options.Keys = None,
    batch: options.Batch = 1,
    memory: options.Memory = None,
    linear_memory: options.Linear = False,
    legs: Legs = None,
    settings: Settings = None,
) -> None:
    """Compile the C++ kernels of designs for this CPU.

    Afterwards `compile` with backend auto and the same options uses them. Each takes seconds, and stays in the cache.
    Files that `tensornet-attn compile` writes are planned for the device generic by default.
    """
    from tensornet_attn import compiler
    from tensornet_attn.cost.target import TargetOptions

    sizes = TargetOptions(workload=workload, n=n, m=m, batch=batch, memory=memory, linear_memory=linear_memory)
    target_options = options.priced_for(device) | sizes
    for name in designs:
        design = options.load(name, legs, settings)
        paths = compiler.warm(design, causal, dtype, **target_options)
        print(f"{design.name}: {', '.join(map(str, paths)) or 'no region needs C++ kernels; torch computes all of it'}")


def explain(
    design: DesignName,
    backend: options.Backend = "auto",
    rewrites: Annotated[bool, flag("--rewrites", "List the rewrites that apply, step by step.")] = False,
    decoding: Annotated[bool, flag("--decoding", "List the content of the decoding cache.")] = False,
    order: Annotated[bool, flag("--order", "Print opt_einsum's PathInfo of the products of three or more.")] = False,
    workload: options.Workload = "training",
    bucket: options.Bucket = None,
    device: options.CostsOnCpu = None,
    n: options.Queries = None,
    m: options.Keys = None,
    batch: options.Batch = 1,
    memory: options.Memory = None,
    linear_memory: options.Linear = False,
    strict: Annotated[bool, flag("--strict", "Fail if a region runs on another backend.")] = False,
    kernels: Annotated[
        bool, flag("--kernels", "Compile the Triton kernels, without a GPU, and list the resources they use.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="For --kernels: bfloat16, float16 or float32.")] = "bfloat16",
    causal: Causal = None,
    legs: Legs = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Print the compiler's choices and reasons.

    For each region of the plan: its implementation, and the reasons against the others.
    """
    from tensornet_attn import compiler
    from tensornet_attn.cost.devices import costs_on_cpu, device_named
    from tensornet_attn.cost.order import path_text
    from tensornet_attn.cost.sizes import lengths_of, sizes_at
    from tensornet_attn.cost.target import TargetOptions
    from tensornet_attn.graph import build
    from tensornet_attn.plan.decoding import decoding_of
    from tensornet_attn.plan.stages import steps_in_cpp
    from tensornet_attn.rewrite.table import firings, shown

    document: Any
    loaded = options.load(design, legs, settings)
    if kernels:
        used = _kernels(loaded, dtype, causal)
        printed, document = _kernels_text(loaded.name, used), [asdict(kernel) for kernel in used] if as_json else None
    elif rewrites:
        graph = build(loaded, causal)
        printed, document = ("", [firing.as_dict() for firing in firings(graph)]) if as_json else (shown(graph), None)
    elif decoding:
        graph = build(loaded, causal)
        cache, in_cpp = decoding_of(graph), [*steps_in_cpp(graph)]
        printed, document = "\n".join([cache.to_text(), *in_cpp]), cache.as_dict() | {"in_cpp": in_cpp}
    elif order:
        graph = build(loaded, causal)
        costs = device_named(device or costs_on_cpu(backend, options.workload_of(workload, bucket)))
        printed, document = path_text(graph, sizes_at(graph, lengths_of(graph, n, m)), costs), None
    else:
        sizes = TargetOptions(n=n, m=m, batch=batch, memory=memory, linear_memory=linear_memory, strict=strict)
        target_options = (
            TargetOptions(workload=options.workload_of(workload, bucket)) | options.priced_for(device) | sizes
        )
        plan = compiler.plan_for(loaded, backend, causal, **target_options)
        printed, document = plan.explain(), plan.as_dict()
    if as_json:
        print_json(document)
    else:
        write("-", f"{printed}\n")


def _kernels(design: Design, dtype: str, causal: bool | None) -> list[Used]:
    """The resources of each Triton kernel of a design, forward and backward, on both GPU targets."""
    import torch

    from tensornet_attn import compiler
    from tensornet_attn.errors import InputError, nearest, need_triton

    if dtype not in KERNEL_DTYPES:
        raise InputError(f"there are no kernels for dtype '{dtype}'; {nearest(dtype, KERNEL_DTYPES)}")
    need_triton()
    from tensornet_attn.runtime.triton.survey import TARGETS

    return [kernel for target in TARGETS for kernel in compiler.kernels(design, target, getattr(torch, dtype), causal)]


def _kernels_text(name: str, used: list[Used]) -> str:
    """The resources as a Markdown table."""
    from tensornet_attn.runtime.triton.survey import head, table

    if not used:
        return f"{name} has no Triton kernels; 'tensornet-attn explain {name} --backend triton' prints the reasons."
    against = [
        f"{kernel.kernel}, sm_{kernel.target}: {reason}." for kernel in used for reason in kernel.reasons_against
    ]
    return "\n".join([*head(), "", *table(used), *(["", *against] if against else [])])


def schema(output: Output = "-", model: Annotated[bool, flag("--model", "The schema of model files.")] = False) -> None:
    """Write the JSON schema of design files."""
    from tensornet_attn import models, spec

    write(output, as_json_text((models if model else spec).json_schema()))


def lattice(
    design: Annotated[
        Text,
        typer.Argument(
            metavar="[DESIGN]",
            help="Only designs that contain this design, and designs that it contains: a shipped name or a YAML file.",
        ),
    ] = None,
    output: Output = "-",
    form: Annotated[
        str | None, typer.Option("--format", help=f"{', '.join(LATTICES)}. [default: the file's extension]")
    ] = None,
    equal_sizes: Annotated[bool, flag("--equal-sizes", "Only relations between designs of the same sizes.")] = False,
    as_json: Json = False,
) -> None:
    """Show which designs contain which others.

    A design contains another if it equals the other at some sizes and weights.
    """
    from tensornet_attn.draw.lattice import lattice_picture
    from tensornet_attn.special import special_cases

    suffix = _format(output, form, LATTICES)
    cases = special_cases(design and options.source_of(design), equal_sizes)
    if as_json:
        edges = sorted(cases.edges(data="causal"))
        print_json([{"design": outer, "contains": inner, "causal": causal} for outer, inner, causal in edges])
    else:
        write(output, lattice_picture(cases, suffix))
