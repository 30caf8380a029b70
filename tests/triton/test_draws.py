"""What kernels draw: the distribution of random numbers, and that neighbours do not depend on each other."""

from __future__ import annotations

import re
from itertools import product
from math import erfc, sqrt
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.compiler import emit_source
from tensornet_attn.emit.triton import demand, region
from tensornet_attn.emit.triton.nodes import WORDS
from tensornet_attn.runtime.triton.kernels.region_inside import gaussian_2d, uniform
from tensornet_attn.runtime.triton.target import interpreting
from tests.triton.regions import F64, draw

SIDE, LEADS = 256, 8


@triton.jit
def drawn(out, seed, word, stream, NORMAL: tl.constexpr, TURNED: tl.constexpr, SIDE: tl.constexpr):
    """A tile of queries x keys for each program, whose number is the lead."""
    i, lead = tl.arange(0, SIDE), tl.program_id(0)
    n, m = i[:, None], i[None, :]
    if TURNED:
        n, m = i[None, :], i[:, None]
    if NORMAL:
        found = gaussian_2d(n, m, lead, word, stream, tl.load(seed), tl.float32)
    else:
        found = uniform(n, m, lead, word, stream, tl.load(seed))
    tl.store(out + lead * SIDE * SIDE + n * SIDE + m, found)


def tiles(kernel: Any = drawn, normal: bool = True, seed: int = 2**40 + 7, turned: bool = False) -> Tensor:
    """[streams, leads, words, queries, keys]"""
    device = "cpu" if interpreting() else "cuda"
    found = torch.zeros(2, WORDS, LEADS, SIDE, SIDE, device=device)
    for stream in range(2):
        for word in range(WORDS):
            key = torch.tensor([seed], device=device)
            kernel[(LEADS,)](found[stream, word], key, word, stream, normal, turned, SIDE)
    return found.transpose(1, 2).cpu().double()


@pytest.fixture(scope="module")
def normal() -> Tensor:
    return tiles()


def test_moments(normal: Tensor) -> None:
    """Of about four million numbers: within five standard errors."""
    error = 5 / sqrt(normal.numel())
    assert abs(normal.mean()) < error
    assert abs(normal.square().mean() - 1) < sqrt(2) * error
    assert abs(normal.pow(3).mean()) < sqrt(15) * error
    assert abs(normal.pow(4).mean() - 3) < sqrt(96) * error
    assert abs(normal.pow(6).mean() - 15) < sqrt(10170) * error


def test_moments_of_each_word(normal: Tensor) -> None:
    by_word = normal.transpose(0, 2).flatten(1)
    error = 5 / sqrt(by_word.shape[1])
    assert (by_word.mean(1).abs() < error).all()
    assert ((by_word.square().mean(1) - 1).abs() < sqrt(2) * error).all()


def test_tails(normal: Tensor) -> None:
    """Beyond 1 to 5 deviations there are as many numbers as there should be, and some are beyond 4.7."""
    for far in (1, 2, 3, 4, 5):
        wanted = normal.numel() * erfc(far / sqrt(2))
        assert abs((normal.abs() > far).sum() - wanted) < 5 * sqrt(wanted) + 1
    assert 4.7 < normal.abs().max() < 7


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("dim", range(5), ids=["stream", "lead", "word", "query", "key"])
@pytest.mark.parametrize("apart", [1, 2, 3, 8])
def test_neighbours(normal: Tensor, dim: int, apart: int, power: int) -> None:
    """Numbers next to each other along each index, and their squares, are uncorrelated."""
    if apart >= normal.shape[dim]:
        return
    x = normal.pow(power)
    x = (x - x.mean()) / x.std()
    length = x.shape[dim] - apart
    product = x.narrow(dim, 0, length) * x.narrow(dim, apart, length)
    assert abs(product.mean()) < 5 / sqrt(product.numel())


