"""Mixtures of heads: of each head the queries that chose it attend, alone or beside heads that all of them have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.agreement import in_chunks
from tests.ops.compared import F64, agree

N, LONG = 7, 4096  # positions of a call, and those that it is planned for
FORMS = ("plain", "one product", "shared", "scaled", "one key head", "turned", "causal", "causal shared")


def source(form: str) -> dict[str, Any]:
    """Attention of 2 of 6 heads a query, as in MoH (Jin et al. 2024)."""
    queries: Any = "x[n f] Wq[f h d] -> n h d"
    scores, keys = "Q[n h d] K[m h d] -> h n m", "f h d"
    routed = "G[n h] O[n h d] Wo[h d f]"
    weights = {"Wq": "f h d", "Wv": "f h d", "Wo": "h d f", "Wr": "f h"}
    steps: dict[str, Any] = {}
    if form.endswith("one key head"):
        keys, scores = "f d", "Q[n h d] K[m d] -> h n m"
    key = f"x[m f] Wk[{keys}] -> m {' '.join(keys.split()[1:])}"
    if form == "turned":
        queries, key = {"rope": "n", "along": "d", "of": queries}, {"rope": "m", "along": "d", "of": key}  # type: ignore[assignment]
    if form == "scaled":
        weights |= {"a": "f"}
        steps["g"] = {"map": "sigmoid", "of": "x[n f] a[f] -> n"}
        routed = f"g[n] {routed}"
    steps |= {
        "P": {"softmax": "h", "of": "x[n f] Wr[f h] -> n h"},
        "G": {"topk": "h", "k": 2, "of": "P"},
        "Q": queries,
        "K": key,
        "V": "x[m f] Wv[f h d] -> m h d",
        "A": {"softmax": "m", "scale": "d ** -0.5", "of": scores},
    }
    if form == "one product":
        routed = "G[n h] A[h n m] V[m h d] Wo[h d f]"
    else:
        steps["O"] = "A[h n m] V[m h d] -> n h d"
    if form.endswith("shared"):
        weights |= {"Sq": "f s d", "Sk": "f s d", "Sv": "f s d", "So": "s d f"}
        steps |= {
            "sq": "x[n f] Sq[f s d] -> n s d",
            "sk": "x[m f] Sk[f s d] -> m s d",
            "sv": "x[m f] Sv[f s d] -> m s d",
            "B": {"softmax": "m", "of": "sq[n s d] sk[m s d] -> s n m"},
        }
        routed = f"B[s n m] sv[m s d] So[s d f] + (0.5) * {routed}"
    legs = {"n": "query", "m": "key", "f": 12, "h": "head 6", "d": 4}
    return {
        "tensornet": 1,
        "name": "mixture",
        "causal": form.startswith("causal"),
        "legs": legs | ({"s": "head 2"} if form.endswith("shared") else {}),
        "inputs": {"x": "n f"},
        "weights": weights | {"Wk": keys},
        "diagram": steps | {"y": f"{routed} -> n f"},
        "output": "y",
    }


def masks(name: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    return {
        "none": {},
        "keys": {"key_mask": torch.rand(2, N, generator=generator) < 0.5},
        "pairs": {"mask": torch.rand(2, N, N, generator=generator) < 0.5},
        "added": {"mask": torch.randn(2, N, N, generator=generator, dtype=F64)},
    }[name]


@pytest.mark.parametrize("mask", ["none", "keys", "pairs", "added"])
@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients(form: str, mask: str) -> None:
    layer = agree(source(form), torch.randn(2, N, 12, dtype=F64), n=LONG, **masks(mask))
    assert "also in 'A' for the queries that chose each head" in layer.explain()


@pytest.mark.parametrize("batch", [(), (0,), (3, 1)])
def test_batches_of_any_shape(batch: tuple[int, ...]) -> None:
    agree(source("shared"), torch.randn(*batch, N, 12, dtype=F64), n=LONG)


def test_many_queries_that_see_no_later_keys() -> None:
    """More than one piece of the queries of a head."""
    agree(source("causal"), torch.randn(1, 700, 12, dtype=F64), n=LONG, key_mask=torch.arange(700) > 2)
    agree(source("causal one key head"), torch.randn(2, 300, 12, dtype=F64), n=LONG)


def test_gradients_have_gradients() -> None:
    """Those of causal queries, whose own backward is plain code then."""
    found = []
    for backend in ("torch", "reference"):
        layer = ta.compile(source("causal"), backend, dtype=F64, n=LONG)
        layer.load_state_dict(
            {name: torch.linspace(-1, 1, w.numel()).view(w.shape) for name, w in layer.named_parameters()}
        )
        x = torch.linspace(-1, 1, 2 * N * 12, dtype=F64).sin().view(2, N, 12).requires_grad_()
        (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [x, *layer.parameters()]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_unchosen_heads_are_not_computed() -> None:
    """Of the queries of a head that nobody chose, nothing reaches the output, whatever its weights hold."""
    layer = ta.compile(source("plain"), dtype=F64, n=LONG)
    x = torch.randn(2, N, 12, dtype=F64)
    with torch.no_grad():
        layer.Wr.zero_()  # of equals the first two are chosen
        wanted = layer(x)
        layer.Wq[:, 2:] = torch.nan
        torch.testing.assert_close(layer(x), wanted, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("form", ["shared", "causal"])
def test_what_is_traced_is_the_same(form: str) -> None:
    """torch.compile computes all heads; so do derivatives by torch.func."""
    layer = ta.compile(source(form), dtype=F64, n=LONG)
    x = torch.randn(2, N, 12, dtype=F64)
    traced = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(x), layer(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.func.vmap(layer)(x[:, None])[:, 0], layer(x), rtol=0, atol=1e-12)


def test_a_cache_goes_on() -> None:
    layer = ta.compile(source("causal shared"), dtype=F64, n=LONG).eval()
    x = torch.randn(2, N, 12, dtype=F64)
    torch.testing.assert_close(in_chunks(layer, x, [3, 1, N - 4]), layer(x), rtol=0, atol=1e-12)


def test_work_is_that_of_the_chosen_heads() -> None:
    """Keys and values of all six heads; queries, scores, what they read and the output of two."""
    layer = ta.compile(source("plain"), n=LONG)
    report = ta.cost(source("plain"), n=LONG)
    (chosen,) = (step for step in report.planned.steps if step.step == "y")
    n, f, d, k = LONG, 12, 4, 2
    assert chosen.macs == n * f * d * k + 2 * n * n * d * k + n * k * d * f + n * k * f
    assert "grouped experts" in layer.explain()
