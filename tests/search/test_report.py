"""The report: one file for every study, every text escaped, a point for each trial, pictures while there is room."""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn import compiler
from tensornet_attn.compare.section import mean_of
from tensornet_attn.errors import MissingPartError
from tensornet_attn.report import scales as scale
from tensornet_attn.report.page import note
from tensornet_attn.search import Space, to_text
from tensornet_attn.search import page as pages
from tensornet_attn.search.findings import Effect, find
from tensornet_attn.search.page import changed_lines, forest, forests_of, page, pictures, slim
from tensornet_attn.search.rank import front
from tensornet_attn.search.study import Study
from tensornet_attn.search.trial import BOUND, Trial
from tests.search.report_made import made

Made = tuple[Study, Space, list[Trial]]


@pytest.fixture(scope="module")
def small() -> Made:
    return made(8)


@pytest.fixture(scope="module")
def text(small: Made) -> str:
    return page(*small)


def test_the_page_loads_nothing_and_runs_its_own_script_alone(text: str) -> None:
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", text)
    assert "://" not in re.sub(r"xmlns(?::xlink)?=\"[^\"]*\"", "", text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in text
    assert len(text) < 1_000_000


def test_drawings_are_well_formed(text: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) > 30
    for drawing in drawings:
        ElementTree.fromstring(drawing)


def test_every_trial_has_a_card_a_row_and_a_point(small: Made, text: str) -> None:
    study, _, trials = small
    slots = [str(trial.slot) for trial in trials if trial.slot >= 0]
    assert re.findall(r'<template id="card-(\d+)">', text) == slots
    assert re.findall(r'<tr id="row-(\d+)"', text) == slots
    plots = re.findall(r'<svg class="plot" [^>]*aria-label="accuracy on.*?</svg>', text, re.DOTALL)
    points = [sorted(re.findall(r'href="#trial-(\d+)"', plot), key=int) for plot in plots]
    last = [str(trial.slot) for trial in trials if trial.slot >= 0 and trial.rung == 2]
    assert points == [last, slots] * (len(study.objectives) - 1)
    assert 0 < len(last) < len(slots)


def test_texts_are_escaped(small: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST", 0)
    study, space, trials = small
    told = "RuntimeError: shapes <4x1> & <8x2> do not fit."
    text = page(study, replace(space, name="<b>", about="a & b"), [replace(trials[0], state="failed", reason=told)])
    assert text.count("RuntimeError: shapes &lt;4x1&gt; &amp; &lt;8x2&gt; do not fit.") == 2
    assert "<4x1>" not in text
    assert "<title>Search over &lt;b&gt;</title>" in text
    assert '<p class="note">a &amp; b</p>' in text


def test_the_summary(small: Made, text: str) -> None:
    study, space, trials = small
    found = find(study, space, trials)
    (verdict,) = re.findall(r'<p class="verdict">(.*?)</p>', text)
    first, second = re.split(r"(?<=16\)\.) ", verdict)
    tasks = "mqar (length 64, pairs 4) and mqar (length 128, pairs 16)"
    assert first == f"16 designs of the space 'small', 8 by evolution and 8 by random search, tried on {tasks}."
    best = found.confirmed[0]
    values = [trial.quality or 0.0 for trial in trials if trial.of == best.of]
    assert best.mean == mean_of(values)
    assert second == (
        f"The best confirmed design is trial {best.of}, {to_text(found.slots[best.of].path)}: "
        f"accuracy {best.mean.to_text()} over 5 fresh seeds, a drop of {best.drop:.4f} from the search's "
        f"{best.search:.4f}, at {found.slots[best.of].price.macs / 1e6:.3g}M multiply-adds."
    )


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_study_that_has_hardly_begun(small: Made, count: int) -> None:
    study, space, trials = small
    text = page(study, space, trials[:count])
    assert "so no result is confirmed." in text
    assert "No design was trained again with fresh seeds." in text
    assert text.count('<template id="card-') == count


def test_a_study_of_one_arm_of_which_all_failed(small: Made) -> None:
    study, space, trials = small
    own = [
        replace(trial, results=(), values=None, state="failed", reason="no luck.")
        for trial in trials
        if trial.arm == "evolution"
    ]
    text = page(study.model_copy(update={"baseline": False}), space, own)
    assert "Failed 8." in text
    assert "Evolution ends at 0.000." in text


def test_without_graphviz_a_sentence_stands_in_place_of_each_picture(
    small: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> bytes:
        raise MissingPartError("pictures need Graphviz.")

    monkeypatch.setattr(compiler, "picture", missing)
    text = page(*small)
    essences = {trial.essence for trial in small[2]}
    assert text.count('<p class="note">No picture: pictures need Graphviz.</p>') == len(essences)


def test_pictures_have_room_on_the_page_the_best_first(small: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST", 20_000)
    study, _, trials = small
    best = front(study, trials)
    drawn = pictures([*best, *trials])
    assert drawn[best[0].essence].startswith("<svg")
    assert list(drawn.values())[-1] == note(pages.LEFT_OUT)
    assert sum(len(one) for one in drawn.values() if one.startswith("<svg")) < 20_000 + 60_000


def test_a_small_picture_says_what_the_large_one_says() -> None:
    design = ta.load("hard_fish")
    whole = compiler.picture(design).decode()
    small = slim(whole)
    assert len(small) < 0.75 * len(whole)
    assert _texts(small) == _texts(whole)


def _texts(drawing: str) -> list[str]:
    return " ".join(ElementTree.fromstring(drawing).itertext()).split()


def test_the_difference_of_a_design_from_its_base() -> None:
    base = ta.load("mhsa")
    assert changed_lines(base.as_dict(), ta.load("mhsa", legs={"h": 2})) == [
        ("same", "    f: 512"),
        ("less", "-   h: head 8"),
        ("more", "+   h: head 2"),
        ("same", "    d: f / h"),
    ]
    assert changed_lines(base.as_dict(), base) == []


def test_a_trial_beyond_a_bound_is_no_failure(small: Made) -> None:
    study, space, trials = small
    beyond = [replace(trial, state=BOUND) if trial.slot == 0 else trial for trial in trials]
    assert len(find(study, space, beyond).failed) == len(find(study, space, trials).failed)


def test_an_interval_far_wider_than_the_others_does_not_set_the_axis() -> None:
    own = [Effect(name, "move", "quality", 0.1, 0.05, 0.15, 5, 9) for name in "abc"]
    wide = Effect("d", "move", "quality", 0.0, -9.0, 9.0, 2, 12)
    drawn = forest([*own, wide], "accuracy")
    assert [len(row.cuts) for row in drawn.rows] == [0, 0, 0, 2]
    assert max(map(abs, drawn.axis.ticks)) < 0.3
    assert [row.kind for row in drawn.rows] == ["gain", "gain", "gain", "unsure"]


def test_every_effect_has_its_row_and_every_cut_its_arrowhead(small: Made, text: str) -> None:
    found = find(*small)
    shown = {(one.metric, one.rung) for one in found.effects}
    rows = [row for metric, rung in shown for plot in forests_of(found, metric, rung) for row in plot.rows]
    drawn = [name for row in rows for name in [row.kind, *["cut"] * len(row.cuts)]]
    assert sorted(re.findall(r'class="(?:effect )?(gain|loss|unsure|cut)"', text)) == sorted(drawn)
    assert {"gain", "unsure"} < {*drawn}


@pytest.mark.parametrize("values", [[], [0.5], [0.5, 0.5], [0.0], [-3.0, 2.0]])
def test_scales_take_any_values(values: list[float]) -> None:
    for make in (scale.linear, scale.cost):
        axis = make(values, 100.0, 20.0)
        assert all(20 <= axis.at(value) <= 100 for value in values)
        assert axis.ticks == tuple(sorted(axis.ticks))


def test_accuracies_near_one_are_told_apart() -> None:
    assert [scale.near_one(values) for values in ([], [0.2, 0.9], [0.2, 0.99], [-0.5, 0.99], [0.99, 35.0])] == [
        False,
        False,
        True,
        False,
        False,
    ]
    axis = scale.rate([0.2, 1.0, 1.02], 100.0, 20.0)  # an interval may reach beyond 1
    assert 100 > axis.at(0.2) > axis.at(0.9) > axis.at(0.99) > axis.at(0.999) > axis.at(1.0) == axis.at(1.02) > 20


def test_qualities_of_a_function_may_have_any_size(small: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST", 0)
    study, space, trials = small
    own = study.model_copy(update={"rungs": (*study.rungs[:1], study.rungs[1].model_copy(update={"task": "my:task"}))})
    large = [
        replace(one, results=tuple(replace(r, quality=tuple(q and 50 * q for q in r.quality)) for r in one.results))
        for one in trials
    ]
    text = page(own, space, large)
    assert ">quality</text>" in text
    ys = [float(y) for y in re.findall(r'<line class="whisker[^"]*" [^>]*y[12]="([\d.-]+)"', text)]
    assert ys
    assert all(36 <= y <= 322 for y in ys)
