"""The configuration of a training run: its keys, reading a run file with options, and its model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from tensornet_attn.errors import DesignError, InputError, nearest
from tensornet_attn.models.config import Initialisation, MemoryKind, Norm, Pooling, Positions, Share
from tensornet_attn.models.fit import inside, is_path
from tensornet_attn.models.read import ModelSpec, load, read_model
from tensornet_attn.ops.schema import Arithmetic
from tensornet_attn.spec import Design
from tensornet_attn.spec.places import Document
from tensornet_attn.spec.report import Reporter, printable, written
from tensornet_attn.spec.sources import document_of, text_document
from tensornet_attn.spec.yaml import parse
from tensornet_attn.tasks.reading import read_bytes
from tensornet_attn.tasks.recipe import Recipe
from tensornet_attn.tasks.task import Task, name_of_task

Precision = Literal["32", "bf16", "bf16-true"]
Schedule = Literal["cosine", "linear", "constant"]


def _source(value: Any) -> Any:
    """A name, a path or a mapping; None for `none`."""
    if value is None or value == "none":
        return None
    if not isinstance(value, (str, os.PathLike, Mapping, Design)) or not value:
        raise PydanticCustomError("source", "expected a name, a path or a mapping")
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _word(value: Any) -> Any:
    """Converts `precision: 32`, an integer in YAML, to text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Chosen = Annotated[Any, BeforeValidator(_source, json_schema_input_type=str | dict[str, Any] | None)]
