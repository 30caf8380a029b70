"""Replaces masked entries before they can produce NaN: a gradient would multiply an infinite entry by zero.

# D = exp(E);  A = keep over m of D, causal     ->     E' = E, 1 where masked;  D = exp(E');  A = keep over m of D
# K = memory Wk;  A = softmax over m of Q K     ->     memory' = memory, 0 at hidden keys;  K = memory' Wk;  A as it was
# S = K V, summed over m     ->     V' = V, 0 at hidden keys;  S = K V', summed over m
# A = softmax over m;  S = Q K;  P = A S     ->     S' = S, 0 where masked;  P = A S'
# S = Q K;  E = S D;  A = keep over m of E     ->     S' = S, 0 where masked;  E = S' D;  A = keep over m of E

This applies to graphs that are evaluated or emitted; plans are made from graphs without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

from tensornet_attn.graph.attention import behind
from tensornet_attn.graph.diagram import on_pairs, operation_of, size_of
from tensornet_attn.graph.graph import Box, Function, Graph, Kernel, Seen, Step, Use
from tensornet_attn.graph.hidden import BY_KEY, EVERYTHING, counting, flattened, hider, looks, zero_at_pairs
from tensornet_attn.graph.pairs import batched
from tensornet_attn.ir.arithmetic import Number
from tensornet_attn.ops import OPS
from tensornet_attn.rewrite.change import fresh, leaf, with_uses

_EXP = Function("exp")
_FACTOR, _OPERAND = 0, 1  # replacements of masked entries: all boxes and their derivatives are finite at 1
_POWER = -inf  # for exp, so that the result and its derivative are zero


def hiding(
    graph: Graph, shown: Iterable[str] = (), everywhere: bool = False, blocks: bool = False, keys: bool = False
) -> Graph:
    """The graph with a box `hide` wherever masked entries could produce NaN.

    A box is inserted before maps that are infinite at some number, or have an infinite derivative; before all maps and
    products of an input with query and key leg, whose entries may be infinite; and before a product of rows, which may
    overflow, is multiplied by a masked map, or by a map with gradients if a `keep` reads the result, or is the operand
    of a map whose derivative at infinity is NaN. `everywhere`:
    before all maps and products. `shown` names steps whose entries are all needed. `blocks`: the graph runs on blocks
    of queries and keys, whose entries beyond the last position are masked too, so that such maps get a box even if all
    entries are visible. `keys`: inputs may be infinite also at keys that the key mask hides; then boxes are inserted
    where they are read. They are also inserted for the products that sum keys, which count hidden ones otherwise; not
    if `everywhere`.
    """
    builder = _Hiding(graph, looks(graph, shown), everywhere, blocks, keys)
    for step in graph.steps:
        builder.add(step)
    return replace(graph, steps=tuple(builder.steps))


@dataclass
class _Hiding:
    """`doubtful` names tensors and steps with possibly infinite masked entries, `rows` those with such rows.

    `large` names products, which may overflow at masked pairs, and what is computed of them, `masked` what is zero
    there, `learned` what has gradients. `boxes` has the boxes so far. `empty` names what is zero at hidden keys because
    of them.
    """

    graph: Graph
    looks: Mapping[str, tuple[Seen, ...]]
    everywhere: bool
    blocks: bool
    keys: bool
    steps: list[Step] = field(default_factory=list)
    boxes: dict[tuple[Use, Seen, float], Use] = field(default_factory=dict)
    empty: set[str] = field(default_factory=set)
    large: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        inputs = self.graph.of_role("input")
        self.doubtful = {tensor.name for tensor in inputs if on_pairs(self.graph, tensor.legs)}
        self.rows = {tensor.name for tensor in inputs if self.keys and not tensor.finite}
        self.masked = zero_at_pairs(self.graph)
        weights = self.graph.of_role("weight")
        self.learned = {tensor.name for tensor in (*inputs, *weights) if not tensor.frozen}
        self.counting = counting(self.graph) if self.keys and not self.everywhere else {}
        self.batched = batched(self.graph) if self.counting else frozenset()

    def add(self, step: Step) -> None:
        """Adds a step, preceded by its boxes."""
        if step.kernel is not None:
            self.add_kernel(step, step.kernel)
            return
        harmful = self.harmful(step)
        power = step.box is not None and step.box.function == _EXP and not self.everywhere
        factor = step.box is None or not operation_of(step).multiplies
        fill = _FACTOR if factor else _POWER if power else _OPERAND
        new_uses = []
        for use, look, harm in zip(step.uses, self.looks[step.name], harmful, strict=True):
            if use.name in self.doubtful and not harm and not self.own_masks(step):
                self.doubtful.add(step.name)
            new_uses.append(self.hidden(step, use, look, fill) if harm else use)
        self.rows |= {step.name} if any(use.name in self.rows for use in new_uses) else set()
        product = any(len(term.factors) > 1 for term in step.terms) or any(use.name in self.large for use in new_uses)
        if product and on_pairs(self.graph, step.legs) and step.name not in self.masked:
            self.large.add(step.name)
        new_uses = self.with_zeros(step, new_uses) if step.name in self.counting else new_uses
        if self.is_empty(step, new_uses):
            self.empty.add(step.name)
        uses = iter(new_uses)
        self.steps.append(with_uses(step, lambda use: next(uses)) if tuple(new_uses) != step.uses else step)

    def with_zeros(self, step: Step, uses: list[Use]) -> list[Use]:
        """The uses of a step, of which one in each product that sums the keys is zero at hidden keys."""
        zeroed, start = [*uses], 0
        for term in step.terms:
            indices, start = range(start, start + len(term.factors)), start + len(term.factors)
            keys = [index for index in indices if self.graph.key in uses[index].legs]
            if term in self.counting[step.name] and not any(uses[index].name in self.empty for index in keys):
                least = min(keys, key=lambda index: self.size(uses[index]))
                zeroed[least] = self.hidden(step, uses[least], BY_KEY, _FACTOR)
        return zeroed

    def size(self, use: Use) -> tuple[bool, bool, int]:
        """The order in which factors are hidden: keys alone, those with a batch, then by their elements per key."""
        elements = prod(size_of(self.graph, leg) or 1 for leg in use.legs)
        return on_pairs(self.graph, use.legs), use.name not in self.batched, elements

    def is_empty(self, step: Step, uses: Sequence[Use]) -> bool:
        """Whether a step that reads these uses is zero at hidden keys."""
        if not self.empty or self.graph.key not in step.legs:
            return False
        if step.contraction is not None:
            rest = iter(uses)
            terms = [[next(rest) for _ in term.factors] for term in step.terms]
            return all(any(use.name in self.empty and self.graph.key in use.legs for use in term) for term in terms)
        box = step.box
        if box is None or self.graph.key in OPS[box.kind].legs_mixed(box):
            return False
        return OPS[box.kind].zero_at_zero(self.graph, box) and all(use.name in self.empty for use in uses)

    def add_kernel(self, step: Step, kernel: Kernel) -> None:
        """Adds a kernel, which reads other steps instead of those with hidden keys."""
        replacements: dict[str, Use] = {}
        for use, seen in self.read_on_keys(step).items():
            if seen == {BY_KEY}:
                replacements[use.name] = self.hidden(step, use, BY_KEY, _FACTOR)
        inner_steps = [*flattened(step)]
        for inner in inner_steps:
            for term in self.counting.get(inner.name, ()):
                factor = hider(self.graph, inner_steps, term, self.looks)
                assert factor is not None, f"no operand of '{step.name}' hides keys from '{inner.name}'"
                replacements.setdefault(factor.name, self.hidden(step, leaf(self.graph, factor), BY_KEY, _FACTOR))
        shown = (use for use in kernel.uses if use.name not in replacements or not self.on_keys(use.legs))
        self.rows |= {step.name} if any(use.name in self.rows for use in shown) else set()
        hidden = tuple((name, use.name) for name, use in replacements.items())
        self.steps.append(replace(step, op=replace(kernel, uses=(*kernel.uses, *replacements.values()), hidden=hidden)))

    def read_on_keys(self, step: Step) -> dict[Use, set[Seen]]:
        """What a kernel reads that may be infinite at hidden keys, under its own leg names, and what its steps see."""
        reads: dict[Use, set[Seen]] = {}
        for inner in flattened(step):
            for use, look in zip(inner.uses, self.looks[inner.name], strict=True):
                if use.name in (self.rows if self.on_keys(use.legs) else self.doubtful):
                    reads.setdefault(leaf(self.graph, use), set()).add(look)
        return reads

    def own_masks(self, step: Step) -> bool:
        """Whether a step applies masks itself."""
        return step.kernel is not None or self.graph.masked(step)

    def on_keys(self, legs: Iterable[str]) -> bool:
        return self.graph.key in {*legs} and not on_pairs(self.graph, legs)

    def harmful(self, step: Step) -> list[bool]:
        """For each use, whether a possibly infinite entry would produce NaN; rows are hidden where they are read."""
        if self.graph.masked(step):
            return [False] * len(step.uses)
        rows = [self.on_keys(use.legs) and use.name in self.rows for use in step.uses]
        if step.contraction is not None:
            infinite = [
                len(term.factors) > 1 and (self.infinite(use) or self.overflows(step, use, term.factors))
                for term in step.terms
                for use in term.factors
            ]
            return [row or pair for row, pair in zip(rows, infinite, strict=True)]
        if step.box is None or not operation_of(step).multiplies:
            return rows
        operation = operation_of(step)
        always = self.everywhere or not operation.finite(self.graph, step.box)
        harmful = self.doubtful | self.large if operation.nan_slope(step.box) else self.doubtful
        return [row or always or use.name in harmful for row, use in zip(rows, step.uses, strict=True)]

    def infinite(self, use: Use) -> bool:
        return on_pairs(self.graph, use.legs) if self.everywhere else use.name in self.doubtful

    def overflows(self, step: Step, use: Use, factors: Sequence[Use]) -> bool:
        """Whether a factor may be infinite where another one is zero, or its gradient, as that of a map in a `keep`.

        The gradients of kernels of blocks hide such products themselves.
        """
        if use.name not in self.large or any(factor.name in self.masked for factor in factors):
            return use.name in self.large
        readers = [reader.box for reader, _ in self.graph.readers.get(step.name, ())]
        hides = bool(readers) and all(box is not None and OPS[box.kind].only_hides for box in readers)
        maps = [factor.name for factor in factors if on_pairs(self.graph, factor.legs)]
        return hides and not self.blocks and sum(bool(self.learned & behind(self.graph, [name])) for name in maps) > 1

    def hidden(self, step: Step, use: Use, look: Seen, fill: float) -> Use:
        """The replacement of a use of which `look` is visible; kernels hide keys of pairs in what they read."""
        look = EVERYTHING if look == BY_KEY and not self.keys and on_pairs(self.graph, use.legs) else look
        if look == EVERYTHING and not (self.blocks and fill != _FACTOR and on_pairs(self.graph, use.legs)):
            return use
        operand = leaf(self.graph, use) if self.on_keys(use.legs) else use
        if (operand, look, fill) not in self.boxes:
            taken = replace(self.graph, steps=(*self.graph.steps, *self.steps))
            box = Box("hide", self.graph.key, (("of", operand),), (("fill", Number(fill)),), seen=look)
            name = fresh(taken, f"{operand.name if self.on_keys(operand.legs) else step.name}.hidden")
            self.steps.append(Step(name, box, operand.legs))
            self.boxes[operand, look, fill] = Use(name, operand.legs)
            self.empty |= {name} if fill == _FACTOR else set()
        return replace(self.boxes[operand, look, fill], legs=use.legs)
