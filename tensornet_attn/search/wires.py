"""Wires of a sketch: all the places a leg reaches from one place, through steps and tensors, up to where it is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tensornet_attn.graph.model import Box, Step, Use
from tensornet_attn.search.sketch import Declared, Sketch, on_uses
from tensornet_attn.spec.arithmetic import evaluate

Slot = tuple[str, int]  # a leg of a tensor or step, by its position
Cut = frozenset[tuple[str, str]]  # (step, operand): the wire does not go on from this operand into this step
FIXED = ("inputs", "state")  # what a move never changes the legs of


@dataclass(frozen=True)
class Wire:
    """The slots that hang together; `inner`: the (step, leg) pairs in which they do."""

    slots: frozenset[Slot]
    inner: frozenset[tuple[str, str]]

    @property
    def owners(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.slots)


def wire(sketch: Sketch, starts: Iterable[Slot], cut: Cut = frozenset()) -> Wire:
    """The wire through these slots."""
    at_slot, at_inner = _links(sketch, cut)
    slots, inner = set[Slot](), set[tuple[str, str]]()
    waiting = list(starts)
    while waiting:
        slot = waiting.pop()
        if slot not in slots:
            slots.add(slot)
            fresh = [pair for pair in at_slot.get(slot, ()) if pair not in inner]
            inner.update(fresh)
            waiting += [other for pair in fresh for other in at_inner[pair]]
    return Wire(frozenset(slots), frozenset(inner))


def _links(sketch: Sketch, cut: Cut) -> tuple[dict[Slot, list[tuple[str, str]]], dict[tuple[str, str], list[Slot]]]:
    at_slot: dict[Slot, list[tuple[str, str]]] = {}
    at_inner: dict[tuple[str, str], list[Slot]] = {}
    for step in sketch.steps:
        for name, legs in _attached(step, cut):
            for position, leg in enumerate(legs):
                at_slot.setdefault((name, position), []).append((step.name, leg))
                at_inner.setdefault((step.name, leg), []).append((name, position))
    return at_slot, at_inner


def _attached(step: Step, cut: Cut) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield step.name, step.legs
    yield from ((use.name, use.legs) for use in step.op.uses if (step.name, use.name) not in cut)


def slot_of(sketch: Sketch, use: Use, leg: str) -> Slot:
    """The slot that a leg of a use hangs on."""
    return use.name, use.legs.index(leg)


def free(sketch: Sketch, found: Wire) -> bool:
    """Whether a move may change this wire: no input, no state, no sequence is on it."""
    tensors = (sketch.tensors.get(name) for name in found.owners)
    return not any(made is not None and made.role in FIXED for made in tensors)


def relabel(sketch: Sketch, *changes: tuple[Wire, tuple[str, ...]]) -> Sketch | None:
    """The sketch with other legs in place of each wire's; None where a box acts along one and cannot any more.

    A use has the new legs where its slot is on the wire, also where the wire is cut right after it.
    """
    boxes = [step for step in sketch.steps if isinstance(step.op, Box)]
    acting = {(step.name, leg) for step in boxes for leg in (step.op.leg, step.op.other)}  # type: ignore[union-attr]
    if any(len(new) != 1 and found.inner & acting for found, new in changes):
        return None
    if any(_starves(sketch, found, new[0]) for found, new in changes if new):
        return None
    slots = {slot: new for found, new in changes for slot in found.slots}
    inner = {pair: new[0] for found, new in changes if new for pair in found.inner}
    tensors = {name: replace(made, legs=_swapped(name, made.legs, slots)) for name, made in sketch.tensors.items()}
    steps = tuple(_relabelled(step, slots, inner) for step in sketch.steps)
    twice = (*(made.legs for made in tensors.values()), *_all_legs(steps))
    if any(len(set(legs)) < len(legs) for legs in twice):
        return None
    return replace(sketch, tensors=tensors, steps=steps)


def _starves(sketch: Sketch, found: Wire, leg: str) -> bool:
    """Whether a topk along the wire would choose more than the new leg has."""
    known = {name: size for name, size in sketch.sizes.items() if size is not None}
    chosen = [
        evaluate(step.op.number("k"), known)
        for step in sketch.steps
        if isinstance(step.op, Box) and step.op.kind == "topk" and (step.name, step.op.leg) in found.inner
    ]
    return any(count > sketch.size(leg) for count in chosen)


def _all_legs(steps: tuple[Step, ...]) -> Iterator[tuple[str, ...]]:
    for step in steps:
        yield step.legs
        yield from (use.legs for use in step.op.uses)


def _swapped(name: str, legs: tuple[str, ...], slots: Mapping[Slot, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(new for position, leg in enumerate(legs) for new in slots.get((name, position), (leg,)))


def _relabelled(step: Step, slots: Mapping[Slot, tuple[str, ...]], inner: Mapping[tuple[str, str], str]) -> Step:
    step = on_uses(step, lambda use: Use(use.name, _swapped(use.name, use.legs, slots)))
    legs = _swapped(step.name, step.legs, slots)
    if not isinstance(step.op, Box):
        return replace(step, legs=legs)
    leg, other = (name and inner.get((step.name, name), name) for name in (step.op.leg, step.op.other))
    return replace(step, legs=legs, op=replace(step.op, leg=leg, other=other))


def grown(sketch: Sketch, names: Iterable[str], leg: str) -> Sketch:
    """The sketch with one more leg, at the end, on each of these tensors and steps and on all their uses."""
    grow = frozenset(names)
    tensors = {
        name: Declared(made.role, (*made.legs, leg), made.rest) if name in grow else made
        for name, made in sketch.tensors.items()
    }

    def use(old: Use) -> Use:
        return Use(old.name, (*old.legs, leg)) if old.name in grow else old

    steps = (on_uses(step, use) for step in sketch.steps)
    whole = tuple(replace(step, legs=(*step.legs, leg)) if step.name in grow else step for step in steps)
    return replace(sketch, tensors=tensors, steps=whole)
