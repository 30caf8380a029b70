"""The delta rule in chunks: the oracle's values and gradients, under torch's transformations, in linear memory."""

from __future__ import annotations

import itertools
import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from tensornet_attn.graph import Graph, build
from tensornet_attn.reference import evaluate
from tensornet_attn.runtime.gated import gated_gradients, gated_reads
from tensornet_attn.runtime.scan import delta_rule, delta_state
from tensornet_attn.spec import load
from tests.agreement import agree
from tests.memory import kept

MODES = pytest.mark.parametrize("mode", ["none", "read", "both"])
LENGTHS = [(7, 7), (3, 7), (7, 3), (1, 1), (1, 6), (8, 8), (9, 9), (4, 9), (9, 4), (5, 1)]


def graph(mode: str, eps: float, legs: dict[str, str]) -> Graph:
    box = {"delta_rule": "m", "query": "q", "key": "k", "value": "v", "rate": "r", "normalize": mode, "eps": eps}
    sizes = {"n": "query", "m": "key", "h": "head 2", "d": 4, "e": 3}
    data = {"tensornet": 1, "name": "test", "legs": sizes, "inputs": legs, "diagram": {"y": box}, "output": "y"}
    return build(load(data))


def drawn(batch: tuple[int, ...], n: int, m: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys, values and rates of two heads; keys are positive, so that no sum of them vanishes."""
    shapes = [(*batch, 2, n, 4), (*batch, 2, m, 4), (*batch, 2, m, 3), (*batch, 2, m)]
    found = [torch.rand(shape, dtype=dtype) for shape in shapes]
    found[2] = torch.randn(shapes[2], dtype=dtype)
    return [x.requires_grad_() for x in found]


def gradients(y: Tensor, leaves: list[Tensor], weights: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((y * weights).sum(), leaves, materialize_grads=True)


@pytest.mark.parametrize("batch", [(), (2,), (2, 1, 3), (0,)])
@pytest.mark.parametrize(("n", "m"), LENGTHS)
@MODES
def test_values_and_gradients(batch: tuple[int, ...], n: int, m: int, mode: str) -> None:
    torch.manual_seed(0)
    legs = {"q": "h n d", "k": "h m d", "v": "h m e", "r": "h m"}
    for key_mask, chunk in itertools.product((None, torch.rand(*batch, m) < 0.6), (1, 3, 4, 64)):
        eps = 0.25 * (chunk % 2)
        given = dict(zip("qkvr", drawn(batch, n, m), strict=True))
        g = graph(mode, eps, legs)
        wanted = evaluate(g, given, lengths={"n": n, "m": m}, key_mask=key_mask)["y"]
        keep = None if key_mask is None else key_mask[..., None, :]
        agree(delta_rule(*given.values(), keep, mode, eps, chunk), wanted, [*given.values()])


@MODES
def test_a_hundred_keys_at_the_usual_chunk(mode: str) -> None:
    torch.manual_seed(0)
    for m in (63, 64, 65, 130):
        q, k, v, r = drawn((), m, m)
        k = F.normalize(k.detach(), dim=-1).requires_grad_()
        given = {"q": q, "k": k, "v": v, "r": r}
        g = graph(mode, 0.0, {"q": "h n d", "k": "h m d", "v": "h m e", "r": "h m"})
        agree(delta_rule(*given.values(), None, mode), evaluate(g, given, lengths={"n": m, "m": m})["y"], [q, k, v, r])


@pytest.mark.parametrize("without", range(4))
def test_an_operand_may_be_shared_by_the_heads(without: int) -> None:
    torch.manual_seed(0)
    operands = drawn((3,), 6, 6)
    one = operands[without].detach()[:, :1].clone().requires_grad_()
    shared = [one if i == without else x for i, x in enumerate(operands)]
    whole = [one.expand_as(operands[without]) if i == without else x for i, x in enumerate(operands)]
    agree(delta_rule(*shared, chunk=4), delta_rule(*whole, chunk=4), shared)


@MODES
def test_no_key_and_no_query(mode: str) -> None:
    torch.manual_seed(0)
    g = graph(mode, 0.1, {"q": "h n d", "k": "h m d", "v": "h m e", "r": "h m"})
    for n, m in ((5, 0), (0, 5), (0, 0)):
        given = dict(zip("qkvr", drawn((), n, m), strict=True))
        wanted = evaluate(g, given, lengths={"n": n, "m": m})["y"]
        assert wanted.shape == (2, n, 3)
        found = delta_rule(*given.values(), None, mode, 0.1)
        torch.testing.assert_close(found, wanted)
        assert not any(g.any() for g in gradients(found, [*given.values()], torch.ones_like(found)))


@MODES
def test_a_chunk_without_positions_leaves_the_state(mode: str) -> None:
    q, k, v, r = drawn((2,), 0, 0)
    past = [torch.randn(2, 2, 4, 3).to(q), torch.rand(2, 2, 4).to(q), torch.full((2, 2), 3.0)]
    assert delta_rule(q, k, v, r, None, mode, 0.1, past=past).shape == (2, 2, 0, 3)
    torch.testing.assert_close(delta_state(k, v, r, past, None, mode, 0.1), past[0])


def test_more_queries_than_keys_behind_a_state_are_refused() -> None:
    q, k, v, r = drawn((), 4, 3)
    wrong = "delta_rule: 4 queries for 3 keys after a state; give no more queries than keys."
    with pytest.raises(ValueError, match=re.escape(wrong)):
        delta_rule(q, k, v, r, past=[torch.zeros(2, 4, 3).to(q)])


def test_all_keys_masked() -> None:
    q, k, v, r = drawn((2,), 5, 5)
    y = delta_rule(q, k, v, r, torch.zeros(2, 1, 5, dtype=torch.bool), "both", 0.0, 2)
    assert not y.any()
    assert not any(g.any() for g in gradients(y, [q, k, v, r], torch.ones_like(y)))


@MODES
def test_behind_what_came_before(mode: str) -> None:
    """The second part of the keys, given what the first has left: values and gradients of the whole."""
    torch.manual_seed(0)
    q, k, v, r = drawn((2,), 9, 9)
    keep = torch.ones(2, 1, 9, dtype=torch.bool)
    keep[0, :, :6] = False
    for key_mask in (None, keep):
        parts = [None if key_mask is None else key_mask[..., part] for part in (slice(5), slice(5, None))]
        past = [torch.zeros(2, 2, 4, 3, dtype=q.dtype), torch.zeros(2, 2, 4, dtype=q.dtype), torch.zeros(2, 2)]
        with torch.no_grad():
            state = delta_state(k[..., :5, :], v[..., :5, :], r[..., :5], past, parts[0], mode, 0.1, 2)
            seen = torch.ones(2, 1, 5) if key_mask is None else parts[0].double()
            past = [state, (k[..., :5, :] * seen[..., None]).sum(-2), seen.sum(-1).expand(2, 2)]
        own = [x[:, :, 5:].detach().requires_grad_() for x in (q, k, v, r)]
        found = delta_rule(*own, parts[1], mode, 0.1, 2, past)
        wanted = delta_rule(q, k, v, r, key_mask, mode, 0.1, 2)[..., 5:, :]
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)
        weights = torch.randn_like(found)
        theirs = [x[:, :, 5:] for x in gradients(wanted, [q, k, v, r], weights)]
        torch.testing.assert_close([*gradients(found, own, weights)], theirs, rtol=1e-9, atol=1e-10)


@MODES
def test_gradients_against_differences(mode: str) -> None:
    torch.manual_seed(0)
    operands = drawn((), 3, 5)
    assert torch.autograd.gradcheck(lambda *x: delta_rule(*x, None, mode, 0.1, 2), operands)
    assert torch.autograd.gradgradcheck(lambda *x: delta_rule(*x, None, mode, 0.1, 2), operands)


@pytest.mark.parametrize("length", [3, 7])
@pytest.mark.parametrize("first", [None, torch.rand(2, 2, 5)], ids=["zeros", "given"])
def test_the_operations_as_torch_checks_them(length: int, first: Tensor | None) -> None:
    torch.manual_seed(0)
    q, k, v, rate = (torch.rand(2, length, width, requires_grad=True) for width in (2, 2, 5, 1))
    torch.library.opcheck(gated_reads, (q, None, k, None, v, rate, None, first, False, 4))
    g, *operands = torch.rand(2, length, 5), q.detach(), None, k.detach(), None, v.detach(), rate.detach(), None
    torch.library.opcheck(gated_gradients, (g, *operands, first, False, 4))


@pytest.mark.parametrize("dims", [(0, 0, 0, 0), (0, None, 0, None), (1, 0, 2, 1), (None, 0, None, None)])
def test_vmap(dims: tuple[int | None, ...]) -> None:
    torch.manual_seed(0)
    operands = drawn((3,), 5, 5)
    given = [x[0] if dim is None else x.movedim(0, dim) for x, dim in zip(operands, dims, strict=True)]
    whole = [x[:1].expand_as(x) if dim is None else x for x, dim in zip(operands, dims, strict=True)]
    found = vmap(lambda *x: delta_rule(*x, None, "read", 0.1, 2), dims)(*given)
    agree(found, delta_rule(*whole, None, "read", 0.1, 2), operands)


def test_vmap_of_gradients() -> None:
    torch.manual_seed(0)
    operands = drawn((3,), 5, 5)
    each = vmap(grad(lambda *x: delta_rule(*x, None, "both", 0.1, 2).sin().sum(), (0, 1, 2, 3)))(*operands)
    y = delta_rule(*operands, None, "both", 0.1, 2).sin().sum()
    torch.testing.assert_close(each, torch.autograd.grad(y, operands), rtol=1e-9, atol=1e-10)


STANCES = [(2, 7, "default"), (3, 9, "default"), (2, 3, "fail_on_recompile"), (4, 17, "fail_on_recompile")]


@pytest.mark.parametrize(("mode", "masked"), [("none", True), ("both", False)])
def test_one_graph_for_all_lengths_around_the_chunks(mode: str, masked: bool) -> None:
    torch._dynamo.reset()

    def function(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, keep: Tensor) -> Tensor:
        return delta_rule(q, k, v, rate, keep if masked else None, mode, 0.1, 4)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, length, stance in STANCES:
        operands: list[Any] = [*drawn((batch,), length, length), torch.rand(batch, 1, length) < 0.6]
        with torch.compiler.set_stance(stance):
            found = compiled(*operands)
        agree(found, function(*operands), operands[:4])


class Rule(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
        return delta_rule(q, k, v, rate, None, "both", 0.1, 4)


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_any_batch_and_length(strict: bool) -> None:
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim("length", min=1)
    operands = tuple(x.detach() for x in drawn((2,), 7, 7))
    shapes = tuple({0: batch, 2: length} for _ in operands)
    exported = torch.export.export(Rule(), operands, dynamic_shapes=shapes, strict=strict).module()
    for size, n in [(3, 9), (1, 1), (2, 4), (5, 33)]:
        operands = tuple(x.detach() for x in drawn((size,), n, n))
        torch.testing.assert_close(exported(*operands), Rule()(*operands))


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_changes_nothing(inside: bool) -> None:
    torch.manual_seed(0)
    operands = drawn((2,), 9, 9, torch.float32)
    plain = delta_rule(*operands, None, "read", 0.1, 4)
    wanted = [plain, *torch.autograd.grad(plain.sum(), operands)]
    with torch.autocast("cpu", torch.bfloat16):
        y = delta_rule(*operands, None, "read", 0.1, 4)
        found = torch.autograd.grad(y.sum(), operands) if inside else None
    torch.testing.assert_close([y, *(found or torch.autograd.grad(y.sum(), operands))], wanted)


def test_memory_is_linear_in_the_keys() -> None:
    few, many = (kept(partial(delta_rule, *drawn((), m, m), None, "read", 0.1)) // 8 for m in (1024, 8192))
    assert 0 < many <= 8 * few
    assert few <= 2 * 1024 * (6 * 4 + 4 * 3 + 4)  # a few copies of the operands, no entry for each pair
