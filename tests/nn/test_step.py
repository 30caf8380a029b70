"""A step with a cache as a function: the same as with a cache, exported by torch.export, and in ONNX."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.plan.decoding import decoding_of
from tests.designs.cases import CASES
from tests.nn.test_cache import DECODED, N, axis_of, chunk_of, close, compiled, drawn, made

START = 5
EXPORTED = ["mhsa", "gqa", "mla", "band", "linear", "fast_weight1", "thsa"]
Dim = torch.export.Dim


# Rotary positions where few or no keys are kept: a step asks for its place.
TURNED = ("mistral", "gemma2_local", "gemma3_local", "retnet")


@pytest.mark.parametrize("name", [name for name in DECODED if name not in TURNED])
def test_steps_are_the_same_as_at_once(name: str) -> None:
    module = made(name)
    x, axis = chunk_of(module), axis_of(module, module._signature.inputs[0][0])
    first, step = ta.decoding_step(module, first=True), ta.decoding_step(module)
    with torch.no_grad():
        y, *kept = first(x.narrow(axis, 0, START))
        found = [y]
        for at, length in ((START, 1), (START + 1, 1), (START + 2, N - START - 2)):
            before = [value.clone() for value in kept]
            y, *after = step(x.narrow(axis, at, length), *kept)
            assert all(torch.equal(one, other) for one, other in zip(before, kept, strict=True))
            found, kept = [*found, y], after
        close(torch.cat(found, axis_of(module, module.plan.graph.output)), module(x))


def test_a_memory_goes_through() -> None:
    module = drawn(compiled("cross", "torch"), 0, CASES["cross"].positive).eval()
    x, memory = chunk_of(module, 4), chunk_of(module, 7)
    with torch.no_grad():
        y, *kept = ta.decoding_step(module, first=True)(x[:, :1], memory)
        close(torch.cat([y, ta.decoding_step(module)(x[:, 1:], *kept)[0]], 1), module(x, memory))


def shapes(module: CompiledDesign, kept: list[torch.Tensor]) -> tuple[Any, ...]:
    """Any batch, behind any length: the dynamic shapes of a step."""
    batch, length = Dim("batch", min=1, max=1024), Dim("length", min=1, max=4096)
    found: list[dict[int, Any]] = []
    for one, value in zip(decoding_of(module.plan.graph).kept, kept, strict=True):
        every = one.leg is not None and one.reach is None
        found.append(
            {0: batch} | ({value.ndim - len(one.legs) + one.legs.index(str(one.leg)): length} if every else {})
        )
    return {0: batch}, tuple(found)


@pytest.mark.parametrize("name", [*EXPORTED, "gated_deltanet", "kda"])
def test_export_of_the_first_chunk_and_of_steps(name: str) -> None:
    module = made(name)
    x, other = chunk_of(module, 12, (3,)), chunk_of(module, 12)
    first, step = ta.decoding_step(module, first=True), ta.decoding_step(module)
    lengths = {0: Dim("batch", min=1, max=1024), 1: Dim("n", min=4, max=4096)}
    with torch.no_grad():
        begin, after = x[:, :6].contiguous(), x[:, 6:7].contiguous()
        _, *kept = first(begin)
        starts = torch.export.export(
            first, (begin,), dynamic_shapes=(lengths,), prefer_deferred_runtime_asserts_over_guards=True
        ).module()
        goes_on = torch.export.export(step, (after, *kept), dynamic_shapes=shapes(module, kept)).module()
        y, *kept = starts(other[:, :START])
        found = [y]
        for at in range(START, 12):
            y, *kept = goes_on(other[:, at : at + 1], *kept)
            found.append(y)
        close(torch.cat(found, 1), module(other))
        longer = chunk_of(module, 150, (2,))  # more than a chunk of any recurrence
        close(starts(longer)[0], module(longer))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ("mhsa", "thsa") else pytest.mark.slow) for n in EXPORTED if n != "fast_weight1"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:# The axis name")
def test_steps_in_onnx(name: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    module = made(name).float()
    x, other = chunk_of(module, 12, (3,)).float(), chunk_of(module, 12).float()
    with torch.no_grad():
        first, step = ta.decoding_step(module, first=True), ta.decoding_step(module)
        _, *kept = first(x[:, :6])
        given = (x[:, 6:7].contiguous(), *kept)
        program = torch.onnx.export(step, given, dynamic_shapes=shapes(module, kept), dynamo=True, verbose=False)
        session = runtime.InferenceSession(program.model_proto.SerializeToString())
        names = [one.name for one in session.get_inputs()]
        y, *kept = (value.numpy() for value in first(other[:, :START]))
        found = [torch.from_numpy(y)]
        for at in range(START, 12):
            inputs = dict(zip(names, (other[:, at : at + 1].numpy(), *kept), strict=True))
            y, *kept = session.run(None, inputs)
            found.append(torch.from_numpy(y))
        torch.testing.assert_close(torch.cat(found, 1), module(other), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:# The axis name")
def test_a_step_that_onnx_lacks_is_named() -> None:
    pytest.importorskip("onnxscript")
    module = made("fast_weight1")
    with torch.no_grad():
        _, *kept = ta.decoding_step(module, first=True)(chunk_of(module))
        with pytest.raises(torch.onnx.OnnxExporterError, match="fast_weight1: 'far' is a 'delta_rule', which updates"):
            torch.onnx.export(ta.decoding_step(module), (chunk_of(module, 1), *kept), dynamo=True, verbose=False)


def test_what_is_not_given() -> None:
    with pytest.raises(ta.InputError, match=r"^mhsa: 1 tensors after x; give K, V\.$"):
        ta.decoding_step(made("mhsa"))(torch.zeros(2, 1, 12), torch.zeros(1))
