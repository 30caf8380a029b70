"""The value of a weight from the tensors of a special case: a name, an initialiser, or a contraction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tensornet_attn.errors import nearest
from tensornet_attn.graph.graph import Function, Graph
from tensornet_attn.ir import arithmetic
from tensornet_attn.ir.arithmetic import ONE, Arith
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.spec.expression import CallText, SumText, UseText, parse_call, parse_sum_text
from tensornet_attn.spec.report import meant

STARTS = ("zeros", "ones", "eye", "full", "kron", "row", "column")  # initialisers without random numbers
EXAMPLE = "e.g. 'Wk', 'zeros', 'sqrt(h) * kron(eye(h), ones(d, d))' or 'Wk[f h d] -> f r h d'."


@dataclass(frozen=True)
class WeightFormula:
    """coefficient * (a tensor of the special case, an initialiser, or a contraction of its tensors)."""

    coefficient: Arith
    source: str | Function | SumText


def parse_value(text: str, special: Graph) -> WeightFormula:
    """Parses the value of a weight. Raises Refusal."""
    if "->" in text:
        return WeightFormula(ONE, parse_sum_text(text))
    left, right = _split(text)
    coefficient = arithmetic.parse(left) if left else ONE
    call = parse_call(right)
    if call.name in special.tensor and not call.arguments:
        return WeightFormula(coefficient, call.name)
    if call.name not in STARTS:
        names = [name for name in special.tensor if special.tensor[name].role in ("weight", "constant", "state")]
        message = f"'{special.name}' has no tensor '{call.name}', and no initialiser has this name."
        raise Refusal("unknown-value", message, _hint(call.name, [*names, *STARTS]))
    return WeightFormula(coefficient, _function(call))


def _hint(name: str, candidates: list[str]) -> str:
    hint = nearest(name, candidates)
    return hint if meant(hint) else EXAMPLE


def _split(text: str) -> tuple[str, str]:
    """`2 * Wo` as ("2", "Wo"): split at the last `*` outside parentheses; `**` does not count."""
    depth, cut = 0, -1
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        power = "**" in (text[index : index + 2], text[max(0, index - 1) : index + 1])
        if character == "*" and depth == 0 and not power:
            cut = index
    return text[: max(cut, 0)].strip(), text[cut + 1 :].strip()


def _function(call: CallText) -> Function:
    return Function(call.name, tuple(_function(a) if isinstance(a, CallText) else a for a in call.arguments))


def numbers_of(value: WeightFormula) -> list[str]:
    """The names of legs and settings in the arithmetic of a value."""
    trees = [value.coefficient]
    if isinstance(value.source, SumText):
        trees += [term.coefficient for term in value.source.terms]
    elif isinstance(value.source, Function):
        trees += _arguments(value.source)
    return [name.name for tree in trees for name in arithmetic.names(tree)]


def _arguments(function: Function) -> list[Arith]:
    nested = [_arguments(a) if isinstance(a, Function) else [a] for a in function.arguments]
    return [tree for trees in nested for tree in trees]


@dataclass(frozen=True)
class Shaped:
    """The legs (name, size) of a value before it is stored. `legs` is None for an initialiser, which fits any shape."""

    legs: tuple[tuple[str, int], ...] | None

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.legs or ())


def shape_of(value: WeightFormula, special: Graph, sizes: dict[str, int]) -> Shaped:
    """The legs of a value; `sizes`: leg sizes of both designs, for broadcast legs. Raises Refusal."""
    if isinstance(value.source, Function):
        return Shaped(None)
    if isinstance(value.source, str):
        return Shaped(tuple(zip(special.legs_of(value.source), stored(special, value.source), strict=True)))
    leg_sizes = renamed_sizes(value.source, special, sizes)
    names = [leg.name for leg in value.source.legs]
    for name in names:
        if name not in leg_sizes:
            raise Refusal("unknown-leg", f"no tensor has a leg '{name}'.", EXAMPLE)
        if names.count(name) > 1 and any(name in legs_of(use) for term in value.source.terms for use in term.factors):
            raise Refusal("leg-twice", f"leg '{name}' appears twice in the result.", "only broadcast legs may.")
    return Shaped(tuple((name, leg_sizes[name]) for name in names))


def legs_of(use: UseText) -> list[str]:
    return [leg.name for leg in use.legs or ()]


def renamed_sizes(contraction: SumText, special: Graph, sizes: dict[str, int]) -> dict[str, int]:
    """The size of every leg in a contraction, those of tensors first. `eye[a b]` gives b the size of a."""
    leg_sizes = dict(sizes)
    uses = [use for term in contraction.terms for use in term.factors]
    for use in uses:
        if use.name != "eye":
            leg_sizes |= _renamed(use, special)
    for use in uses:
        legs = legs_of(use)
        if use.name == "eye" and (len(legs) != 2 or not {*legs} & leg_sizes.keys()):
            raise Refusal("leg-count", "'eye', the identity, needs two legs, one of known size.", EXAMPLE)
        if use.name == "eye":
            leg_sizes.setdefault(legs[1], leg_sizes.get(legs[0], 0))
            leg_sizes.setdefault(legs[0], leg_sizes[legs[1]])
    return leg_sizes


def _renamed(use: UseText, special: Graph) -> dict[str, int]:
    if use.name not in special.tensor:
        message = f"'{special.name}' has no tensor '{use.name}'."
        raise Refusal("unknown-name", message, _hint(use.name, ["eye", *special.tensor]))
    sizes = stored(special, use.name)
    if use.legs is None or len(use.legs) != len(sizes):
        message = f"'{use.name}' of '{special.name}' has the legs '{' '.join(special.legs_of(use.name))}'."
        raise Refusal("leg-count", message, EXAMPLE)
    return dict(zip(legs_of(use), sizes, strict=True))


def stored(graph: Graph, name: str) -> tuple[int, ...]:
    """The stored shape of a weight, constant or state. Raises Refusal if the size is known at run time only."""
    shape = graph.shape_of(name)
    if graph.tensor[name].role not in ("weight", "constant", "state") or None in shape:
        message = f"'{name}' of '{graph.name}' is {graph.tensor[name].role}, sized at run time."
        raise Refusal("unknown-name", message, "name a weight, or a constant of fixed size.")
    return tuple(size for size in shape if size is not None)


def matrix_shape(function: Function, numbers: Mapping[str, int | float]) -> tuple[int, int] | None:
    """Rows and columns of eye(a), ones(a, b), row(a, ...), column(a, ...), kron(a, b). Returns None for any shape."""
    arguments = function.arguments
    if function.name in ("row", "column"):
        return (1, len(arguments)) if function.name == "row" else (len(arguments), 1)
    if function.name == "kron":
        shapes = [matrix_shape(a, numbers) if isinstance(a, Function) else None for a in arguments]
        left, right = shapes if len(shapes) == 2 else (None, None)
        if left is None or right is None:
            raise Refusal("arguments", "'kron' takes two matrices.", "e.g. 'kron(eye(h), ones(d, d))'.")
        return left[0] * right[0], left[1] * right[1]
    if function.name not in ("eye", "ones") or not arguments:
        return None
    if len(arguments) != (1 if function.name == "eye" else 2):
        wanted = "one size" if function.name == "eye" else "two sizes"
        message = f"'{function.name}' takes {wanted} here; {len(arguments)} given."
        raise Refusal("arguments", message, "e.g. 'eye(h)', 'ones(d, d)'.")
    sizes = [arithmetic.evaluate(a, numbers) for a in arguments if not isinstance(a, Function)]
    if len(sizes) < len(arguments) or any(not isinstance(size, int) or size < 1 for size in sizes):
        raise Refusal("arguments", f"the sizes of '{function.name}' must be positive integers.", "e.g. 'eye(h)'.")
    return int(sizes[0]), int(sizes[-1])


def place_of(leg: str, shaped: Shaped, target: tuple[int, ...], width: int) -> int | None:
    """The axis of the stored shape that keeps blocks of `width` entries of a leg together. Returns None if none does.

    Row-major: [f, h, d] stored as [f, s] keeps blocks of d in s, and single entries of f in f.
    """
    names = [name for name, _ in shaped.legs or ()]
    if leg not in names:
        return None
    inner = prod(shaped.sizes[names.index(leg) + 1 :])
    for axis in range(len(target)):
        if prod(target[axis + 1 :]) == inner and target[axis] % width == 0:
            return axis
    return None
