"""Wires of a sketch: all the places a leg reaches from one place, through steps and tensors, up to where it is cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensornet_attn.graph.model import Use
from tensornet_attn.ops import OPS
from tensornet_attn.search.sketch import Legs, Nowhere, Sketch, need
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
    at_slot: dict[Slot, list[tuple[str, str]]] = {}
    at_inner: dict[tuple[str, str], list[Slot]] = {}
    for step in sketch.step.values():
        attached = (use for use in step.op.uses if (step.name, use.name) not in cut)
        for name, legs in ((step.name, step.legs), *((use.name, use.legs) for use in attached)):
            for position, leg in enumerate(legs):
                at_slot.setdefault((name, position), []).append((step.name, leg))
                at_inner.setdefault((step.name, leg), []).append((name, position))
    slots, inner, waiting = set[Slot](), set[tuple[str, str]](), list(starts)
    while waiting:
        slot = waiting.pop()
        if slot not in slots:
            slots.add(slot)
            fresh = [pair for pair in at_slot.get(slot, ()) if pair not in inner]
            inner.update(fresh)
            waiting += [other for pair in fresh for other in at_inner[pair]]
    return Wire(frozenset(slots), frozenset(inner))


def slot_of(sketch: Sketch, use: Use, leg: str) -> Slot:
    """The slot that a leg of a use hangs on."""
    return use.name, use.legs.index(leg)


def free(sketch: Sketch, *found: Wire) -> bool:
    """Whether a move may change these wires: no input, no state, no sequence is on them."""
    owners = (sketch.tensors.get(name) for one in found for name in one.owners)
    return not any(made is not None and made.role in FIXED for made in owners)


def relabel(sketch: Sketch, *changes: tuple[Wire, Legs]) -> None:
    """Puts other legs in place of each wire's. Raises Nowhere where a box acts along one and cannot any more.

    A use has the new legs where its slot is on the wire, also where the wire is cut right after it.
    """
    boxes = [(step.name, step.box) for step in sketch.step.values() if step.box is not None]
    acting = {(name, leg) for name, box in boxes for leg in (box.leg, box.other)}
    if any(len(new) != 1 and found.inner & acting for found, new in changes):
        raise Nowhere
    known = {name: size for name, size in sketch.sizes.items() if size is not None}
    for name, box in boxes:  # none may choose more than there will be
        news = [new[0] for found, new in changes if new and (name, box.leg) in found.inner]
        need(not OPS[box.kind].selects or all(evaluate(box.number("k"), known) <= sketch.size(new) for new in news))
    slots = {slot: new for found, new in changes for slot in found.slots}
    inner = {pair: new[0] for found, new in changes if new for pair in found.inner}

    def change(name: str, legs: Legs) -> Legs:
        made = tuple(new for position, leg in enumerate(legs) for new in slots.get((name, position), (leg,)))
        need(len({*made}) == len(made))
        return made

    for name, box in boxes:
        leg, other = (one and inner.get((name, one), one) for one in (box.leg, box.other))
        sketch.rebox(name, leg=leg, other=other)
    sketch.change_legs(change)


def grow(sketch: Sketch, names: Iterable[str], leg: str) -> None:
    """Puts one more leg, at the end, on each of these tensors and steps and on all their uses."""
    more = frozenset(names)
    sketch.change_legs(lambda name, legs: (*legs, leg) if name in more else legs)
