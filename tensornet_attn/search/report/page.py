"""The page: what was searched and found, plots, which moves paid, tables, and how to do it again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from tensornet_attn.analyse import html
from tensornet_attn.compare.look import STYLE
from tensornet_attn.search.report import tables, words
from tensornet_attn.search.report.cards import cards
from tensornet_attn.search.report.finals import finals
from tensornet_attn.search.report.findings import Findings, find
from tensornet_attn.search.report.fronts import fronts
from tensornet_attn.search.report.moves import moves
from tensornet_attn.search.report.summary import summary
from tensornet_attn.search.report.trials import trials as table_of_trials
from tensornet_attn.search.report.volume import lead, volume
from tensornet_attn.search.space import Space
from tensornet_attn.search.study import Study, yaml_of
from tensornet_attn.search.trial import Trial

HERE = Path(__file__).parent
LUCK = (
    "The best of a search has been lucky as well as good. So the finalists of each arm were trained again, at their "
    "best learning rate, with seeds that nothing was chosen by."
)
VOLUME = (
    "how much of the space between the worst and the best of the study is dominated by what an arm has found on the "
    "last rung; more is better. Each arm has the same budget of different designs. This is one study with one seed: "
    "how much the lines differ by luck, only other seeds tell."
)
SORT = "A click on the name of a column sorts by it, another one the other way round."
AGAIN = "This file is the study; with one worker its proposals are the same, byte for byte."


def page(study: Study, space: Space, trials: Sequence[Trial]) -> str:
    """The report of a study with these finished trials, as one page of HTML that loads nothing.

    `space` is that of the study. Parts whose package is missing have a sentence in their place.
    """
    found = find(study, space, trials)
    title = f"Search over {space.name}"
    body = [html.heading(1, title), *summary(found), *_sections(found), *_card(), *cards(found)]
    look = STYLE + (HERE / "page.css").read_text(encoding="utf-8")
    return html.page(title, body, look, (HERE / "page.js").read_text(encoding="utf-8"))


def _sections(found: Findings) -> Iterator[str]:
    yield from fronts(found)
    yield from _confirmed(found)
    yield from _volumes(found)
    yield from moves(found)
    yield html.heading(2, "All trials", "all")
    yield html.paragraph(SORT, "note")
    yield table_of_trials(found)
    if found.failed:
        yield html.heading(2, "Failures", "failures")
        yield f'<div class="left">{tables.failures(found)}</div>'
    yield from _again(found)


def _confirmed(found: Findings) -> Iterator[str]:
    yield html.heading(2, "Confirmed", "confirmed")
    if found.confirmed:
        yield html.paragraph(LUCK, "note")
        yield finals(found)
    else:
        yield html.paragraph("No design was trained again with fresh seeds.", "note")


def _volumes(found: Findings) -> Iterator[str]:
    yield html.heading(2, "Evolution against random search" if found.study.baseline else "Hypervolume", "volumes")
    if isinstance(found.volumes, str):
        yield html.paragraph(f"Not drawn: {found.volumes}", "note")
        return
    names = words.joined(words.column(name) for name in found.study.objectives)
    yield html.paragraph(lead(found.volumes))
    told = f"<figcaption>The hypervolume of {escape(names)}: {escape(VOLUME)}</figcaption>"
    yield f'<figure class="curves">{volume(found.volumes)}{told}</figure>'


def _again(found: Findings) -> Iterator[str]:
    yield html.heading(2, "How it was searched", "rungs")
    yield f'<div class="left">{tables.rungs(found)}</div>'
    yield html.paragraph(AGAIN)
    yield html.code("tensornet-attn search --config study.yaml --out runs/again")
    text = escape(yaml_of(found.study))
    yield f"<details><summary>study.yaml</summary><pre>{text}</pre></details>"


def _card() -> Iterator[str]:
    yield '<noscript><p class="note">Cards and sorting need scripts; all numbers are in the tables.</p></noscript>'
    close = '<button type="button" class="close" aria-label="Close">×</button>'
    yield f'<aside id="card" role="dialog" aria-label="Design" hidden>{close}<div class="inside"></div></aside>'
