"""Rotary embedding: neighbours, scaled frequencies, positions of the call, several axes, with and without a cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import tensornet_attn as ta
from tensornet_attn.graph import build
from tests.ops.compared import F64, agree
from tests.refusals import refusal

LENGTH = 9
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4},
    "dynamic": {"rope_type": "dynamic", "factor": 2, "original_max_position_embeddings": 5},
    "llama3": {
        "rope_type": "llama3",
        "base": 500,
        "factor": 8,
        "low_freq_factor": 1,
        "high_freq_factor": 4,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "base": 100, "factor": 4, "original_max_position_embeddings": 32},
    "yarn_truncated": {
        "rope_type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 32,
        "beta_fast": 16,
        "mscale": 0.7,
        "mscale_all_dim": 1.1,
        "truncate": False,
        "fraction": 0.5,
    },
}
PAIRED: dict[str, dict[str, Any]] = {
    "neighbours": {"interleaved": True},
    "of_blocks": {"interleaved": True, "blocks": 2},
}


def source(**keys: Any) -> dict[str, Any]:
    """Causal attention whose queries and keys turn."""
    return {
        "tensornet": 1,
        "name": "turned",
        "extends": "mhsa",
        "causal": True,
        "legs": {"f": 12, "h": "head 2", "d": 8},
        "inputs": {"memory": None, **({"position_ids": keys.pop("inputs")} if "inputs" in keys else {})},
        "diagram": {
            "Q": {"rope": "n", "along": "d", **of_leg(keys, "n"), "of": "x[n f] Wq[f h d] -> n h d"},
            "K": {"rope": "m", "along": "d", **of_leg(keys, "m"), "of": "x[m f] Wk[f h d] -> m h d"},
            "V": "x[m f] Wv[f h d] -> m h d",
        },
    }


def of_leg(keys: dict[str, Any], leg: str) -> dict[str, Any]:
    return {name: text.replace("SEQ", leg) if isinstance(text, str) else text for name, text in keys.items()}


@pytest.mark.parametrize("name", [*SCALED, *PAIRED])
def test_torch_and_reference_agree(name: str) -> None:
    agree(source(**(SCALED | PAIRED)[name]), torch.randn(2, LENGTH, 12, dtype=F64))


@pytest.mark.parametrize("name", [*SCALED, *PAIRED])
def test_yaml_reads_back(name: str) -> None:
    design = ta.load(source(**(SCALED | PAIRED)[name]))
    graph = build(design)
    assert build(ta.load(design.to_yaml())) == graph


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("length", [4, 40])
def test_numbers_mean_what_they_mean_in_transformers(name: str, length: int, dtype: torch.dtype) -> None:
    """Of entries 1, 0 the cosine and the sine are left."""
    numbers = dict(SCALED[name])
    design = {
        "tensornet": 1,
        "name": "turn",
        "legs": {"n": "query", "d": 8},
        "inputs": {"x": "n d"},
        "diagram": {"y": {"rope": "n", "along": "d", **numbers, "of": "x"}},
        "output": "y",
    }
    width = int(8 * numbers.pop("fraction", 1))
    original = numbers.get("original_max_position_embeddings", 64)
    theirs = {"rope_theta": float(numbers.pop("base", 10000)), "partial_rotary_factor": width / 8, **numbers}
    limit = original if name == "dynamic" else 4 * original
    config = LlamaConfig(hidden_size=16, num_attention_heads=2, max_position_embeddings=limit, rope_parameters=theirs)
    rates, factor = ROPE_INIT_FUNCTIONS[numbers["rope_type"]](config, seq_len=length)
    angles = torch.arange(length)[:, None] * rates
    x = torch.zeros(length, 8, dtype=dtype)
    x[:, : width // 2] = 1
    for backend in ("torch", "reference"):
        y = ta.compile(design, backend, dtype=dtype)(x)
        wanted = torch.cat((angles.cos() * factor, angles.sin() * factor), -1).to(dtype)
        torch.testing.assert_close(y[:, :width], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("ids", ["one", "batch", "float"])
def test_positions_of_the_call(ids: str) -> None:
    """Tokens stand where the call says: padded on the left, or packed."""
    places = torch.tensor([[0, 0, 0, 1, 2, 3, 4, 5, 6], [3, 4, 5, 0, 1, 2, 7, 8, 20]])
    places = places[1] if ids == "one" else places.to(F64) if ids == "float" else places
    design = source(positions="position_ids[SEQ]", inputs="n")
    x = torch.randn(2, LENGTH, 12, dtype=F64)
    layer = agree(design, x, places)
    plain = ta.compile(source(), dtype=F64)
    plain.load_state_dict(layer.state_dict())
    counted = torch.arange(LENGTH)
    torch.testing.assert_close(layer(x, counted), plain(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(layer(x, counted + 5), plain(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("interleaved", [False, True])
def test_positions_on_several_axes(interleaved: bool) -> None:
    """The pairs are divided between the axes; each part turns as if it were the whole."""
    design = source(positions="position_ids[SEQ a]", inputs="n a", interleaved=interleaved)
    design["legs"] |= {"a": 2}
    grid = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    x = torch.randn(2, LENGTH, 12, dtype=F64)
    layer = agree(design, x, grid)
    of = layer.capture(x, grid, "Q.of")
    pairs = of.unflatten(-1, (4, 2)) if interleaved else of.unflatten(-1, (2, 4)).transpose(-1, -2)
    rates = torch.tensor([1.0, 10000 ** (-2 / 4)], dtype=F64)
    angles = torch.cat((grid[:, :1] * rates, grid[:, 1:] * rates), -1)[:, None]  # n 1 pairs
    a, b = pairs.unbind(-1)
    turned = torch.stack((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)
    turned = turned.flatten(-2) if interleaved else turned.transpose(-1, -2).flatten(-2)
    torch.testing.assert_close(layer.capture(x, grid, "Q"), turned, rtol=0, atol=1e-12)


@pytest.mark.parametrize("suffix", ["svg", "txt", "mmd"])
def test_positions_of_the_call_are_drawn(suffix: str) -> None:
    design = source(positions="position_ids[SEQ]", inputs="n")
    assert "position_ids" in ta.compiler.picture(design, suffix).decode()


def test_positions_have_a_gradient() -> None:
    places = torch.rand(LENGTH, dtype=F64, requires_grad=True)
    x = torch.randn(2, LENGTH, 12, dtype=F64)
    agree(source(positions="position_ids[SEQ]", inputs="n"), x, places)


@pytest.mark.parametrize("name", [*SCALED, *PAIRED])
def test_a_cache_goes_on(name: str) -> None:
    """With each length that the angles are of, where they are of the length."""
    layer = ta.compile(source(**(SCALED | PAIRED)[name]), dtype=F64).eval()
    x, cache = torch.randn(2, LENGTH, 12, dtype=F64), layer.new_cache()
    with torch.no_grad():
        for first, last in ((0, 4), (4, 5), (5, 6), (6, LENGTH)):
            y = layer(x[:, first:last], cache=cache)
            torch.testing.assert_close(y, layer(x[:, :last])[:, first:], rtol=0, atol=1e-12)


def test_a_cache_goes_on_behind_positions_of_the_call() -> None:
    layer = ta.compile(source(positions="position_ids[SEQ]", inputs="n"), dtype=F64).eval()
    x, places, cache = torch.randn(2, LENGTH, 12, dtype=F64), torch.arange(LENGTH) - 2, layer.new_cache()
    places = torch.stack((places, places.clamp(min=0)))
    with torch.no_grad():
        found = [layer(x[:, i : i + 1], places[:, i : i + 1], cache=cache) for i in range(LENGTH)]
        torch.testing.assert_close(torch.cat(found, 1), layer(x, places), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["llama3", "yarn", "dynamic"])
def test_documents_of_a_packed_call_are_turned_each_by_itself(name: str) -> None:
    layer = ta.compile(source(**SCALED[name]), dtype=F64).eval()
    parts = [torch.randn(length, 12, dtype=F64) for length in (3, 9, 7)]
    with torch.no_grad():
        y = layer(torch.cat(parts)[None], cu_seqlens=torch.tensor([0, 3, 12, 19]))
        torch.testing.assert_close(y, torch.cat([layer(part) for part in parts])[None], rtol=0, atol=1e-12)


def test_a_cache_that_cannot_be_kept_says_why() -> None:
    design = source(positions="position_ids[SEQ]", inputs="n", **SCALED["dynamic"])
    agree(design, torch.randn(1, LENGTH, 12, dtype=F64), torch.arange(LENGTH))
    assert refusal(ta.compile(design).new_cache) == (
        "turned: no cache can be kept: 'K' rotates by angles that depend on the length; compile it with another "
        "rope_type, or without positions of the call."
    )


def test_positions_are_whole_numbers_or_not_and_nothing_else() -> None:
    layer = ta.compile(source(positions="position_ids[SEQ]", inputs="n"))
    assert refusal(layer, torch.randn(3, 12), torch.tensor([True, False, True])) == (
        "turned: input 'position_ids' is torch.bool; give integers or floating point numbers."
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"rope_type": "llama3", "factor": 8},
            "missing-key: 'rope_type: llama3' needs 'low_freq_factor'. this type has the keys factor, low_freq_factor, "
            "high_freq_factor, original_max_position_embeddings.",
        ),
        (
            {"factor": 8},
            "unknown-key: 'factor' needs another 'rope_type'. use it with 'rope_type: linear' or 'rope_type: "
            "dynamic' or 'rope_type: llama3' or 'rope_type: yarn'.",
        ),
        (
            {"rope_type": "linear", "factor": 0},
            "number: 'factor' is 0; it must be positive. e.g. 'factor: 8'.",
        ),
        (
            {**SCALED["yarn"], "base": 1},
            "number: 'base' is 1; with YaRN it must be above 1. e.g. 'base: 10000'.",
        ),
        (
            {**SCALED["llama3"], "low_freq_factor": 4},
            "number: 'low_freq_factor' is 4 and 'high_freq_factor' 4. make the first smaller than the second, "
            "e.g. 1 and 4.",
        ),
        (
            {"rope_type": "longrope"},
            "wrong-value: the text 'longrope' is not a value of 'rope_type'. use one of linear, dynamic, llama3, yarn.",
        ),
        (
            {"interleaved": 1},
            "wrong-type: expected true or false, got 1. e.g. 'interleaved: true'.",
        ),
        (
            {"positions": "x"},
            "box-leg: 'positions' has legs n f. give 'positions' the leg 'm' and, for several axes, one more leg.",
        ),
        (
            {"positions": "x[SEQ f]"},
            "box-leg: 4 pairs of entries cannot be divided equally between 12 axes of 'f'. give 'f' a size that "
            "divides the number of pairs.",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(keys: dict[str, Any], message: str) -> None:
    problems = [f"{problem.code}: {problem.message} {problem.hint}" for problem in ta.check(source(**keys))]
    assert message in problems


@pytest.mark.parametrize(
    ("kind", "keys", "at"), [("llama3", {"low_freq_factor": 8}, "low_freq_factor"), ("yarn", {"base": 1}, "base")]
)
def test_a_refusal_points_at_the_number(kind: str, keys: dict[str, Any], at: str) -> None:
    problems = ta.check(source(**SCALED[kind] | keys))
    assert [problem.field for problem in problems] == [f"diagram.{step}.{at}" for step in "QK"]
