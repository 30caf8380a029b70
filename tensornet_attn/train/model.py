"""The model of a run: a shipped one, that of a file, or a stack of one design; and whether it fits the task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tensornet_attn.errors import InputError
from tensornet_attn.models.read import ModelSpec, load
from tensornet_attn.spec.yaml import parse
from tensornet_attn.tasks.task import Task
from tensornet_attn.train.config import SIZES, Run

KINDS = {
    "language_model": "language_model",
    "classification": "sequence_classifier",
    "sequence_to_sequence": "seq2seq",
}


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
