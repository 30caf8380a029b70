"""Reads the right side of a step in a graph's text: a sum of products, a box, or fused attention."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from tensornet_attn.errors import nearest
from tensornet_attn.graph.boxes import MASKS
from tensornet_attn.graph.read_names import USE, Names, refuse, shifted
from tensornet_attn.ir.arithmetic import ONE, Arith, Negative
from tensornet_attn.ir.steps import Attention, Box, Contraction, Function, Term, Use
from tensornet_attn.ops import MAPS, OPS
from tensornet_attn.ops.model import BOXES

T = TypeVar("T")

_BOX = re.compile(r"([a-z]\w*)\((.*)\)", re.ASCII)
_OPERAND = re.compile(rf"(?:([a-z]+) )?({USE})", re.ASCII)
_SIGN = re.compile(r"\s*([+-])\s*")
_FACTOR = re.compile(rf"\s*({USE})", re.ASCII)
_NUMBER = re.compile(r"[0-9][0-9.]*(?:e[+-]?[0-9]+)?")
_TIMES = re.compile(r"\s*\*\s*")


def read_operation(text: str, known: Names) -> Contraction | Box | Attention:
    """What stands after `=`. Raises Refusal."""
    box = _BOX.fullmatch(text)
    return read_sum(text, known) if box is None else read_box(box[1], box[2], known)


def read_sum(text: str, known: Names) -> Contraction:
    """`-0.5 * K[m d] K[m d] + (d ** -0.5) * Q[n d] + 1`."""
    terms: list[Term] = []
    place = 0
    while place < len(text):
        sign = _SIGN.match(text, place)
        if sign is None and terms:
            refuse("syntax", "'+' or '-' is wanted here.", "", (place, place + 1))
        value, factors, place = _term(text, sign.end() if sign is not None else place, known)
        terms.append(Term(Negative(value) if sign is not None and sign[1] == "-" else value, factors))
    return Contraction(tuple(terms))


def _term(text: str, place: int, known: Names) -> tuple[Arith, tuple[Use, ...], int]:
    """A coefficient, the factors, and where they end."""
    end = _coefficient_end(text, place)
    value = shifted(text[place:end], place, known.number) if end > place else ONE
    times = _TIMES.match(text, end) if end > place else None
    if times is None and end > place:
        return value, (), end
    place = times.end() if times is not None else place
    factors = []
    while (match := _FACTOR.match(text, place)) is not None:
        factors.append(shifted(match[1], match.start(1), known.use))
        place = match.end()
    if not factors:
        refuse("syntax", "a tensor such as 'x[n f]' is wanted here.", "", (place, place + 1))
    return value, tuple(factors), place


def _coefficient_end(text: str, place: int) -> int:
    """Where a number, or arithmetic in parentheses, ends; `place` where none stands there."""
    number = _NUMBER.match(text, place)
    if number is not None or not text.startswith("(", place):
        return number.end() if number is not None else place
    depth = 0
    for end in range(place, len(text)):
        depth += (text[end] == "(") - (text[end] == ")")
        if depth == 0:
            return end + 1
    return refuse("syntax", "this parenthesis is not closed.", "", (place, place + 1))


def read_box(kind: str, inside: str, known: Names) -> Box | Attention:
    """`softmax(S[h n m]; over m; scale 1; dropout 0)`: a kind, and what stands between its parentheses."""
    if kind not in BOXES and kind != "attention":
        refuse("unknown-box", f"there is no box '{kind}'.", nearest(kind, BOXES), (0, len(kind)))
    place, parts = len(kind) + 1, _Parts(known)
    for piece in inside.split(";"):
        shifted(piece.strip(), place + len(piece) - len(piece.lstrip()), parts.take)
        place += len(piece) + 1
    return parts.attention() if kind == "attention" else parts.box(kind)


class _Parts:
    """The parts of one box, collected: operands by role, numbers, masks, and words such as `over m`."""

    def __init__(self, known: Names):
        self.known = known
        self.operands: dict[str, Use] = {}
        self.numbers: dict[str, Arith] = {}
        self.masks: list[Function] = []
        self.words: dict[str, Any] = {}
        self.readers: dict[str, Callable[[str], Any]] = {
            **dict.fromkeys(("over", "along", "to"), known.leg),
            **dict.fromkeys(_numbers(), known.number),
            "map": self.map,
            "mask": self.mask,
            "normalize": _mode,
            "scores": known.legs_of,
            "steps": _steps,
        }

    def take(self, text: str) -> None:
        match = _OPERAND.fullmatch(text)
        if match is not None:
            _hoisted(self.operands, match[1] or "of", shifted(match[2], match.start(2), self.known.use))
            return
        word, _, rest = text.partition(" ")
        if word not in self.readers:
            refuse("unknown-key", f"'{word[:64]}' is no part of a box.", nearest(word, self.readers), (0, len(word)))
        value = shifted(rest, len(word) + 1, self.readers[word])
        if word == "mask":
            self.masks.append(value)
        else:
            _hoisted(self.numbers if word in _numbers() else self.words, "to" if word == "along" else word, value)

    def map(self, text: str) -> Function:
        return self.known.function(text, {name: (row.arguments,) for name, row in MAPS.items()})

    def mask(self, text: str) -> Function:
        return self.known.function(text, {name: (count,) for name, count in MASKS.items()})

    def box(self, kind: str) -> Box:
        model, op = BOXES[kind], OPS[kind]
        given = (("over", op.has_leg), ("map", op.has_map), ("normalize", op.modes), ("to", model.second))
        self.check(kind, {*model.operands, *model.numbers, *(word for word, has in given if has)})
        operands, numbers, word = tuple(self.operands.items()), tuple(self.numbers.items()), self.words.get
        return Box(kind, word("over"), operands, numbers, tuple(self.masks), word("to"), word("map"), word("normalize"))

    def attention(self) -> Attention:
        self.check("attention", {"query", "key", "value", "over", "scores", "scale", "dropout", "steps"})
        parts: dict[str, Any] = {**self.operands, **self.numbers, **self.words, "masks": tuple(self.masks)}
        return Attention(leg=parts.pop("over"), **parts)

    def check(self, kind: str, wanted: set[str]) -> None:
        given = {*self.operands, *self.numbers, *self.words}
        for name in sorted(wanted - given):
            refuse("missing-key", f"'{kind}' lacks '{name}'.")
        for name in sorted(given - wanted):
            refuse("unknown-key", f"'{kind}' has no '{name}'.")


def _hoisted(known: dict[str, T], key: str, value: T) -> None:
    if key in known:
        refuse("duplicate-key", f"'{key}' is given twice.")
    known[key] = value


def _steps(text: str) -> tuple[str, ...]:
    """The names of the steps that fused attention does at once; they are in the graph no more."""
    for name in text.split():
        if not re.fullmatch(r"[A-Za-z][\w.]*", name, re.ASCII):
            refuse("name", f"'{name[:64]}' is no name.", "", (0, len(text)))
    return tuple(text.split())


def _numbers() -> frozenset[str]:
    """The parameters of boxes that are numbers."""
    return frozenset(name for box in BOXES.values() for name in box.numbers)


def _mode(text: str) -> str:
    modes = dict.fromkeys(mode for op in OPS.values() for mode in op.modes)
    if text not in modes:
        refuse("value", f"'{text[:64]}' is none of {', '.join(modes)}.", "", (0, len(text)))
    return text
