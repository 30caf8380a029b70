"""Banded softmax attention, computed in blocks: each block of queries reads one span of keys.

# A.of = Q K;  A = softmax over m of A.of, masked to a band;  y = A V Wo     ->     A.o = band(Q, K, V);  y = A.o Wo

A block of B queries reads the keys from `left` before its first query to `right` after its last: B + left + right keys
per query, independent of the number of keys.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tensornet_attn.cost.blocks import Reach, reach_of
from tensornet_attn.cost.kernels import Parts
from tensornet_attn.cost.products import Matmul
from tensornet_attn.cost.rates import ELEMENTWISE, RateTable
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.seconds import CALLS, accessed, passes_of
from tensornet_attn.cost.work import KernelWork
from tensornet_attn.emit.layout import columns, split
from tensornet_attn.emit.masks import sees_text, takes_mask
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.attention import Attention, SoftmaxOfScores, attentions
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.recurrence import CAUSAL
from tensornet_attn.graph.visibility import interval
from tensornet_attn.ir.steps import without
from tensornet_attn.ir.values import Legs
from tensornet_attn.kernels.apart import compared
from tensornet_attn.kernels.attention import (
    MASKED_ATTENTION,
    attention_saved,
    attention_seconds,
    laid_operand,
    masks_of,
    of_attention,
    operands_of,
    pairs_of,
    sink_options,
)
from tensornet_attn.kernels.implementation import Context, FormCost, Lowered, OfBoxes
from tensornet_attn.rewrite.fused import FusedAttention, fuse, operation, placed, softmaxes


@dataclass(frozen=True)
class Band:
    """An attention whose masks bound how far a query sees."""

    attention: FusedAttention
    reach: Reach


def band_of(step: Step) -> Band:
    """The attention and reach of a kernel 'band'."""
    assert isinstance(step.form, Band)
    return step.form


@dataclass(frozen=True)
class BandCandidate:
    """A softmax box with masks that bound distances; `op`: the box as fused attention, or why it cannot be fused."""

    attention: Attention
    op: FusedAttention | str
    reach: Reach | None


class BandWork(KernelWork):
    """Attention in blocks of queries, each of which meets one span of keys."""

    @property
    def monomials(self) -> dict[Legs, int]:
        op, reach = band_of(self.step).attention, band_of(self.step).reach
        macs: Counter[Legs] = Counter()
        for legs in pairs_of(self.scene, op):
            macs[without(legs, op.leg)] += reach.span
        return macs

    @property
    def kept(self) -> dict[str, int]:
        """Those of attention in blocks: keys and values in spans; queries and result are copied to fill or hide rows.

        Where each query sees its own position, no row of the result is hidden.
        """
        scene, step = self.scene, self.step
        spans, op, query = in_spans(scene, step), band_of(step).attention, scene.query
        saved = attention_saved(spans, step, op)
        unpadded = spans.batch * spans.sizes[query] == scene.batch * scene.sizes[query]
        same = {*spans.kept((op.query,))} if unpadded else set()
        if unpadded and scene.graph.tied and interval(op.masks, scene.graph.values):
            same.add(step.name)
        return {name if name in same else f"{step.name}: {name} in blocks": floats for name, floats in saved.items()}

    @property
    def keys_met(self) -> int:
        return min(band_of(self.step).reach.span, self.scene.keys)

    @property
    def operations(self) -> int:
        return round(super().operations / self._share)

    @property
    def _share(self) -> float:
        """The share of rows that do not fill a block."""
        spans, row = in_spans(self.scene, self.step), self.scene.query
        return self.scene.batch * self.scene.sizes[row] / (spans.batch * spans.sizes[row])

    @property
    def matmuls(self) -> list[Matmul]:
        """Without rows that fill a block."""
        scene, step = self.scene, self.step
        spans, share = in_spans(scene, step), self._share
        batch = spans.batch_of(step)
        blocks = of_attention(spans, band_of(step).attention, batch)
        return [matmul._replace(macs=share * matmul.macs) for matmul in blocks]

    def seconds(self, table: RateTable, backward: bool) -> Parts:
        """Keys and values are padded, and copied into spans; the result is cropped."""
        scene, step = self.scene, self.step
        learned, spans, op = backward and self.learned, in_spans(scene, step), band_of(step).attention
        passed = sum(5 * accessed(spans.elements(use), table) for use in (op.key, op.value))
        passed += 2 * accessed(scene.elements(step), table)
        return {
            MASKED_ATTENTION: attention_seconds(spans, step, op, table, learned, MASKED_ATTENTION),
            ELEMENTWISE: passes_of(learned) * passed,
            "call": (CALLS + 1) * table.call[learned],
        }


class Banded(OfBoxes[BandCandidate]):
    """Softmax boxes whose queries see a band of keys, computed in blocks if a block reads few enough keys."""

    name, kind, alone, work = "banded attention", "band", True, BandWork

    def places(self, graph: Graph) -> list[str]:
        return softmaxes(graph)

    def form(self, graph: Graph, place: str) -> BandCandidate | None:
        attention = attentions(graph)[place]
        if not isinstance(attention.weighting, SoftmaxOfScores) or all(mask == CAUSAL for mask in attention.masks):
            return None  # no softmax, or no mask that bounds a distance
        return BandCandidate(attention, operation(attention), reach_of(graph, attention.box))

    def unsupported(self, form: BandCandidate, context: Context) -> tuple[str, ...]:
        if isinstance(form.op, str):
            return (form.op,)
        if form.reach is None:
            return ("its masks do not bound the distance of visible keys",)
        nothing = form.reach.left + form.reach.right < 0 and not form.reach.prefix
        return ("its masks together hide every key",) if nothing else ()

    def cost(self, form: BandCandidate, context: Context) -> FormCost:
        """The seconds in blocks, and in fused attention with a mask."""
        reach, attention = form.reach, form.attention
        assert reach is not None
        but = f"blocks of {reach.block:,} queries would read {reach.span:,} keys each and take"
        banded, fused = self.lower(form, context).graph, fuse(attention.graph, attention.box.name)
        return compared(banded, fused, context, but)

    def lower(self, form: BandCandidate, context: Context) -> Lowered:
        """Replaces the box and its two products by one kernel."""
        attention, op, reach = form.attention, form.op, form.reach
        assert not isinstance(op, str)
        assert reach is not None
        prefix = f", including the first {reach.prefix}" if reach.prefix else ""
        blocks = f"blocks of {reach.block} queries read {reach.span} keys each{prefix}; other scores are never computed"
        graph = placed(attention, op, self.kind, Band(op, reach))
        return Lowered(graph, {f"{attention.box.name}.o": f"{self.name}: {blocks}"})

    def emit(self, writer: Writer, step: Step) -> None:
        """Emits one call."""
        op, query = band_of(step).attention, writer.graph.query
        of = operands_of(writer, op)
        writer.line(f"# {op.steps[-1]} and {op.steps[-1]} {op.value.name}: in blocks, only keys near the band")
        names = [
            laid_operand(writer, "q", of.query, of.heads, (query,), of.width, heads_first=False),
            laid_operand(writer, "k", of.key, of.shared, (op.leg,), of.width, heads_first=False),
            laid_operand(writer, "v", of.value, of.shared, (op.leg,), of.columns, heads_first=False),
        ]
        expression = writer.call("attend_band", *names, *_options(writer, op, band_of(step).reach, of.heads))
        expression += columns([*map(writer.size, of.columns)])
        expression += split(-1 - len(of.columns), [*map(writer.size, of.heads)])
        writer.named(step.name, expression, (query, *of.heads, *of.columns))


BAND = Banded()


def in_spans(scene: SizedGraph, step: Step) -> SizedGraph:
    """The scene of a kernel 'band' as it runs: its blocks of queries, with a span of keys each, are the batch."""
    op, reach = band_of(step).attention, band_of(step).reach
    query = scene.query
    blocks = max(2, -(-scene.sizes[query] // reach.block))
    return replace(scene, sizes={**scene.sizes, query: reach.block, op.leg: reach.span}, batch=scene.batch * blocks)


def _options(writer: Writer, op: FusedAttention, reach: Reach, heads: Legs) -> list[str]:
    """The arguments of the call after query, key and value."""
    mask = "mask" if takes_mask(writer.graph) else "None"
    if mask == "mask" and len(heads) > 1:
        written = without(op.scores, writer.graph.query, op.leg)
        order = ", ".join(str(written.index(leg)) for leg in heads)
        mask = writer.call("heads_together", mask, writer.batch_dims, f"({order})")
    options = [str(reach.left), str(reach.right), str(reach.block), mask, "key_mask", writer.batch_dims]
    options += [writer.scale(op.scale)]
    dropout = writer.number(op.dropout)
    options += [] if dropout in ("0", "0.0") else [f"dropout={dropout} if self.training else 0.0"]
    options += ["tied=True"] if writer.graph.tied else []
    masks = masks_of(writer.graph, op)
    if not interval(masks, writer.graph.values):
        options += [f"sees={sees_text(writer, masks)}", *([f"prefix={reach.prefix}"] if reach.prefix else [])]
    return [*options, *sink_options(writer, op, heads)]
