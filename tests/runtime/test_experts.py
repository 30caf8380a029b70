"""Grouped experts as functions: against weights gathered for each token, under transforms, in low precision."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from tensornet_attn.runtime import experts, products
from tensornet_attn.runtime.experts import expert_rows, expert_sums, routed, routed_gradients, top_chosen
from tensornet_attn.runtime.maps import top_entries
from tests.agreement import in_one_graph

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def gathered(x: Tensor, weight: Tensor, gates: Tensor | None, chosen: Tensor, heads: int, slots: int) -> Tensor:
    """What `routed` gives, from a copy of its expert's weight for each choice."""
    tokens, h, k = chosen.shape
    each = weight[torch.arange(h)[:, None], chosen]  # t h k c o
    y = torch.einsum("thkc,thkco->thko", x.expand(tokens, h, k, -1), each)
    y = y if gates is None else y * gates[..., None]
    y = y.sum(2, keepdim=True) if slots == 1 else y
    return y.sum(1, keepdim=True) if heads == 1 else y


def choices(tokens: int, h: int, e: int, k: int) -> Tensor:
    return torch.rand(tokens, h, e).argsort(-1)[..., :k]


def operands(
    tokens: int, h: int, e: int, k: int, wide: tuple[int, int] = (1, 1), dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """x, weight and gates, with gradients."""
    shapes = ((tokens, *wide, 4), (h, e, 4, 3), (tokens, h, k))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize(("e", "k"), [(1, 1), (2, 2), (5, 1), (5, 2), (30, 3)])
def test_values_and_gradients(tokens: int, e: int, k: int) -> None:
    """Of 30 experts some are chosen by nobody."""
    torch.manual_seed(0)
    for h, *ones, gated in product((1, 3), *[(False, True)] * 4, (False, True)):
        hx, kx, heads, slots = (1 if one else size for one, size in zip(ones, (h, k, h, k), strict=True))
        x, weight, gates = operands(tokens, h, e, k, (hx, kx))
        chosen, learned = choices(tokens, h, e, k), [x, weight, gates] if gated else [x, weight]
        call = x, weight, gates if gated else None, chosen, heads, slots
        found, wanted = routed(*call), gathered(*call)
        torch.testing.assert_close(found, wanted, **EXACT)
        direction = torch.randn_like(wanted)
        one, other = (torch.autograd.grad(y, learned, direction) for y in (found, wanted))
        torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch without oneDNN")
def test_products_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor on which oneDNN is faster, and for small products too."""
    torch.manual_seed(0)
    shapes, chosen, called = ((60, 1, 1, 40), (2, 3, 40, 48), (60, 2, 2)), choices(60, 2, 3, 2), list[bool]()
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    multiply = products.onednn_product
    monkeypatch.setattr(products, "onednn_from", lambda: 1)
    monkeypatch.setattr(products, "NARROW_PARTS", 40 / torch.get_num_threads())
    monkeypatch.setattr(experts, "onednn_product", lambda *own: called.append(own[-1] is True) or multiply(*own))
    wide = [x.detach().double().requires_grad_() for x in given]
    found, wanted = routed(*given, chosen, 2, 1), gathered(*wide, chosen, 2, 1)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    one, other = (torch.autograd.grad(y.square().sum(), own) for y, own in ((found, given), (wanted, wide)))
    for x, y in zip(one, other, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-3)
    assert sorted(called) == 12 * [False] + 6 * [True]  # by expert and head; the gradients of weights are exact


@pytest.mark.parametrize("fixed", [0, 1, 2])
def test_what_needs_no_gradient_gets_none(fixed: int) -> None:
    torch.manual_seed(0)
    given, chosen = operands(7, 3, 5, 2), choices(7, 3, 5, 2)
    given[fixed].requires_grad_(False)
    learned = [one for one in given if one.requires_grad]
    one, other = (
        torch.autograd.grad(call(*given, chosen, 3, 1).square().sum(), learned) for call in (routed, gathered)
    )
    torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("fixed", [0, 1, 2])
def test_anomaly_detection_finds_no_nan_where_no_gradient_is_needed(
    fixed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setattr(experts, "suits_all", lambda *call: False)
    given, chosen = operands(7, 3, 5, 2), choices(7, 3, 5, 2)
    given[fixed].requires_grad_(False)
    learned = [one for one in given if one.requires_grad]
    torch.use_deterministic_algorithms(True)
    try:
        with torch.autograd.detect_anomaly(check_nan=True):
            for call in (lambda *own: expert_sums(*own, chosen), lambda *own: routed(*own, chosen, 3, 1)):
                torch.autograd.grad(call(*given).sum(), learned)
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_ops_are_what_torch_wants() -> None:
    (x, weight, gates), chosen = operands(7, 3, 5, 2), choices(7, 3, 5, 2)
    torch.library.opcheck(routed, (x, weight, gates, chosen, 3, 1))
    torch.library.opcheck(routed, (x, weight, None, chosen, 1, 2))
    detached = [one.detach() for one in (x, weight, gates)]
    torch.library.opcheck(routed_gradients, (torch.randn(7, 3, 1, 3).double(), *detached, chosen, 3, 1, [True] * 3))


@pytest.mark.parametrize(("heads", "slots"), [(3, 1), (1, 1), (3, 2), (1, 2)])
@pytest.mark.parametrize("wide", [(1, 1), (3, 2), (3, 1), (1, 2)])
@pytest.mark.parametrize("gated", [False, True])
def test_second_derivatives(heads: int, slots: int, wide: tuple[int, int], gated: bool) -> None:
    torch.manual_seed(0)
    (x, weight, gates), chosen = operands(7, 3, 5, 2, wide), choices(7, 3, 5, 2)
    learned = [x, weight, gates] if gated else [x, weight]
    found = []
    for call in (routed, gathered):
        torch.manual_seed(1)
        y = call(x, weight, gates if gated else None, chosen, heads, slots)
        first = torch.autograd.grad(y.square().sum(), learned, create_graph=True)
        found.append(torch.autograd.grad([one.square().sum() for one in first], learned))
    torch.testing.assert_close(*found, **EXACT)


@pytest.mark.parametrize("mapped", [(0, None, None, None), (1, 0, None, 0), (None, 2, 0, None)])
def test_vmap(mapped: tuple[int | None, ...]) -> None:
    torch.manual_seed(0)
    given = [*(one.detach() for one in operands(7, 3, 5, 2)), choices(7, 3, 5, 2)]
    several = [
        one if dim is None else torch.stack([one, one.roll(1, 0)], dim) for one, dim in zip(given, mapped, strict=True)
    ]
    found = torch.func.vmap(lambda *one: routed(*one, 3, 1), mapped)(*several)
    each = [
        [one if dim is None else one.select(dim, i) for one, dim in zip(several, mapped, strict=True)] for i in range(2)
    ]
    torch.testing.assert_close(found, torch.stack([gathered(*one, 3, 1) for one in each]), **EXACT)
    direction = torch.randn(7, 3, 1, 3, dtype=torch.float64)
    pull = torch.func.vmap(lambda *one: routed_gradients(direction, *one, 3, 1, [True] * 3), mapped)(*several)
    for i, one in enumerate(each):
        alone = routed_gradients(direction, *one, 3, 1, [True] * 3)
        torch.testing.assert_close([part[i] for part in pull], list(alone), **EXACT)


def test_of_equal_gates_the_first_are_chosen_and_gradients_flow_to_these() -> None:
    of = torch.tensor([[2.0, 1.0, 2.0, 2.0]], requires_grad=True)
    gates, chosen = top_chosen(of, of, 2)
    assert chosen.tolist() == [[0, 2]]
    assert torch.autograd.grad((gates * torch.tensor([3.0, 5.0])).sum(), of)[0].tolist() == [[3, 0, 5, 0]]


def test_what_chooses_gets_gradients_of_zero() -> None:
    of, by = torch.randn(3, 2, 5, requires_grad=True), torch.randn(3, 1, 5, requires_grad=True)
    gates, chosen = top_chosen(of, by, 2)
    dense = top_entries(of, by, 2, -1)
    assert torch.equal(gates, dense.gather(-1, chosen))
    for one, other in zip(*(torch.autograd.grad(y.square().sum(), (of, by)) for y in (gates, dense)), strict=True):
        assert torch.equal(one, other)


def test_leading_dimensions_are_broadcast() -> None:
    (x, weight, gates), chosen = operands(7, 3, 5, 2), choices(7, 3, 5, 2)
    wanted = gathered(x, weight, gates, chosen, 3, 1).squeeze(-2)
    torch.testing.assert_close(expert_sums(x[None, None], weight, gates, chosen)[0, 0], wanted, **EXACT)
    torch.testing.assert_close(expert_sums(x, weight, gates[None], chosen[None])[0], wanted, **EXACT)
    torch.testing.assert_close(expert_sums(x, weight, gates, chosen, True), wanted.sum(1), **EXACT)


def test_without_heads() -> None:
    (x, weight, gates), chosen = operands(7, 1, 5, 2), choices(7, 1, 5, 2)
    rows = expert_rows(x[:, 0], weight[0], chosen[:, 0])
    torch.testing.assert_close(rows, gathered(x, weight, None, chosen, 1, 2)[:, 0], **EXACT)
    found = expert_sums(x[:, 0], weight[0], gates[:, 0], chosen[:, 0])
    torch.testing.assert_close(found, (gates[:, 0, :, None] * rows).sum(1), **EXACT)


def layer(x: Tensor, weight: Tensor, back: Tensor, logits: Tensor) -> Tensor:
    """Up and down through the experts."""
    gates, chosen = top_chosen(logits, logits, 2)
    rows = expert_rows(x[..., None, None, :], weight, chosen).relu()
    return expert_sums(rows, back, gates, chosen, True)


def layer_operands(*lead: int) -> list[Tensor]:
    shapes = ((*lead, 4), (3, 5, 4, 6), (3, 5, 6, 4), (*lead, 3, 5))
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def test_one_graph_for_all_lengths() -> None:
    for found, given in in_one_graph(layer, layer_operands, [(2, 7), (3, 5), (4, 9), (5, 2)]):
        torch.testing.assert_close(found, layer(*given))
        one, other = (torch.autograd.grad(y.square().sum(), given) for y in (found, layer(*given)))
        torch.testing.assert_close(one, other)


def test_export_with_dynamic_batch_and_length() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor, weight: Tensor, back: Tensor, logits: Tensor) -> Tensor:
            return layer(x, weight, back, logits)

    dims = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("n", min=1, max=512)}
    given = tuple(one.detach() for one in layer_operands(3, 5))
    program = torch.export.export(Layer(), given, dynamic_shapes=(dims, None, None, dims))
    for batch, n in ((1, 9), (4, 1)):
        other = tuple(one.detach() for one in layer_operands(batch, n))
        torch.testing.assert_close(program.module()(*other), layer(*other))


def test_deterministic_algorithms() -> None:
    given = layer_operands(2, 7)
    torch.use_deterministic_algorithms(True)
    try:
        grads = [torch.autograd.grad(layer(*given).square().sum(), given) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_checkpointing() -> None:
    given = layer_operands(2, 7)
    kept = torch.utils.checkpoint.checkpoint(layer, *given, use_reentrant=False)
    one, other = (torch.autograd.grad(y.square().sum(), given) for y in (kept, layer(*given)))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    exact, chosen = operands(50, 3, 5, 2), choices(50, 3, 5, 2)
    low = [one.detach().to(dtype).requires_grad_() for one in exact]
    same = [one.detach().double().requires_grad_() for one in low]
    found, wanted = routed(*low, chosen, 1, 1), gathered(*same, chosen, 1, 1)
    assert found.dtype == dtype
    pairs = [(found, wanted)]
    direction = torch.randn_like(found)
    pairs += zip(
        torch.autograd.grad(found, low, direction), torch.autograd.grad(wanted, same, direction.double()), strict=True
    )
    for one, other in pairs:
        assert one.dtype == dtype
        assert (one - other).abs().max() <= 4 * torch.finfo(dtype).eps * other.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast(dtype: torch.dtype) -> None:
    """float64 stays, as in a matmul."""
    x, weight, gates = operands(7, 3, 5, 2, dtype=dtype)
    chosen = choices(7, 3, 5, 2)
    with torch.autocast("cpu", torch.bfloat16):
        found, plain = expert_sums(x, weight, gates, chosen), x[:, 0, 0] @ weight[0, 0]
    assert found.dtype == plain.dtype
    assert [one.dtype for one in torch.autograd.grad(found.sum(), [x, weight, gates])] == [dtype] * 3


def test_the_grouped_matmul_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on this CPU, where torch has it too: one product for all experts."""
    torch.manual_seed(0)
    shapes = ((40, 1, 1, 16), (2, 5, 16, 8), (40, 2, 2))
    given = [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]
    call = *given, choices(40, 2, 5, 2), 2, 1
    results = []
    for at_once in (False, True):
        monkeypatch.setattr(experts, "grouped_at_once", lambda *_, at_once=at_once: at_once)
        y = routed(*call)
        results.append([y, *torch.autograd.grad(y.float().square().sum(), given)])
    torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize(("e", "k"), [(1, 1), (5, 2)])
@pytest.mark.parametrize(("heads", "wide"), [(3, 1), (3, 3), (1, 1), (1, 3)])
def test_all_experts_of_few_tokens(tokens: int, e: int, k: int, heads: int, wide: int) -> None:
    torch.manual_seed(0)
    (x, weight, gates), chosen = operands(tokens, 3, e, k, (wide, 1)), choices(tokens, 3, e, k)
    assert experts.suits_all(x, weight, gates, chosen, 1)
    found, wanted = (call(x, weight, gates, chosen, heads, 1) for call in (experts.routed_densely, gathered))
    torch.testing.assert_close(found, wanted, **EXACT)
    direction = torch.randn_like(wanted)
    one, other = (torch.autograd.grad(y, [x, weight, gates], direction) for y in (found, wanted))
    torch.testing.assert_close(one, other, **EXACT)
    assert torch.equal(expert_sums(x, weight, gates, chosen, heads == 1), found.squeeze(2).squeeze(1))


def test_many_tokens_and_rows_without_gates_are_sorted_by_expert() -> None:
    x, weight, gates = operands(1 << 15, 1, 64, 2)
    assert not experts.suits_all(x, weight, gates, choices(1 << 15, 1, 64, 2), 1)
    assert not experts.suits_all(x, weight, None, choices(1 << 15, 1, 64, 2), 1)
