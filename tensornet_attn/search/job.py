"""What the process of a trial computes, and a user's function as a task; needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from math import isfinite
from pathlib import Path
from typing import Any

from tensornet_attn import compiler
from tensornet_attn.errors import InputError
from tensornet_attn.search.study import Study, run_folder

STATIC, CLIMB, LATENCY = "static", "climb", "latency"


@dataclass(frozen=True)
class Job:
    """`kind`: static, climb or latency. `design`: YAML; `out`: the folder of the study; `rung`: from 1.

    `rates`: each with its own of `seeds`; one seed where there are none.
    """

    kind: str
    study: Study
    design: str
    out: str
    rung: int = 1
    rates: tuple[float, ...] = ()
    seeds: tuple[int, ...] = (0,)


class NotFiniteError(InputError):
    """Loss or gradient of a job are not finite."""


RULE = "it is a function of a module, as module:function, and the module can be found from here or on PYTHONPATH"


def name_of(function: Callable[..., Any]) -> str:
    """`module:function`, by which other processes find it. Raises InputError where they could not.

    >>> name_of(name_of)
    'tensornet_attn.search.job:name_of'
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module in (None, "__main__") or name is None or "<" in name:
        told = f"{module}:{name}" if name is not None else repr(function)
        raise InputError(f"the task '{told}' cannot be found by the processes of trials: put it into a module; {RULE}.")
    return f"{module}:{name}"


def function_named(task: str) -> Callable[..., Any]:
    """The function that `module:function` names. Raises InputError."""
    module, _, name = task.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"the task '{task}' cannot be imported ({error}): {RULE}.") from error
    if not callable(found):
        raise InputError(f"the task '{task}' is no function: {RULE}.")
    return found  # type: ignore[no-any-return]


def called(job: Job) -> list[tuple[float | None, str]]:
    """What a user's function says of the design, which it gets as a Design.

    It also gets what it has parameters for: `seed`; `rate`, and is then called with each learning rate; `folder`, one
    of its own that is the same when it is called again.
    """
    task = job.study.rungs[job.rung - 1].task
    function = function_named(task)
    known = signature(function).parameters
    design = compiler.load(job.design)
    found = []
    for rate, seed in list(zip(job.rates, job.seeds, strict=True))[: None if "rate" in known else 1]:
        folder = run_folder(job.design, job.rung, rate, seed)
        given: dict[str, Any] = {"seed": seed, "rate": rate, "folder": Path(job.out) / folder}
        if "folder" in known:
            given["folder"].mkdir(parents=True, exist_ok=True)
        quality = function(design, **{name: value for name, value in given.items() if name in known})
        try:
            value = float(quality)
        except (TypeError, ValueError):
            raise InputError(f"the task '{task}' gave {quality!r}; a quality is a number, larger is better.") from None
        found.append((value if isfinite(value) else None, folder if "folder" in known else ""))
    return found
