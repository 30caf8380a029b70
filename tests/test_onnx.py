"""ONNX: a program computes what the layer does, at other lengths than those of its example, or is refused by name.

Of all designs, with a key mask of those that make all calls that sources make; and of functions of lengths.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tensornet_attn as ta
from docs.generate.files import ROOT
from tensornet_attn.ops import OPS
from tests.regions import EVERY, WIDE_MASKED, inputs_of, key_mask_of, made, quick
from tests.test_export import OF_LENGTHS, PAIRS, attended, drawn_inputs, inputs_named

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:# The axis name")
SIZES = [(2, 3), (5, 33), (7, 130)]
F32 = torch.float32
FEW = [("band", True), ("transformer_xl", False), ("sigma_moe_regularised", None)]


class Program:
    """A layer in ONNX, for any batch and any lengths; `key_mask`: of an example, if it takes one."""

    def __init__(self, module: nn.Module, xs: list[Tensor], key_mask: Tensor | None = None):
        lengths = ["n", "m"][: len(xs)]
        shapes = {name: {0: "batch", 1: leg} for name, leg in zip(inputs_named(module), lengths, strict=False)}
        options = {} if key_mask is None else {"key_mask": key_mask}
        shapes |= {} if key_mask is None else {"key_mask": {0: "batch", 1: lengths[-1]}}
        with torch.no_grad():
            program = torch.onnx.export(
                module, tuple(xs), kwargs=options, dynamic_shapes=shapes, dynamo=True, verbose=False
            )
        self.session = runtime.InferenceSession(program.model_proto.SerializeToString())

    def __call__(self, *given: Tensor) -> Tensor:
        names = [one.name for one in self.session.get_inputs()]
        return torch.from_numpy(
            self.session.run(None, {name: x.numpy() for name, x in zip(names, given, strict=True)})[0]
        )


@torch.no_grad()
def close(found: Tensor, module: nn.Module, xs: list[Tensor], **options: Tensor) -> None:
    """As near to the values in float64 as the layer itself, some of which divide by sums near zero."""
    exact = copy.deepcopy(module).double()(*(x.double() for x in xs), **options)
    bound = 1e-4 * (1 + exact.abs().max()) + 4 * (module(*xs, **options) - exact).abs().max()
    assert found.shape == exact.shape
    assert (found - exact).abs().max() <= bound


def refuses(module: nn.Module) -> bool:
    return any(step.box is not None and OPS[step.box.kind].recurrent for step in module.plan.graph.steps)


@quick(EVERY, FEW)
def test_any_batch_and_length(name: str, causal: bool | None) -> None:
    module = made(name, causal, dtype=F32)
    if refuses(module):
        with pytest.raises(torch.onnx.OnnxExporterError, match="ONNX has no such operation"):
            Program(module, inputs_of(name, 3, 40, F32))
        return
    program = Program(module, inputs_of(name, 3, 40, F32))
    for batch, n in SIZES:
        xs = inputs_of(name, batch, n, F32)
        close(program(*xs), module, xs)


@quick(WIDE_MASKED, [])
def test_with_a_key_mask(name: str, causal: bool | None) -> None:
    module, xs = made(name, causal, dtype=F32), inputs_of(name, 3, 40, F32)
    if refuses(module):
        return
    program = Program(module, xs, key_mask_of(xs))
    for batch, n in SIZES:
        xs = inputs_of(name, batch, n, F32)
        close(program(*xs, key_mask_of(xs)), module, xs, key_mask=key_mask_of(xs))


def test_a_causal_context_of_any_length() -> None:
    program = Program(attended(), [*drawn_inputs((3,), 6), *drawn_inputs((3,), 7)])
    for batch, *lengths in PAIRS:
        xs = drawn_inputs((batch,), *lengths)
        close(program(*xs), attended(), xs)


def test_sinks_of_masked_rows() -> None:
    test_with_a_key_mask("gpt_oss", True)


def test_decays() -> None:
    test_any_batch_and_length("gla", True)


def test_rows_that_see_nothing_in_float64() -> None:
    """The exporter rounds numbers to float32, as which the lowest number of float64 is minus infinity."""
    module, xs = made("t5", False), inputs_of("t5", 3, 40)
    found = Program(module, xs, key_mask_of(xs))(*xs, key_mask_of(xs))
    torch.testing.assert_close(found, module(*xs, key_mask=key_mask_of(xs)), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_LENGTHS)
def test_functions_of_lengths(name: str) -> None:
    design: dict[str, Any] = {"tensornet": 1, "name": "lengths", "extends": "mhsa", "legs": {"f": 12, "h": "head 2"}}
    module = ta.compile(design | {"diagram": OF_LENGTHS[name]}, "torch").eval()
    program = Program(module, drawn_inputs((2,), 40))
    for batch, n in SIZES:
        xs = drawn_inputs((batch,), n)
        close(program(*xs), module, xs)


@pytest.mark.parametrize("name", ["mingru", "mamba1"])  # a step of its own, and a part of a kernel
def test_the_step_that_updates_a_state_is_named(name: str) -> None:
    sentence = (
        f"{name}: 'H' is a 'scan', which updates a state key by key; ONNX has no such operation: export the layer with "
        "torch.export, or a design without it."
    )
    xs = inputs_of(name, 3, 40, F32)
    with pytest.raises(torch.onnx.OnnxExporterError, match=sentence) as error:
        Program(made(name, True, dtype=F32), xs, key_mask_of(xs))
    assert isinstance(error.value.__cause__, ta.InputError)
    assert str(error.value.__cause__) == sentence


def test_a_traced_layer_keeps_its_kernels() -> None:
    """Blocks of queries are one operation in torch.export and torch.compile."""
    (x,) = inputs_of("t5", 3, 40, F32)
    program = torch.export.export(made("t5", False, dtype=F32), (x,))
    assert "blockwise_forward" in program.graph_module.code


def test_no_negative_number_is_floor_divided() -> None:
    """ONNX rounds a quotient of integers to zero, so that -(-n // 32) is one too small."""
    paths = [*ROOT.glob("tensornet_attn/runtime/*.py"), *ROOT.glob("codegen/*/*.py")]
    assert len(paths) > 100
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "// " in text or "% " in text else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod):
                assert not isinstance(node.left, ast.UnaryOp), f"{path.name}:{node.lineno}"
