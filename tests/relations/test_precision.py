"""Half precision: no call is less exact than the steps of its design rounded one by one, with a cache or without."""

from __future__ import annotations

import pytest
import torch

from tensornet_attn.errors import InputError
from tensornet_attn.graph.precision import kept_wide
from tensornet_attn.plan.decoding import as_decoder
from tests.designs.sizes import CASES
from tests.relations.precision import F64, HALF, Rounded, chooses
from tests.shipped import graph_of

CONTINUOUS = [name for name in CASES if not chooses(graph_of(name))]
KINDS = (
    "fox",
    "gla",
    "mamba1",
    "retnet",
    "alibi",
    "stick_breaking",
    "fmm3",
    "thsa_poly",
    "laser",
    "mgk",
    "kda",
    "gsa",
    "rwkv4",
    "gfish",
)
STEPS = ("alibi", "bloom", "l2_attention", "mgk_mqa", "hgrn")  # what a step computes again: scores, a decay
LENGTH, LAST = 600, 16
CANCELLING = ("fmm3", "fmm3_causal")  # positive inputs saturate tanh: sums that are rounded apart differ by little


@torch.no_grad()
def as_exact_as_rounded_steps(name: str, dtype: torch.dtype, backends: tuple[str, ...]) -> None:
    case = Rounded(name, dtype, CASES[name].causal[-1], 40)
    bound = 3 * case.error(case.yardstick)
    for backend in backends:
        assert case.error(case.module(backend)(*case.halves)) <= bound, backend


@torch.no_grad()
def as_exact_with_a_cache(name: str, dtype: torch.dtype) -> None:
    """A long prefix, then single positions, are at most 1.5 times as inexact as one call, or as rounded steps.

    One call may round less than the design has steps: that of `gqa` multiplies queries by the weights of the keys, so
    that only a cache rounds keys. Errors are those of four sequences together, because one varies from draw to draw.
    """
    case = Rounded(name, dtype, True, LENGTH, batch=4)
    module, (x,) = case.module("torch"), case.halves[:1]
    try:
        cache = module.new_cache()
    except InputError:
        pytest.skip("no cache")
    whole, stepwise = case.error(module(x), LAST), case.error(case.yardstick, LAST)
    assert whole <= 3 * stepwise
    steps = (*x[:, :-LAST].split(400, 1), *x[:, -LAST:].split(1, 1))
    cached = case.error(torch.cat([module(part, cache=cache) for part in steps], 1), LAST)
    assert cached <= 1.5 * (whole if name in STEPS else max(whole, stepwise))


def gradients_as_exact_as_rounded_steps(name: str, length: int, backends: tuple[str, ...]) -> None:
    """Errors of the gradient of each input and weight are at most four times those of rounded steps.

    Of the steps, an error is at least that of the rounded gradient. Where a step overflows, nothing is asked.
    """
    case = Rounded(name, torch.bfloat16, CASES[name].causal[-1], length)
    right, stepwise = case.gradients_of_steps
    for backend in backends:
        for leaf, gradient in case.gradients(backend).items():
            rounding = (right[leaf].to(case.dtype).to(F64) - right[leaf]).norm()
            allowed = 4 * torch.maximum((stepwise[leaf] - right[leaf]).norm(), rounding)
            error = (gradient - right[leaf]).norm()
            size = right[leaf].norm()
            assert not error > allowed, (
                f"{backend}, {leaf}: {error / size:.1e} of the gradient, not {allowed / size:.1e}"
            )


@pytest.mark.parametrize("name", [name for name in CONTINUOUS if name not in CANCELLING])
def test_gradients_are_as_exact_as_rounded_steps(name: str) -> None:
    """That of a gate's bias is a sum over queries less one over keys, which do not cancel if they are rounded apart."""
    gradients_as_exact_as_rounded_steps(name, 40, ("torch", "cpp", "reference") if name in KINDS else ("torch",))


@pytest.mark.parametrize("name", [name for name in (*KINDS, "mamba2") if name not in CANCELLING])
def test_gradients_of_several_chunks_are_as_exact_as_rounded_steps(name: str) -> None:
    gradients_as_exact_as_rounded_steps(name, 300, ("torch", "cpp"))


@pytest.mark.parametrize("name", KINDS)
def test_kinds_are_as_exact_as_rounded_steps(name: str) -> None:
    for dtype in HALF:
        as_exact_as_rounded_steps(name, dtype, ("torch", "cpp", "reference"))


@pytest.mark.parametrize("name", dict.fromkeys((*KINDS, *STEPS)))
def test_kinds_are_as_exact_with_a_cache(name: str) -> None:
    as_exact_with_a_cache(name, torch.bfloat16)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_calls_are_as_exact_as_rounded_steps(name: str, dtype: torch.dtype) -> None:
    as_exact_as_rounded_steps(name, dtype, ("torch", "reference"))


@pytest.mark.slow  # kernels compute in float32 whatever the dtype, so that those of KINDS stand for them
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", [name for name in CONTINUOUS if name not in KINDS])
def test_calls_in_cpp_are_as_exact_as_rounded_steps(name: str, dtype: torch.dtype) -> None:
    as_exact_as_rounded_steps(name, dtype, ("cpp",))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", [name for name in CONTINUOUS if True in CASES[name].causal])
def test_calls_are_as_exact_with_a_cache(name: str, dtype: torch.dtype) -> None:
    as_exact_with_a_cache(name, dtype)


@pytest.mark.parametrize("name", ["hgrn", "rg_lru", "mamba1"])
def test_parts_of_a_step_keep_wide_what_the_design_keeps_wide(name: str) -> None:
    decoding = as_decoder(graph_of(name))
    design = kept_wide(decoding.graph)
    for part in (part for part in decoding.parts if not part.wide):
        copies = {step.name for step in part.graph.steps if step.name.removesuffix(".now") in design}
        assert copies <= kept_wide(part.graph)
