"""Peak memory of a forward and backward grows no faster than the lengths: no tensor of n x m elements is ever made."""

from __future__ import annotations

import json
import re

import pytest

import tensornet_attn as ta
from tensornet_attn.kernels import blocks
from tensornet_attn.plan.cache import LruCache
from tests.memory import slope, training_peak

MOST = 1.15  # of the slope: 1 is linear, 2 quadratic
RANKS = ("thsa",)  # their ranks are sizes of their own
NAMED = ("thsa", "hard_fish", "gfish", "mgk", "fmm2", "epa", "talking_heads", "differential", "transformer_xl")
QUICK = ("thsa", "hard_fish", "mgk", "fmm2", "epa", "talking_heads", "differential")


def peaks(name: str, width: int, lengths: tuple[int, ...]) -> list[int]:
    """Of a forward and backward of one design, batch 1, weights and their gradients left out."""
    ranks = {"r": width, "s": width} if name in RANKS else {}
    module = ta.compile(ta.load(name, legs={"f": width, **ranks}))
    return [training_peak(module, n, width) for n in lengths]


@pytest.mark.parametrize("name", QUICK)
def test_memory_is_linear(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small blocks: what a block takes at every length would else hide a map of all pairs."""
    monkeypatch.setattr(blocks, "budget_of", lambda device: 1 << 16)
    for cache in ("plan.make.PLANS", "compiler._sources"):  # nothing of these blocks is left for others
        monkeypatch.setattr(f"tensornet_attn.{cache}", LruCache(most=4))
    lengths = (1024, 4096)
    assert slope(lengths, peaks(name, 16, lengths)) <= MOST


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_memory_is_linear_up_to_long_sequences(name: str) -> None:
    lengths = (1024, 8192)
    assert slope(lengths, peaks(name, 64, lengths)) <= MOST


@pytest.mark.slow
def test_a_head_for_each_rank_takes_a_twentieth_of_the_memory() -> None:
    """Where the plain code keeps r maps of n x m elements, and the products of core and query are r s n numbers."""
    design = ta.load("thsa", legs={"f": 256, "r": 256, "s": 256})
    ours, plain = (training_peak(ta.compile(design, backend), 1024, 256) for backend in ("torch", "reference"))
    assert ours <= plain / 20


def test_the_letter_of_a_leg_takes_no_memory() -> None:
    """A gradient sums over ranks and queries, which lie side by side: also as r and n, which an einsum sums as n, r."""
    text = json.dumps(ta.load("thsa", legs={"f": 64, "r": 64, "s": 64}).as_dict())
    peaks_of_both = [training_peak(ta.compile(json.loads(re.sub(r"\br\b", leg, text))), 256, 64) for leg in ("a", "r")]
    assert peaks_of_both[0] == pytest.approx(peaks_of_both[1], rel=0.05)


def test_the_measure_sees_a_map_of_all_pairs() -> None:
    lengths = (256, 1024)
    plain = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}), "reference")
    assert slope(lengths, [training_peak(plain, n, 16) for n in lengths]) > 1.5
