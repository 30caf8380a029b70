"""Decoding with a cache: chunk by chunk is the same as at once, for every causal design, and what is kept."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.graph import build
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.plan.decoding import decoding_of, decoding_state
from tests.designs.cases import ATTENTION, CASES, compiled, drawn
from tests.random_design import random_design
from tests.refusals import refusal

N = 9
REFUSED = {
    "fmm_lra_release": "no cache can be kept: 'far1.of' depends on the length 'm'.",
    "sigmoid_attention": "no cache can be kept: 'A.of.of' depends on the length 'm'.",
    "gau": "no cache can be kept: 'R.of' depends on the length 'm'.",
}
AGAINST_MEMORY = ("cross", "perceiver")
DECODED = [name for name in CASES if name not in REFUSED and name not in AGAINST_MEMORY]


def made(name: str, backend: str = "torch") -> CompiledDesign:
    case = CASES[name]
    module = compiled(name, backend, causal=True)
    return drawn(module, 0, case.positive).eval()


def chunk_of(module: CompiledDesign, length: int = N, batch: tuple[int, ...] = (2,)) -> torch.Tensor:
    _, shape, _ = module._signature.inputs[0]
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*batch, *(size or length for _, size in shape), generator=generator, dtype=torch.float64)


def axis_of(module: CompiledDesign, name: str) -> int:
    legs = module.plan.graph.legs_of(name)
    return legs.index(str(module.plan.graph.query)) - len(legs)


def decoded(
    module: CompiledDesign, x: torch.Tensor, cuts: Sequence[int], cache: Any = None, **options: Any
) -> torch.Tensor:
    cache = module.new_cache() if cache is None else cache
    axis, found, at = axis_of(module, module._signature.inputs[0][0]), [], cache.length
    key_mask = options.pop("key_mask", None)
    with torch.no_grad():
        for length in cuts:
            if key_mask is not None:
                options["key_mask"] = key_mask[:, : at + length]
            found.append(module(x.narrow(axis, at, length), cache=cache, **options))
            at += length
    return torch.cat(found, axis_of(module, module.plan.graph.output))


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10 * max(1.0, float(other.detach().abs().max())))


@pytest.mark.parametrize("name", DECODED)
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_chunks_are_the_same_as_at_once(name: str, backend: str) -> None:
    module = made(name, backend)
    x, draw = chunk_of(module), random.Random(name)
    with torch.no_grad():
        wanted = module(x)
    first = draw.randint(1, N - 2)
    for cuts in ([1] * N, [N], [first, 1, N - first - 1]):
        close(decoded(module, x, cuts), wanted)


@pytest.mark.parametrize(
    "name", ["mhsa_rope", "band", "thsa", "transformer_xl", "fmm_fast_weight1", "mla", "lfish", "mgk"]
)
def test_chunks_of_some(name: str) -> None:
    test_chunks_are_the_same_as_at_once(name, "torch")


@pytest.mark.parametrize("seed", [1833, 4038, 4119, 4312, 4757, 6262, 6302, 8287, 8751, 9128, 9961])
def test_chunks_of_random_designs(seed: int) -> None:
    """Causal ones among these: with names that a cache could take for its own, noise, weights on positions."""
    data = random_design(random.Random(seed))
    module = ta.compile(data, "torch", True, dtype=torch.float64).eval()
    torch.manual_seed(seed)
    module.load_state_dict({name: torch.rand_like(value) * 1.2 - 0.5 for name, value in module.state_dict().items()})
    given, axes = {}, {}
    for name, shape, default in module._signature.inputs:
        if default is None:
            sizes = [6 if size is None else size for _, size in shape]
            generator = torch.Generator().manual_seed(seed)
            given[name] = torch.rand(2, *sizes, generator=generator, dtype=torch.float64)
            axes[name] = next((i - len(shape) for i, (_, size) in enumerate(shape) if size is None), None)
    cache, found, at = module.new_cache(), [], 0
    with torch.no_grad():
        for length in (2, 1, 3):
            cut = {n: x if axes[n] is None else x.narrow(axes[n], at, length) for n, x in given.items()}
            found.append(module(cache=cache, **cut))
            at += length
        close(torch.cat(found, axis_of(module, module.plan.graph.output)), module(**given))


@pytest.mark.parametrize("name", DECODED)
def test_what_is_kept_is_what_the_cost_says(name: str) -> None:
    graph = build(ta.load(name), True)
    assert decoding_of(graph).floats(64) == decoding_state(graph, 64) == ta.cost(name, n=64).decoding_state
    module = made(name)
    cache = module.new_cache()
    decoded(module, chunk_of(module), [4, 5], cache)
    assert cache.nbytes == 8 * 2 * decoding_of(module.plan.graph).floats(N)
    assert cache.nbytes <= cache.allocated


@pytest.mark.parametrize("name", ["mhsa", "gqa", "band", "linear", "differential"])
def test_left_padding_acts_as_without_a_cache(name: str) -> None:
    module = made(name)
    x, keep = chunk_of(module), torch.ones(2, N, dtype=torch.bool)
    keep[0, :3] = False
    with torch.no_grad():
        wanted = module(x, key_mask=keep)
    close(decoded(module, x, [5, 1, 3], key_mask=keep)[1], wanted[1])
    close(decoded(module, x, [5, 1, 3], key_mask=keep)[0, 3:], wanted[0, 3:])


def test_a_memory_is_projected_once() -> None:
    module = drawn(compiled("cross", "torch"), 0, CASES["cross"].positive).eval()
    x, memory = chunk_of(module, 4), chunk_of(module, 7)
    cache = module.new_cache()
    with torch.no_grad():
        wanted = module(x, memory)
        first = module(x[:, :1], memory, cache=cache)
        held = cache["K"].clone()
        close(torch.cat([first, module(x[:, 1:], cache=cache)], 1), wanted)
    assert torch.equal(cache["K"], held)
    with pytest.raises(ta.InputError, match=r"^cross: with a cache, 'memory' is already in the cache: leave it out.$"):
        module(x, memory, cache=cache)


@pytest.mark.parametrize("name", ["band", "linear", "thsa_elu", "lfish", "fmm2", "kernel_fish"])
def test_rings_and_sums_take_as_much_at_every_length(name: str) -> None:
    module = made(name)
    cache = module.new_cache()
    sizes = []
    for _ in range(3):
        decoded(module, chunk_of(module, 60), [20], cache)
        sizes.append(cache.nbytes)
    assert sizes[0] == sizes[1] == sizes[2]
    if name == "band":
        assert cache["K"].shape[1] == 2
        return
    with pytest.raises(ta.InputError, match=r"'[\w.]+' is a state: one value for all positions\.$"):
        cache.crop(1)
    with pytest.raises(
        ta.InputError,
        match=r"a call with a cache accepts no 'mask': '[\w.]+' is a state, one value for all positions\.$",
    ):
        module(chunk_of(module, 1), cache=cache, mask=torch.ones(1, 61, dtype=torch.bool))


def test_what_asks_where_keys_stand_keeps_all_of_them() -> None:
    """Positions of keys in scores: a ring would not know them any more."""
    steps = {"softmax": "m", "scale": "d ** -0.5", "mask": ["window(3, 0)"]}
    steps["of"] = "Q[n h d] K[m h d] + at[m f] Wk[f h d] Q[n h d] -> h n m"
    data = {"tensornet": 1, "name": "placed", "extends": "mhsa", "causal": True, "diagram": {"A": steps}}
    data["constants"] = {"at": {"legs": "m f", "value": "sinusoid"}}
    module = ta.compile(ta.load(data, legs={"f": 8, "h": 2}), "torch", dtype=torch.float64).eval()
    x = chunk_of(module)
    with torch.no_grad():
        close(decoded(module, x, [3, 1, 5]), module(x))


def test_a_map_that_is_also_summed_keeps_its_window() -> None:
    steps = {"softmax": "m", "mask": ["window(3, 0)"], "sink": 0, "of": "Q[n h d] K[m h d] -> h n m"}
    read = {"r": {"sum": "m", "of": "A"}, "o": "A[h n m] V[m h d] - r[h n] A[h n m] V[m h d] -> n h d"}
    data = {"tensornet": 1, "name": "summed", "extends": "mhsa", "causal": True}
    data["diagram"] = {"A": steps, **read, "y": "o[n h d] Wo[h d f] -> n f"}
    module = ta.compile(ta.load(data, legs={"f": 8, "h": 2}), "torch", dtype=torch.float64).eval()
    x, cache = chunk_of(module), module.new_cache()
    with torch.no_grad():
        close(decoded(module, x, [3, 1, 5], cache), module(x))
    assert cache["K"].shape[1] == cache["V"].shape[1] == 4


def test_a_backward_over_two_chunks_where_projections_are_frozen() -> None:
    module = made("mhsa")
    module.Wk.requires_grad_(False)
    module.Wv.requires_grad_(False)
    x = chunk_of(module)
    cache = module.new_cache()
    first, *others = (module(part, cache=cache) for part in x.split(3, 1))
    (first.sum() + sum(y.sum() for y in others)).backward()
    assert module.Wq.grad is not None


def test_a_limit_of_memory_is_for_the_layer() -> None:
    design = ta.load("mhsa", legs={"f": 16, "h": 2})
    module = ta.compile(design, "torch", causal=True, dtype=torch.float64, n=64, memory="1MiB").eval()
    x = chunk_of(module)
    with torch.no_grad():
        close(decoded(module, x, [2, 1, 6]), module(x))


def test_training_that_would_draw_twice_is_refused() -> None:
    data = {
        "tensornet": 1,
        "name": "noisy",
        "extends": "mhsa",
        "causal": True,
        "noise": {"z": {"legs": "h d", "std": 1}},
    }
    data["diagram"] = {"K": "memory[m f] Wk[f h d] + z[h d] -> m h d", "V": "memory[m f] Wv[f h d] + z[h d] -> m h d"}
    module = ta.compile(ta.load(data, legs={"f": 8, "h": 2}), "torch", dtype=torch.float64)
    cache, x = module.new_cache(), chunk_of(module)
    with pytest.raises(
        ta.InputError, match=r"^noisy: training draws 'z' for two parts of a cached call: call \.eval\(\) first\.$"
    ):
        module(x, cache=cache)
    with torch.no_grad():
        close(decoded(module.eval(), x, [4, 5]), module(x))


def test_one_sequence_without_a_batch() -> None:
    module = made("mhsa")
    x = chunk_of(module, batch=())
    cache = module.new_cache()
    with torch.no_grad():
        close(torch.cat([module(part, cache=cache) for part in x.split(4)]), module(x))
    with pytest.raises(ta.InputError, match=r"^mhsa: the cache has no batch dimension.$"):
        cache.reorder(torch.tensor([0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mhsa", "linear", "band"])
def test_one_graph_each_for_inductor(name: str) -> None:
    test_chunks_are_the_same_as_at_once(name, "inductor")


def test_room_for_all_is_made_at_once() -> None:
    module = made("mhsa")
    cache = module.new_cache(max_length=N)
    x = chunk_of(module)
    decoded(module, x, [2], cache)
    allocated = cache.allocated
    decoded(module, x, [7], cache)
    assert cache.allocated == allocated == cache.nbytes
    before = cache.state_dict()
    with pytest.raises(ta.InputError, match=r"^mhsa: the cache is full: it has room for 9 positions, not 10\.$"):
        module(x[:, :1], cache=cache)
    assert all(torch.equal(before["kept"][name], cache.state_dict()["kept"][name]) for name in cache)
    assert cache.length == before["length"]


def test_beams() -> None:
    """Sequences change places, stand there several times, are dropped; a copy is a cache of its own."""
    module = made("mhsa")
    x = chunk_of(module)
    cache = module.new_cache()
    decoded(module, x, [5], cache)
    beams = copy.deepcopy(cache)
    beams.repeat_interleave(2)
    beams.reorder(torch.tensor([3, 0]))
    other = x[[1, 0]]
    with torch.no_grad():
        close(module(other[:, 5:], cache=beams), module(other)[:, 5:])
        close(module(x[:, 5:], cache=cache), module(x)[:, 5:])


def test_back_and_forth() -> None:
    module = made("mhsa")
    x = chunk_of(module)
    cache = module.new_cache()
    decoded(module, x, [7], cache)
    cache.crop(-3)
    assert cache.length == 4
    again = module.new_cache()
    again.load_state_dict(cache.state_dict())
    with torch.no_grad():
        for one in (cache, again):
            close(decoded(module, x, [5], one), module(x)[:, 4:])
    ring = made("band").new_cache()
    decoded(made("band"), x, [7], ring)
    with pytest.raises(
        ta.InputError, match=r"^band: the cache cannot be cropped to 4 positions: it keeps only the last 2 of 'K'\.$"
    ):
        ring.crop(4)


def test_steps_may_be_called_as_the_entries_of_a_state() -> None:
    """Keys called length, values called forgotten."""
    text = """
