"""Sums of linear attentions to the same values: one call reads queries, keys and values once.

# A = A1.o + A2.o;  A1.o = linear(Q1, K1, V);  A2.o = linear(Q2, K2, V)     ->     A = linear([(Q1, K1), (Q2, K2)], V)
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.cost.kernels import body_of
from tensornet_attn.emit.layout import columns
from tensornet_attn.emit.sides import eps_text, laid, mask_options, matrix, sides_maps, sides_text, small_legs
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.diagram import producer_of
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.recurrence import recurrence_of
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.kernels.features import features_inside, takes_maps
from tensornet_attn.kernels.implementation import Context, Implementation, Lowered, OfSteps, kernel
from tensornet_attn.kernels.linear import DENSE, cpp_option
from tensornet_attn.rewrite.change import with_steps


class Total(OfSteps, Implementation[tuple[Step, ...]]):
    """Sums of kernels that nothing else reads, each of one product of features, in one call."""

    name, kind, pairs = "sum of linear attentions", "total", False
    of_recurrences = True

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        chosen = dict[str, str]()
        for step in () if context.backend == "triton" else graph.steps:
            if kernels := _summed(graph, step):
                cpp = all(summand.kernel and summand.kernel.cpp for summand in kernels)
                total = replace(kernel(self.kind, graph, (), (*kernels, step), kernels), cpp=cpp)
                gone = dict.fromkeys((summand.name for summand in kernels), ())
                graph = with_steps(graph, gone | {step.name: [replace(step, op=total)]})
                names = ", ".join(summand.name for summand in kernels)
                features = [name for summand in kernels for name in features_inside(summand)]
                inside = f"; inside: {', '.join(features)}" if features else ""
                chosen[step.name] = f"{self.name}: {names} in one call; the keys are summed first; {DENSE}{inside}"
        return Lowered(graph, chosen)

    def plain(self, step: Step) -> bool:
        return True

    def emit(self, writer: Writer, step: Step) -> None:
        *kernels, _ = body_of(step)
        recurrences = [recurrence_of(summand) for summand in kernels]
        first, query, key = recurrences[0], writer.graph.query, str(writer.graph.key)
        assert first.value is not None
        products = f"{', '.join(recurrence.box.name for recurrence in recurrences)} times {first.value.name}"
        writer.line(f"# the sum of {products}: sums over {key} first; no {query} by {key} tensor is formed")
        small = small_legs(writer, kernels)
        sides = [sides_text(writer, recurrence, recurrence.terms[0], small) for recurrence in recurrences]
        values = laid(writer, "v", matrix(writer.value(first.value), first.heads, (key,), first.result))
        terms = [
            writer.call("LinearKernel", *pair, *sides_maps(writer, recurrence, small), eps_text(writer, recurrence))
            for pair, recurrence in zip(sides, recurrences, strict=True)
        ]
        options = [*mask_options(writer, first), *cpp_option(writer, step, kernels)]
        expression = writer.call("linear_attentions", f"[{', '.join(terms)}]", values, *options)
        expression += columns([*map(writer.size, first.result)])
        writer.named(step.name, expression, (*first.heads, query, *first.result))


TOTAL = Total()


def _summed(graph: Graph, step: Step) -> list[Step]:
    """The kernels whose results a step adds up, if one call computes them all; else none."""
    kernels, alike = list[Step](), set[object]()
    for term in step.terms:
        (use, *others) = term.factors or (None,)
        summand = producer_of(graph, use) if use is not None and not others and term.coefficient == ONE else None
        if summand is None or use is None or not takes_maps(graph, summand, tiles=False):
            return []
        alone = len(graph.readers[summand.name]) == 1 and summand.name not in graph.results
        if not alone or use.legs != summand.legs or {*summand.legs} != {*step.legs}:
            return []
        recurrence = recurrence_of(summand)
        alike.add((summand.legs, recurrence.value, recurrence.heads, recurrence.result, recurrence.box.legs))
        kernels.append(summand)
    return kernels if len(kernels) > 1 and len(alike) == 1 else []
