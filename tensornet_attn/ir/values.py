"""Values in emitted code: Python expressions with legs for dimensions, and the code that rearranges dimensions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensornet_attn.ir.steps import within

Legs = tuple[str, ...]

# Precedence of expressions, lowest first.
SUM, MATMUL, PRODUCT, ATOM = range(4)


@dataclass(frozen=True)
class TensorText:
    """`text` is an expression with the last dimensions `legs`; a `batched` value may have batch dimensions before them.

    The first `packed` legs of a value are one dimension; `unpack` is the call that splits it.
    """

    text: str
    legs: Legs
    batched: bool
    level: int = ATOM
    packed: int = 1
    unpack: str = ""

    @property
    def atom(self) -> str:
        """The expression, in parentheses if a call or an index could not follow it."""
        return self.text if self.level == ATOM else f"({self.text})"

    @property
    def unpacked(self) -> TensorText:
        return replace(self, text=self.atom + self.unpack, level=ATOM, packed=1, unpack="") if self.unpack else self

    def renamed(self, declared: Legs, used: Legs) -> TensorText:
        """The value with its legs renamed by position."""
        names = dict(zip(declared, used, strict=True))
        return replace(self, legs=tuple(names[leg] for leg in self.legs))

    def arranged(self, want: Legs) -> TensorText:
        """The value with its legs in the order of `want`."""
        if self.legs == want:
            return self
        return TensorText(permuted(self.atom, self.legs, want), want, self.batched)

    def aligned(self, want: Legs, whole: bool = False) -> TensorText:
        """The value with size 1 for missing legs of `want`; broadcasting adds leading ones, unless `whole`."""
        have = within(want, self.legs)
        arranged = self.arranged(have)
        subscripts = [":" if leg in have else "None" for leg in want]
        while subscripts and subscripts[0] == "None" and not self.batched and not whole:
            subscripts.pop(0)  # added by broadcasting
        dots = self.batched or len(subscripts) > 3
        while dots and subscripts and subscripts[0] == ":":
            subscripts.pop(0)
        if "None" not in subscripts:
            return replace(arranged, legs=want)
        index = ", ".join(["...", *subscripts] if dots else subscripts)
        return TensorText(f"{arranged.atom}[{index}]", want, self.batched)

    def grouped(self, groups: tuple[Legs, ...]) -> str:
        """An expression with one dimension for each group of legs; an empty group becomes a dimension of size 1."""
        full = tuple(group for group in groups if group)
        if all(_together(self.legs, group) for group in full):
            order = sorted(full, key=lambda group: self.legs.index(group[0]))
            expression = permuted(_merged(self.atom, tuple(order)), _names(order), _names(full))
        else:
            expression = _merged(self.arranged(sum(full, ())).atom, full)
        for dimension in range(-1, -len(groups) - 1, -1):  # from the end, so that later dimensions exist
            if not groups[dimension]:
                expression += "[..., None]" if dimension == -1 else f".unsqueeze({dimension})"
        return expression


def _names(groups: list[Legs] | tuple[Legs, ...]) -> Legs:
    return tuple(" ".join(group) for group in groups)


def _together(legs: Legs, group: Legs) -> bool:
    start = legs.index(group[0])
    return legs[start : start + len(group)] == group


def _merged(expression: str, groups: tuple[Legs, ...]) -> str:
    """Flattens each group of neighbouring legs; the last group first, so that the other positions stay valid."""
    for trailing, group in enumerate(reversed(groups)):
        if len(group) > 1:
            expression = flattened(expression, -trailing - len(group), -trailing - 1)
    return expression


def permuted(expression: str, have: Legs, want: Legs) -> str:
    """An expression with its last dimensions permuted."""
    if have == want:
        return expression
    count = len(have)
    moved = [dimension for dimension in range(count) if have[dimension] != want[dimension]]
    if len(moved) == 2:
        return f"{expression}.transpose({moved[0] - count}, {moved[1] - count})"
    single = _one_moved(have, want)
    if single is not None:
        source, target = single
        return f"{expression}.movedim({source - count}, {target - count})"
    first_moved = moved[0]
    sources = ", ".join(str(have.index(leg) - count) for leg in want[first_moved:])
    targets = ", ".join(str(dimension - count) for dimension in range(first_moved, count))
    return f"{expression}.movedim(({sources}), ({targets}))"


def _one_moved(have: Legs, want: Legs) -> tuple[int, int] | None:
    """(from, to) if moving one leg is enough, otherwise None."""
    for source, leg in enumerate(have):
        target = want.index(leg)
        remaining = (*have[:source], *have[source + 1 :])
        if source != target and (*remaining[:target], leg, *remaining[target:]) == want:
            return source, target
    return None


def flattened(expression: str, first: int, last: int) -> str:
    """An expression with the dimensions `first` to `last`, counted from the end, flattened."""
    if first == last:
        return expression
    return f"{expression}.flatten({first})" if last == -1 else f"{expression}.flatten({first}, {last})"


def shape_comment(value: TensorText) -> str:
    """The comment at the end of a line: the shape by leg."""
    legs = (f"({' '.join(value.legs[: value.packed])})", *value.legs[value.packed :]) if value.unpack else value.legs
    return " ".join((["..."] if value.batched else []) + list(legs)) or "a scalar"
