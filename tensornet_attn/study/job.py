"""One thing that the process of a trial computes, as the worker tells it."""

from __future__ import annotations

from dataclasses import dataclass

from tensornet_attn.errors import InputError
from tensornet_attn.study.config import Study

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
