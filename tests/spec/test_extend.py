"""What a design that extends another takes from it without saying so."""

from __future__ import annotations

import tensornet_attn as ta


def test_an_input_with_a_default_goes_with_the_steps_that_read_it() -> None:
    keys, values = "x[m f] Wk[f h d] -> m h d", "x[m f] Wv[f h d] -> m h d"
    child = {"tensornet": 1, "name": "child", "extends": "mhsa", "diagram": {"K": keys, "V": values}}
    assert list(ta.load("mhsa").inputs) == ["x", "memory"]
    assert list(ta.load(child).inputs) == ["x"]
    assert list(ta.load(child | {"diagram": {"K": keys}}).inputs) == ["x", "memory"]  # V still reads it
    given = child | {"inputs": {"memory": {"legs": "m f", "default": "x"}}}  # said by the child itself
    assert [problem.code for problem in ta.check(given)] == ["unused"]


def test_a_child_leaves_its_parent_as_it_is() -> None:
    before = ta.load("mhsa"), ta.load("cross")
    scores = {"softmax": "m", "of": "Q[n h d] K[m h d] -> h n m"}
    ta.load({"tensornet": 1, "name": "child", "extends": "cross", "diagram": {"A": scores}}, legs={"f": 64})
    assert (ta.load("mhsa"), ta.load("cross")) == before
