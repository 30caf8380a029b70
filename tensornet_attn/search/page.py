"""The report of a study as a page: what its template asks for, pictures, and what differs from a base."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from functools import lru_cache
from statistics import median
from typing import Any

from markupsafe import Markup

from tensornet_attn import compiler
from tensornet_attn.report import page as pages
from tensornet_attn.report.scales import Scale, linear, readable_ticks
from tensornet_attn.report.words import short
from tensornet_attn.search.findings import ARM_NAMES, MEANINGS, Findings, counts, find, folder, measure, origin, task
from tensornet_attn.search.plots import forests_of, lead, scatter, trained, volume
from tensornet_attn.search.rank import order
from tensornet_attn.search.space import COSTS, Space, base_of, to_text
from tensornet_attn.search.study import Study, yaml_of
from tensornet_attn.search.trial import COMPLETE, Trial, on_rung
from tensornet_attn.spec import Design

MOST = 3_000_000  # characters of pictures on one page
LEFT_OUT = "The picture is left out, so that this page stays small; 'tensornet-attn draw' makes it."
# What Graphviz says of every node and wire, and a page says once or not at all.
_SAME = (
    (re.compile(r' xml:space="preserve"'), ""),
    (re.compile(r' font-family="Helvetica,sans-Serif"'), ""),
    (re.compile(r' xmlns:xlink="[^"]*"'), ""),
    (re.compile(r' id="(?:graph|node|edge|clust|a_)[^"]*"'), ""),
    (re.compile(r' class="(?:node|edge|cluster|graph)[^"]*"'), ""),
    (re.compile(r"<!--.*?-->\n?"), ""),
    (re.compile(r"<g>\s*</g>\n?"), ""),
)
_PLACES = re.compile(r' (?:d|points|x|y|cx|cy|rx|ry|viewBox)="[^"]*"')
_DIGITS = re.compile(r"(\.\d)\d+")  # a tenth of a point is enough
ABOUT = ("tensornet", "name", "about", "source", "contains")  # of a design, say nothing of what is computed
NEAR = 1  # lines around a change that are shown
KINDS = {"+": "more", "-": "less", "@": "place"}


def page(study: Study, space: Space, trials: Sequence[Trial]) -> str:
    """The report of a study with these finished trials, as one page of HTML that loads nothing.

    `space` is that of the study.
    """
    found = find(study, space, trials)
    drawn = pictures([*found.chosen, *order(study, found.proposals)])
    names = {essence: f"picture-{place}" for place, essence in enumerate(drawn)}
    states = Counter(trial.state for trial in found.failed).most_common()
    return pages.page(
        "search.html", f"Search over {space.name}", "search.js",
        found=found, study=study, drawn=drawn, names=names, states=states, yaml=yaml_of(study),
        ARM_NAMES=ARM_NAMES, COMPLETE=COMPLETE, COSTS=COSTS, MEANINGS=MEANINGS, **VIEWS,
    )  # fmt: skip


def plots(found: Findings) -> list[list[tuple[int, str]]]:
    """The (rung, cost) of the plots, row by row: a row for each cost, the last rung first; one row of a single rung."""
    rungs = range(len(found.study.rungs), 0, -1)
    rows = [[(rung, cost) for rung in rungs] for cost in found.shown]
    return rows if len(rungs) > 1 else [[plot for row in rows for plot in row]]


def interval_axis(found: Findings, width: float) -> Scale:
    """One scale for the intervals of all finalists."""
    ends = [v for one in found.confirmed for v in (one.search, one.mean.low, one.mean.high, *one.mean.values)]
    return linear(ends, 8, width - 8)


def values(trial: Trial) -> Mapping[str, float]:
    """All that is known of a trial, by objective."""
    return {**trial.price.as_dict(), **(trial.values or {})}


def times(found: Findings, rung: int) -> Sequence[float]:
    """The seconds that trials have taken on a rung; those that took over the results of others left out."""
    own = (trial for trial in found.proposals if trial.same_as is None)
    return [result.seconds for trial in own for result in trial.results if result.rung == rung]


def pictures(trials: Iterable[Trial]) -> dict[str, Markup]:
    """By essence, the picture of each design as SVG, the first ones as far as the page has room; else a sentence."""
    found: dict[str, Markup] = {}
    room = MOST
    for trial in trials:
        if trial.essence not in found:
            drawn = slim(pages.drawing(design_of(trial.design))) if room > 0 else pages.note(LEFT_OUT)
            found[trial.essence] = drawn
            room -= len(drawn)
    return found


@lru_cache(maxsize=1024)
def design_of(text: str) -> Design:
    """A design by its YAML, read once."""
    return compiler.load(text)


def slim(svg: str) -> Markup:
    """A drawing of Graphviz without what its page says once."""
    for pattern, other in _SAME:
        svg = pattern.sub(other, str(svg))
    return Markup(_PLACES.sub(lambda places: _DIGITS.sub(r"\1", places[0]), svg))


def difference(found: Findings, trial: Trial) -> list[tuple[str, str]]:
    """The lines that a design has and its base has not, or the other way round, and some around them; by kind."""
    return changed_lines(found.space.bases[base_of(trial.path)], design_of(trial.design))


def changed_lines(base: Mapping[str, Any], design: Design) -> list[tuple[str, str]]:
    """(`more`, `less`, `same` or `place`, the line): what differs between a base and a design, an entry a line."""
    before, after = list(lines(base)), list(lines(design.as_dict()))
    changed = list(unified_diff(before, after, n=NEAR, lineterm=""))[3:]  # the first place is the beginning
    kinds = ((KINDS.get(text[0], "same"), text) for text in changed)
    return [(kind, "  ..." if kind == "place" else f"{text[0]} {text[1:]}") for kind, text in kinds]


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """The entries of a design, a line each, under the names of their sections, in the order of the language.

    >>> list(lines({"legs": {"f": 64}, "weights": {"W": {"legs": "f g", "init": "zeros"}}, "output": "y"}))
    ['legs:', '  f: 64', 'weights:', '  W: {legs: f g, init: zeros}', 'output: y']
    """
    order_of = ["legs" if name == "declared_legs" else name for name in Design.model_fields]
    for name in (name for name in order_of if name in data and name not in ABOUT):
        section = data[name]
        if isinstance(section, Mapping):
            yield f"{name}:"
            yield from (f"  {key}: {_flow(value)}" for key, value in section.items())
        else:
            yield f"{name}: {_flow(section)}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        short_form = set(value) == {"legs"}  # `Wq: {legs: f h d}` is written `Wq: f h d`
        inside = ", ".join(f"{key}: {_flow(item)}" for key, item in value.items())
        return _flow(value["legs"]) if short_form else f"{{{inside}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_flow, value))}]"
    return str(value)


VIEWS: Mapping[str, Callable[..., Any]] = {
    view.__name__: view
    for view in (
        base_of, counts, difference, folder, forests_of, interval_axis, lead, measure, median, on_rung, origin, plots,
        readable_ticks, scatter, short, task, times, to_text, trained, values, volume,
    )
}  # fmt: skip
