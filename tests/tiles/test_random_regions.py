"""Random attention in C++, in blocks of few queries and keys: values and gradients are those of the reference."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.runtime.cpp import CPP_MORE
from tensornet_attn.tiles.cpp import source
from tests.agreement import modules
from tests.random_call import Call, same_if_usable
from tests.random_region import random_region
from tests.tiles.test_cpp import needs_compiler, on_cpp

pytestmark = needs_compiler
SEVERAL = """
tensornet: 1
name: several
legs:
  n: query
  m: key
  f: 3
  v: head 2
  h: head 3
  g: 2
inputs:
  x: n f
weights:
  Wq: f g
  Wk: f h v g
  Wv: {weights}
diagram:
  Q: x[n f] Wq[f g] -> n g
  K: x[m f] Wk[f h v g] -> m h v g
  V: x[m f] Wv[{weights}] -> {values}
  A:
    softmax: {over}
    of: Q[n g] K[m h v g] -> v h n m
  y: A[v h n m] V[{values}] -> {result}
output: y
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4 queries and 8 keys, compiled quickly."""
    monkeypatch.setattr(source, "BLOCKS", ((4, 8),))
    monkeypatch.setenv(CPP_MORE, "-O0")


def check(data: Any, seed: int) -> None:
    oracle, module = modules(data, "cpp")
    if not on_cpp(module):
        return
    for length in (1, 3, 20):
        call = Call(module.plan.graph, random.Random(seed), seed)
        call.lengths = dict.fromkeys(call.lengths, length)
        same_if_usable(module, oracle, *call.arguments())


@pytest.mark.parametrize(
    ("over", "values", "result"),
    [
        ("[v, m]", "m h v g", "h n g"),
        ("[v, m]", "m h v g", "n g"),  # sums a leg that the softmax has for itself too
        ("[m, h, v]", "m h v g", "n g"),
        ("[m, h, v]", "m h v", "n"),  # rows of one number
    ],
)
def test_a_reader_sums_legs_of_a_softmax(over: str, values: str, result: str) -> None:
    check(ta.load(SEVERAL.format(over=over, values=values, weights=values.replace("m", "f"), result=result)), 0)


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 60))])
def test_random_regions(seed: int) -> None:
    data = random_region(random.Random(seed))
    if not any(problem.severity == "error" for problem in ta.check(data)):
        check(data, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60, 600))
def test_many_random_regions(seed: int) -> None:
    test_random_regions(seed)
