"""Maps: `elu1` has a derivative of its own where nothing compiles it; traced, others have forms of their own.

Derivatives are those of every transform, at bends and far out, and arrive in any layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, hessian, jacfwd, vmap

from tensornet_attn.runtime import maps
from tensornet_attn.runtime.maps import elu1

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


@pytest.mark.parametrize(
    ("function", "at", "slope"),
    [(lambda x: maps.raised_to(x, -0.5), 1e-5, -0.5 * 1e-5**-1.5), (maps.reciprocal, 1e-3, -1e6)],
    ids=["power", "reciprocal"],
)
def test_slopes_beyond_float16(function: Callable[[Tensor], Tensor], at: float, slope: float) -> None:
    """A gradient of zero stays zero, and a small one has a product that float16 holds."""
    x = torch.full((2,), at, dtype=torch.float16, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(x), x, torch.tensor([0, 1e-4], dtype=torch.float16))
    torch.testing.assert_close(gradient, torch.tensor([0, 1e-4 * slope], dtype=torch.float16), rtol=0.02, atol=0)


@pytest.mark.parametrize("size", [2, 3, 8, 15])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_few_entries_in_half_precision(size: int, dtype: torch.dtype) -> None:
    """The exact gradient, rounded once: torch's own norm rounds mean and deviation, whose difference it is."""
    x, by = torch.randn(2, 50, 4 * size, dtype=F64, generator=torch.Generator().manual_seed(0)).to(dtype)
    found, wanted = (
        torch.autograd.grad(maps.group_norm(y, -1, 4), y, by.to(y.dtype))[0]
        for y in (x.detach().requires_grad_(), x.to(F64).requires_grad_())
    )
    assert (found.to(F64) - wanted).norm() <= 1.1 * (wanted.to(dtype).to(F64) - wanted).norm()


TRACED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "elu": (maps.elu, F.elu),
    "softplus": (maps.softplus, F.softplus),
    "layernorm": (lambda x: maps.layer_norm(x, -1), lambda x: F.layer_norm(x, x.shape[-1:])),
    "layernorm across": (lambda x: maps.layer_norm(x, -2), lambda x: F.layer_norm(x.mT, x.mT.shape[-1:]).mT),
}


def traced(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)


EXACT = {F64: 1e-7, torch.float32: 1e-5, torch.bfloat16: 1e-2}  # in float64 torch's softplus is x itself above 20


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.parametrize("dtype", EXACT)
def test_traced_forms(name: str, dtype: torch.dtype) -> None:
    """As torch's own in float64: what is added inside is not rounded to 16 bits."""
    function, plain = TRACED[name]
    x = torch.randn(5, 7, dtype=F64, generator=torch.Generator().manual_seed(0)).mul(4).to(dtype).requires_grad_()
    by = torch.linspace(-1, 2, x.numel(), dtype=F64).view(x.shape).to(dtype)
    exact, tolerance = x.detach().to(F64).requires_grad_(), {"rtol": EXACT[dtype], "atol": EXACT[dtype]}
    found, wanted = traced(function)(x), plain(exact)
    assert found.dtype == dtype
    torch.testing.assert_close(found.to(F64), wanted, **tolerance)
    (slope,), (true,) = torch.autograd.grad(found, x, by), torch.autograd.grad(wanted, exact, by.to(F64))
    torch.testing.assert_close(slope.to(F64), true, **tolerance)


@pytest.mark.parametrize("name", ["elu", "softplus"])
def test_traced_forms_at_the_bend_and_far_out(name: str) -> None:
    function, plain = TRACED[name]
    x = torch.tensor([-math.inf, -200.0, -1.0, 0.0, 1.0, 200.0, math.inf], dtype=F64, requires_grad=True)
    found, wanted = traced(function)(x), plain(x)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), x), torch.autograd.grad(wanted.sum(), x), rtol=1e-9, atol=1e-12
    )


W = torch.randn(4, 3, dtype=F64, generator=torch.Generator().manual_seed(1))
EVERY: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: function for name, (function, _) in TRACED.items()},
    "elu1": maps.elu1,
    "elu1_neg": maps.elu1_neg,
    "softcap": lambda x: maps.softcap(x, 2.0),
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "square": torch.square,
    "clamp": lambda x: x.clamp(-1, 1),
    "rmsnorm": lambda x: maps.rms_norm(x, -1),
    "l1norm": lambda x: maps.l1_norm(x, -1, 0.1),
    "l2norm": lambda x: maps.l2_norm(x, -2, 0.1),
}
LAYOUTS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "the gradient": lambda f, x: f(x @ W).mT[..., None].cumsum(-2).mT @ torch.arange(24.0, dtype=F64),
    "the operand": lambda f, x: f((x @ W).mT) @ torch.arange(24.0, dtype=F64),
    "both": lambda f, x: f((x @ W).mT).mT[..., None].cumsum(-3)[..., 0] @ torch.arange(3.0, dtype=F64),
}


@pytest.mark.parametrize("name", [n if n in TRACED else pytest.param(n, marks=pytest.mark.slow) for n in EVERY])
def test_gradients_of_compiled_code_in_any_layout(name: str) -> None:
    """Behind a product with a weight: what tracing believes of strides is what they are, or a view of them fails."""
    x = torch.randn(2, 24, 4, dtype=F64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    for turned in LAYOUTS.values():

        def call(x: Tensor, turned: Callable[..., Tensor] = turned) -> Tensor:
            return turned(EVERY[name], x).square().sum()

        found, wanted = (torch.autograd.grad(run(x), x) for run in (traced(call), call))
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-7)


def test_large_tensors_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, other = (torch.randn(3, 7, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    wanted = elu1(x)
    gradient = torch.autograd.grad(wanted, x, other)
    monkeypatch.setattr(maps, "MAP_PART", 16)
    torch.testing.assert_close(elu1(x), wanted, rtol=0, atol=0)
    torch.testing.assert_close(torch.autograd.grad(elu1(x), x, other), gradient)
    turned = x.transpose(0, 2)  # in one part
    torch.testing.assert_close(elu1(turned), wanted.transpose(0, 2), rtol=0, atol=0)
    assert torch.autograd.gradgradcheck(elu1, x)
