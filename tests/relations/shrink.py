"""Shrinks a design that breaks a relation: parts are removed, and sizes made small, as long as it stays broken."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.random_text import ROLES
from tests.relations.edits import valid
from tests.relations.text import USE, Data, Sum, legs_of, normal_form, pruned, sized_legs, slots, sum_of

Change = Callable[[Data], None]
OPTIONAL = (
    "mask",
    "scale",
    "sink",
    "eps",
    "normalize",
    "decay",
    "by",
    "erase",
    "erase_undecayed",
    "write",
    "positions",
)
OPTIONAL += ("base", "fraction", "interleaved", "rope_type", "fill", "groups", "k_groups", "init", "std", "frozen")


def shrunk(data: Data, broken: Callable[[Data], bool], attempts: int = 400) -> Data:
    """The smallest design that a greedy search finds and that is still broken; `attempts` bounds the trials."""
    data, place, unchanged = normal_form(data), 0, 0
    while attempts > 0:
        candidates = list(smaller(data))
        if unchanged >= len(candidates):
            break
        candidate = candidates[place % len(candidates)]
        smaller_one = weight(candidate) < weight(data) and valid(candidate)
        attempts -= smaller_one
        if smaller_one and broken(candidate):
            data, unchanged = candidate, 0
        else:
            place, unchanged = place + 1, unchanged + 1
    return data


def weight(data: Data) -> tuple[int, int, int]:
    """What a smaller design has less of: words, the sum of the sizes, and steps before the output."""
    words = re.findall(r"\w+", str({key: value for key, value in data.items() if key != "name"}))
    before = [*data["inputs"], *data["diagram"]].index(data["output"])
    return len(words), sum(int(word) for word in re.findall(r"\d+", str(data["legs"]))), before


def smaller(data: Data) -> Iterator[Data]:
    """The design after each change that removes something, the largest changes first."""
    for change in [*outputs(data), *cuts(data), *names(data), *legs(data), *parts(data), *numbers(data)]:
        candidate = copy.deepcopy(data)
        change(candidate)
        try:
            candidate = pruned(candidate)
        except RecursionError:
            continue
        if candidate["diagram"]:
            yield candidate


def outputs(data: Data) -> Iterator[Change]:
    """An earlier step is the output; a loss or a state is gone."""
    for step in data["diagram"]:
        if step != data["output"]:
            yield lambda data, step=step: data.update(output=step)
    for section in ("losses", "state", "noise", "constants"):
        for name in data.get(section, {}):
            yield lambda data, section=section, name=name: removed(data, section, name)
    if data.get("causal") is not None:
        yield lambda data: data.pop("causal")


def removed(data: Data, section: str, name: str) -> None:
    """Without a declaration; a tensor is a weight instead, or an input if it has a leg of the sequence."""
    value = data[section].pop(name)
    if section != "losses":
        legs = value["legs"]
        declared(data, name, legs)


def declared(data: Data, name: str, legs: list[str]) -> None:
    role = "weights" if {*legs} <= {*sized_legs(data)} else "inputs"
    data.setdefault(role, {})[name] = {"legs": legs}


def cuts(data: Data) -> Iterator[Change]:
    """A step is an input or a weight."""
    for name in list(data["diagram"])[::-1]:
        legs = legs_of(data, data["diagram"][name])
        if legs is not None and name != data["output"]:

            def cut(data: Data, name: str = name, legs: list[str] = legs) -> None:
                del data["diagram"][name]
                declared(data, name, legs)

            yield cut


def names(data: Data) -> Iterator[Change]:
    """A step that is another by name is that other; an input has no default."""
    for name, value in data["diagram"].items():
        match = USE.fullmatch(str(value).partition("->")[0].strip())
        if match and match[2].split() == legs_of(data, value) == legs_of(data, match[1]):
            yield lambda data, name=name, other=match[1]: renamed(data, name, other)
    for name, value in data["inputs"].items():
        if "default" in value:
            yield lambda data, name=name: data["inputs"][name].pop("default")


def renamed(data: Data, name: str, other: str) -> None:
    del data["diagram"][name]
    data["output"] = other if data["output"] == name else data["output"]
    for slot in slots(data):
        if isinstance(slot.value, str):
            text = other if slot.value == name else re.sub(rf"\b{name}(?=\[)", other, slot.value)
            slot.holder[slot.key] = text


def legs(data: Data) -> Iterator[Change]:
    """A leg is gone from every tensor, box and product."""
    for leg in sized_legs(data):
        yield lambda data, leg=leg: without(data, leg)


def without(data: Data, leg: str) -> None:
    def kept(text: str) -> str:
        return " ".join(word for word in text.split() if word != leg)

    for role in ROLES:
        for value in data.get(role, {}).values():
            value["legs"] = [own for own in value["legs"] if own != leg]
    for slot in list(slots(data)):
        if isinstance(slot.value, str):
            left, arrow, right = USE.sub(lambda match: f"{match[1]}[{kept(match[2])}]", slot.value).partition("->")
            slot.holder[slot.key] = f"{left}-> {kept(right)}".rstrip() if arrow else left
    for slot in [slot for slot in slots(data) if isinstance(slot.value, dict)][::-1]:
        kind, along = next(iter(slot.value.items()))
        if isinstance(along, list) and leg in along:
            rest = [own for own in along if own != leg]
            slot.value[kind] = rest[0] if len(rest) == 1 else rest
        elif along == leg and "of" in slot.value:
            slot.holder[slot.key] = slot.value["of"]


def parts(data: Data) -> Iterator[Change]:
    """A box is its operand, or lacks a parameter; a sum lacks a term, a product a factor or its coefficient."""
    for place, slot in enumerate(slots(data)):
        value = slot.value
        if isinstance(value, dict):
            if "of" in value:
                yield at(place, lambda value: value["of"])
            for key in (key for key in OPTIONAL if key in value):
                yield at(place, lambda value, key=key: {name: own for name, own in value.items() if name != key})
            for mask in masks(value.get("mask")):
                yield at(place, lambda value, mask=mask: value | {"mask": mask})
        elif "->" in str(value):
            expression = sum_of(value)
            for i, term in enumerate(expression.terms):
                fewer = [*expression.terms[:i], *expression.terms[i + 1 :]]
                if fewer:
                    yield written(place, expression._replace(terms=fewer))
                for less in lighter(term):
                    terms = [*expression.terms[:i], less, *expression.terms[i + 1 :]]
                    yield written(place, expression._replace(terms=terms))


def at(place: int, change: Callable[[Any], Any]) -> Change:
    """The change of one value of the diagram, by its place among all of them."""

    def changed(data: Data) -> None:
        slot = list(slots(data))[place]
        slot.holder[slot.key] = change(slot.value)

    return changed


def written(place: int, expression: Sum) -> Change:
    return at(place, lambda _: str(expression))


def masks(mask: Any) -> Iterator[Any]:
    """The parts of a mask."""
    if isinstance(mask, list) and len(mask) > 1:
        yield from ([own] for own in mask)
    texts = re.split(r" and | or |not ", str(mask)) if isinstance(mask, str) else []
    yield from (part.strip("() ") + ")" * ("(" in part.strip("() ")) for part in texts if len(texts) > 1 and part)


def lighter(term: str) -> Iterator[str]:
    """A term without its coefficient, or without one of its factors."""
    uses = [match[0] for match in USE.finditer(term)]
    if uses and term != f"+ {' '.join(uses)}":
        yield f"+ {' '.join(uses)}"
    for i in range(len(uses) if len(uses) > 1 else 0):
        yield f"+ {' '.join([*uses[:i], *uses[i + 1 :]])}"


def numbers(data: Data) -> Iterator[Change]:
    """A leg has a smaller size; a head leg is a plain one."""
    for leg in data["legs"]:
        size = str(data["legs"][leg])
        for less in ("1", "2", size.removeprefix("head ").removeprefix("shared "), re.sub(r" \d+$", "", size)):
            smaller_one = int(less) if less.isdigit() else less
            if str(smaller_one) != size and (leg in sized_legs(data) or less in ("query", "key", "relative")):
                yield lambda data, leg=leg, size=smaller_one: data["legs"].update({leg: size})
    for name, value in data.get("weights", {}).items():
        if len(value) > 1:
            yield lambda data, name=name: data["weights"].update({name: {"legs": data["weights"][name]["legs"]}})
