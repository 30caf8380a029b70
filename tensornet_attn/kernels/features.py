"""Features of linear attention that its kernels compute themselves, a tile at a time: maps, and sums over small legs.

# phiK[m d] = elu1(K[m d]);  y = linear(phiQ, phiK, V)     ->     y = linear(Q, K, V), which applies elu1 to tiles
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from tensornet_attn.cost.kernels import KERNELS, body_of
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.alike import one_row
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph, Step, Use
from tensornet_attn.graph.recurrence import Recurrence, recurrence_of, sums_keys
from tensornet_attn.ir.arithmetic import ONE, names
from tensornet_attn.kernels.blocks import with_kernels
from tensornet_attn.kernels.implementation import (
    Context,
    Implementation,
    Lowered,
    OfSteps,
    WorkOfSteps,
    has_slope,
    is_map,
    kernel,
)

INPUTS = 16  # of a feature, for each operand: its values of small legs


class FeaturesWork(WorkOfSteps):
    """The features that a kernel computes, then its own work."""

    @cached_property
    def inner(self) -> SizedGraph:
        inner = super().inner
        return inner if self.scene.stepwise else replace(inner, in_tiles=frozenset(features_inside(self.step)))

    @property
    def inner_steps(self) -> list[Step]:
        """The steps inside; the second kernel of a pair reads the features of the first."""
        inner_steps, pair = super().inner_steps, recurrence_of(self.step).pair
        return inner_steps[-1:] if pair and pair[0] != self.step.name else inner_steps


class Features(OfSteps, Implementation[Recurrence]):
    """Kernels of linear attention with the features that they compute: those of several operands in C++, else maps."""

    name, kind, pairs, work = "features inside kernels", "features", False, FeaturesWork
    of_recurrences = True

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        split, features = context.split(graph), defaultdict[str, list[Step]](list)
        kernels = _kernels(split, context.backend == "triton")
        for step in split.steps:
            for reader in dict.fromkeys(kernels.get(step.name, ())):
                features[reader.name].append(step)
        around = {name: self._around(split, split.step[name], steps) for name, steps in features.items()}
        more = {name: f"; inside: {', '.join(features_inside(step))}" for name, step in around.items()}
        return Lowered(with_kernels(graph, split, around, {*kernels}), more=more)

    def _around(self, graph: Graph, step: Step, features: Sequence[Step]) -> Step:
        assert step.kernel is not None
        with_features = kernel(self.kind, graph, (), (*features, step), step.form)
        return replace(step, op=replace(with_features, hidden=step.kernel.hidden, cpp=step.kernel.cpp))

    def plain(self, step: Step) -> bool:
        inner = body_of(step)[-1]
        return inner.kernel is not None and bool(KERNELS[inner.kernel.kind].plain(inner))

    def on_triton(self, form: object) -> bool:
        return isinstance(form, Recurrence)

    def emit(self, writer: Writer, step: Step) -> None:
        inner = body_of(step)[-1]
        assert inner.kernel is not None
        KERNELS[inner.kernel.kind].emit(writer, inner)


FEATURES = Features()


def _kernels(graph: Graph, tiles: bool) -> dict[str, list[Step]]:
    """The kernels that compute a feature, by its name. `tiles`: Triton computes them."""
    kernels = dict[str, list[Step]]()  # those that compute a feature, by its name
    for step in reversed(graph.steps):
        if step.name not in graph.results and (step.contraction or is_map(step)):
            readers = [_kernels_of(graph, step, *read, kernels, tiles) for read in graph.readers.get(step.name, ())]
            if readers and all(readers):
                kernels[step.name] = [kernel for reader_kernels in readers for kernel in reader_kernels]
    return kernels


def features_inside(step: Step) -> tuple[str, ...]:
    """The features that a kernel of linear attention computes."""
    return step.kernel.steps[:-1] if step.kernel is not None and step.kernel.kind == FEATURES.kind else ()


def takes_maps(graph: Graph, step: Step, tiles: bool) -> bool:
    """Whether a step is a kernel that computes tiles in some calls: one term, no decay; causal only in Triton.

    Triton computes no tiles of mixed states.
    """
    if not isinstance(step.form, Recurrence) or sums_keys(step) or (step.form.mixes and tiles):
        return False
    return step.form.one_product and (tiles or not step.form.causal(graph))


def _kernels_of(
    graph: Graph, step: Step, reader: Step, use: Use, kernels: dict[str, list[Step]], tiles: bool
) -> list[Step]:
    """The kernels that compute a feature for this reader: the reader, or those that compute it; none if some cannot."""
    if reader.kernel is None:
        candidates = kernels.get(reader.name, []) if use.legs == step.legs else []
    else:
        candidates = [reader] if takes_maps(graph, reader, tiles) and _is_side(reader, step) else []
    return candidates if all(_fits(graph, step, candidate, tiles) for candidate in candidates) else []


def _fits(graph: Graph, step: Step, reader: Step, tiles: bool) -> bool:
    """Whether features of a side have a step: a map that is the side, or arithmetic of what rows have or share."""
    kernel, recurrence = reader.kernel, recurrence_of(reader)
    assert kernel is not None
    if step.box is not None:
        if (tiles or kernel.cpp) and not has_slope(step.box):
            return False
        if any(candidate is reader for candidate, _ in graph.readers[step.name]):
            return True
    if not kernel.cpp or recurrence.mixes:
        return False
    if any(
        len(term.factors) > 2 or {leg.name for leg in names(term.coefficient)} & {*graph.leg} for term in step.terms
    ):
        return False
    if step.reads & one_row(graph):  # then calls decide which operands rows share
        return False
    sequence, columns = str(graph.query if graph.query in step.legs else graph.key), {*recurrence.terms[0].features}
    row_legs = {sequence, *recurrence.heads, *columns}
    shared = [{*use.legs} for use in step.uses if not row_legs <= {*use.legs}]
    small = {leg for legs in (step.legs, *(use.legs for use in step.uses)) for leg in legs} - row_legs
    return (
        row_legs <= {*step.legs}
        and len(shared) < len(step.uses)
        and all(sequence not in legs and (columns <= legs or not columns & legs) for legs in shared)
        and prod(size_of(graph, leg) or INPUTS for leg in small) < INPUTS
    )


def _is_side(reader: Step, step: Step) -> bool:
    """Whether a kernel reads a step only as the query side or the key side of its term, as it is.

    C++ computes features along the sequence leg of the step.
    """
    recurrence, cpp = recurrence_of(reader), reader.kernel is not None and reader.kernel.cpp
    (term,) = recurrence.terms
    others = [use for use in (recurrence.value, recurrence.mix, recurrence.added) if use is not None]
    turned = cpp and any(use.name == step.name and use.legs != step.legs for use in (*term.query, *term.key))
    return term.coefficient == ONE and not turned and all(use.name != step.name for use in others)
