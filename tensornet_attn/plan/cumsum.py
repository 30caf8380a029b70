"""Sums over keys of products of a query part and a key part: one cumulative sum of the key part.

# since.of = one[n] gate[m];  since = sum over the visible m of since.of     ->     since = one times a cumulative sum
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensornet_attn.graph.alike import is_ones
from tensornet_attn.graph.attention import ScoreTerm
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.graph.recurrence import Recurrence, cumulative, sums
from tensornet_attn.plan.implementation import Context, Lowered, OfBoxes, kernel
from tensornet_attn.plan.linear import canonical, featured, written
from tensornet_attn.rewrite.change import with_steps

DESCRIPTION = {True: "a cumulative sum over the keys", False: "a sum over the keys, once for all queries"}


@dataclass(frozen=True)
class Summed:
    """A sum over keys and its graph."""

    graph: Graph
    found: Recurrence


class CumulativeSums(OfBoxes[Summed]):
    """Sums over keys that separate into query and key parts; never more operations than computing the scores."""

    name, kind = "cumulative sums", "sums"

    def places(self, graph: Graph) -> list[str]:
        return [step.name for step in sums(graph)]

    def form(self, graph: Graph, place: str) -> Summed | None:
        found = cumulative(graph, graph.step[place])
        if not isinstance(found, Recurrence) or found.decays:
            return None
        terms = tuple(_with_the_keys(graph, found, term) for term in found.terms)
        return Summed(graph, replace(found, terms=terms))

    def lower(self, form: Summed, context: Context) -> Lowered:
        """Replaces the sum and the product that it sums by one kernel."""
        graph, found, before = form.graph, form.found, list[Step]()
        step = found.box
        assert step.box is not None
        of = step.box.operand("of")
        terms = canonical(graph, found, of.legs, before)
        body = (written(of.name, terms, of.legs), step)
        own = replace(found, terms=tuple(featured(found, term) for term in terms))
        made = replace(step, op=kernel(self.kind, graph, before, body, own))
        return Lowered(
            with_steps(graph, {of.name: [], step.name: [*before, made]}), {step.name: DESCRIPTION[found.causal(graph)]}
        )


def _with_the_keys(graph: Graph, found: Recurrence, term: ScoreTerm) -> ScoreTerm:
    """A term of several key factors that all queries read alike: the weights of these factors belong to the keys.

    # one[n] K[m d] x[m f] W[f e]: K (x W) is summed for each d and e by one product; K x has a number for each d and f
    """
    if len(term.key) < 2 or not all(is_ones(graph, use.name) for use in term.query):
        return term
    moved = [use for use in term.core if not {*use.legs} <= {*found.box.legs}]
    moved += [use for use in term.core if any({*use.legs} <= {*key.legs} for key in term.key) and use not in moved]
    return replace(term, key=(*term.key, *moved), core=tuple(use for use in term.core if use not in moved))


CUMSUM = CumulativeSums()
