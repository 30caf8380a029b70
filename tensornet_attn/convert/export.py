"""Writes the weights of a compiled design back into a layer of the kind that it was read from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from tensornet_attn.compiler import list_designs
from tensornet_attn.convert.export_model import exported
from tensornet_attn.convert.known import reading_of
from tensornet_attn.convert.make import values_of
from tensornet_attn.convert.read import place_of, read_traced
from tensornet_attn.convert.reading import Reading
from tensornet_attn.errors import InputError
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.spec.read import Source

Values = Mapping[str, Tensor]


def export_to(layer: nn.Module, module: nn.Module | None = None, design: Source | None = None) -> nn.Module:
    """The module, with the weights of a layer that `convert` made of it, or of another of its class and sizes.

    What `convert` does not read, such as a LayerNorm behind the attention, stays. `design`: the one that was given to
    `convert`, where it is not a shipped one. Raises InputError, and then the module is as it was, where training gave
    the design weights that no module of this kind can hold, such as maps that several heads mix.

    Of a model that `convert_model` converted: a model of its class before, with all its weights; without `module`, a
    new one, of a model of transformers.

    >>> from tensornet_attn.convert.make import convert
    >>> theirs, back = nn.MultiheadAttention(16, 4), nn.MultiheadAttention(16, 4)
    >>> ours = convert(theirs, "mhsa")
    >>> bool(torch.equal(export_to(ours, back).in_proj_weight, theirs.in_proj_weight))
    True
    """
    if isinstance(layer, CompiledDesign):
        if module is None:
            raise InputError("give the module to write into, of the kind that convert was given.")
        return _one(layer, module, design, "")
    return exported(layer, module, lambda swapped, own, path: _one(swapped.design, own, design, path))


def _one(layer: CompiledDesign, module: nn.Module, design: Source | None, path: str) -> nn.Module:
    name = layer.design.name
    if design is None:
        if name not in list_designs():
            raise InputError(f"'{name}' is no shipped design: give design=..., the one that convert was given.")
        design = name
    return written(layer, module, reader_of(module, design, layer), place_of(module, path))


def reader_of(
    module: nn.Module, design: Source, layer: CompiledDesign, reading: Reading | None = None
) -> Callable[[nn.Module], Values]:
    """What reads the weights of a design out of a module of this kind, through which gradients flow back."""
    known = reading or reading_of(module, design)
    if known is not None:
        return lambda own: known.values(own, layer.plan.graph)
    return lambda own: values_of(read_traced(own), design)


def written(layer: CompiledDesign, module: nn.Module, read: Callable[[nn.Module], Values], where: str) -> nn.Module:
    """The module with the weights at which `read` gives those of the layer. Raises InputError where there are none.

    Each number that is read is a number of the module, times a factor and plus another. So the reading is solved as
    it stands, backwards: its derivatives say which number came from where.
    """
    like = next(module.parameters())
    target = {name: value.detach().cpu().double() for name, value in layer.state_dict().items()}
    own = copy.deepcopy(module).cpu().double()
    parameters = [one.requires_grad_() for one in numbers_of(own)]
    values = read(own)
    kind = type(module).__name__
    if reason := _misfit(target, values, kind):
        raise InputError(f"{where} cannot take '{layer.design.name}': {reason}.")
    names = list(target)
    flat = torch.cat([values[name].double().reshape(-1) for name in names])
    wanted = torch.cat([target[name].reshape(-1) for name in names])
    solved = _solved(flat, wanted, parameters)
    with torch.no_grad():
        for parameter, value in zip(parameters, solved, strict=True):
            parameter.copy_(value)
        found = read(own)
        for name in names:
            apart = float((found[name] - target[name]).abs().max()) if target[name].numel() else 0.0
            if not apart <= 1e-5 * max(1.0, float(target[name].abs().max())):
                reason = f"its '{name}' has values that no {kind} holds, by {apart:.1e}"
                raise InputError(f"{where} cannot take '{layer.design.name}': {reason}.")
        for parameter, value in zip(numbers_of(module), parameters, strict=True):
            parameter.copy_(value.to(like.device, parameter.dtype))
    return module


def numbers_of(module: nn.Module) -> list[Tensor]:
    """The parameters of a module and its buffers, such as the biases of a router."""
    return [*module.parameters(), *(one for one in module.buffers() if one.is_floating_point())]


def _misfit(target: Values, values: Values, kind: str) -> str:
    """Why the weights of a design are not those that a module of a kind has; empty where they are."""
    for name, value in target.items():
        if name not in values:
            return f"a {kind} has nothing for its '{name}'"
        if values[name].shape != value.shape:
            return f"its '{name}' is {list(value.shape)}, and that of a {kind} {list(values[name].shape)}"
    missing = next((name for name in values if name not in target), "")
    return f"it has no '{missing}', which a {kind} has" if missing else ""


def _solved(flat: Tensor, wanted: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """Parameters p at which a p + b, which is what was read, is what is wanted; those that are not read as they are."""

    def pull(weights: Tensor, graph: bool = False) -> list[Tensor]:
        given = torch.autograd.grad(flat, parameters, weights, retain_graph=True, create_graph=graph, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(given, parameters, strict=True)]

    zero = torch.zeros_like(flat, requires_grad=True)
    pulled = pull(zero, graph=True)

    def push(tangents: list[Tensor]) -> Tensor:
        total = sum((g * t).sum() for g, t in zip(pulled, tangents, strict=True))
        return torch.autograd.grad(total, zero, retain_graph=True)[0]

    factor = push([torch.ones_like(p) for p in parameters])
    rest = flat.detach() - push([p.detach() for p in parameters])
    read = factor != 0
    inverse = torch.where(read, 1 / torch.where(read, factor, 1), 0)
    number = (wanted - rest) * inverse
    sums, counts = pull(number * inverse), pull(inverse)
    return [
        torch.where(count > 0.5, total / count.clamp(min=1), p.detach())
        for total, count, p in zip(sums, counts, parameters, strict=True)
    ]
