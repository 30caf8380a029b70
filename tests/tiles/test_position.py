"""The C++ of one position: the same as torch, one call, and torch where C++ cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.graph import build
from tensornet_attn.nn.executable import Arguments
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.plan.stages import plans_in_cpp, steps_in_cpp
from tensornet_attn.runtime.cpp import reason_against_cpp
from tensornet_attn.runtime.position_cpp import CppPosition
from tests.nn.test_cache import N, chunk_of, close, decoded, made

needs_compiler = pytest.mark.skipif(bool(reason_against_cpp()), reason="there is no C++ compiler")
# One state, sums, erased states, decays by head and by feature, no shared head, powers, a stage of its own.
FORMS = ["linear", "fast_weight1", "gated_deltanet", "gla", "mamba2", "based", "fmm_fast_weight1"]


class Counted:
    """Counts the calls of C++ and those that were left to torch, after libraries are compared with the reference."""

    def __init__(self, patch: pytest.MonkeyPatch, module: CompiledDesign):
        self.cpp = self.torch = 0
        decoded(module, chunk_of(module), [1, 1])
        call = CppPosition.__call__

        def counted(position: CppPosition, *tensors: torch.Tensor) -> Any:
            results = call(position, *tensors)
            self.cpp, self.torch = self.cpp + (results is not None), self.torch + (results is None)
            return results

        patch.setattr(CppPosition, "__call__", counted)


@needs_compiler
@pytest.mark.parametrize("name", FORMS)
def test_steps_are_those_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, plain = made(name, "cpp"), made(name)
    x, calls = chunk_of(module), Counted(monkeypatch, module)
    steps = decoded(module, x, [1] * N)
    assert (calls.cpp, calls.torch) == (N - 1, 0)  # the first position is a chunk
    with torch.no_grad():
        close(steps, plain(x))
        close(decoded(module, x, [4, 1, 1, 3]), plain(x))
        module.float()
        single = decoded(module, x.float(), [1] * N)
        torch.testing.assert_close(single.double(), plain(x), rtol=1e-4, atol=1e-4)
    assert calls.torch == 0


def _step(module: CompiledDesign, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The results of a layer's step for copies of its inputs, laid out as they are."""
    (stage,) = module._decoder(False)._one
    copies = tuple(x.clone() for x in inputs)
    return [*stage.executable.run(module, Arguments(copies, dict.fromkeys(stage.legs, 1), None, None, None))]


@needs_compiler
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch.func
def test_what_cpp_cannot_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    module, plain = made("linear", "cpp"), made("linear")
    calls = Counted(monkeypatch, module)
    (stage,) = module._decoder(False)._one
    graph, generator = stage.plan.graph, torch.Generator().manual_seed(2)
    sizes = [[graph.leg[leg].size for leg in tensor.legs] for tensor in graph.of_role("input")]
    inputs = [torch.rand(2, *size, generator=generator, dtype=torch.float64) for size in sizes]  # type: ignore[arg-type]
    turned = [x.mT.contiguous().mT if x.ndim > 2 else x for x in inputs]
    with torch.no_grad():
        wanted = _step(plain, *inputs)

        def same(found: Any) -> None:
            for one, other in zip(found, wanted, strict=True):
                close(one, other)

        same(_step(module, *inputs))
        assert (calls.cpp, calls.torch) == (1, 0)
        same(_step(module, *turned))  # a state whose rows are no rows of memory
        same(torch.func.vmap(lambda *one: tuple(_step(module, *one)))(*inputs))
        assert (calls.cpp, calls.torch) == (1, 2)
        halves = _step(made("linear", "cpp").bfloat16(), *[x.bfloat16() for x in inputs])
        assert {x.dtype for x in halves} == {torch.bfloat16}
        assert {x.device.type for x in _step(made("linear", "cpp").to("meta"), *[x.to("meta") for x in inputs])} == {
            "meta"
        }
    same(_step(module, *inputs))  # weights require gradients
    assert (calls.cpp, calls.torch) == (1, 5)


def test_explain_names_what_is_one_call() -> None:
    def said(name: str) -> list[str]:
        return [*steps_in_cpp(build(ta.load(name), causal=True))]

    assert said("linear") == [
        "with a C++ library, a step computes A.state1, A.state2, y.p1 in one call: 8 of 12 operations"
    ]
    assert said("mhsa") == []


def test_a_plan_names_the_call_and_no_step_in_it() -> None:
    (plan,) = plans_in_cpp(build(ta.load("linear"), causal=True))
    assert "  A.state1: C++ of one position: A.state1, A.state2, y.p1 in one call: 8 of 12 operations" in plan.explain()
    named = [step for region in plan.regions if not region.removed for step in region.steps]
    assert len(named) == len({*named})
    assert {*plan.schedule.step} - {"y.p1"} <= {*named}
