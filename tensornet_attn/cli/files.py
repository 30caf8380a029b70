"""The commands that write files: draw, compile and schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tensornet_attn.cli.options import (
    Batch,
    Causal,
    Costs,
    DesignName,
    Keys,
    Legs,
    Linear,
    Memory,
    Output,
    Queries,
    Settings,
    Workload,
    load,
)

FORMATS = ("svg", "png", "dot", "mmd", "txt")
Format = Annotated[str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}; by default the file's ending.")]


def draw(
    design: DesignName,
    output: Output = "-",
    form: Format = None,
    legs: Legs = None,
    settings: Settings = None,
) -> None:
    """Draw a design as SVG, PNG, DOT, Mermaid or text."""
    from tensornet_attn import compiler
    from tensornet_attn.cli.output import write

    suffix = _format(output, form)
    loaded = load(design, legs, settings)
    write(output, compiler.picture(loaded, suffix))


def _format(output: str, form: str | None) -> str:
    suffix = form or (Path(output).suffix.lstrip(".") if output != "-" else "txt")
    if suffix in FORMATS:
        return suffix
    wrong = f"'{suffix}' is no format" if suffix else f"'{output}' has no ending that names a format"
    raise typer.BadParameter(
        f"{wrong}; one of {', '.join(FORMATS)}.", param_hint="'--format'" if form else "'--output'"
    )


def compile_design(
    design: DesignName,
    output: Output = "-",
    backend: Annotated[str, typer.Option(help="torch, triton or auto.")] = "auto",
    causal: Causal = None,
    workload: Workload = "training",
    device: Costs = "generic",
    n: Queries = None,
    m: Keys = None,
    batch: Batch = 1,
    memory: Memory = None,
    linear_memory: Linear = False,
    legs: Legs = None,
    settings: Settings = None,
) -> None:
    """Write the PyTorch module a design compiles to.

    One file that needs torch alone, or triton too with --backend triton, on standard output unless -o names a file. It
    is right for every length, whatever it is planned for.
    """
    from tensornet_attn import compiler
    from tensornet_attn.cli.output import write
    from tensornet_attn.plan.target import TargetOptions

    wanted = TargetOptions(workload=workload, device_costs=device, n=n, m=m, batch=batch, memory=memory)
    wanted |= {"linear_memory": linear_memory}
    write(output, compiler.emit_source(load(design, legs, settings), causal, backend, **wanted))


def schema(
    output: Output = "-", model: Annotated[bool, typer.Option("--model", help="That of model files.")] = False
) -> None:
    """Write the JSON schema of design files, for editors."""
    import json

    from tensornet_attn import models, spec
    from tensornet_attn.cli.output import write

    json_schema = models.json_schema if model else spec.json_schema
    write(output, json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")