def test_sums_of_the_words(normal: Tensor) -> None:
    """The four numbers of a call of the generator are jointly Gaussian: sums with any signs have variance 4."""
    for signs in torch.cartesian_prod(*[torch.tensor([1.0, -1.0], dtype=torch.float64)] * 4):
        total = torch.einsum("slwnm, w -> slnm", normal, signs) / 2
        assert abs(total.pow(4).mean() - 3) < 5 * sqrt(96 / total.numel())


def test_uniform() -> None:
    found = tiles(normal=False)
    assert 0 <= found.min() < 1e-5
    assert 1 - 1e-5 < found.max() < 1
    counts = torch.histc(found, 64, 0, 1)
    wanted = found.numel() / 64
    assert ((counts - wanted) ** 2 / wanted).sum() < 63 + 5 * sqrt(2 * 63)


@pytest.mark.parametrize("normal", [True, False])
def test_programs_of_keys_draw_the_same(normal: bool) -> None:
    assert torch.equal(tiles(normal=normal), tiles(normal=normal, turned=True))


def test_seeds_differ() -> None:
    one, other = (tiles(seed=seed)[0, 0] for seed in (5, 2**33 + 5))
    assert abs((one * other).mean()) < 5 / sqrt(one.numel())


@pytest.mark.parametrize("name", ["gfish", "fish"])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 8, 12])
def test_tiles_of_a_leg_draw_different_numbers(name: str, size: int) -> None:
    """Each tile has its own place in the four words of a call of the generator, the same in each kernel."""
    leg = {"gfish": "k", "fish": "h"}[name]
    legs = {"f": 24, "d": 2} | ({"h": 2, "k": size} if leg == "k" else {"h": size})
    source = emit_source(ta.load(name, legs=legs), backend="triton")
    texts = re.findall(r"m\[[^]]*\],\s+m_end,\s+([^,]*), ([^,]*), 0,\s+seed_key", source)
    tiles = int(re.findall(rf'heads={{[^}}]*"{leg}": (\d+)', source)[0])
    names, found = dict(re.findall(r"(lead\w*) = (.*)", source)), list[tuple[tuple[int, ...], ...]]()
    for lead, word in dict.fromkeys(texts):
        places = list[tuple[int, ...]]()
        for batch, at, tile in product(range(2), range(size // tiles), range(tiles)):
            given = {"batch": batch, f"{leg}_at": at, f"{leg}_programs": size // tiles, leg: tile}
            given |= {f"{leg}_four": tile // WORDS, f"{leg}_word": tile % WORDS}
            places.append(tuple(eval(text, given.copy()) for text in (names.get(lead, lead), word)))  # noqa: S307
        assert len({*places}) == 2 * size
        assert all(0 <= word < WORDS for _, word in places)
        found.append(tuple(places))
    assert found
    assert len({*found}) == 1


@pytest.mark.parametrize("k", [3, 4])
@pytest.mark.parametrize("most", [1, 40])
def test_gradients_of_what_is_drawn(k: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels with unrolled loops and others draw the same."""
    monkeypatch.setattr(region, "MOST_NUMBERS", most)
    monkeypatch.setattr(demand, "MOST_TILES", 4 if most == 1 else 20)
    module = ta.compile(ta.load("gfish", legs={"f": 4, "g": 2, "h": 2, "k": k, "d": 2}), "triton", dtype=F64).train()
    with torch.no_grad():
        module.sigma.fill_(0.5)
    names, weights = zip(*module.named_parameters(), strict=True)

    def seeded(x: Tensor, *values: Tensor) -> Tensor:
        torch.manual_seed(3)
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    given = [draw(1, 3, 4).requires_grad_(), *(0.5 * draw(*w.shape, seed=i) for i, w in enumerate(weights))]
    leaves = [value.detach().requires_grad_() for value in given]
    assert torch.autograd.gradcheck(seeded, leaves, fast_mode=True)
