"""Kernels of calls without queries, without keys and with an empty batch."""

from __future__ import annotations

import pytest

from tests.designs.cases import CASES
from tests.nn.test_empty import empty_calls


@pytest.mark.parametrize("name", ["transformer_xl", "gau", "t5"])
def test_kernels_may_be_given_nothing(name: str) -> None:
    empty_calls(name, CASES[name].causal[-1], "triton")
