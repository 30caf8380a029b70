"""The directed graph of which shipped designs contain which others, its shortest paths, and checks of entries."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from tensornet_attn import limits
from tensornet_attn.errors import DesignError, InputError, nearest
from tensornet_attn.graph import problems_of
from tensornet_attn.spec import Design, library
from tensornet_attn.spec.read import ReadDesign, Source, load, read
from tensornet_attn.special.embed import Misfit, embedding, keeps_sizes, path_of, special_of


@cache
def _shipped() -> Any:
    import networkx as nx  # takes a tenth of a second to import

    graph = nx.DiGraph()
    for name in library.names():
        design = load(name)
        graph.add_node(name, family=library.family_of(name))
        for special, entry in design.contains.items():
            graph.add_edge(name, special, causal=entry.causal)
    return graph


@cache
def _at_equal_sizes() -> Any:
    """All designs, with only the edges that change no size."""
    graph = _shipped().copy()
    designs = {name: load(name) for name in graph}
    changed = [(a, b) for a, b in graph.edges if not keeps_sizes(designs[a], b, designs[b])]
    graph.remove_edges_from(changed)
    return graph


def special_cases(name: Source | None = None, equal_sizes: bool = False) -> Any:
    """Returns a networkx.DiGraph with an edge from each shipped design to each that it directly contains.

    A design contains another if it equals that design at some sizes and weights, listed in its file under `contains`.
    With a `name`, or a path, text or Design, returns the subgraph of that design, its ancestors and its descendants; a
    design that is not shipped has the edges of its own file. Nodes of shipped designs have the attribute `family`,
    edges `causal`: True if both must be causal. Raises DesignError for an unknown name or an invalid design.

    `equal_sizes=True` keeps the edges that hold at the sizes of both files: equal f, h and d, and R = H D components in
    a core (f 512, h 8, d 64, R 512). It is the order of expressive power in Tuformer, fig. 6: mhsa contains gqa, but
    gqa has fewer keys and does not contain mhsa. Padding with zeros counts only if an entry gives such weights.

    >>> sorted(special_cases("mhsa_rope").edges)[:2]
    [('epa_rope', 'mhsa_rope'), ('gqa_rope', 'mhsa_rope')]
    >>> sorted(special_cases("mhsa_rope", equal_sizes=True).edges)
    [('mhsa_rope', 'gqa_rope')]
    """
    import networkx as nx

    if name is None:
        return (_at_equal_sizes() if equal_sizes else _shipped()).copy()
    reading = read(name)
    problems_of(reading)
    check_contains(reading)
    if reading.design is None or reading.reporter.failed:
        raise DesignError(reading.reporter.problems())
    graph, start = _around(reading.design, equal_sizes)
    near = {start} | nx.ancestors(graph, start) | nx.descendants(graph, start)
    return graph.subgraph(near).copy()


def route(general: Design, special: str) -> list[str]:
    """Returns the shortest chain of designs from a general one to a special case, both included. Raises InputError."""
    import networkx as nx

    graph, start = _around(general)
    if special not in graph or not nx.has_path(graph, start, special):
        listed = "no shipped design contains it."
        if containers := nx.ancestors(graph, special) if special in graph else set():
            near, far = nx.single_source_shortest_path_length(graph.to_undirected(), start), len(graph)
            steps = dict(nx.single_target_shortest_path_length(graph, special))
            nearest_three = sorted(containers, key=lambda name: (near.get(name, far), steps[name], name))[:3]
            listed = f"the nearest designs that contain it: {', '.join(nearest_three)}."
        message = f"no weights are known at which '{general.name}' equals '{special}'; {listed}"
        raise InputError(message + " Designs list their special cases under 'contains'.")
    return [general.name, *nx.shortest_path(graph, start, special)[1:]]


def contains(general: Design, special: str) -> bool:
    """Whether a design equals or contains a shipped design, possibly through others."""
    import networkx as nx

    graph, start = _around(general)
    return special in graph and bool(nx.has_path(graph, start, special))


def _around(general: Design, equal_sizes: bool = False) -> tuple[Any, str]:
    """The graph of the shipped designs extended by the given one, and its node."""
    shipped = _at_equal_sizes() if equal_sizes else _shipped()
    if is_shipped(general):
        return shipped, general.name
    graph, start = shipped.copy(), f"{general.name} (given)"
    graph.add_node(start)
    for name, entry in general.contains.items():
        if not equal_sizes or keeps_sizes(general, name, special_of(general, name)):
            graph.add_edge(start, name, causal=entry.causal)
    return graph, start


def is_shipped(design: Design) -> bool:
    """Whether a design was read from a shipped file, possibly at other sizes."""
    path = design.document.path
    return design.name in library.names() and path is not None and Path(path) == library.path_of(design.name)


def check_contains(reading: ReadDesign) -> None:
    """Reports each entry that does not fit; runs if the diagram has no errors.

    Equality of the functions is left to tests. Entries of a shipped design loaded by name are proven by the tests of
    this package and are skipped.
    """
    design, reporter = reading.design, reading.reporter
    if design is None or reporter.failed or (is_shipped(design) and "/" not in design.document.name):
        return
    if _weight(design) > limits.FILE_BYTES:
        message = "the special cases are too large to check: each consists of this design and the one it names."
        hint = f"at most {limits.FILE_BYTES // 1024} KiB in total; list fewer, or make the design smaller."
        reporter.error("too-large", message, ("contains",), key=True, hint=hint)
        return
    for name in design.contains:
        try:
            embedding(design, name, special_of(design, name))
        except Misfit as misfit:
            refusal = misfit.refusal
            reporter.error(refusal.code, refusal.message, misfit.path, key=misfit.key, hint=refusal.hint)
        except (DesignError, InputError):  # the file may not be a design; its content is not shown
            is_path = path_of(design, name) is not None
            message = f"'{name}' is not a valid design." if is_path else f"there is no shipped design '{name}'."
            hint = "check that file separately." if is_path else nearest(name, library.names())
            reporter.error("unknown-design", message, ("contains", name), key=True, hint=hint)


def _weight(design: Design) -> int:
    """Bytes of text to check for all entries: this design for each, plus the files they name."""
    location = design.document.place((), key=False)
    size = len(location.file.text) if location else len(str(design.as_dict()))
    paths = [path for name in design.contains if (path := path_of(design, name))]
    return size * len(design.contains) + sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
