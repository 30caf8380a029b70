"""Relative positions: tables of queries and of keys, and distances in buckets, as trained models have them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.t5.modeling_t5 import T5Attention

import tensornet_attn as ta
from tests.agreement import in_chunks
from tests.ops.compared import F64, agree

N = 11
LEGS = {"n": "query", "m": "key", "f": 8, "h": "head 2", "d": 4}
PLAIN = {"Q": "x[n f] Wq[f h d] -> n h d", "K": "x[m f] Wk[f h d] -> m h d", "V": "x[m f] Wv[f h d] -> m h d"}
Y = {"y": "A[h n m] V[m h d] Wo[h d f] -> n f"}


def source(legs: dict[str, Any], weights: dict[str, Any], steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    scores = "Q[n h d] K[m h d] + near[h n m] -> h n m"
    return {
        "tensornet": 1,
        "name": "near",
        "legs": LEGS | legs,
        "inputs": {"x": "n f"},
        "weights": dict.fromkeys(("Wq", "Wk", "Wv"), "f h d") | {"Wo": "h d f"} | weights,
        "diagram": PLAIN | steps | {"A": {"softmax": "m", "of": scores}} | Y,
        "output": "y",
    } | more


def t5(both: int = 1, count: int = 8, furthest: int = 6) -> dict[str, Any]:
    """The bias of T5: a weight for each bucket and head."""
    return source(
        {"p": f"relative {furthest}", "b": count},
        {"B": "b h"},
        {"R": "B[b h] own[p b] -> h p", "near": {"rel_shift": "p", "to": "m", "of": "R"}},
        constants={"own": {"legs": "p b", "value": f"bucket({count}, {furthest}, {both})"}},
    )


def deberta(reach: str = " 6") -> dict[str, Any]:
    """Scores of contents with positions and of positions with contents, whose tables are of queries and of keys."""
    return source(
        {"p": f"relative{reach}", "b": 8},
        {"E": "b f", "Pk": "f h d", "Pq": "f h d"},
        {
            "positions": "E[b f] own[p b] -> p f",
            "c2p": {"rel_shift": "p", "to": "m", "of": "Q[n h d] positions[p f] Pk[f h d] -> n h p"},
            "p2c": {"rel_shift": "p", "to": "n", "of": "K[m h d] positions[p f] Pq[f h d] -> m h p"},
            "near": "c2p[n h m] + p2c[m h n] -> h n m",
        },
        constants={"own": {"legs": "p b", "value": "log_bucket(8, 6)"}},
    )


@pytest.mark.parametrize("both", [0, 1])
@pytest.mark.parametrize(("count", "furthest"), [(8, 6), (32, 128), (12, 100)])
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_buckets_are_those_of_t5(backend: str, both: int, count: int, furthest: int) -> None:
    long = 2 * furthest + 3
    layer = ta.compile(t5(both, count, furthest), backend, dtype=F64)
    near = layer.capture(torch.zeros(long, 8, dtype=F64), "near")
    distance = torch.arange(long) - torch.arange(long)[:, None]
    index = T5Attention._relative_position_bucket(distance, bool(both), count, furthest)
    torch.testing.assert_close(near, layer.B[index].movedim(-1, 0), rtol=0, atol=0)


@pytest.mark.parametrize(("count", "furthest"), [(8, 6), (512, 512), (24, 40)])
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_log_buckets_are_those_of_deberta(backend: str, count: int, furthest: int) -> None:
    design = {
        "tensornet": 1,
        "name": "buckets",
        "legs": {"n": "query", "m": "key", "p": f"relative {furthest}", "b": count},
        "inputs": {"x": "n"},
        "weights": {"B": "b"},
        "constants": {"own": {"legs": "p b", "value": f"log_bucket({count}, {furthest})"}},
        "diagram": {
            "R": "B[b] own[p b] -> p",
            "near": {"rel_shift": "p", "to": "m", "of": "R"},
            "y": "near[n m] x[m] -> n",
        },
        "output": "y",
    }
    long = furthest + 2
    layer = ta.compile(design, backend, dtype=F64)
    x = torch.zeros(long, dtype=F64)
    x[0] = 1
    distance = torch.arange(long)
    index = make_log_bucket_position(distance, count // 2, furthest).long() + count // 2
    torch.testing.assert_close(layer(x), layer.B[index.clamp(0, count - 1)], rtol=0, atol=0)
    torch.testing.assert_close(
        layer.capture(x, "near")[0], layer.B[(count // 2 - (index - count // 2)).clamp(0, count - 1)], rtol=0, atol=0
    )


@pytest.mark.parametrize("n", [None, 4096])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("design", [t5(), t5(0), deberta(), deberta("")])
def test_torch_and_reference_agree(design: dict[str, Any], causal: bool, n: int | None) -> None:
    """Also where it is planned for many positions, in blocks of queries: the table gets its gradient from all."""
    agree(design, torch.randn(2, N, 8, dtype=F64), causal=causal, n=n)


def test_nothing_of_all_pairs_is_kept() -> None:
    """Blocks of queries read the table, be it of queries, of keys or of neither."""
    for design in (t5(), deberta()):
        layer = ta.compile(design, n=4096, m=4096)
        told = layer.explain()
        assert "queries at a time" in told
        assert "dense rel_shift" not in told


def test_a_table_of_all_distances_of_keys_is_made_whole() -> None:
    told = ta.compile(deberta(""), n=4096, m=4096, device_costs="generic").explain()
    assert "'p2c' runs along 'n'" in told


@pytest.mark.parametrize("design", [t5(), t5(0), deberta(), deberta("")])
def test_a_cache_goes_on(design: dict[str, Any]) -> None:
    layer = ta.compile(design, causal=True, dtype=F64).eval()
    x = torch.randn(2, N, 8, dtype=F64)
    torch.testing.assert_close(in_chunks(layer, x, [4, 1, 3, 1, N - 9]), layer(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("bucket(8, 9, 1)", "init-shape: leg 'p' has reach 6, but the buckets need 9. declare 'p: relative 9'."),
        (
            "bucket(6, 6, 1)",
            "arguments: 'bucket' cannot divide distances up to 6 into 6 buckets. make the first a multiple of 4 and "
            "the second greater than 1; e.g. 'bucket(32, 128, 1)'.",
        ),
        (
            "bucket(12, 6, 1)",
            "init-shape: 'bucket' needs a relative leg and a leg of size 12, not p b (13 x 8). e.g. '{legs: p b, "
            "value: bucket(32, 128, 1)}'.",
        ),
        ("bucket(8, 6)", "arguments: 'bucket' takes 3 arguments, got 2. e.g. 'bucket(32, 128, 1)'."),
    ],
)
def test_what_is_refused(value: str, message: str) -> None:
    design = t5()
    design["constants"]["own"]["value"] = value
    assert [f"{one.code}: {one.message} {one.hint}" for one in ta.check(design)] == [message]
