"""The head of the page: what was searched, what came out, and a few numbers."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from tensornet_attn.analyse import html
from tensornet_attn.search.path import to_text
from tensornet_attn.search.rank import Confirmed
from tensornet_attn.search.report import words
from tensornet_attn.search.report.findings import Findings
from tensornet_attn.search.trial import COMPLETE


def summary(found: Findings) -> Iterator[str]:
    """Sentences and tiles."""
    if found.space.about:
        yield html.paragraph(found.space.about, "note")
    yield html.paragraph(" ".join(sentences(found)), "verdict")
    tiles = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in _tiles(found))
    yield f'<div class="tiles">{tiles}</div>'


def sentences(found: Findings) -> Iterator[str]:
    """What was tried, and the best that was confirmed."""
    arms = words.joined(f"{len(found.of_arm(arm))} by {words.ARMS[arm]}" for arm in found.study.arms)
    tasks = words.joined(words.task(rung) for rung in found.study.rungs)
    count = words.counted(len(found.proposals), "design")
    yield f"{count} of the space '{found.space.name}', {arms}, tried on {tasks}."
    nothing = "No design was trained again with fresh seeds, so nothing here is confirmed."
    yield nothing if found.best is None else _best(found, found.best)


def _best(found: Findings, best: Confirmed) -> str:
    trial = found.slots[best.of]
    measure, seeds = words.measure(found.study.rungs[-1]), words.counted(len(best.mean.values), "fresh seed")
    confirmed = f"{measure} {best.mean.to_text()} over {seeds}, {words.drop(best.drop)} from the search's"
    told = f"{confirmed} {words.score(best.search)}, at {words.short(trial.price.macs)} multiply-adds"
    return f"The best that was confirmed is trial {best.of}, {to_text(trial.path)}: {told}."


def _tiles(found: Findings) -> Iterator[tuple[str, str]]:
    yield f"{len({trial.essence for trial in found.proposals}):,}", "different designs"
    yield f"{len(found.front)}", "on the Pareto front"
    complete = sum(trial.state == COMPLETE for trial in found.proposals)
    yield f"{complete}", f"trials complete, {len(found.failed)} failed"
    if found.best is not None:
        yield found.best.mean.to_text(), "best confirmed, 95 % interval"
        yield f"{found.best.drop:.4f}", "drop from search to confirmed"
    yield words.clock(sum(trial.seconds for trial in found.trials)), "spent on all trials"
