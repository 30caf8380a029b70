"""FiSHformer: noise, and what the designs show of themselves besides their output."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta

from .case import N
from .cases import BACKENDS, CASES, check, compiled, inputs_of, normal, same

NOISY = ("fish", "fish_simplex", "mish", "mish_simplex", "gfish", "lfish", "glfish")
backends = pytest.mark.parametrize("backend", BACKENDS)


def noise_of(name: str) -> dict[str, Tensor]:
    generator, design = torch.Generator().manual_seed(5), ta.load(name, legs=CASES[name].legs)
    sizes = {leg: size or N for leg, size in design.legs.items()}
    drawn = {key: str(declared.legs).split() for key, declared in design.noise.items()}
    return {key: normal(generator, 2, *(sizes[leg] for leg in legs)) for key, legs in drawn.items()}


@backends
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NOISY)
def test_noise_may_be_given(name, causal, backend):
    check(name, compiled(name, backend, causal), inputs_of(name), causal, noise=noise_of(name))


@backends
@pytest.mark.parametrize("name", NOISY)
def test_noise_is_drawn_at_each_training_call_only(name, backend):
    module, x = compiled(name, backend, False), inputs_of(name)
    same(module(*x), module(*x), "output in evaluation")
    module.train()
    assert not torch.equal(module(*x), module(*x))


@backends
def test_noise_alone_tells_the_heads_of_mish_apart(backend):
    module, (x,) = compiled("mish", backend, False), inputs_of("mish")
    A = module.capture(x, "A")  # [batch, h, n, m]
    same(A, A[:, :1].expand_as(A), "maps in evaluation")
    module.train()
    A = module.capture(x, "A")
    assert not torch.isclose(A, A[:, :1]).all(-1)[:, 1:].any()


@backends
@pytest.mark.parametrize(
    ("name", "shape"), [("fish_simplex", (2, 3)), ("hard_fish_simplex", (2, 3)), ("mish_simplex", (2,))]
)
def test_the_mixing_weights_of_a_simplex_have_sum_one(name, shape, backend):
    module, (x,) = compiled(name, backend, False), inputs_of(name)
    P = module.capture(x, "P")  # [g, h]; for mish [g]
    assert P.shape == shape
    assert (P > 0).all()
    same(P.sum(0), torch.ones(shape[1:]).double(), "sums")


@backends
@pytest.mark.parametrize("name", ["hard_gfish", "gfish", "gfish_release"])
def test_the_last_bias_cancels_in_the_softmax(name, backend):
    module, (x,) = compiled(name, backend, False), inputs_of(name)
    before = module(x)
    before.square().sum().backward()
    same(module.b2.grad, torch.zeros(3).double(), "gradient")
    module.b2.data += 3
    same(module(x), before, "output")


@pytest.mark.parametrize("name", ["gfish_release", "hard_gfish", "kernel_gfish", "hard_glfish"])
def test_as_many_mixtures_as_local_heads_unless_told_otherwise(name):
    legs = ta.load(name, legs={"h": 16}).legs
    assert (legs["k"], legs["h"], legs["d"]) == (16, 16, 32)
