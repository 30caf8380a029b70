"""The oracle's boxes against loops and formulas written out by hand, with masks of every kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tensornet_attn.graph import Graph, build
from tensornet_attn.reference import evaluate
from tensornet_attn.spec import load
from tests.refusals import refusal

LEGS = {"n": "query", "m": "key", "f": 4, "h": "head 2"}
SIZES = [(4, 4), (3, 5), (5, 3), (1, 1)]
SCORES = "x[n f] z[m f] a[f h] -> h n m"
KINDS = ["softmax", "normalize", "keep", "sum", "mean", "max", "logsumexp"]
REDUCE = ("sum", "mean", "max", "logsumexp")


def graph(diagram: dict[str, Any], legs: dict[str, Any] = LEGS, **parts: Any) -> Graph:
    parts = {"tensornet": 1, "name": "test", "legs": legs, "inputs": {"x": "n f", "z": "m f"}, "output": "y"} | parts
    return build(load({"weights": {"a": "f h"}, **parts, "diagram": diagram}))


def boxed(kind: str, of: str = SCORES, **more: Any) -> Graph:
    """A box over the keys, and a step that gives its value to the output."""
    legs = "h n" if kind in REDUCE else "h n m"
    y = f"B[{legs}] a[f h] -> n f" if kind in REDUCE else f"B[{legs}] z[m f] a[f h] -> n f"
    causal = more.pop("causal", False)
    return graph({"S": of, "B": {kind: "m", "of": "S", **more}, "y": y}, legs=LEGS | {"f": "head 4"}, causal=causal)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def tensors(n: int, m: int, *batch: int) -> dict[str, Tensor]:
    torch.manual_seed(n * 10 + m)
    values = {"x": draw(*batch, n, 4), "z": draw(*batch, m, 4), "a": draw(4, 2)}
    return {name: value.requires_grad_() for name, value in values.items()}


PLAIN: dict[str, Callable[[list[float]], list[float] | float]] = {
    "softmax": lambda row: [math.exp(s) / sum(map(math.exp, row)) for s in row],
    "normalize": lambda row: [s / sum(row) for s in row],
    "keep": lambda row: row,
    "sum": sum,
    "mean": lambda row: sum(row) / len(row),
    "max": max,
    "logsumexp": lambda row: math.log(sum(map(math.exp, row))),
}


def by_hand(kind: str, scores: Tensor, keep: Tensor) -> Tensor:
    """Row by row over the visible keys; rows without any are zeros, and a number for minus infinity in logarithms."""
    scores, keep = torch.broadcast_tensors(scores.detach(), keep)
    shape, nothing = scores.shape[:-1] if kind in REDUCE else scores.shape, -1e15 if kind == "logsumexp" else 0.0
    result = torch.full(shape, nothing, dtype=scores.dtype)
    for place in [tuple(p) for p in torch.ones(scores.shape[:-1]).nonzero().tolist()]:
        visible = keep[place].nonzero().flatten().tolist()
        if not visible:
            continue
        value = torch.tensor(PLAIN[kind](scores[place][visible].tolist()), dtype=scores.dtype)
        if kind in REDUCE:
            result[place] = value
        else:
            result[place].index_copy_(0, torch.tensor(visible), value)
    return result


def check(
    g: Graph, kind: str, values: dict[str, Tensor], keep: Tensor, bias: Tensor | float = 0.0, **call: Any
) -> None:
    """The box's value is the one by hand, and every gradient is finite; rows that see nothing have gradient zero."""
    lengths = {"n": values["x"].shape[-2], "m": values["z"].shape[-2]}
    found = evaluate(g, values, lengths=lengths, **call)
    torch.testing.assert_close(found["B"], by_hand(kind, found["S"] + bias, keep))
    weights = torch.randn_like(found["B"])
    (gradient,) = torch.autograd.grad((found["B"] * weights).sum(), found["S"], retain_graph=True)
    assert gradient.isfinite().all()
    assert (gradient * ~keep).abs().max() == 0
    for gradient in torch.autograd.grad(found["y"].sum(), list(values.values())):
        assert gradient.isfinite().all()


