"""Reads a study from a file and options: checks it, writes out its space, and completes its rungs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tensornet_attn import compiler
from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph import build
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.models.fit import is_path
from tensornet_attn.search.read import load
from tensornet_attn.search.space import Space
from tensornet_attn.search.study import Limit, Rung, Study, own_task, space_data
from tensornet_attn.search.trial import larger
from tensornet_attn.spec.places import Document
from tensornet_attn.spec.report import Reporter, printable, written
from tensornet_attn.spec.yaml import plain
from tensornet_attn.tasks import Recipe, list_tasks, task_named
from tensornet_attn.tasks.reading import read_bytes
from tensornet_attn.tasks.task import name_of_task
from tensornet_attn.train.config import SIZES, Run, file_document, refuse
from tensornet_attn.train.config import read as read_run

Source = str | os.PathLike[str] | Mapping[str, Any] | None
PAGE = "docs/search.md lists all keys."


def read(source: Source, options: Mapping[str, Any]) -> Study:
    """The study of a file or a mapping; `options` override its keys, unless they are None.

    Instead of `rungs`, a study may have one `task` with `options`, `run`, `rates`, `measure` and `score`; a short rung
    of mqar then precedes it. A bound may be a number: the maximum of a cost, or the minimum of quality. Paths are
    relative to the file. Raises DesignError with all problems of the file or its space, and InputError for others.
    """
    document, reporter = _document(with_task_names(source) if isinstance(source, Mapping) else source)
    refuse(reporter, "study")
    options = with_task_names({key: option for key, option in options.items() if option is not None})
    keys = _study_keys(document.data, options)
    study = _validated(keys, document, reporter, options)
    check_rungs(study)
    return fitted(study, load(study.space))


def with_task_names(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The same keys with the names of tasks that are recipes or functions, those of rungs included.

    Raises InputError for a task that the processes of trials cannot import.
    """
    named, task = dict(keys), keys.get("task")
    if isinstance(task, Recipe) or callable(task):
        named["task"] = name_of_task(task)
        if named["task"].startswith("__main__:"):
            raise InputError(f"the processes of trials cannot import '{named['task']}': move it to a module.")
    if isinstance(keys.get("rungs"), (list, tuple)):
        named["rungs"] = [with_task_names(rung) if isinstance(rung, Mapping) else rung for rung in keys["rungs"]]
    return named


def _document(source: Source) -> tuple[Document, Reporter]:
    """The document of a study, with the paths of its space and the space's bases made absolute."""
    if source is None or isinstance(source, Mapping):
        document = Document(plain(source or {}), "study")
        return document, Reporter(document)
    document, reporter = file_document(source, "study")
    folder, space = os.path.dirname(document.path or ""), document.data.get("space")
    if isinstance(space, str) and "\n" not in space:
        document.data["space"] = os.path.join(folder, space)
    elif isinstance(space, Mapping) and "base" in space:
        bases = space["base"] if isinstance(space["base"], list) else [space["base"]]
        paths = [os.path.join(folder, base) if isinstance(base, str) and is_path(base) else base for base in bases]
        document.data["space"] = {**space, "base": paths}
    return document, reporter


