"""`train`: options over a run file; the run is begun, gone on with, or found finished."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from tensornet_attn.cli.options import Json, Pairs, overrides

Text = str | None
Number = int | None
Real = float | None
Given = Annotated[Pairs, typer.Option("--options", metavar="NAME=VALUE,...", help="Options of the task.")]
Legs = Annotated[Pairs, typer.Option("--legs", metavar="LEG=SIZE,...", help="Leg sizes of the design.")]
Settings = Annotated[Pairs, typer.Option("--set", metavar="NAME=VALUE,...", help="Settings of the design.")]
MlpLegs = Annotated[Pairs, typer.Option("--mlp-legs", metavar="LEG=SIZE,...", help="Leg sizes of the MLP's design.")]
MlpSettings = Annotated[
    Pairs, typer.Option("--mlp-set", metavar="NAME=VALUE,...", help="Settings of the MLP's design.")
]
Betas = Annotated[Text, typer.Option("--betas", metavar="B1,B2", help="Of AdamW; 0.9,0.98.")]


def _option(help_text: str, metavar: str | None = None) -> Any:
    return typer.Option(help=help_text, metavar=metavar, show_default=False)


def train(
    out: Annotated[str, typer.Option("--out", "-o", metavar="FOLDER", help="Where the run is, or goes on.")],
    config: Annotated[Text, _option("A run file; the other options win over it.", "FILE")] = None,
    task: Annotated[Text, _option("A task by name, e.g. mqar.", "NAME")] = None,
    options: Given = None,
    model: Annotated[
        Text, _option("A shipped model, or a model file; what follows changes it. Else a stack:", "MODEL")
    ] = None,
    design: Annotated[Text, _option("The mixer of every layer.", "DESIGN")] = None,
    legs: Legs = None,
    settings: Settings = None,
    mlp: Annotated[Text, _option("The design after each mixer, or none; mlp.", "DESIGN")] = None,
    mlp_legs: MlpLegs = None,
    mlp_settings: MlpSettings = None,
    depth: Annotated[Number, _option("Layers; 2.")] = None,
    width: Annotated[Number, _option("Of the residual stream; 64.")] = None,
    positions: Annotated[Text, _option("none, learned or sinusoid; learned.", "KIND")] = None,
    norm: Annotated[Text, _option("layernorm or rmsnorm; layernorm.", "KIND")] = None,
    dropout: Annotated[Real, _option("On embeddings and on what each design adds; 0.")] = None,
    init: Annotated[Text, _option("How first values are drawn; lra.", "NAME")] = None,
    embedding_scale: Annotated[Text, _option("A factor on embeddings, such as 'width ** 0.5'; 1.", "NUMBER")] = None,
    tied: Annotated[
        bool | None, typer.Option("--tied/--untied", help="Output with the weights of the embedding; untied.")
    ] = None,
    memory: Annotated[Number, _option("Rows of earlier segments that are kept; 0.")] = None,
    pooling: Annotated[Text, _option("Of a classifier: mean, cls or concat; mean.", "KIND")] = None,
    vocabulary: Annotated[Number, _option("Of a model, in place of its own.")] = None,
    length: Annotated[Number, _option("What a model is made for, in place of its own.")] = None,
    classes: Annotated[Number, _option("Of a model, in place of its own.")] = None,
    steps: Annotated[Number, _option("Optimiser steps; 1000.")] = None,
    batch: Annotated[Number, _option("Samples of a step, over all processes; 64.")] = None,
    accumulate: Annotated[Number, _option("Parts that a batch is computed in; 1.")] = None,
    lr: Annotated[Real, _option("The highest learning rate; 0.002.")] = None,
    warmup: Annotated[Number, _option("Steps in which it rises; 100.")] = None,
    schedule: Annotated[Text, _option("What follows: cosine, linear or constant; cosine.", "KIND")] = None,
    min_lr: Annotated[Real, _option("The learning rate at the end; 0.")] = None,
    weight_decay: Annotated[Real, _option("Of AdamW, on weights of two and more legs; 0.01.")] = None,
    betas: Betas = None,
    label_smoothing: Annotated[Real, _option("Share of a target's probability spread over all answers; 0.")] = None,
    clip: Annotated[Real, _option("The largest norm of the gradient, 0 for any; 1.")] = None,
    seed: Annotated[Number, _option("Of first values, samples, dropout and noise; 0.")] = None,
    precision: Annotated[Text, _option("32, bf16 or bf16-true; 32.", "KIND")] = None,
    backend: Annotated[Text, _option("Of the compiler; auto.", "NAME")] = None,
    compile: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Use torch.compile.")] = None,
    eval_every: Annotated[Number, _option("Steps between validations; 250.")] = None,
    eval_samples: Annotated[Number, _option("Validation samples at most; 1000.")] = None,
    checkpoint_activations: Annotated[
        bool | None,
        typer.Option("--checkpoint-activations/--no-checkpoint-activations", help="Compute layers again backwards."),
    ] = None,
    save_every: Annotated[Number, _option("Steps between checkpoints at most; 20.")] = None,
    save_seconds: Annotated[Real, _option("Seconds between checkpoints, about; 30.")] = None,
    keep: Annotated[Number, _option("Checkpoints that are kept; 3.")] = None,
    accelerator: Annotated[Text, _option("auto, cpu or cuda; auto.", "KIND")] = None,
    devices: Annotated[Number, _option("Processes on each machine; torchrun's own where it runs.")] = None,
    nodes: Annotated[Number, _option("Machines; 1.")] = None,
    strategy: Annotated[Text, _option("auto, ddp or fsdp; auto.", "KIND")] = None,
    threads: Annotated[Number, _option("Threads of torch.")] = None,
    cache: Annotated[Text, _option("Folder for samples that take long to make.", "FOLDER")] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard/--no-tensorboard", help="Write event files; they are written.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a design, or a model of designs, on a task.

    The folder holds metrics, checkpoints, curves and a summary. The same command goes on with a run that was ended
    before its time, however that came about.
    """
    given = {name: value for name, value in locals().items() if name not in ("out", "config", "as_json")}
    pairs = {"options": "--options", "legs": "--legs", "settings": "--set"}
    pairs |= {"mlp_legs": "--mlp-legs", "mlp_settings": "--mlp-set"}
    chosen = {name: value for name, value in given.items() if value is not None}
    chosen |= {name: overrides(given[name], option) for name, option in pairs.items() if given[name] is not None}
    if betas is not None:
        chosen["betas"] = _two(betas)
    from tensornet_attn.cli.output import print_json
    from tensornet_attn.train.start import train as run

    summary = run(config, out=out, command=shlex.join(["tensornet-attn", *sys.argv[1:]]), **chosen)
    if summary:
        print_json(summary) if as_json else print(_describe(summary))


def _two(text: str) -> list[float]:
    try:
        one, two = map(float, text.split(","))
    except ValueError:
        raise typer.BadParameter(f"'{text}' is not two numbers, e.g. 0.9,0.98.", param_hint="'--betas'") from None
    return [one, two]


def _describe(summary: dict[str, Any]) -> str:
    """One line on a finished run."""
    scores = "  ".join(f"{name} {value:.4g}" for name, value in summary["eval"].items() if value is not None)
    return f"{summary['model']} on {summary['task']}: {summary['steps']} steps in {summary['seconds']:.0f} s  {scores}"
