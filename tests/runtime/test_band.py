"""Attention within a band in blocks: values and gradients of the dense one, and what torch may do with it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tensornet_attn.runtime.band import attend_band
from tensornet_attn.runtime.masks import visible, window_mask
from tensornet_attn.runtime.softmax import masked_softmax
from tests.agreement import in_one_graph

F64 = torch.float64
NO_VMAP_RULE = "ignore:There is a performance drop:UserWarning"
REACHES = [(0, 0), (1, 1), (4, 0), (0, 3), (9, 9), (17, 2), (4, -2), (-1, 3), (50, 50)]
LENGTHS = [(1, 1), (7, 7), (8, 8), (9, 9), (3, 20), (20, 3), (17, 40)]


def some(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, dtype=F64, generator=generator).requires_grad_()


def operands(n: int, m: int, batch: tuple[int, ...] = (2,)) -> list[Tensor]:
    """Four query heads, two of keys and values, values wider than keys."""
    return [some(*batch, n, 4, 3), some(*batch, m, 2, 3, seed=1), some(*batch, m, 2, 5, seed=2)]


def dense(
    q: Tensor, k: Tensor, v: Tensor, left: int, right: int, mask: Any = None, key_mask: Any = None, batch: int = 1
) -> Tensor:
    own, shared = window_mask(q.shape[-3], k.shape[-3], left, right), q.shape[-2] // k.shape[-2]
    keep, bias = visible(own, mask, key_mask, batch, 1)
    k, v = (t.repeat_interleave(shared, -2).transpose(-2, -3) for t in (k, v))
    return (masked_softmax(0.7 * q.transpose(-2, -3) @ k.mT, keep, bias) @ v).transpose(-2, -3)


def same(got: Tensor, want: Tensor, leaves: list[Tensor]) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    by = torch.randn(got.shape, dtype=F64, generator=torch.Generator().manual_seed(5))
    found = torch.autograd.grad(got, leaves, by)
    torch.testing.assert_close(found, torch.autograd.grad(want, leaves, by), rtol=1e-9, atol=1e-10)
    assert all(x.isfinite().all() for x in found)


@pytest.mark.parametrize(("n", "m"), [(5, 0), (0, 5), (0, 0)])
@pytest.mark.parametrize("prefix", [0, 2])
def test_a_mask_of_no_key_or_no_query(n: int, m: int, prefix: int) -> None:
    sees = (lambda query, key: (key <= query) & ((query - key <= 3) | (key < 2))) if prefix else None
    given = operands(n, m)
    for mask in (torch.ones(n, m, dtype=torch.bool), some(n, m)):
        found = attend_band(*given, 3, 0, 4, mask, batch=1, sees=sees, prefix=prefix)
        assert found.shape == (2, n, 4, 5)
        assert not found.any()
        leaves = [*given, *([mask] if mask.requires_grad else [])]
        assert not any(x.any() for x in torch.autograd.grad(found.sum(), leaves))


@pytest.mark.parametrize(("n", "m"), LENGTHS)
@pytest.mark.parametrize(("left", "right"), REACHES)
@pytest.mark.parametrize("block", [4, 8])
def test_values_and_gradients(n: int, m: int, left: int, right: int, block: int) -> None:
    given = operands(n, m)
    key_mask = torch.rand(2, m, generator=torch.Generator().manual_seed(m)) < 0.6
    for keys in (None, key_mask, torch.zeros_like(key_mask)):
        found = attend_band(*given, left, right, block, None, keys, 1, 0.7, tied=n == m)
        same(found, dense(*given, left, right, None, keys), given)


@pytest.mark.parametrize(("n", "m"), LENGTHS)
@pytest.mark.parametrize(("left", "right"), [(1, 1), (4, 0), (4, -2)])
@pytest.mark.parametrize("leading", [(), (2,), (2, 4), (1, 1)])
@pytest.mark.parametrize("added", [False, True])
def test_masks_of_the_call(n: int, m: int, left: int, right: int, leading: tuple[int, ...], added: bool) -> None:
    given, drawn = operands(n, m), some(*leading, n, m, seed=9)
    key_mask = torch.tensor([[True] * m, [False] * m])
    leaves = [*given, drawn] if added else given

    def mask() -> Tensor:
        return torch.where(drawn > 1, -torch.inf, drawn) if added else drawn < 0.5

    for keys in (None, key_mask):
        found = attend_band(*given, left, right, 4, mask(), keys, 1, 0.7, tied=n == m)
        same(found, dense(*given, left, right, mask(), keys), leaves)


@pytest.mark.parametrize("batch", [(), (1,), (2, 1, 3), (0,), (2, 0)])
def test_any_number_of_batch_dimensions(batch: tuple[int, ...]) -> None:
    given, key_mask, bias = operands(9, 9, batch), torch.rand(*batch, 9) < 0.6, some(9, 9)
    found = attend_band(*given, 2, 1, 4, bias, key_mask, len(batch), 0.7, tied=True)
    same(found, dense(*given, 2, 1, bias, key_mask, len(batch)), [*given, bias])


def test_operands_may_lack_batch_dimensions() -> None:
    q, k, v = some(3, 9, 4, 3), some(9, 2, 3), some(2, 1, 9, 2, 5)
    same(attend_band(q, k, v, 2, 1, 4, scale=0.7), dense(q, k, v, 2, 1), [q, k, v])


def test_values_may_have_more_heads_than_keys() -> None:
    q, k, v = some(2, 9, 4, 3), some(2, 9, 1, 3), some(2, 9, 4, 2)
    same(attend_band(q, k, v, 2, 1, 4, scale=0.7), dense(q, k.expand(-1, -1, 4, -1), v, 2, 1), [q, k, v])


@pytest.mark.parametrize("scale", [-0.7, 0.0])
def test_a_scale_may_be_negative_or_zero(scale: float) -> None:
    q, k, v = operands(9, 9)
    same(attend_band(q, k, v, 2, 1, 4, scale=scale), dense(q * (scale / 0.7), k, v, 2, 1), [q, k, v])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    given = [t.detach().to(dtype) for t in operands(19, 19)]
    found = attend_band(*given, 3, 3, 8, some(19, 19).detach(), None, 1, 0.7, tied=True)
    assert found.dtype == dtype
    wanted = dense(*(t.to(F64) for t in given), 3, 3, some(19, 19))
    torch.testing.assert_close(found.to(F64), wanted.detach(), rtol=0, atol=0.1 if dtype == torch.bfloat16 else 1e-5)


def test_dropout_leaves_the_mean_and_drops_as_often_as_asked() -> None:
    q, k, v = torch.zeros(1, 4096, 1, 4), torch.zeros(1, 4096, 1, 4), torch.ones(1, 4096, 1, 1)
    torch.manual_seed(0)
    found = attend_band(q, k, v, 0, 0, 32, dropout=0.25, tied=True)  # a weight each: dropped, or divided by 0.75
    assert set(found.unique().tolist()) <= {0.0, torch.tensor(1 / 0.75).item()}
    assert abs((found == 0).double().mean().item() - 0.25) < 0.03


def masked_call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, key_mask: Tensor) -> Tensor:
    return attend_band(q, k, v, 3, 2, 4, mask, key_mask, 1, 0.7)


def tied_call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend_band(q, k, v, 3, 2, 4, scale=0.7, tied=True)


def arguments(function: Callable[..., Tensor], batch: int, n: int, m: int) -> list[Tensor]:
    given = operands(n, m, (batch,))
    return given if function is tied_call else [*given, some(n, m) < 1, some(batch, m) < 1]


@pytest.mark.slow
@pytest.mark.parametrize("function", [tied_call, masked_call])
def test_one_graph_for_all_lengths(function: Callable[..., Tensor]) -> None:
    def draw(batch: int, n: int, m: int) -> list[Tensor]:
        return arguments(function, batch, n, n if function is tied_call else m)

    sizes = [(5, 6, 9), (3, 7, 8), (4, 8, 20), (6, 16, 3), (7, 33, 33), (8, 3, 40)]
    for found, given in in_one_graph(function, draw, sizes):
        same(found, function(*given), given[:3])


@pytest.mark.parametrize("function", [tied_call, masked_call])
def test_export_with_free_batch_and_lengths(function: Callable[..., Tensor]) -> None:
    class Layer(nn.Module):
        def forward(self, *given: Tensor) -> Tensor:
            return function(*given)

    batch, n, m = (torch.export.Dim(name, min=2, max=4096) for name in ("batch", "n", "m"))
    m = n if function is tied_call else m
    shapes = [{0: batch, 1: n}, {0: batch, 1: m}, {0: batch, 1: m}, {0: n, 1: m}, {0: batch, 1: m}]
    given = tuple(t.detach() for t in arguments(function, 3, 7, 7 if m is n else 10))
    exported = torch.export.export(Layer(), given, dynamic_shapes=(tuple(shapes[: len(given)]),)).module()
    for sizes in [(2, 8, 8), (5, 13, 13), (2, 40, 40), (4, 9, 31), (4, 31, 9)]:
        if m is n and sizes[1] != sizes[2]:
            continue
        given = tuple(t.detach() for t in arguments(function, *sizes))
        torch.testing.assert_close(exported(*given), function(*given), rtol=1e-9, atol=1e-10)


@pytest.mark.filterwarnings(NO_VMAP_RULE)
def test_vmap() -> None:
    given = [t.detach() for t in arguments(masked_call, 3, 9, 11)]
    found = vmap(lambda q, k, v, keys: masked_call(q, k, v, given[3], keys), (0, 0, 0, 0))
    q, k, v, mask, keys = (t[:, None] if t.ndim > 2 else t for t in given)
    wanted = torch.cat([masked_call(*(t[i] for t in (q, k, v)), mask, keys[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(found(q, k, v, keys[:, None]).flatten(0, 1), wanted, rtol=1e-9, atol=1e-10)


def test_memory_grows_with_the_length() -> None:
    peaks = {n: peak(n) for n in (1024, 8192)}
    assert math.log(peaks[8192] / peaks[1024]) / math.log(8) < 1.05


def peak(n: int) -> int:
    """Bytes alive at most in forward and backward of one call."""
    with Live() as live:
        q, k, v = (torch.randn(1, n, 2, 8, requires_grad=True) for _ in range(3))
        attend_band(q, k, v, 9, 9, 32, key_mask=torch.ones(1, n, dtype=torch.bool), batch=1, tied=True).sum().backward()
    return live.most


class Live(TorchDispatchMode):
    """Counts the bytes of all storages that operations make, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and id(storage := x.untyped_storage()) not in self.bytes:
                self.bytes[id(storage)] = storage.nbytes()
                weakref.finalize(storage, self.bytes.pop, id(storage), None)
        self.most = max(self.most, sum(self.bytes.values()))
        return out
