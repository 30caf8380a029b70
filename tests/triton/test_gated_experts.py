"""Few experts in one product, with choice and gates in kernels: values and gradients of sorted rows."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor, nn

import tensornet_attn as ta
from tensornet_attn.runtime.experts import expert_sums, gated_expert_sums, top_chosen
from tensornet_attn.runtime.triton.kernels.gated_experts import triton_gated_expert_sums
from tensornet_attn.runtime.triton.kernels.tile_maps import tile_map
from tests.triton.agreement import agree, drawn, near


@triton.jit
def squared(x):  # type: ignore[no-untyped-def]
    """A map whose slope is no function of its result alone; its sign is that of x."""
    return x * tl.abs(x)


@triton.jit
def slope(x, y, d):  # type: ignore[no-untyped-def]
    """Its gradient."""
    return 2 * tl.abs(x) * d


def squares(x: Tensor) -> Tensor:
    return x * x.abs()


SQUARES = tile_map("squares of a router", squares, squared, slope)
MAPS = [("", None), (SQUARES, squares)]
KINDS = {  # shapes of x, weight and scores; whether heads are summed
    "heads that share x": ((2, 7, 6), (2, 5, 6, 3), (2, 7, 2, 5), False),
    "heads that are summed": ((2, 7, 2, 6), (2, 5, 6, 3), (2, 7, 2, 5), True),
    "no heads, wide": ((7, 6), (5, 6, 3), (7, 5), False),
    "no heads, narrow": ((7, 3), (5, 3, 6), (7, 5), False),
    "one head": ((7, 6), (1, 5, 6, 3), (7, 1, 5), False),
    "one summed head": ((7, 1, 6), (1, 5, 6, 3), (7, 1, 5), True),
    "one token, wide rows": ((300,), (2, 3, 300, 270), (2, 3), False),
    "no token": ((0, 6), (2, 5, 6, 3), (0, 2, 5), False),
}


def operands(kind: str, **types: torch.dtype) -> tuple[Tensor, Tensor, Tensor, bool]:
    x, weight, scores, total = KINDS[kind]
    return drawn(*x, **types), drawn(*weight, **types), drawn(*scores, **types), total


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(kind: str) -> None:
    x, weight, scores, total = operands(kind)
    for name, gate in MAPS:
        for k in (1, 2, 3):
            found = triton_gated_expert_sums(x, weight, scores, k, total, name)
            agree(found, gated_expert_sums(x, weight, scores, k, total, gate), [x, weight, scores])
        with torch.no_grad():
            near(triton_gated_expert_sums(x, weight, scores, k, total, name), found)


@pytest.mark.parametrize("kind", ["heads that share x", "heads that are summed"])
def test_what_needs_no_gradient_gets_none(kind: str) -> None:
    for needed in ((0,), (1,), (2,), (0, 1), (1, 2)):
        *given, total = operands(kind)
        for i, one in enumerate(given):
            one.requires_grad_(i in needed)
        leaves = [given[i] for i in needed]
        agree(triton_gated_expert_sums(*given, 2, total), gated_expert_sums(*given, 2, total), leaves)


@pytest.mark.parametrize("kind", ["heads that share x", "heads that are summed"])
def test_all_tokens_on_few_experts(kind: str) -> None:
    x, weight, scores, total = operands(kind)
    scores = (0.1 * scores + torch.arange(5)).detach().requires_grad_()
    agree(
        triton_gated_expert_sums(x, weight, scores, 2, total),
        gated_expert_sums(x, weight, scores, 2, total),
        [x, weight, scores],
    )


@pytest.mark.parametrize("kind", ["heads that share x", "heads that are summed"])
def test_equal_scores_are_chosen_in_order(kind: str) -> None:
    x, weight, scores, total = operands(kind)
    scores = torch.ones_like(scores, requires_grad=True)
    agree(
        triton_gated_expert_sums(x, weight, scores, 2, total),
        gated_expert_sums(x, weight, scores, 2, total),
        [x, weight, scores],
    )


@pytest.mark.parametrize("kind", ["heads that share x", "heads that are summed"])
def test_what_no_expert_was_chosen_for_stays_hidden(kind: str) -> None:
    """A weight that is not a number spoils the tokens that chose its expert, and no others."""
    x, weight, scores, total = operands(kind)
    chosen = top_chosen(scores, scores, 2)[1]
    with torch.no_grad():
        weight[..., 3, :, :] = float("nan")
    own = triton_gated_expert_sums(x, weight, scores, 2, total)
    if not total:  # 0 times not a number is added in a product with all experts
        assert own.isnan().any(-1).equal((chosen == 3).any(-1))


@pytest.mark.parametrize("kind", ["heads that share x", "heads that are summed", "no heads, wide"])
def test_derivatives_against_differences(kind: str) -> None:
    *given, total = operands(kind)
    for name, _ in MAPS:
        assert torch.autograd.gradcheck(lambda *x: triton_gated_expert_sums(*x, 2, total, name), given, fast_mode=True)  # noqa: B023
        assert torch.autograd.gradgradcheck(
            lambda *x: triton_gated_expert_sums(*x, 2, total, name),  # noqa: B023
            given,
            fast_mode=True,
        )


@pytest.mark.parametrize("kind", ["heads that share x", "heads that are summed"])
def test_lower_precision_and_autocast(kind: str) -> None:
    *given, total = operands(kind, dtype=torch.float32)
    agree(triton_gated_expert_sums(*given, 2, total), gated_expert_sums(*given, 2, total), given)
    with torch.autocast("cpu", torch.bfloat16):
        found = triton_gated_expert_sums(*given, 2, total)
    assert found.dtype == torch.bfloat16
    wanted = gated_expert_sums(*given, 2, total)
    torch.testing.assert_close(found.float(), wanted, rtol=0, atol=0.05 * wanted.abs().max().item())
    found.sum().backward()
    assert [x.grad.dtype for x in given] == [torch.float32] * 3  # type: ignore[union-attr]


def test_operands_that_are_not_plain() -> None:
    """Operands that broadcast, and transforms, take rows sorted by expert."""
    x, weight, scores = drawn(4, 1, 6), drawn(2, 5, 6, 3), drawn(3, 2, 5)
    found = triton_gated_expert_sums(x, weight, scores, 2)
    gates, chosen = top_chosen(scores, scores, 2)
    agree(found, expert_sums(x[..., None, None, :], weight, gates, chosen), [x, weight, scores])
    x, weight, scores, _ = (one.detach() if isinstance(one, Tensor) else one for one in operands("heads that share x"))
    mapped = torch.vmap(lambda x, s: triton_gated_expert_sums(x, weight, s, 2))(x, scores)
    near(mapped, triton_gated_expert_sums(x, weight, scores, 2))


def as_reference(module: nn.Module, reference: nn.Module, x: Tensor, **masks: Tensor) -> None:
    """Equal values, and equal gradients of the input and all weights."""
    reference.load_state_dict(module.state_dict())
    values = [(one, one(x, **masks)) for one in (module, reference)]
    near(*(y for _, y in values))
    pairs = [torch.autograd.grad(y.square().sum(), [x, *one.parameters()]) for one, y in values]
    for one, other in zip(*pairs, strict=True):
        near(one, other)


@pytest.mark.parametrize("name", ["epa_vk", "epa_vkqo", pytest.param("epa_rope", marks=pytest.mark.slow)])
def test_a_design_equals_its_reference(name: str) -> None:
    """Two products with the experts of one router, in one line each; gradients of all weights, routers included."""
    design = ta.load(name, legs={"f": 16, "h": 2})
    module, wanted = ta.compile(design, "triton", dtype=torch.float64), ta.reference(design, dtype=torch.float64)
    assert "triton_gated_expert_sums(" in module.source
    assert module.source.count("self.Ss.flatten") == 1
    assert "sigmoid(" not in module.source.partition("class ")[2].partition("@triton.jit")[0]
    as_reference(module, wanted, drawn(2, 9, 16), key_mask=torch.arange(9).expand(2, 9) < 6)


def test_one_expert_of_many_is_sorted() -> None:
    """More than three times as many experts as are chosen: rows are sorted by expert."""
    module = ta.compile(ta.load("epa", legs={"f": 64, "e": 8}), "triton")
    assert "gated_expert_sums" not in module.source


TWICE = """
tensornet: 1
name: twice
about: Experts of one choice, after each other.
legs: {n: query, f: 8, e: head 5, l: 6}
settings: {k: 2}
inputs: {x: n f}
weights:
  Ws: {legs: f e, init: normal(f ** -0.5)}
  W1: {legs: e f l, init: normal(f ** -0.5)}
  W2: {legs: e l f, init: normal(f ** -0.5)}
  R: e f
diagram:
  scores: x[n f] Ws[f e] -> n e
  gates: {map: sigmoid, of: scores}
  G: {topk: e, k: k, of: gates}
  a: G[n e] x[n f] W1[e f l] -> n l
  y: G[n e] a[n l] W2[e l f] + scores[n e] R[e f] -> n f
output: y
"""


@pytest.mark.parametrize("also", ["scores", "gates", "G"])
def test_kernels_choose_whatever_reads_the_choice_or_its_gates_too(also: str) -> None:
    source = TWICE.replace("scores[n e]", f"{also}[n e]")
    module, reference = (ta.compile(source, backend, dtype=torch.float64) for backend in ("triton", "reference"))
    assert module.source.count("gated_expert_sums(") == 2
    as_reference(module, reference, drawn(2, 9, 8))
