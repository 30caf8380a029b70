"""The compiled module under torch's own transformations: functional calls, vmap, export, checkpoints; and its state."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from tests.designs.cases import CASES, compiled, inputs_of

F64 = torch.float64
# vmap has no rule of its own for the fused attention on CPUs and says so once; the values are right.
slow_rule = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


def same(got: object, want: object) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.rotated
@pytest.mark.parametrize("name", CASES)
def test_weights_may_be_given_to_the_call(name: str) -> None:
    module, other, xs = compiled(name, "torch"), compiled(name, "torch", seed=5), inputs_of(name)
    same(functional_call(module, other.state_dict(), tuple(xs)), other(*xs))


@pytest.mark.rotated
@slow_rule
@pytest.mark.parametrize("name", CASES)
def test_vmap_over_the_batch(name: str) -> None:
    module, xs = compiled(name, "torch"), inputs_of(name)
    same(vmap(module)(*xs), module(*xs))


@slow_rule
@pytest.mark.parametrize("name", ["mhsa", "cross", "gqa", "thsa", "fmm2"])
def test_gradients_of_every_example(name: str) -> None:
    module, xs = compiled(name, "torch"), inputs_of(name)
    weights = dict(module.named_parameters())

    def loss(weights, *xs):
        return functional_call(module, weights, xs).square().sum()

    each = vmap(grad(loss), (None, *[0] * len(xs)))(weights, *xs)
    for i in range(2):
        alone = torch.autograd.grad(module(*(x[i] for x in xs)).square().sum(), list(weights.values()))
        same({key: value[i] for key, value in each.items()}, dict(zip(weights, alone, strict=True)))


@pytest.mark.rotated
@pytest.mark.parametrize("name", ["mhsa", "linear", "epa"])
def test_export_with_any_batch_and_length(name: str) -> None:
    module, xs = compiled(name, "torch"), inputs_of(name)
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=512)
    program = torch.export.export(module, tuple(xs), dynamic_shapes={"x": {0: batch, 1: length}})
    for shape in ((3, 7), (1, 2), (5, 33)):
        x = torch.randn(*shape, CASES[name].legs["f"], dtype=F64)
        same(program.module()(x), module(x))


@pytest.mark.rotated
@pytest.mark.parametrize("name", CASES)
def test_checkpointing(name: str) -> None:
    module, xs = compiled(name, "torch"), [x.requires_grad_() for x in inputs_of(name)]
    trained = [p for p in module.parameters() if p.requires_grad]
    y, z = module(*xs), checkpoint(module, *xs, use_reentrant=False)
    same(z, y)
    same(torch.autograd.grad(z.sum(), [*xs, *trained]), torch.autograd.grad(y.sum(), [*xs, *trained]))


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_backward_after_an_update_reads_the_old_state(backend: str) -> None:
    module, frozen, (x,) = compiled("mgk_em", backend), compiled("mgk_em", backend), inputs_of("mgk_em")
    first, second = module.train()(x), None
    second = module(x)
    assert not torch.equal(first, second)
    weights = list(module.parameters())
    found = torch.autograd.grad(first.sum(), weights)  # after two updates
    same(found, torch.autograd.grad(frozen.eval()(x).sum(), list(frozen.parameters())))


def test_the_state_changes_in_training_only() -> None:
    module, (x,) = compiled("mgk_em", "torch"), inputs_of("mgk_em")
    before = module.pi.clone()
    module.eval()(x)
    assert torch.equal(module.pi, before)
    with torch.no_grad():
        module.train()(x)
    assert not torch.equal(module.pi, before)
    same(module.pi.sum(-1), torch.ones(3, dtype=F64))