def _study_keys(file_keys: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a Study. A task in the options replaces the rungs of the file, and rungs replace a task."""
    dropped: tuple[str, ...] = ("rungs",) if "task" in options else SHORT if "rungs" in options else ()
    keys = {key: value for key, value in file_keys.items() if key not in dropped} | dict(options)
    if "rungs" in keys and "task" in keys:
        raise InputError("a study has 'rungs' and a 'task': give only one of them.")
    if keys.get("space") is None:
        raise InputError("a study needs a 'space': the path of a space file, or the content of one.")
    keys["space"] = space_data(_space(keys["space"]))
    if "rungs" not in keys:
        keys["rungs"] = rungs_of(keys)
    elif any(key in keys for key in SHORT):
        key = next(key for key in SHORT if key in keys)
        raise InputError(f"'{key}' belongs to a 'task', but this study has 'rungs': move '{key}' into a rung.")
    keys["bounds"] = _limits(keys.get("bounds") or {})
    return {key: value for key, value in keys.items() if key not in SHORT}


def _space(space: Any) -> Space:
    """The space of a study. Raises DesignError with its problems, and InputError if it cannot be read."""
    if not isinstance(space, (str, os.PathLike, Mapping, Space)):
        raise InputError(f"'space' must be the path of a space file, or the content of one, got {written(space)}.")
    if isinstance(space, os.PathLike) or (isinstance(space, str) and not {"\n", "{"} & {*space}):
        read_bytes(Path(space))  # reports a missing file; shipped designs are no spaces
    return load(space)


def _limits(bounds: Any) -> Any:
    """Bounds as mappings: a number is the maximum of a cost, or the minimum of quality."""
    if not isinstance(bounds, Mapping):
        return bounds
    numbers = {n for n, limit in bounds.items() if isinstance(limit, (int, float)) and not isinstance(limit, bool)}
    return {n: {"least" if larger(n) else "most": limit} if n in numbers else limit for n, limit in bounds.items()}


def _validated(keys: Mapping[str, Any], document: Document, reporter: Reporter, options: Mapping[str, Any]) -> Study:
    """The study of `keys`. Raises DesignError with problems of the file, and InputError with others."""
    try:
        return Study(**keys)
    except ValidationError as error:
        messages, errors = [], error.errors(include_url=False)
        locations = [raw["loc"] for raw in errors]
        for raw in errors:
            path, kind = raw["loc"], raw["type"]
            if path and any(path == at[: len(path)] != at for at in locations):
                continue  # the list is too short because its items were refused
            where = " ".join(str(step + 1) if isinstance(step, int) else step for step in path)  # `rungs 2 rates`
            valid_keys = INNER.get(str(path[0]), KEYS) if len(path) > 1 else KEYS
            wrong = "give at least one" if kind == "too_short" else raw["msg"][0].lower() + raw["msg"][1:]
            shown = "" if kind == "missing" else f", got {written(raw['input'])}"
            in_file = bool(path) and path[0] in document.data and path[0] not in options
            last = str(path[-1:] and path[-1])
            if in_file and kind == "extra_forbidden":
                reporter.unknown_key(path, valid_keys)
            elif in_file:
                reporter.error("wrong-value", f"{where}: {wrong}{shown}.", path, hint=PAGE)
            elif kind == "extra_forbidden":
                messages.append(f"a study has no option '{printable(where)}': {nearest(last, valid_keys)}")
            elif kind == "missing":
                messages.append(f"a study needs '{where}': {PAGE}")
            else:
                messages.append(f"option '{printable(where)}': {wrong}{shown}." if path else f"{raw['msg']}.")
        refuse(reporter, "study")
        raise InputError("\n".join(dict.fromkeys(messages))) from error


SHORT = ("task", "options", "run", "rates", "measure", "score")  # keys of a single rung, next to the study's keys
KEYS = (*Study.model_fields, *SHORT)
INNER = {"rungs": tuple(Rung.model_fields), "bounds": tuple(Limit.model_fields)}
# Accuracy is low in these tasks, so loss is the default measure.
TEXTS = ("byte_lm", "char_lm", "image_generation", "wikitext")
# The rung before a longer task: mqar separates designs that can recall from designs that cannot.
LENGTH = 64
FIRST: Mapping[str, Any] = {"task": "mqar", "options": {"length": LENGTH}, "run": {"steps": 750, "mlp": "none"}}
TWO_STACKS = ("reverse", "translation")  # tasks for an encoder and a decoder
OWN = {  # keys of a run file that a study sets, and their origin
    "task": "the rung's own 'task'",
    "options": "the rung's own 'options'",
    "lr": "'rates'",
    "seed": "the study's 'seed' and 'fresh_seeds'",
    "threads": "the study's 'threads'",
    "design": "the space",
    "model": "the space",
    "legs": "the space",
    "settings": "the space",
}


def callable_task(task: str) -> bool:
    """Whether a rung's task is a user function, `module:name`, and not a task to train on.

    Raises InputError if it cannot be imported.
    """
    return ":" in task and not isinstance(own_task(task), Recipe)


def rungs_of(keys: Mapping[str, Any]) -> list[Any]:
    """The rungs of a study with a single task: a short rung of mqar, and the task.

    The first rung has the same model and learning rates, and at most as many steps; it is left out for a user function
    and for mqar of the same length or shorter. Raises InputError if there is no task.
    """
    if not isinstance(keys.get("task"), str):
        raise InputError("a study needs a 'task', e.g. mqar, or 'rungs', a list of tasks.")
    last = {key: keys[key] for key in SHORT if key in keys}
    if callable_task(last["task"]):
        return [last]
    if last["task"] in TEXTS:
        last = {"measure": "loss", **last}
    run, options = (last[key] if isinstance(last.get(key), Mapping) else {} for key in ("run", "options"))
    if last["task"] == "mqar" and _least(options.get("length"), LENGTH) == options.get("length", LENGTH):
        return [last]
    steps = _least(run.get("steps", Run.model_fields["steps"].default), FIRST["run"]["steps"])
    model = {key: value for key, value in run.items() if key in SIZES}
    rates = {"rates": last["rates"]} if "rates" in last else {}
    return [{**FIRST, **rates, "run": {**FIRST["run"], **model, "steps": steps}}, last]


def _least(number: Any, limit: int) -> Any:
    """`number` if it is a whole number below `limit`, otherwise `limit`; `check_rungs` reports invalid values."""
    return number if isinstance(number, int) and 0 < number < limit else limit


def check_rungs(study: Study) -> None:
    """Raises InputError if the task or run of a rung is invalid, with the trainer's messages."""
    for number, rung in _with_recipes(study):
        try:
            reserved = next((key for key in rung.run if key in OWN), None)
            if reserved is not None:
                raise InputError(f"leave out '{reserved}' under 'run': it is set by {OWN[reserved]}.")
            if task_named(rung.task, **rung.options).kind == "sequence_to_sequence":
                message = f"task '{rung.task}' needs an encoder and a decoder, but a study has one stack"
                names = ", ".join(recipe.name for recipe in list_tasks() if recipe.name not in TWO_STACKS)
                raise InputError(f"{message}: try {names}.")
            read_run({}, {"task": rung.task, "design": "mhsa", **rung.run})
        except InputError as error:
            raise InputError("\n".join(f"rung {number}: {line}" for line in str(error).splitlines())) from error


def _with_recipes(study: Study) -> Iterator[tuple[int, Rung]]:
    """The rungs of a study as written that have a task to train on, with their number from 1. Raises InputError."""
    return ((number, rung) for number, rung in enumerate(study.rungs, 1) if not callable_task(rung.task))


def trained(study: Study) -> Iterator[tuple[int, Rung]]:
    """The rungs of a study in progress that have a task to train on, with their number from 1."""
    return ((number, rung) for number, rung in enumerate(study.rungs, 1) if not rung.calls)


def fitted(study: Study, space: Space) -> Study:
    """The study with the width of its designs, and a hash of the samples of an own recipe, in each rung that trains.

    A model sets its width on the leg of each design's input. This leg must have one size in all designs, otherwise the
    trained designs would differ from the priced ones. Raises InputError for several sizes, or another width in a rung.
    """
    rungs, training = list(study.rungs), list(_with_recipes(study))
    width = width_of(space) if training else 0
    for number, rung in training:
        if rung.run.get("width", width) != width:
            raise InputError(
                f"rung {number}: the input of the designs of '{space.name}' has the width {width}, but the rung has "
                f"'width: {rung.run['width']}'; leave it out."
            )
        fixed: dict[str, Any] = {"width": width}
        if ":" in rung.task:  # a study cannot resume with a recipe that has changed
            fixed["task_samples"] = task_named(rung.task, **rung.options).samples_hash
        rungs[number - 1] = rung.model_copy(update={"run": {**rung.run, **fixed}})
    return study.model_copy(update={"rungs": tuple(rungs)})


def width_of(space: Space) -> int:
    """The width of the designs' input. Raises InputError if it varies, or if a base is not a layer."""
    widths: dict[int, str] = {}
    for name, content in space.bases.items():
        graph = build(compiler.load(dict(content)))
        inputs = graph.of_role("input")
        legs = [leg for leg in inputs[0].legs if size_of(graph, leg) is not None] if inputs else []
        if len(legs) != 1 or len(inputs[0].legs) != 2:
            raise InputError(
                f"base '{name}' is not a layer of a model: give its input a sequence leg and then its width, e.g. n f."
            )
        (leg,) = legs
        sizes = [*space.legs[leg]] if leg in space.legs else [size_of(graph, leg)]
        if len(sizes) > 1:
            raise InputError(
                f"leg '{leg}' of '{name}' is the width of the model, which must not vary: give it one size in the "
                f"space '{space.name}', e.g. '{leg}: {sizes[0]}'."
            )
        widths.setdefault(int(sizes[0] or 0), f"leg '{leg}' of '{name}'")
    if len(widths) > 1:
        sizes_text = ", ".join(f"{size} on {where}" for size, where in widths.items())
        raise InputError(
            f"the bases of the space '{space.name}' have different widths: {sizes_text}; give all the same width."
        )
    return next(iter(widths))
