"""Which leg of a design is split over processes, so that what each makes of its part adds up to the output.

# y[n f] = A[h n m] V[m h d] Wo[h d f]     ->     y = sum over processes of y', each with its own part of the leg h
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph.model import Graph
from tensornet_attn.plan.cut import Cut, Slot, Unsplit, glued, named
from tensornet_attn.rewrite.whole import simplified


@dataclass(frozen=True)
class Split:
    """A leg that is split over processes. Each has its part of the weights on it; an all-reduce adds up the output.

    `shards`: (weight, dimension as stored). `whole`: weights that every process has, whose gradients are added up, as
    those of the inputs are. `reduce`: the steps that the all-reduce stands after. `own`: the places that have the leg.
    `shared`: (step, number of the term) of terms in a partial sum that every process has, so that each adds a part.
    `alike`: the losses that every process has, likewise.
    """

    graph: Graph
    leg: str
    size: int
    shards: tuple[tuple[str, int], ...]
    whole: tuple[str, ...]
    reduce: tuple[str, ...]
    own: frozenset[Slot] = field(repr=False)
    shared: frozenset[tuple[str, int]] = frozenset()
    alike: tuple[str, ...] = ()

    def to_text(self) -> str:
        """What is split and what is added up, a line a weight.

        >>> from tensornet_attn import build, load
        >>> print(split_of(build(load("mla"))).to_text())
        mla: 'h' is split, 8 in all
          Wq[f h d]: dimension 1
          Wo[h d f]: dimension 0
          Wc[f c]: whole
          Wuk[c h d]: dimension 1
          Wuv[c h d]: dimension 1
          added up: 'y', and the gradients of x, memory, Wc
        """
        shards = dict(self.shards)
        lines = [f"{self.graph.name}: '{self.leg}' is split, {self.size:,} in all"]
        for tensor in self.graph.tensors:
            if tensor.name in shards or tensor.name in self.whole:
                place = f"dimension {shards[tensor.name]}" if tensor.name in shards else "whole"
                lines.append(f"  {tensor.name}[{' '.join(tensor.legs)}]: {place}")
        leaves = ", ".join([*(tensor.name for tensor in self.graph.of_role("input")), *self.whole])
        return "\n".join([*lines, f"  added up: {named(self.reduce)}, and the gradients of {leaves}"])


def split_of(graph: Graph, processes: int | None = None, leg: str | None = None) -> Split:
    """The leg to split a design along: of those that divide by `processes`, the one that leaves fewest weights whole.

    Nothing of queries x keys is left to every process, and no heads are mixed into the leg; a `leg` that is given need
    only give the right output. Raises InputError, with what stands against each leg.
    """
    found = _splits(graph, processes, leg)
    if isinstance(found, str):
        simple, trace = simplified(graph)  # legs that a constant joins may come apart there
        again = _splits(simple, processes, leg) if trace else found
        if isinstance(again, str):
            raise InputError(f"{graph.name}: {found}")
        found = again
    return min(found, key=_kept_whole)


def _kept_whole(split: Split) -> int:
    """How many numbers every process has."""
    return sum(prod(size or 1 for size in split.graph.shape_of(name)) for name in split.whole)


def _splits(graph: Graph, processes: int | None, leg: str | None) -> list[Split] | str:
    """The ways to split a graph, or why there is none."""
    cuts = [cut for cut in (Cut(graph, slots) for slots in glued(graph)) if cut.possible]
    cuts.sort(key=lambda cut: cut.place)
    if leg is not None and not any(leg in cut.names for cut in cuts):
        known = (name for cut in cuts for name in cut.names)
        return f"no weight has a leg '{leg}' inside of the diagram; {nearest(leg, known)}"
    against: list[tuple[Cut, str]] = []
    found = []
    for cut in cuts if leg is None else [cut for cut in cuts if leg in cut.names]:
        try:
            found.append(_split(cut, processes, strict=leg is None))
        except Unsplit as reason:
            against.append((cut, str(reason)))
    if found:
        return found
    told = [reason for cut, reason in against if cut.heads] or [reason for _, reason in against]
    clauses = "; ".join(dict.fromkeys(told)) or "no weight has a leg inside of the diagram"
    return f"no leg can be split over processes: {clauses}."


def _split(cut: Cut, processes: int | None, strict: bool) -> Split:
    """The split along a leg. Raises Unsplit; `strict`: also where processes would do the same work."""
    size = cut.graph.leg[cut.leg].size or 0
    if processes is not None and size % processes:
        raise Unsplit(f"'{cut.leg}' ({size}) does not divide by {processes} processes")
    shards = tuple(cut.shards())
    kinds, shared = cut.kinds()
    if strict:
        cut.check_work(kinds)
    whole = (tensor.name for tensor in cut.graph.of_role("weight") if tensor.name not in dict(shards))
    reduce = tuple(dict.fromkeys((cut.graph.output, *(loss.step for loss in cut.graph.losses))))
    alike = tuple(loss.name for loss in cut.graph.losses if kinds[loss.step] == "whole")
    return Split(cut.graph, cut.leg, size, shards, tuple(whole), reduce, cut.own, shared, alike)
