"""Packed calls in Triton's interpreter: which calls they are made of is the same as on the CPU, with every design."""

from __future__ import annotations

from tests.nn.test_packed import compare, made
from tests.regions import WIDE, quick

QUICK = [("mhsa_rope", False), ("band", True), ("linear", True), ("thsa", False), ("moa", True)]


@quick(list(dict.fromkeys([*QUICK, *WIDE])), QUICK)
def test_packed_is_one_call_a_document(name: str, causal: bool | None) -> None:
    compare(made(name, causal, "triton"), (3, 1, 4, 3))
