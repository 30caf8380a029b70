"""How attention within a band reads in emitted code."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tests.plan.test_band import BANDED, design
from tests.shipped import OWN_KEYS

from .test_source import forward_of


def call(source: Any, **options: Any) -> list[str]:
    """The lines of the call and of its operands."""
    lines = [line.strip() for line in forward_of(ta.emit_source(source, **options, package=True)).splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith("# A and A "))
    return lines[start : lines.index("", start)]


def test_band_reads_as_one_would_write_it() -> None:
    assert call("band") == [
        "# A and A V: in blocks, only keys near the band",
        "o = attend_band(",
        "Q, K, V, 2, 2, 32, mask, key_mask, max(x.ndim, memory.ndim) - 2, self.Wq.shape[2] ** -0.5",
        ")  # ... n h d",
    ]


def test_keys_of_the_queries_own_input_have_its_length() -> None:
    assert call(OWN_KEYS | {"extends": "band"})[1:] == [
        "o = attend_band(Q, K, V, 2, 2, 32, mask, key_mask, x.ndim - 2, self.Wq.shape[2] ** -0.5, tied=True)"
        "  # ... n h d",
    ]


def test_causal_bounds_the_band() -> None:
    assert call("band", causal=True)[2].startswith("Q, K, V, 2, 0, 32,")


def test_one_head_is_a_dimension_of_its_own() -> None:
    assert call(BANDED["one head"] | {"legs": BANDED["one head"]["legs"] | {"f": 8}}) == [
        "# A and A V: in blocks, only keys near the band",
        "q = Q.unsqueeze(-2)  # ... n 1 d",
        "k = K.unsqueeze(-2)  # ... m 1 d",
        "v = V.unsqueeze(-2)  # ... m 1 e",
        "o = attend_band(q, k, v, 4, 1, 32, mask, key_mask, max(x.ndim, z.ndim) - 2, 1).squeeze(-2)  # ... n e",
    ]


def test_several_heads_are_one_dimension_and_a_mask_follows() -> None:
    lines = call(BANDED["shared keys"])
    assert lines[1] == "q = Q.flatten(-3, -2)  # ... n (g h) d"
    assert "heads_together(mask, max(x.ndim, z.ndim) - 2, (0, 1))," in " ".join(lines)
    assert lines[-1] == ").unflatten(-2, (self.Wg.shape[1], self.Wg.shape[2]))  # ... n g h e"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a band", "2, 2, 32"),
        ("a window of a setting", "6, 0, 32"),
        ("several masks", "3, 0, 32"),
        ("keys ahead alone", "-1, 3, 32"),
        ("a coefficient and a scale", "0.25)"),
    ],
)
def test_reach_block_and_scale_are_numbers(name: str, told: str) -> None:
    assert told in " ".join(call(BANDED[name]))


def test_dropout_acts_in_training_alone() -> None:
    assert "dropout=0.1 if self.training else 0.0" in " ".join(call(design(["band(2)"], dropout=0.1)))
