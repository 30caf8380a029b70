"""Designs as moves see them, sketches that can be changed and written back to a design."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tensornet_attn.graph import build
from tensornet_attn.graph.model import Box, Contraction, Function, Step, Term, Use
from tensornet_attn.spec import Design
from tensornet_attn.spec.arithmetic import ONE, Arith, Negative, Number, evaluate, names, parse, to_text
from tensornet_attn.spec.boxes import BOXES
from tensornet_attn.spec.expression import CallText, parse_call

ROLES = ("inputs", "weights", "constants", "noise", "state")
Size = int | float | str


@dataclass(frozen=True)
class Declared:
    """A tensor as a design declares it: its section, its legs, and what else the declaration says."""

    role: str
    legs: tuple[str, ...]
    rest: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Sketch:
    """A design under change. `head` holds what stands outside the sections: name, about, causal.

    `declared` and `settings` are the texts of legs and settings; `sizes` what they come out as (None: at run time).
    `losses`: the step and the text of the weight of each, by name.
    """

    head: Mapping[str, Any]
    declared: Mapping[str, Size]
    settings: Mapping[str, Size]
    sizes: Mapping[str, int | float | None]
    tensors: Mapping[str, Declared]
    steps: tuple[Step, ...]
    output: str
    losses: Mapping[str, tuple[str, Size]]

    @cached_property
    def step(self) -> dict[str, Step]:
        return {step.name: step for step in self.steps}

    @cached_property
    def query(self) -> str | None:
        return self._sequence("query")

    @cached_property
    def key(self) -> str | None:
        return self._sequence("key")

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """The steps that use each tensor or step, in order."""
        found: dict[str, list[str]] = {}
        for step in self.steps:
            for name in dict.fromkeys(use.name for use in step.op.uses):
                found.setdefault(name, []).append(step.name)
        return {name: tuple(steps) for name, steps in found.items()}

    def _sequence(self, kind: str) -> str | None:
        return next((name for name, text in self.declared.items() if str(text).split()[:1] == [kind]), None)

    def legs_of(self, name: str) -> tuple[str, ...]:
        return (self.tensors.get(name) or self.step[name]).legs

    def is_head(self, leg: str) -> bool:
        return str(self.declared[leg]).split()[0] == "head"

    def size(self, legs: str | Iterable[str]) -> int:
        """The product of the sizes of legs; 0 where one is known at run time only."""
        total = 1
        for leg in (legs,) if isinstance(legs, str) else legs:
            total *= int(self.sizes[leg] or 0)
        return total

    def new_leg(self, wanted: str, text: Size) -> tuple[Sketch, str]:
        """A sketch with one more leg, and the name it got. `text` is what a file would say: `4`, `head h / g`."""
        name = self.free(wanted, {*self.declared, *self.settings})
        number = str(text).removeprefix("head ")
        sizes = {**self.sizes, name: evaluate(parse(number), {k: v for k, v in self.sizes.items() if v is not None})}
        return replace(self, declared={**self.declared, name: text}, sizes=sizes), name

    def new_setting(self, wanted: str, value: int) -> tuple[Sketch, str]:
        name = self.free(wanted, {*self.declared, *self.settings})
        return replace(self, settings={**self.settings, name: value}, sizes={**self.sizes, name: value}), name

    def new_weight(self, wanted: str, legs: Iterable[str], init: str | None = None) -> tuple[Sketch, Use]:
        """A sketch with one more weight, and its use under the legs declared."""
        name = self.name(wanted)
        rest = () if init is None else (("init", init),)
        made = Declared("weights", tuple(legs), rest)
        return replace(self, tensors={**self.tensors, name: made}), Use(name, made.legs)

    def new_step(self, wanted: str, op: Contraction | Box, legs: Iterable[str], before: str) -> tuple[Sketch, Use]:
        """A sketch with one more step right before another, and its use."""
        step = Step(self.name(wanted), op, tuple(legs))
        place = next(i for i, other in enumerate(self.steps) if other.name == before)
        return replace(self, steps=(*self.steps[:place], step, *self.steps[place:])), Use(step.name, step.legs)

    def with_step(self, step: Step) -> Sketch:
        """The sketch with a step in place of the one of its name."""
        return replace(self, steps=tuple(step if other.name == step.name else other for other in self.steps))

    def with_tensor(self, name: str, made: Declared) -> Sketch:
        return replace(self, tensors={**self.tensors, name: made})

    def name(self, wanted: str) -> str:
        """The name that a new tensor or step would get; `far.of` is nested in a step `far` that is yet to come."""
        return self.free(wanted, {*self.tensors, *self.step})

    @staticmethod
    def free(wanted: str, taken: set[str]) -> str:
        """The name wanted, with the first number from 2 that makes it a new one."""
        if wanted not in taken:
            return wanted
        return next(f"{wanted}{count}" for count in range(2, len(taken) + 3) if f"{wanted}{count}" not in taken)


def sketch_of(design: Design) -> Sketch:
    """The sketch of a design. Raises DesignError where the design has errors."""
    graph, data = build(design), design.as_dict()
    tensors = {
        name: Declared(role, graph.tensor[name].legs, tuple((k, v) for k, v in made.items() if k != "legs"))
        for role in ROLES
        for name, made in data.get(role, {}).items()
    }
    head = {key: data[key] for key in ("name", "about", "causal") if data.get(key) is not None}
    sizes = {**dict(graph.settings), **{leg.name: leg.size for leg in graph.legs}}
    losses = {name: (made.get("step", name), made["weight"]) for name, made in data.get("losses", {}).items()}
    return Sketch(head, data["legs"], data.get("settings", {}), sizes, tensors, graph.steps, graph.output, losses)


def product(*factors: Use, times: Arith = ONE) -> Contraction:
    """The contraction of one term."""
    return Contraction((Term(times, factors),))


def mapped(function: str, use: Use) -> Box:
    """A map box around a use."""
    return Box("map", None, (("of", use),), function=Function(function))


def data_of(sketch: Sketch) -> dict[str, Any]:
    """What a YAML file of the sketch would hold."""
    sketch = _named(_pruned(sketch))
    legs, settings = _live_numbers(sketch)
    data: dict[str, Any] = {"tensornet": 1, **sketch.head, "settings": settings, "legs": legs}
    for role in ROLES:
        data[role] = {name: _declaration(made) for name, made in sketch.tensors.items() if made.role == role}
    data["diagram"] = {step.name: _value(step, sketch) for step in sketch.steps if "." not in step.name}
    data["losses"] = {name: {"step": step, "weight": weight} for name, (step, weight) in sketch.losses.items()}
    data["output"] = sketch.output
    return {key: value for key, value in data.items() if value != {}}


def _pruned(sketch: Sketch) -> Sketch:
    """Without steps and tensors that reach neither the output nor a state nor a loss."""
    wanted = {sketch.output, *(dict(made.rest).get("update") for made in sketch.tensors.values())}
    wanted |= {step for step, _ in sketch.losses.values()}
    for step in reversed(sketch.steps):
        if step.name in wanted:
            wanted |= {use.name for use in step.op.uses}
    tensors = {name: made for name, made in sketch.tensors.items() if name in wanted or made.role == "inputs"}
    return replace(sketch, tensors=tensors, steps=tuple(step for step in sketch.steps if step.name in wanted))


def _named(sketch: Sketch) -> Sketch:
    """Nested steps that cannot stand inside their box any more get a name of their own."""
    loose = [step.name for step in sketch.steps if "." in step.name and not _nests(step, sketch)]
    taken = {*sketch.tensors, *sketch.step}
    new: dict[str, str] = {}
    for name in loose:
        new[name] = sketch.free(name.replace(".", "_"), taken | set(new.values()))
    return rename_steps(sketch, new) if new else sketch


def rename_steps(sketch: Sketch, new: Mapping[str, str]) -> Sketch:
    """The sketch with steps under other names."""

    def use(old: Use) -> Use:
        return Use(new.get(old.name, old.name), old.legs)

    steps = (replace(on_uses(step, use), name=new.get(step.name, step.name)) for step in sketch.steps)
    losses = {name: (new.get(step, step), weight) for name, (step, weight) in sketch.losses.items()}
    return replace(sketch, steps=tuple(steps), output=new.get(sketch.output, sketch.output), losses=losses)


def on_uses(step: Step, change: Any) -> Step:
    """The step with every use changed."""
    if isinstance(step.op, Contraction):
        terms = (Term(term.coefficient, tuple(map(change, term.factors))) for term in step.op.terms)
        return replace(step, op=Contraction(tuple(terms)))
    assert isinstance(step.op, Box)
    return replace(step, op=replace(step.op, operands=tuple((role, change(use)) for role, use in step.op.operands)))


def _nests(step: Step, sketch: Sketch) -> bool:
    """Whether a nested step has one reader, the box around it, which takes it as it is."""
    outer, _, role = step.name.rpartition(".")
    parent = sketch.step.get(outer)
    if parent is None or not isinstance(parent.op, Box) or sketch.readers.get(step.name) != (outer,):
        return False
    roles = [name for name, use in parent.op.operands if use.name == step.name]
    return role in roles and set(roles) <= {role, "by"} and parent.op.operand(role).legs == step.legs


def _value(step: Step, sketch: Sketch) -> Any:
    return _expression(step, step.op) if isinstance(step.op, Contraction) else _box(step.op, step, sketch)


def _box(box: Any, step: Step, sketch: Sketch) -> dict[str, Any]:
    model = BOXES[box.kind]
    opener = _call(box.function) if box.kind == "map" else box.leg
    given = {name: to_text(value) for name, value in box.numbers}
    data: dict[str, Any] = {box.kind: opener if box.kind != "dropout" else given.pop("dropout")}
    if box.other is not None:
        data[str(model.second)] = box.other
    data |= {n: _plain(t) for n, t in given.items() if t != str(model.model_fields[n].default)}
    if box.masks:
        data["mask"] = [_call(mask) for mask in box.masks]
    if box.mode not in (None, "none"):
        data["normalize"] = box.mode
    for role, use in box.operands:
        if role != "by" or use != box.operand("of"):
            data[role] = _operand(use, f"{step.name}.{role}", sketch)
    return data


def _plain(text: str) -> int | float | str:
    tree = parse(text)
    return tree.value if isinstance(tree, Number) else text


def _operand(use: Use, nested: str, sketch: Sketch) -> Any:
    if use.name == nested:
        return _value(sketch.step[nested], sketch)
    return use.name if use.legs == sketch.legs_of(use.name) else _use(use)


def _expression(step: Step, op: Contraction) -> str:
    text = " ".join(map(_term, op.terms))
    text = f"-{text[2:]}" if text.startswith("- ") else text.removeprefix("+ ")
    return f"{text} -> {' '.join(step.legs)}".rstrip()


def _term(term: Term) -> str:
    sign, value = "+", term.coefficient
    if isinstance(value, Negative):
        sign, value = "-", value.of
    number = to_text(value) if isinstance(value, Number) else f"({to_text(value)})"
    factors = " ".join(map(_use, term.factors))
    if not factors:
        return f"{sign} {number}"
    return f"{sign} {factors}" if value == ONE else f"{sign} {number} * {factors}"


def _use(use: Use) -> str:
    return f"{use.name}[{' '.join(use.legs)}]"


def _call(function: Function) -> str:
    arguments = [_call(part) if isinstance(part, Function) else to_text(part) for part in function.arguments]
    return f"{function.name}({', '.join(arguments)})" if arguments else function.name


def _declaration(made: Declared) -> dict[str, Any]:
    return {"legs": " ".join(made.legs) if made.legs else [], **dict(made.rest)}


def _live_numbers(sketch: Sketch) -> tuple[dict[str, Any], dict[str, Any]]:
    """The legs and settings that something speaks of, through arithmetic too."""
    live, waiting = set[str](), _spoken(sketch)
    numbers = {**sketch.settings, **sketch.declared}
    while waiting:
        name = waiting.pop()
        if name in numbers and name not in live:
            live.add(name)
            text = str(numbers[name]).split(maxsplit=1)
            size = text[-1] if text[0] in ("head", "key", "query", "relative") else str(numbers[name])
            waiting |= set() if size in ("key", "query", "relative") else {part.name for part in names(parse(size))}
    declared = {name: text for name, text in sketch.declared.items() if name in live}
    return declared, {name: value for name, value in sketch.settings.items() if name in live}


def _spoken(sketch: Sketch) -> set[str]:
    """Every leg and every name in arithmetic that tensors and steps have."""
    found = {leg for made in sketch.tensors.values() for leg in made.legs}
    for made in sketch.tensors.values():
        rest = dict(made.rest)
        for text in (rest.get("init"), rest.get("value")):
            found |= set(_in_call(parse_call(text))) if text else set()
        found |= {part.name for part in names(parse(rest.get("std", 1)))}
    for step in sketch.steps:
        found |= {*step.legs, *(leg for use in step.op.uses for leg in use.legs)}
        found |= {part.name for tree in _arithmetic(step) for part in names(tree)}
    return found | {part.name for _, weight in sketch.losses.values() for part in names(parse(weight))}


def _in_call(call: CallText) -> Iterator[str]:
    for part in call.arguments:
        yield from _in_call(part) if isinstance(part, CallText) else (name.name for name in names(part))


def _arithmetic(step: Step) -> Iterator[Arith]:
    if isinstance(step.op, Contraction):
        yield from (term.coefficient for term in step.op.terms)
    elif isinstance(step.op, Box):
        yield from (value for _, value in step.op.numbers)
        functions = (*step.op.masks, *([step.op.function] if step.op.function else []))
        yield from _arguments(functions)


def _arguments(functions: Iterable[Function]) -> Iterator[Arith]:
    for function in functions:
        nested = [part for part in function.arguments if isinstance(part, Function)]
        yield from (part for part in function.arguments if not isinstance(part, Function))
        yield from _arguments(nested)
