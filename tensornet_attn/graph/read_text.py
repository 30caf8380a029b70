"""Reads the text form of a graph. Checks syntax and names only; `build` has checked the diagram."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar

from tensornet_attn import limits
from tensornet_attn.errors import DesignError, InputError, Problem, nearest
from tensornet_attn.graph.diagram import Diagram
from tensornet_attn.graph.tensors import ALLOWED
from tensornet_attn.ir.arithmetic import ONE, Arith, Negative, Number, names, parse
from tensornet_attn.ir.steps import LOGIC, Box, Contraction, Function, FusedAttention, Loss, Step, Tensor, Term, Use
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ops import MAPS, MASKS, OPS
from tensornet_attn.ops.model import BOXES
from tensornet_attn.spec.expression import CallText, parse_call, parse_mask
from tensornet_attn.spec.names import identifier_problem, tensor_problem
from tensornet_attn.spec.sizes import KINDS, Leg

T = TypeVar("T")
Match = re.Match[str]
Span = tuple[int, int]
VALUE = {
    "noise": "std",
    "constant": "value",
    "weight": "init",
    "state": "init",
}  # the word before the value of a tensor
SIZES = ("size", "maximum", "reach")

WORD = r"[A-Za-z]\w*"
USE = rf"({WORD}(?:\.{WORD})*)\[([^\[\]]*)\]"
_USE = re.compile(USE, re.ASCII)
_BOX = re.compile(r"([a-z]\w*)\((.*)\)", re.ASCII)
_MADE = ("join", "split")  # boxes that designs use without naming them
BETWEEN = ("to", "along", "by", "with")  # words before the second leg of a box
_OPERAND = re.compile(rf"(?:([a-z_]+) )?({USE})", re.ASCII)
_SIGN = re.compile(r"\s*([+-])\s*")
_FACTOR = re.compile(rf"\s*({USE})", re.ASCII)
_NUMBER = re.compile(r"[0-9][0-9.]*(?:e[+-]?[0-9]+)?")
_TIMES = re.compile(r"\s*\*\s*")

LINES = {  # the forms of a line; `take_NAME` reads each
    "graph": r"graph (\S+)( causal)?",
    "leg": rf"leg (\w+)(?: ({'|'.join(KINDS)}))?(?: (\d{{1,10}}))?((?: (?:{'|'.join(SIZES)}) \d{{1,10}})*)(?: = (.+))?",
    "setting": r"setting (\w+) = (-?[\d.][\d.e+-]{0,160})",
    "tensor": r"(input|weight|constant|noise|state) ([^\[\]\s]+\[[^\[\]]*\])( frozen)?( always)?"
    rf"(?: default ({WORD}))?(?: update (\S+))?(?: stored \(([\w, ]+)\))?(?: (std|init|value) (.+))?( finite)?",
    "step": r"([^\[\]\s]+\[[^\[\]]*\]) = (.+)",
    "loss": rf"loss ({WORD})(?: step (\S+))? = (.+)",
    "output": r"output (\S+(?: \S+)*)",
}
AnyDiagram = TypeVar("AnyDiagram", bound=Diagram)


def from_text(text: str, kind: type[AnyDiagram]) -> AnyDiagram:
    """Reads a text from `to_text`. Raises DesignError with the line, InputError if `text` is too long or not a str."""
    if not isinstance(text, str):
        raise InputError(f"expected the text of a graph, got {type(text).__name__}.")
    if len(text.encode(errors="replace")) > limits.GRAPH_BYTES:
        raise InputError(f"the text of a graph must have at most {limits.GRAPH_BYTES} bytes.")
    reader, lines = _Reader(), text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            reader.read(line.rstrip())
        except Refusal as refusal:
            raise _error(refusal, number, line) from None
    try:
        return reader.graph(kind)
    except Refusal as refusal:
        raise _error(refusal, max(1, len(lines)), lines[-1] if lines else "") from None


def standard_leg(name: str, kind: str, value: int | None, text: Arith | None) -> Leg:
    """A leg with one number: its maximum, its reach or its size, depending on its kind."""
    if kind == "relative" and value is not None:
        return Leg(name, kind, size=2 * value + 1, reach=value, text=text)
    sequence = kind in ("query", "key")
    return Leg(name, kind, maximum=value, text=text) if sequence else Leg(name, kind, size=value, text=text)


@dataclass
class Names:
    """The names declared so far."""

    legs: dict[str, Leg] = field(default_factory=dict)
    settings: dict[str, int | float] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)

    def new_number(self, name: str, span: Span) -> str:
        """Checks a new name in the namespace of legs and settings."""
        return _fresh(name, identifier_problem(name), span, name in self.legs or name in self.settings)

    def new_tensor(self, text: str) -> tuple[str, tuple[str, ...]]:
        """Reads a declaration such as `A.of[h n m]`. Tensors and steps share a namespace; nested steps have dots."""
        name = text.partition("[")[0]
        first, *inner = name.split(".")
        problem = tensor_problem(first) or next(filter(None, map(identifier_problem, inner)), None)
        _fresh(name, problem, (0, len(name)), name in self.tensors or name in self.steps)
        legs = shifted(text[len(name) + 1 : -1], len(name) + 1, self.legs_of)
        if len(set(legs)) < len(legs):
            refuse("leg-twice", f"a leg occurs twice on '{name}'.", "", (0, len(text)))
        return name, legs

    def legs_of(self, text: str) -> tuple[str, ...]:
        for name in text.split():
            if name not in self.legs:
                span = (text.index(name), text.index(name) + len(name))
                refuse("unknown-leg", f"there is no leg '{name[:64]}'.", nearest(name, self.legs), span)
        return tuple(text.split())

    def leg(self, text: str) -> str:
        legs = self.legs_of(text)
        return legs[0] if len(legs) == 1 else refuse("syntax", "expected one leg.", "", (0, len(text)))

    def use(self, text: str) -> Use:
        """Reads a use such as `A.of[h n m]`."""
        match = _USE.fullmatch(text)
        if match is None:
            refuse("syntax", "expected a use such as 'Q[n h d]'.", "", (0, len(text)))
        name = match[1]
        stored = self.tensors.get(name) or self.steps.get(name)
        if stored is None:
            message, hint = (
                f"there is no tensor or step '{name}' above this line.",
                nearest(name, self.tensors | self.steps),
            )
            refuse("unknown-name", message, hint, match.span(1))
        legs = shifted(match[2], match.start(2), self.legs_of)
        if len(legs) != len(stored.legs) or len(set(legs)) < len(legs):
            hint = f"e.g. '{name}[{' '.join(stored.legs)}]'."
            refuse("leg-count", f"'{name}' has {len(stored.legs)} different legs.", hint, match.span())
        return Use(name, legs)

    def number(self, text: str) -> Arith:
        tree = parse(text)
        for name in names(tree):
            if name.name not in self.legs and name.name not in self.settings:
                hint = nearest(name.name, [*self.legs, *self.settings])
                refuse("unknown-leg", f"there is no leg or setting '{name.name}'.", hint, name.span)
        return tree

    def function(self, text: str, known: dict[str, tuple[int, ...]]) -> Function:
        """Reads a map or an initialiser; `known` maps names to numbers of arguments."""
        return self.call(parse_call(text), known)

    def call(self, call: CallText, known: dict[str, tuple[int, ...]]) -> Function:
        """Checks a parsed map, mask or initialiser."""
        if call.name not in known:
            refuse("unknown-value", f"'{call.name}' is unknown here.", nearest(call.name, known), (0, len(call.name)))
        if len(call.arguments) not in known[call.name]:
            wanted = " or ".join(map(str, known[call.name]))
            message = f"number of arguments of '{call.name}': expected {wanted}, got {len(call.arguments)}."
            refuse("arguments", message, "", call.span)
        return self._function(call)

    def mask(self, parsed: CallText) -> Function:
        """Checks a mask or a formula of masks."""
        if parsed.name not in LOGIC:
            return self.call(parsed, {name: row.counts for name, row in MASKS.items()})
        return Function(parsed.name, tuple(self.mask(part) for part in parsed.arguments if isinstance(part, CallText)))

    def _function(self, call: CallText) -> Function:
        empty = next((part for part in call.arguments if isinstance(part, CallText) and not part.arguments), None)
        if empty is not None:
            refuse("arguments", f"'{empty.name}' needs arguments here.", "", empty.span)
        for name in (name for part in call.arguments if not isinstance(part, CallText) for name in names(part)):
            if name.name not in self.legs and name.name not in self.settings:
                refuse("unknown-leg", f"there is no leg or setting '{name.name}'.", "", name.span)
        return Function(call.name, tuple(self._function(p) if isinstance(p, CallText) else p for p in call.arguments))


def shifted(text: str, start: int, read: Callable[[str], T]) -> T:
    """Reads a part of a text; errors have locations in the whole text."""
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
        refuse("name-taken", f"'{name}' is already declared.", "rename one of them.", span)
    return name


def read_operation(text: str, known: Names) -> Contraction | Box | FusedAttention:
    """Reads the operation after `=`. Raises Refusal if it is invalid."""
    box = _BOX.fullmatch(text)
    return read_sum(text, known) if box is None else read_box(box[1], box[2], known)


def read_sum(text: str, known: Names) -> Contraction:
    """Reads a sum such as `-0.5 * K[m d] K[m d] + (d ** -0.5) * Q[n d] + 1`."""
    terms: list[Term] = []
    place = 0
    while place < len(text):
        sign = _SIGN.match(text, place)
        if sign is None and terms:
            refuse("syntax", "expected '+' or '-'.", "", (place, place + 1))
        value, factors, place = _term(text, sign.end() if sign is not None else place, known)
        terms.append(Term(Negative(value) if sign is not None and sign[1] == "-" else value, factors))
    return Contraction(tuple(terms))


def _term(text: str, place: int, known: Names) -> tuple[Arith, tuple[Use, ...], int]:
    """(coefficient, factors, end) of a term."""
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
        refuse("syntax", "expected a tensor such as 'x[n f]'.", "", (place, place + 1))
    return value, tuple(factors), place


def _coefficient_end(text: str, place: int) -> int:
    """The end of the number or the parentheses at `place`; `place` itself if there are none."""
    number = _NUMBER.match(text, place)
    if number is not None or not text.startswith("(", place):
        return number.end() if number is not None else place
    depth = 0
    for end in range(place, len(text)):
        depth += (text[end] == "(") - (text[end] == ")")
        if depth == 0:
            return end + 1
    return refuse("syntax", "this parenthesis is not closed.", "", (place, place + 1))


def read_box(kind: str, inside: str, known: Names) -> Box | FusedAttention:
    """Reads a box such as `softmax(S[h n m]; over m; scale 1; dropout 0)`; `inside` is the text in parentheses."""
    if kind not in BOXES and kind not in (*_MADE, "attention"):
        refuse("unknown-box", f"there is no box '{kind}'.", nearest(kind, BOXES), (0, len(kind)))
    place, parts = len(kind) + 1, _Parts(known)
    for piece in inside.split(";"):
        shifted(piece.strip(), place + len(piece) - len(piece.lstrip()), parts.take)
        place += len(piece) + 1
    return parts.attention() if kind == "attention" else parts.box(kind)


class _Parts:
    """Collects the parts of one box: operands by role, numbers, masks, and words such as `over m`."""

    def __init__(self, known: Names):
        self.known = known
        self.operands: dict[str, Use] = {}
        self.numbers: dict[str, Arith] = {}
        self.masks: list[Function] = []
        self.words: dict[str, Any] = {}
        self.readers: dict[str, Callable[[str], Any]] = {
            **dict.fromkeys(("over", *BETWEEN), known.leg),
            **dict.fromkeys(_numbers(), known.number),
            "fill": lambda text: Negative(Number(math.inf)) if text == "-inf" else known.number(text),
            "map": self.map,
            "mask": self.mask,
            **{op.mode_key: _mode for op in OPS.values() if op.modes},
            "scores": known.legs_of,
            "parts": known.legs_of,
            "steps": _steps,
        }

    def take(self, text: str) -> None:
        match = _OPERAND.fullmatch(text)
        if match is not None:
            _hoisted(self.operands, match[1] or "of", shifted(match[2], match.start(2), self.known.use))
            return
        word, _, rest = text.partition(" ")
        if word not in self.readers:
            refuse("unknown-key", f"'{word[:64]}' is not a part of a box.", nearest(word, self.readers), (0, len(word)))
        value = shifted(rest, len(word) + 1, self.readers[word])
        if word == "mask":
            self.masks.append(value)
        else:
            _hoisted(self.numbers if word in _numbers() else self.words, "to" if word in BETWEEN else word, value)

    def map(self, text: str) -> Function:
        return self.known.function(text, {name: (row.arguments,) for name, row in MAPS.items()})

    def mask(self, text: str) -> Function:
        return self.known.mask(parse_mask(text))

    def box(self, kind: str) -> Box:
        if kind in _MADE:
            self.check(kind, {"of", "over", "parts"}, frozenset())
            return Box(kind, self.words["over"], tuple(self.operands.items()), parts=self.words["parts"])
        model, op = BOXES[kind], OPS[kind]
        given = (("over", op.has_leg), ("map", op.has_map), (op.mode_key, op.modes), ("to", model.second))
        words = [word for word, has in given if has]
        optional = {*model.optional, *(["to"] if model.second in model.optional else [])} & {
            *model.operands,
            *model.numbers,
            *words,
        }
        self.check(kind, {*model.operands, *model.numbers, *words} - optional, frozenset(optional))
        operands, numbers, word = tuple(self.operands.items()), tuple(self.numbers.items()), self.words.get
        mode = word(op.mode_key)
        return Box(kind, word("over"), operands, numbers, tuple(self.masks), word("to"), word("map"), mode)

    def attention(self) -> FusedAttention:
        wanted = {"query", "key", "value", "over", "scores", "scale", "dropout", "steps"}
        self.check("attention", wanted, frozenset({"sink"}))
        parts: dict[str, Any] = {**self.operands, **self.numbers, **self.words, "masks": tuple(self.masks)}
        return FusedAttention(leg=parts.pop("over"), **parts)

    def check(self, kind: str, wanted: set[str], optional: frozenset[str]) -> None:
        given = {*self.operands, *self.numbers, *self.words}
        for name in sorted(wanted - given - optional):
            refuse("missing-key", f"'{kind}' lacks '{name}'.")
        for name in sorted(given - wanted - optional):
            refuse("unknown-key", f"'{kind}' has no '{name}'.")


def _hoisted(known: dict[str, T], key: str, value: T) -> None:
    if key in known:
        refuse("duplicate-key", f"'{key}' is given twice.")
    known[key] = value


def _steps(text: str) -> tuple[str, ...]:
    """The names of the steps that fused attention replaces."""
    for name in text.split():
        if not re.fullmatch(r"[A-Za-z][\w.]*", name, re.ASCII):
            refuse("name", f"'{name[:64]}' is not a valid name.", "", (0, len(text)))
    return tuple(text.split())


def _numbers() -> frozenset[str]:
    """The names of all numbers of boxes."""
    return frozenset(name for box in BOXES.values() for name in box.numbers)


def _mode(text: str) -> str:
    modes = dict.fromkeys(mode for op in OPS.values() for mode in op.modes)
    if text not in modes:
        refuse("value", f"'{text[:64]}' is not one of {', '.join(modes)}.", "", (0, len(text)))
    return text


class _Reader:
    """Reads the lines in order. A line may use only names declared above it."""

    def __init__(self) -> None:
        self.known = Names()
        self.name: str | None = None
        self.output: str | None = None
        self.also: tuple[str, ...] = ()
        self.causal = False
        self.losses: dict[str, Loss] = {}

    def read(self, line: str) -> None:
        for name, form in LINES.items():
            if (match := re.fullmatch(form, line, re.ASCII)) is not None:
                getattr(self, f"take_{name}")(match)
                return
        if line and not line.startswith("#"):
            hint = "start with graph, leg, setting, a tensor's role, 'NAME[legs] = ', loss, or output."
            refuse("syntax", "this is not a line of a graph.", hint, (0, len(line)))

    def graph(self, kind: type[AnyDiagram]) -> AnyDiagram:
        known = self.known
        if self.name is None or self.output is None:
            refuse("missing-key", f"the line '{'graph' if self.name is None else 'output'}' is missing.")
        for tensor in known.tensors.values():
            step = known.steps.get(tensor.update or "")
            if tensor.update is not None and (step is None or set(step.legs) != set(tensor.legs)):
                hint = nearest(tensor.update, known.steps) if step is None else ""
                refuse("unknown-name", f"there is no step '{tensor.update}' with the legs of '{tensor.name}'.", hint)
        legs, tensors, steps = (tuple(part.values()) for part in (known.legs, known.tensors, known.steps))
        settings, losses = tuple(known.settings.items()), tuple(self.losses.values())
        made = kind(self.name, legs, settings, tensors, steps, self.output, self.causal, losses)  # type: ignore[arg-type]
        return replace(made, also=self.also)

    def take_graph(self, match: Match) -> None:
        problem = identifier_problem(match[1])
        if self.name is not None or problem is not None:
            refuse("name", *(problem or ("this is a second 'graph' line.", "remove this line.")), match.span(1))
        self.name, self.causal = match[1], match[2] is not None

    def take_output(self, match: Match) -> None:
        self.output, *also = match[1].split(" ")
        for name in (self.output, *also):
            if name not in self.known.steps:
                hint = nearest(name, self.known.steps)
                refuse("unknown-name", f"there is no step '{name[:64]}'.", hint, match.span(1))
        self.also = (*also,)

    def take_loss(self, match: Match) -> None:
        name, step = match[1], match[2] or match[1]
        if name in self.losses:
            refuse("name-taken", f"'{name}' is already declared.", "", match.span(1))
        if step not in self.known.steps or self.known.steps[step].legs:
            hint = nearest(step, self.known.steps) if step not in self.known.steps else ""
            span = match.span(2 if match[2] else 1)
            refuse("unknown-name", f"there is no step '{step[:64]}' without legs.", hint, span)
        self.losses[name] = Loss(name, step, _part(match, 3, self.known.number))

    def take_leg(self, match: Match) -> None:
        name, kind, written, given, text = match.groups()
        self.known.new_number(name, match.span(1))
        tree = _part(match, 5, parse) if text is not None else None
        value = int(written) if written is not None else None
        if value is None and not given and isinstance(tree, Number) and isinstance(tree.value, int):
            value = tree.value
        leg = standard_leg(name, kind or "size", value, tree)
        if given:
            words = given.split()
            fields = dict(zip(words[::2], map(int, words[1::2]), strict=True))
            leg = Leg(name, leg.kind, fields.get("size"), fields.get("maximum"), fields.get("reach"), tree)
        if any(number is not None and not 1 <= number <= 2 * limits.SIZE + 1 for number in (leg.size, leg.maximum)):
            hint = f"use a whole number from 1 to {limits.SIZE}."
            refuse("bad-size", f"leg '{name}' has no valid size.", hint, match.span(1))
        self.known.legs[name] = leg

    def take_setting(self, match: Match) -> None:
        name, text = self.known.new_number(match[1], match.span(1)), match[2]
        try:
            value = int(text) if text.lstrip("-").isdigit() else float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            refuse("number", f"'{text}' is not a finite number.", "", match.span(2))
        self.known.settings[name] = value

    def take_tensor(self, match: Match) -> None:
        role, _, frozen, always, default, update, stored, word, _, finite = match.groups()
        name, legs = _part(match, 2, self.known.new_tensor)
        other = self.known.tensors.get(default or "")
        if default is not None and (other is None or other.role != "input"):
            refuse("unknown-name", f"there is no input '{default}' above this one.", "", match.span(5))
        if word != VALUE.get(role):
            wanted = f"'{VALUE[role]}'" if role in VALUE else "nothing more"
            refuse("syntax", f"expected {wanted}.", "", match.span(8) if word else match.span())
        tensor = Tensor(name, role, legs, None, frozen is not None, default, ONE, always is not None, update)
        if stored is not None:
            groups = tuple(tuple(group.split()) for group in stored.split(","))
            if role != "weight" or sum(groups, ()) != legs or not all(groups):
                message = "the stored groups must be the legs of a weight, in order."
                refuse("syntax", message, "e.g. 'stored (f, h d)'.", match.span(7))
            tensor = replace(tensor, stored=groups)
        if word == "std":
            tensor = replace(tensor, std=_part(match, 9, self.known.number))
        elif word is not None:
            tensor = replace(tensor, init=_part(match, 9, lambda text: self.known.function(text, ALLOWED[role])))
        tensor = tensor if finite is None else replace(tensor, finite=True)
        self.known.tensors[name] = tensor

    def take_step(self, match: Match) -> None:
        name, legs = _part(match, 1, self.known.new_tensor)
        self.known.steps[name] = Step(name, _part(match, 2, lambda text: read_operation(text, self.known)), legs)


def _part(match: Match, group: int, read: Callable[[str], T]) -> T:
    return shifted(match[group], match.start(group), read)


def _error(refusal: Refusal, line: int, text: str) -> DesignError:
    start, end = refusal.span or (0, len(text))
    where = ("graph", "", line, start + 1, text, start, max(1, end - start))
    return DesignError([Problem(refusal.code, refusal.message, refusal.hint, *where)])
