"""What a design keeps of positions, and the diagrams of a chunk behind them: what `plan/decoding.py` gives."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod

from tensornet_attn.graph.model import Graph
from tensornet_attn.rewrite.change import draws


@dataclass(frozen=True)
class Kept:
    """A result that is kept for each position. `leg`: its sequence leg; `reach`: of how many positions, all if None.

    Of a state, which is one for all positions, `leg` is None. `placed`: it says where its position stands, as keys do
    that are turned by it.
    """

    name: str
    legs: tuple[str, ...]
    leg: str | None
    reach: int | None
    placed: bool = False

    def rows(self, length: int) -> int:
        """Positions that are kept of so many."""
        return length if self.reach is None else min(length, self.reach + 1)


@dataclass(frozen=True)
class Given:
    """An input of a part: a value of the design.

    `how`: of the `chunk`; `kept`, with the chunk's; a `state` of the past, or a `level`, which is as large as can be
    before anything was seen; a weight's `rows`; `visible`, 1 where the key mask of the call shows a position, and its
    `place` in the chunk, from 1; `seen` and `empty`, which only say how many positions there are in all, and
    in the chunk. `hides`: it makes a state, and hidden positions of it are cleared.
    """

    name: str
    value: str
    how: str
    axis: int  # of the sequence leg, from the end
    hides: bool = False


@dataclass(frozen=True)
class Part:
    """A diagram that gives one value of the chunk. `reach`: the positions before the chunk that its keys have.

    None: all of them.
    """

    value: str
    graph: Graph
    inputs: tuple[Given, ...]
    reach: int | None = None

    @cached_property
    def carried(self) -> bool:
        """Whether it reads a state."""
        return any(one.how in ("state", "level") for one in self.inputs)


@dataclass(frozen=True)
class Decoding:
    """Parts in the order in which they run, the output last, and what is kept.

    `memory`: of another input than the chunk, once.
    """

    graph: Graph
    parts: tuple[Part, ...]
    kept: tuple[Kept, ...]
    memory: bool = False

    @cached_property
    def drawn(self) -> list[str]:
        """Noise, and steps with dropout, that more than one part would draw, each in its own way."""
        graphs = [part.graph for part in self.parts]
        found = [step.name for graph in graphs for step in graph.steps if draws(graph, step)]
        found += [tensor.name for graph in graphs for tensor in graph.of_role("noise")]
        return [name for name, count in Counter(found).items() if count > 1]

    def floats(self, n: int) -> int:
        """Floats kept of n positions, for one sequence."""
        return sum(self.elements(one) * (one.rows(n) if one.leg else 1) for one in self.kept)

    def elements(self, one: Kept) -> int:
        """Numbers of a position, or of a state."""
        return prod(self.graph.leg[leg].size or 1 for leg in one.legs if leg != one.leg)

    def as_dict(self) -> dict[str, object]:
        """What `to_text` says, as data; `numbers`: of one position, or of a state, whose `leg` is None."""
        kept = [asdict(one) | {"numbers": self.elements(one)} for one in self.kept]
        return {"design": self.graph.name, "kept": kept, "computed": [part.value for part in self.parts]}

    def to_text(self) -> str:
        """What is kept, a line a result, and what is computed of each chunk.

        >>> from tensornet_attn import build, load
        >>> from tensornet_attn.plan.decoding import decoding_of
        >>> print(decoding_of(build(load("mla"), causal=True)).to_text())
        mla: a cache keeps
          C[m c]: 256 numbers of each position
        of a chunk it computes C, y
        """
        lines = [f"{self.graph.name}: a cache keeps{'' if self.kept else ' nothing'}"]
        for one in self.kept:
            which = "each position" if one.reach is None else f"each of the last {one.reach + 1:,} positions"
            of = f" of {which}{' of the memory' * self.memory}" if one.leg else ", whatever the length"
            lines.append(f"  {one.name}[{' '.join(one.legs)}]: {self.elements(one):,} numbers{of}")
        return "\n".join([*lines, f"of a chunk it computes {', '.join(part.value for part in self.parts)}"])
