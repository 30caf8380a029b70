"""Every design at a small size, as a compiled module and as plain loops, with the same random weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import tensornet_attn as ta

from .plain import loops
from .sizes import CASES

BACKENDS = ("reference", "torch")
Oracle = Callable[[dict[str, Tensor], list[Tensor]], Tensor]  # of weights and inputs
ATTENTION = [name for name, case in CASES.items() if case.causal != (None,)]


def compiled(name: str, backend: str, causal: bool | None = None, seed: int = 0) -> nn.Module:
    """The design in float64, in evaluation, every weight drawn anew (also those that start from zeros)."""
    case = CASES[name]
    design = ta.load(name, legs=case.legs, settings=case.settings)
    return drawn(ta.compile(design, backend=backend, causal=causal, dtype=torch.float64), seed, case.positive)


def drawn(module: nn.Module, seed: int = 0, positive: tuple[str, ...] = ()) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    weights = {name: 0.4 * normal(generator, *value.shape) for name, value in module.state_dict().items()}
    if "pi" in weights:  # a prior
        weights["pi"] = weights["pi"].softmax(-1)
    weights |= {name: weights[name].abs() for name in positive}
    module.load_state_dict(weights)
    return module.eval()


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def inputs_of(name: str, seed: int = 1, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [normal(generator, batch, n, CASES[name].legs["f"]) for n in CASES[name].inputs]


def looped(name: str, weights: dict[str, Tensor], inputs: list[Tensor], **see: Tensor | None) -> Tensor:
    """The plain loops, one sequence of the batch at a time; `see` is batched as well, but for `causal` and `mask`."""
    function: Callable[..., Tensor] = loops(name)
    case, out = CASES[name], []
    for b in range(len(inputs[0])):
        mine = {key: value[b] if key == "key_mask" else value for key, value in see.items() if value is not None}
        if "noise" in mine:
            mine["noise"] = {key: value[b] for key, value in mine["noise"].items()}
        out.append(function(weights, *(x[b] for x in inputs), **case.settings, **case.arguments, **mine))
    return torch.stack(out)


def check(name: str, module: nn.Module, inputs: list[Tensor], causal: bool | None = None, **see: Tensor | None) -> None:
    """The module equals the plain loops."""
    equal(module, lambda w, xs: looped(name, w, xs, causal=causal, **see), inputs, **see)


def equal(module: nn.Module, oracle: Oracle, inputs: list[Tensor], **see: Tensor | None) -> None:
    """Output, and gradients of all inputs and weights of a random projection of it, equal those of the oracle."""
    mine = [x.clone().requires_grad_() for x in inputs]
    theirs = [x.clone().requires_grad_() for x in inputs]
    weights = {key: value.clone().requires_grad_() for key, value in module.state_dict().items()}
    module.zero_grad()
    got = module(*mine, **see)
    want = oracle(weights, theirs)
    same(got, want, "output")
    projection = normal(torch.Generator().manual_seed(7), *want.shape)
    (got * projection).sum().backward()
    if want.requires_grad:
        (want * projection).sum().backward()
    for place, (x, y) in enumerate(zip(mine, theirs, strict=True)):
        same(x.grad, gradient(y), f"gradient of input {place}")
    for key, parameter in module.named_parameters():
        if not parameter.requires_grad:  # frozen
            continue
        same(parameter.grad, gradient(weights[key]), f"gradient of {key}")


def gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def same(got: Tensor | None, want: Tensor, what: str) -> None:
    assert got is not None, f"{what} is missing"
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10, msg=lambda text: f"{what}: {text}")


SQUARED = ("thsa_poly",)  # a causal query may see one key alone, whose square is then divided by itself


def unsteady(name: str) -> bool:
    """Whether rows are divided by sums that may be near zero, which make rounding errors of any size.

    The checker warns of those that may be negative.
    """
    return name in SQUARED or any(problem.code == "negative-normalize" for problem in ta.check(name))


def steadied(name: str, module: nn.Module, xs: list[Tensor]) -> list[Tensor]:
    """The inputs; without signs where sums may come near zero, like the weights then."""
    if not unsteady(name):
        return xs
    module.load_state_dict({key: value.abs() for key, value in module.state_dict().items()})
    return [x.detach().abs().requires_grad_(x.requires_grad) for x in xs]
