"""Calls without queries, without keys and with an empty batch: nothing, or what sums of nothing give; states stay."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.convert.multihead import MultiheadAttention
from tests.designs.cases import CASES, compiled
from tests.random_call import F64, assert_same, results
from tests.refusals import refusal

SIZES = ((2, 0, 0), (2, 0, 3), (2, 3, 0), (0, 3, 3))  # batch, queries, keys
EACH = ("transformer_xl", "deberta_v2", "t5", "gau", "sigmoid_attention", "fmm_lra_release", "moh", "minimax", "mgk_em")


def inputs_of(module: Any, batch: int, n: int, m: int) -> list[Tensor] | None:
    """None if the design has no such call: its queries are its keys."""
    graph = module.plan.graph
    shapes = [tensor.legs for tensor in graph.of_role("input")]
    if n != m and (graph.tied or not any(graph.key in legs for legs in shapes)):
        return None
    lengths = {graph.query: n, graph.key: m}
    draw = torch.Generator().manual_seed(3)
    sizes = ([graph.leg[leg].size or lengths[leg] for leg in legs] for legs in shapes)
    return [torch.randn(batch, *own, generator=draw, dtype=F64) for own in sizes]


def masks_of(module: Any, batch: int, n: int, m: int) -> list[dict[str, Tensor]]:
    places = module.mask_places
    found: list[dict[str, Tensor]] = [{}]
    if places.keys:
        found.append({"key_mask": torch.ones(batch, m, dtype=torch.bool)})
    if places.places and places.recurrence is None:
        found.append({"mask": torch.ones(n, m, dtype=torch.bool)})
    return found


def empty_calls(name: str, causal: bool | None, backend: str = "torch") -> None:
    """Outputs, gradients and states are those of the reference, finite, and zero where nothing is computed."""
    module, oracle = (compiled(name, own, causal).train() for own in (backend, "reference"))
    module.load_state_dict(oracle.state_dict())
    before = {key: value.clone() for key, value in module.named_buffers()}
    for sizes in SIZES:
        inputs = inputs_of(module, *sizes)
        for masks in masks_of(module, *sizes) if inputs is not None else ():
            found = results(module, inputs, masks)
            if not module.plan.graph.of_role("noise"):
                assert_same(found, results(oracle, inputs, masks))
            assert all(value is None or value.isfinite().all() for value in found.values())
            gradients = [value for key, value in found.items() if key.startswith("gradient") and value is not None]
            assert sizes == (2, 3, 0) or not any(value.any() for value in gradients)
            assert all(torch.equal(found[f"state {key}"], value) for key, value in before.items())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "causal"), [(name, causal) for name in CASES for causal in CASES[name].causal])
def test_calls_may_be_empty(name: str, causal: bool | None) -> None:
    empty_calls(name, causal)


@pytest.mark.parametrize("name", EACH)
def test_calls_may_be_empty_in_some(name: str) -> None:
    for causal in CASES[name].causal:
        empty_calls(name, causal)


@pytest.mark.parametrize("name", ["cross", "linear", "transformer_xl", "band", "fmm_fast_weight1"])
def test_chunks_may_be_empty(name: str) -> None:
    """Before, between and after others; a memory is given with the first that has positions."""
    module = compiled(name, "torch", None if True not in CASES[name].causal or name == "cross" else True)
    x, *others = inputs_of(module, 2, 5, 5) or []
    others = others if name == "cross" else []
    with torch.no_grad():
        whole = module(x, *others)
        for cuts in ((0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 5)):
            cache = module.new_cache()
            parts = [module(own, *(() if cache.length else others), cache=cache) for own in x.split(cuts, 1)]
            torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_maps_may_be_empty() -> None:
    layer = MultiheadAttention("mhsa", 16, 4, batch_first=True)
    for batch, n, m in ((0, 5, 7), (2, 0, 7), (2, 5, 0)):
        queries, keys = torch.zeros(batch, n, 16), torch.zeros(batch, m, 16)
        y, weights = layer(queries, keys, keys)
        assert (y.shape, weights.shape) == ((batch, n, 16), (batch, n, m))
        _, weights = layer(queries, keys, keys, average_attn_weights=False)
        assert weights.shape == (batch, 4, n, m)


def test_a_number_without_a_value_at_a_length() -> None:
    diagram = {"A": {"softmax": "m", "scale": "1 / (m - 1)", "of": "Q[n h d] K[m h d] -> h n m"}}
    design = {"tensornet": 1, "name": "short", "extends": "mhsa", "diagram": diagram}
    for backend in ("reference", "torch"):
        layer = ta.compile(ta.load(design, legs={"f": 16}), backend)
        x = torch.randn(2, 3, 16)
        assert layer(x).shape == x.shape
        for length in (1, 0):  # a length of 0 counts as 1
            assert refusal(layer, x, x[:, :length]) == (
                f"short: in 'A', '1 / (m - 1)' divides by zero where 'm' has length {length}."
            )


def test_capture_of_an_empty_call() -> None:
    module = compiled("transformer_xl", "torch")
    for step in module.plan.graph.steps:
        assert module.capture(torch.zeros(2, 0, 12, dtype=F64), step.name).shape[0] in (0, 2, 12)


@pytest.mark.parametrize("name", ["gau", "t5", "mgk_em"])
def test_cpp_may_be_empty(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without a compiler, torch runs instead
        empty_calls(name, CASES[name].causal[0], "cpp")
