"""The section on moves: how quality and costs differ between designs with and without each, and after adding it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from tensornet_attn.analyse import html
from tensornet_attn.search.effects import ALL, Effect
from tensornet_attn.search.report import words
from tensornet_attn.search.report.findings import Findings
from tensornet_attn.search.report.forest import forest
from tensornet_attn.search.trial import larger

NOTE = (
    "Differences of means, with intervals that hold the true one in 95 of 100 repetitions; where they reach zero they "
    "are grey, and there may be nothing. Random search draws its designs independently, so its comparisons are the "
    "fair ones; evolution adds moves to what was good already. Of this many rows, one in twenty stands out by chance "
    "alone. On the right: trials with / without, or pairs."
)


def moves(found: Findings) -> Iterator[str]:
    """Forest plots, those on quality open and those on costs folded away."""
    yield html.heading(2, "Which moves paid", "moves")
    if not found.effects:
        yield html.paragraph("Too few designs have been evaluated for any comparison.", "note")
        return
    yield html.paragraph(NOTE, "note")
    for place in range(len(found.study.rungs), 0, -1):
        own = [one for one in found.effects if one.rung == place]
        if own:
            yield html.heading(3, f"Rung {place}: {words.task(found.study.rungs[place - 1])}")
            yield _figures(own, words.measure(found.study.rungs[place - 1]))
    costs = dict.fromkeys(one.metric for one in found.effects if one.metric != "quality")
    drawn = "".join(_figures([one for one in found.effects if one.metric == cost], words.NAMES[cost]) for cost in costs)
    yield f"<details><summary>What moves cost</summary>{drawn}</details>" if costs else ""


def _figures(effects: Sequence[Effect], title: str) -> str:
    """A plot for each way to compare, of effects on one metric."""
    groups: dict[tuple[bool, bool], list[Effect]] = {}
    for one in effects:
        groups.setdefault((one.paired, one.arm == ALL), []).append(one)
    return f'<div class="forests">{"".join(_figure(groups[key], title) for key in sorted(groups))}</div>'


def _figure(effects: Sequence[Effect], title: str) -> str:
    one = effects[0]
    quality = one.metric == "quality"
    drawn = forest(effects, title, "{:+.3f}".format if quality else _signed, 1 if larger(one.metric) else -1)
    told = "a mutant and its parent" if one.paired else words.ARMS.get(one.arm, "all trials")
    return f"<figure>{drawn}<figcaption>With it minus without it: <b>{escape(told)}</b>.</figcaption></figure>"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{words.short(value)}"
