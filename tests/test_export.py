"""torch.export of every design with any batch and any lengths: the program equals the module at other sizes.

Of designs that make all calls that sources make, also with a batch that is fixed, and with a key mask; and of bands of
any reach, with a context of its own length and masks.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import tensornet_attn as ta
from tests.designs.cases import drawn
from tests.regions import EVERY, SHORT, WIDE, WIDE_MASKED, gradients, inputs_of, key_mask_of, made, quick

SIZES = [(2, 24), (5, 33), (1, 64), (2, 3), (7, 130)]
F32 = torch.float32


def inputs_named(module: nn.Module) -> list[str]:
    return [tensor.name for tensor in module.plan.graph.of_role("input")]


def exported(module: nn.Module, xs: list[Tensor], key_mask: Tensor | None = None) -> nn.Module:
    """Exported with a dynamic batch, and a dynamic length for each input."""
    batch, lengths = Dim("batch"), [Dim("n"), Dim("m")][: len(xs)]
    shapes = {name: {0: batch, 1: length} for name, length in zip(inputs_named(module), lengths, strict=False)}
    options = {} if key_mask is None else {"key_mask": key_mask}
    masks = {} if key_mask is None else {"key_mask": {0: batch, 1: lengths[-1]}}
    return export(module, tuple(xs), options, dynamic_shapes=shapes | masks).module()


@quick(EVERY, SHORT)
def test_any_batch_and_length(name: str, causal: bool | None) -> None:
    module = made(name, causal, dtype=F32)
    program = exported(module, inputs_of(name, 3, 40, F32))
    for batch, n in SIZES:
        xs = inputs_of(name, batch, n, F32)
        torch.testing.assert_close(program(*xs), module(*xs), rtol=1e-4, atol=1e-4)


@quick(WIDE, [("band", True), ("fmm2", True), ("linear", True), ("cross", True)])
def test_a_fixed_batch_and_any_length(name: str, causal: bool | None) -> None:
    module, xs = made(name, causal, dtype=F32), inputs_of(name, 2, 40, F32)
    lengths = {name: {1: Dim(leg)} for name, leg in zip(inputs_named(module)[: len(xs)], "nm", strict=False)}
    program = export(module, tuple(xs), dynamic_shapes=lengths).module()
    for n in (3, 24, 33, 64, 130):
        xs = inputs_of(name, 2, n, F32)
        torch.testing.assert_close(program(*xs), module(*xs), rtol=1e-4, atol=1e-4)


CROSS = {"inputs": {"memory": "m f"}, "diagram": {"K": "memory[m f] Wk[f h d] -> m h d"}}
CROSS["diagram"]["V"] = "memory[m f] Wv[f h d] -> m h d"
REACHES = ["band(2)", "band(0)", "window(5, 0)", "window(40, 3)", "window(0, 2)", "window(9, -2)"]


def within(reach: str, context: bool = False) -> dict[str, Any]:
    """Multi-head attention with a mask of this reach; with a context of a length of its own."""
    A = {"softmax": "m", "scale": "d ** -0.5", "mask": [reach], "of": "Q[n h d] K[m h d] -> h n m"}
    more = CROSS if context else {"diagram": {}}
    design = {"tensornet": 1, "name": "within", "extends": "mhsa", "legs": {"f": 12, "h": "head 2"}}
    return design | more | {"diagram": {**more["diagram"], "A": A}}


def drawn_inputs(batch: tuple[int, ...], *lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randn(*batch, length, 12, generator=generator) for length in lengths]


@pytest.mark.parametrize("batch", [(), (1,), (2,), (2, 3)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reach", [REACHES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in REACHES[1:])])
def test_bands_of_a_fixed_batch(reach: str, causal: bool, batch: tuple[int, ...]) -> None:
    """Shorter than the band, no multiple of a block, many blocks."""
    module = drawn(ta.compile(within(reach), "torch", causal, dtype=F32))
    assert "attend_band" in module.source
    length = {"x": {len(batch): Dim("n")}}
    program = export(module, tuple(drawn_inputs(batch, 70)), dynamic_shapes=length).module()
    for n in (1, 2, 31, 32, 33, 64, 150):
        x = drawn_inputs(batch, n)
        torch.testing.assert_close(program(*x), module(*x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch", [None, 1, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("reach", [REACHES[0], *(pytest.param(one, marks=pytest.mark.slow) for one in REACHES[2:])])
def test_bands_of_a_context_of_its_own_length(reach: str, masked: bool, batch: int | None) -> None:
    module = drawn(ta.compile(within(reach, context=True), "torch", dtype=F32))
    assert "attend_band" in module.source
    n, m, free = Dim("n"), Dim("m"), {} if batch else {0: Dim("batch")}
    shapes: dict[str, Any] = {"x": {**free, 1: n}, "memory": {**free, 1: m}}
    shapes |= {"mask": {0: n, 1: m}, "key_mask": {**free, 1: m}} if masked else {}

    def arguments(*sizes: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        xs = drawn_inputs((batch or sizes[0],), *sizes[1:])
        options = {"mask": torch.rand(*sizes[1:]) < 0.8, "key_mask": key_mask_of(xs)}
        return xs, options if masked else {}

    xs, options = arguments(3, 40, 50)
    program = export(module, tuple(xs), options, dynamic_shapes=shapes).module()
    for sizes in [(2, 1, 40), (4, 33, 20), (2, 64, 64), (3, 2, 3), (2, 100, 130)]:
        xs, options = arguments(*sizes)
        torch.testing.assert_close(program(*xs, **options), module(*xs, **options), rtol=1e-4, atol=1e-5)


def attended() -> nn.Module:
    """Causal attention to a context of its own length, fused where torch can."""
    design = {"tensornet": 1, "name": "attended", "extends": "mhsa", "legs": {"f": 12, "h": "head 2"}}
    return drawn(ta.compile(design, "torch", causal=True))


PAIRS = [(2, 5, 8), (2, 9, 9), (3, 9, 4), (1, 1, 1), (2, 40, 3)]  # of more queries than keys, the first ones see none


def test_a_causal_context_of_any_length() -> None:
    program = exported(attended(), [*drawn_inputs((3,), 6), *drawn_inputs((3,), 7)])
    for batch, *lengths in PAIRS:
        xs = drawn_inputs((batch,), *lengths)
        torch.testing.assert_close(program(*xs), attended()(*xs), rtol=1e-4, atol=1e-5)


UNPROVED: dict[str, dict[str, Any]] = {  # whose sizes a trace must not compare
    "a weight with columns for keys": {
        "legs": {"d": "query", "m": "key 9", "e": 2},
        "inputs": {"x": "m d"},
        "weights": {"W": "e m"},
        "diagram": {"y": "x[m d] W[e m] -> e d"},
    },
    "a block of as many queries as keys": {
        "legs": {"n": "query", "m": "key", "e": 2, "v": 2},
        "inputs": {"x": "n", "V": "m v e", "Q": "n v"},
        "weights": {"W": "v"},
        "diagram": {"K": "x[m] W[v] -> m v", "B": "Q[n v] K[m v] -> m n v", "y": "B[m n v] V[m v e] -> n e"},
    },
    "a band beside a sink": {
        "legs": {"n": "query", "m": "key", "d": 1},
        "inputs": {"x": "n d", "K": "m d", "V": "m"},
        "diagram": {
            "A": {"softmax": "m", "mask": ["window(1, 0)"], "sink": "0 ->", "of": "x[n d] K[m d] -> n m"},
            "y": "A[n m] V[m] -> n",
        },
    },
}


@pytest.mark.parametrize("name", UNPROVED)
def test_sizes_that_a_trace_cannot_compare(name: str) -> None:
    """Of a fixed batch, at lengths up to the largest."""
    module = drawn(
        ta.compile({"tensornet": 1, "name": "unproved", "output": "y", **UNPROVED[name]}, "torch", dtype=F32)
    )
    graph, length = module.plan.graph, Dim("n", max=9)
    sequences = (graph.key,) if graph.leg[str(graph.key)].maximum else (graph.query, graph.key)

    def call(n: int) -> tuple[Tensor, ...]:
        legs = [tensor.legs for tensor in graph.of_role("input")]
        sizes = {leg.name: n if leg.name in sequences else leg.size or 4 for leg in graph.legs}
        return tuple(torch.randn(2, *(sizes[leg] for leg in own), generator=torch.manual_seed(n)) for own in legs)

    shapes = [{0: None} | {1: length} for _ in call(6)]
    program = export(module, call(6), dynamic_shapes=tuple(shapes)).module()
    for n in (2, 5, 9):
        torch.testing.assert_close(program(*call(n)), module(*call(n)), rtol=1e-4, atol=1e-5)


@quick(WIDE_MASKED, [("band", True), ("linear", True), ("transformer_xl", False)])
def test_with_a_key_mask(name: str, causal: bool | None) -> None:
    module, xs = made(name, causal, dtype=F32), inputs_of(name, 3, 40, F32)
    program = exported(module, xs, key_mask_of(xs))
    for batch, n in SIZES:
        xs = inputs_of(name, batch, n, F32)
        keys = key_mask_of(xs)
        torch.testing.assert_close(program(*xs, key_mask=keys), module(*xs, key_mask=keys), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "causal"), [("gfish", True)])
def test_a_training_program_draws_noise_anew(name: str, causal: bool | None) -> None:
    module = made(name, causal, dtype=F32).train()
    program, (x,) = exported(module, inputs_of(name, 3, 40, F32)), inputs_of(name, 2, 7, F32)
    torch.manual_seed(0)
    one, other = program(x), program(x)
    torch.manual_seed(0)
    assert torch.equal(program(x), one)
    assert not torch.equal(one, other)


def test_gradients_of_a_program() -> None:
    module = made("kernel_fish", True, dtype=F32)
    program = exported(module, inputs_of("kernel_fish", 3, 40, F32))
    for x in inputs_of("kernel_fish", 2, 21, F32):
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        program(one).square().sum().backward()
        module(other).square().sum().backward()
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_gradients_of_a_band_of_a_fixed_batch() -> None:
    module = made("fmm1", True, dtype=F32)
    (x,) = inputs_of("fmm1", 2, 40, F32)
    program = export(module, (x,), dynamic_shapes={"x": {1: Dim("n")}}).module()
    (x,) = (x.requires_grad_() for x in inputs_of("fmm1", 2, 71, F32))
    (found,) = torch.autograd.grad(program(x).square().sum(), x)
    torch.testing.assert_close(found, gradients(module, module(x), [x])[0], rtol=1e-4, atol=1e-4)


PRODUCT = "Q[n h d] K[m h d] -> h n m"
OF_LENGTHS: dict[str, dict[str, Any]] = {  # functions of lengths, where kernels and where tensors read them
    "a scale": {"A": {"softmax": "m", "scale": "log(m) * d ** -0.5", "of": PRODUCT}},
    "a power": {"A": {"softmax": "m", "scale": "m ** -0.5", "of": PRODUCT}},
    "a band": {"A": {"softmax": "m", "scale": "log2(m) * d ** -0.5", "mask": ["band(5)"], "of": PRODUCT}},
    "whole": {"A": {"softmax": "m", "scale": "floor(log2(m)) / ceil(sqrt(m))", "of": PRODUCT}},
    "a bias": {"A": {"softmax": "m", "of": "Q[n h d] K[m h d] - (exp(-m / 100)) -> h n m"}},
    "a sum over keys": {"A": {"keep": "m", "of": f"(1 / log(m + 2)) * {PRODUCT}"}},
    "queries": {"Q": "(log(n)) * x[n f] Wq[f h d] -> n h d"},
    "more than there are": {
        "T": {"topk": "m", "k": 9, "fill": "-inf", "of": PRODUCT},
        "A": {"softmax": "m", "of": "T"},
    },
    "a number": {"b": "(log(m)) ->", "A": {"keep": "m", "of": "0.01 * b[] Q[n h d] K[m h d] -> h n m"}},
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", OF_LENGTHS)
def test_functions_of_lengths(name: str, causal: bool) -> None:
    """Exported for any and for one length, and compiled for any: no trace fixes a length."""
    design = {"tensornet": 1, "name": "lengths", "extends": "mhsa", "legs": {"f": 12, "h": "head 2"}}
    module = ta.compile(design | {"diagram": OF_LENGTHS[name]}, causal=causal)
    torch._dynamo.reset()
    first = drawn_inputs((2,), 40)
    any_length, one_length = exported(module, first), export(module, tuple(first)).module()
    compiled = torch.compile(module, dynamic=True, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(one_length(*first), module(*first), rtol=1e-4, atol=1e-4)
    for n, stance in ((40, "default"), (24, "default"), (3, "default"), (130, "fail_on_recompile")):
        (x,) = drawn_inputs((2,), n)
        with torch.compiler.set_stance(stance):
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(any_length(x), module(x), rtol=1e-4, atol=1e-4)
