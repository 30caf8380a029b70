"""Sums that queries read of a scan of products: the values and gradients of all states at once, in less memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

import tensornet_attn as ta
from tensornet_attn.runtime import scan_reads as code
from tensornet_attn.runtime.scan_reads import scan_reads
from tests.agreement import agree, modules, same_outcome
from tests.memory import peak

DESIGN = """
tensornet: 1
name: heads_of_states
legs: {n: query, m: key, f: 8, h: head 2, a: 2, s: 3}
causal: true
inputs: {x: n f}
weights: {Wx: f h a, Wt: f h, A: {legs: h a s, init: ones}, Wb: f s h, Wc: f h s, Wo: h a f}
diagram:
  u: x[m f] Wx[f h a] -> m h a
  t: {map: sigmoid, of: "x[m f] Wt[f h] -> m h"}
  B: x[m f] Wb[f s h] -> m s h
  C: x[n f] Wc[f h s] -> n h s
  decay: -1 * t[m h] A[h a s] -> m h a s
  H: {scan: m, decay: decay, of: "3 * B[m s h] u[m h a] -> m a s h"}
  y: 0.5 * H[n a s h] C[n h s] Wo[h a f] -> n f
output: y
"""


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few positions, of short rows too."""
    monkeypatch.setattr(code, "LONG_ROW", 1)
    monkeypatch.setattr(code, "MAP_PART", 200)


def drawn(m: int, lead: tuple[int, ...], shapes: str = "two") -> list[Tensor]:
    """read, two factors of x and of the decay: the first of the decays has no positions."""
    every = (*lead, m, 1, 5), (*lead, m, 4, 1), (*lead, m, 1, 5), (4, 5), (*lead, m, 4, 1)
    found = [torch.randn(*shape, dtype=torch.float64) for shape in every]
    found[3:] = [-found[3].abs(), found[4].abs()]
    return [x.requires_grad_() for x in found]


def both(given: list[Tensor], key_mask: Tensor | None) -> list[Tensor]:
    """In blocks, and of all states."""
    read, *x = given
    found = scan_reads((x[0], x[1]), (x[2], x[3]), read, 2, key_mask)
    return [found, code.read_sums(tuple(given), 2, 2, key_mask)]


@pytest.mark.parametrize("m", [0, 1, 2, 10, 37])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients(m: int, lead: tuple[int, ...], masked: bool) -> None:
    torch.manual_seed(0)
    given, key_mask = drawn(m, lead), torch.rand(*lead, m) < 0.6 if masked else None
    found, wanted = both(given, key_mask)
    agree(found, wanted, given)
    with torch.no_grad():
        torch.testing.assert_close(both(given, key_mask)[0], wanted)


def test_masks_and_factors_without_the_batch() -> None:
    torch.manual_seed(0)
    read, *x = (one.detach().requires_grad_() for one in drawn(20, (3,)))
    given = [read[:1].detach().requires_grad_(), x[0], x[1][0].detach().requires_grad_(), *x[2:]]
    for key_mask in (torch.rand(20) < 0.6, torch.rand(3, 20) < 0.6):
        agree(*both(given, key_mask), given)


def test_a_sum_over_queries_is_no_read() -> None:
    """It has all queries' states."""
    design = DESIGN.replace("causal: true", "causal: false").replace("y: 0.5 * H[n a s h] C[n h s] Wo[h a f] -> n f",
        "G: H[n a s h] C[n h s] -> a h\n  y: G[a h] x[n f] Wo[h a f] -> n f")  # fmt: skip
    assert "scan_reads(\n" not in ta.emit_source(design, backend="torch", package=True)
    beside_reference(design, torch.randn(2, 5, 8, dtype=torch.float64))


def test_one_factor() -> None:
    torch.manual_seed(0)
    read, *x, _, decay = drawn(9, (2,))
    given = [read, *(y.detach().requires_grad_() for y in (x[0] * x[1], -decay))]
    y = [scan_reads((given[1],), (given[2],), read, 2, None), code.read_sums(tuple(given), 2, 1, None)]
    torch.testing.assert_close(*y)
    torch.testing.assert_close(*(torch.autograd.grad(one.sum(), given) for one in y))


def test_what_a_key_mask_hides_may_be_anything() -> None:
    torch.manual_seed(0)
    given, keep = drawn(12, ()), torch.rand(12) < 0.6
    wanted = both(given, keep)[0]
    with torch.no_grad():
        given[1][~keep] = torch.nan
        given[4][~keep] = torch.inf
    torch.testing.assert_close(both(given, keep)[0], wanted)


def test_gradients_of_gradients_and_of_functions() -> None:
    torch.manual_seed(0)
    given = drawn(5, ())
    assert torch.autograd.gradgradcheck(lambda *own: both(list(own), None)[0], given, fast_mode=True)
    read, *rest = (x.detach() for x in drawn(5, (3,)))

    def total(read: Tensor) -> Tensor:
        return both([read, *rest], None)[0].square().sum()

    torch.testing.assert_close(vmap(grad(total))(read.expand(2, *read.shape))[1], grad(total)(read))


def test_the_call_of_a_design_beside_the_reference() -> None:
    torch.manual_seed(0)
    assert "scan_reads(\n" in ta.emit_source(DESIGN, backend="torch", package=True)
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    beside_reference(DESIGN, x)
    beside_reference(DESIGN, x, key_mask=torch.rand(2, 11) < 0.7)


def beside_reference(design: str, x: Tensor, **given: Tensor) -> None:
    wanted, module = modules(design)
    same_outcome(module, wanted, [x], **given)


@pytest.mark.parametrize("batch", [1, 8])
def test_no_tensor_has_all_states(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    module, x = (
        ta.compile(ta.load("mamba1", legs={"f": 128, "s": 64}), backend="torch"),
        torch.randn(batch, 512 // batch, 128),
    )
    states = 512 * 256 * 64 * 4  # bytes
    assert peak(lambda: module(x).sum().backward()) < states
