"""Linear attention against scores that are made: values and gradients in float64, chunks, masks, tracing, memory."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tensornet_attn.runtime import maps, masks
from tensornet_attn.runtime.linear import Term, linear_attention
from tensornet_attn.runtime.masks import heads_together
from tests.agreement import agree, in_one_graph
from tests.memory import kept

CHUNK = 4
G, H, D, E = 2, 3, 2, 3
LENGTHS = [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5]


def rand(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(shape, dtype=dtype, requires_grad=True)


def plain(batch: tuple[int, ...], n: int, m: int, **kind: Any) -> tuple[list[Term], Tensor]:
    """One term, heads as a dimension."""
    return [Term(rand(*batch, H, n, D, **kind), rand(*batch, H, m, D, **kind))], rand(*batch, H, m, E, **kind)


def mixed(batch: tuple[int, ...], n: int, m: int, **kind: Any) -> tuple[list[Term], Tensor]:
    """A term whose heads a core mixes, a bias, and a term that all heads share."""
    features = Term(rand(*batch, n, G * D, **kind), rand(*batch, m, G * D, **kind), core=rand(G, H, **kind))
    ones = Term(rand(n, 1, **kind), rand(m, 1, **kind), core=rand(1, H, **kind))
    shared = Term(rand(*batch, n, D, **kind), rand(*batch, m, D, **kind))
    return [features, ones, shared], rand(*batch, m, H * E, **kind)


def scores_of(terms: list[Term], mix: bool) -> Tensor:
    """[..., h, n, m], as the docstring says."""
    total: Any = 0
    for term in terms:
        q, k, core = term.q, term.k, term.core
        if not mix:
            total = total + torch.einsum("...hnd,...hmd->...hnm", q, k)
        elif core is None:
            total = total + torch.einsum("...nd,...md->...nm", q, k).unsqueeze(-3)
        else:
            q, k = (t.unflatten(-1, (core.shape[0], -1)) for t in (q, k))
            total = total + torch.einsum("gh,...ngd,...mgd->...hnm", core, q, k)
    return total


def made(
    terms: list[Term],
    v: Tensor,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    batch: int = 0,
    eps: float = 0.0,
    normalized: bool = True,
    causal: bool = False,
) -> Tensor:
    """The oracle: scores, masks, division, values."""
    mix = any(term.core is not None for term in terms)
    scores = scores_of(terms, mix)
    own = masks.causal_mask(*scores.shape[-2:]) if causal else None
    keep, _ = masks.visible(own, mask, key_mask, batch, 1)
    found = maps.normalized(scores, keep, eps) if normalized else maps.kept(scores, keep)
    if not mix:
        return torch.einsum("...hnm,...hme->...hne", found, v)
    return torch.einsum("...hnm,...mhe->...nhe", found, v.unflatten(-1, (H, -1))).flatten(-2)


def leaves_of(terms: list[Term], v: Tensor) -> list[Tensor]:
    return [v, *(part for term in terms for part in term if part is not None)]


KINDS = [(False, 0.0, True), (True, 0.25, True), (True, 0.0, False)]  # key mask, eps, normalized


def check(operands: Any, batch: tuple[int, ...], n: int, m: int, causal: bool) -> None:
    terms, v = operands(batch, n, m)
    for keys, eps, normalized in KINDS:
        key_mask = torch.rand(*batch, m) < 0.6 if keys else None
        options = (None, key_mask, len(batch), int(operands is plain), eps, normalized)
        found = linear_attention(terms, v, *options, causal=causal, chunk=CHUNK)
        wanted = made(terms, v, None, key_mask, len(batch), eps, normalized, causal)
        agree(found, wanted, leaves_of(terms, v))


@pytest.mark.parametrize("operands", [plain, mixed])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("small", [0, 1 << 16])
def test_equals_scores_that_are_made(
    n: int, causal: bool, operands: Any, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "SMALL_CALL", small)
    torch.manual_seed(0)
    for m in (max(n - 3, 1), n, n + 2, n + 2 * CHUNK):
        check(operands, (2,), n, m, causal)


@pytest.mark.parametrize("operands", [plain, mixed])
@pytest.mark.parametrize("batch", [(), (0,), (2, 3)])
def test_any_number_of_batch_dimensions(batch: tuple[int, ...], operands: Any) -> None:
    torch.manual_seed(0)
    for causal in (False, True):
        check(operands, batch, 6, 7, causal)


@pytest.mark.parametrize("operands", [plain, mixed])
@pytest.mark.parametrize("causal", [False, True])
def test_a_mask_at_run_time(causal: bool, operands: Any) -> None:
    torch.manual_seed(0)
    heads = int(operands is plain)
    for (n, m), batch in itertools.product([(5, 5), (3, 6), (6, 3)], [(2,)]):
        terms, v = operands(batch, n, m)
        for shape, normalized in itertools.product([(n, m), (*batch, n, m), (*batch, H, n, m)], [True, False]):
            mask, key_mask = torch.rand(shape) < 0.6, torch.rand(*batch, m) < 0.6
            found = linear_attention(
                terms, v, mask, key_mask, len(batch), heads, 0.0, normalized, causal=causal, chunk=CHUNK
            )
            wanted = made(terms, v, mask, key_mask, len(batch), 0.0, normalized, causal)
            agree(found, wanted, leaves_of(terms, v))


def test_a_mask_that_names_heads_in_another_order() -> None:
    mask = torch.rand(7, 2, 3, 4, 5, 6) < 0.5
    assert heads_together(None, 1, (1, 0), 0) is None
    assert heads_together(mask[:, 0, 0, 0], 1, (1, 0), 2) is not None
    ordered = heads_together(mask, 1, (2, 0, 1), 2)
    assert ordered is not None
    assert torch.equal(ordered, mask.permute(0, 3, 1, 2, 4, 5).flatten(2, 3))
    assert heads_together(mask, 1, (2, 0, 1), 1).shape == (7, 4, 2, 3, 5, 6)  # type: ignore[union-attr]


@pytest.mark.parametrize("operands", [plain, mixed])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("small", [0, 1 << 16])
def test_rows_whose_sum_is_zero_give_zeros_in_value_and_gradient(
    causal: bool, operands: Any, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "SMALL_CALL", small)
    terms, v = operands((2,), 9, 9)
    hidden = torch.zeros(2, 9, dtype=torch.bool)
    first = torch.ones(2, 9, dtype=torch.bool)
    first[:, :4] = False
    for key_mask in (hidden, first):
        y = linear_attention(terms, v, None, key_mask, 1, int(operands is plain), causal=causal, chunk=CHUNK)
        rows = y[..., : 9 if key_mask is hidden else 4 * causal, :]
        assert torch.equal(rows, torch.zeros_like(rows))
        gradients = torch.autograd.grad(rows.sum(), leaves_of(terms, v), materialize_grads=True)
        assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients)
    q = torch.zeros(9, 2, dtype=torch.float64, requires_grad=True)  # features that are all zero
    k, value = rand(9, 2), rand(9, 3)
    agree(
        linear_attention([Term(q, k)], value, causal=causal, chunk=CHUNK),
        torch.zeros(9, 3, dtype=torch.float64) + 0 * (q.sum() + k.sum() + value.sum()),
        [q, k, value],
    )


@pytest.mark.parametrize("operands", [plain, mixed])
@pytest.mark.parametrize("causal", [False, True])
def test_features_of_any_sign(causal: bool, operands: Any) -> None:
    torch.manual_seed(0)
    terms, v = operands((2,), 9, 9)
    terms = [term.each(lambda part: (part - 0.4).detach().requires_grad_()) for term in terms]
    found = linear_attention(terms, v, None, None, 1, int(operands is plain), 1e-3, causal=causal, chunk=CHUNK)
    agree(found, made(terms, v, None, None, 1, 1e-3, True, causal), leaves_of(terms, v))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype: torch.dtype, causal: bool) -> None:
    torch.manual_seed(0)
    terms, v = plain((2,), 70, 70, dtype=dtype)
    found = linear_attention(terms, v, None, None, 1, 1, causal=causal, chunk=16)
    exact = made([term.each(Tensor.double) for term in terms], v.double(), batch=1, causal=causal)
    naive = made(terms, v, batch=1, causal=causal)
    bound = 2 * (naive.double() - exact).abs().max() + torch.finfo(dtype).eps * exact.abs().max()
    assert found.dtype == dtype
    assert (found.double() - exact).abs().max() <= bound
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.sum(), leaves_of(terms, v)))


def test_gradients_against_differences() -> None:
    torch.manual_seed(0)
    for causal in (False, True):
        terms, v = mixed((), 5, 6)

        def function(v: Tensor, *parts: Tensor, causal: bool = causal, terms: list[Term] = terms) -> Tensor:
            rest = iter(parts)
            again = [term.each(lambda _, rest=rest: next(rest)) for term in terms]
            return linear_attention(again, v, causal=causal, chunk=2)

        assert torch.autograd.gradcheck(function, leaves_of(terms, v), fast_mode=True)


@pytest.mark.parametrize("width", [1, 2])
def test_tangents_and_second_gradients_of_a_core(width: int) -> None:
    torch.manual_seed(0)
    operands = [rand(3, G * width), rand(4, G * width), rand(G, H), rand(4, H * width)]

    def function(q: Tensor, k: Tensor, core: Tensor, v: Tensor) -> Tensor:
        return linear_attention([Term(q, k, core=core)], v)

    with torch.no_grad():
        torch.testing.assert_close(
            function(*operands), made([Term(operands[0], operands[1], core=operands[2])], operands[3])
        )
    assert torch.autograd.gradcheck(function, operands, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, operands, fast_mode=True)


def heads_apart(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor) -> Tensor:
    full = linear_attention([Term(q, k)], v, None, key_mask, q.ndim - 3, 1)
    return full + linear_attention([Term(q, k)], v, None, key_mask, q.ndim - 3, 1, causal=True, chunk=CHUNK)


def traced_operands(batch: int, n: int, m: int) -> tuple[Tensor, ...]:
    (term,), v = plain((batch,), n, m, dtype=torch.float32)
    return (term.q, term.k, v, torch.rand(batch, m) < 0.8)


@pytest.mark.slow
def test_one_graph_for_all_lengths() -> None:
    sizes = [(2, 7, 9), (3, 5, 8), (4, 11, 13), (5, 2, 40)]
    for found, arguments in in_one_graph(heads_apart, traced_operands, sizes):
        torch.testing.assert_close(found, heads_apart(*arguments), rtol=1e-4, atol=1e-5)
        found.sum().backward()


class Apart(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor) -> Tensor:
        return heads_apart(q, k, v, key_mask)


@pytest.mark.parametrize("same", [True, False])
def test_export_with_any_batch_and_length(same: bool) -> None:
    dim = torch.export.Dim.DYNAMIC
    shapes = ({0: dim, 2: dim}, {0: dim, 2: dim}, {0: dim, 2: dim}, {0: dim, 1: dim})
    exported = torch.export.export(
        Apart(), traced_operands(2, 7, 7 if same else 9), dynamic_shapes=shapes, strict=False
    ).module()
    for batch, n in [(3, 5), (4, 12)]:
        arguments = traced_operands(batch, n, n if same else n + 3)
        torch.testing.assert_close(exported(*arguments), heads_apart(*arguments), rtol=1e-4, atol=1e-5)


def test_vmap() -> None:
    arguments = traced_operands(4, 6, 6)
    found = torch.func.vmap(heads_apart)(*arguments)
    torch.testing.assert_close(found, heads_apart(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_kept_floats_grow_linearly(causal: bool) -> None:
    """What autograd keeps at twice the length, over what it keeps, as a power of two: about 1, not 2."""
    least, most = (
        kept(partial(linear_attention, *plain((), n, n, dtype=torch.float32), causal=causal, chunk=64))
        for n in (1024, 4096)
    )
    assert math.log2(most / least) / 2 < 1.05
