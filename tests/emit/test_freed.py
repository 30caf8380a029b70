"""Values are freed after their last use: in the text, and in memory."""

from __future__ import annotations

from itertools import pairwise

import torch

import tensornet_attn as ta
from tensornet_attn.bench.measure import peak_bytes
from tensornet_attn.emit.freed import freed

LONG = {"...", "n", "m"}


def test_a_value_is_freed_after_the_last_use_of_its_views() -> None:
    lines = ["Q = x @ W  # ... n d", "q = Q.mT  # ... d n", "w = W.mT  # e d", "S = w @ q  # ... e n"]
    lines += ["T = S + w  # ... e n", "return f(T)"]
    assert freed([lines], LONG) == [[*lines[:4], "del Q, q", *lines[4:]]]


def test_paragraphs_keep_their_lines_and_nothing_is_freed_before_the_result() -> None:
    groups = [["a = f(x)  # ... n d", "# a and b"], ["b = g(a)  # ... n d"], ["c = b + b  # ... n d", "return f(c)"]]
    assert freed(groups, LONG) == [groups[0], [groups[1][0], "del a"], groups[2]]


def test_what_later_code_reads_stays_and_an_attribute_is_another_name() -> None:
    groups = [["a = f(x)  # ... n d", "W = g(a)  # ... n d", "b = W @ self.a  # ... n d", "c = b @ self.W  # ... n d"]]
    assert freed(groups, LONG, "return a") == [[*groups[0][:3], "del W", groups[0][3]]]


def test_hidden_inputs_stay_and_hidden_values_are_freed() -> None:
    lines = [
        "a = hide(x, keep)  # ... n d",
        "b = f(a)  # ... n d",
        "c = hide(b, keep)  # ... n d",
        "d = f(c)  # ... n d",
    ]
    lines += ["e = f(d)  # ... n d", "return f(e)"]
    assert freed([lines], LONG) == [[*lines[:3], "del b", lines[3], "del c", *lines[4:]]]


def test_a_chain_of_values_takes_the_memory_of_four() -> None:
    design = {
        "tensornet": 1,
        "name": "chain",
        "legs": {"n": "query", "f": 64, "g": 64},
        "inputs": {"x": "n f"},
        "weights": {"W": "f g"},
        "diagram": {b: {"map": "tanh", "of": f"{a}[n f] W[f g] -> n g"} for a, b in pairwise("xABCDy")},
        "output": "y",
    }
    layer, x = ta.compile(design), torch.randn(512, 64)
    with torch.no_grad():
        assert peak_bytes(lambda: layer(x)) == 4 * x.nbytes
