"""`elu1` has a derivative of its own where nothing compiles it: that of every transform, at its bend and far out."""

from __future__ import annotations

import math

import torch
from torch.func import grad, hessian, jacfwd, vmap

from tensornet_attn.nn.functions.maps import elu1

F64 = torch.float64


def test_gradients_of_both_modes_and_orders() -> None:
    x = torch.randn(7, dtype=F64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(elu1, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(elu1, x)
    slope = torch.where(x > 0, 1, x.exp())
    torch.testing.assert_close(vmap(grad(elu1))(x), slope)
    torch.testing.assert_close(jacfwd(elu1)(x), slope.diag())
    torch.testing.assert_close(hessian(lambda x: elu1(x).sum())(x), torch.where(x > 0, 0, x.exp()).diag())


def test_values_and_slopes_at_the_bend_and_far_out() -> None:
    x = torch.tensor([-math.inf, -40.0, 0.0, math.inf], requires_grad=True)
    y = elu1(x)
    torch.testing.assert_close(y, torch.tensor([0.0, math.exp(-40), 1.0, math.inf]))
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([0.0, math.exp(-40), 1.0, 1.0]))


def test_the_same_when_compiled() -> None:
    x = torch.randn(9, dtype=F64, requires_grad=True)
    found = torch.compile(elu1, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, elu1(x))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x), torch.autograd.grad(elu1(x).sum(), x))
