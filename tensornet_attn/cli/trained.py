"""`evaluate` and `sample`: what a trained model scores, and what it writes."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from tensornet_attn.cli.options import Json

Folder = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="STEP", help="A step, or the folder of a checkpoint; the last.", show_default=False),
]
Accelerator = Annotated[
    str | None, typer.Option(metavar="KIND", help="auto, cpu or cuda; the run's.", show_default=False)
]


def evaluate(
    run: Folder,
    split: Annotated[str, typer.Option(help="validation or test.")] = "validation",
    checkpoint: Checkpoint = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Of the split, at most; all.", show_default=False)] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples at a time; the run's.", show_default=False)] = None,
    sliding_window: Annotated[
        bool, typer.Option("--sliding-window", help="Of a text: score the last tokens of windows that slide over it.")
    ] = False,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a sliding window; the task's length.", show_default=False)
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens that it slides by and scores; 1.", show_default=False)
    ] = None,
    bleu: Annotated[
        bool | None,
        typer.Option("--bleu/--no-bleu", help="Translate and give BLEU; where the task is parallel text."),
    ] = None,
    bleu_tokenizer: Annotated[
        str, typer.Option(metavar="NAME", help="Of sacrebleu; none for text in tokens already.")
    ] = "13a",
    accelerator: Accelerator = None,
    as_json: Json = False,
) -> None:
    """Score the model of a run on a split of its task.

    Perplexity or bits stand beside the loss where the task has them. With --sliding-window every token of a text is
    scored with a whole context before it; --samples is then the number of windows.
    """
    from tensornet_attn.cli.output import print_json
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
    run: Folder,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")],
    tokens: Annotated[int, typer.Option(min=1, help="How many are written.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most probable token each time.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Tokens to choose from; all.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the choices.")] = 0,
    checkpoint: Checkpoint = None,
) -> None:
    """Let the language model of a run go on with a text."""
    from tensornet_attn.train.trained import open_run
    from tensornet_attn.train.trained import sample as text_of

    print(text_of(open_run(run, checkpoint, "cpu"), prompt, tokens, temperature, top_k, seed))