def distance(n: int, m: int) -> Tensor:
    return torch.arange(m - n, m)[:, None] - torch.arange(m)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_masks_of_the_design(kind: str, n: int, m: int) -> None:
    there = distance(n, m)
    patterns = {
        "causal": there >= 0,
        "band(1)": there.abs() <= 1,
        "window(2, 0)": (there <= 2) & (there >= 0),
        "window(0, 1)": (there <= 0) & (there >= -1),
    }
    for mask, keep in patterns.items():
        check(boxed(kind, mask=[mask]), kind, tensors(n, m, 2), keep)
    check(boxed(kind, mask=["causal", "band(1)"]), kind, tensors(n, m), (there >= 0) & (there <= 1))
    check(boxed(kind, mask=["band(1)"], causal=True), kind, tensors(n, m), (there >= 0) & (there <= 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_masks_of_the_call(kind: str, n: int, m: int) -> None:
    values = tensors(n, m, 2)
    keys = torch.rand(2, m) < 0.5
    check(boxed(kind), kind, values, keys[:, None, None, :], key_mask=keys)
    for shape in [(n, m), (2, n, m), (2, 2, n, m)]:
        mask = torch.rand(shape) < 0.5
        whole = mask[:, None] if len(shape) == 3 else mask
        check(boxed(kind), kind, values, whole, mask=mask)
        keep = whole & keys[:, None, None, :] & (distance(n, m) >= 0)
        check(boxed(kind, causal=True), kind, values, keep, mask=mask, key_mask=keys)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("normalize", "keep")])
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_a_float_mask_is_added_and_minus_infinity_hides(kind: str, n: int, m: int) -> None:
    mask = draw(2, n, m).masked_fill(torch.rand(2, n, m) < 0.5, -math.inf)[:, None]
    hidden = mask == -math.inf
    check(boxed(kind), kind, tensors(n, m, 2), ~hidden, mask.masked_fill(hidden, 0), mask=mask[:, 0])


def test_masks_need_the_query_leg_and_key_masks_do_not() -> None:
    g = graph({"s": {"mean": "m", "of": "z[m f] a[f h] -> m h"}, "y": "x[n f] s[h] b[h] -> n f"},
              weights={"a": "f h", "b": "h"}, legs=LEGS)  # fmt: skip
    values, keys = tensors(3, 5, 2) | {"b": draw(2)}, torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]]).bool()
    call = {"mask": torch.zeros(3, 5, dtype=torch.bool), "key_mask": keys}
    found = evaluate(g, values, lengths={"n": 3, "m": 5}, **call)
    torch.testing.assert_close(found["s"][0], found["s.of"][0, [0, 2, 3]].mean(0))
    assert found["s"][1].abs().max() == 0


def test_masks_follow_the_written_order_of_legs() -> None:
    legs = LEGS | {"g": "head 3"}
    steps = {"A": {"softmax": "m", "of": "x[n f] z[m f] c[f h g] -> m g n h"}, "y": "A[m g n h] z[m f] c[f h g] -> n f"}
    g = graph(steps, legs=legs | {"f": "head 4"}, weights={"c": "f h g"})
    values, mask = {**tensors(3, 5, 2), "c": draw(4, 2, 3)}, torch.rand(2, 3, 2, 3, 5) < 0.7
    del values["a"]
    found = evaluate(g, values, lengths={"n": 3, "m": 5}, mask=mask)
    want = by_hand("softmax", found["A.of"].permute(0, 2, 4, 3, 1), mask)  # b g h n m
    torch.testing.assert_close(found["A"].permute(0, 2, 4, 3, 1), want)


def test_masks_that_do_not_fit_are_refused() -> None:
    values, lengths = tensors(3, 5, 2), {"n": 3, "m": 5}

    def message(kind: str, **call: Any) -> str:
        return refusal(evaluate, boxed(kind), values, lengths=lengths, **call)

    assert message("keep", mask=draw(3, 5)) == (
        "mask: 'B', a keep box, cannot add a float mask; give a boolean mask (true = visible)."
    )
    assert message("softmax", mask=torch.ones(3, 5, dtype=torch.int64)) == (
        "mask has dtype torch.int64; give a boolean mask (true = visible) or a float mask (added)."
    )
    assert message("softmax", mask=torch.ones(1, 1, 1, 3, 5).bool()) == (
        "mask: 5 dimensions do not fit 'B'; give [n, m], [batch..., n, m] or [batch..., h, n, m]."
    )
    assert (
        message("softmax", key_mask=draw(2, 5))
        == "key_mask has dtype torch.float64; give a boolean mask (true = visible)."
    )


