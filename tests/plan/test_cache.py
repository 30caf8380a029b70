"""What is kept by content: the same request gives the same plan and source, another one does not."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.plan.cache import LruCache


def test_the_same_design_is_planned_and_emitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ta.compile("talking_heads")
    monkeypatch.setattr("tensornet_attn.plan.make.make_plan", None)
    monkeypatch.setattr("tensornet_attn.emit.module.emit", None)
    second = ta.compile(ta.load("talking_heads"))
    assert second.plan is first.plan
    assert second.source is first.source
    again = pickle.loads(pickle.dumps(first))  # its own
    for other in (copy.deepcopy(first), again):
        assert (other.plan, other.source) == (first.plan, first.source)


def test_names_numbers_backends_and_aims_are_content() -> None:
    base = ta.compile("mhsa")
    text = ta.load("mhsa").to_yaml()
    others = [
        ta.compile("mhsa", causal=True),
        ta.compile("mhsa", "reference"),
        ta.compile("mhsa", workload="decoding"),
        ta.compile(ta.load("mhsa", legs={"f": 64})),
        ta.compile(ta.load(text.replace("Wq", "Wx"))),
        ta.compile(ta.load(text.replace("d ** -0.5", "2.0"))),
    ]
    assert all(other.plan is not base.plan for other in others)
    assert len({other.source for other in others if other.source}) >= 4
    assert "Wx" in dict(others[4].named_parameters())
    assert ta.compile(ta.load(text.replace("d ** -0.5", "2"))).plan is not others[5].plan


def test_what_it_says_about_itself_is_content() -> None:
    own = {"tensornet": 1, "name": "own", "extends": "mhsa"}
    told = [ta.compile(own | {"about": about}).source.splitlines()[0] for about in ("One thing.", "Another.")]
    assert told == ['"""One thing.', '"""Another.']


def test_modules_of_one_plan_are_apart() -> None:
    torch.manual_seed(0)
    first, second = (ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2})) for _ in range(2))
    x = torch.randn(1, 3, 16)
    before = second(x)
    with torch.no_grad():
        first.Wq.zero_()
    assert torch.equal(second(x), before)
    assert not torch.equal(first(x), before)


def test_what_is_refused_is_not_kept() -> None:
    for _ in range(2):
        with pytest.raises(ta.InputError):
            ta.compile("mhsa", memory=1)
    assert ta.compile("mhsa", memory=2**50).plan.offers


def test_the_oldest_goes_first() -> None:
    kept, made = LruCache[int](most=2), list[int]()

    def get(key: int) -> int:
        return kept.get(key, lambda: made.append(key) or key)

    assert [get(key) for key in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
    assert made == [1, 2, 3, 2]
    kept.clear()
    assert len(kept) == 0
