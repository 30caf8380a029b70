"""States that are mixed before queries read them, in tiles, against all scores: values and gradients in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tensornet_attn.runtime import maps, tiled_linear
from tensornet_attn.runtime.states import mixed_states_and_blockwise

MAPS = [(None, None), (maps.elu1, maps.elu1), (torch.tanh, torch.exp)]  # the slope of the last is found by autograd


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_linear, "LINEAR_TILE", 64)
    monkeypatch.setattr(tiled_linear, "LINEAR_ROWS", 2)
    monkeypatch.setattr(tiled_linear, "LINEAR_LEAST", 0)


def drawn(batch: tuple[int, ...], n: int, m: int) -> list[Tensor]:
    """q, k and v as views of rows with their heads side by side; the mixture; what is added to the states."""
    shapes = (*batch, n, 3, 4), (*batch, m, 2, 4), (*batch, m, 2, 5), (3, 2), (*batch, 3, 4, 5), (*batch, 3, 4, 1)
    made = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    return [x.transpose(-3, -2) for x in made[:3]] + made[3:]


def called(own: tuple[Any, Any], q: Tensor, k: Tensor, v: Tensor, mix: Tensor, *added: Tensor, keep: Any) -> Tensor:
    """Both results side by side."""
    read, rows = mixed_states_and_blockwise(q, k, v, mix, None, keep, q.ndim - 3, added=added or (None, None), maps=own)
    return torch.cat([read, rows[..., None]], -1)


def plain(own: tuple[Any, Any], q: Tensor, k: Tensor, v: Tensor, mix: Tensor, *added: Tensor, keep: Any) -> Tensor:
    q, k = (x if f is None else f(x) for f, x in zip(own, (q, k), strict=True))
    k = k if keep is None else torch.where(keep[..., None, :, None], k, 0)
    wide = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    state = torch.einsum("hg,...gmd,...gme->...hde", mix, k, wide)
    return q @ (state + torch.cat(added, -1) if added else state)


def agree(found: Any, wanted: Any, given: list[Tensor]) -> None:
    y, other = found(*given), wanted(*given)
    torch.testing.assert_close(y, other)
    g = torch.randn_like(other)
    pair = [torch.autograd.grad(one, given, g, create_graph=True) for one in (y, other)]
    torch.testing.assert_close(*pair)
    second = [torch.autograd.grad(sum(x.square().sum() for x in one), given) for one in pair]
    torch.testing.assert_close(*second, rtol=1e-6, atol=1e-6)
    first = [torch.autograd.grad(f(*given), given, g) for f in (found, wanted)]  # the backward in tiles
    torch.testing.assert_close(*first)


@pytest.mark.parametrize("own", MAPS)
@pytest.mark.parametrize(("batch", "n", "m"), [((2,), 7, 9), ((), 1, 1), ((2, 1), 130, 67)])
def test_equals_all_scores(own: Any, batch: tuple[int, ...], n: int, m: int) -> None:
    torch.manual_seed(0)
    given = drawn(batch, n, m)
    for keep in (None, torch.rand(*batch, m) < 0.6):
        for count in (4, 6):
            agree(
                lambda *x, keep=keep: called(own, *x, keep=keep),
                lambda *x, keep=keep: plain(own, *x, keep=keep),
                given[:count],
            )


def test_hidden_keys_may_be_anything() -> None:
    torch.manual_seed(0)
    q, k, v, mix, *_ = (x.detach() for x in drawn((2,), 5, 8))
    keep = torch.tensor([[True] * 5 + [False] * 3, [False] * 8])
    wanted = called((maps.elu1, maps.elu1), q, k, v, mix, keep=keep)
    k = torch.where(keep[:, None, :, None], k, float("nan")).requires_grad_()
    found = called((maps.elu1, maps.elu1), q, k, v, mix, keep=keep)
    torch.testing.assert_close(found, wanted)
    (gradient,) = torch.autograd.grad(found.square().sum(), k)
    assert (gradient.masked_select(~keep[:, None, :, None]) == 0).all()
    assert gradient.isfinite().all()


def test_batches_of_gradients() -> None:
    given = drawn((2,), 5, 8)
    y = called((maps.elu1, None), *given[:4], keep=None)
    many = torch.randn(3, *y.shape, dtype=torch.float64)
    found = torch.autograd.grad(y, given[:4], many, is_grads_batched=True, retain_graph=True)
    for i, g in enumerate(many):
        torch.testing.assert_close([x[i] for x in found], [*torch.autograd.grad(y, given[:4], g, retain_graph=True)])
