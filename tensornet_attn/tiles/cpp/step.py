"""The C++ of one position: what lies between its products with weights, and the new states, for one head at a time.

# K = x Wk;  V = x Wv;  Q = x Wq;  {S = past + phi(K) V;  z = zpast + phi(K);  r = phi(Q) S / (phi(Q) z)};  y = r Wo

A step of decoding of few sequences is mostly calls; here, all steps in braces are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tensornet_attn.graph.attention import behind
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph, Step, Tensor, Use, cached
from tensornet_attn.graph.pairs import batched, overwrites, summed
from tensornet_attn.ir.arithmetic import Arith, evaluate, names
from tensornet_attn.ir.steps import within, without
from tensornet_attn.ir.values import Legs
from tensornet_attn.ops.map import arguments, row
from tensornet_attn.tiles.cpp.source import headed
from tensornet_attn.tiles.cpp.values import mapped
from tensornet_attn.tiles.program import Node

LEAST = 4  # calls of torch that take as long as this one: what a device takes for a call is in both prices
STACK = 1 << 15  # numbers of a program that are neither operands nor results
NORMS = {  # what is summed along the leg, and the divisor, given the sum, its number of entries and eps
    "l1norm": ("tl::abs({x})", "{sum} + {eps}"),
    "l2norm": ("{x} * {x}", "tl::sqrt({sum}) + {eps}"),
    "rmsnorm": ("{x} * {x}", "tl::sqrt({sum} / {size} + {eps})"),
}


@dataclass(frozen=True)
class PositionSteps:
    """Steps of a graph of one position that run in one call: `before` it run others, and `after` it those of its results.

    `heads`: the legs of its programs.
    """

    graph: Graph
    heads: Legs
    before: tuple[Step, ...]
    inside: tuple[Step, ...]
    after: tuple[Step, ...]

    @cached_property
    def overwritten(self) -> dict[str, str]:
        return overwrites(self.graph)

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """What the steps inside read, states first: they have batch dimensions."""
        made = {step.name for step in self.inside}
        read = dict.fromkeys(use.name for step in self.inside for use in step.uses if use.name not in made)
        return tuple(sorted(read, key=lambda name: name not in states_of(self.graph)))

    @cached_property
    def results(self) -> tuple[Step, ...]:
        """The steps inside that others read, and the new states."""
        read = {use.name for step in (*self.before, *self.after) for use in step.uses} | {*self.graph.results}
        return tuple(step for step in self.inside if step.name in read)

    def sizes(self, name: str) -> tuple[int, ...]:
        return tuple(size_of(self.graph, leg) or 1 for leg in self.graph.legs_of(name))

    def count(self, name: str) -> int:
        return prod(self.sizes(name))

    @cached_property
    def text(self) -> str:
        """The function `position(count, threads, memory)`, with pointers to the operands, then to results that are new."""
        return headed() + _Printer(self).text()


def states_of(graph: Graph) -> dict[str, Tensor]:
    """The old states, by name."""
    return {tensor.name: tensor for tensor in graph.of_role("input") if tensor.update}


@cached
def position_steps(graph: Graph) -> PositionSteps | None:
    """The steps that one call computes; None if there are none, or so few that torch takes no longer."""
    states = sorted(states_of(graph).values(), key=lambda tensor: -len(tensor.legs))
    if not states or any(graph.leg[leg].sequence for tensor in graph.tensors for leg in tensor.legs):
        return None
    first, mixed = states[0], {step.box.leg for step in graph.steps if step.box is not None}
    mixed |= {leg for step in graph.steps if batched(graph) >= _names(step) for leg in summed(step)}
    heads = within(first.legs, {leg for leg in first.legs if all(leg in state.legs for state in states)} - mixed)
    heads = heads[:-1] if heads == first.legs else heads
    behind_states, blocked, apart = {state.name for state in states}, set[str](), set[str]()
    for step in graph.steps:
        read, fits = _names(step), _fits(graph, step, heads)
        if read & behind_states:
            behind_states.add(step.name)
            if not fits or read & blocked:
                blocked.add(step.name)
        elif not fits:
            apart.add(step.name)
    without_states = behind(graph, [*apart])
    inside = {step.name for step in graph.steps} - blocked - without_states
    for step in reversed(graph.steps):  # what weights alone give stays outside if others read it
        outside = any(reader.name not in inside for reader, _ in graph.readers.get(step.name, ()))
        if step.name not in batched(graph) and (outside or step.name in graph.results):
            inside -= behind(graph, [step.name])
    if not overwrites(graph).keys() <= inside or len(inside) < LEAST or inside.isdisjoint(behind_states):
        return None
    own = (without(graph.legs_of(name), *heads) for name in inside - {*overwrites(graph)})
    if sum(prod(size_of(graph, leg) or 1 for leg in legs) for legs in own) > STACK:
        return None
    places = [[step for step in graph.steps if test(step.name)] for test in (
        lambda name: name not in inside | blocked, inside.__contains__, blocked.__contains__
    )]  # fmt: skip
    return PositionSteps(graph, heads, *map(tuple, places))


def _fits(graph: Graph, step: Step, heads: Legs) -> bool:
    """Whether the steps of a head can have this one: it neither mixes heads nor multiplies by a matrix of weights."""
    legs = {leg for use in step.uses for leg in (*use.legs, *graph.legs_of(use.name))} | {*step.legs}
    renamed = (pair for use in step.uses for pair in zip(use.legs, graph.legs_of(use.name), strict=True))
    if any(size_of(graph, leg) is None for leg in legs) or any(a != b and {a, b} & {*heads} for a, b in renamed):
        return False
    if step.box is not None:
        kind, norm = step.box.kind, step.box.leg in without(step.legs, *heads)
        maps = kind == "map" and bool(row(step.box).triton) and _known(graph, arguments(step.box))
        return maps or (kind in NORMS and norm and _known(graph, [step.box.number("eps")]))
    if step.contraction is None or not _known(graph, [term.coefficient for term in step.terms]):
        return False
    products = len(step.terms) == 1 and batched(graph) >= _names(step)
    return not summed(step) or (products and summed(step).isdisjoint(heads))


def _names(step: Step) -> set[str]:
    return {use.name for use in step.uses}


def _known(graph: Graph, numbers: Iterable[Arith]) -> bool:
    return all(name.name in graph.values for number in numbers for name in names(number))


class _Printer:
    """Prints the steps. `names`: the C++ variable of each value, and the steps between entries of its own legs."""

    def __init__(self, steps: PositionSteps):
        self.steps, self.graph, self.heads = steps, steps.graph, steps.heads
        self.names, self.lines = dict[str, tuple[str, list[int]]](), list[str]()

    def size(self, legs: Iterable[str]) -> int:
        return prod(size_of(self.graph, leg) or 1 for leg in legs)

    def number(self, tree: Arith) -> str:
        return f"real({float(evaluate(tree, self.graph.values))!r})"

    def text(self) -> str:
        overwritten = self.steps.overwritten
        for place, name in enumerate(self.steps.operands):
            self.outside(name, place, "" if name in overwritten.values() else "const ")
        new = [step.name for step in self.steps.results if step.name not in overwritten]
        for place, name in enumerate(new, len(self.steps.operands)):
            self.outside(name, place, "")
        for step in self.steps.inside:
            self.step(step)
        heads, index = [], "p"
        for place, leg in reversed([*enumerate(self.heads)]):
            size = self.size([leg])
            heads.append(f"const long h{place} = {index} % {size};")
            index = f"({index} / {size})"
        body = "\n".join(f"      {line}" for line in [*heads, f"const long b = {index};", *self.lines])
        return f"""extern "C" void position(long count, int threads, void* const* memory) {{
  #pragma omp parallel num_threads(threads) if(threads > 1)
  {{
    Flush flush;
    #pragma omp for
    for (long p = 0; p < count * {self.size(self.heads)}; ++p) {{
{body}
    }}
  }}
}}
"""

    def outside(self, name: str, place: int, const: str) -> None:
        """The pointer to a head of a tensor."""
        legs = self.graph.legs_of(name)
        strides = [self.size(legs[axis + 1 :]) for axis in range(len(legs))]
        terms = [f"b * {self.size(legs)}"] if name in batched(self.graph) else []
        terms += [
            f"h{self.heads.index(leg)} * {stride}"
            for leg, stride in zip(legs, strides, strict=True)
            if leg in self.heads
        ]
        self.names[name] = f"x{place}", strides
        start = " + ".join([f"({const}real*)memory[{place}]", *terms])
        self.lines.append(f"{const}real* {'' if const else '__restrict '}x{place} = {start};")

    def at(self, use: Use) -> str:
        """An entry of a value."""
        variable, strides = self.names[use.name]
        terms = [f"i_{leg} * {stride}" for leg, stride in zip(use.legs, strides, strict=True) if leg not in self.heads]
        return f"{variable}[{' + '.join(terms) or '0'}]"

    def loop(self, legs: Iterable[str], body: str, reduced: str = "") -> None:
        """Loops over legs."""
        loops = [f"for (int i_{leg} = 0; i_{leg} < {self.size([leg])}; ++i_{leg})" for leg in legs]
        if loops:
            self.lines += [*loops[:-1], f'_Pragma("omp simd{reduced}")']
        self.lines.append(f"{loops[-1] if loops else ''} {body}".strip())

    def step(self, step: Step) -> None:
        legs = without(step.legs, *self.heads)
        if step.name in self.steps.overwritten:
            self.names[step.name] = self.names[self.steps.overwritten[step.name]]
        elif step.name not in self.names:
            self.names[step.name] = (
                f"t{len(self.names)}",
                [
                    0 if leg in self.heads else self.size(within(step.legs[axis + 1 :], legs))
                    for axis, leg in enumerate(step.legs)
                ],
            )
            self.lines.append(f"alignas(64) real t{len(self.names) - 1}[{self.size(legs)}];")
        target = self.at(step.use)
        if step.box is not None and step.box.kind == "map":
            values = [self.at(step.box.of), *map(self.number, arguments(step.box))]
            self.loop(legs, f"{target} = {mapped(Node('map', (), (), step.name, (row(step.box).name,)), values)};")
        elif step.box is not None:
            self.norm(step, legs, target)
        elif inner := summed(step):
            self.product(step, legs, inner, target)
        else:
            terms = [" * ".join([self.number(term.coefficient), *map(self.at, term.factors)]) for term in step.terms]
            self.loop(legs, f"{target} = {' + '.join(terms)};")

    def norm(self, step: Step, legs: Legs, target: str) -> None:
        assert step.box is not None
        leg, entry = str(step.box.leg), self.at(step.box.of)
        each, divisor = NORMS[step.box.kind]
        outer = without(legs, leg)
        self.lines += [f"for (int i_{other} = 0; i_{other} < {self.size([other])}; ++i_{other})" for other in outer]
        self.lines += ["{", "real sum = 0;"]
        self.loop([leg], f"sum += {each.format(x=entry)};", " reduction(+:sum)")
        self.lines.append(
            f"sum = 1 / ({divisor.format(sum='sum', size=self.size([leg]), eps=self.number(step.box.number('eps')))});"
        )
        self.loop([leg], f"{target} = {entry} * sum;")
        self.lines.append("}")

    def product(self, step: Step, legs: Legs, inner: frozenset[str], target: str) -> None:
        """A sum of products, along the last leg of the largest factor in the innermost loop."""
        (term,) = step.terms
        product = " * ".join([self.number(term.coefficient), *map(self.at, term.factors)])
        last = max(term.factors, key=lambda use: self.size(use.legs)).legs[-1]
        order = (*without(legs, last), *without(inner, last))
        self.loop(legs, f"{target} = 0;")
        if last in legs:
            self.loop((*order, last), f"{target} += {product};")
            return
        self.lines += [f"for (int i_{leg} = 0; i_{leg} < {self.size([leg])}; ++i_{leg})" for leg in order]
        self.lines += ["{", "real sum = 0;"]
        self.loop([last], f"sum += {product};", " reduction(+:sum)")
        self.lines += [f"{target} += sum;", "}"]
