"""Packed calls in Triton's interpreter."""

from __future__ import annotations

import pytest

from tests.nn.test_packed import DESIGNS, compare, made

pytestmark = pytest.mark.rotated
QUICK = [("mhsa_rope", False), ("band", True), ("linear", True), ("thsa", False), ("moa", True)]


@pytest.mark.parametrize(
    ("name", "causal"),
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in DESIGNS],
)
def test_packed_is_one_call_a_document(name: str, causal: bool | None) -> None:
    compare(made(name, causal, "triton"), (3, 1, 4, 3))
