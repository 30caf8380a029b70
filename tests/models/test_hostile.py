"""Broken model files: every one is answered with problems, whatever stands where, and what is accepted goes round."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest

import tensornet_attn as ta

INLINE = {"tensornet": 1, "name": "inline", "extends": "mhsa", "legs": {"h": "head 2"}}
PAIR = {
    "kind": "seq2seq", "vocabulary": 9, "length": 8, "width": 8, "positions": "none", "norm": "rmsnorm", "tied": True,
    "embedding_scale": "width ** 0.5", "dropout": 0.1, "init": "gpt2", "target_vocabulary": 5,
    "encoder": [{"mixer": {"design": "mhsa", "legs": {"h": 2}, "settings": {}, "causal": False}, "mlp": "mlp"}],
    "decoder": [{"mixer": {"design": INLINE}, "cross": {"design": "cross", "legs": {"h": 2}}, "repeat": 2}],
}  # fmt: skip
XL = {"mixer": {"design": "transformer_xl", "legs": {"h": 2}}}
READER = {"kind": "language_model", "vocabulary": 9, "length": 8, "width": 8, "memory": 4, "layers": [XL, "mlp"]}
MODELS = [{"tensornet": 1, "name": "a", "model": model} for model in (PAIR, READER)]
VALUES = [
    None, True, 0, -1, 1, 3.5, float("inf"), 10**30, 2**31 - 1, "", "x", "1/0", "\ud800", "\x00", "a/b\x00.yaml",
    "mhsa", "mlp", [], [1], {}, {"a": 1}, [[]], "9**9**9", "width", "/", "a\nb: {", {"tensornet": 1}, b"x", object(),
]  # fmt: skip


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def spoil(data: Any, rng: random.Random) -> None:
    """Changes, removes or adds one value somewhere."""
    *path, last = rng.choice(list(places(data)))
    for key in path:
        data = data[key]
    what = rng.random()
    if what < 0.7:
        data[last] = rng.choice(VALUES)
    elif what < 0.85:
        del data[last]
    elif isinstance(data, dict):
        data[rng.choice(["zz", "mixr", "legs", "design"])] = rng.choice(VALUES)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_stands_where(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        data = copy.deepcopy(rng.choice(MODELS))
        for _ in range(rng.choice([1, 1, 2])):
            spoil(data, rng)
        found = ta.models.check(data)
        assert all(str(problem) and problem.message for problem in found)
        if not any(problem.severity == "error" for problem in found):
            whole = ta.models.load(data).to_yaml(whole=True)
            assert ta.models.load(whole).to_yaml(whole=True) == whole


def test_the_models_themselves_are_fine() -> None:
    assert [ta.models.check(model) for model in MODELS] == [[], []]
