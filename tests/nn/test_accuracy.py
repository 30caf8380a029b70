"""Every design against the reference in float64, at sizes that break things, and in the dtypes that people train in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tensornet_attn as ta
from tests.designs.cases import CASES, drawn, normal, steadied
from tests.shipped import graph_of

F64 = torch.float64
EVEN = ("mlp", "sigma_moe", "deepseek_moe", "differential", "t5")  # no attention, a leg with parts, or buckets


def turns(name: str) -> bool:
    """Whether it has rotary positions, which want an even leg."""
    return any(step.box is not None and step.box.kind == "rope" for step in graph_of(name).steps)


PRIMES = {
    "mhsa": {"f": 35, "h": 5},
    "gqa": {"f": 42, "g": 3, "j": 2},
    "thsa": {"f": 7, "r": 5, "s": 3},
    "hard_fish": {"f": 35, "h": 5, "g": 3},
    "mgk": {"f": 35, "h": 5, "r": 3},
    "epa": {"f": 35, "h": 5, "e": 7},
    "transformer_xl": {"f": 35, "h": 5},
}


def pair(name: str, legs: dict[str, int], causal: bool | None = None) -> tuple[nn.Module, nn.Module]:
    design = ta.load(name, legs=legs, settings=CASES[name].settings)
    oracle = drawn(ta.reference(design, causal, dtype=F64), positive=CASES[name].positive)
    module = ta.compile(design, "torch", causal, dtype=F64).eval()
    module.load_state_dict(oracle.state_dict())
    return oracle, module


def inputs_of(name: str, f: int, n: int, m: int | None = None, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = [n] if len(CASES[name].inputs) == 1 and m is None else [n, n if m is None else m]
    return [normal(generator, batch, length, f).requires_grad_() for length in lengths]


def gradients(module: nn.Module, y: Tensor, xs: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(y.square().sum(), [*xs, *(p for p in module.parameters() if p.requires_grad)]))


def compare(oracle: nn.Module, module: nn.Module, xs: list[Tensor], **options: object) -> None:
    wanted, found = oracle(*xs, **options), module(*xs, **options)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-11)
    close = gradients(module, found, xs), gradients(oracle, wanted, xs)
    torch.testing.assert_close(*close, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [1, 2, 17])
@pytest.mark.parametrize("name", CASES)
def test_lengths(name: str, length: int) -> None:
    compare(*pair(name, CASES[name].legs), inputs_of(name, CASES[name].legs["f"], length))


@pytest.mark.parametrize("name", PRIMES)
def test_prime_sizes(name: str) -> None:
    compare(*pair(name, PRIMES[name]), inputs_of(name, PRIMES[name]["f"], 13))


@pytest.mark.parametrize("name", [name for name in CASES if name not in EVEN and not turns(name)])
def test_sizes_of_one(name: str) -> None:
    settings = {key: 1 for key in CASES[name].settings if key == "k"}
    legs = {leg: 1 for leg, size in ta.load(name).legs.items() if leg in CASES[name].legs and size is not None}
    design = ta.load(name, legs=legs, settings=settings)
    oracle = drawn(ta.reference(design, dtype=F64))
    module = ta.compile(design, "torch", dtype=F64).eval()
    module.load_state_dict(oracle.state_dict())
    compare(oracle, module, inputs_of(name, 1, 3))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 7), (7, 1), (3, 5), (5, 3), (2, 2)])
@pytest.mark.parametrize("name", ["cross", "transformer_xl"])
def test_the_last_query_stands_at_the_last_key(name: str, n: int, m: int, causal: bool) -> None:
    f = CASES[name].legs["f"]
    keys = torch.rand(2, m, generator=torch.Generator().manual_seed(4)) < 0.7
    compare(*pair(name, CASES[name].legs, causal), inputs_of(name, f, n, m), key_mask=keys)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_errors_are_at_most_twice_those_of_plain_code(name: str, dtype: torch.dtype) -> None:
    """Plain code is the reference in the same dtype; of the state and of a choice of k, only the output counts."""
    oracle, module = pair(name, CASES[name].legs)
    xs = steadied(name, oracle, inputs_of(name, CASES[name].legs["f"], 12, batch=8))
    xs = [x.detach().to(dtype).double() for x in xs]
    state = {key: value.to(dtype).double() for key, value in oracle.state_dict().items()}
    oracle.load_state_dict(state)
    module.load_state_dict(state)
    want = oracle(*xs)
    plain, ours = (m.to(dtype)(*(x.to(dtype) for x in xs)).double() for m in (oracle, module))
    bound = 2 * ((plain - want).abs().max() + torch.finfo(dtype).eps * want.abs().max())
    assert (ours - want).abs().max() <= bound
