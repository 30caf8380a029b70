"""What a graph's text has declared so far, and the parts of a line that speak of it: legs, uses, arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from tensornet_attn.errors import nearest
from tensornet_attn.ir.arithmetic import Arith, names, parse
from tensornet_attn.ir.steps import Function, Step, Tensor, Use
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.spec.expression import CallText, parse_call
from tensornet_attn.spec.names import identifier_problem, tensor_problem
from tensornet_attn.spec.sizes import Leg

T = TypeVar("T")
Span = tuple[int, int]
WORD = r"[A-Za-z]\w*"
USE = rf"({WORD}(?:\.{WORD})*)\[([^\[\]]*)\]"
_USE = re.compile(USE, re.ASCII)


@dataclass
class Names:
    """Names declared so far."""

    legs: dict[str, Leg] = field(default_factory=dict)
    settings: dict[str, int | float] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)

    def new_number(self, name: str, span: Span) -> str:
        """Legs and settings share one namespace."""
        return _fresh(name, identifier_problem(name), span, name in self.legs or name in self.settings)

    def new_tensor(self, text: str) -> tuple[str, tuple[str, ...]]:
        """`A.of[h n m]`, declared: tensors and steps share the other namespace; nested steps have dots."""
        name = text.partition("[")[0]
        first, *inner = name.split(".")
        problem = tensor_problem(first) or next(filter(None, map(identifier_problem, inner)), None)
        _fresh(name, problem, (0, len(name)), name in self.tensors or name in self.steps)
        legs = shifted(text[len(name) + 1 : -1], len(name) + 1, self.legs_of)
        if len(set(legs)) < len(legs):
            refuse("leg-twice", f"a leg stands twice on '{name}'.", "", (0, len(text)))
        return name, legs

    def legs_of(self, text: str) -> tuple[str, ...]:
        for name in text.split():
            if name not in self.legs:
                place = text.index(name)
                refuse(
                    "unknown-leg",
                    f"there is no leg '{name[:64]}'.",
                    nearest(name, self.legs),
                    (place, place + len(name)),
                )
        return tuple(text.split())

    def leg(self, text: str) -> str:
        legs = self.legs_of(text)
        return legs[0] if len(legs) == 1 else refuse("syntax", "one leg is wanted here.", "", (0, len(text)))

    def use(self, text: str) -> Use:
        """`A.of[h n m]`, used."""
        match = _USE.fullmatch(text)
        if match is None:
            refuse("syntax", "a use such as 'Q[n h d]' is wanted here.", "", (0, len(text)))
        name = match[1]
        stored = self.tensors.get(name) or self.steps.get(name)
        if stored is None:
            known = [*self.tensors, *self.steps]
            refuse(
                "unknown-name",
                f"there is no tensor or step '{name}' before this line.",
                nearest(name, known),
                match.span(1),
            )
        legs = shifted(match[2], match.start(2), self.legs_of)
        if len(legs) != len(stored.legs) or len(set(legs)) < len(legs):
            refuse(
                "leg-count",
                f"'{name}' has {len(stored.legs)} different legs.",
                f"e.g. '{name}[{' '.join(stored.legs)}]'.",
                match.span(),
            )
        return Use(name, legs)

    def number(self, text: str) -> Arith:
        tree = parse(text)
        for name in names(tree):
            if name.name not in self.legs and name.name not in self.settings:
                known = [*self.legs, *self.settings]
                refuse(
                    "unknown-leg", f"there is no leg or setting '{name.name}'.", nearest(name.name, known), name.span
                )
        return tree

    def function(self, text: str, known: dict[str, tuple[int, ...]]) -> Function:
        """A map, mask or initialiser; `known` gives the numbers of arguments."""
        call = parse_call(text)
        if call.name not in known:
            refuse("unknown-value", f"'{call.name}' is not known here.", nearest(call.name, known), (0, len(call.name)))
        if len(call.arguments) not in known[call.name]:
            wanted = " or ".join(map(str, known[call.name]))
            refuse(
                "arguments", f"arguments of '{call.name}': {wanted} wanted, {len(call.arguments)} given.", "", call.span
            )
        return self._function(call)

    def _function(self, call: CallText) -> Function:
        empty = next((part for part in call.arguments if isinstance(part, CallText) and not part.arguments), None)
        if empty is not None:
            refuse("arguments", f"'{empty.name}' has no arguments here.", "", empty.span)
        for name in (name for part in call.arguments if not isinstance(part, CallText) for name in names(part)):
            if name.name not in self.legs and name.name not in self.settings:
                refuse("unknown-leg", f"there is no leg or setting '{name.name}'.", "", name.span)
        return Function(call.name, tuple(self._function(p) if isinstance(p, CallText) else p for p in call.arguments))


def shifted(text: str, start: int, read: Callable[[str], T]) -> T:
    """Reads a part of a text; refusals speak of places in the whole."""
    try:
        return read(text)
    except Refusal as refusal:
        first, last = refusal.span or (0, len(text))
        refusal.span = (first + start, last + start)
        raise


def refuse(code: str, message: str, hint: str = "", span: Span | None = None) -> NoReturn:
    raise Refusal(code, message, hint, span)


def _fresh(name: str, problem: tuple[str, str] | None, span: Span, taken: bool) -> str:
    if problem is not None:
        refuse("name", *problem, span)
    if taken:
        refuse("name-taken", f"'{name}' is declared already.", "rename one of them.", span)
    return name
