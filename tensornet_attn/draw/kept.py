"""Marks of the decoding cache's content in pictures: cached results at their steps, states at their boxes."""

from __future__ import annotations

from collections.abc import Mapping

from tensornet_attn.graph.graph import Graph
from tensornet_attn.plan.decoding import decoding_of
from tensornet_attn.plan.parts import Decoding, Kept

Marks = Mapping[str, tuple[str, ...]]  # by step name, the lines in the title of its frame
NOTHING: Marks = {}
LEGEND = "in the decoding cache"


def kept_marks(graph: Graph) -> Marks:
    """Marks of the steps whose results or states are in the cache. Raises InputError if the design supports no cache.

    Cached results of the rewritten diagram that are no steps of this one are marked at the output.

    >>> from tensornet_attn import build, load
    >>> kept_marks(build(load("mla"), causal=True))
    {'C': ('cached: all positions',)}
    >>> kept_marks(build(load("linear"), causal=True))
    {'A': ('cached: state1[h d_ d]', 'cached: state2[h d]')}
    """
    decoding, marks = decoding_of(graph), dict[str, tuple[str, ...]]()
    for cached in decoding.kept:
        step = _step(graph, cached.name)
        marks[step] = (*marks.get(step, ()), _words(decoding, cached, step))
    return marks


def kept_lines(marks: Marks) -> list[str]:
    """A line that lists the cached steps, or no line without marks."""
    steps = [f"{step} ({'; '.join(words)})" for step, words in marks.items()]
    return [f"cache: {', '.join(steps)}"] if steps else []


def _step(graph: Graph, name: str) -> str:
    """The step of a name such as `A`, `A.state1` or `far1.copy.state2`."""
    while name and name not in graph.step:
        name = name.rpartition(".")[0]
    return name or graph.output


def _words(decoding: Decoding, cached: Kept, step: str) -> str:
    if cached.name == step:
        which = "all positions" if cached.reach is None else f"last {cached.reach + 1:,} positions"
        return f"cached: {which}{' of the memory' * decoding.memory}"
    return f"cached: {cached.name.removeprefix(f'{step}.')}[{' '.join(cached.legs)}]"
