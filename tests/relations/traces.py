"""The relations of source, and of programs that torch traces and exports."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import tensornet_attn as ta
from tests.random_call import assert_same
from tests.relations.relations import checked
from tests.relations.subject import Function, NotApplicable, Subject

EXPORTED = ((5, 8), (9, 9), (9, 4), (33, 35))  # lengths at which exported programs run


def sources_are_printed(subject: Subject) -> None:
    """A design has source with kernels, of C++ or of Triton, or is refused with an InputError."""
    if subject.backend != "torch":
        raise NotApplicable("kernels of all backends are printed beside the source for torch")
    backend, length = subject.draw.choice(["cpp", "triton"]), subject.draw.choice([64, 1024, 4096])
    with suppress(ta.InputError):
        ta.emit_source(subject.data, backend=backend, n=length)


def traced_is_the_layer(subject: Subject) -> None:
    """A layer compiled by torch.compile, traced by AOTAutograd, is the layer at several lengths."""
    torch._dynamo.reset()
    traced = torch.compile(subject.module, backend="aot_eager", fullgraph=True, dynamic=True)
    for n, m in ((5, 6), (9, 7), (4, 8)):
        subject.same(lambda *xs: subject.run(*xs, module=traced), subject.run, subject.rows((2,), n, m).leaves)


def layers_share_a_trace(subject: Subject) -> None:
    """Layers on inductor, whose text is traced once for all, and two layers in one traced model are the layer.

    Torch takes the first lengths as known, traces lengths from the second on, and knows the sides of the first mask.
    """
    torch._dynamo.reset()
    subject.module.eval()
    traced = partial(torch.compile, backend="eager", fullgraph=True)
    with patch("torch.compile", lambda layer, **options: traced(layer)):
        first, second = (replace(subject, backend="inductor").compiled().eval() for _ in range(2))
    other, rows = subject.compiled().eval(), {n: subject.rows((2,), n, m) for n, m in ((5, 6), (9, 7), (4, 8))}

    def both(*leaves: Tensor) -> Tensor:
        return subject.run(*leaves) + subject.run(*leaves, module=other)

    def compare(outcome: Function, wanted: Function, n: int, **masks: Tensor) -> None:
        output = {"output": wanted(*rows[n].leaves, **masks).detach()}
        checked(output)
        assert_same({"output": outcome(*rows[n].leaves, **masks).detach()}, output)

    for layer, n, masked in ((first, 5, False), (second, 9, False), (first, 9, True), (second, 4, True)):
        masks = {"mask": subject.mask(n, rows[n].keys)} if masked and subject.module.mask_places.places else {}
        compare(partial(subject.run, module=layer), subject.run, n, **masks)
    model = traced(both)
    for n in (5, 9):
        compare(model, both, n)


def exported_is_the_layer(subject: Subject) -> None:
    """An exported program is the layer at lengths other than the example's."""
    example, shapes = example_of(subject)
    with torch.no_grad():
        program = torch.export.export(subject.module, tuple(example), dynamic_shapes=shapes).module()
        for n, m in EXPORTED:
            rows = subject.rows((2,), n, m)
            wanted = {"output": subject.run(*rows.leaves)}
            checked(wanted)
            assert_same({"output": program(*rows.leaves)}, wanted)


def onnx_is_the_layer(subject: Subject) -> None:
    """A program in ONNX, if ONNX has the operations, is the layer in float32 at lengths other than the example's."""
    from onnxruntime import InferenceSession

    single = replace(subject, dtype=torch.float32)
    example, shapes = example_of(single)
    singles = tuple(x.float() for x in example)
    try:
        program = torch.onnx.export(single.module, singles, dynamic_shapes=shapes, dynamo=True, verbose=False)
    except torch.onnx.OnnxExporterError as error:
        if "ONNX has no such operation" not in str(error):
            raise
        raise NotApplicable(str(error)) from None
    session = InferenceSession(program.model_proto.SerializeToString())
    names = [tensor.name for tensor in session.get_inputs()]
    with torch.no_grad():
        for n, m in EXPORTED:
            xs = subject.rows((2,), n, m).leaves
            wanted, own = subject.oracle.eval()(*xs), single.module(*(x.float() for x in xs))
            checked({"output": wanted})
            arrays = {name: x.float().numpy() for name, x in zip(names, xs, strict=True)}
            error = (torch.from_numpy(session.run(None, arrays)[0]) - wanted).abs().max()
            assert error <= 1e-4 * (1 + wanted.abs().max()) + 4 * (own - wanted).abs().max(), f"{n}, {m}: {error}"


def example_of(subject: Subject) -> tuple[list[Tensor], tuple[dict[int, Any], ...]]:
    """An example of a layer in evaluation that is exported, and the dimensions whose lengths may change."""
    subject.module.eval()
    example, graph = subject.rows((2,), 6, 7).leaves, subject.graph
    lengths = {leg.name: torch.export.Dim(leg.name, max=leg.maximum) for leg in graph.legs if leg.name in subject.pair}
    if graph.tied:
        lengths[graph.key] = lengths[graph.query]
    shapes = [
        {place: lengths[leg] for place, leg in enumerate(leaf.legs, x.ndim - len(leaf.legs)) if leg in lengths}
        for leaf, x in zip(subject.leaves, example, strict=True)
    ]
    return example, tuple(shapes)
