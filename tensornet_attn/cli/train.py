"""The commands `train`, which starts or resumes a run, and `evaluate`, `sample` and `compare`, which use runs."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated, Any

import typer

from tensornet_attn.cli.modes import given
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
Run = Annotated[str, typer.Argument(metavar="RUN", help="Run folder.")]
Printed = Annotated[Text, option("CSV file of the scores that a paper prints, shown beside ours.", "FILE")]
Checkpoint = Annotated[Text, option("A step, or the folder of a checkpoint. [default: the last]", "STEP")]


def train(
    out: Annotated[str, typer.Option("--out", "-o", metavar="FOLDER", help="Run folder, new or to resume.")],
    config: Annotated[Text, option("Run file; the other options override it.", "FILE")] = None,
    task: Annotated[Text, option("Name of the task, e.g. mqar, or module:name of your recipe.", "NAME")] = None,
    options: TaskOptions = None,
    model: Annotated[
        Text,
        option(
            "Shipped model, or a model file; the next options override it. Without it, they define a stack.", "MODEL"
        ),
    ] = None,
    design: Annotated[Text, option("Mixer of every layer.", "DESIGN")] = None,
    legs: Annotated[Pairs, option("Leg sizes of the design.", "LEG=SIZE,...")] = None,
    settings: Annotated[Pairs, typer.Option("--set", metavar="NAME=VALUE,...", help="Settings of the design.")] = None,
    mlp: Annotated[Text, option("Design after each mixer, or none. [default: mlp]", "DESIGN")] = None,
    mlp_legs: Annotated[Pairs, option("Leg sizes of the MLP's design.", "LEG=SIZE,...")] = None,
    mlp_settings: Annotated[
        Pairs, typer.Option("--mlp-set", metavar="NAME=VALUE,...", help="Settings of the MLP's design.")
    ] = None,
    depth: Annotated[Number, option("Number of layers. [default: 2]")] = None,
    width: Annotated[Number, option("Width of the residual stream. [default: 64]")] = None,
    positions: Annotated[
        Text, option("Position embedding: none, learned or sinusoid. [default: learned]", "KIND")
    ] = None,
    norm: Annotated[Text, option("layernorm or rmsnorm. [default: layernorm]", "KIND")] = None,
    dropout: Annotated[
        Real, option("Dropout probability of embeddings and of each design's output. [default: 0]")
    ] = None,
    init: Annotated[Text, option("Initialisation of the weights. [default: lra]", "NAME")] = None,
    embedding_scale: Annotated[
        Text, option("Factor on embeddings, e.g. 'width ** 0.5'. [default: 1]", "NUMBER")
    ] = None,
    tied: Annotated[
        bool | None, flag("--tied/--untied", "Use the embedding weights in the output layer. [default: untied]")
    ] = None,
    memory: Annotated[Number, option("Positions of earlier segments to attend to. [default: 0]")] = None,
    memory_kind: Annotated[
        Text, option("Content of the memory: inputs, or the decoding cache. [default: inputs]", "KIND")
    ] = None,
    pooling: Annotated[Text, option("For a classifier: mean, cls or concat. [default: mean]", "KIND")] = None,
    vocabulary: Annotated[Number, option("Override the model's vocabulary size.")] = None,
    length: Annotated[Number, length_option("Override the model's length.")] = None,
    classes: Annotated[Number, option("Override the model's number of classes.")] = None,
    steps: Annotated[Number, option("Number of optimiser steps. [default: 1000]")] = None,
    batch: Annotated[Number, option("Samples per step, over all processes. [default: 64]")] = None,
    accumulate: Annotated[Number, option("Gradient accumulation: number of parts of a batch. [default: 1]")] = None,
    lr: Annotated[Real, option("Maximum learning rate. [default: 0.002]")] = None,
    warmup: Annotated[Number, option("Steps of linear warm-up. [default: 100]")] = None,
    schedule: Annotated[
        Text, option("Schedule after warm-up: cosine, linear or constant. [default: cosine]", "KIND")
    ] = None,
    min_lr: Annotated[Real, option("Learning rate at the end. [default: 0]")] = None,
    weight_decay: Annotated[
        Real, option("AdamW's weight decay, on weights with two or more legs. [default: 0.01]")
    ] = None,
    betas: Annotated[Text, option("AdamW's betas. [default: 0.9,0.98]", "B1,B2")] = None,
    label_smoothing: Annotated[
        Real, option("Share of a target's probability that is spread over all answers. [default: 0]")
    ] = None,
    clip: Annotated[Real, option("Maximum gradient norm; 0 disables clipping. [default: 1]")] = None,
    seed: Annotated[Number, option("Seed of initial values, samples, dropout and noise. [default: 0]")] = None,
    precision: Annotated[Text, option("32, bf16 (autocast) or bf16-true (weights too). [default: 32]", "KIND")] = None,
    backend: Annotated[Text, option("Backend of the compiler. [default: auto]", "NAME")] = None,
    compile: Annotated[bool | None, option("Compile the model with torch.compile.")] = None,
    eval_every: Annotated[Number, option("Steps between validations. [default: 250]")] = None,
    eval_samples: Annotated[Number, option("Maximum number of validation samples. [default: 1000]")] = None,
    checkpoint_activations: Annotated[bool | None, option("Recompute layers in the backward, to save memory.")] = None,
    save_every: Annotated[Number, option("Maximum number of steps between checkpoints. [default: 20]")] = None,
    save_seconds: Annotated[Real, option("Maximum seconds between checkpoints. [default: 30]")] = None,
    keep: Annotated[Number, option("Number of checkpoints to keep. [default: 3]")] = None,
    accelerator: Annotated[Text, option("auto, cpu or cuda. [default: auto]", "KIND")] = None,
    devices: Annotated[Number, option("Processes per machine. [default: 1, or set by torchrun]")] = None,
    nodes: Annotated[Number, option("Number of machines. [default: 1]")] = None,
    strategy: Annotated[Text, option("auto, ddp or fsdp. [default: auto]", "KIND")] = None,
    threads: Annotated[Number, option("Number of torch threads. [default: torch's]")] = None,
    cache: Annotated[
        Text, option("Folder for samples that are slow to make. [default: the user's cache directory]", "FOLDER")
    ] = None,
    tensorboard: Annotated[bool | None, option("Write TensorBoard event files. [default: tensorboard]")] = None,
    as_json: Json = False,
) -> None:
    """Train a design or a model on a task, or resume a run.

    The run folder contains metrics, checkpoints, curves and a summary. Repeat the command to resume an interrupted run.
    """
    arguments = {name: argument for name, argument in locals().items() if name not in ("out", "config", "as_json")}
    chosen = {name: argument for name, argument in arguments.items() if argument is not None}
    for name, word in PAIRS.items():
        if name in chosen:
            chosen[name] = overrides(chosen[name], word)
    if betas is not None:
        try:
            beta1, beta2 = map(float, betas.split(","))
        except ValueError:
            raise typer.BadParameter(f"'{betas}' is not B1,B2, e.g. 0.9,0.98.", param_hint="'--betas'") from None
        chosen["betas"] = [beta1, beta2]
    from tensornet_attn.train.start import train as run

    summary = run(config, out=out, command=shlex.join(["tensornet-attn", *sys.argv[1:]]), **chosen)
    if summary and as_json:
        print_json(summary)
    elif summary:
        scores = "  ".join(f"{name} {score:.4g}" for name, score in summary["eval"].items() if score is not None)
        done = f"{summary['steps']} steps in {summary['seconds']:.0f} s"
        print(f"{summary['model']} on {summary['task']}: {done}  {scores}")


def evaluate(
    click: typer.Context,
    run: Run,
    split: Annotated[str, typer.Option(help="validation or test.")] = "validation",
    checkpoint: Checkpoint = None,
    samples: Annotated[Number, option("Maximum number of samples. [default: all]", min=1)] = None,
    batch: Annotated[Number, option("Samples per forward. [default: the run's batch]", min=1)] = None,
    sliding_window: Annotated[
        bool, flag("--sliding-window", "For a text: score each token once, by a sliding window.")
    ] = False,
    context: Annotated[Number, length_option("Tokens of the window. [default: the task's length]", least=1)] = None,
    stride: Annotated[
        Number, length_option("Tokens between two windows; this many are scored in each. [default: 1]", least=1)
    ] = None,
    bleu: Annotated[
        bool | None, option("Translate and compute BLEU. [default: bleu if the task is parallel text]")
    ] = None,
    bleu_tokenizer: Annotated[
        str, typer.Option(metavar="NAME", help="Tokenizer of sacrebleu; none if the text is tokenized.")
    ] = "13a",
    accelerator: Annotated[Text, option("auto, cpu or cuda. [default: the run's]", "KIND")] = None,
    task: Annotated[Text, option("New place of your recipe as module:name, if it has moved.", "NAME")] = None,
    printed: Printed = None,
    as_json: Json = False,
) -> None:
    """Evaluate a trained model on a split of its task.

    Prints the loss, and perplexity or bits if the task has them. With --sliding-window, each token of a text is scored
    with a full context before it, and --samples limits the number of windows.
    """
    from tensornet_attn.compare.printed import printed_score, read_printed
    from tensornet_attn.compare.record import designs_by_name
    from tensornet_attn.train import translate
    from tensornet_attn.train.trained import open_run

    printed_scores = read_printed(printed) if printed else ()
    trained = open_run(run, checkpoint, accelerator, task)
    if bleu is None:
        bleu = trained.task.source.parallel is not None
    if bleu:
        translate.check(trained, split, bleu_tokenizer)
    elif "bleu-tokenizer" in given(click):
        raise typer.BadParameter("--bleu-tokenizer is for --bleu; add that, or leave it out.")
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
    of_paper = {"printed": printed_score(printed_scores, run, designs_by_name(trained.spec), split)} if printed else {}
    if as_json:
        print_json(facts | means | counted | of_paper)
        return
    window = f", windows of {facts['context']} with stride {facts['stride']}" if sliding_window else ""
    scores = "  ".join([*(f"{name} {score:.4f}" for name, score in means.items()), *map(" ".join, of_paper.items())])
    print(f"{trained.spec.name} on {trained.run.task}, {split}, step {trained.saved.step}{window}: {scores}")


def sample(
    run: Run,
    prompt: Annotated[str, typer.Option(help="Start of the text.")],
    tokens: Annotated[int, typer.Option(min=1, help="Number of tokens to generate.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="0 always takes the most probable token.")] = 1.0,
    top_k: Annotated[Number, option("Sample from the k most probable tokens. [default: all]", min=1)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    checkpoint: Checkpoint = None,
) -> None:
    """Continue a text with a trained language model."""
    from tensornet_attn.train.trained import open_run
    from tensornet_attn.train.trained import sample as text_of

    print(text_of(open_run(run, checkpoint, "cpu"), prompt, tokens, temperature, top_k, seed))


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders of `train --out`.")],
    output: Annotated[
        Text, typer.Option("-o", "--output", metavar="FILE", help="Write an HTML page; needs matplotlib.")
    ] = None,
    by: Annotated[
        Text, option("Sort key, e.g. eval_loss. [default: perplexity or bits, else accuracy, else loss]", "KEY")
    ] = None,
    printed: Printed = None,
    as_json: Json = False,
) -> None:
    """Compare runs: means and intervals over seeds, and costs.

    Runs that differ only in their seed share a row. Prints a table; -o writes an HTML page with curves and pictures.
    """
    from tensornet_attn.compare import compare as compared

    comparison = compared(runs, by, printed)
    show(comparison, as_json, output, comparison.to_html)
