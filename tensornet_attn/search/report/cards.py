"""The card of each design: picture, path, what it changes in its base, costs, qualities; one is shown at a time."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from tensornet_attn.search.path import base_of
from tensornet_attn.search.rank import order
from tensornet_attn.search.report import words
from tensornet_attn.search.report.diff import difference
from tensornet_attn.search.report.findings import Findings
from tensornet_attn.search.report.pictures import design_of, pictures
from tensornet_attn.search.space import COSTS
from tensornet_attn.search.trial import COMPLETE, Result, Trial


def cards(found: Findings) -> Iterator[str]:
    """A template for each proposal and one for the picture of each design; the best ones have room first."""
    drawn = pictures([*found.chosen, *order(found.study, found.proposals)])
    names = {essence: f"picture-{place}" for place, essence in enumerate(drawn)}
    for essence, picture in drawn.items():
        yield f'<template id="{names[essence]}">{picture}</template>'
    for trial in found.proposals:
        yield f'<template id="card-{trial.slot}">{card(found, trial, names[trial.essence])}</template>'


def card(found: Findings, trial: Trial, picture: str) -> str:
    """All that is known of a trial."""
    head = f'<h3>Trial {trial.slot}</h3><p class="badges">{"".join(_badges(found, trial))}</p>'
    base = base_of(trial.path)
    changed = difference(found.space.bases[base], design_of(trial.design))
    reason = f'<p class="reason">{escape(trial.reason)}</p>' if trial.reason else ""
    facts = f"<dl>{''.join(_facts(found, trial))}</dl>"
    about = f"{head}{path(trial)}{reason}{facts}<h4>Against its base, {escape(base)}</h4>{changed}"
    drawn = f'<div class="picture" data-picture="{picture}"></div>'
    return f'<div class="sheet">{drawn}<div class="about">{about}</div></div>'


def path(trial: Trial) -> str:
    """The choices that lead to a design, one after the other."""
    return f'<p class="path">{" ".join(f"<span>{escape(str(choice))}</span>" for choice in trial.path)}</p>'


def _badges(found: Findings, trial: Trial) -> Iterator[str]:
    yield f'<span class="badge {trial.arm}">{escape(_origin(trial))}</span>'
    if trial.essence in found.members:
        yield '<span class="badge">on the Pareto front</span>'
    if trial.essence in found.ratings:
        yield '<span class="badge">confirmed</span>'
    if trial.same_as is not None:
        yield f'<span class="badge">results of trial {trial.same_as}, the same design</span>'
    if trial.state != COMPLETE:
        yield f'<span class="badge bad">{escape(trial.state)}</span>'


def _origin(trial: Trial) -> str:
    return trial.arm if trial.how == trial.arm else f"{trial.arm}: {words.origin(trial)}"


def _facts(found: Findings, trial: Trial) -> Iterator[str]:
    """Qualities, costs and time, as entries of a list."""
    for result in trial.results:
        if result.rung > 0:
            rung = found.study.rungs[result.rung - 1]
            yield _fact(f"{words.measure(rung)}, {words.task(rung)}", f"<b>{words.score(result.counts) or 'none'}</b>")
            yield f'<dd class="rates">learning rate {escape(_rates(result))}</dd>' if len(result.rates) > 1 else ""
    one = found.ratings.get(trial.essence)
    if one is not None:
        seeds = words.counted(len(one.mean.values), "fresh seed")
        yield _fact(f"confirmed, {seeds}", f"<b>{escape(one.mean.to_text())}</b>")
        yield f'<dd class="rates">{words.drop(one.drop)} from the search</dd>'
    values = {**trial.price.as_dict(), **(trial.values or {})}
    yield from (_fact(words.column(name), words.exact(values.get(name))) for name in COSTS)
    if "latency" in values:
        yield _fact("latency", f"{values['latency']:.3g} s")
    if trial in found.front:
        yield _fact("files", f"<code>pareto/{escape(words.folder(trial))}</code>")
    yield _fact("took", words.clock(trial.seconds))


def _fact(name: str, value: str) -> str:
    """An entry; `value` is HTML already."""
    return f"<dt>{escape(name)}</dt><dd>{value}</dd>"


def _rates(result: Result) -> str:
    """What each learning rate gave."""
    pairs = zip(result.rates, result.quality, strict=True)
    return ", ".join(f"{rate:g}: {words.score(value) or 'not finite'}" for rate, value in pairs)
