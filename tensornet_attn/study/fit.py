"""The width of the model: the size of the leg that every design of a space has at its input, given to the rungs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensornet_attn import compiler
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.search.space import Space
from tensornet_attn.study.config import Study
from tensornet_attn.study.rungs import callable_task, trained


def fitted(study: Study, space: Space) -> Study:
    """The study with the width of its designs in each rung that trains them.

    A model puts its width on the leg of each design's input, so that leg has one size in all designs; else what is
    trained would not be what was priced. Raises InputError where it has several, or a rung says another.
    """
    if not any(True for _ in trained(study)):
        return study
    width = width_of(space)
    for place, rung in trained(study):
        if rung.run.get("width", width) != width:
            raise InputError(
                f"rung {place}: the input of the designs of '{space.name}' has the width {width}, and the rung says "
                f"'width: {rung.run['width']}'; leave it out."
            )
    rungs = [
        rung if callable_task(rung.task) else rung.model_copy(update={"run": {**rung.run, "width": width}})
        for rung in study.rungs
    ]
    return study.model_copy(update={"rungs": tuple(rungs)})


def width_of(space: Space) -> int:
    """The size of the leg of the designs' input. Raises InputError where it varies, or where a base is no layer."""
    found = {name: _input_leg(name, data) for name, data in space.bases.items()}
    widths: dict[int, str] = {}
    for name, (leg, size) in found.items():
        sizes = [int(space.legs[leg][place]) for place in range(len(space.legs[leg]))] if leg in space.legs else [size]
        if len(sizes) > 1:
            raise InputError(
                f"leg '{leg}' of '{name}' is the width of the model, which no move changes: give it one size in the "
                f"space '{space.name}', e.g. '{leg}: {sizes[0]}'."
            )
        widths.setdefault(sizes[0], f"leg '{leg}' of '{name}'")
    if len(widths) > 1:
        told = ", ".join(f"{size} on {where}" for size, where in widths.items())
        raise InputError(
            f"the bases of the space '{space.name}' differ in the width of the model: {told}; give all one."
        )
    return next(iter(widths))


def _input_leg(name: str, data: Mapping[str, Any]) -> tuple[str, int]:
    """The leg of a base's first input that runs along no sequence, and its size."""
    graph = build(compiler.load(dict(data)))
    inputs = graph.of_role("input")
    legs = [leg for leg in inputs[0].legs if graph.leg[leg].size is not None] if inputs else []
    if len(legs) != 1 or len(inputs[0].legs) != 2:
        raise InputError(
            f"base '{name}' is no layer of a model: its input has a sequence leg and then its width, e.g. n f."
        )
    return legs[0], int(graph.leg[legs[0]].size or 0)
