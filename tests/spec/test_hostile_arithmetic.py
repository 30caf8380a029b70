"""Arithmetic bombs: sizes, scales and coefficients that would take for ever, fill the memory, or run something."""

from __future__ import annotations

import pytest

import tensornet_attn as ta
from tests.bounded import bounded

ARITHMETIC = {
    "number": [
        "9**9**9", "2 ** 2 ** 99", "9 ** 300", "2 ** 511 * 2 ** 511", "1e308 * 10", "1e308 + 1e308", "-1e308 - 1e308",
        "(1 / 7) ** 250", "(1 / 7) ** 150 + (1 / 11) ** 150", "exp(1000)", "exp(exp(exp(9)))", "log(0)", "sqrt(0 - 1)",
        "(0 - 8) ** (1 / 3)", "1 // 0", "0 ** -1", "0 ** -0.5", "5 // 1e-320",
        "1e400", "1e999999999", "9" * 41, "9" * 3_999,
    ],
    "bad-size": ["(1/3) ** (1/3) ** (1/3) ** 9", "0", "1e308", "1 / 3"],
    "too-large": ["1 + " * 200 + "1", "f" * 4_001],
    "too-deep": ["(" * 2_000, "-" * 3_999 + "1", "2 ** " * 60 + "1", "max(" * 900 + "1"],
    "syntax": [
        "٣", "1_000", "0x10", "1j", "f.x", "lambda: 1", "[1][0]", "1 if f else 2", "f == 1", "'a' * 9",
        "__import__('os')", "",
    ],
    "unknown-function": ["f(", "exec(1)", "eval(1)", "open(1)"],
    None: ["max(" + "1, " * 1_300 + "1)", "1 + " * 100 + "1", "(" * 31 + "1" + ")" * 31],
}  # fmt: skip


def codes_of(text: str) -> list[str]:
    """The codes of the problems of a text as a size; as a scale and as a coefficient it is checked, too."""
    codes = [problem.code for problem in ta.check("mhsa", legs={"f": text, "h": 1})]
    data = ta.load("mhsa").as_dict() | {"contains": {}}
    data["diagram"]["A"]["scale"] = text
    ta.check(data)
    data["diagram"]["Q"] = f"({text}) * x[n f] Wq[f h d] -> n h d"
    ta.check(data)
    return codes


@pytest.mark.parametrize(
    ("text", "code"), [pytest.param(text, code, id=text[:20]) for code, texts in ARITHMETIC.items() for text in texts]
)
def test_hostile_arithmetic(text: str, code: str | None) -> None:
    assert bounded(codes_of, text) == ([code] if code else [])
