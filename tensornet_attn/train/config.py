"""What a training run is: its keys, how a file and options become one, its model; all that is wrong at its place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from tensornet_attn.errors import DesignError, InputError, nearest
from tensornet_attn.models.config import Initialisation, MemoryKind, Norm, Pooling, Positions, Share, written
from tensornet_attn.models.fit import inside, is_path
from tensornet_attn.models.read import ModelSpec, load, read_model
from tensornet_attn.ops.model import Arithmetic
from tensornet_attn.spec import Design
from tensornet_attn.spec.places import Document
from tensornet_attn.spec.report import Reporter, printable
from tensornet_attn.spec.sources import document_of, text_document
from tensornet_attn.spec.yaml import parse
from tensornet_attn.tasks.reading import read_bytes
from tensornet_attn.tasks.task import Task

Precision = Literal["32", "bf16", "bf16-true"]
Schedule = Literal["cosine", "linear", "constant"]


def _source(value: Any) -> Any:
    """A name, a path or a mapping; `none` is nothing."""
    if value is None or value == "none":
        return None
    if not isinstance(value, (str, os.PathLike, Mapping, Design)) or not value:
        raise PydanticCustomError("source", "a name, a path or a mapping is wanted here")
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _word(value: Any) -> Any:
    """`precision: 32` in YAML is a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Chosen = Annotated[Any, BeforeValidator(_source, json_schema_input_type=str | dict[str, Any] | None)]
