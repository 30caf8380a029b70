"""Random layers: compiled for any use they are the reference, in one call, packed and from a cache."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tests.nn.test_packed import Called, offsets, padded
from tests.random_call import F64, assert_same, results, same_results, usable
from tests.random_layer import random_layer

SEEDS = (*range(96), 302082, 402129)  # the last two: mapped queries of chosen heads, and of all heads
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"n": 4096}, {"linear_memory": True, "n": 512}, {"workload": "decoding"})
LENGTHS = ((3, 1, 4), (2, 2, 2), (5, 0, 3), (1, 6), (0, 4, 4, 1), (7,))


def pair(seed: int, draw: random.Random) -> tuple[Any, Any]:
    """The reference and a module that is compiled in one of several ways, with the same weights."""
    data, options = random_layer(random.Random(seed)), draw.choice(OPTIONS)
    torch.manual_seed(seed)
    oracle = ta.reference(data, dtype=F64)
    try:
        module = ta.compile(data, "torch", dtype=F64, **options)
    except ta.InputError:  # in blocks of queries alone it cannot be
        module = ta.compile(data, "torch", dtype=F64)
    state = {name: torch.rand_like(value) * 1.6 - 0.8 for name, value in oracle.state_dict().items()}
    for one in (oracle, module):
        one.load_state_dict(state)
    return oracle, module


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_layer(seed: int) -> None:
    draw = random.Random(seed)
    oracle, module = pair(seed, draw)
    n, generator = draw.choice([1, 2, 7, 9]), torch.Generator().manual_seed(seed)
    f = module.design.legs["f"]
    x, keys = torch.randn(2, n, f, dtype=F64), torch.rand(2, n, generator=generator) < 0.7
    wanted = results(oracle, [x], {})
    assert usable(wanted), "the weights are too large to compare anything"
    assert_same(results(module, [x], {}), wanted)
    same_results(module, oracle, [x], {"key_mask": keys})
    packed(oracle, module, torch.randn(1, 9, f, dtype=F64), draw)
    decoded(module.eval(), x, wanted["output"], draw)


def packed(oracle: Any, module: Any, x: Tensor, draw: random.Random) -> None:
    """Documents of a row, some of which are empty, are calls of their own."""
    lengths = draw.choice(LENGTHS)
    x, ends = x[:, : sum(lengths)], [*accumulate(lengths)]
    spans = [(end - length, end) for length, end in zip(lengths, ends, strict=True) if length]
    apart = Called(oracle, lambda x: torch.cat([oracle(x[:, start:end]) for start, end in spans], 1))
    with padded(draw.random() < 0.5):
        assert_same(results(module, [x], {"cu_seqlens": offsets(lengths)}), results(apart, [x], {}))


def decoded(module: Any, x: Tensor, wanted: Tensor | None, draw: random.Random) -> None:
    """Chunks with a cache, where one can be kept."""
    try:
        cache = module.new_cache()
    except ta.InputError:
        return
    first = draw.randint(0, x.shape[1])
    parts = [part for part in x.split([first, *[1] * (x.shape[1] - first)], 1) if part.shape[1]]
    with torch.no_grad():
        found = torch.cat([module(part, cache=cache) for part in parts], 1)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)
