"""FMMformer: the paper's other bandwidth, rows, and outputs of its third kernel."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta

from .case import FH
from .cases import BACKENDS, compiled, drawn, inputs_of, normal, same
from .plain import loops

backends = pytest.mark.parametrize("backend", BACKENDS)


@backends
@pytest.mark.parametrize(("name", "causal"), [("fmm1", False), ("fmm1_causal", True), ("fmm_lra_release", False)])
def test_a_bandwidth_of_20_is_a_setting(name, causal, backend):
    module = drawn(ta.compile(ta.load(name, legs=FH, settings={"k": 20}), backend=backend, dtype=torch.float64))
    x = normal(torch.Generator().manual_seed(1), 24, FH["f"])  # longer than the band
    same(module(x), loops(name)(module.state_dict(), x, k=20, causal=causal), "output")


@backends
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["fmm1_rows", "fmm2_rows"])
def test_rows_have_sum_one_where_a_query_sees_a_key(name, causal, backend):
    """Also where the band hides every key of a row and the far field does not."""
    module, (x,) = compiled(name, backend, causal), inputs_of(name)
    key_mask = torch.tensor([[True, False, False, True, True], [False] * 5])
    rows = module.capture(x, "A", key_mask=key_mask).sum(-1)
    same(rows, torch.tensor([1.0, 0.0]).double()[:, None, None].expand_as(rows), "sums")


def test_the_third_kernel_as_printed_has_outputs_that_explode_and_the_shifted_one_has_not():
    """Of standard normal inputs at initialisation: the printed kernel divides by sums near zero."""
    most = {}
    for name in ("fmm3", "fmm3_shifted"):
        torch.manual_seed(0)
        module = ta.compile(ta.load(name, legs={"f": 64, "h": 8}))
        most[name] = max(module(torch.randn(4, 256, 64)).detach().abs().max().item() for _ in range(4))
    assert most["fmm3_shifted"] < 10 < most["fmm3"]
    assert ta.check("fmm3_shifted") == []


@pytest.mark.parametrize(("name", "diagonals"), [("fmm1", 5), ("fmm1_causal", 5), ("fmm_lra_release", 9)])
def test_the_near_field_has_as_many_diagonals_as_the_file_says(name, diagonals):
    """k is 5; the release counts the diagonals on either side."""
    module = drawn(ta.compile(ta.load(name, legs=FH), backend="reference", dtype=torch.float64))
    x = normal(torch.Generator().manual_seed(1), 24, FH["f"])
    near = module.capture(x, "near").detach()
    assert sum(bool(near.diagonal(offset, -2, -1).any()) for offset in range(-23, 24)) == diagonals
