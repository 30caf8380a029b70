"""Boxes checked and made Box: legs, parameters, masks, and the legs of the result."""

from __future__ import annotations

from tensornet_attn.graph.diagram import MASKED_BOXES, REDUCTIONS, Box, Diagram, Function, Use
from tensornet_attn.graph.scope import Scope
from tensornet_attn.spec.arithmetic import Arith, evaluate
from tensornet_attn.spec.boxes import BoxModel
from tensornet_attn.spec.expression import LegToken, parse_call
from tensornet_attn.spec.places import Path
from tensornet_attn.spec.tokens import Refusal

MAPS = dict.fromkeys(
    "relu gelu silu elu elu1 elu1_neg tanh sigmoid exp log square sqrt abs softplus reciprocal".split(), 0
)
MAPS |= {"softcap": 1, "power": 1, "clamp": 2}
FINITE_MAPS = frozenset(  # numbers at every number, and so are their derivatives, whatever its size
    "relu gelu silu elu elu1 elu1_neg tanh sigmoid abs softplus softcap clamp".split()
)
MASKS = {"causal": 0, "band": 1, "window": 2}
_USAGE = {"softcap": "softcap(30)", "power": "power(2)", "clamp": "clamp(0, 1)", "causal": "causal"}
_USAGE |= {"band": "band(5)", "window": "window(4, 0)"}
_LENGTHS = ("scale",)  # parameters in which a sequence leg stands for its run-time length
_RANGES = {  # parameter: (is in range, what it must be, example)
    "dropout": (lambda value: 0 <= value < 1, "a probability from 0 to below 1", "0.1"),
    "eps": (lambda value: value >= 0, "zero or more", "1e-5"),
    "base": (lambda value: value > 0, "positive", "10000"),
}


def make_box(scope: Scope, model: BoxModel, operands: dict[str, Use], path: Path) -> tuple[Box, tuple[str, ...]]:
    """The Box and its result's legs. Reports what is wrong, once, and raises Refusal."""
    maker = _Maker(scope, model, operands, path)
    try:
        return maker.box()
    except Refusal as refusal:
        scope.reporter.syntax(refusal, maker.at)
        raise


def finite(graph: Diagram, box: Box) -> bool:
    """Whether a box is a number at every number, and its derivative too; but for those of what overflows in a sum."""
    if box.function is not None:
        return box.function.name in FINITE_MAPS
    return box.kind not in ("rmsnorm", "layernorm") or evaluate(box.number("eps"), graph.values) > 0


def check_parameters(scope: Scope, model: BoxModel, path: Path) -> None:
    """Checks a box whose content is broken, as far as that can be done; reports what is wrong, once."""
    maker = _Maker(scope, model, {}, path)
    try:
        maker.parameters()
    except Refusal as refusal:
        scope.reporter.syntax(refusal, maker.at)