tensornet: 1
name: own
legs: {n: query, m: key, f: 8, h: head 2, d: 4}
inputs: {x: n f}
weights: {Wq: f h d, Wk: f h d, Wv: f h d, Wo: h d f}
diagram:
  Q: x[n f] Wq[f h d] -> n h d
  length: x[m f] Wk[f h d] -> m h d
  forgotten: x[m f] Wv[f h d] -> m h d
  A: {softmax: m, of: "Q[n h d] length[m h d] -> h n m"}
  y: A[h n m] forgotten[m h d] Wo[h d f] -> n f
output: y
"""
    module, x = ta.compile(text, causal=True).eval(), torch.randn(2, 5, 8)
    cache, again = module.new_cache(), module.new_cache()
    with torch.no_grad():
        module(x[:, :3], cache=cache)
        again.load_state_dict(cache.state_dict())
        assert (again.length, again.forgotten) == (3, 0)
        torch.testing.assert_close(module(x[:, 3:], cache=again), module(x)[:, 3:])


def test_what_cannot_be_decoded_says_why() -> None:
    for name, message in REFUSED.items():
        assert refusal(made(name).new_cache) == f"{name}: {message}"
    hint = "compile it with causal=True"
    assert refusal(compiled("mhsa", "torch").new_cache) == (
        f"mhsa: no cache can be kept: in 'A' a query sees later keys; {hint}."
    )


def test_a_memory_of_a_design_whose_queries_are_keys_too() -> None:
    text = """
