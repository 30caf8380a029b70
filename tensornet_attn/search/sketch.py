"""Sketches, the editable form of designs for moves; their wires; and conversion from and to designs.

A wire is the set of all slots that a leg reaches through steps and tensors, up to cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from math import prod
from typing import Any, TypeVar

import networkx

from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Box, Contraction, Function, Step, Term, Use
from tensornet_attn.graph.text import call_text, sum_text, use_text
from tensornet_attn.ir.arithmetic import ONE, Arith, Number, evaluate, parse, to_text
from tensornet_attn.ir.steps import with_terms
from tensornet_attn.ops import OPS
from tensornet_attn.ops.schema import BOXES
from tensornet_attn.rewrite.change import with_uses
from tensornet_attn.spec import Design
from tensornet_attn.spec.report import words

ROLES = ("inputs", "weights", "constants", "noise", "state")
Size = int | float | str
Legs = tuple[str, ...]
T = TypeVar("T")


class Nowhere(Exception):
    """A move does not apply to a design."""


def need(argument: T | None) -> T:
    """Returns its argument. Raises Nowhere if it is None, empty or False."""
    if not argument:
        raise Nowhere
    return argument


@dataclass(frozen=True)
class Declared:
    """The declaration of a tensor: its section, its legs, and the rest of the declaration."""

    role: str
    legs: Legs
    rest: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Sketch:
    """An editable design. `head`: name, about and causal.

    `declared`, `settings`: the texts of legs and settings. `sizes`: their values; None if known only at run time.
    `query`, `key`: the sequence legs. `losses`: by name, the step and the text of the weight.
    """

    head: dict[str, Any]
    declared: dict[str, Size]
    settings: dict[str, Size]
    sizes: dict[str, int | float | None]
    tensors: dict[str, Declared]
    step: dict[str, Step]
    output: str
    losses: dict[str, tuple[str, Size]]
    query: str | None
    key: str | None

    def copy(self) -> Sketch:
        copies: dict[str, Any] = {
            name: dict(mapping) for name, mapping in vars(self).items() if isinstance(mapping, dict)
        }
        return replace(self, **copies)

    def readers(self) -> dict[str, list[str]]:
        """The steps that use each tensor or step, in order."""
        readers: dict[str, list[str]] = {}
        for step in self.step.values():
            for name in dict.fromkeys(use.name for use in step.uses):
                readers.setdefault(name, []).append(step.name)
        return readers

    def legs_of(self, name: str) -> Legs:
        return (self.tensors.get(name) or self.step[name]).legs

    def box_of(self, step: str) -> Box:
        """The box of a step. Raises Nowhere if the step is not a box."""
        return need(self.step[step].box)

    def is_head(self, leg: str) -> bool:
        return str(self.declared[leg]).split()[0] in ("head", "shared")

    def size(self, *legs: str) -> int:
        """The product of the sizes of legs; 0 if a size is known only at run time."""
        return prod(int(self.sizes[leg] or 0) for leg in legs)

    def free(self, *wires: SlotWire) -> bool:
        """Whether a move can change these wires: none has an input or a state."""
        owners = (self.tensors.get(name) for wire in wires for name in wire.owners)
        return not any(declared is not None and declared.role in FIXED for declared in owners)

    def leg(self, wanted: str, size_text: Size) -> str:
        """Adds a leg and returns its name. `size_text` is its size in a file, such as `4` or `head h / g`."""
        name = self._free(wanted, self.declared, self.settings)
        sizes = {name: size for name, size in self.sizes.items() if size is not None}
        self.declared[name] = size_text
        self.sizes[name] = evaluate(parse(str(size_text).removeprefix("head ")), sizes)
        return name

    def setting(self, wanted: str, value: int) -> str:
        """Adds a setting and returns its name."""
        name = self._free(wanted, self.declared, self.settings)
        self.settings[name] = self.sizes[name] = value
        return name

    def weight(self, wanted: str, legs: Iterable[str], init: str | None = None) -> Use:
        """Adds a weight and returns its use with the declared legs."""
        name = self.name(wanted)
        self.tensors[name] = Declared("weights", tuple(legs), {} if init is None else {"init": init})
        return Use(name, tuple(legs))

    def put(self, wanted: str, legs: Iterable[str], before: str, *ops: Contraction | Box | Callable[[Use], Box]) -> Use:
        """Adds a step right before another and returns its use.

        With several operations, the innermost first, each is nested in the next, a function of its use.
        """
        name, use = self.name(wanted), Use("", tuple(legs))
        for depth, op in zip(range(len(ops) - 1, -1, -1), ops, strict=True):
            step = Step(self.name(name + ".of" * depth), op(use) if callable(op) else op, use.legs)
            use = step.use
            index = list(self.step).index(before)
            steps = list(self.step.items())
            self.step = dict([*steps[:index], (step.name, step), *steps[index:]])
        return use

    def refactor(
        self, step: str, change: Callable[[Sequence[Use]], Iterable[Use]], term: int | None = None, legs: Legs = ()
    ) -> None:
        """Changes the factors of all terms of a step, or of one, and the legs of the step, if given."""
        terms = list(self.step[step].terms)
        for index in range(len(terms)) if term is None else (term,):
            terms[index] = replace(terms[index], factors=tuple(change(terms[index].factors)))
        self.step[step] = replace(with_terms(self.step[step], terms), legs=legs or self.step[step].legs)

    def rebox(self, step: str, legs: Legs = (), **changes: Any) -> None:
        """Changes fields of the box of a step, and the legs of the step, if given."""
        old = self.step[step]
        self.step[step] = replace(old, op=replace(self.box_of(step), **changes), legs=legs or old.legs)

    def change_legs(self, change: Callable[[str, Legs], Legs]) -> None:
        """Changes the legs of all tensors, steps and uses by a function of name and legs."""
        self.tensors = {
            name: replace(declared, legs=change(name, declared.legs)) for name, declared in self.tensors.items()
        }
        for name, step in self.step.items():
            self.step[name] = replace(step, legs=change(name, step.legs))
        self.change_uses(lambda use: Use(use.name, change(use.name, use.legs)))

    def grow(self, names: Iterable[str], leg: str) -> None:
        """Appends a leg to tensors and steps and to all their uses."""
        grown = frozenset(names)
        self.change_legs(lambda name, legs: (*legs, leg) if name in grown else legs)

    def change_uses(self, change: Callable[[Use], Use]) -> None:
        """Replaces each use by the result of a function."""
        self.step = {name: with_uses(step, change) for name, step in self.step.items()}

    def rename(self, new: Mapping[str, str]) -> None:
        self.change_uses(lambda use: Use(new.get(use.name, use.name), use.legs))
        renamed = (replace(step, name=new.get(name, name)) for name, step in self.step.items())
        self.step = {step.name: step for step in renamed}
        self.losses = {name: (new.get(step, step), weight) for name, (step, weight) in self.losses.items()}
        self.output = new.get(self.output, self.output)

    def name(self, wanted: str) -> str:
        """The free name for a new tensor or step; `far.of` names a step nested in `far`, which may be added later."""
        return self._free(wanted, self.tensors, self.step)

    @staticmethod
    def _free(wanted: str, *taken: Mapping[str, Any]) -> str:
        """The wanted name, with a number from 2 if it is taken."""
        name, count = wanted, 1
        while any(name in names for names in taken):
            count += 1
            name = f"{wanted}{count}"
        return name


def on_a_copy(change: Callable[..., None]) -> Callable[..., Sketch | None]:
    """Converts a function that edits a sketch to one that returns an edited copy, or None if it raises Nowhere."""

    @wraps(change)
    def changed(sketch: Sketch, *arguments: Any, **options: Any) -> Sketch | None:
        edited = sketch.copy()
        try:
            change(edited, *arguments, **options)
        except Nowhere:
            return None
        return edited

    return changed


def product(*factors: Use, times: Arith = ONE) -> Contraction:
    return Contraction((Term(times, factors),))


def added(*products: Iterable[Use]) -> Contraction:
    return Contraction(tuple(Term(ONE, tuple(factors)) for factors in products))


def swapped(old: Use, new: Use) -> Callable[[Iterable[Use]], Iterator[Use]]:
    """A change of factors for `Sketch.refactor` that replaces one use by another."""
    return lambda factors: (new if use == old else use for use in factors)


def mapped(function: str) -> Callable[[Use], Box]:
    """A map box as a function of its operand."""
    return lambda use: Box("map", None, (("of", use),), function=Function(function))


def sketch_of(design: Design) -> Sketch:
    """The sketch of a design. Raises DesignError if the design has errors, and InputError if a box joins legs."""
    graph, content = build(design), design.as_dict()
    joined = next((step.name for step in graph.steps if step.box is not None and step.box.parts), None)
    if joined is not None:
        raise InputError(
            f"{design.name}: '{joined}' joins several legs, which the search does not support; write separate legs."
        )
    tensors = {
        name: Declared(
            role, graph.tensor[name].legs, {key: value for key, value in declaration.items() if key != "legs"}
        )
        for role in ROLES
        for name, declaration in content.get(role, {}).items()
    }
    head = {key: content[key] for key in ("name", "about", "causal") if content.get(key) is not None}
    sizes = {**dict(graph.settings), **{leg.name: leg.size for leg in graph.legs}}
    losses = {
        name: (declaration.get("step", name), declaration["weight"])
        for name, declaration in content.get("losses", {}).items()
    }
    legs, settings, ends = dict(content["legs"]), dict(content.get("settings", {})), (graph.query, graph.key)
    sketch = Sketch(head, legs, settings, sizes, tensors, dict(graph.step), graph.output, losses, *ends)
    new = dict[str, str]()
    for tensor in graph.tensors:
        if tensor.name not in tensors and tensor.init is not None:  # constants of an expanded box
            new[tensor.name] = sketch.name(tensor.name.replace(".", "_"))
            sketch.tensors[new[tensor.name]] = Declared("constants", tensor.legs, {"value": call_text(tensor.init)})
    if new:
        sketch.rename(new)
    return sketch


def data_of(sketch: Sketch) -> dict[str, Any]:
    """The data of a YAML file of the sketch."""
    sketch = sketch.copy()
    _prune(sketch)
    _unnest(sketch)
    sections = {
        **{
            role: {
                name: {"legs": " ".join(tensor.legs) or [], **tensor.rest}
                for name, tensor in sketch.tensors.items()
                if tensor.role == role
            }
            for role in ROLES
        },
        "diagram": {step.name: _diagram_entry(step, sketch) for step in sketch.step.values() if not step.nested},
        "losses": {name: {"step": step, "weight": weight} for name, (step, weight) in sketch.losses.items()},
    }
    live = _referenced(sections, sketch.settings | sketch.declared)
    numbers = {
        section: {name: size for name, size in declared.items() if name in live}
        for section, declared in (("settings", sketch.settings), ("legs", sketch.declared))
    }
    content = {"tensornet": 1, **sketch.head, **numbers, **sections, "output": sketch.output}
    return {key: section for key, section in content.items() if section != {}}


def _prune(sketch: Sketch) -> None:
    """Removes steps and tensors that reach neither the output nor a state nor a loss."""
    live = {sketch.output, *(declared.rest.get("update") for declared in sketch.tensors.values())}
    live |= {step for step, _ in sketch.losses.values()}
    for step in reversed(sketch.step.values()):
        if step.name in live:
            live |= step.reads
    sketch.tensors = {
        name: tensor for name, tensor in sketch.tensors.items() if name in live or tensor.role == "inputs"
    }
    sketch.step = {name: step for name, step in sketch.step.items() if name in live}


def _unnest(sketch: Sketch) -> None:
    """Renames nested steps that cannot be written inside their box any more."""
    readers, new = sketch.readers(), dict[str, str]()
    for name in [step.name for step in sketch.step.values() if step.nested and not _nests(step, sketch, readers)]:
        new[name] = sketch._free(name.replace(".", "_"), sketch.tensors, sketch.step, dict.fromkeys(new.values()))
    if new:
        sketch.rename(new)


def _nests(step: Step, sketch: Sketch, readers: Mapping[str, list[str]]) -> bool:
    """Whether the box around a nested step is its only reader and uses it without changes."""
    outer, _, role = step.name.rpartition(".")
    box = sketch.step[outer].box if outer in sketch.step else None
    if box is None or readers.get(step.name) != [outer]:
        return False
    roles = {name for name, use in box.operands if use.name == step.name}
    return role in roles and roles <= {role, "by"} and box.operand(role).legs == step.legs


def _diagram_entry(step: Step, sketch: Sketch) -> Any:
    """A step as in a diagram: an expression, or a box with its nested steps."""
    if step.contraction is not None:
        return f"{sum_text(step.contraction)} -> {' '.join(step.legs)}".rstrip()
    box = sketch.box_of(step.name)
    model, numbers = BOXES[box.kind], {name: to_text(number) for name, number in box.numbers}
    opener = call_text(box.function) if box.function is not None else box.leg
    entry: dict[str, Any] = {box.kind: numbers.pop(box.kind, opener)}  # a box can open with its only number
    if box.other is not None:
        entry[str(model.second)] = box.other
    for name, text in numbers.items():
        if text != str(model.model_fields[name].default):
            tree = parse(text)
            flag = model.model_fields[name].default is None and name in ("interleaved", "truncate")
            entry[name] = text == "1" if flag else tree.value if isinstance(tree, Number) else text
    if box.masks:
        entry["mask"] = [call_text(mask) for mask in box.masks]
    if box.mode not in (None, "none"):
        entry[OPS[box.kind].mode_key] = box.mode
    for role, use in box.operands:
        if role != "by" or use != box.of:
            nested = use.name == f"{step.name}.{role}"
            alone = use.name if use.legs == sketch.legs_of(use.name) else use_text(use)
            entry[role] = _diagram_entry(sketch.step[use.name], sketch) if nested else alone
    return entry


def _referenced(parts: Any, numbers: Mapping[str, Size]) -> set[str]:
    """The legs and settings that `parts` refer to, directly or through arithmetic."""
    live, waiting = set[str](), words(parts)
    while waiting:
        name = waiting.pop()
        if name in numbers and name not in live:
            live.add(name)
            waiting |= words(numbers[name])
    return live


Slot = tuple[str, int]  # a leg of a tensor or step, by position
Cut = frozenset[tuple[str, str]]  # (step, operand): the wire does not continue from this operand into this step
FIXED = ("inputs", "state")  # moves never change the legs of these


@dataclass(frozen=True)
class SlotWire:
    """Connected slots; `inner`: the (step, leg) pairs that connect them."""

    slots: frozenset[Slot]
    inner: frozenset[tuple[str, str]]

    @property
    def owners(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.slots)


def wire(sketch: Sketch, starts: Iterable[Slot], cut: Cut = frozenset()) -> SlotWire:
    """The wire through the slots `starts`."""
    starts, bonds = list(starts), networkx.Graph()  # nodes: slots, and (step, leg) pairs that connect them
    bonds.add_nodes_from(starts)
    for step in sketch.step.values():
        attached = (use for use in step.uses if (step.name, use.name) not in cut)
        for name, legs in ((step.name, step.legs), *((use.name, use.legs) for use in attached)):
            bonds.add_edges_from(((name, position), (step.name, leg)) for position, leg in enumerate(legs))
    connected = set[Any]().union(*(networkx.node_connected_component(bonds, slot) for slot in starts))
    slots = frozenset((name, at) for name, at in connected if isinstance(at, int))
    return SlotWire(slots, frozenset(connected - slots))


def slot_of(use: Use, leg: str) -> Slot:
    return use.name, use.legs.index(leg)


def relabel(sketch: Sketch, *changes: tuple[SlotWire, Legs]) -> None:
    """Replaces the leg of each wire by other legs. Raises Nowhere if a box acts along the leg and cannot use them.

    A use has the new legs if its slot is on the wire, even if the wire is cut right after it.
    """
    boxes = [(step.name, step.box) for step in sketch.step.values() if step.box is not None]
    acting = {(name, leg) for name, box in boxes for leg in box.acting}
    if any(len(new) != 1 and old.inner & acting for old, new in changes):
        raise Nowhere
    sizes = {name: size for name, size in sketch.sizes.items() if size is not None}
    for name, box in boxes:  # a selection must not exceed the new size
        news = [new[0] for old, new in changes if new and (name, box.leg) in old.inner]
        need(not OPS[box.kind].selects or all(evaluate(box.number("k"), sizes) <= sketch.size(new) for new in news))
    slots = {slot: new for old, new in changes for slot in old.slots}
    inner = {pair: new[0] for old, new in changes if new for pair in old.inner}

    def change(name: str, legs: Legs) -> Legs:
        new_legs = tuple(new for position, leg in enumerate(legs) for new in slots.get((name, position), (leg,)))
        need(len({*new_legs}) == len(new_legs))
        return new_legs

    for name, box in boxes:
        leg, other_leg = (
            acting_leg and inner.get((name, acting_leg), acting_leg) for acting_leg in (box.leg, box.other)
        )
        sketch.rebox(name, leg=leg, other=other_leg)
    sketch.change_legs(change)