def test_dropout_and_scale_act_in_a_softmax() -> None:
    torch.manual_seed(0)
    values, lengths = tensors(40, 50), {"n": 40, "m": 50}
    g = boxed("softmax", scale="n ** -0.5", dropout=0.25)
    found = evaluate(g, values, lengths=lengths)
    plain = (found["S"] * 40**-0.5).softmax(-1)
    torch.testing.assert_close(found["B"], plain)
    trained = evaluate(g, values, lengths=lengths, training=True)["B"]
    dropped = trained == 0
    assert abs(dropped.double().mean() - 0.25) < 0.03
    torch.testing.assert_close(trained[~dropped], plain[~dropped] / 0.75)


def single(box: dict[str, Any], legs: str = "n f", **parts: Any) -> Graph:
    """One box over x."""
    return graph({"y": {**box, "of": "x"}}, inputs={"x": legs}, weights={}, legs={"n": "query", "f": 4}, **parts)


def alone(box: dict[str, Any], x: Tensor, training: bool = False) -> Tensor:
    return evaluate(single(box), {"x": x}, lengths={"n": x.shape[-2]}, training=training)["y"]


MAPS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0),
    "gelu": lambda x: x * (1 + math.erf(x / 2**0.5)) / 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "elu": lambda x: x if x > 0 else math.exp(x) - 1,
    "elu1": lambda x: x + 1 if x > 0 else math.exp(x),
    "elu1_neg": lambda x: math.exp(-x) if x > 0 else 1 - x,
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "exp": math.exp,
    "square": lambda x: x * x,
    "abs": abs,
    "softplus": lambda x: math.log(1 + math.exp(x)),
    "softcap(2 * f)": lambda x: 8 * math.tanh(x / 8),
    "power(3)": lambda x: x**3,
    "clamp(-1, 1/2)": lambda x: min(max(x, -1), 0.5),
    "clamp(-inf, 1/2)": lambda x: min(x, 0.5),
    "clamp(-1, inf)": lambda x: max(x, -1),
    "clamp_min(-1)": lambda x: max(x, -1),
    "clamp_max(0)": lambda x: min(x, 0),
    "gelu_tanh": lambda x: x * (1 + math.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "mish": lambda x: x * math.tanh(math.log(1 + math.exp(x))),
    "hardswish": lambda x: x * min(max(x + 3, 0), 6) / 6,
    "hardsigmoid": lambda x: min(max(x + 3, 0), 6) / 6,
    "relu_squared": lambda x: max(x, 0) ** 2,
    "leaky_relu(0.2)": lambda x: x if x > 0 else 0.2 * x,
    "logsigmoid": lambda x: -math.log(1 + math.exp(-x)),
    "erf": math.erf,
    "sin": math.sin,
    "cos": math.cos,
    "expm1": math.expm1,
    "softcap(2 * pi)": lambda x: 2 * math.pi * math.tanh(x / 2 / math.pi),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps(name: str) -> None:
    x = draw(2, 5, 4)
    want = torch.tensor([MAPS[name](v) for v in x.flatten().tolist()], dtype=torch.float64).view_as(x)
    torch.testing.assert_close(alone({"map": name}, x), want)


def test_maps_of_positive_numbers() -> None:
    x = torch.rand(2, 5, 4, dtype=torch.float64) + 0.1
    torch.testing.assert_close(alone({"map": "log"}, x), x.log())
    torch.testing.assert_close(alone({"map": "sqrt"}, x), x**0.5)
    torch.testing.assert_close(alone({"map": "log1p"}, x), (1 + x).log())


def test_topk_keeps_exactly_k_and_the_smaller_index_wins() -> None:
    x = torch.tensor([[1.0, 2, 2, 2], [0, 0, 0, 0], [5, -1, 7, 5], [-3, -2, -1, -4]], dtype=torch.float64)
    want = torch.tensor([[0.0, 2, 2, 0], [0, 0, 0, 0], [5, 0, 7, 0], [0, -2, -1, 0]], dtype=torch.float64)
    assert torch.equal(alone({"topk": "f", "k": 2}, x), want)


def test_topk_by_another_tensor_that_gets_gradients_of_zero() -> None:
    g = graph({"y": {"topk": "f", "k": 2, "by": "b[f] -> f", "of": "x"}}, inputs={"x": "n f"}, weights={"b": "f"},
              legs={"n": "query", "f": 4})  # fmt: skip
    x, b = draw(2, 3, 4), torch.tensor([0.0, 3, -1, 3]).double().requires_grad_()
    y = evaluate(g, {"x": x, "b": b}, lengths={"n": 3})["y"]
    assert torch.equal(y, x * torch.tensor([0.0, 1, 0, 1]))
    assert torch.equal(torch.autograd.grad(y.sum(), b)[0], torch.zeros(4).double())


def test_norms() -> None:
    x = draw(2, 5, 4)
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    torch.testing.assert_close(alone({"layernorm": "f"}, x), (x - mean) / (variance + 1e-5).sqrt())
    torch.testing.assert_close(
        alone({"rmsnorm": "n", "eps": 0.5}, x), x / (x.square().mean(-2, keepdim=True) + 0.5).sqrt()
    )
    torch.testing.assert_close(alone({"l1norm": "f"}, x), x / x.abs().sum(-1, keepdim=True))
    torch.testing.assert_close(alone({"l2norm": "f", "eps": 1}, x), x / (x.norm(dim=-1, keepdim=True) + 1))


@pytest.mark.parametrize("kind", ["l1norm", "l2norm"])
def test_norms_of_zeros_are_zeros(kind: str) -> None:
    x = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    y = alone({kind: "f"}, x)
    assert y.abs().max() == 0
    assert torch.autograd.grad(y.sum(), x)[0].abs().max() == 0


def test_rope_turns_pairs_by_the_position() -> None:
    steps = {
        "Q": {"rope": "n", "along": "f", "base": 100, "of": "x"},
        "K": {"rope": "m", "along": "f", "base": 100, "of": "z"},
        "A": {"softmax": "m", "of": "Q[n f] K[m f] -> n m"},
        "y": "A[n m] z[m f] -> n f",
    }
    g = graph(steps, weights={}, legs={"n": "query", "m": "key", "f": 4})
    x, z = draw(2, 3, 4), draw(2, 5, 4)
    found = evaluate(g, {"x": x, "z": z}, lengths={"n": 3, "m": 5})
    turned = torch.view_as_complex(torch.stack((x[..., :2], x[..., 2:]), -1).contiguous())
    angles = torch.arange(2, 5)[:, None] * torch.tensor([1.0, 0.1], dtype=torch.float64)
    turned = torch.view_as_real(turned * torch.polar(torch.ones_like(angles), angles))
    torch.testing.assert_close(found["Q"], torch.cat((turned[..., 0], turned[..., 1]), -1))
    torch.testing.assert_close(found["K"][:, 0], z[:, 0])
    half = alone({"rope": "n", "along": "f", "fraction": 0.5}, x)
    torch.testing.assert_close(half[..., 2:], x[..., 2:])
    torch.testing.assert_close(half[:, 2, 0], x[:, 2, 0] * math.cos(2) - x[:, 2, 1] * math.sin(2))


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_rel_shift_reads_the_entry_of_the_distance(n: int, m: int) -> None:
    steps = {
        "P": "x[n f] R[p f] a[f h] -> n h p",
        "B": {"rel_shift": "p", "to": "m", "of": "P"},
        "A": {"softmax": "m", "of": "B"},
        "y": "A[n h m] z[m f] a[f h] -> n f",
    }
    constants = {"R": {"legs": "p f", "value": "sinusoid"}}
    g = graph(steps, legs=LEGS | {"p": "relative", "f": "head 4"}, constants=constants)
    found = evaluate(g, tensors(n, m, 2), lengths={"n": n, "m": m})
    assert found["P"].shape == (2, n, 2, n + m - 1)
    torch.testing.assert_close(found["R"][n - 1], torch.tensor([0.0, 1, 0, 1]).double())  # the distance zero
    for i in range(n):
        for j in range(m):
            assert torch.equal(found["B"][:, i, :, j], found["P"][:, i, :, i + m - n - j + n - 1])


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("reach", [1, 2, 9])
def test_rel_shift_of_one_table_for_all_queries_clamps_to_its_reach(n: int, m: int, reach: int) -> None:
    steps = {
        "B": {"rel_shift": "p", "to": "m", "of": "w"},
        "A": {"softmax": "m", "of": SCORES.replace("->", "+ B[h n m] ->")},
        "y": "A[h n m] z[m f] a[f h] -> n f",
    }
    g = graph(steps, legs=LEGS | {"p": f"relative {reach}", "f": "head 4"}, weights={"a": "f h", "w": "h p"})
    w = draw(2, 2 * reach + 1)
    found = evaluate(g, tensors(n, m, 2) | {"w": w}, lengths={"n": n, "m": m})["B"]
    for i in range(n):
        for j in range(m):
            assert torch.equal(found[:, i, j], w[:, min(max(i + m - n - j, -reach), reach) + reach])


def fast(mode: str, eps: float = 0.0) -> Graph:
    box = {"delta_rule": "m", "query": "q", "key": "k", "value": "v", "rate": "r", "normalize": mode, "eps": eps}
    legs = {"n": "query", "m": "key", "h": 2, "d": 3, "e": 4}
    return graph({"y": box}, legs=legs, weights={}, inputs={"q": "n h d", "k": "m h d", "v": "h m e", "r": "m h"})


@pytest.mark.parametrize(("n", "m"), [(5, 5), (3, 5), (5, 3), (1, 1)])
@pytest.mark.parametrize("mode", ["none", "read", "both"])
@pytest.mark.parametrize("eps", [0.0, 0.25])
def test_the_delta_rule_of_one_head_written_out(n: int, m: int, mode: str, eps: float) -> None:
    torch.manual_seed(0)
    q, k, r = torch.rand(2, n, 2, 3).double(), torch.rand(2, m, 2, 3).double(), torch.rand(2, m, 2).double()
    v, keep = draw(2, 2, m, 4), torch.rand(2, m) < 0.7
    found = evaluate(fast(mode, eps), {"q": q, "k": k, "v": v, "r": r}, lengths={"n": n, "m": m}, key_mask=keep)["y"]
    assert found.shape == (2, 2, n, 4)
    for b, h in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        want = one_head(q[b, :, h], k[b, :, h], v[b, h], r[b, :, h], keep[b].tolist(), mode, eps)
        torch.testing.assert_close(found[b, h], want)


def one_head(q: Tensor, k: Tensor, v: Tensor, r: Tensor, keep: list[bool], mode: str, eps: float) -> Tensor:
    """Schlag et al. 2021 for one head: q [n, d], k [m, d], v [m, e], r [m] -> [n, e]."""
    S, z, reads, seen, first = torch.zeros(4, 3).double(), torch.zeros(3).double(), [], False, len(k) - len(q)
    for p in range(min(0, first), len(k)):
        if p >= 0 and keep[p]:
            scale = z @ k[p] if seen and mode == "both" else 1.0
            key = k[p] / (scale + eps) if mode == "both" else k[p]
            S = S + r[p] * scale * torch.outer(v[p] - S @ key, key)
            z, seen = z + k[p], True
        if p >= first:
            divisor = 1.0 if mode == "none" or not seen else z @ q[p - first] + eps
            reads.append(S @ q[p - first] / divisor)
    return torch.stack(reads)


@pytest.mark.parametrize("mode", ["none", "read", "both"])
def test_the_delta_rule_where_all_keys_are_masked(mode: str) -> None:
    values = {"q": draw(2, 4, 2, 3), "k": draw(2, 4, 2, 3), "v": draw(2, 2, 4, 4), "r": draw(2, 4, 2)}
    values = {name: value.requires_grad_() for name, value in values.items()}
    keep = torch.tensor([[0, 0, 0, 0], [0, 1, 1, 0]]).bool()
    y = evaluate(fast(mode), values, lengths={"n": 4, "m": 4}, key_mask=keep)["y"]
    assert y[0].abs().max() == 0
    assert y[1, :, 0].abs().max() == 0
    for gradient in torch.autograd.grad(y.sum(), list(values.values())):
        assert gradient.isfinite().all()
        assert gradient[0].abs().max() == 0


def test_dropout_acts_while_training() -> None:
    torch.manual_seed(0)
    x = torch.ones(200, 4, dtype=torch.float64)
    assert torch.equal(alone({"dropout": 0.5}, x), x)
    dropped = alone({"dropout": 0.5}, x, training=True)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
