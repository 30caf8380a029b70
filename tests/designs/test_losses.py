"""Auxiliary losses of shipped designs against plain loops, in float64: values and gradients; expert dropout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta

from .case import N
from .cases import BACKENDS, CASES, compiled, gradient, inputs_of, looped, normal, same
from .plain import loops

SEEN = torch.tensor([[True, True, False, True, False], [False, True, True, True, True]])
each = pytest.mark.parametrize("name", ["moa_regularised", "sigma_moe_regularised"])
backends = pytest.mark.parametrize("backend", BACKENDS)


def looped_losses(name: str, weights: dict[str, Tensor], x: Tensor, key_mask: Tensor | None) -> dict[str, Tensor]:
    """The losses of a batch: the mean of those of its sequences."""
    losses, masks = loops(f"{name}_losses"), [None] * len(x) if key_mask is None else key_mask
    rows = [losses(weights, row, key_mask=mask, **CASES[name].settings) for row, mask in zip(x, masks, strict=True)]
    return {key: torch.stack([row[key] for row in rows]).mean() for key in rows[0]}


def check_losses(name: str, module: torch.nn.Module, key_mask: Tensor | None = None) -> None:
    """Output and losses, and gradients of both together, equal those of the plain loops."""
    (x,) = inputs_of(name)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = {key: value.clone().requires_grad_() for key, value in module.state_dict().items()}
    y, losses = module(mine, key_mask=key_mask, losses=True)
    wanted = looped(name, weights, [theirs], key_mask=key_mask)
    want = looped_losses(name, weights, theirs, key_mask)
    assert list(losses) == list(ta.load(name).losses) == list(want)
    same(y, wanted, "output")
    for key, value in want.items():
        assert losses[key].shape == ()
        same(losses[key], value, key)
    projection = normal(torch.Generator().manual_seed(7), *wanted.shape)
    factors = {key: place + 0.5 for place, key in enumerate(want)}
    ((y * projection).sum() + sum(factors[key] * value for key, value in losses.items())).backward()
    ((wanted * projection).sum() + sum(factors[key] * value for key, value in want.items())).backward()
    same(mine.grad, gradient(theirs), "gradient of the input")
    for key, parameter in module.named_parameters():
        same(parameter.grad, gradient(weights[key]), f"gradient of {key}")


@each
@backends
@pytest.mark.parametrize("masked", [False, True])
def test_losses_equal_plain_loops(name: str, backend: str, masked: bool) -> None:
    check_losses(name, compiled(name, backend), SEEN if masked else None)


@each
@backends
def test_what_a_key_mask_hides_changes_no_loss(name: str, backend: str) -> None:
    module, (x,) = compiled(name, backend), inputs_of(name)
    other = torch.where(SEEN[..., None], x, 7.0)
    for key, value in module(other, key_mask=SEEN, losses=True)[1].items():
        same(value, module(x, key_mask=SEEN, losses=True)[1][key], key)


@each
@backends
def test_a_sequence_with_nothing_to_see_has_finite_losses(name: str, backend: str) -> None:
    module, (x,) = compiled(name, backend), inputs_of(name)
    _, losses = module(x.requires_grad_(), key_mask=torch.tensor([[True] * N, [False] * N]), losses=True)
    sum(losses.values()).backward()
    assert all(torch.isfinite(value) for value in losses.values())
    found = [x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]
    assert all(torch.isfinite(value).all() for value in found)


@each
def test_balanced_experts_have_the_least_losses(name: str) -> None:
    """Equal logits: all shares are 1 / E, the balance is 1, and minus the entropy is -log E."""
    module, (x,) = compiled(name, "torch"), inputs_of(name)
    gate = "Sg" if name == "moa_regularised" else "Ws"
    module.load_state_dict({gate: torch.zeros_like(module.state_dict()[gate])}, strict=False)
    losses = module(x, losses=True)[1]
    log_e = torch.tensor(float(CASES[name].legs["e"]), dtype=torch.float64).log()
    if name == "moa_regularised":
        same(losses["balance"], torch.ones_like(log_e), "balance")
        same(losses["router_z"], log_e**2, "z")
    else:
        same(losses["entropy"], -log_e, "entropy")


@backends
def test_in_evaluation_no_expert_is_dropped(backend: str) -> None:
    module, (x,) = compiled("sigma_moe_regularised", backend), inputs_of("sigma_moe_regularised")
    plain = ta.compile(ta.load("sigma_moe", legs=CASES["sigma_moe"].legs, settings={"k": 2}), dtype=torch.float64)
    plain.load_state_dict(module.state_dict())
    same(module(x), plain(x), "output in evaluation")


SMALL, LARGE = {"f": 6, "e": 3, "l": 2}, {"f": 64, "e": 8}  # at the second the chosen experts alone are computed


@pytest.mark.parametrize(("backend", "legs"), [("reference", SMALL), ("torch", SMALL), ("torch", LARGE)])
def test_in_training_the_best_expert_that_is_left_is_chosen_with_its_own_gate(backend, legs):
    """Each is dropped half of the time, and nothing is scaled up. Where all are dropped, the first is chosen."""
    design = ta.load("sigma_moe_regularised", legs=legs, settings={"k": 1, "drop": 0.5})
    torch.manual_seed(3)
    module = ta.compile(design, backend, dtype=torch.float64).train()
    assert ("grouped experts: rows sorted" in module.explain()) == (legs is LARGE)
    module.W1.data.abs_()  # of a positive input, no expert is 0
    x = torch.rand(legs["f"], dtype=torch.float64)
    gates = torch.sigmoid(x @ module.Ws)
    each = gates[:, None] * torch.einsum("el,elf->ef", torch.relu(torch.einsum("f,efl->el", x, module.W1)), module.W2)
    order = gates.argsort(descending=True)
    rows = module(x.expand(1, 4000, -1))[0]
    apart = (rows[:, None] - each[order]).abs().amax(-1)
    assert apart.min(1).values.max() < 1e-12
    counts = apart.argmin(1).bincount(minlength=len(order)) / len(rows)
    expected = 0.5 ** torch.arange(1, len(order) + 1) + (order == 0) * 0.5 ** len(order)
    assert (counts - expected).abs().max() < 0.03


def test_experts_that_may_be_dropped_are_still_the_chosen_ones_alone() -> None:
    told = ta.compile("sigma_moe_regularised").explain()
    assert "  y: grouped experts: rows sorted by expert, only the 4 chosen of 16 computed, also in 'H'" in told
    assert "  G: gates and indices of the chosen experts only" in told
