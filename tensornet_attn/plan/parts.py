"""The decoding cache of a design and the diagrams of a chunk of positions; `plan/decoding.py` derives them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import prod

from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph
from tensornet_attn.rewrite.change import draws


@dataclass(frozen=True)
class Kept:
    """A result that the cache stores per position. `leg`: its sequence leg. `reach`: see `rows`; None: all.

    A state, one value for all positions, has `leg` None. `placed`: the result depends on its absolute position, as
    keys with rotary embeddings do.
    """

    name: str
    legs: tuple[str, ...]
    leg: str | None
    reach: int | None
    placed: bool = False

    def rows(self, length: int) -> int:
        """The number of positions stored at a length: all, or the last `reach` + 1."""
        return length if self.reach is None else min(length, self.reach + 1)


@dataclass(frozen=True)
class PartInput:
    """An input of a part: a value of the design.

    `how`: of the `chunk`; `kept`: cached positions and the chunk; a `state` of the past, or a `level`, a state that is
    at its maximum before the first position; a weight's `rows`; `visible`: 1 if the key mask of the call shows a
    position, and `place`: its number in the chunk, from 1; `seen` and `empty`: only the total number of positions, and
    the number in the chunk. `hides`: it updates a state, so its masked positions are cleared.
    """

    name: str
    value_name: str
    how: str
    axis: int  # of the sequence leg, counted from the end
    hides: bool = False


@dataclass(frozen=True)
class DecodingPart:
    """A diagram that computes one value of the chunk. `reach`: cached positions that its keys include; None: all.

    `wide`: it is computed in at least float32, and its readers get it so, because it reads a state or by
    `graph/precision.py`.
    """

    value_name: str
    graph: Graph
    inputs: tuple[PartInput, ...]
    reach: int | None = None
    wide: bool = False

    @property
    def reads_state(self) -> bool:
        return any(source.how in ("state", "level") for source in self.inputs)


@dataclass(frozen=True)
class Decoding:
    """The parts in execution order, the output last, and the cached results.

    `memory`: cached results belong to another input than the chunk and are computed once. `reasons`: why a map or sum
    over keys has no state of constant size.
    """

    graph: Graph
    parts: tuple[DecodingPart, ...]
    kept: tuple[Kept, ...]
    memory: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def drawn(self) -> list[str]:
        """Noise, and steps with dropout, that more than one part would draw independently."""
        graphs = [part.graph for part in self.parts]
        names = [step.name for graph in graphs for step in graph.steps if draws(graph, step)]
        names += [tensor.name for graph in graphs for tensor in graph.of_role("noise")]
        return [name for name, count in Counter(names).items() if count > 1]

    @cached_property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The sizes of a state, or of one cached position, by name."""
        return {cached.name: tuple(size_of(self.graph, leg) or 1 for leg in cached.legs) for cached in self.kept}

    def floats(self, n: int) -> int:
        """Cached elements after n positions, for one sequence."""
        return sum(self.elements(cached) * (cached.rows(n) if cached.leg else 1) for cached in self.kept)

    def elements(self, cached: Kept) -> int:
        """Elements per position, or of a state."""
        return prod(self.sizes[cached.name])

    def as_dict(self) -> dict[str, object]:
        """The contents of `to_text` as data; `numbers`: elements per position, or of a state, whose `leg` is None."""
        kept = [asdict(cached) | {"numbers": self.elements(cached)} for cached in self.kept]
        computed = [part.value_name for part in self.parts]
        return {"design": self.graph.name, "kept": kept, "computed": computed, "reasons": dict(self.reasons)}

    def to_text(self) -> str:
        """The cached results, one per line, and the values computed for each chunk.

        >>> from tensornet_attn import build, load
        >>> from tensornet_attn.plan.decoding import decoding_of
        >>> print(decoding_of(build(load("mla"), causal=True)).to_text())
        mla: a decoding cache stores
          C[m c]: 256 elements per position
        no state of constant size for 'A': a softmax depends on the scores of all keys
        for each chunk it computes C, y
        """
        lines = [f"{self.graph.name}: a decoding cache stores{'' if self.kept else ' nothing'}"]
        for cached in self.kept:
            which = "per position" if cached.reach is None else f"for each of the last {cached.reach + 1:,} positions"
            unit = f" {which}{' of the memory' * self.memory}" if cached.leg else " at any length"
            lines.append(f"  {cached.name}[{' '.join(cached.legs)}]: {self.elements(cached):,} elements{unit}")
        lines += [f"no state of constant size for '{box}': {reason}" for box, reason in self.reasons.items()]
        return "\n".join([*lines, f"for each chunk it computes {', '.join(part.value_name for part in self.parts)}"])
