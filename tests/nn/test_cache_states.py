"""Decoding with states: scores that decay, means of keys, delta rules; chunks are the same as at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.nn.module import CompiledDesign
from tests.agreement import in_chunks, modules
from tests.nn.test_cache import N, chunk_of, close, decoded, made
from tests.plan.decay_cases import ALONE, BY_DISTANCE, FADING, decayed
from tests.plan.linear_cases import READ, SCORES

FADES = {**FADING, **{f"{name}, alone": data for name, data in ALONE.items()}}
FADES |= {  # the same scores as one product
    "in two steps": decayed("S[h n m] D[h n m] -> h n m", D=BY_DISTANCE, kind="keep"),
    "in three steps": decayed("2 * T[h n m] + 1 -> h n m", T="S[h n m] b[h] -> h n m"),
    "in two steps, summed": decayed(
        SCORES, T={"sum": "m", "mask": ["causal"], "of": "S[h n m] b[h] -> h n m"}, read=f"T[h n] {READ}"
    ),
}
MODES = ("none", "read", "both")


def layer(data: dict[str, Any], backend: str = "torch", dtype: torch.dtype = torch.float64) -> CompiledDesign:
    """The design behind itself, with numbers of both signs as weights."""
    data = data | {"inputs": {"x": "n f", "z": {"legs": "m f", "default": "x"}}}
    module = ta.compile(data, backend, causal=True, dtype=dtype).eval()
    generator = torch.Generator().manual_seed(0)
    for weight in module.parameters():
        weight.data = (torch.rand(weight.shape, generator=generator, dtype=torch.float64) - 0.3).to(dtype)
    return module


def delta(mode: str) -> dict[str, Any]:
    box = {"delta_rule": "m", "query": "Q", "key": "K", "value": "V", "rate": "rate", "normalize": mode, "eps": 0.1}
    steps = {
        "Q": {"map": "softplus", "of": "x[n f] Wq[f h d] -> n h d"},
        "K": {"map": "softplus", "of": "z[m f] Wk[f h d] -> m h d"},
        "V": "z[m f] Wv[f h e] -> m h e",
        "rate": {"map": "sigmoid", "of": "z[m f] Wb[f h] -> m h"},
        "y": "S[n h e] Wo[h e f] -> n f",
    }
    weights = {"Wq": "f h d", "Wk": "f h d", "Wv": "f h e", "Wb": "f h", "Wo": "h e f"}
    legs = {"n": "query", "m": "key", "f": 4, "h": "head 2", "d": 3, "e": 2}
    steps = {name: steps[name] for name in ("Q", "K", "V", "rate")} | {"S": box, "y": steps["y"]}
    return {"tensornet": 1, "name": "delta", "legs": legs, "weights": weights, "diagram": steps, "output": "y"}


def test_powers_of_scores_have_a_state_that_is_smaller_than_the_keys() -> None:
    """A state has a feature for each pair of entries of a key; the lengths are those that plans assume."""
    of_square = decayed("1 + S[h n m] + 0.5 * S[h n m] S[h n m] -> h n m")
    wide = of_square["legs"] | {"d": 64, "e": 64}
    for legs, kept in ((of_square["legs"], {"A.state1", "A.state2", "A.state3"}), (wide, {"K", "V"})):
        module = layer(of_square | {"legs": legs})
        cache = module.new_cache()
        module(chunk_of(module), cache=cache)
        assert {*cache} >= kept


@pytest.mark.parametrize("name", [*FADES, *MODES])
def test_chunks_are_the_same_as_at_once(name: str) -> None:
    for backend in ("torch", "reference"):
        module = layer(delta(name) if name in MODES else FADES[name], backend)
        x = chunk_of(module)
        with torch.no_grad():
            wanted = module(x)
        for cuts in ([1] * N, [4, 1, 4], [2, 7]):
            cache = module.new_cache()
            close(decoded(module, x, cuts, cache), wanted)
            assert all(cache._kept[one].leg is None for one in cache), "keys are kept"


@pytest.mark.parametrize(
    "name", ["by distance", "by features", "in two steps", "numbers of keys, by distance, alone", *MODES]
)
def test_hidden_positions_reach_no_state(name: str) -> None:
    """Whatever stands there; a chunk in which nothing is visible too."""
    module = layer(delta(name) if name in MODES else FADES[name])
    x, keep = chunk_of(module), torch.ones(2, N, dtype=torch.bool)
    keep[0, :3] = keep[1, 5:6] = False
    with torch.no_grad():
        wanted = module(x, key_mask=keep)
        for hidden in (x, torch.where(keep[..., None], x, 1e6)):
            for cuts in ([5, 1, 3], [1] * N):
                close(decoded(module, hidden, cuts, key_mask=keep)[keep], wanted[keep])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["by distance", "by gates", "numbers of keys, by distance, alone"])
def test_rows_that_see_nothing_are_finite(name: str, dtype: torch.dtype) -> None:
    """Rows of padding, with a cache and without, and what their gradient gives the others."""
    module = layer(FADES[name], dtype=dtype)
    x, keep = chunk_of(module, 12).to(dtype).requires_grad_(), torch.ones(2, 12, dtype=torch.bool)
    keep[0, :5] = False
    y = module(x, key_mask=keep)
    y[keep].sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert decoded(module, x, [4, 4, 4], key_mask=keep).isfinite().all()


@pytest.mark.parametrize("rate", [10.0, 200.0, 1000.0])
@pytest.mark.parametrize("name", ["by distance", "numbers of keys, by distance, alone"])
def test_hidden_keys_far_away_lower_no_level(name: str, rate: float) -> None:
    """What fades fast, behind a long hidden run: the past that is left counts."""
    module = layer(FADES[name])
    module.wb.data.fill_(rate)
    x, keep = chunk_of(module, 400), torch.ones(2, 400, dtype=torch.bool)
    keep[0, 40:] = False
    with torch.no_grad():
        wanted = module(x, key_mask=keep)
    assert wanted.isfinite().all()
    rows = keep if name == "by distance" else torch.ones_like(keep)  # sums of what has faded are less than a number
    for cuts in ([200, 200], [200, 100, 100], [39, 1, 360]):
        close(decoded(module, x, cuts, key_mask=keep)[rows], wanted[rows])


@pytest.mark.parametrize("name", ["by distance", "by gates", "numbers of keys, by distance, alone"])
def test_long_sequences_in_float32(name: str) -> None:
    """Exponents grow with the position, and no exponential overflows or vanishes that counts."""
    single, double = (layer(FADES[name], dtype=dtype) for dtype in (torch.float32, torch.float64))
    x = chunk_of(double, 3000, (1,))
    with torch.no_grad():
        wanted = double(x)[:, -20:]
        found = decoded(single, x.float(), [1000, 1980, *[1] * 20])[:, -20:]
    torch.testing.assert_close(found.double(), wanted, rtol=2e-3, atol=2e-3 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", ["by distance", "by gates", "linear", "fast_weight1"])
def test_states_of_half_a_precision_forget_nothing(name: str) -> None:
    """Sums of 600 positions in bfloat16 would stand still."""
    module = layer(FADES[name]) if name in FADES else made(name)
    x = chunk_of(module, 600, (1,)).bfloat16()
    with torch.no_grad():
        module = module.bfloat16()
        wanted = module.double()(x.double())[:, -5:]
        module = module.bfloat16()
        cache = module.new_cache()
        found = decoded(module, x, [300, *[1] * 300], cache)[:, -5:]
    assert {cache[one].dtype for one in cache} == {torch.float32}
    torch.testing.assert_close(found.double(), wanted, rtol=0.05, atol=0.03 * float(wanted.abs().max()))


@pytest.mark.parametrize(
    "name", ["mhsa", "mhsa_rope", "band", "talking_heads", "linear", "by distance", "fast_weight1"]
)
def test_gradients_go_through_the_last_chunk(name: str) -> None:
    module = layer(FADES[name]) if name in FADES else made(name)
    x = chunk_of(module)
    cache, last = module.new_cache(), x[:, 6:].clone().requires_grad_()
    module(x[:, :6], cache=cache)
    module(last, cache=cache).square().sum().backward()
    whole = x.clone().requires_grad_()
    module(whole)[:, 6:].square().sum().backward()
    close(last.grad, whole.grad[:, 6:])  # type: ignore[arg-type, index]


@pytest.mark.parametrize("size", [1e9, -1e25])
def test_scores_that_absorb_the_number_of_keys(size: float) -> None:
    """A past is weighed by the sum of its exponentials, whatever their size."""
    weights = {"Wk": "f h", "Wq": "f h", "Wv": "f h e", "Wo": "h e f"}
    diagram = {
        "k": "x[m f] Wk[f h] -> m h",
        "q": "x[n f] Wq[f h] -> n h",
        "V": "x[m f] Wv[f h e] -> m h e",
        "A": {"softmax": "m", "of": "k[m h] + q[n h] -> h n m"},
        "y": "A[h n m] V[m h e] Wo[h e f] -> n f",
    }
    legs = {"n": "query", "m": "key", "f": 6, "h": "head 2", "e": 3}
    design = {"tensornet": 1, "name": "mean", "legs": legs, "inputs": {"x": "n f"}, "weights": weights, "output": "y"}
    oracle, module = modules(design | {"diagram": diagram, "causal": True})
    x = torch.randn(1, 12, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[..., 0] = 1
    with torch.no_grad():
        for layer in (oracle, module):
            layer.Wk.zero_()[0] = size
    torch.testing.assert_close(in_chunks(module, x, [5, 2, 1, 1, 3]), oracle(x).detach())
