"""The functions under torch.compile: one whole graph, once for all lengths; and their dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tensornet_attn.runtime import maps, masks, positions, scan, softmax

Call = Callable[[int, int, torch.dtype], list[Tensor]]


def some(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.rand(shape, dtype=dtype, requires_grad=True)


def heads(n: int, m: int, dtype: torch.dtype) -> list[Tensor]:
    return [some(2, 4, n, 8, dtype=dtype), some(2, 2, m, 8, dtype=dtype), some(2, 2, m, 6, dtype=dtype)]


def scores(n: int, m: int, dtype: torch.dtype) -> list[Tensor]:
    return [some(2, 3, n, m, dtype=dtype), torch.rand(2, n, m) < 0.5, torch.rand(2, m) < 0.5]


def tokens(n: int, m: int, dtype: torch.dtype) -> list[Tensor]:
    return [some(2, n, 3, 8, dtype=dtype)]


def fast(n: int, m: int, dtype: torch.dtype) -> list[Tensor]:
    return [some(2, n, 3, dtype=dtype), some(2, m, 3, dtype=dtype), some(2, m, 4, dtype=dtype), some(2, m, dtype=dtype)]


def masked(box: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def function(s: Tensor, mask: Tensor, keys: Tensor) -> Tensor:
        keep, _ = masks.visible_and_bias(masks.run_time_mask(mask, 1, 1))
        keep = masks.both(
            masks.both(keep, masks.key_keep(keys, 1)), masks.causal_mask(s.shape[-2], s.shape[-1], s.device)
        )
        return box(s, keep)

    return function


def relative(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n, m = q.shape[-2], k.shape[-2]
    table = positions.sinusoid(torch.arange(1 - n, m), 8, q.dtype)
    skewed = positions.relative_to_key(q @ table.mT, n, m)
    bias = positions.relative_to_key(q[..., :1, :7], n, m, 3) + positions.distance(n, m).to(q.dtype)
    return softmax.attend(q, k, v, masks.band_mask(n, m, 2), skewed + bias)


CASES: dict[str, tuple[Callable[..., Tensor], Call]] = {
    "attend": (softmax.attend, heads),
    "attend, causal": (lambda q, k, v: softmax.attend(q, k, v, causal=True), heads),
    "attend, relative": (relative, heads),
    "attend, five dimensions": (lambda q, k, v: softmax.attend(q[None], k[None], v[None]), heads),
    "softmax": (masked(softmax.masked_softmax), scores),
    "normalized": (masked(maps.normalized), scores),
    "sum": (masked(maps.masked_sum), scores),
    "mean": (masked(maps.masked_mean), scores),
    "max": (masked(maps.masked_max), scores),
    "logsumexp": (masked(maps.masked_logsumexp), scores),
    "rope": (lambda x: positions.rotate(x, torch.arange(x.shape[1]), -3, -1, 10000, 6), tokens),
    "norms": (
        lambda x: maps.rms_norm(x, -1) + maps.layer_norm(x, -3) + maps.l1_norm(x, -2) + maps.l2_norm(x, -1),
        tokens,
    ),
    "topk": (lambda x: maps.top_entries(x, x.sin(), 3, -1), tokens),
    **{
        f"delta rule, {mode}": (lambda *x, mode=mode: scan.delta_rule(*x, normalize=mode), fast)
        for mode in ("none", "both")
    },
}


QUICK = ("attend, causal", "softmax", "rope", "delta rule, none")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in CASES])
def test_one_graph_for_all_lengths(name: str) -> None:
    function, draw = CASES[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for n, m, stance in [(7, 9, "default"), (5, 8, "fail_on_recompile"), (11, 13, "fail_on_recompile")]:
        arguments: list[Any] = draw(n, m, torch.float32)
        with torch.compiler.set_stance(stance):
            found = compiled(*arguments)
        torch.testing.assert_close(found, function(*arguments))
        found.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_the_dtype_stays_and_the_error_is_of_its_size(name: str, dtype: torch.dtype) -> None:
    function, draw = CASES[name]
    torch.manual_seed(0)
    exact = draw(6, 7, torch.float64)
    low = [x.detach().to(dtype).requires_grad_() if x.is_floating_point() else x for x in exact]
    found = function(*low)
    wanted = function(*(x.double() if x.is_floating_point() else x for x in low))
    assert found.dtype == dtype
    nothing = wanted == -1e15  # the logarithm of nothing, a number of each dtype's own
    assert (found[nothing] < -3e4).all()
    found, wanted = found[~nothing], wanted[~nothing]
    assert (found - wanted).abs().max() <= 16 * torch.finfo(dtype).eps * max(1, wanted.abs().max())
    assert torch.autograd.grad(found.sum(), low[0])[0].isfinite().all()
