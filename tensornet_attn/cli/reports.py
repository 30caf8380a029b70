"""The commands that print: list, show and explain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensornet_attn.cli.options import (
    Backend,
    Batch,
    Causal,
    Costs,
    DesignName,
    Json,
    Keys,
    Legs,
    Linear,
    Memory,
    Mixer,
    Named,
    Queries,
    Settings,
    Workload,
    load,
    model_of,
    overrides,
    source_of,
)

if TYPE_CHECKING:
    from tensornet_attn.spec import Design

KERNEL_DTYPES = ("bfloat16", "float16", "float32")


def list_designs(
    pattern: Annotated[str, typer.Argument(help="Names that match, e.g. 'fish*'.")] = "*",
    models: Annotated[bool, typer.Option("--models", help="List the models made of designs.")] = False,
    as_json: Json = False,
) -> None:
    """List the shipped designs, or the shipped models."""
    from tensornet_attn.cli.output import print_json, print_table
    from tensornet_attn.errors import InputError
    from tensornet_attn.spec import library

    names = library.model_names(pattern) if models else library.names(pattern)
    what, command = ("model", "list --models") if models else ("design", "list")
    if not names:
        raise InputError(f"no shipped {what} matches '{pattern}'; 'tensornet-attn {command}' shows them all.")
    if models:
        paths = {name: library.model_path_of(name) for name in names}
        column, rows = "kind", [(name, value_of(path, "kind"), value_of(path, "about")) for name, path in paths.items()]
    else:
        column = "family"
        rows = [(name, library.family_of(name), value_of(library.path_of(name), "about")) for name in names]
    if as_json:
        print_json([dict(zip(("name", column, "about"), row, strict=True)) for row in rows])
    else:
        print_table((what, column, "about"), rows)


def value_of(path: Path, key: str) -> str:
    """What a shipped file says under a key that stands once, on one line: far faster than reading the whole file."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith(f"{key}:"):
            return line.strip().removeprefix(f"{key}:").strip().strip("\"'")
    return ""


def show(
    name: Named,
    text: Annotated[bool, typer.Option("--text", help="Show the diagram as text.")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="Show the graph in its text form.")] = False,
    resolved: Annotated[bool, typer.Option("--resolved", help="Show the YAML with what it extends merged in.")] = False,
    design: Mixer = None,
    legs: Legs = None,
    settings: Settings = None,
) -> None:
    """Print a design or a model: its file, or another form of it."""
    from tensornet_attn import compiler
    from tensornet_attn.cli.output import write

    if sum((text, graph, resolved)) > 1:
        raise typer.BadParameter("choose one of --text, --graph and --resolved.")
    source = source_of(name)
    model = model_of(source, design, legs, settings)  # a name or file that is neither is refused here
    as_it_is = not (resolved or design or legs or settings or name == "-")
    if model is not None:
        if text or graph:
            raise typer.BadParameter(f"'{name}' is a model; --text and --graph show designs.")
        write("-", file_of(name).read_bytes() if as_it_is else model.to_yaml(whole=resolved))
        return
    loaded = compiler.load(source, overrides(legs, "--legs"), overrides(settings, "--set"))
    if text or graph:
        write("-", _form(loaded, text))
    else:
        write("-", file_of(name).read_bytes() if as_it_is else loaded.to_yaml())


def _form(design: Design, diagram: bool) -> str:
    """The diagram as text for people, or the graph's own text form, which reads back to the graph."""
    from tensornet_attn.draw import to_text as diagram_text
    from tensornet_attn.graph import build
    from tensornet_attn.graph.text import to_text as graph_text

    graph = build(design)
    return diagram_text(graph, title=design.name, about=design.about or None) if diagram else graph_text(graph)


def file_of(name: str) -> Path:
    """The file of a design or a model that can be read."""
    from tensornet_attn.spec import library

    path = library.file_of(name)
    return Path(name) if path is None or Path(name).is_file() else path


def explain(
    design: DesignName,
    backend: Backend = "auto",
    rewrites: Annotated[bool, typer.Option("--rewrites", help="Show the rewrites step by step.")] = False,
    workload: Workload = "training",
    device: Costs = "generic",
    n: Queries = None,
    m: Keys = None,
    batch: Batch = 1,
    memory: Memory = None,
    linear_memory: Linear = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse regions on another backend.")] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Compile the Triton kernels, without a GPU: what they use of one.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="Of the kernels: bfloat16, float16 or float32.")] = "bfloat16",
    causal: Causal = None,
    legs: Legs = None,
    settings: Settings = None,
) -> None:
    """Say what the compiler chose, what it refused, and why; or what its Triton kernels use of a GPU."""
    from tensornet_attn import compiler
    from tensornet_attn.cli.output import write
    from tensornet_attn.plan.target import TargetOptions

    loaded = load(design, legs, settings)
    if kernels:
        write("-", _kernels(loaded, dtype, causal))
        return
    if rewrites:
        write("-", f"{compiler.rewrites(loaded, causal)}\n")
        return
    wanted = TargetOptions(workload=workload, device_costs=device, n=n, m=m, batch=batch, memory=memory)
    wanted |= {"linear_memory": linear_memory, "strict": strict}
    told = compiler.explain(loaded, backend, causal, **wanted)
    write("-", f"{told}\n")


def _kernels(design: Design, dtype: str, causal: bool | None) -> str:
    """What each Triton kernel of a design uses, forward and backward, for both targets, as Markdown."""
    import torch

    from tensornet_attn import compiler
    from tensornet_attn.errors import InputError, nearest

    if dtype not in KERNEL_DTYPES:
        raise InputError(f"there are no kernels in '{dtype}'; {nearest(dtype, KERNEL_DTYPES)}")
    compiler.need_triton()
    from tensornet_attn.nn.triton.survey import TARGETS, head, table

    used = [one for target in TARGETS for one in compiler.kernels(design, target, getattr(torch, dtype), causal)]
    if not used:
        return (
            f"{design.name} has no Triton kernels; 'tensornet-attn explain {design.name} --backend triton' says why.\n"
        )
    against = [f"{one.kernel}, sm_{one.target}: {reason}." for one in used for reason in one.reasons_against]
    return "\n".join([*head(), "", *table(used), *(["", *against] if against else []), ""])
