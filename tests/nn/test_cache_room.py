"""Caches whose tensors are made before the first call, and what can go back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.runtime.cpp import reason_against_cpp
from tests.designs.cases import CASES
from tests.nn.test_cache import N, chunk_of, close, compiled, decoded, drawn, made
from tests.refusals import refusal


@pytest.mark.parametrize("name", ["mhsa", "mla", "band", "linear", "fmm_fast_weight1", "thsa_elu"])
def test_tensors_stay_where_they_are(name: str) -> None:
    module = made(name)
    cache, x = module.new_cache(batch=2, max_length=N), chunk_of(module)
    held = {one: tensor.data_ptr() for one, tensor in cache._held.items()}
    allocated = cache.allocated
    assert {*held} == {*cache}
    assert cache.length == 0
    with torch.no_grad():
        wanted = module(x)
    for _ in range(2):
        close(decoded(module, x, [4, 1, 4], cache), wanted)
        assert held == {one: tensor.data_ptr() for one, tensor in cache._held.items()}
        assert cache.allocated == allocated
        cache.reset()
        assert cache.length == 0
    again = module.new_cache()
    again.load_state_dict(cache.state_dict())
    close(decoded(module, x, [1, 8], again), wanted)


@pytest.mark.parametrize("name", ["band", "fmm_fast_weight1", "linear"])
def test_gradients_through_a_chunk_behind_tensors_that_stay(name: str) -> None:
    module = made(name)
    x, found = chunk_of(module), []
    for cache in (module.new_cache(), module.new_cache(batch=(2,))):
        last = x[:, 6:].clone().requires_grad_()
        module(x[:, :6], cache=cache)
        module(last, cache=cache).square().sum().backward()
        found.append(last.grad)
    close(*found)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mhsa", "gqa", "linear", "fast_weight1", "alibi"])
@pytest.mark.parametrize("room", [{}, {"batch": 2, "max_length": N}])
def test_steps_like_the_one_before(name: str, room: dict[str, int]) -> None:
    """They skip what was checked; whatever changes the cache between them counts."""
    module = made(name)
    x, cache = chunk_of(module), module.new_cache(**room)
    with torch.no_grad():
        wanted = module(x)
        steps = [module(x[:, i : i + 1], cache=cache) for i in range(3)]
        if cache.croppable:
            cache.crop(1)
            steps[1:] = [module(x[:, i : i + 1], cache=cache) for i in (1, 2)]
        cache.reorder(torch.tensor([1, 0]))
        steps += [module(x[[1, 0], i : i + 1], cache=cache)[[1, 0]] for i in (3, 4)]
        cache.select(torch.tensor([0]))
        with pytest.raises(ta.InputError, match=r"the cache has batch dimensions \[1\], the chunk has \[2\]\.$"):
            module(x[:, 5:6], cache=cache)
        cache.repeat_interleave(2)
        steps += [module(x[[1, 1], i : i + 1], cache=cache)[:1].expand(2, -1, -1) for i in (5, 6)]
        close(torch.cat(steps[:5], 1), wanted[:, :5])
        close(torch.cat(steps[5:], 1), wanted[[1, 1], 5:7])
        if cache.croppable:
            module.float()(x[:, 7:8].float(), cache=cache.to(torch.float32))
            with (
                torch.autocast("cpu", torch.bfloat16),
                pytest.raises(ta.InputError, match=r"use autocast in both calls"),
            ):
                module(x[:, 8:9].float(), cache=cache)


BACKENDS = ["torch", pytest.param("cpp", marks=pytest.mark.skipif(bool(reason_against_cpp()), reason="no compiler"))]
OVERWRITTEN = ["linear", "fast_weight1", "gated_deltanet", "mamba2"]
STATEFUL = [*OVERWRITTEN, "retnet", "fmm_fast_weight1"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OVERWRITTEN)
def test_a_step_overwrites_states_that_nobody_holds(name: str, backend: str) -> None:
    module = made(name, backend)
    x, cache = chunk_of(module), module.new_cache()
    with torch.no_grad():
        steps = [module(x[:, i : i + 1], cache=cache) for i in range(4)]
        states = {one for stage in module._decoder(False)._one for one in stage.overwrites}
        places = {one: cache._held[one].data_ptr() for one in states}
        steps += [module(x[:, i : i + 1], cache=cache) for i in range(4, N)]
        assert states
        assert places == {one: cache._held[one].data_ptr() for one in states}
        close(torch.cat(steps, 1), module(x))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("room", [{}, {"batch": 2, "max_length": N}])
def test_a_step_changes_nothing_that_others_hold(name: str, backend: str, room: dict[str, int]) -> None:
    """Values that a cache has shown, views of them, copies, saved states, and outputs; each between two steps."""
    module = made(name, backend)
    x, cache, held = chunk_of(module), module.new_cache(**room), list[tuple[torch.Tensor, torch.Tensor]]()
    with torch.no_grad():
        steps = [module(x[:, :2], cache=cache)]
        for i in range(2, N):
            steps.append(module(x[:, i : i + 1], cache=cache))
            other, states = copy.deepcopy(cache), module._decoder(False).states if not room and i % 3 else ()
            shown = [one for state in states for one in (cache[state], other[state], cache[state][:1])]
            for value in (*shown, *cache.state_dict()["kept"].values(), steps[-1]):
                held.append((value, value.clone()))
            if i == 5:
                cache, other = other, cache  # the copy goes on
        assert all(torch.equal(value, before) for value, before in held)
        close(torch.cat(steps, 1), module(x))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("room", [{}, {"batch": 2}])
def test_a_step_overwrites_nothing_that_a_backward_reads(name: str, backend: str, room: dict[str, int]) -> None:
    module = made(name, backend)
    x, cache, weights = chunk_of(module), module.new_cache(**room), [*module.parameters()]

    def gradients(y: torch.Tensor) -> list[torch.Tensor]:
        return [*torch.autograd.grad(y.square().sum(), weights, retain_graph=True, materialize_grads=True)]

    with torch.no_grad():
        [module(x[:, i : i + 1], cache=cache) for i in range(2)]
    chunks = [module(x[:, 2:3], cache=cache), module(x[:, 3:5], cache=cache), module(x[:, 5:6], cache=cache)]
    before = [gradients(chunk) for chunk in chunks]
    with torch.no_grad():
        steps = [module(x[:, i : i + 1], cache=cache) for i in range(6, N)]
        close(torch.cat([*chunks, *steps], 1), module(x)[:, 2:])
    for chunk, wanted in zip(chunks, before, strict=True):
        assert all(map(torch.equal, gradients(chunk), wanted))


def test_states_of_inference_mode_and_of_other_batches() -> None:
    module = made("linear")
    x, cache = chunk_of(module), module.new_cache()
    with torch.inference_mode():
        steps = [module(x[:, i : i + 1], cache=cache) for i in range(4)]
    with torch.no_grad():
        steps += [module(x[:, i : i + 1], cache=cache) for i in range(4, 6)]
        other = copy.copy(module.new_cache())
        other.load_state_dict(cache.state_dict())
        cache.reorder(torch.tensor([0, 1]))
        cache.repeat_interleave(1)
        steps += [module(x[:, i : i + 1], cache=cache) for i in range(6, 8)]
        again = [module(x[:, i : i + 1], cache=other) for i in range(6, 8)]
    with torch.inference_mode():
        steps.append(module(x[:, 8:9], cache=cache))
    with torch.no_grad():
        close(torch.cat(steps, 1), module(x)[:, : len(steps)])
        close(torch.cat(again, 1), module(x)[:, 6:8])


def test_a_step_that_fails_leaves_no_wrong_states(monkeypatch: pytest.MonkeyPatch) -> None:
    module = made("linear")
    x, cache = chunk_of(module), module.new_cache()
    with torch.no_grad():
        [module(x[:, i : i + 1], cache=cache) for i in range(3)]
        saved = cache.state_dict()
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "unsqueeze", lambda *_: torch.zeros(2) @ torch.zeros(3))
            with pytest.raises(RuntimeError, match=r"^inconsistent tensor size"):
                module(x[:, 3:4], cache=cache)
        with pytest.raises(ta.InputError, match=r"^linear: a step has failed while it overwrote the states of this"):
            module(x[:, 3:4], cache=cache)
        cache.load_state_dict(saved)
        close(torch.cat([module(x[:, i : i + 1], cache=cache) for i in range(3, 6)], 1), module(x)[:, 3:6])


def test_a_full_cache_of_states() -> None:
    module = made("linear")
    x, cache = chunk_of(module), module.new_cache(max_length=3)
    with torch.no_grad():
        for i in range(3):
            module(x[:, i : i + 1], cache=cache)
        with pytest.raises(ta.InputError, match=r"the cache is full: it has room for 3 positions, not 4\.$"):
            module(x[:, 3:4], cache=cache)
    assert cache.length == 3


def test_dtype_and_device_are_those_of_the_weights() -> None:
    module = compiled("mhsa", "torch", causal=True).to(torch.bfloat16).eval()
    cache = module.new_cache(batch=(3, 2), max_length=5)
    assert cache._held["K"].dtype == torch.bfloat16
    assert cache["K"].shape == (3, 2, 0, *module.Wk.shape[1:])
    linear = compiled("linear", "torch", causal=True).eval().new_cache(batch=3, dtype=torch.float16)
    assert {tensor.dtype for tensor in linear._held.values()} == {torch.float32}  # states


def test_a_memory_has_room_of_its_own() -> None:
    module = drawn(compiled("cross", "torch"), 0, CASES["cross"].positive).eval()
    x, memory = chunk_of(module, 4), chunk_of(module, 7)
    cache = module.new_cache(batch=2, max_length=7)
    with torch.no_grad():
        first = module(x[:, :1], memory, cache=cache)
        close(torch.cat([first, module(x[:, 1:], cache=cache)], 1), module(x, memory))


def test_a_chunk_that_does_not_fit_and_arguments_that_are_none() -> None:
    module = made("mhsa")
    x = chunk_of(module)
    mistakes: list[tuple[Any, str]] = [
        (lambda: module(x, cache=module.new_cache(3)), "the cache has batch dimensions [3], the chunk has [2]."),
        (
            lambda: module(x, cache=module.new_cache(2, dtype=torch.float32)),
            "the cache holds torch.float32 on cpu, the chunk is torch.float64 on cpu.",
        ),
        (
            lambda: module(x, cache=module.new_cache(2, device="meta")),
            "the cache holds torch.float64 on meta, the chunk is torch.float64 on cpu.",
        ),
        (
            lambda: module.new_cache(dtype=torch.float32),
            "'dtype' and 'device' apply to tensors allocated immediately; give 'batch' too.",
        ),
        (lambda: module.new_cache(-1), "'batch' is -1; give a number of sequences or a shape."),
        (
            lambda: module.new_cache(2, dtype=torch.int64),
            "dtype is torch.int64; give one of torch.float32, torch.float64, torch.bfloat16, torch.float16.",
        ),
    ]
    for call, message in mistakes:
        assert refusal(call) == f"mhsa: {message}"


def test_what_can_go_back() -> None:
    assert {name: made(name).new_cache().croppable for name in ("mhsa", "mla", "band", "linear")} == {
        "mhsa": True,
        "mla": True,
        "band": False,
        "linear": False,
    }


@pytest.mark.parametrize("name", ["fmm_fast_weight1", "mhsa", "linear"])
@pytest.mark.parametrize("batch", [None, 2])
def test_a_call_that_fails_in_a_part_leaves_the_cache_as_it_was(
    name: str, batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = made(name)
    x, cache = chunk_of(module), module.new_cache(batch=batch)
    decoded(module, x, [3], cache)
    before = cache.state_dict()["kept"]
    last, decoder = module.plan.graph.output, module._decoder(False)
    run = decoder._run

    def fails(layer: Any, held: Any, planned: Any, chunk: Any) -> Any:
        if last in planned.values:
            raise RuntimeError("out of memory")
        return run(layer, held, planned, chunk)

    with monkeypatch.context() as patch:
        patch.setattr(decoder, "_run", fails)
        with pytest.raises(RuntimeError, match=r"^out of memory$"), torch.no_grad():
            module(x[:, 3:5], cache=cache)
    after = cache.state_dict()["kept"]
    assert cache.length == 3
    assert all(torch.equal(before[one], after[one]) for one in before)
    with torch.no_grad():
        close(decoded(module, x, [2, 4], cache), module(x)[:, 3:])


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    module = made("mhsa")
    x, cache = chunk_of(module), module.new_cache()
    decoded(module, x, [4], cache)
    state = cache.state_dict()
    short = module.new_cache(max_length=2)
    with pytest.raises(ta.InputError, match=r"^mhsa: the state dict has 4 positions; the cache has room for 2\.$"):
        short.load_state_dict(state)
    wrong = state | {"kept": state["kept"] | {"K": state["kept"]["K"][..., :1]}}
    with pytest.raises(ta.InputError, match=r"^mhsa: 'K' is \[m h d\] = .* in the state dict and .* here\.$"):
        cache.load_state_dict(wrong)
    assert cache.length == 4
    for bad in (0, -1, 2.5):
        with pytest.raises(ta.InputError, match=r"^mhsa: 'max_length' is .*; give a positive number of positions.$"):
            module.new_cache(max_length=bad)  # type: ignore[arg-type]
        with pytest.raises(ta.InputError, match=r"^mhsa: keep_last takes a whole number, 1 or more, not"):
            cache.keep_last(bad)  # type: ignore[arg-type]
    with torch.no_grad():
        assert module(x[:, :0], cache=cache).shape == (2, 0, x.shape[-1])
        close(decoded(module, x, [5], cache), module(x)[:, 4:])


def test_a_state_that_is_longer_than_the_tensors_that_were_made() -> None:
    module = made("mhsa")
    cache = module.new_cache()
    x = torch.randn(2, 101, 12, dtype=torch.float64)
    decoded(module, x, [100], cache)
    loaded = module.new_cache(batch=2)
    loaded.load_state_dict(cache.state_dict())
    close(decoded(module, x, [1], loaded), module(x)[:, 100:])


def test_dropping_keeps_the_tensors_that_were_made() -> None:
    module = made("mhsa")
    cache = module.new_cache(batch=2, max_length=64)
    decoded(module, chunk_of(module), [6], cache)
    where = {name: cache[name].data_ptr() for name in cache}
    last = {name: cache[name][:, -2:].clone() for name in cache}
    cache.keep_last(2)
    assert where == {name: cache[name].data_ptr() for name in cache}
    assert all(torch.equal(last[name], cache[name]) for name in cache)


def test_learned_positions_of_keys_cannot_be_dropped() -> None:
    data: dict[str, Any] = {"tensornet": 1, "name": "placed", "extends": "mhsa", "causal": True}
    data |= {"legs": {"n": "query 32", "m": "key 32"}, "weights": {"P": "m f"}}
    data["diagram"] = {"K": "memory[m f] Wk[f h d] + P[m f] Wk[f h d] -> m h d"}
    module = ta.compile(ta.load(data, legs={"f": 8, "h": 2}), "torch", dtype=torch.float64).eval()
    for droppable in (False, True):
        cache = module.new_cache(droppable=droppable)
        decoded(module, chunk_of(module), [6], cache)
        with pytest.raises(ta.InputError, match=r"^placed: the oldest positions cannot be dropped: 'K' depends on"):
            cache.keep_last(3)


@pytest.mark.parametrize("cuts", [[4], [1, 1]])
def test_a_call_with_autocast_and_one_without(cuts: list[int]) -> None:
    module = made("mhsa").float()
    x, cache = chunk_of(module).float(), module.new_cache()
    with torch.autocast("cpu", torch.bfloat16):
        decoded(module, x, cuts, cache)
    assert refusal(module, x[:, 4:5], cache=cache) == (
        "mhsa: the cache holds 'K' in torch.bfloat16, and this call computes it in torch.float32: use autocast in both "
        "calls or in neither."
    )
    assert cache.length == sum(cuts)
