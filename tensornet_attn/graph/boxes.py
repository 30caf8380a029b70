"""Checks boxes and builds them: legs, parameters, masks, and the legs of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from tensornet_attn.graph.scope import Scope
from tensornet_attn.graph.visibility import atoms, numbers, parts_of, visible_areas
from tensornet_attn.ir.arithmetic import Arith, Name, Negative, Number
from tensornet_attn.ir.steps import LOGIC, Box, Function, Use
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ops import MAPS, MASKS, OPS
from tensornet_attn.ops.maps import MEANT
from tensornet_attn.ops.schema import BoxModel
from tensornet_attn.spec.expression import CallText, LegToken, parse_call, parse_mask
from tensornet_attn.spec.places import Path
from tensornet_attn.spec.sizes import Leg

_LENGTHS = ("scale",)  # parameters in which a sequence leg means its length at run time
_RANGES = {  # parameter: (check, requirement, example)
    "dropout": (lambda number: 0 <= number < 1, "at least 0 and below 1", "0.1"),
    "eps": (lambda number: number >= 0, "zero or more", "1e-5"),
    "base": (lambda number: number > 0, "positive", "10000"),
    **dict.fromkeys(
        ("k", "groups", "k_groups", "k_in_group"),
        (lambda number: isinstance(number, int) and number >= 1, "a whole number from 1", "2"),
    ),
}


def make_box(scope: Scope, model: BoxModel, operands: dict[str, Use], path: Path) -> tuple[Box, tuple[str, ...]]:
    """The Box and the legs of its result. Reports its problems and raises Refusal."""
    maker = _Maker(scope, model, operands, path)
    try:
        parameters = maker.parameters()
        if all(path != cut[:-1] for cut in scope.reporter.cut):
            return maker.box(*parameters)
    except Refusal as refusal:
        scope.reporter.syntax(refusal, maker.at)
        raise
    raise Refusal("unknown-key", "reported where the file was read")  # nothing is built of such a box


def check_parameters(scope: Scope, model: BoxModel, path: Path) -> None:
    """Checks the parameters of a box with a broken operand; reports their problems."""
    maker = _Maker(scope, model, {}, path)
    try:
        maker.parameters()
    except Refusal as refusal:
        scope.reporter.syntax(refusal, maker.at)


def _arithmetic(parameter: object) -> int | float | str:
    """A parameter as arithmetic; true and false become 1 and 0."""
    return int(parameter) if isinstance(parameter, bool) else parameter  # type: ignore[return-value]


def one_sided(call: CallText) -> CallText:
    """Rewrites `clamp(-inf, 1)` as `clamp_max(1)`, and `clamp(0, inf)` as `clamp_min(0)`."""
    if call.name != "clamp" or len(call.arguments) != 2:
        return call
    low, high = call.arguments
    if low == Negative(Name("inf")) and high != Name("inf"):
        return CallText("clamp_max", (high,), call.span)
    return CallText("clamp_min", (low,), call.span) if high == Name("inf") and low != Negative(high) else call


class _Maker:
    """Checks one box; `at` is the path of the current parameter. Without operands, legs are not checked."""

    def __init__(self, scope: Scope, model: BoxModel, operands: dict[str, Use], path: Path):
        self.scope, self.model, self.operands, self.path = scope, model, operands, path
        self.op, self.at = OPS[model.key], path
        self.legs = next((use.legs for use in operands.values()), None)
        self.along: tuple[str, str] | None = None  # the leg and the second leg, as far as the box has them

    def written(self, parameter: str) -> object:
        self.at = (*self.path, parameter)
        return getattr(self.model, "key_" if parameter == "key" else parameter)

    @property
    def query(self) -> str | None:
        return self.scope.query

    @property
    def declared(self) -> Mapping[str, Leg]:
        return self.scope.sizes.legs

    def box(
        self,
        leg: str | None,
        second: str | None,
        function: Function | None,
        numbers: tuple[tuple[str, Arith], ...],
        masks: tuple[Function, ...],
    ) -> tuple[Box, tuple[str, ...]]:
        if self.op.makes_leg:
            self.scope.used_legs |= {self.query} - {None}  # type: ignore[arg-type]
        legs = self.op.result(self, leg or "", second or "")
        mode = getattr(self.model, self.op.mode_key) if self.op.modes else None
        return Box(self.op.kind, leg, tuple(self.operands.items()), numbers, masks, second, function, mode), legs

    def parameters(
        self,
    ) -> tuple[str | None, str | None, Function | None, tuple[tuple[str, Arith], ...], tuple[Function, ...]]:
        """The leg, the second leg, the map, the numbers and the masks."""
        names = [name for name in self.model.numbers if self.is_set(name)]
        numbers = (partial(self.checked, name) for name in names)
        (leg, second_leg, function), *values, masks = self.all_of(self.leg_and_map, *numbers, self.masks)
        return leg, second_leg, function, tuple(zip(names, values, strict=True)), masks

    def leg_and_map(self) -> tuple[str | None, str | None, Function | None]:
        """The leg, the second leg and the map; until the legs are known, nothing is compared with them."""
        leg = self.leg(self.op.kind) if self.op.has_leg else None
        function = self.map(str(self.written(self.op.kind))) if self.op.has_map else None
        second = self.model.second
        second_leg = self.leg(second) if second and getattr(self.model, second) is not None else None
        self.along = leg or "", second_leg or ""
        return leg, second_leg, function

    def all_of(self, *checks: Callable[[], Any]) -> list[Any]:
        """The results of several checks. Reports every refusal but the last one, which it raises."""
        results, last = [], None
        for check in checks:
            try:
                results.append(check())
            except Refusal as refusal:
                if last is not None:
                    self.scope.reporter.syntax(*last)
                last = refusal, self.at
        if last is not None:
            self.at = last[1]
            raise last[0]
        return results

    def broken(self, *legs: str) -> bool:
        """Whether these legs cannot be checked."""
        return self.legs is None or bool({*legs} & self.scope.sizes.broken)

    def leg(self, parameter: str) -> str:
        """The leg that a parameter names; it must be on `of` unless the box creates it."""
        name = str(self.written(parameter))
        self.scope.leg(LegToken(name, (0, len(name))))
        elsewhere = not self.op.leg_on_operand  # it is on other operands than the first
        makes = elsewhere or (parameter == self.model.second and self.op.makes_leg)
        if self.legs is not None and not makes and name not in self.legs:
            has = f"its legs are {' '.join(self.legs)}" if self.legs else "it has no legs"
            hint = "name one of its legs." if self.legs else "use an operand with a leg."
            raise Refusal("box-leg", f"the operand of this box has no leg '{name}'; {has}.", hint)
        return name

    def is_set(self, name: str) -> bool:
        """Whether a parameter has a value; an omitted optional parameter has none."""
        return getattr(self.model, name) is not None

    def number(self, name: str) -> int | float | None:
        """The value of a number, None if it is omitted or not known before run time."""
        written = getattr(self.model, name)
        return None if written is None else self.scope.number(_arithmetic(written), f"'{name}'")[1]

    def checked(self, name: str) -> Arith:
        """The arithmetic of a number; a value that is known before run time must be in range."""
        written = self.written(name)
        if written == "-inf":
            return Negative(Number(inf))
        tree, number = self.scope.number(_arithmetic(written), f"'{name}'", lengths=name in _LENGTHS)
        if number is None:
            return tree
        in_range, requirement, example = _RANGES.get(name, (lambda _: True, "", ""))
        if not in_range(number):
            raise Refusal("number", f"'{name}' is {number}; it must be {requirement}.", f"e.g. '{name}: {example}'.")
        if self.along is not None:
            self.op.check(self, name, number, *self.along)
        return tree

    def map(self, written: str) -> Function:
        parsed = one_sided(parse_call(written))
        self.call(parsed, {name: ((row.arguments,), row.usage or name) for name, row in MAPS.items()}, "map")
        return self.scope.function(parsed, "a map")

    def call(self, parsed: CallText, usages: Mapping[str, tuple[tuple[int, ...], str]], what: str) -> None:
        """Checks the name and the number of arguments of a call such as `band(5)`; `usages`: counts, an example."""
        name, span = parsed.name, (parsed.span[0], parsed.span[0] + len(parsed.name))
        if name not in usages:
            meant = MEANT.get(name) if what == "map" else None
            hint = f"write '{meant}'." if meant else self.scope.reporter.nearest(name, usages)
            raise Refusal(f"unknown-{what}", f"there is no {what} '{name}'.", hint, span)
        counts, example = usages[name]
        if len(parsed.arguments) not in counts:
            wanted = "no" if counts == (0,) else " or ".join(map(str, counts))
            wanted += " argument" + "s" * (counts != (1,))
            message = f"'{name}' takes {wanted}, got {len(parsed.arguments)}."
            raise Refusal("arguments", message, f"e.g. '{example}'.", parsed.span)

    def masks(self) -> tuple[Function, ...]:
        if not self.op.masked:
            return ()
        written = self.written("mask")
        if isinstance(written, str):
            return self.mask(written)
        masks: list[Function] = []
        for index, source in enumerate(written if isinstance(written, tuple) else ()):
            self.at = (*self.path, "mask", index)
            masks += self.mask(source)
        if len(masks) > 1 and not self.shows(masks):
            message = f"{self.evaluated(masks)} together show no key."
            hint = "write 'a or b' for keys that pass one of two masks; a key must pass all masks of a list."
            self.scope.reporter.warning("mask-empty", message, (*self.path, "mask"), hint=hint)
        return tuple(masks)

    def mask(self, source: str) -> tuple[Function, ...]:
        """Parses a text into the masks that `and` joins."""
        parsed = parse_mask(source)
        mask = self.formula(parsed, source)
        if self.along is not None:
            self.check_place(next(atoms(mask)), self.along[0])
        if mask.name in LOGIC and not self.shows([mask]):
            hint = "use 'or' instead of 'and', or change the numbers."
            raise Refusal("mask-empty", f"{self.evaluated([mask])} shows no key.", hint)
        return parts_of(mask) if mask.name == "and" else (mask,)

    def formula(self, parsed: CallText, source: str) -> Function:
        """A formula of masks, each of them checked."""
        if parsed.name in LOGIC:
            operands = [self.formula(operand, source) for operand in parsed.arguments if isinstance(operand, CallText)]
            associative = parsed.name if parsed.name != "not" else None  # `a and (b and c)` is `a and b and c`
            flat = (parts_of(operand) if operand.name == associative else (operand,) for operand in operands)
            return Function(parsed.name, tuple(operand for group in flat for operand in group))
        self.call(parsed, {name: (row.counts, row.example) for name, row in MASKS.items()}, "mask")
        mask, row = self.scope.function(parsed, "a mask"), MASKS[parsed.name]
        written, example = source[slice(*parsed.span)], f"e.g. '{row.example}'."
        span = parsed.span if written != source else None
        values = [self.scope.evaluated(argument) for argument in mask.arguments]
        evaluated = [value for value in values if value is not None]
        if any(not isinstance(value, int) or abs(value) >= 2**31 for value in evaluated):
            raise Refusal("number", f"'{written}' needs whole numbers below 2 ** 31.", example, span)
        if len(evaluated) < len(values):
            return mask
        if reason := row.refuse(*numbers(mask, self.scope.sizes.values)):
            raise Refusal("number", f"'{written}' {reason}.", example, span)
        return replace(mask, arguments=()) if row.defaults == (*evaluated,) else mask  # `causal(0)` is `causal`

    def shows(self, masks: Sequence[Function]) -> bool:
        """Whether some query sees some key, or this depends on numbers that are not known yet."""
        arguments = [argument for mask in masks for atom in atoms(mask) for argument in atom.arguments]
        unknown = any(self.scope.evaluated(argument) is None for argument in arguments)
        return unknown or bool(visible_areas(masks, self.scope.sizes.values))

    def evaluated(self, masks: Sequence[Function]) -> str:
        """The text of masks with evaluated numbers: `'window(4, -2)' and 'window(-3, 4)'`."""
        formulas = [mask.to_text(lambda tree: str(self.scope.evaluated(tree))) for mask in masks]
        return " and ".join(f"'{formula}'" for formula in formulas)

    def check_place(self, mask: Function, leg: str) -> None:
        """Raises Refusal if masks do not apply to the box."""
        kinds = {self.scope.sizes.legs[name].kind for name in self.legs or ()}
        kind = self.scope.sizes.legs[leg].kind
        if kind != "key" and not self.broken(leg):
            noun = "leg with a size" if kind == "size" else f"{kind} leg"
            message = f"masks apply along the key leg, but this box runs along '{leg}', a {noun}."
            raise Refusal("mask-place", message, "remove the mask.")
        if "query" not in kinds and not self.broken(*self.legs or ()):
            message = f"'{mask.name}' needs an operand with the query leg; its legs are {' '.join(self.legs or ())}."
            raise Refusal("mask-place", message, "remove the mask; only key_mask applies to this box.")
