"""The rungs of a study: those that a task stands for, and whether the trainer would take what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tensornet_attn.errors import InputError
from tensornet_attn.study.config import Rung, Study
from tensornet_attn.tasks import list_tasks, task_named
from tensornet_attn.train.config import SIZES, Run
from tensornet_attn.train.read import read

SHORT = ("task", "options", "run", "rates", "measure", "score")  # of one rung, beside the study's own keys
# What comes before a task that is longer: mqar, which tells designs apart that recall from those that do not.
LENGTH = 64
FIRST: Mapping[str, Any] = {"task": "mqar", "options": {"length": LENGTH}, "run": {"steps": 750, "mlp": "none"}}
TWO_STACKS = ("reverse", "translation")  # tasks of an encoder and a decoder
OWN = {  # keys of a run file that a study gives itself, and where from
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
    """Whether a rung's task is a function, `module:function`, and none that is trained on."""
    return ":" in task


def rungs_of(given: Mapping[str, Any]) -> list[Any]:
    """The rungs that a task alone stands for: it, after a short one of mqar unless it is a function or mqar as short.

    The first one has the same model and learning rates, and no more steps. Raises InputError where there is no task.
    """
    if not isinstance(given.get("task"), str):
        raise InputError("a study needs a 'task', e.g. mqar, or 'rungs', a list of them.")
    last = {key: given[key] for key in SHORT if key in given}
    if callable_task(last["task"]):
        return [last]
    if _text(last["task"]):
        last = {"measure": "loss", **last}
    run, options = (last[key] if isinstance(last.get(key), Mapping) else {} for key in ("run", "options"))
    if last["task"] == "mqar" and _least(options.get("length"), LENGTH) == options.get("length", LENGTH):
        return [last]
    steps = _least(run.get("steps", Run.model_fields["steps"].default), FIRST["run"]["steps"])
    model = {key: value for key, value in run.items() if key in SIZES}
    rates = {"rates": last["rates"]} if "rates" in last else {}
    return [{**FIRST, **rates, "run": {**FIRST["run"], **model, "steps": steps}}, last]


def _least(given: Any, most: int) -> Any:
    """What is given where it is a number below the most; what is wrong with another is told later."""
    return given if isinstance(given, int) and 0 < given < most else most


def _text(task: str) -> bool:
    """Whether a task is a text to go on with, where few guesses are right and the loss says more than accuracy."""
    return task in ("byte_lm", "char_lm", "image_generation", "wikitext")


def check_rungs(study: Study) -> None:
    """Raises InputError where a rung's task or run is none, as the trainer would say."""
    for place, rung in enumerate(study.rungs, 1):
        if not callable_task(rung.task):
            try:
                check_rung(rung)
            except InputError as error:
                raise InputError("\n".join(f"rung {place}: {line}" for line in str(error).splitlines())) from error


def check_rung(rung: Rung) -> None:
    """Raises InputError."""
    own = [key for key in rung.run if key in OWN]
    if own:
        raise InputError(f"'{own[0]}' is not given under 'run': it comes from {OWN[own[0]]}.")
    task = task_named(rung.task, **rung.options)
    if task.kind == "sequence_to_sequence":
        known = ", ".join(recipe.name for recipe in list_tasks() if recipe.name not in TWO_STACKS)
        raise InputError(f"task '{rung.task}' needs an encoder and a decoder, and a study has one stack: try {known}.")
    read({}, {"task": rung.task, "design": "mhsa", **rung.run})


def trained(study: Study) -> Iterator[tuple[int, Rung]]:
    """The rungs on which designs are trained, with their number from 1."""
    return ((place, rung) for place, rung in enumerate(study.rungs, 1) if not callable_task(rung.task))