class _Maker:
    """Checks one box; `at` is the path of the parameter looked at. Without operands nothing is known of legs."""

    def __init__(self, scope: Scope, model: BoxModel, operands: dict[str, Use], path: Path):
        self.scope, self.model, self.operands, self.path = scope, model, operands, path
        self.kind, self.at = model.key, path
        self.legs = next((use.legs for use in operands.values()), None)

    def written(self, parameter: str) -> object:
        self.at = (*self.path, parameter)
        return getattr(self.model, "key_" if parameter == "key" else parameter)

    def box(self) -> tuple[Box, tuple[str, ...]]:
        leg, other, function, numbers, masks = self.parameters()
        result = self.result(leg or "", other or "")
        mode = getattr(self.model, "normalize", None) if self.kind == "delta_rule" else None
        return Box(self.kind, leg, tuple(self.operands.items()), numbers, masks, other, function, mode), result

    def parameters(
        self,
    ) -> tuple[str | None, str | None, Function | None, tuple[tuple[str, Arith], ...], tuple[Function, ...]]:
        """The leg, the second leg, the map, the numbers and the masks."""
        leg = None if self.kind in ("map", "dropout") else self.leg(self.kind)
        function = self.call(MAPS, "map", str(self.written("map"))) if self.kind == "map" else None
        other = self.leg(self.model.second) if self.model.second else None
        numbers = tuple((name, self.number(name, leg, other)) for name in self.model.numbers)
        return leg, other, function, numbers, self.masks(leg)

    def broken(self, *legs: str) -> bool:
        """Whether nothing can be said of these legs."""
        return self.legs is None or bool({*legs} & self.scope.sizes.broken)

    def leg(self, parameter: str) -> str:
        """The leg a parameter names; it must be on `of` unless the box makes it."""
        name = str(self.written(parameter))
        self.scope.leg(LegToken(name, (0, len(name))))
        makes = parameter == "to" or self.kind == "delta_rule"
        if self.legs is not None and not makes and name not in self.legs:
            has = f"its legs are {' '.join(self.legs)}" if self.legs else "it has no legs"
            raise Refusal("box-leg", f"what stands in this box has no leg '{name}'; {has}.", self.other_leg())
        return name

    def other_leg(self) -> str:
        return "name one of them." if self.legs else "put something with a leg into the box."

    def number(self, name: str, leg: str | None, other: str | None) -> Arith:
        """A parameter that is a number; one that is known now must be in its range."""
        tree, value = self.scope.number(self.written(name), f"'{name}'", lengths=name in _LENGTHS)  # type: ignore[arg-type]
        if value is None:
            return tree
        fine, wanted, example = _RANGES.get(name, (lambda _: True, "", ""))
        if not fine(value):
            raise Refusal("number", f"'{name}' is {value}; it must be {wanted}.", f"e.g. '{name}: {example}'.")
        if name == "k":
            self.check_k(value, leg or "")
        if name == "blocks":
            _, fraction = self.scope.number(self.written("fraction"), "'fraction'")  # type: ignore[arg-type]
            self.check_rope(1 if fraction is None else fraction, value, leg or "", other or "")
        return tree

    def call(self, known: dict[str, int], what: str, text: str) -> Function:
        """`softcap(30)`, `band(5)`: a known name with the right number of arguments."""
        parsed = parse_call(text)
        name, span = parsed.name, (parsed.span[0], parsed.span[0] + len(parsed.name))
        if name not in known:
            hint = self.scope.reporter.nearest(name, known)
            raise Refusal(f"unknown-{what}", f"there is no {what} '{name}'.", hint, span)
        if len(parsed.arguments) != known[name]:
            wanted = f"{known[name]} argument{'s' * (known[name] != 1)}" if known[name] else "no arguments"
            message = f"'{name}' takes {wanted}, {len(parsed.arguments)} given."
            raise Refusal("arguments", message, f"e.g. '{_USAGE.get(name, name)}'.", parsed.span)
        return self.scope.function(parsed, f"a {what}")

    def check_k(self, k: int | float, leg: str) -> None:
        size = self.scope.sizes.legs[leg].size
        if not isinstance(k, int) or k < 1:
            raise Refusal("number", f"'k' is {k}; it must be a whole number from 1.", "e.g. 'k: 2'.")
        if size is not None and k > size and leg not in self.scope.sizes.broken:
            raise Refusal("k-too-large", f"'k' is {k}, but leg '{leg}' has size {size}.", f"at most {size}.")

    def check_rope(self, fraction: int | float, blocks: int | float, leg: str, along: str) -> None:
        legs = self.scope.sizes.legs
        if not legs[leg].sequence and not self.broken(leg):
            self.written("rope")
            hint = "rope turns by the position on one, e.g. 'rope: n'."
            raise Refusal("box-leg", f"'{leg}' is no query or key leg.", hint)
        width = legs[along].size
        if width is None and not self.broken(along):
            self.written("along")
            raise Refusal("box-leg", f"leg '{along}' is sized at run time.", "turn along a feature leg.")
        if not isinstance(blocks, int) or blocks < 1 or (width or blocks) % blocks:
            self.written("blocks")
            message = f"the {width} entries of '{along}' do not make {blocks} equal blocks."
            raise Refusal("number", message, f"'blocks' divides the size of '{along}'.")
        block = (width or 2 * blocks) // blocks
        part = fraction * block
        if not 0 < part <= block or part % 2:
            self.written("fraction" if fraction != 1 else "along" if blocks == 1 else "blocks")
            whole = f"entries of '{along}'" if blocks == 1 else f"entries of a block of '{along}'"
            message = f"{fraction} of the {block} {whole} is {part:g}; they are turned in pairs."
            raise Refusal("number", message, f"an even number of entries, at most {block}.")

    def masks(self, leg: str | None) -> tuple[Function, ...]:
        if self.kind not in MASKED_BOXES:
            return ()
        written = self.written("mask")
        if isinstance(written, str):
            return (self.mask(written, leg or ""),)
        masks = []
        for place, text in enumerate(written if isinstance(written, tuple) else ()):
            self.at = (*self.path, "mask", place)
            masks.append(self.mask(text, leg or ""))
        return tuple(masks)

    def mask(self, text: str, leg: str) -> Function:
        mask = self.call(MASKS, "mask", text)
        kinds = {self.scope.sizes.legs[name].kind for name in self.legs or ()}
        kind = self.scope.sizes.legs[leg].kind
        if kind != "key" and not self.broken(leg):
            message = f"a mask acts along the key leg; this box is over '{leg}', a {_noun(kind)}."
            raise Refusal("mask-place", message, "remove the mask.")
        if "query" not in kinds and not self.broken(*self.legs or ()):
            message = f"'{mask.name}' needs the query leg in the box; its legs are {' '.join(self.legs or ())}."
            raise Refusal("mask-place", message, "only key_mask acts in such a box.")
        values = [self.scope.evaluated(argument) for argument in mask.arguments]
        known = [value for value in values if value is not None]
        if any(not isinstance(value, int) or abs(value) > 2**31 for value in known):
            raise Refusal("number", f"'{text}' needs whole numbers below 2 ** 31.", f"e.g. '{_USAGE[mask.name]}'.")
        if mask.name == "band" and any(value < 0 for value in known):
            raise Refusal("number", f"'{text}' sees nothing: its width is below 0.", "e.g. 'band(5)'.")
        if mask.name == "window" and len(known) == 2 and known[0] + known[1] < 0:
            raise Refusal("number", f"'{text}' sees nothing: left + right is below 0.", "e.g. 'window(4, 0)'.")
        return mask

    def result(self, leg: str, other: str) -> tuple[str, ...]:
        legs = self.legs or ()
        if self.kind in REDUCTIONS:
            return tuple(name for name in legs if name != leg)
        if self.kind == "topk":
            return self.check_by(leg, legs)
        if self.kind == "rel_shift":
            return self.shifted(leg, other, legs)
        return self.fast_weights(leg) if self.kind == "delta_rule" else legs

    def check_by(self, leg: str, legs: tuple[str, ...]) -> tuple[str, ...]:
        by = self.operands["by"].legs
        if leg not in by or set(by) - set(legs):
            self.written("by")
            has = f"'by' has legs {' '.join(by) or 'none'}; 'of' has {' '.join(legs)}"
            raise Refusal("box-leg", f"{has}.", f"'by' has '{leg}', and no leg that 'of' lacks.")
        return legs

    def shifted(self, leg: str, to: str, own: tuple[str, ...]) -> tuple[str, ...]:
        """(... n, p) to (... n, m); where `of` lacks the query leg, every query has the same table."""
        legs, query = self.scope.sizes.legs, self.scope.query
        if legs[leg].kind != "relative" and not self.broken(leg):
            self.written("rel_shift")
            raise Refusal("box-leg", f"'{leg}' is no relative leg.", "declare one, e.g. 'p: relative'.")
        if (legs[to].kind != "key" and not self.broken(to)) or to in own:
            self.written("to")
            raise Refusal("box-leg", f"'{to}' is no key leg to shift to.", "name the key leg, which 'of' lacks.")
        if query is None:
            self.written("to")
            raise Refusal("box-leg", "there is no query leg to shift from.", "declare one, e.g. 'n: query'.")
        self.scope.used_legs.add(query)
        replacement = (to,) if query in own else (query, to)
        place = own.index(leg)
        return (*own[:place], *replacement, *own[place + 1 :])

    def fast_weights(self, leg: str) -> tuple[str, ...]:
        """The value's legs with the key leg replaced by the query leg."""
        query = self.scope.query or ""
        if self.scope.sizes.legs[leg].kind != "key" and not self.broken(leg):
            self.written("delta_rule")
            raise Refusal("box-leg", f"'{leg}' is no key leg.", "fast weights run along the keys.")
        for role, use in self.operands.items():
            wanted, other = (query, leg) if role == "query" else (leg, query)
            if (wanted not in use.legs or other in use.legs) and not self.broken(*use.legs):
                self.written(role)
                message = f"'{role}' has legs {' '.join(use.legs) or 'none'}; it needs '{wanted}' and not '{other}'."
                raise Refusal("box-leg", message, f"only 'query' stands on '{query}'; the others stand on '{leg}'.")
        q, k, v, rate = (set(self.operands[role].legs) - {query, leg} for role in ("query", "key", "value", "rate"))
        for role, strange in (("query", q - k - v), ("key", k - q - v), ("rate", rate - v)):
            if strange:
                self.written(role)
                names = ", ".join(f"'{name}'" for name in sorted(strange))
                shared = "query and key share it, or the value has it."
                hint = "the rate has legs of the value." if role == "rate" else shared
                raise Refusal("dangling", f"leg {names} of '{role}' meets nothing.", hint)
        return tuple(query if name == leg else name for name in self.operands["value"].legs)


def _noun(kind: str) -> str:
    return "leg with a size" if kind == "size" else f"{kind} leg"
