"""Writes the weights of a compiled design back into a layer of the class that it was converted from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn.compiler import list_designs
from tensornet_attn.convert.attentions import place_of, read_traced
from tensornet_attn.convert.known import reading_of
from tensornet_attn.convert.layers import Reading
from tensornet_attn.convert.make import values_of
from tensornet_attn.convert.wrap import Swapped
from tensornet_attn.errors import InputError
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.spec.read import Source

Values = Mapping[str, Tensor]


def export_to(layer: nn.Module, module: nn.Module | None = None, design: Source | None = None) -> nn.Module:
    """Writes the weights of `layer` into `module` and returns `module`. The inverse of `convert`.

    `layer` was converted from `module`, or from another module of its class and sizes. Parameters that `convert` does
    not read, such as those of a LayerNorm after the attention, do not change. `design` is the design that was passed to
    `convert`; it is needed if the design is not a shipped one. Raises InputError if the module cannot represent the
    weights, for instance because training mixed the maps of heads; the module is then unchanged.

    `layer` may also be a model that `convert_model` has converted; `module` is then a model of its original class, and
    if it is left out, a new one is made from the config of a model of transformers.

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
    return exported(layer, module, lambda swapped, target, path: _one(swapped.design, target, design, path))


def _one(layer: CompiledDesign, module: nn.Module, design: Source | None, path: str) -> nn.Module:
    name = layer.design.name
    if design is None:
        if name not in list_designs():
            raise InputError(f"'{name}' is not a shipped design; give the design of the conversion as design=...")
        design = name
    return written(layer, module, reader_of(module, design, layer), place_of(module, path))


def reader_of(
    module: nn.Module, design: Source, layer: CompiledDesign, reading: Reading | None = None
) -> Callable[[nn.Module], Values]:
    """A differentiable function from a module of this class to the weights of the design."""
    known_reading = reading or reading_of(module, design)
    if known_reading is not None:
        return lambda layer_module: known_reading.values(layer_module, layer.plan.graph)
    return lambda layer_module: values_of(read_traced(layer_module), design)


def written(layer: CompiledDesign, module: nn.Module, read: Callable[[nn.Module], Values], where: str) -> nn.Module:
    """Sets the module's weights so that `read` returns those of the layer. Raises InputError if this is impossible.

    `read` is an affine function with one module parameter per result, so its derivatives give the inverse.
    """
    like = next(module.parameters())
    target = {name: tensor.detach().cpu().double() for name, tensor in layer.state_dict().items()}
    copied = copy.deepcopy(module).cpu().double()
    parameters = [number.requires_grad_() for number in numbers_of(copied)]
    values = read(copied)
    kind = type(module).__name__
    if reason := _misfit(target, values, kind):
        raise InputError(f"{where} cannot take '{layer.design.name}': {reason}.")
    names = list(target)
    flat = torch.cat([values[name].double().reshape(-1) for name in names])
    wanted = torch.cat([target[name].reshape(-1) for name in names])
    solved = _solved(flat, wanted, parameters)
    with torch.no_grad():
        for parameter, tensor in zip(parameters, solved, strict=True):
            parameter.copy_(tensor)
        reached = read(copied)
        for name in names:
            apart = float((reached[name] - target[name]).abs().max()) if target[name].numel() else 0.0
            if not apart <= 1e-5 * max(1.0, float(target[name].abs().max())):
                reason = f"a {kind} cannot represent its '{name}' (difference {apart:.1e})"
                raise InputError(f"{where} cannot take '{layer.design.name}': {reason}.")
        for parameter, tensor in zip(numbers_of(module), parameters, strict=True):
            parameter.copy_(tensor.to(like.device, parameter.dtype))
    return module


def numbers_of(module: nn.Module) -> list[Tensor]:
    """The parameters and floating-point buffers of a module. Buffers are, for instance, the biases of a router."""
    return [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]


def _misfit(target: Values, values: Values, kind: str) -> str:
    """The reason why names or shapes of the weights do not match those of a module, or an empty string."""
    for name, tensor in target.items():
        if name not in values:
            return f"a {kind} has no weight for its '{name}'"
        if values[name].shape != tensor.shape:
            return f"its '{name}' is {list(tensor.shape)}, but that of a {kind} is {list(values[name].shape)}"
    missing = next((name for name in values if name not in target), "")
    return f"it has no '{missing}', which a {kind} has" if missing else ""