Count = Annotated[int, Field(ge=1, lt=2**40)]
Ratio = Annotated[float, Field(ge=0, lt=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Run(BaseModel):
    """A run, as a file that begins with `run: 1` or as options. Equal runs on one CPU give equal losses, bit by bit."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    run: Literal[1] = Field(1, description="version of run files")
    task: str = Field(description="a task by name, e.g. mqar")
    options: dict[str, Any] = Field({}, description="options of the task")
    task_version: int | None = Field(None, description="of the task, where samples of one version alone will do")

    model: Chosen = Field(None, description="a shipped model by name, a model file, or what such a file holds")
    design: Chosen = Field(None, description="the mixer of every layer, of the model or of a stack of its own")
    legs: dict[str, Arithmetic] = Field({}, description="sizes of the design's legs")
    settings: dict[str, Arithmetic] = Field({}, description="settings of the design")
    mlp: Chosen = Field("mlp", description="the design after each mixer, or none")
    mlp_legs: dict[str, Arithmetic] = Field({}, description="sizes of its legs")
    mlp_settings: dict[str, Arithmetic] = Field({}, description="its settings")
    depth: Count = Field(2, description="layers")
    width: Count = Field(64, description="of the residual stream")
    positions: Positions = Field("learned", description="none, learned or sinusoid")
    norm: Norm = Field("layernorm", description="layernorm or rmsnorm")
    dropout: Share = Field(0.0, description="a share from 0 up to but not including 1")
    init: Initialisation = Field("lra", description="how first values are drawn, by name")
    embedding_scale: Arithmetic = Field(1, description="a factor on embeddings, such as width ** 0.5")
    tied: bool = Field(False, description="whether a language model's output has the weights of its embedding")
    memory: int = Field(0, ge=0, description="rows of earlier segments that a language model keeps")
    memory_kind: MemoryKind = Field("inputs", description="what is kept of them: inputs, or the decoding cache")
    pooling: Pooling = Field("mean", description="of a classifier: mean, cls or concat")
    vocabulary: Count | None = Field(None, description="of a model, in place of its own")
    length: Count | None = Field(None, description="what a model is made for, in place of its own")
    classes: Count | None = Field(None, description="of a model, in place of its own")

    steps: Count = Field(1000, description="optimiser steps")
    batch: Count = Field(64, description="samples of a step, over all processes")
    accumulate: Count = Field(1, description="parts that a batch is computed in, one after the other")
    lr: float = Field(2e-3, gt=0, allow_inf_nan=False, description="the highest learning rate")
    warmup: int = Field(100, ge=0, description="steps in which the learning rate rises")
    schedule: Schedule = Field("cosine", description="what follows: cosine, linear or constant")
    min_lr: Amount = Field(0.0, description="the learning rate at the end")
    weight_decay: Amount = Field(0.01, description="of AdamW, on weights of two and more legs")
    betas: Annotated[tuple[Ratio, Ratio], Field(strict=False)] = Field((0.9, 0.98), description="of AdamW")
    label_smoothing: Ratio = Field(
        0.0, description="the share of a target's probability that is spread over all answers"
    )
    clip: Amount = Field(1.0, description="the largest norm of the gradient; 0 for any")
    seed: int = Field(0, ge=0, lt=2**63, description="of first values, samples, dropout and noise")
    precision: Annotated[Precision, BeforeValidator(_word)] = Field("32", description="32, bf16 or bf16-true")
    backend: str = Field("auto", description="of the compiler: auto, torch, inductor, triton or reference")
    compile: bool = Field(False, description="whether torch.compile compiles the model")
    eval_every: Count = Field(250, description="steps between validations; there is one at the end too")
    eval_samples: Count = Field(1000, description="validation samples at most")

    checkpoint_activations: bool = Field(False, description="layers are computed again for the backward")
    save_every: Count = Field(20, description="steps between checkpoints at most")
    save_seconds: Amount = Field(30.0, description="seconds between checkpoints, about")
    keep: Count = Field(3, description="checkpoints that are kept")
    accelerator: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto, cpu or cuda")
    devices: Count = Field(1, description="processes on each machine; torchrun's own where it runs")
    nodes: Count = Field(1, description="machines")
    strategy: Literal["auto", "ddp", "fsdp"] = Field("auto", description="auto, ddp or fsdp")
    threads: Count | None = Field(None, description="threads of torch; as torch has them")
    cache: str | bool | None = Field(None, description="folder for samples that take long to make; false for none")
    tensorboard: bool = Field(True, description="whether event files are written")

    @model_validator(mode="after")
    def _one_model(self) -> Run:
        if self.model is None and self.design is None:
            raise PydanticCustomError("one_model", "a run has a 'model' or a 'design'")
        given = [name for name in OF_THE_TASK if getattr(self, name) is not None]
        if self.model is None and given:
            raise PydanticCustomError("sizes", "the task says '{name}' itself: leave it out here", {"name": given[0]})
        if self.batch < self.accumulate:
            raise PydanticCustomError(
                "parts", "a batch of {batch} has no {parts} parts", {"batch": self.batch, "parts": self.accumulate}
            )
        return self


RunKeys = TypedDict("RunKeys", dict.fromkeys(Run.model_fields, Any), total=False)  # keys of a run file, as options


# What the task says of a stack of one design, and a model itself unless the run says otherwise.
OF_THE_TASK = ("vocabulary", "length", "classes")
# What a design needs to be a model; of a model that says all this itself, what the run wants otherwise.
SIZES = (
    "legs", "settings", "mlp", "mlp_legs", "mlp_settings", "depth", "width", "positions", "norm", "dropout", "init",
    "embedding_scale", "tied", "memory", "memory_kind", "pooling", *OF_THE_TASK,
)  # fmt: skip
# What runs of earlier versions lack: at its default it is no part of what makes two runs differ.
LATER = ("label_smoothing", "mlp_settings", "memory_kind", *OF_THE_TASK)
# Where and how a run is computed: it may go on with others.
MACHINE = (
    "checkpoint_activations", "save_every", "save_seconds", "keep", "accelerator", "devices", "nodes", "strategy",
    "threads", "cache", "tensorboard",
)  # fmt: skip


Source = str | os.PathLike[str] | Mapping[str, Any] | None


def read(source: Source, options: Mapping[str, Any]) -> Run:
    """The run of a file or a mapping; `options` win over what it says.

    Raises DesignError with all that is wrong in the file, InputError for what is wrong with the options.
    """
    document, reporter = _document(source)
    if isinstance(document.data.get("model"), Mapping) and "model" not in options:  # with the places of its problems
        inner = Reporter(inside(document, ("model",)))
        read_model(inner.document, inner)
        reporter.found += inner.found
    refuse(reporter, "run")
    try:
        return Run(**{**document.data, **options})
    except ValidationError as error:
        given, wrong = list[str](), list[str]()
        for raw in error.errors():
            key = raw["loc"][0] if raw["loc"] else None
            if key in document.data and key not in options:
                _report(reporter, raw)
            else:
                (given if key in options else wrong).append(_option(raw))
        refuse(reporter, "run")
        raise InputError("\n".join(dict.fromkeys(given + wrong))) from error


def refuse(reporter: Reporter, kind: str) -> None:
    """Raises DesignError where something is wrong with a file."""
    if reporter.failed:
        raise DesignError(reporter.problems(), kind)


def _document(source: Source) -> tuple[Document, Reporter]:
    """What the file says, its paths made absolute."""
    if source is None or source == {}:
        document = Document({}, "run")
        return document, Reporter(document)
    if isinstance(source, Mapping):
        return document_of(source)
    document, reporter = file_document(source, "run")
    for key in ("model", "design"):
        value = document.data.get(key)
        if isinstance(value, str) and is_path(value):
            document.data[key] = os.path.join(os.path.dirname(document.path or ""), value)
    return document, reporter


def file_document(source: str | os.PathLike[str], kind: str) -> tuple[Document, Reporter]:
    """What a file says that begins with its kind and version, `run: 1`. Raises InputError for what is no such file."""
    name = os.fspath(source)
    document, reporter = text_document(read_bytes(Path(name)), name, os.path.abspath(name))
    if {problem.code for problem in reporter.found} & {"empty", "not-a-mapping"}:
        raise InputError(f"'{name}' holds no {kind}: it is a mapping that begins with '{kind}: 1'.")
    if not reporter.failed and document.data.get(kind) != 1:
        given = written(document.data.get(kind))
        message = f"this package reads version 1 of {kind} files, {given} given."
        reporter.error("version", message, (kind,), hint=f"write '{kind}: 1'.")
    return document, reporter


def _report(reporter: Reporter, raw: Any) -> None:
    path = tuple(raw["loc"])
    if raw["type"] == "extra_forbidden":
        reporter.unknown_key(path, Run.model_fields)
        return
    given = written(reporter.document.value(path))
    about = Run.model_fields[str(path[0])].description
    reporter.error("wrong-value", f"{_sentence(raw)}, {given} given.", path, hint=f"'{path[0]}' is {about}.")


def _option(raw: Any) -> str:
    """What is wrong with an option, in one sentence."""
    if not raw["loc"]:
        return f"{raw['msg']}."
    name = str(raw["loc"][0])
    if raw["type"] == "extra_forbidden":
        return f"a run has no option '{printable(name)}': {nearest(name, Run.model_fields)}"
    about = Run.model_fields[name].description
    if raw["type"] == "missing":
        return f"a run needs '{name}': {about}."
    return f"option '{name}': {_sentence(raw)}, {written(raw['input'])} given; it is {about}."


def _sentence(raw: Any) -> str:
    return raw["msg"][0].lower() + raw["msg"][1:]


KINDS = {"language_model": "language_model", "classification": "sequence_classifier", "sequence_to_sequence": "seq2seq"}


def spec_of(run: Run, task: Task) -> ModelSpec:
    """The model, checked by itself and against the task. Raises DesignError, InputError."""
    if run.model is None:
        spec = _stack(run, task)
    else:
        given = {name: getattr(run, name) for name in ("design", *SIZES) if name in run.model_fields_set}
        spec = load(run.model, **{name: value for name, value in given.items() if name == "mlp" or value is not None})
    if spec.kind != KINDS[task.kind]:
        raise InputError(f"task '{task.name}' needs a {KINDS[task.kind]}; '{spec.name}' is a {spec.kind}.")
    _check_sizes(spec, task)
    # A memory is carried from batch to batch, so sample i must go on where sample i - batch ended.
    if getattr(spec.config, "memory", 0) and run.options.get("streams") != run.batch:
        raise InputError(
            f"'{spec.name}' has a memory, so a batch goes on where the one before ended: give the task the option "
            f"'streams: {run.batch}', the size of a batch, if it has that option."
        )
    return spec


def resolved(run: Run, spec: ModelSpec, task: Task) -> Run:
    """The same run with nothing left to look up: every design of the model written out."""
    given = {name: getattr(run, name) for name in run.model_fields_set if name not in (*SIZES, "design")}
    model, chosen = parse(spec.to_yaml(whole=True), spec.name)[0].data, task.as_dict()
    return Run(**given | {"model": model, "options": chosen["options"], "task_version": chosen["version"]})


def _stack(run: Run, task: Task) -> ModelSpec:
    """`depth` layers of the design, named after it."""
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
    if task.kind == "classification":
        model |= {"classes": task.classes, "pooling": run.pooling}
    else:
        model |= {"tied": run.tied, "memory": run.memory}
        model |= {"memory_kind": run.memory_kind} if "memory_kind" in run.model_fields_set else {}
    spec = load({"tensornet": 1, "model": model})
    return replace(spec, name=spec.stacks["layers"][0]["mixer"].design.name)


def _check_sizes(spec: ModelSpec, task: Task) -> None:
    config = spec.config
    if config.length < task.length:
        raise InputError(
            f"task '{task.name}' has samples of {task.length} tokens; '{spec.name}' is made for a length of "
            f"{config.length}. {_change('length', task.length)}"
        )
    features = getattr(config, "features", None)
    if features != task.features:
        has = [f"{count} numbers at each position" if count else "tokens" for count in (task.features, features)]
        raise InputError(f"task '{task.name}' has {has[0]}; '{spec.name}' takes {has[1]}.")
    if (config.vocabulary or 0) < task.vocabulary:
        raise InputError(
            f"task '{task.name}' has a vocabulary of {task.vocabulary}; '{spec.name}' has one of {config.vocabulary}. "
            f"{_change('vocabulary', task.vocabulary)}"
        )
    answers = task.classes or task.vocabulary
    own_target = getattr(config, "target_vocabulary", None)
    given = getattr(config, "classes", None) or own_target or config.vocabulary
    if given != answers:
        what, key = ("classes", "classes") if task.classes else ("tokens", "vocabulary")
        change = "" if own_target else f" {_change(key, answers)}"
        raise InputError(f"task '{task.name}' asks for {answers} {what}; '{spec.name}' answers with {given}.{change}")


def _change(key: str, value: int) -> str:
    return f"'{key}: {value}' in the run changes that."
