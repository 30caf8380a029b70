"""The command `analyse`: a report on the attention of a design or checkpoint on a text, or of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensornet_attn.cli.options import Causal, Json, Legs, Number, Output, Settings, Text, length_option, load, option
from tensornet_attn.cli.output import as_json_text, write
from tensornet_attn.errors import InputError

if TYPE_CHECKING:
    from tensornet_attn.analyse.section import Section

    Subjects = tuple[list[Section], str, list[str]]  # sections of a report, its title, notes on weights and inputs


def analyse(
    subject: Annotated[
        str,
        typer.Argument(metavar="SUBJECT", help="A design, a checkpoint from ta.save, or a run folder from 'train'."),
    ],
    text: Annotated[Text, option("UTF-8 text; its bytes are the input of a design or checkpoint.", "FILE")] = None,
    output: Output = "-",
    causal: Causal = None,
    legs: Legs = None,
    settings: Settings = None,
    length: Annotated[
        Number,
        length_option(
            "Bytes per window of the text [default: 128, or the design's maximum], or tokens per sample of a language "
            "model's run [default: all].",
            least=1,
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Maximum number of windows of the text, or of samples of a run's task.")
    ] = 8,
    band: Annotated[int, typer.Option(min=1, help="Diagonals to remove before ranks are computed.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of random bytes and tokens, and of a design's weights.")] = 0,
    split: Annotated[Text, option("For a run: train, validation or test. [default: validation]")] = None,
    checkpoint: Annotated[
        Text, option("For a run: a step, or the folder of a checkpoint. [default: the last]", "STEP")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a report on attention maps, heads, cores and experts.

    The input of a design or checkpoint is a text; that of a run is samples of its task. The report is one HTML file
    with plots and needs matplotlib; --json writes its figures as data.
    """
    from tensornet_attn.analyse.plots import need_matplotlib
    from tensornet_attn.analyse.report import report, report_data

    if not as_json:
        need_matplotlib()
    if Path(subject).is_dir():
        options = {"--text": text, "--causal": causal, "--legs": legs, "--set": settings}
        _refuse(options, "a run defines its own task and sizes.")
        subjects = _run(subject, checkpoint, split or "validation", batch, seed, length)
    else:
        _refuse({"--split": split, "--checkpoint": checkpoint}, "this is for a run folder, which 'train' writes.")
        if text is None:
            missing = f"there is no run folder '{subject}', and a design or checkpoint needs a text; name a file."
            raise typer.BadParameter(missing, param_hint="'--text'")
        subjects = _layer(subject, text, causal, legs, settings, length, batch, seed)
    sections, title, notes = subjects
    if as_json:
        write(output, as_json_text(report_data(sections, title, band, notes)))
    else:
        write(output, report(sections, title, band, notes))


def _refuse(options: Mapping[str, object], reason: str) -> None:
    """Raises a usage error for options that do not apply to the subject."""
    wrong = [option for option, argument in options.items() if argument is not None]
    if wrong:
        raise typer.BadParameter(reason, param_hint=" and ".join(f"'{option}'" for option in wrong))


def _run(subject: str, checkpoint: str | None, split: str, samples: int, seed: int, length: int | None) -> Subjects:
    """The report on all layers of a run. Raises InputError."""
    from tensornet_attn.train.trained import open_run, sections_of

    trained = open_run(subject, checkpoint, "cpu")
    sections = sections_of(trained, split, samples, seed, length)
    task = trained.task
    notes = [
        f"Weights: from step {trained.saved.step} of the run {Path(subject).name}.",
        f"Inputs: the first {len(sections[0].inputs[0])} samples of the {split} split of {task.name}, "
        f"{length or task.length} tokens each.",
    ]
    return sections, f"Report on {trained.spec.name}, trained on {task.name}", notes


def _layer(
    subject: str,
    text_path: str,
    causal: bool | None,
    legs: list[str] | None,
    settings: list[str] | None,
    length: int | None,
    batch: int,
    seed: int,
) -> Subjects:
    """The report on a design, or on the design in a checkpoint. Raises InputError, DesignError and OSError."""
    from tensornet_attn.analyse.section import Call, Section, repeated_inputs, text_inputs
    from tensornet_attn.checkpoint import is_checkpoint, read_checkpoint, restored

    weights = f"initialised with seed {seed}, not trained."
    embedded = f"a random, untrained embedding from N(0, 1) with seed {seed}."
    embedding = None
    if is_checkpoint(subject):
        if legs or settings:
            raise typer.BadParameter("a checkpoint has its own sizes and settings.", param_hint="'--legs' and '--set'")
        saved = read_checkpoint(subject)
        if saved.model is not None:
            raise InputError(
                f"'{subject}' is a checkpoint of the model '{saved.model.name}'; analyse takes a checkpoint of one "
                "design, or a run folder. In Python, use ta.report(ta.model_sections(model, tokens)) for any model."
            )
        module: Any
        module, embedding = restored(saved, causal, subject), saved.extra.get("embedding")
        weights = f"from the checkpoint {Path(subject).name}."
    else:
        if Path(subject).is_file() and Path(subject).suffix.lower() not in (".yaml", ".yml"):
            wrong = "is neither a checkpoint from ta.save nor a design file, which ends in .yaml."
            raise InputError(f"'{subject}' {wrong}")
        import torch

        from tensornet_attn import compiler

        design = load(subject, legs, settings)
        torch.manual_seed(seed)
        module = compiler.compile(design, causal=causal)
    if embedding is not None:
        embedded = "the embedding in the checkpoint."
    inputs = text_inputs(module, text_path, length, batch, seed, embedding)
    repeated = repeated_inputs(module, length, batch, seed, embedding)
    windows: Any = inputs[0]
    notes = [
        f"Weights: {weights}",
        f"Inputs: {len(windows)} windows of {windows.shape[1]} bytes of {Path(text_path).name}.",
        f"Each byte is embedded by {embedded} Sinusoids of the position are added.",
    ]
    name = module.design.name
    section = Section(name, module, inputs, repeated=Call(repeated) if repeated else None)
    return [section], f"Report on {name} with input {Path(text_path).name}", notes
