"""Decoding with a cache, its parts in Triton's interpreter."""

from __future__ import annotations

import pytest

from tests.nn.test_cache import test_chunks_are_the_same_as_at_once as same_as_at_once


@pytest.mark.parametrize("name", ["thsa", "linear", "band", "transformer_xl", "fast_weight1"])
def test_chunks_are_the_same_as_at_once(name: str) -> None:
    same_as_at_once(name, "triton")