tensornet: 1
name: both
legs: {n: query, m: key, f: 4}
inputs: {x: n f, memory: m f}
diagram:
  V: x[m f] memory[m f] -> f
  y: x[n f] V[f] -> n f
output: y
"""
    reason = "its queries and keys have one length, so that a chunk would be as long as the memory"
    assert refusal(ta.compile(text).new_cache) == f"both: no cache can be kept: {reason}."


@pytest.mark.parametrize("mask", ["causal", "window(2, 0)"])
def test_an_input_that_keys_and_values_are_is_kept(mask: str, tmp_path: Path) -> None:
    source = {
        "tensornet": 1,
        "name": "raw",
        "legs": {"n": "query", "m": "key", "f": 4, "g": "f"},
        "inputs": {"x": "n f"},
        "weights": {"W": "f g"},
        "diagram": {
            "A": {"softmax": "m", "mask": mask, "of": "x[n f] x[m f] -> n m"},
            "y": "A[n m] x[m f] W[f g] -> n g",
        },
        "output": "y",
    }
    layer, x = ta.compile(source, dtype=torch.float64), torch.randn(2, 6, 4, dtype=torch.float64)
    with torch.no_grad():
        cache = layer.new_cache()
        found = torch.cat([layer(part, cache=cache) for part in x.split([3, 1, 2], 1)], 1)
    torch.testing.assert_close(found, layer(x))
    assert len(cache) == 1
    ta.draw(source, tmp_path / "raw.svg", causal=True, cache=True)


def test_a_chunk_that_does_not_go_on() -> None:
    module, other = made("mhsa"), made("gqa")
    x = chunk_of(module)
    cache = module.new_cache()
    decoded(module, x, [5], cache)
    mistakes: list[tuple[Any, str]] = [
        (
            lambda: other(x, cache=cache),
            "gqa: this cache belongs to 'mhsa'; create one with new_cache() of this layer.",
        ),
        (lambda: module(x[:1], cache=cache), "mhsa: the cache has batch dimensions [2], the chunk has [1]."),
        (
            lambda: deepcopy(module).float()(x.float(), cache=cache),
            "mhsa: the cache holds torch.float64 on cpu, the chunk is torch.float32 on cpu.",
        ),
        (
            lambda: module(x, x, cache=cache),
            "mhsa: with a cache, 'memory' defaults to 'x', which continues the cache: leave it out.",
        ),
        (
            lambda: module(x, cache=cache, losses=True),
            "mhsa: a call with a cache accepts neither 'noise' nor 'losses'.",
        ),
        (lambda: cache.crop(6), "mhsa: a cache of 5 positions cannot be cropped to 6."),
    ]
    for call, message in mistakes:
        assert refusal(call) == message
    with pytest.raises(ta.InputError, match=r"^mhsa: key_mask"):
        module(x[:, :1], cache=cache, key_mask=torch.ones(2, 5, dtype=torch.bool))
    assert cache.length == 5
    with torch.no_grad():
        close(decoded(module, x, [4], cache), module(x)[:, 5:])


@pytest.mark.parametrize("name", [name for name in DECODED if name in ATTENTION])
def test_rows_that_a_key_mask_hides(name: str) -> None:
    """Padding that is NaN reaches neither cached rows nor states, and no visible position reads it."""
    module = made(name)
    x, key_mask = chunk_of(module), torch.ones(2, N, dtype=torch.bool)
    key_mask[0, :2] = key_mask[0, 4] = key_mask[1, 0] = key_mask[1, 7] = False
    seen = key_mask[..., None]
    with torch.no_grad():
        wanted = module(torch.where(seen, x, 0), key_mask=key_mask)
    for cuts in ([5, 1, 1, 2], [1, 4, 1, 3]):
        found = decoded(module, torch.where(seen, x, torch.nan), cuts, key_mask=key_mask)
        torch.testing.assert_close(torch.where(seen, found, 0), torch.where(seen, wanted, 0), rtol=1e-9, atol=1e-9)


def test_a_memory_that_queries_meet_as_it_is() -> None:
    """Without a projection in between, by name or by position, with an empty chunk; a recurrence over it is refused."""
    data = {
        "tensornet": 1,
        "name": "direct",
        "legs": {"n": "query", "m": "key"},
        "inputs": {"x": "n", "k": "m", "v": "m"},
        "diagram": {"A": {"softmax": "m", "of": "x[n] k[m] -> n m"}, "y": "A[n m] v[m] -> n"},
        "output": "y",
    }
    module = ta.compile(data, "torch", dtype=torch.float64).eval()
    x, k, v = chunk_of(module, 4), torch.rand(2, 6, dtype=torch.float64), torch.rand(2, 6, dtype=torch.float64)
    cache = module.new_cache()
    with torch.no_grad():
        found = [module(x=x[:, :1], k=k, v=v, cache=cache), module(x=x[:, 1:1], cache=cache)]
        close(torch.cat([*found, module(x[:, 1:], cache=cache)], 1), module(x, k, v))
    step = {"scan": "m", "decay": "k", "of": "v"}
    scanned = ta.compile(data | {"diagram": {"s": step, "y": "x[n] s[n] -> n"}}, "torch")
    reason = "'s' depends on the positions of queries, which a memory fixes to those of its last keys"
    assert refusal(scanned.new_cache) == f"direct: no cache can be kept: {reason}."
