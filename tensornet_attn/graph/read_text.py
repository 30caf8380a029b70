"""Reads the text form of a graph. It checks the form and the names; the diagram itself was checked by `build`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from tensornet_attn import limits
from tensornet_attn.errors import DesignError, InputError, Problem, nearest
from tensornet_attn.graph.diagram import Diagram
from tensornet_attn.graph.read_names import WORD, Names, refuse, shifted
from tensornet_attn.graph.read_steps import read_operation
from tensornet_attn.graph.tensors import ALLOWED
from tensornet_attn.ir.arithmetic import ONE, Arith, Number, parse
from tensornet_attn.ir.steps import Loss, Step, Tensor
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.spec.names import identifier_problem
from tensornet_attn.spec.sizes import KINDS, Leg

T = TypeVar("T")
Match = re.Match[str]
VALUE = {"noise": "std", "constant": "value", "weight": "init", "state": "init"}  # the word before a tensor's value
SIZES = ("size", "maximum", "reach")

GRAPH = r"graph (\S+)( causal)?"
LEG = rf"leg (\w+)(?: ({'|'.join(KINDS)}))?(?: (\d{{1,10}}))?((?: (?:{'|'.join(SIZES)}) \d{{1,10}})*)(?: = (.+))?"
SETTING = r"setting (\w+) = (-?[\d.][\d.e+-]{0,160})"
TENSOR = (
    r"(input|weight|constant|noise|state) ([^\[\]\s]+\[[^\[\]]*\])( frozen)?( always)?"
    rf"(?: default ({WORD}))?(?: update (\S+))?(?: stored \(([\w, ]+)\))?(?: (std|init|value) (.+))?"
)
STEP = r"([^\[\]\s]+\[[^\[\]]*\]) = (.+)"
LOSS = rf"loss ({WORD})(?: step (\S+))? = (.+)"
OUTPUT = r"output (\S+)"
AnyDiagram = TypeVar("AnyDiagram", bound=Diagram)


def from_text(text: str, kind: type[AnyDiagram]) -> AnyDiagram:
    """The graph of a text that `to_text` wrote. Raises DesignError, which names the line; InputError for no text."""
    if not isinstance(text, str):
        raise InputError(f"the text of a graph is wanted here, not {type(text).__name__}.")
    if len(text.encode(errors="replace")) > limits.GRAPH_BYTES:
        raise InputError(f"the text of a graph has at most {limits.GRAPH_BYTES} bytes.")
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
    """A leg whose one number is its maximum, its reach or its size, after its kind."""
    if kind == "relative" and value is not None:
        return Leg(name, kind, size=2 * value + 1, reach=value, text=text)
    sequence = kind in ("query", "key")
    return Leg(name, kind, maximum=value, text=text) if sequence else Leg(name, kind, size=value, text=text)


class _Reader:
    """Takes line after line; what it knows so far is what the next line may speak of."""

    def __init__(self) -> None:
        self.known = Names()
        self.name: str | None = None
        self.output: str | None = None
        self.causal = False
        self.losses: dict[str, Loss] = {}

    def read(self, line: str) -> None:
        matches = ((pattern.fullmatch(line), take) for pattern, take in LINES)
        match, take = next((found for found in matches if found[0] is not None), (None, None))
        if match is not None and take is not None:
            take(self, match)
        elif line and not line.startswith("#"):
            hint = "graph, leg, setting, a tensor's role, 'NAME[legs] = ...', loss, or output."
            refuse("syntax", "this is no line of a graph.", hint, (0, len(line)))

    def graph(self, kind: type[AnyDiagram]) -> AnyDiagram:
        known = self.known
        if self.name is None or self.output is None:
            refuse("missing-key", f"there is no line '{'graph' if self.name is None else 'output'}'.")
        for tensor in known.tensors.values():
            step = known.steps.get(tensor.update or "")
            if tensor.update is not None and (step is None or set(step.legs) != set(tensor.legs)):
                hint = nearest(tensor.update, known.steps) if step is None else ""
                refuse("unknown-name", f"there is no step '{tensor.update}' with the legs of '{tensor.name}'.", hint)
        legs, tensors, steps = (tuple(part.values()) for part in (known.legs, known.tensors, known.steps))
        settings, losses = tuple(known.settings.items()), tuple(self.losses.values())
        return kind(self.name, legs, settings, tensors, steps, self.output, self.causal, losses)  # type: ignore[arg-type]

    def take_graph(self, match: Match) -> None:
        problem = identifier_problem(match[1])
        if self.name is not None or problem is not None:
            refuse("name", *(problem or ("a graph has one name.", "remove this line.")), match.span(1))
        self.name, self.causal = match[1], match[2] is not None

    def take_output(self, match: Match) -> None:
        if match[1] not in self.known.steps:
            hint = nearest(match[1], self.known.steps)
            refuse("unknown-name", f"there is no step '{match[1][:64]}'.", hint, match.span(1))
        self.output = match[1]

    def take_loss(self, match: Match) -> None:
        name, step = match[1], match[2] or match[1]
        if name in self.losses:
            refuse("name-taken", f"'{name}' is declared already.", "", match.span(1))
        if step not in self.known.steps or self.known.steps[step].legs:
            hint = nearest(step, self.known.steps) if step not in self.known.steps else ""
            refuse(
                "unknown-name", f"there is no step '{step[:64]}' without legs.", hint, match.span(2 if match[2] else 1)
            )
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
            refuse("bad-size", f"leg '{name}' has no size.", f"a whole number from 1 to {limits.SIZE}.", match.span(1))
        self.known.legs[name] = leg

    def take_setting(self, match: Match) -> None:
        name, text = self.known.new_number(match[1], match.span(1)), match[2]
        try:
            value = int(text) if text.lstrip("-").isdigit() else float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            refuse("number", f"'{text}' is no finite number.", "", match.span(2))
        self.known.settings[name] = value

    def take_tensor(self, match: Match) -> None:
        role, _, frozen, always, default, update, stored, word, _ = match.groups()
        name, legs = _part(match, 2, self.known.new_tensor)
        other = self.known.tensors.get(default or "")
        if default is not None and (other is None or other.role != "input"):
            refuse("unknown-name", f"there is no input '{default}' before this one.", "", match.span(5))
        if word != VALUE.get(role):
            wanted = f"'{VALUE[role]}'" if role in VALUE else "nothing more"
            refuse("syntax", f"{wanted} is wanted here.", "", match.span(8) if word else match.span())
        tensor = Tensor(name, role, legs, None, frozen is not None, default, ONE, always is not None, update)
        if stored is not None:
            groups = tuple(tuple(group.split()) for group in stored.split(","))
            if role != "weight" or sum(groups, ()) != legs or not all(groups):
                refuse("syntax", "a weight is stored as its legs, in order.", "e.g. 'stored (f, h d)'.", match.span(7))
            tensor = replace(tensor, stored=groups)
        if word == "std":
            tensor = replace(tensor, std=_part(match, 9, self.known.number))
        elif word is not None:
            tensor = replace(tensor, init=_part(match, 9, lambda text: self.known.function(text, ALLOWED[role])))
        self.known.tensors[name] = tensor

    def take_step(self, match: Match) -> None:
        name, legs = _part(match, 1, self.known.new_tensor)
        self.known.steps[name] = Step(name, _part(match, 2, lambda text: read_operation(text, self.known)), legs)


Take = Callable[[_Reader, Match], None]
LINES: tuple[tuple[re.Pattern[str], Take], ...] = tuple(
    (re.compile(pattern, re.ASCII), take)
    for pattern, take in (
        (GRAPH, _Reader.take_graph),
        (LEG, _Reader.take_leg),
        (SETTING, _Reader.take_setting),
        (TENSOR, _Reader.take_tensor),
        (STEP, _Reader.take_step),
        (LOSS, _Reader.take_loss),
        (OUTPUT, _Reader.take_output),
    )
)


def _part(match: Match, group: int, read: Callable[[str], T]) -> T:
    return shifted(match[group], match.start(group), read)


def _error(refusal: Refusal, line: int, text: str) -> DesignError:
    start, end = refusal.span or (0, len(text))
    problem = Problem(
        refusal.code, refusal.message, refusal.hint, "graph", "", line, start + 1, text, start, max(1, end - start)
    )
    return DesignError([problem])
