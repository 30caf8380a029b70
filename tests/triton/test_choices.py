"""Routers by kernels in the interpreter: the chosen entries, their gradients, and choices sorted by expert."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tensornet_attn.runtime.experts import expert_rows, expert_sums, top_chosen
from tensornet_attn.runtime.maps import top_entries
from tensornet_attn.runtime.triton.kernels import choices as module
from tensornet_attn.runtime.triton.kernels.choices import (
    newly_sorted,
    sorted_choices,
    triton_top_chosen,
    triton_top_entries,
)
from tensornet_attn.runtime.triton.kernels.experts import triton_expert_rows, triton_expert_sums
from tests.triton.agreement import agree, drawn, near

SHAPES = [((1, 1), 1), ((2, 7, 3, 5), 2), ((130, 4), 4), ((9, 33), 16), ((0, 5), 2)]


@pytest.mark.parametrize(("shape", "k"), SHAPES)
def test_chosen_values_and_gradients(shape: tuple[int, ...], k: int) -> None:
    of, by = drawn(*shape), drawn(*shape).detach().flip(-1).contiguous().requires_grad_()
    for other in (of, by):
        found, wanted = triton_top_chosen(of, other, k), top_chosen(of, other, k)
        assert found[1].equal(wanted[1])
        agree(found[0], wanted[0], [of, other])


@pytest.mark.parametrize("fill", [0.0, float("-inf")])
@pytest.mark.parametrize(("shape", "k"), SHAPES)
def test_all_entries_of_which_some_are_chosen(shape: tuple[int, ...], k: int, fill: float) -> None:
    of, by = drawn(*shape), drawn(*shape).detach().flip(-1).contiguous().requires_grad_()
    for other in (of, by):
        found, wanted = (call(of, other, k, -1, fill) for call in (triton_top_entries, top_entries))
        assert found.equal(wanted)
        one, another = (
            torch.autograd.grad(y.exp().sum(), [of, other], materialize_grads=True) for y in (found, wanted)
        )
        near(one[0], another[0])
        near(one[1], another[1])


def test_equal_and_infinite_entries_are_chosen_in_order() -> None:
    inf = float("inf")
    rows = torch.tensor([[1.0, 2, 2, 1], [-inf, -inf, -inf, -inf], [inf, 0, inf, -inf], [0, -inf, -0.0, -inf]])
    for k in (1, 2, 3, 4):
        assert triton_top_chosen(rows, rows, k)[1].equal(top_chosen(rows, rows, k)[1])


def test_not_a_number_is_chosen_first_and_only_once() -> None:
    rows = torch.tensor([[1.0, float("nan"), 3.0], [float("nan")] * 3])
    gates, chosen = triton_top_chosen(rows, rows, 2)
    assert chosen.tolist() == [[1, 2], [0, 1]]
    assert gates.isnan().tolist() == [[True, False], [True, True]]


def test_second_derivatives() -> None:
    of = drawn(3, 4)
    assert torch.autograd.gradgradcheck(lambda x: triton_top_chosen(x, x, 2)[0].square(), of)
    assert torch.autograd.gradgradcheck(lambda x: triton_top_entries(x, x, 2, -1).square(), of)


def test_rows_that_kernels_do_not_take() -> None:
    """Long rows, many chosen entries, other dimensions, legs that broadcast, and transforms go to torch."""
    for shape, k, dim in (((2, 1025), 2, -1), ((2, 40), 17, -1), ((4, 3), 2, 0)):
        of = drawn(*shape)
        agree(triton_top_entries(of, of, k, dim), top_entries(of, of, k, dim), [of])
    of, by = drawn(2, 3, 5), drawn(5)
    agree(triton_top_chosen(of, by, 2)[0], top_chosen(of, by, 2)[0], [of, by])
    mapped = torch.vmap(lambda x: triton_top_chosen(x, x, 2)[0])(of.detach())
    near(mapped, top_chosen(of, of, 2)[0])


def crowded(tokens: int, h: int, e: int, k: int) -> Tensor:
    """Choices of the first k experts alone: all tokens on few experts, nobody on the others."""
    return torch.arange(k).expand(tokens, h, k).contiguous()


@pytest.mark.parametrize(("tokens", "h", "e", "k"), [(300, 2, 5, 2), (17, 1, 70, 3), (1, 1, 1, 1), (0, 2, 4, 2)])
def test_choices_are_sorted_by_expert(tokens: int, h: int, e: int, k: int) -> None:
    drawn_ones = torch.rand(tokens, h, e, generator=torch.Generator().manual_seed(1)).argsort(-1)[..., :k]
    repeated = torch.zeros(tokens, h, k, dtype=torch.long)  # one expert several times for a token
    for chosen in (drawn_ones, crowded(tokens, h, e, k), repeated):
        found = newly_sorted(chosen, h, e)
        own = (chosen + e * torch.arange(h)[:, None]).flatten()
        assert found.order.tolist() == own.argsort(stable=True).tolist()
        assert found.ends.tolist() == own.bincount(minlength=h * e).cumsum(0).tolist()


def test_several_programs_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SORTED_TILE", 64)
    monkeypatch.setattr(module, "SORTED_BLOCKS", 3)
    test_choices_are_sorted_by_expert(301, 2, 6, 2)


def test_products_with_the_same_experts_sort_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sorts, own = [], module.newly_sorted
    monkeypatch.setattr(module, "newly_sorted", lambda *call: sorts.append(call[1:]) or own(*call))  # type: ignore[func-returns-value]
    scores, x = drawn(6, 4), drawn(6, 1, 3)
    gates, chosen = triton_top_chosen(scores, scores, 2)
    rows = triton_expert_rows(x, drawn(4, 3, 5), chosen)
    triton_expert_sums(rows, drawn(4, 5, 3), gates, chosen).sum().backward()
    assert sorts == [(1, 4)]
    assert sorted_choices(chosen, 1, 9).ends.shape == (9,)  # another number of experts
    assert len(sorts) == 2


@pytest.mark.parametrize("kind", ["drawn", "crowded"])
def test_a_router_and_its_experts(kind: str) -> None:
    """Gradients of the router too, with experts that nobody chooses."""
    scores, x = drawn(20, 6), drawn(20, 1, 3)
    scores = scores if kind == "drawn" else (0.1 * scores + torch.arange(6)).detach().requires_grad_()
    first, last = drawn(6, 3, 5), drawn(6, 5, 2)

    def layer(choose, rows, sums) -> Tensor:  # type: ignore[no-untyped-def]
        gates, chosen = choose(scores.sigmoid(), scores.sigmoid(), 2)
        return sums(rows(x, first, chosen).relu(), last, gates, chosen)  # type: ignore[no-any-return]

    found = layer(triton_top_chosen, triton_expert_rows, triton_expert_sums)
    agree(found, layer(top_chosen, expert_rows, expert_sums), [scores, x, first, last])
