"""Designs as plain data: boxes, sums of products and uses of tensors, found and written again."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensornet_attn as ta
from tests.random_text import OPERANDS, ROLES, legs_in, spoken

Data = dict[str, Any]
USE = re.compile(r"([A-Za-z]\w*)\[([^\]]*)\]")
REDUCTIONS = ("sum", "mean", "max", "logsumexp")


class Slot(NamedTuple):
    """Where a value of the diagram stands: `holder[key]` is an expression, a use, a name or a box."""

    holder: Data
    key: str
    step: str

    @property
    def value(self) -> Any:
        return self.holder[self.key]


class Sum(NamedTuple):
    """A sum of products, each with its sign, and the legs of the result."""

    terms: list[str]
    legs: list[str]

    def __str__(self) -> str:
        first, *rest = self.terms
        return f"{first.removeprefix('+ ')}{''.join(f' {term}' for term in rest)} -> {' '.join(self.legs)}".rstrip()


def sum_of(text: str) -> Sum:
    """The terms of an expression: `a[h] - 2 * b[h] -> h` has `+ a[h]` and `- 2 * b[h]`."""
    left, _, legs = text.rpartition("->")
    depth, terms, current = 0, [], ""
    for letter in f"+ {left.strip()}":
        depth += (letter in "([") - (letter in ")]")
        starts = letter in "+-" and depth == 0 and (not current or current[-1] == " ")
        if starts and current.strip(" +-"):
            terms.append(current.strip())
            current = ""
        current += letter
    return Sum([*terms, current.strip()], legs.split())


def normal_form(data: Data) -> Data:
    """A copy in which every tensor is a mapping with its legs as a list."""
    data = copy.deepcopy(data)
    for role in ROLES:
        for name, value in data.get(role, {}).items():
            value = dict(value) if isinstance(value, dict) else {"legs": value}
            legs = value["legs"]
            data[role][name] = value | {"legs": legs.split() if isinstance(legs, str) else list(legs)}
    return data


def slots(data: Data) -> Iterator[Slot]:
    """Every place of the diagram that holds a value, steps first."""
    waiting = [Slot(data["diagram"], name, name) for name in data["diagram"]]
    while waiting:
        slot = waiting.pop(0)
        yield slot
        if isinstance(slot.value, dict):
            keys = [key for key in (*OPERANDS, "sink", "positions") if key in slot.value]
            waiting += [Slot(slot.value, key, slot.step) for key in keys]


def legs_of(data: Data, value: Any) -> list[str] | None:
    """The legs of a value of the diagram, None where its text does not say."""
    if isinstance(value, dict):
        kind, leg = next(iter(value.items()))
        if "of" not in value or kind in ("cumsum", "scan", "conv", "rel_shift"):
            return None
        legs = legs_of(data, value["of"])
        summed = leg if isinstance(leg, list) else [leg]
        return [name for name in legs if kind not in REDUCTIONS or name not in summed] if legs is not None else None
    text = str(value)
    if "->" in text:
        return sum_of(text).legs
    if match := USE.fullmatch(text):
        return match[2].split()
    for role in ROLES:
        if text in data.get(role, {}):
            return list(data[role][text]["legs"])
    return legs_of(data, data["diagram"][text]) if text in data["diagram"] else None


def readers(data: Data, name: str) -> int:
    """How many values of the diagram name this tensor or step."""
    return sum(
        len(re.findall(rf"\b{re.escape(name)}\b(?=\[)", str(slot.value))) + (slot.value == name)
        for slot in slots(data)
        if not isinstance(slot.value, dict)
    )


def pruned(data: Data) -> Data:
    """Without steps that reach neither the output nor a loss or a state, nor tensors and legs that nothing reads."""
    needed = {data["output"]}
    needed |= {value.get("step", name) if isinstance(value, dict) else name for name, value in losses(data).items()}
    steps = data["diagram"]
    while True:
        states = {name: value for name, value in data.get("state", {}).items() if name in needed}
        more = needed | {value["update"] for value in states.values()}
        more |= {name for step in more & steps.keys() for name in spoken(steps[step])}
        if more == needed:
            break
        needed = more
    data["diagram"] = {name: value for name, value in steps.items() if name in needed}
    for role in ROLES:
        section = {name: value for name, value in data.pop(role, {}).items() if name in needed}
        data |= {role: section} if section or role == "inputs" else {}
    tensors = [value for role in ROLES for value in data.get(role, {}).values()]
    words = legs_in(data["diagram"]).union(*(value["legs"] for value in tensors))
    words |= set(re.findall(r"[A-Za-z]\w*", str([tensors, data["diagram"], data.get("losses")])))
    while True:
        sizes = " ".join(str(size) for leg, size in data["legs"].items() if leg in words)
        sizes += " ".join(str(value) for name, value in data.get("settings", {}).items() if name in words)
        if set(re.findall(r"[A-Za-z]\w*", sizes)) <= words:
            break
        words |= set(re.findall(r"[A-Za-z]\w*", sizes))
    for section in ("legs", "settings"):
        if section in data:
            data[section] = {name: value for name, value in data[section].items() if name in words}
    return data


def losses(data: Data) -> Data:
    return data.get("losses", {})


def fresh(data: Data, stem: str) -> str:
    """A name that the design does not use."""
    words = set(re.findall(r"\w+", str(data)))
    return next(name for number in range(999) if (name := f"{stem}{number}") not in words)


def legs_of_kind(data: Data, kind: str) -> list[str]:
    """The names of the query leg, the key leg or the relative legs."""
    return [leg for leg, size in data["legs"].items() if str(size).split()[0] == kind]


def sized_legs(data: Data) -> list[str]:
    return [leg for leg, size in data["legs"].items() if str(size).split()[0] not in ("query", "key", "relative")]


def compact(data: Data) -> str:
    """The design as YAML, with the legs of a tensor on its line."""
    data = copy.deepcopy(data)
    for role in ROLES:
        for value in data.get(role, {}).values():
            value["legs"] = " ".join(value["legs"]) or []
    return ta.load(data).to_yaml()
