"""`analyse`: a report on the attention of a design or checkpoint, looking at a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensornet_attn.cli.options import Causal, Legs, Output, Settings, load
from tensornet_attn.errors import InputError

if TYPE_CHECKING:
    from tensornet_attn.checkpoint import Checkpoint
    from tensornet_attn.nn.module import CompiledDesign

Subject = Annotated[str, typer.Argument(metavar="CHECKPOINT_OR_DESIGN", help="A file that ta.save wrote, or a design.")]
Text = Annotated[str, typer.Option("--text", metavar="FILE", help="UTF-8 text; its bytes are what the layer sees.")]
Length = Annotated[int | None, typer.Option(min=1, help="Bytes of a window; 128, or the design's largest length.")]
Batch = Annotated[int, typer.Option(min=1, help="Windows at most.")]
Band = Annotated[int, typer.Option(min=1, help="Diagonals removed before a rank is counted.")]
Seed = Annotated[int, typer.Option(help="Of the byte embedding, and of the weights where there is no checkpoint.")]

SINUSOIDS = "Sinusoids of the position are added."


def analyse(
    subject: Subject,
    text: Text,
    output: Output = "-",
    causal: Causal = None,
    legs: Legs = None,
    settings: Settings = None,
    length: Length = None,
    batch: Batch = 8,
    band: Band = 5,
    seed: Seed = 0,
) -> None:
    """Write a report on a layer's attention maps, heads, core and experts.

    One HTML file with plots, on standard output unless -o names a file. Needs matplotlib.
    """
    from tensornet_attn.analyse.plots import need_matplotlib
    from tensornet_attn.analyse.report import Section, report
    from tensornet_attn.analyse.text import text_inputs
    from tensornet_attn.cli.output import write

    need_matplotlib()
    module, found = _module(subject, causal, legs, settings, seed)
    embedding = found.extra.get("embedding") if found else None
    inputs = text_inputs(module, text, length, batch, seed, embedding)
    windows, size = _sizes(inputs[0])
    notes = [_weights(subject, found, seed)]
    notes.append(f"Inputs: {windows} windows of {size} bytes of {Path(text).name}.")
    notes.append(_embedding(embedding is not None, seed))
    name = module.design.name
    section = Section(name, module, inputs)
    write(output, report([section], f"Report on {name}, looking at {Path(text).name}", band, notes))


def _sizes(windows: Any) -> tuple[int, int]:
    """How many windows there are and how long they are."""
    return len(windows), windows.shape[1]


def _module(
    subject: str, causal: bool | None, legs: list[str] | None, settings: list[str] | None, seed: int
) -> tuple[CompiledDesign, Checkpoint | None]:
    """The module of a checkpoint, or of a design with weights as initialised. Raises InputError, DesignError."""
    from tensornet_attn.checkpoint import is_checkpoint, read_checkpoint, restored

    if is_checkpoint(subject):
        if legs or settings:
            raise typer.BadParameter("a checkpoint has its sizes and settings.", param_hint="'--legs' and '--set'")
        found = read_checkpoint(subject)
        if found.model is not None:
            raise InputError(
                f"'{subject}' holds the model '{found.model.name}'; analyse takes a checkpoint of one design."
            )
        return restored(found, causal, subject), found
    if Path(subject).is_file() and Path(subject).suffix.lower() not in (".yaml", ".yml"):
        raise InputError(f"'{subject}' is neither a checkpoint that ta.save wrote nor a design, which ends in .yaml.")
    import torch

    from tensornet_attn import compiler

    design = load(subject, legs, settings)
    torch.manual_seed(seed)
    return compiler.compile(design, causal=causal), None


def _weights(subject: str, found: Checkpoint | None, seed: int) -> str:
    if found:
        return f"Weights: those of the checkpoint {Path(subject).name}."
    return f"Weights: as initialised with seed {seed}; nothing here is trained."


def _embedding(given: bool, seed: int) -> str:
    if given:
        return f"Each byte is embedded by the embedding in the checkpoint. {SINUSOIDS}"
    return (
        f"Each byte is embedded by numbers drawn from N(0, 1) with seed {seed}: an embedding that was not trained. "
        f"{SINUSOIDS}"
    )
