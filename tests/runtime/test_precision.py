"""Half precision in single functions: bounds that a dtype lacks, buckets under another default dtype."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.reference import bucket, log_bucket
from tensornet_attn.runtime.positions import buckets, log_buckets
from tensornet_attn.runtime.precision import clamp, clamp_max, clamp_min, to_narrow, to_wide


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def default(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("default")
def test_buckets_are_computed_in_single_precision() -> None:
    """Whatever the default dtype: those of trained models."""
    distance = torch.arange(-300, 300)
    assert buckets(distance, 32, 128, True).tolist() == [bucket(int(d), 32, 128, True) for d in distance]
    assert log_buckets(distance, 64, 256).tolist() == [log_bucket(int(d), 64, 256) for d in distance]
    assert bucket(45, 32, 128, False) == 23
    assert log_bucket(150, 64, 256) == 61


def test_bounds_beyond_a_dtype_have_no_effect_there() -> None:
    x = torch.tensor([-torch.inf, -60000.0, 1.0, torch.inf], dtype=torch.float16)
    for y in (clamp(x, -1e9, 1e9), clamp_min(x, -1e9), clamp_max(x, 1e9)):
        assert torch.equal(y, x)
    assert torch.equal(clamp(x, 0, 1e5), x.clamp(min=0))
    assert torch.equal(clamp(x.float(), -1e9, 1e9), x.float().clamp(-1e9, 1e9))


@pytest.mark.parametrize("backend", ["reference", "torch", "cpp"])
def test_layers_with_such_bounds_run_in_half_precision(backend: str) -> None:
    design = ta.load("laser", legs={"f": 16})
    x = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0))
    layer = ta.compile(design, backend).eval()
    half = ta.compile(design, backend, dtype=torch.float16).eval()
    half.load_state_dict(layer.state_dict())
    with torch.no_grad():
        wanted = layer(x)
        torch.testing.assert_close(half(x.half()).float(), wanted, rtol=1e-2, atol=1e-2)
        with torch.autocast("cpu", torch.float16):
            torch.testing.assert_close(layer(x).float(), wanted, rtol=1e-2, atol=1e-2)


def test_wide_is_at_least_float32() -> None:
    for dtype, wide in [(torch.float16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)]:
        x = torch.ones(2, dtype=dtype)
        assert to_wide(x).dtype == wide
        assert to_narrow(to_wide(x), x).dtype == dtype
    assert to_wide(x) is x
