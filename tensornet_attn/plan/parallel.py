"""Tensor parallelism: the leg of a design that is split over processes, whose partial outputs add up to the output.

# y[n f] = A[h n m] V[m h d] Wo[h d f]     ->     y = sum over processes of y', each with its own part of the leg h
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph
from tensornet_attn.plan.cut import Cut, Slot, Unsplit, glued, named
from tensornet_attn.rewrite.whole import simplified


@dataclass(frozen=True)
class SplitLeg:
    """A leg that is split over processes. Each has its shard of the weights on the leg; all-reduce sums the output.

    `shards`: (weight, dimension as stored). `whole`: replicated weights; their gradients, like those of the inputs,
    are summed over processes. `reduce`: the steps that are all-reduced. `slots`: the slots that have the leg.
    `shared`: (step, number of the term) of terms in a partial sum that all processes have, so that each adds a share.
    `alike`: the losses that all processes compute in full, so that each adds a share.
    """

    graph: Graph
    leg: str
    size: int
    shards: tuple[tuple[str, int], ...]
    whole: tuple[str, ...]
    reduce: tuple[str, ...]
    slots: frozenset[Slot] = field(repr=False)
    shared: frozenset[tuple[str, int]] = frozenset()
    alike: tuple[str, ...] = ()

    def to_text(self) -> str:
        """The sharded and replicated weights, one per line, and the all-reduced results.

        >>> from tensornet_attn import build, load
        >>> print(split_of(build(load("mla"))).to_text())
        mla: leg 'h' of size 8 is split
          Wq[f h d]: sharded along dimension 1
          Wo[h d f]: sharded along dimension 0
          Wc[f c]: replicated
          Wuk[c h d]: sharded along dimension 1
          Wuv[c h d]: sharded along dimension 1
          all-reduced: 'y', and the gradients of x, memory, Wc
        """
        shards = dict(self.shards)
        lines = [f"{self.graph.name}: leg '{self.leg}' of size {self.size:,} is split"]
        for tensor in self.graph.tensors:
            if tensor.name in shards or tensor.name in self.whole:
                layout = f"sharded along dimension {shards[tensor.name]}" if tensor.name in shards else "replicated"
                lines.append(f"  {tensor.name}[{' '.join(tensor.legs)}]: {layout}")
        leaves = ", ".join([*(tensor.name for tensor in self.graph.of_role("input")), *self.whole])
        return "\n".join([*lines, f"  all-reduced: {named(self.reduce)}, and the gradients of {leaves}"])


def split_of(graph: Graph, processes: int | None = None, leg: str | None = None) -> SplitLeg:
    """The split of a design over processes, along the leg that leaves the fewest weight elements replicated.

    By default, the leg's size must be a multiple of `processes`, no process repeats work of queries x keys, and no step
    mixes heads into the leg. A given `leg` must only yield the correct output. Raises InputError with the reason
    against each leg.
    """
    splits = _splits(graph, processes, leg)
    if isinstance(splits, str):
        simple, trace = simplified(graph)  # without constants, legs that a constant joins may be independent
        simpler = _splits(simple, processes, leg) if trace else splits
        if isinstance(simpler, str):
            raise InputError(f"{graph.name}: {splits}")
        splits = simpler
    return min(splits, key=_kept_whole)


def _kept_whole(split: SplitLeg) -> int:
    """The number of replicated elements."""
    return sum(prod(size or 1 for size in split.graph.shape_of(name)) for name in split.whole)


def _splits(graph: Graph, processes: int | None, leg: str | None) -> list[SplitLeg] | str:
    """The possible splits of a graph, or why there is none."""
    cuts = [cut for cut in (Cut(graph, slots) for slots in glued(graph)) if cut.possible]
    cuts.sort(key=lambda cut: cut.first_position)
    if leg is not None and not any(leg in cut.names for cut in cuts):
        names = (name for cut in cuts for name in cut.names)
        return f"no weight has a leg '{leg}' inside the diagram; {nearest(leg, names)}"
    against: list[tuple[Cut, str]] = []
    splits = []
    for cut in cuts if leg is None else [cut for cut in cuts if leg in cut.names]:
        try:
            splits.append(_split(cut, processes, strict=leg is None))
        except Unsplit as reason:
            against.append((cut, str(reason)))
    if splits:
        return splits
    reasons = [reason for cut, reason in against if cut.heads] or [reason for _, reason in against]
    clauses = "; ".join(dict.fromkeys(reasons)) or "no weight has a leg inside the diagram"
    return f"no leg can be split over processes: {clauses}."


def _split(cut: Cut, processes: int | None, strict: bool) -> SplitLeg:
    """The split along a leg. Raises Unsplit; `strict`: also if processes would repeat work."""
    size = size_of(cut.graph, cut.leg) or 0
    if processes is not None and size % processes:
        raise Unsplit(f"{processes} processes do not divide '{cut.leg}' ({size})")
    shards = tuple(cut.shards())
    kinds, shared = cut.kinds()
    if strict:
        cut.check_work(kinds)
    replicated = (tensor.name for tensor in cut.graph.of_role("weight") if tensor.name not in dict(shards))
    reduce = tuple(dict.fromkeys((cut.graph.output, *(loss.step for loss in cut.graph.losses))))
    alike = tuple(loss.name for loss in cut.graph.losses if kinds[loss.step] == "whole")
    return SplitLeg(cut.graph, cut.leg, size, shards, tuple(replicated), reduce, cut.slots, shared, alike)
