"""torch.export of every design with any batch and any lengths: the program equals the module at other sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from tests.regions import EACH, MASKED, SHORT, inputs_of, key_mask_of, made, quick

SIZES = [(2, 24), (5, 33), (1, 64), (2, 3), (7, 130)]
F32 = torch.float32


def exported(module: nn.Module, xs: list[Tensor], key_mask: Tensor | None = None) -> nn.Module:
    """Exported with a dynamic batch, and a dynamic length for each input."""
    batch, lengths = Dim("batch"), [Dim("n"), Dim("m")][: len(xs)]
    shapes = {"inputs": tuple({0: batch, 1: length} for length in lengths)}
    options = {} if key_mask is None else {"key_mask": key_mask}
    masks = {} if key_mask is None else {"key_mask": {0: batch, 1: lengths[-1]}}
    return export(module, tuple(xs), options, dynamic_shapes=shapes | masks).module()


@pytest.mark.rotated
@quick(EACH, SHORT)
def test_any_batch_and_length(name: str, causal: bool | None) -> None:
    module = made(name, causal, dtype=F32)
    program = exported(module, inputs_of(name, 3, 40, F32))
    for batch, n in SIZES:
        xs = inputs_of(name, batch, n, F32)
        torch.testing.assert_close(program(*xs), module(*xs), rtol=1e-4, atol=1e-4)


@quick(MASKED, [("band", True), ("linear", True), ("transformer_xl", False)])
def test_with_a_key_mask(name: str, causal: bool | None) -> None:
    module, xs = made(name, causal, dtype=F32), inputs_of(name, 3, 40, F32)
    program = exported(module, xs, key_mask_of(xs))
    for batch, n in SIZES:
        xs = inputs_of(name, batch, n, F32)
        keys = key_mask_of(xs)
        torch.testing.assert_close(program(*xs, key_mask=keys), module(*xs, key_mask=keys), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "causal"), [("gfish", True)])
def test_a_training_program_draws_noise_anew(name: str, causal: bool | None) -> None:
    module = made(name, causal, dtype=F32).train()
    program, (x,) = exported(module, inputs_of(name, 3, 40, F32)), inputs_of(name, 2, 7, F32)
    torch.manual_seed(0)
    one, other = program(x), program(x)
    torch.manual_seed(0)
    assert torch.equal(program(x), one)
    assert not torch.equal(one, other)


def test_gradients_of_a_program() -> None:
    module = made("kernel_fish", True, dtype=F32)
    program = exported(module, inputs_of("kernel_fish", 3, 40, F32))
    for x in inputs_of("kernel_fish", 2, 21, F32):
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        program(one).square().sum().backward()
        module(other).square().sum().backward()
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
