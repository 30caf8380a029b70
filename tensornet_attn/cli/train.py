"""`train`: a run is begun, gone on with, or found finished; `evaluate`, `sample` and `compare`: what came of runs."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated, Any

import typer

from tensornet_attn.cli.options import (
    Json,
    Number,
    Pairs,
    Real,
    TaskOptions,
    Text,
    flag,
    length_option,
    option,
    overrides,
)
from tensornet_attn.cli.output import print_json, show

PAIRS = {
    "options": "--options",
    "legs": "--legs",
    "settings": "--set",
    "mlp_legs": "--mlp-legs",
    "mlp_settings": "--mlp-set",
}
Run = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")]
Checkpoint = Annotated[Text, option("A step, or the folder of a checkpoint; the last.", "STEP")]


def train(
    out: Annotated[str, typer.Option("--out", "-o", metavar="FOLDER", help="Where the run is, or goes on.")],
    config: Annotated[Text, option("A run file; the other options win over it.", "FILE")] = None,
    task: Annotated[Text, option("A task by name, e.g. mqar.", "NAME")] = None,
    options: TaskOptions = None,
    model: Annotated[
        Text, option("A shipped model, or a model file; what follows changes it. Else a stack:", "MODEL")
    ] = None,
    design: Annotated[Text, option("The mixer of every layer.", "DESIGN")] = None,
    legs: Annotated[Pairs, option("Leg sizes of the design.", "LEG=SIZE,...")] = None,
    settings: Annotated[Pairs, typer.Option("--set", metavar="NAME=VALUE,...", help="Settings of the design.")] = None,
    mlp: Annotated[Text, option("The design after each mixer, or none; mlp.", "DESIGN")] = None,
    mlp_legs: Annotated[Pairs, option("Leg sizes of the MLP's design.", "LEG=SIZE,...")] = None,
    mlp_settings: Annotated[
        Pairs, typer.Option("--mlp-set", metavar="NAME=VALUE,...", help="Settings of the MLP's design.")
    ] = None,
    depth: Annotated[Number, option("Layers; 2.")] = None,
    width: Annotated[Number, option("Of the residual stream; 64.")] = None,
    positions: Annotated[Text, option("none, learned or sinusoid; learned.", "KIND")] = None,
    norm: Annotated[Text, option("layernorm or rmsnorm; layernorm.", "KIND")] = None,
    dropout: Annotated[Real, option("On embeddings and on what each design adds; 0.")] = None,
    init: Annotated[Text, option("How first values are drawn; lra.", "NAME")] = None,
    embedding_scale: Annotated[Text, option("A factor on embeddings, such as 'width ** 0.5'; 1.", "NUMBER")] = None,
    tied: Annotated[bool | None, flag("--tied/--untied", "Output with the weights of the embedding; untied.")] = None,
    memory: Annotated[Number, option("Rows of earlier segments that are kept; 0.")] = None,
    memory_kind: Annotated[Text, option("What is kept: inputs, or the decoding cache; inputs.", "KIND")] = None,
    pooling: Annotated[Text, option("Of a classifier: mean, cls or concat; mean.", "KIND")] = None,
    vocabulary: Annotated[Number, option("Of a model, in place of its own.")] = None,
    length: Annotated[Number, length_option("What a model is made for, in place of its own.")] = None,
    classes: Annotated[Number, option("Of a model, in place of its own.")] = None,
    steps: Annotated[Number, option("Optimiser steps; 1000.")] = None,
    batch: Annotated[Number, option("Samples of a step, over all processes; 64.")] = None,
    accumulate: Annotated[Number, option("Parts that a batch is computed in; 1.")] = None,
    lr: Annotated[Real, option("The highest learning rate; 0.002.")] = None,
    warmup: Annotated[Number, option("Steps in which it rises; 100.")] = None,
    schedule: Annotated[Text, option("What follows: cosine, linear or constant; cosine.", "KIND")] = None,
    min_lr: Annotated[Real, option("The learning rate at the end; 0.")] = None,
    weight_decay: Annotated[Real, option("Of AdamW, on weights of two and more legs; 0.01.")] = None,
    betas: Annotated[Text, option("Of AdamW; 0.9,0.98.", "B1,B2")] = None,
    label_smoothing: Annotated[Real, option("Share of a target's probability spread over all answers; 0.")] = None,
    clip: Annotated[Real, option("The largest norm of the gradient, 0 for any; 1.")] = None,
    seed: Annotated[Number, option("Of first values, samples, dropout and noise; 0.")] = None,
    precision: Annotated[Text, option("32, bf16 or bf16-true; 32.", "KIND")] = None,
    backend: Annotated[Text, option("Of the compiler; auto.", "NAME")] = None,
    compile: Annotated[bool | None, option("Use torch.compile.")] = None,
    eval_every: Annotated[Number, option("Steps between validations; 250.")] = None,
    eval_samples: Annotated[Number, option("Validation samples at most; 1000.")] = None,
    checkpoint_activations: Annotated[bool | None, option("Compute layers again backwards.")] = None,
    save_every: Annotated[Number, option("Steps between checkpoints at most; 20.")] = None,
    save_seconds: Annotated[Real, option("Seconds between checkpoints, about; 30.")] = None,
    keep: Annotated[Number, option("Checkpoints that are kept; 3.")] = None,
    accelerator: Annotated[Text, option("auto, cpu or cuda; auto.", "KIND")] = None,
    devices: Annotated[Number, option("Processes on each machine; torchrun's own where it runs.")] = None,
    nodes: Annotated[Number, option("Machines; 1.")] = None,
    strategy: Annotated[Text, option("auto, ddp or fsdp; auto.", "KIND")] = None,
    threads: Annotated[Number, option("Threads of torch.")] = None,
    cache: Annotated[Text, option("Folder for samples that take long to make.", "FOLDER")] = None,
    tensorboard: Annotated[bool | None, option("Write event files; they are written.")] = None,
    as_json: Json = False,
) -> None:
    """Train a design, or a model of designs, on a task.

    The folder holds metrics, checkpoints, curves and a summary. The same command goes on with a run that was ended
    before its time, however that came about.
    """
    given = {name: value for name, value in locals().items() if name not in ("out", "config", "as_json")}
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, word in PAIRS.items():
        if name in chosen:
            chosen[name] = overrides(chosen[name], word)
    if betas is not None:
        try:
            one, two = map(float, betas.split(","))
        except ValueError:
            raise typer.BadParameter(f"'{betas}' is not two numbers, e.g. 0.9,0.98.", param_hint="'--betas'") from None
        chosen["betas"] = [one, two]
    from tensornet_attn.train.start import train as run

    summary = run(config, out=out, command=shlex.join(["tensornet-attn", *sys.argv[1:]]), **chosen)
    if summary and as_json:
        print_json(summary)
    elif summary:
        scores = "  ".join(f"{name} {value:.4g}" for name, value in summary["eval"].items() if value is not None)
        done = f"{summary['steps']} steps in {summary['seconds']:.0f} s"
        print(f"{summary['model']} on {summary['task']}: {done}  {scores}")


def evaluate(
    run: Run,
    split: Annotated[str, typer.Option(help="validation or test.")] = "validation",
    checkpoint: Checkpoint = None,
    samples: Annotated[Number, option("Of the split, at most; all.", min=1)] = None,
    batch: Annotated[Number, option("Samples at a time; the run's.", min=1)] = None,
    sliding_window: Annotated[
        bool, flag("--sliding-window", "Of a text: score the last tokens of windows that slide over it.")
    ] = False,
    context: Annotated[Number, length_option("Tokens of a sliding window; the task's length.", least=1)] = None,
    stride: Annotated[Number, length_option("Tokens that it slides by and scores; 1.", least=1)] = None,
    bleu: Annotated[bool | None, option("Translate and give BLEU; where the task is parallel text.")] = None,
    bleu_tokenizer: Annotated[
        str, typer.Option(metavar="NAME", help="Of sacrebleu; none for text in tokens already.")
    ] = "13a",
    accelerator: Annotated[Text, option("auto, cpu or cuda; the run's.", "KIND")] = None,
    as_json: Json = False,
) -> None:
    """Score the model of a run on a split of its task.

    Perplexity or bits stand beside the loss where the task has them. With --sliding-window every token of a text is
    scored with a whole context before it; --samples is then the number of windows.
    """
    from tensornet_attn.train import translate
    from tensornet_attn.train.trained import open_run

    if not sliding_window and (context, stride) != (None, None):
        given = "--context" if context is not None else "--stride"
        raise typer.BadParameter("it belongs to --sliding-window.", param_hint=f"'{given}'")
    trained = open_run(run, checkpoint, accelerator)
    if bleu is None:
        bleu = trained.task.source.parallel is not None
    if bleu:
        translate.check(trained, split, bleu_tokenizer)
    facts: dict[str, Any] = {"run": os.fspath(run), "split": split, "step": trained.saved.step}
    if sliding_window:
        facts |= {"context": context or trained.task.length, "stride": stride or 1}
        score = trained.slide(split, facts["context"], facts["stride"], samples, batch)
    else:
        score = trained.judge(split, samples, batch)
    means, counted = score.means(), dict[str, Any](scored=score.parts["loss"][1])
    if bleu:
        judged = translate.bleu(trained, split, samples, batch, bleu_tokenizer)
        means |= {"bleu": judged.score}
        counted |= {"sentences": judged.sentences, "bleu_signature": judged.signature}
    if as_json:
        print_json(facts | means | counted)
        return
    window = f", windows of {facts['context']} that slide by {facts['stride']}" if sliding_window else ""
    scores = "  ".join(f"{name} {value:.4f}" for name, value in means.items())
    print(f"{trained.spec.name} on {trained.task.name}, {split}, step {trained.saved.step}{window}: {scores}")


def sample(
    run: Run,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")],
    tokens: Annotated[int, typer.Option(min=1, help="How many are written.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most probable token each time.")] = 1.0,
    top_k: Annotated[Number, option("Tokens to choose from; all.", min=1)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the choices.")] = 0,
    checkpoint: Checkpoint = None,
) -> None:
    """Let the language model of a run go on with a text."""
    from tensornet_attn.train.trained import open_run
    from tensornet_attn.train.trained import sample as text_of

    print(text_of(open_run(run, checkpoint, "cpu"), prompt, tokens, temperature, top_k, seed))


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders that `train --out` has written.")],
    output: Annotated[
        Text, typer.Option("-o", "--output", metavar="FILE", help="Write a page of HTML; needs matplotlib.")
    ] = None,
    by: Annotated[
        Text,
        option(
            "What to sort by, e.g. eval_loss; perplexity or bits where the task has them, else accuracy, else loss.",
            "KEY",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs: means and intervals over seeds, costs, learning curves, pictures.

    Runs that differ in their seed alone are one row. Prints a table, and writes a page of HTML where -o names a file.
    """
    from tensornet_attn.compare import compare as compared

    found = compared(runs, by)
    show(found, as_json, output, found.to_html)
