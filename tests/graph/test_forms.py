"""The two forms of a graph say in fields what its steps say, and no reduction over the key leg is left out."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

import tensornet_attn as ta
from tensornet_attn.graph.attention import (
    MappedScores,
    NormalizedScores,
    Reduce,
    Score,
    SoftmaxOfScores,
    Terms,
    attentions,
    cached,
    score_of,
)
from tensornet_attn.graph.graph import Use
from tensornet_attn.graph.recurrence import erases
from tests.forms import randoms, recurrences, reductions
from tests.shipped import graph_of


def test_views_of_one_name_are_apart() -> None:
    graph = replace(graph_of("mhsa"))
    views = [cached(lambda graph: graph.name), cached(lambda graph: len(graph.steps))]
    assert [view(graph) for view in views] == [graph.name, len(graph.steps)]
    assert pickle.loads(pickle.dumps(ta.compile("mhsa"))).plan.graph.hash == graph.hash


def test_no_product_that_sums_the_keys_is_left_out() -> None:
    for graph in [*map(graph_of, ta.list_designs()), *randoms(150)]:
        places = {place.partition(",")[0] for place, _ in reductions(graph)}
        for step in graph.steps:
            summed = {leg for use in step.op.uses for leg in use.legs} - {*step.legs}
            boxed = step.box is not None and step.box.leg == graph.key and step.box.kind in ("softmax", "sum", "max")
            assert step.name in places or graph.key is None or not (graph.key in summed or boxed)


def test_the_fields_say_what_the_diagram_says() -> None:
    for graph in [*map(graph_of, ta.list_designs()), *randoms(150)]:
        for name, found in attentions(graph).items():
            assert found.box == graph.step[name]
            assert found.masks == graph.masks(found.box)
            for term in found.terms:
                sides = (term.query, True, False), (term.key, False, True), (term.core, False, False)
                for uses, query, key in (*sides, (term.pairwise, True, True)):
                    assert all((graph.query in use.legs, graph.key in use.legs) == (query, key) for use in uses)
            assert len(found.readers) == sum(use.name == name for _, use in graph.uses())
        for form in recurrences(graph):
            assert {*form.heads, *form.mixed} <= {*form.box.legs}
            assert (
                form.value is None
                or {*form.value_legs} == {*form.value.legs} - {*form.box.legs} - {graph.key}
                or erases(form.box)
            )


def test_views_are_frozen_and_kept_on_their_graph() -> None:
    graph = graph_of("fish")
    found = attentions(graph)["A"]
    assert attentions(graph)["A"] is found
    with pytest.raises(FrozenInstanceError):
        found.box = graph.steps[0]  # type: ignore[misc]
    again = replace(graph)
    assert again == graph
    assert attentions(again)["A"] is not found
    assert attentions(again)["A"] == found


def test_scores_are_a_tree() -> None:
    """gfish: a linear map over the heads of the sum over global heads of relu of products."""
    graph = graph_of("gfish")
    found = attentions(graph)["A"]
    assert isinstance(found.weighting, SoftmaxOfScores)
    kinds, score = [Terms], found.score
    while inside := _inside(score):
        score = score_of(graph, inside)
        kinds.append(type(score))
    assert kinds == [Terms, Reduce, MappedScores, Terms]


def _inside(score: Score) -> Use | None:
    if isinstance(score, MappedScores | Reduce):
        return score.of
    assert isinstance(score, Terms)
    return next((use for term in score.terms for use in term.pairwise if use.name != "eps"), None)


def test_what_divides_rows_has_its_eps() -> None:
    found = attentions(graph_of("fmm3"))
    assert any(isinstance(one.weighting, NormalizedScores) for one in found.values())