Count = Annotated[int, Field(ge=1, lt=2**40)]
Ratio = Annotated[float, Field(ge=0, lt=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Run(BaseModel):
    """A run, from a file that begins with `run: 1` or from options. On a CPU, equal runs have bitwise equal losses."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    run: Literal[1] = Field(1, description="the version of run files")
    task: str = Field(description="a task by name, e.g. mqar, or your recipe as module:name")
    options: dict[str, Any] = Field({}, description="a mapping of the task's options")
    task_version: int | None = Field(None, description="the required version of the task")
    task_samples: str | None = Field(None, description="the required hash of the samples of a recipe of your own")

    model: Chosen = Field(None, description="a shipped model by name, a model file, or the content of one")
    design: Chosen = Field(None, description="the mixer of every layer")
    legs: dict[str, Arithmetic] = Field({}, description="a mapping of the design's legs to sizes")
    settings: dict[str, Arithmetic] = Field({}, description="a mapping of the design's settings to values")
    mlp: Chosen = Field("mlp", description="the design after each mixer, or none")
    mlp_legs: dict[str, Arithmetic] = Field({}, description="a mapping of the MLP's legs to sizes")
    mlp_settings: dict[str, Arithmetic] = Field({}, description="a mapping of the MLP's settings to values")
    depth: Count = Field(2, description="the number of layers")
    width: Count = Field(64, description="the width of the residual stream")
    positions: Positions = Field("learned", description="none, learned or sinusoid")
    norm: Norm = Field("layernorm", description="layernorm or rmsnorm")
    dropout: Share = Field(0.0, description="a share from 0 up to but not including 1")
    init: Initialisation = Field("lra", description="the distribution of the initial values, by name")
    embedding_scale: Arithmetic = Field(1, description="a factor on embeddings, e.g. width ** 0.5")
    tied: bool = Field(False, description="whether a language model's output shares the weights of its embedding")
    memory: int = Field(0, ge=0, description="the number of rows of earlier segments that a language model keeps")
    memory_kind: MemoryKind = Field("inputs", description="the content of the memory: inputs, or the decoding cache")
    pooling: Pooling = Field("mean", description="the pooling of a classifier: mean, cls or concat")
    vocabulary: Count | None = Field(None, description="an override of the model's vocabulary")
    length: Count | None = Field(None, description="an override of the model's length")
    classes: Count | None = Field(None, description="an override of the model's number of classes")

    steps: Count = Field(1000, description="the number of optimiser steps")
    batch: Count = Field(64, description="the number of samples per step, over all processes")
    accumulate: Count = Field(1, description="the number of parts of a batch, for gradient accumulation")
    lr: float = Field(2e-3, gt=0, allow_inf_nan=False, description="the maximum learning rate")
    warmup: int = Field(100, ge=0, description="the number of steps of linear warm-up")
    schedule: Schedule = Field("cosine", description="the schedule after the warm-up: cosine, linear or constant")
    min_lr: Amount = Field(0.0, description="the learning rate at the end")
    weight_decay: Amount = Field(0.01, description="AdamW's weight decay, on weights with at least two legs")
    betas: Annotated[tuple[Ratio, Ratio], Field(strict=False)] = Field((0.9, 0.98), description="AdamW's pair of betas")
    label_smoothing: Ratio = Field(0.0, description="the share of a target's probability spread over all answers")
    clip: Amount = Field(1.0, description="the maximum norm of the gradient; 0 for no clipping")
    seed: int = Field(0, ge=0, lt=2**63, description="the seed of initial values, samples, dropout and noise")
    precision: Annotated[Precision, BeforeValidator(_word)] = Field("32", description="32, bf16 or bf16-true")
    backend: str = Field("auto", description="the compiler's backend: auto, torch, inductor, cpp, triton or reference")
    compile: bool = Field(False, description="whether torch.compile compiles the model")
    eval_every: Count = Field(250, description="the number of steps between validations")
    eval_samples: Count = Field(1000, description="the maximum number of validation samples")

    checkpoint_activations: bool = Field(False, description="whether the backward recomputes the layers")
    save_every: Count = Field(20, description="the maximum number of steps between checkpoints")
    save_seconds: Amount = Field(30.0, description="the approximate maximum of seconds between checkpoints")
    keep: Count = Field(3, description="the number of checkpoints to keep")
    accelerator: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto, cpu or cuda")
    devices: Count = Field(1, description="the number of processes per machine; torchrun overrides it")
    nodes: Count = Field(1, description="the number of machines")
    strategy: Literal["auto", "ddp", "fsdp"] = Field("auto", description="auto, ddp or fsdp")
    threads: Count | None = Field(None, description="the number of torch threads")
    cache: str | bool | None = Field(None, description="a folder for samples that are slow to make; false for none")
    tensorboard: bool = Field(True, description="whether to write event files")

    @model_validator(mode="after")
    def _one_model(self) -> Run:
        if self.model is None and self.design is None:
            raise PydanticCustomError("one_model", "a run needs a 'model' or a 'design'")
        task_sizes = [name for name in OF_THE_TASK if getattr(self, name) is not None]
        if self.model is None and task_sizes:
            raise PydanticCustomError("sizes", "'{name}' is set by the task: leave it out", {"name": task_sizes[0]})
        if self.model is None and self.mlp is None and (self.mlp_legs or self.mlp_settings):
            raise PydanticCustomError("no_mlp", "sizes and settings of an MLP need a design: name it as 'mlp'")
        if self.batch < self.accumulate:
            raise PydanticCustomError(
                "parts",
                "a batch of {batch} cannot have {parts} parts: reduce 'accumulate'",
                {"batch": self.batch, "parts": self.accumulate},
            )
        return self


if TYPE_CHECKING:
    RunKeys = Any  # type checkers accept any key: they cannot read the fields of a model
else:
    RunKeys = TypedDict("RunKeys", dict.fromkeys(Run.model_fields, Any), total=False)  # keys of a run file, as options


# Sizes that the task sets for a run with a design, and that a run with a model can override.
OF_THE_TASK = ("vocabulary", "length", "classes")
# Keys that turn a design into a model; for a run with a model, they override the model's.
SIZES = (
    "legs", "settings", "mlp", "mlp_legs", "mlp_settings", "depth", "width", "positions", "norm", "dropout", "init",
    "embedding_scale", "tied", "memory", "memory_kind", "pooling", *OF_THE_TASK,
)  # fmt: skip
# Keys that runs of earlier versions lack: at their defaults, they are left out of the hash of a run.
LATER = ("label_smoothing", "mlp_settings", "memory_kind", "task_samples", *OF_THE_TASK)
# Keys of the machine: a run may resume with other values.
MACHINE = (
    "checkpoint_activations", "save_every", "save_seconds", "keep", "accelerator", "devices", "nodes", "strategy",
    "threads", "cache", "tensorboard",
)  # fmt: skip


Source = str | os.PathLike[str] | Mapping[str, Any] | None


def read(source: Source, options: Mapping[str, Any]) -> Run:
    """The run of a file or a mapping; `options` override its keys.

    Raises DesignError with all problems of the file, and InputError for problems of the options.
    """
    document, reporter = _document(with_task_name(source) if isinstance(source, Mapping) else source)
    options = with_task_name(options)
    if isinstance(document.data.get("model"), Mapping) and "model" not in options:  # reports problems at their places
        inner = Reporter(inside(document, ("model",)))
        read_model(inner.document, inner)
        reporter.reported += inner.reported
    refuse(reporter, "run")
    try:
        return Run(**{**document.data, **options})
    except ValidationError as error:
        option_problems, other_problems = list[str](), list[str]()
        for raw in error.errors():
            key = raw["loc"][0] if raw["loc"] else None
            if key in document.data and key not in options:
                _report(reporter, raw)
            else:
                (option_problems if key in options else other_problems).append(_option_problem(raw))
        refuse(reporter, "run")
        raise InputError("\n".join(dict.fromkeys(option_problems + other_problems))) from error


def with_task_name(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same keys with the name of a `task` that is a Recipe. Raises InputError for a recipe that has no name."""
    task = keys.get("task")
    return {**keys, "task": name_of_task(task)} if isinstance(task, Recipe) else keys


def refuse(reporter: Reporter, kind: str) -> None:
    """Raises DesignError if the reporter has errors."""
    if reporter.failed:
        raise DesignError(reporter.problems(), kind)


def _document(source: Source) -> tuple[Document, Reporter]:
    """The document of a run, with paths relative to its file made absolute."""
    if source is None or source == {}:
        document = Document({}, "run")
        return document, Reporter(document)
    if isinstance(source, Mapping):
        return document_of(source)
    document, reporter = file_document(source, "run")
    for key in ("model", "design"):
        reference = document.data.get(key)
        if isinstance(reference, str) and is_path(reference):
            document.data[key] = os.path.join(os.path.dirname(document.path or ""), reference)
    return document, reporter


def file_document(source: str | os.PathLike[str], kind: str) -> tuple[Document, Reporter]:
    """Reads a file that begins with its kind and version, e.g. `run: 1`. Raises InputError if it is no mapping."""
    name = os.fspath(source)
    document, reporter = text_document(read_bytes(Path(name)), name, os.path.abspath(name))
    if {problem.code for problem in reporter.reported} & {"empty", "not-a-mapping"}:
        raise InputError(f"'{name}' is not a {kind} file: it must be a mapping that begins with '{kind}: 1'.")
    if not reporter.failed and document.data.get(kind) != 1:
        version = written(document.data.get(kind))
        message = f"expected version 1 of {kind} files, got {version}."
        reporter.error("version", message, (kind,), hint=f"write '{kind}: 1'.")
    return document, reporter


def _report(reporter: Reporter, raw: Any) -> None:
    path = tuple(raw["loc"])
    if raw["type"] == "extra_forbidden":
        reporter.unknown_key(path, Run.model_fields)
        return
    actual = written(reporter.document.value(path))
    about = Run.model_fields[str(path[0])].description
    reporter.error("wrong-value", f"{_sentence(raw)}, got {actual}.", path, hint=f"'{path[0]}' is {about}.")


def _option_problem(raw: Any) -> str:
    """The problem of an option, as one sentence."""
    if not raw["loc"]:
        return f"{raw['msg']}."
    name = str(raw["loc"][0])
    if raw["type"] == "extra_forbidden":
        return f"a run has no option '{printable(name)}': {nearest(name, Run.model_fields)}"
    about = Run.model_fields[name].description
    if raw["type"] == "missing":
        return f"a run needs '{name}': {about}."
    return f"option '{name}': {_sentence(raw)}, got {written(raw['input'])}; it is {about}."


def _sentence(raw: Any) -> str:
    return raw["msg"][0].lower() + raw["msg"][1:]


KINDS = {"language_model": "language_model", "classification": "sequence_classifier", "sequence_to_sequence": "seq2seq"}


def spec_of(run: Run, task: Task) -> ModelSpec:
    """The model of a run. Raises DesignError if it has problems, and InputError if it does not fit the task."""
    if run.model is None:
        spec = _stack_spec(run, task)
    else:
        overrides = {name: getattr(run, name) for name in ("design", *SIZES) if name in run.model_fields_set}
        spec = load(
            run.model,
            **{name: override for name, override in overrides.items() if name == "mlp" or override is not None},
        )
    if spec.kind != KINDS[task.kind]:
        raise InputError(f"task '{task.name}' needs a {KINDS[task.kind]}; '{spec.name}' is a {spec.kind}.")
    _check_sizes(spec, task)
    # A memory is carried from batch to batch, so sample i must continue sample i - batch.
    if getattr(spec.config, "memory", 0) and run.options.get("streams") != run.batch:
        raise InputError(
            f"'{spec.name}' has a memory, so each batch must continue the last one: set the option "
            f"'streams: {run.batch}', the batch size, of a task that has this option."
        )
    return spec


def resolved(run: Run, spec: ModelSpec, task: Task) -> Run:
    """The same run with every design of its model written out, so that it depends on no other file."""
    fields = {name: getattr(run, name) for name in run.model_fields_set if name not in (*SIZES, "design")}
    model, chosen = parse(spec.to_yaml(whole=True), spec.name)[0].data, task.as_dict()
    pinned = {"task_version": chosen["version"], "task_samples": task.samples_hash}
    return Run(**fields | {"model": model, "options": chosen["options"], **pinned})


def _stack_spec(run: Run, task: Task) -> ModelSpec:
    """A model of `depth` layers of the design, named after it."""
    if task.kind == "sequence_to_sequence":
        raise InputError(f"task '{task.name}' needs an encoder and a decoder: give a model file of kind 'seq2seq'.")
    mixer = {"design": run.design, "legs": run.legs, "settings": run.settings}
    second = {"design": run.mlp, "legs": run.mlp_legs, "settings": run.mlp_settings}
    mlp = {} if run.mlp is None else {"mlp": second}
    model: dict[str, Any] = {
        "kind": KINDS[task.kind],
        **({"vocabulary": task.vocabulary} if task.features is None else {"features": task.features}),
        "length": task.length,
        **{name: getattr(run, name) for name in ("width", "positions", "norm", "dropout", "init", "embedding_scale")},
        "layers": [{"mixer": mixer, **mlp, "repeat": run.depth}],
    }
    classifies = task.kind == "classification"
    model |= {"classes": task.classes} if classifies else {}
    usual = {"pooling"} if classifies else {"tied", "memory"}
    chosen = run.model_fields_set & {"pooling", "tied", "memory", "memory_kind"}  # of another kind: the reader refuses
    model |= {name: getattr(run, name) for name in sorted(usual | chosen)}
    spec = load({"tensornet": 1, "model": model})
    return replace(spec, name=spec.stacks["layers"][0]["mixer"].design.name)


def _check_sizes(spec: ModelSpec, task: Task) -> None:
    config = spec.config
    if config.length < task.length:
        raise InputError(
            f"task '{task.name}' has samples of {task.length} tokens; '{spec.name}' has a length of {config.length}. "
            f"{_size_hint('length', task.length)}"
        )
    features = getattr(config, "features", None)
    if features != task.features:
        has = [f"{count} numbers at each position" if count else "tokens" for count in (task.features, features)]
        raise InputError(f"task '{task.name}' has {has[0]}; '{spec.name}' takes {has[1]}.")
    if (config.vocabulary or 0) < task.vocabulary:
        raise InputError(
            f"task '{task.name}' has a vocabulary of {task.vocabulary}; '{spec.name}' has one of {config.vocabulary}. "
            f"{_size_hint('vocabulary', task.vocabulary)}"
        )
    answers = task.classes or task.vocabulary
    own_target = getattr(config, "target_vocabulary", None)
    model_answers = getattr(config, "classes", None) or own_target or config.vocabulary
    if model_answers != answers:
        what, key = ("classes", "classes") if task.classes else ("tokens", "vocabulary")
        change = "" if own_target else f" {_size_hint(key, answers)}"
        raise InputError(
            f"task '{task.name}' has {answers} {what}; the output of '{spec.name}' has {model_answers}.{change}"
        )


def _size_hint(key: str, size: int) -> str:
    return f"Set '{key}: {size}' in the run."
