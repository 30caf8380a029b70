"""What a decoding cache keeps, for pictures: a result by its step, a state by the box that carries it."""

from __future__ import annotations

from collections.abc import Mapping

from tensornet_attn.graph.model import Graph
from tensornet_attn.plan.decoding import decoding_of
from tensornet_attn.plan.parts import Decoding, Kept

Marks = Mapping[str, tuple[str, ...]]  # by the name of a step, what its frame says of it
NOTHING: Marks = {}
LEGEND = "kept by a cache"


def kept_marks(graph: Graph) -> Marks:
    """The steps that are kept, or whose states are. Raises InputError where the design can have no cache.

    What is kept of a rewritten diagram and is no step of this one is said at the output.

    >>> from tensornet_attn import build, load
    >>> kept_marks(build(load("mla"), causal=True))
    {'C': ('kept: each position',)}
    >>> kept_marks(build(load("linear"), causal=True))
    {'A': ('keeps state1[h d_ d]', 'keeps state2[h d]')}
    """
    found, marks = decoding_of(graph), dict[str, tuple[str, ...]]()
    for one in found.kept:
        step = _step(graph, one.name)
        marks[step] = (*marks.get(step, ()), _words(found, one, step))
    return marks


def kept_lines(marks: Marks) -> list[str]:
    """A line that says which steps are kept, if any are."""
    steps = [f"{step} ({'; '.join(words)})" for step, words in marks.items()]
    return [f"cache: {', '.join(steps)}"] if steps else []


def _step(graph: Graph, name: str) -> str:
    """The step of a name such as `A`, `A.state1` or `far1.copy.state2`."""
    while name and name not in graph.step:
        name = name.rpartition(".")[0]
    return name or graph.output


def _words(found: Decoding, one: Kept, step: str) -> str:
    if one.name == step:
        which = "each position" if one.reach is None else f"last {one.reach + 1:,} positions"
        return f"kept: {which}{' of the memory' * found.memory}"
    return f"keeps {one.name.removeprefix(f'{step}.')}[{' '.join(one.legs)}]"