def _solved(flat: Tensor, wanted: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """Solves `flat` = `wanted` for the parameters. Parameters that `flat` does not depend on do not change."""

    def pull(weights: Tensor, graph: bool = False) -> list[Tensor]:
        grads = torch.autograd.grad(flat, parameters, weights, retain_graph=True, create_graph=graph, allow_unused=True)
        return [
            torch.zeros_like(parameter) if grad is None else grad
            for grad, parameter in zip(grads, parameters, strict=True)
        ]

    zero = torch.zeros_like(flat, requires_grad=True)
    pulled = pull(zero, graph=True)

    def push(tangents: list[Tensor]) -> Tensor:
        total = reduce(torch.add, ((grad * tangent).sum() for grad, tangent in zip(pulled, tangents, strict=True)))
        return torch.autograd.grad(total, zero, retain_graph=True)[0]

    factor = push([torch.ones_like(parameter) for parameter in parameters])
    rest = flat.detach() - push([parameter.detach() for parameter in parameters])
    read = factor != 0
    inverse = torch.where(read, 1 / torch.where(read, factor, 1), 0)
    number = (wanted - rest) * inverse
    sums, counts = pull(number * inverse), pull(inverse)
    return [
        torch.where(count > 0.5, total / count.clamp(min=1), parameter.detach())
        for total, count, parameter in zip(sums, counts, parameters, strict=True)
    ]


Write = Callable[[Swapped, nn.Module, str], nn.Module]  # a design's weights into an attention at this place


def exported(model: nn.Module, into: nn.Module | None, write: Write) -> nn.Module:
    """`into`, or a new model of transformers, with the weights of a converted one. Raises InputError; `into` stays."""
    swapped_by_path = {
        path: swapped_module
        for path, swapped_module in model.named_modules(remove_duplicate=False)
        if isinstance(swapped_module, Swapped)
    }
    name = type(model).__name__
    if not swapped_by_path:
        raise InputError(f"{name} has no attention that convert_model swapped.")
    target = copy.deepcopy(into) if into is not None else _made(model)
    rest = {
        key: tensor
        for key, tensor in model.state_dict().items()
        if not any(key.startswith(f"{path}.") for path in swapped_by_path)
    }
    try:
        missing, more = target.load_state_dict(rest, strict=False)
    except RuntimeError as error:  # of other sizes
        raise InputError(f"{type(target).__name__} cannot take the weights of {name}: {error}") from None
    missing = [key for key in missing if not any(key.startswith(f"{path}.") for path in swapped_by_path)]
    if missing or more:
        which = f"has no '{more[0]}'" if more else f"has '{missing[0]}', which the other lacks"
        raise InputError(f"{type(target).__name__} cannot take the weights of {name}: it {which}.")
    modules = dict(target.named_modules(remove_duplicate=False))
    for path, swapped_module in swapped_by_path.items():
        module = modules.get(path)
        if module is None:
            raise InputError(f"{type(target).__name__} cannot take the weights of {name}: it has no module '{path}'.")
        norm = (*swapped_module.replaced.behind, "", "")[1]
        if norm:
            module.get_submodule(norm).load_state_dict(swapped_module.LayerNorm.state_dict())
        write(swapped_module, module, path)
    if into is None:
        return target
    with torch.no_grad():
        into.load_state_dict(target.state_dict())
    return into


def _made(model: Any) -> nn.Module:
    """A model of the class that was converted, in the dtype and on the device of the converted one."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(type(model), "from_pretrained"):
        reason = f"{type(model).__name__} is no model of transformers, which its config makes again"
        raise InputError(f"{reason}: give the model to write into, of the class that convert_model was given.")
    like = next(model.parameters())
    fresh: nn.Module = type(model)(copy.deepcopy(config)).to(like.device, like.dtype)
    modules = dict(fresh.named_modules())
    for path, module in model.named_modules():
        for name in [*modules[path]._modules] if path in modules else []:
            if getattr(module, name, fresh) is None:  # as a pooler that was left out
                setattr(modules[path], name, None)
    return fresh.train(model.training)
