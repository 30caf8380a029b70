"""The C++ of one position: what lies between its products with weights, and the new states, for one head at a time.

# K = x Wk;  V = x Wv;  Q = x Wq;  {S = past + phi(K) V;  z = zpast + phi(K);  r = phi(Q) S / (phi(Q) z)};  y = r Wo

A step of decoding of few sequences is mostly calls; here, all steps in braces are one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tensornet_attn.graph.attention import ahead, behind
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph, Step, Use, cached
from tensornet_attn.graph.pairs import batched, overwrites, summed
from tensornet_attn.ir.arithmetic import Arith, evaluate, names
from tensornet_attn.ir.steps import without
from tensornet_attn.ir.values import Legs
from tensornet_attn.ops import OPS
from tensornet_attn.ops.map import arguments, row
from tensornet_attn.tiles.cpp.source import headed
from tensornet_attn.tiles.cpp.values import mapped
from tensornet_attn.tiles.program import Node

LEAST = 4  # calls of torch that take as long as this one: what a device takes for a call is in both prices
STACK = 1 << 15  # numbers of a program that are neither operands nor results
FUNCTION = """extern "C" void position(long count, int threads, void* const* memory) {
  #pragma omp parallel num_threads(threads) if(threads > 1)
  {
    Flush flush;
    #pragma omp for
    for (long p = 0; p < count * @HEADS@; ++p) {
      @BODY@
    }
  }
}
"""


@dataclass(frozen=True)
class PositionSteps:
    """Steps of a graph of one position that run in one call, in programs of one of all `heads`.

    `operands`: what they read, states first; `results`: those that others read, and the new states. `after`: the steps
    that read these. Tensors have heads first.
    """

    graph: Graph
    heads: Legs
    inside: tuple[Step, ...]
    after: tuple[Step, ...]
    operands: tuple[str, ...]
    results: tuple[Step, ...]

    @property
    def words(self) -> str:
        """The results, and how many operations the call computes: `S, z, y.p1 in one call: 8 of 12 operations`."""
        results = ", ".join(step.name for step in self.results)
        return f"{results} in one call: {len(self.inside)} of {len(self.graph.steps)} operations"

    def laid(self, name: str) -> Legs:
        """The legs of a tensor as the C++ has them."""
        legs = self.graph.legs_of(name)
        return (*self.heads, *without(legs, *self.heads)) if self.heads and {*self.heads} <= {*legs} else legs

    def sizes(self, legs: Legs) -> tuple[int, ...]:
        return tuple(size_of(self.graph, leg) or 1 for leg in legs)

    def text(self) -> str:
        """The function `position(count, threads, memory)`: pointers to operands, then to results with memory of their
        own."""
        overwritten, lines = overwrites(self.graph), list[str]()
        outside = (*self.operands, *(step.name for step in self.results if step.name not in overwritten))
        heads, variables = prod(self.sizes(self.heads)), {name: f"x{index}" for index, name in enumerate(outside)}
        for index, name in enumerate(outside):
            legs, writes = self.graph.legs_of(name), index >= len(self.operands) or name in overwritten.values()
            head = "p" if name in batched(self.graph) else f"p % {heads}"
            start = f"({head if {*self.heads} <= {*legs} else f'p / {heads}'}) * {self.inner(legs)}"
            start = "0" if name not in batched(self.graph) and not {*self.heads} <= {*legs} else start
            lines.append(f"real* {'__restrict ' * writes}x{index} = (real*)memory[{index}] + {start};")
        for step in self.inside:
            if step.name not in variables:
                variables[step.name] = variables.get(overwritten.get(step.name, ""), f"t{len(variables)}")
            if variables[step.name].startswith("t"):
                lines.append(f"alignas(64) real {variables[step.name]}[{self.inner(step.legs)}];")
            lines += self.lines(step, variables)
        return headed() + FUNCTION.replace("@HEADS@", str(heads)).replace("@BODY@", "\n      ".join(lines))

    def inner(self, legs: Legs) -> int:
        return prod(self.sizes(without(legs, *self.heads)))

    def lines(self, step: Step, variables: dict[str, str]) -> list[str]:
        """The loops of a step. A sum of products has the last leg of its largest factor innermost."""

        def at(use: Use) -> str:
            legs = without(use.legs, *self.heads)
            declared = without(self.graph.legs_of(use.name), *self.heads)
            terms = [f"i_{leg} * {self.inner(declared[axis + 1 :])}" for axis, leg in enumerate(legs)]
            return f"{variables[use.name]}[{' + '.join(terms) or '0'}]"

        def loop(legs: Legs, body: str, simd: bool = True) -> list[str]:
            loops = [f"for (int i_{leg} = 0; i_{leg} < {self.inner((leg,))}; ++i_{leg})" for leg in legs]
            return [*loops[:-1], *['_Pragma("omp simd")'] * (simd and bool(loops)), *loops[-1:], body]

        def number(tree: Arith) -> str:
            return f"real({float(evaluate(tree, self.graph.values))!r})"

        legs, inner, target = without(step.legs, *self.heads), summed(step), at(step.use)
        divisor_row = None if step.box is None else OPS[step.box.kind].cpp_row
        if step.box is not None and divisor_row is not None:
            leg, x, eps = (str(step.box.leg),), at(step.box.of), number(step.box.number("eps"))
            each, divisor = (text.format(x=x, eps=eps, size=self.inner(leg)) for text in divisor_row)
            sums = [*loop(without(legs, *leg), "{ real sum = 0;", False), *loop(leg, f"sum += {each};", False)]
            return [*sums, f"sum = {divisor};", *loop(leg, f"{target} = sum == 0 ? 0 : {x} / sum;"), "}"]
        if step.box is not None:
            node = Node("map", (), (), step.name, (row(step.box).name,))
            return loop(legs, f"{target} = {mapped(node, [at(step.box.of), *map(number, arguments(step.box))])};")
        terms = " + ".join(" * ".join([number(term.coefficient), *map(at, term.factors)]) for term in step.terms)
        if not inner:
            return loop(legs, f"{target} = {terms};")
        last = max(step.uses, key=lambda use: self.inner(use.legs)).legs[-1]
        order = (*without((*legs, *inner), last), last)
        return [*loop(legs, f"{target} = 0;"), *loop(order, f"{target} += {terms};", last in legs)]


@cached
def position_steps(graph: Graph) -> PositionSteps | None:
    """The steps that one call computes; None if there are none, or so few that torch takes no longer."""
    states = [tensor for tensor in graph.of_role("input") if tensor.update]
    legs = {leg for tensor in graph.tensors for leg in tensor.legs}
    if not states or any(graph.leg[leg].sequence or size_of(graph, leg) is None for leg in legs):
        return None
    products = (step for step in graph.steps if batched(graph) >= step.reads)
    mixed, heads = (
        {leg for step in products for leg in summed(step)},
        max((state.legs for state in states), key=len)[:-1],
    )
    values = [*(tensor.legs for tensor in graph.tensors), *(step.legs for step in graph.steps)]
    while heads and not (
        mixed.isdisjoint(heads)
        and all(state.legs[: len(heads)] == heads for state in states)
        and all({*heads} & {*legs} in (set(), {*heads}) for legs in values)
    ):
        heads = heads[:-1]
    misfits = {step.name for step in graph.steps if not _fits(graph, step, heads)}
    reached = ahead(graph.steps, {state.name for state in states})
    after = ahead(graph.steps, misfits & reached)
    inside = {step.name for step in graph.steps} - after - behind(graph, misfits - reached)
    steps = tuple(step for step in graph.steps if step.name in inside)
    legs_inside = [step.legs for step in steps if step.name not in overwrites(graph)]
    if len(steps) < LEAST or not inside >= overwrites(graph).keys() or inside.isdisjoint(reached):
        return None
    read = dict.fromkeys(use.name for step in steps for use in step.uses if use.name not in inside)
    results = tuple(
        step
        for step in steps
        if step.name in graph.results
        or any(reader.name not in inside for reader, _ in graph.readers.get(step.name, ()))
    )
    operands = sorted(read, key=lambda name: all(name != state.name for state in states))
    last = tuple(step for step in graph.steps if step.name in after)
    position = PositionSteps(graph, heads, steps, last, tuple(operands), results)
    return position if sum(map(position.inner, legs_inside)) <= STACK else None


def _fits(graph: Graph, step: Step, heads: Legs) -> bool:
    """Whether the steps of a head can have this one: it neither mixes heads nor multiplies by a matrix of weights."""
    numbers = [term.coefficient for term in step.terms] if step.box is None else []
    if step.box is not None and step.box.function is not None and row(step.box).triton:
        numbers = [*arguments(step.box)]
    elif step.box is not None and OPS[step.box.kind].cpp_row is not None and step.box.leg in without(step.legs, *heads):
        numbers = [step.box.number("eps")]
    elif step.contraction is None or (summed(step) and (len(step.terms) > 1 or not step.reads <= batched(graph))):
        return False
    turned = {
        leg
        for use in step.uses
        for a, b in zip(use.legs, graph.legs_of(use.name), strict=True)
        for leg in {a, b}
        if a != b
    }
    valued = all(name.name in graph.values for number in numbers for name in names(number))
    return step.name in batched(graph) and valued and (turned | summed(step)).isdisjoint(heads)
