"""Tensors, dtypes, devices and caches that a layer cannot use: messages that name the design and what to give."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.designs.cases import CASES, compiled
from tests.refusals import refusal

F64 = torch.float64


def x(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=F64)


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_tensors(backend: str) -> None:
    module, value = compiled("mhsa", backend), x(2, 5, 12)
    nested = torch.nested.nested_tensor([value[0], value[0, :2]], layout=torch.jagged)
    other = "but the weights are torch.float64: convert one of them, or use torch.autocast."
    cases = {
        "input 'x' is a nested tensor; give padding and a key_mask, or one row and cu_seqlens.": (nested,),
        "input 'x' is a sparse tensor, torch.sparse_coo; give a dense one.": (value.to_sparse(),),
        f"input 'x' is torch.float32, {other}": (value.float(),),
        f"input 'memory' is torch.float16, {other}": (value, value.half()),
        "'x' is on meta, but the weights are on cpu: move one.": (value.to("meta"),),
    }
    assert [refusal(module, *inputs) for inputs in cases.values()] == [f"mhsa: {text}" for text in cases]
    keep = torch.ones(5, 5, dtype=torch.bool)
    away = "is on meta, but the weights are on cpu: move one."
    assert refusal(module, value, mask=keep.to("meta")) == f"mhsa: 'mask' {away}"
    assert refusal(module, value, key_mask=keep[0].to("meta")) == f"mhsa: 'key_mask' {away}"
    row, offsets = x(1, 5, 12).float(), torch.tensor([0, 2, 5], dtype=torch.int32)
    assert refusal(module, row, cu_seqlens=offsets) == f"mhsa: input 'x' is torch.float32, {other}"
    assert refusal(module, value, noise=value) == "mhsa: noise is a Tensor; give a dict of tensors by name."
    assert refusal(module.capture, value.float(), "A") == f"mhsa: input 'x' is torch.float32, {other}"


def test_a_call_is_checked_again_after_the_layer_has_changed() -> None:
    module, value = compiled("mhsa", "torch"), x(2, 5, 12)
    module(value)
    assert refusal(module.float(), value).startswith("mhsa: input 'x' is torch.float64, but the weights are torch.f")
    with torch.autocast("cpu", torch.bfloat16):
        assert module(value.float()).shape == module(value.bfloat16()).shape == value.shape
    assert refusal(module, value.bfloat16()).startswith("mhsa: input 'x' is torch.bfloat16, but")


def test_inputs_of_a_design_without_weights() -> None:
    design = {
        "tensornet": 1,
        "name": "bare",
        "legs": {"n": "query", "m": "key", "d": 3},
        "inputs": {"q": "n d", "k": "m d"},
        "diagram": {"A": {"softmax": "m", "of": "q[n d] k[m d] -> n m"}, "y": "A[n m] k[m d] -> n d"},
        "output": "y",
    }
    layer = ta.compile(design, "torch")
    assert layer(x(4, 3), x(5, 3)).dtype == F64
    assert refusal(layer, x(4, 3), x(5, 3).float()) == (
        "bare: input 'k' is torch.float32, but 'q' is torch.float64: convert one of them, or use torch.autocast."
    )


def test_compile() -> None:
    design = ta.load("mhsa", legs={"f": 16})
    assert ta.compile(design, "torch", dtype="float64", device="cpu").Wq.dtype == F64
    dtypes = "give one of torch.float32, torch.float64, torch.bfloat16, torch.float16."
    for dtype in (torch.int32, torch.float8_e4m3fn, "float99"):
        assert refusal(ta.compile, design, dtype=dtype) == f"mhsa: dtype is {dtype!r}; {dtypes}"
    flags = "give True, False, or None for the design's own."
    assert refusal(ta.compile, design, causal="no") == f"mhsa: causal is 'no'; {flags}"
    assert refusal(ta.compile, design, device="gpu").startswith("mhsa: there is no device 'gpu' here: Expected one of")


def test_capture() -> None:
    module, value = compiled("mhsa", "torch"), x(2, 5, 12)
    wanted = 'mhsa: the last argument of capture is the name of a step, not {}: e.g. capture(x, "A").'
    assert refusal(module.capture, "A", value) == wanted.format("a Tensor")
    assert refusal(module.capture) == wanted.format("nothing")


@torch.no_grad()
def test_caches() -> None:
    module, value = compiled("mhsa", "torch", True), x(2, 5, 12)

    def filled() -> Any:
        module(value, cache=(cache := module.new_cache()))
        return cache

    cases = {
        "'cache' is a tuple; give a cache from new_cache() of this layer.": lambda: module(value, cache=(value, value)),
        "'cache' is a str; give a cache from new_cache() of this layer.": lambda: module(value, cache="a"),
        "reorder takes a tensor of indices, int64 [sequences], not a list.": lambda: filled().reorder([1, 0]),
        "reorder takes a tensor of indices, int64 [sequences], not torch.float32 [2].": lambda: filled().reorder(
            torch.ones(2)
        ),
        "reorder: an index is not one of the 2 sequences of the cache: [5].": lambda: filled().reorder(
            torch.tensor([5])
        ),
        "reorder takes a tensor of indices, int64 [sequences], not torch.int64 [1] on meta.": lambda: filled().reorder(
            torch.tensor([0], device="meta")
        ),
        "the cache cannot be moved: torch.int64 has no floating-point numbers; give a device, such as 'cpu' or 'cuda', "
        "or a dtype, such as torch.float32.": lambda: filled().to(torch.int64),
        "crop takes a whole number, not 2.0.": lambda: filled().crop(2.0),
        "repeat_interleave takes a whole number, 0 or more, not '2'.": lambda: filled().repeat_interleave("2"),
        "repeat_interleave takes a whole number, 0 or more, not -1.": lambda: filled().repeat_interleave(-1),
        "the state dict has no 'length': give the state_dict() of a cache.": lambda: filled().load_state_dict(None),
    }
    assert [refusal(call) for call in cases.values()] == [f"mhsa: {text}" for text in cases]
    for layer in (ta.compile(ta.load("mhsa", legs={"f": 12, "h": 6}), causal=True), compiled("mqa", "torch", True)):
        whose = "another 'mhsa'" if layer.design.name == "mhsa" else "'mqa'"
        for cache in (layer.new_cache(), layer.new_cache(2)):
            sentence = f"mhsa: this cache belongs to {whose}; create one with new_cache() of this layer."
            assert refusal(module, value, cache=cache) == sentence
    assert refusal(filled().to, "gpu").startswith("mhsa: the cache cannot be moved: Expected one of cpu, cuda,")
    filled().keep_last(True)
    sentence = "decoding_step takes a compiled design, as ta.compile returns it, not a Design."
    assert refusal(ta.decoding_step, module.design) == sentence
    row, offsets = x(1, 5, 12), torch.tensor([0, 5], dtype=torch.int32)
    assert refusal(module, row, cu_seqlens=offsets, cache="a").startswith("mhsa: 'cache' is a str;")


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"batch": 2}, {"batch": 2, "max_length": 9}], ids=str)
@pytest.mark.parametrize("name", ["mhsa", "gla", "fox", "band"])
def test_damaged_state_dicts_are_refused_and_change_nothing(name: str, options: dict[str, Any]) -> None:
    module, chunk = compiled(name, "torch", True), x(2, 5, 12)
    module(chunk, cache=(cache := module.new_cache(**options)))
    state = cache.state_dict()
    kept, first = state["kept"], next(iter(state["kept"]))
    tensor, wrong = kept[first], [None, "x", -1, 2.5, [1]]
    tensors = [
        None,
        tensor.numpy(),
        tensor.long(),
        tensor.to("meta"),
        torch.tensor(1.0),
        tensor[..., :-1],
        tensor[0],
        tensor[:1],
    ]
    damaged = [{key: bad} for bad in wrong for key in ("length", "forgotten", "dtype", "kept")]
    damaged += [{"kept": kept | {first: bad}} for bad in tensors if len(kept) > 1]
    damaged += [{"kept": {}}, {"kept": kept | {3: tensor}}, {"dtype": torch.int64}]
    damaged += [{"shown": bad} for bad in (3, torch.ones(2, 5), torch.ones(3, 5) > 0, torch.ones(2, 9) > 0)]
    for damage in damaged:
        assert refusal(cache.load_state_dict, state | damage).startswith(f"{name}: ")
        assert cache.length == 5
        assert all(torch.equal(cache[step], kept[step]) for step in kept)
    cache.load_state_dict(state)
    assert module(chunk[:, :1], cache=cache).shape == (2, 1, 12)


@torch.no_grad()
def test_a_cache_that_stores_nothing_is_restored() -> None:
    """Packed documents of several lengths leave a mask in it."""
    module = compiled("mlp", "torch")
    module(x(1, 8, 6), cache=(cache := module.new_cache()), cu_seqlens=torch.tensor([0, 3, 8]))
    (loaded := module.new_cache()).load_state_dict(cache.state_dict())
    assert loaded.length == cache.length


@torch.no_grad()
@pytest.mark.parametrize("length", [5, 100])
def test_a_cache_with_tensors_of_its_own_keeps_their_dtype(length: int) -> None:
    module = compiled("mhsa", "torch", True)
    module(x(2, length, 12), cache=(cache := module.new_cache()))
    loaded = module.new_cache(batch=2)
    loaded.load_state_dict(cache.to(torch.float32).state_dict())
    assert {loaded[step].dtype for step in cache.state_dict()["kept"]} == {torch.float64}


def test_a_float_mask_of_zeros_and_ones_is_warned_of_once() -> None:
    value, keep = x(2, 5, 12), torch.ones(5, 5, dtype=F64).tril()
    for backend in ("reference", "torch"):
        module = compiled("mhsa", backend)
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("always")
            for _ in range(2):
                module(value, mask=keep)
        assert [(str(one.message), one.filename) for one in record] == [
            (
                "mhsa: 'mask' is a float mask that holds only 0 and 1, and is added to the scores: if 0 means hidden, "
                "give mask.bool().",
                __file__,
            )
        ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mask in (keep.bool(), torch.zeros(5, 5, dtype=F64), keep.log(), keep / 2, keep[:0, :0]):
            size = len(mask)
            compiled("mhsa", "torch")(value[:, :size], mask=mask)


@pytest.mark.parametrize("name", ["mhsa", "band", "fmm_fast_weight1", "linear"])
@pytest.mark.parametrize("batch", [None, 2])
def test_a_cache_of_inference_mode_is_used_outside_of_it(name: str, batch: int | None) -> None:
    module = compiled(name, "torch", True)
    value = torch.randn(2, 8, CASES[name].legs["f"], dtype=F64)
    whole = module(value).detach()
    for mode in (torch.no_grad, torch.enable_grad):
        cache = module.new_cache(batch)
        with torch.inference_mode():
            for chunk in value.split((4, 1, 1, 2), 1)[:3]:  # the last step repeats the one before
                module(chunk, cache=cache)
        with mode():
            parts = [module(chunk, cache=cache) for chunk in value[:, 6:].split(1, 1)]
        torch.testing.assert_close(torch.cat(parts, 1), whole[:, 6:])
        with torch.inference_mode():
            cache.reset()
            module(value[:, :6], cache=cache)
        cache.reset()
        torch.testing.assert_close(module(value, cache=cache), whole)
