"""Designs that are equal at their sizes although their diagrams differ: a leg of size 1 is no leg."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tensornet_attn import compiler
from tensornet_attn.errors import DesignError
from tensornet_attn.graph.model import Box, Use
from tensornet_attn.search.sketch import Sketch
from tensornet_attn.search.wires import FIXED
from tensornet_attn.search.write import data_of, on_uses

KEPT = (*FIXED, "constants", "noise")  # what has the legs that its values were declared with


def essence(sketch: Sketch, own: str) -> str:
    """The canonical hash of a design without its legs of size 1; `own`, its own hash, where it has none to leave out.

    So grouped queries with one group are multi-query attention, and with one query a group multi-head attention.
    """
    gone = {leg for leg, size in sketch.sizes.items() if size == 1 and leg in sketch.declared}
    if not gone or gone & _needed(sketch):
        return own
    try:
        return compiler.load(data_of(_without(sketch, gone))).hash
    except DesignError:  # an initialiser such as kron speaks of the leg
        return own


def _needed(sketch: Sketch) -> set[str]:
    """Legs that a box acts along, or that a tensor stands on whose legs are fixed."""
    boxes = [step.op for step in sketch.steps if isinstance(step.op, Box)]
    acting = {leg for box in boxes for leg in (box.leg, box.other) if leg is not None}
    return acting | {leg for made in sketch.tensors.values() if made.role in KEPT for leg in made.legs}


def _without(sketch: Sketch, gone: set[str]) -> Sketch:
    def left(legs: Iterable[str]) -> tuple[str, ...]:
        return tuple(leg for leg in legs if leg not in gone)

    tensors = {name: replace(made, legs=left(made.legs)) for name, made in sketch.tensors.items()}
    steps = (on_uses(step, lambda use: Use(use.name, left(use.legs))) for step in sketch.steps)
    return replace(sketch, tensors=tensors, steps=tuple(replace(step, legs=left(step.legs)) for step in steps))
