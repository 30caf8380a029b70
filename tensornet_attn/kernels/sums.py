"""Sums over keys of products of a query part and a key part: one cumulative sum of the key part.

# since.of = one[n] gate[m];  since = sum over the visible m of since.of     ->     since = one times a cumulative sum
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tensornet_attn.emit.masks import takes_mask
from tensornet_attn.emit.precision import sums_wide
from tensornet_attn.emit.sides import mask_options, term_text
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.alike import is_ones, one_row
from tensornet_attn.graph.attention import ScoreTerm
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.recurrence import Recurrence, cumulative, recurrence_of, sums
from tensornet_attn.ir.values import Legs
from tensornet_attn.kernels.implementation import Context, Lowered, OfBoxes, kernel
from tensornet_attn.kernels.linear import RecurrenceWork, canonical, featured, heads_of, written
from tensornet_attn.rewrite.change import with_steps

DESCRIPTION = {True: "a cumulative sum over the keys", False: "a sum over the keys, once for all queries"}


@dataclass(frozen=True)
class KeySum:
    """A sum over keys and its graph."""

    graph: Graph
    recurrence: Recurrence


class SumsWork(RecurrenceWork):
    """Products of the query parts with the sums."""

    @property
    def monomials(self) -> dict[Legs, int]:
        """MACs of one batch element, by the legs they run over: the products of the query parts with the sums."""
        recurrence, macs = self.recurrence, Counter[Legs]()
        for term in recurrence.terms:
            macs[(self.scene.query, *heads_of(recurrence, term).read, *term.features)] += 1
        return macs

    @property
    def elementwise(self) -> int:
        """Operations over the whole batch: one addition per element of the key parts, and additions of terms."""
        scene, recurrence = self.scene, self.recurrence
        elements = sum(scene.size((*heads_of(recurrence, term).stored, *term.features)) for term in recurrence.terms)
        return self.batch * (scene.keys * elements + (len(recurrence.terms) - 1) * scene.size(self.step.legs))

    @property
    def kept(self) -> dict[str, int]:
        """The sums if query parts get gradients, and these parts."""
        scene, step = self.scene, self.step
        recurrence, floats = self.recurrence, dict[str, int]()
        rows = scene.sizes[scene.query] if recurrence.causal(scene.graph) else 1
        for i, term in enumerate(recurrence.terms):
            if any(use.name in scene.learned for use in term.query):
                floats[f"{step.name}: sums {i}"] = (
                    self.batch * rows * scene.size((*heads_of(recurrence, term).stored, *term.features))
                )
                floats |= scene.kept(term.query)
        return floats


class CumulativeSums(OfBoxes[KeySum]):
    """Sums over keys that separate into query and key parts; never more operations than computing the scores."""

    name, kind, pairs, work = "cumulative sums", "sums", False, SumsWork

    def places(self, graph: Graph) -> list[str]:
        return [step.name for step in sums(graph)]

    def form(self, graph: Graph, place: str) -> KeySum | None:
        recurrence = cumulative(graph, graph.step[place])
        if not isinstance(recurrence, Recurrence) or recurrence.decays or recurrence.shifted:
            return None
        terms = tuple(_without_ones(graph, _with_the_keys(graph, recurrence, term)) for term in recurrence.terms)
        return KeySum(graph, replace(recurrence, terms=terms))

    def lower(self, form: KeySum, context: Context) -> Lowered:
        """Replaces the sum and the product that it sums by one kernel."""
        graph, recurrence, before = form.graph, form.recurrence, list[Step]()
        step = recurrence.box
        assert step.box is not None
        of = step.box.of
        terms = canonical(graph, recurrence, of.legs, before)
        body = (written(of.name, terms, of.legs), step)
        kernel_form = replace(recurrence, terms=tuple(featured(recurrence, term) for term in terms))
        kernel_step = replace(step, op=kernel(self.kind, graph, before, body, kernel_form))
        return Lowered(
            with_steps(graph, {of.name: [], step.name: [*before, kernel_step]}),
            {step.name: DESCRIPTION[recurrence.causal(graph)]},
        )

    def plain(self, step: Step) -> bool:
        return True

    def emit(self, writer: Writer, step: Step) -> None:
        """Emits one call that sums the scores along the keys."""
        recurrence, query = recurrence_of(step), writer.graph.query
        writer.line(
            f"# {recurrence.box.name}: sums over {writer.graph.key}; no {query} by {writer.graph.key} tensor is formed"
        )
        alike = step.name in one_row(writer.graph)
        terms = ", ".join(term_text(writer, recurrence, term, rows=not alike) for term in recurrence.terms)
        options = [*mask_options(writer, recurrence), *(["causal=True"] if recurrence.causal(writer.graph) else [])]
        options += ["wide=True"] if sums_wide(writer.graph, writer.wide, step.name) else []
        if alike:
            options.append(f"one_row={'mask is None' if takes_mask(writer.graph) else 'True'}")
        writer.named(step.name, writer.call("cumulative_sums", f"[{terms}]", *options), (*recurrence.heads, query))


def _with_the_keys(graph: Graph, recurrence: Recurrence, term: ScoreTerm) -> ScoreTerm:
    """A term of several key factors that all queries read alike: the weights of these factors belong to the keys.

    # one[n] K[m d] x[m f] W[f e]: K (x W) is summed for each d and e by one product; K x has a number for each d and f
    """
    if len(term.key) < 2 or not all(is_ones(graph, use.name) for use in term.query):
        return term
    moved = [use for use in term.core if not {*use.legs} <= {*recurrence.box.legs}]
    moved += [use for use in term.core if any({*use.legs} <= {*key.legs} for key in term.key) and use not in moved]
    return replace(term, key=(*term.key, *moved), core=tuple(use for use in term.core if use not in moved))


def _without_ones(graph: Graph, term: ScoreTerm) -> ScoreTerm:
    """A term whose query side is no product with ones, which would repeat weights for each query."""
    factors = tuple(use for use in term.query if not is_ones(graph, use.name))
    return replace(term, query=factors) if factors or term.core else term


CUMSUM = CumulativeSums()
