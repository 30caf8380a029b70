"""Writes the weights of a compiled design back into a layer of the class that it was converted from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn.compiler import list_designs
from tensornet_attn.convert.known import reading_of
from tensornet_attn.convert.make import values_of
from tensornet_attn.convert.read import place_of, read_traced
from tensornet_attn.convert.reading import Reading
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
    return exported(layer, module, lambda swapped, own, path: _one(swapped.design, own, design, path))


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
    known = reading or reading_of(module, design)
    if known is not None:
        return lambda own: known.values(own, layer.plan.graph)
    return lambda own: values_of(read_traced(own), design)


def written(layer: CompiledDesign, module: nn.Module, read: Callable[[nn.Module], Values], where: str) -> nn.Module:
    """Sets the module's weights so that `read` returns those of the layer. Raises InputError if this is impossible.

    `read` is an affine function with one module parameter per result, so its derivatives give the inverse.
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
                reason = f"a {kind} cannot represent its '{name}' (difference {apart:.1e})"
                raise InputError(f"{where} cannot take '{layer.design.name}': {reason}.")
        for parameter, value in zip(numbers_of(module), parameters, strict=True):
            parameter.copy_(value.to(like.device, parameter.dtype))
    return module


def numbers_of(module: nn.Module) -> list[Tensor]:
    """The parameters and floating-point buffers of a module. Buffers are, for instance, the biases of a router."""
    return [*module.parameters(), *(one for one in module.buffers() if one.is_floating_point())]


def _misfit(target: Values, values: Values, kind: str) -> str:
    """The reason why names or shapes of the weights do not match those of a module, or an empty string."""
    for name, value in target.items():
        if name not in values:
            return f"a {kind} has no weight for its '{name}'"
        if values[name].shape != value.shape:
            return f"its '{name}' is {list(value.shape)}, but that of a {kind} is {list(values[name].shape)}"
    missing = next((name for name in values if name not in target), "")
    return f"it has no '{missing}', which a {kind} has" if missing else ""


def _solved(flat: Tensor, wanted: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """Solves `flat` = `wanted` for the parameters. Parameters that `flat` does not depend on do not change."""

    def pull(weights: Tensor, graph: bool = False) -> list[Tensor]:
        given = torch.autograd.grad(flat, parameters, weights, retain_graph=True, create_graph=graph, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(given, parameters, strict=True)]

    zero = torch.zeros_like(flat, requires_grad=True)
    pulled = pull(zero, graph=True)

    def push(tangents: list[Tensor]) -> Tensor:
        total = reduce(torch.add, ((g * t).sum() for g, t in zip(pulled, tangents, strict=True)))
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


Write = Callable[[Swapped, nn.Module, str], nn.Module]  # a design's weights into an attention at this place


def exported(model: nn.Module, into: nn.Module | None, write: Write) -> nn.Module:
    """`into`, or a new model of transformers, with the weights of a converted one. Raises InputError; `into` stays."""
    swapped = {path: one for path, one in model.named_modules(remove_duplicate=False) if isinstance(one, Swapped)}
    name = type(model).__name__
    if not swapped:
        raise InputError(f"{name} has no attention that convert_model swapped.")
    made = copy.deepcopy(into) if into is not None else _made(model)
    rest = {
        key: value
        for key, value in model.state_dict().items()
        if not any(key.startswith(f"{path}.") for path in swapped)
    }
    try:
        missing, more = made.load_state_dict(rest, strict=False)
    except RuntimeError as error:  # of other sizes
        raise InputError(f"{type(made).__name__} cannot take the weights of {name}: {error}") from None
    missing = [key for key in missing if not any(key.startswith(f"{path}.") for path in swapped)]
    if missing or more:
        which = f"has no '{more[0]}'" if more else f"has '{missing[0]}', which the other lacks"
        raise InputError(f"{type(made).__name__} cannot take the weights of {name}: it {which}.")
    places = dict(made.named_modules(remove_duplicate=False))
    for path, one in swapped.items():
        module = places.get(path)
        if module is None:
            raise InputError(f"{type(made).__name__} cannot take the weights of {name}: it has no module '{path}'.")
        norm = (*one.place.behind, "", "")[1]
        if norm:
            module.get_submodule(norm).load_state_dict(one.LayerNorm.state_dict())
        write(one, module, path)
    if into is None:
        return made
    with torch.no_grad():
        into.load_state_dict(made.state_dict())
    return into


def _made(model: Any) -> nn.Module:
    """A model of the class that was converted, in the dtype and on the device of the converted one."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(type(model), "from_pretrained"):
        reason = f"{type(model).__name__} is no model of transformers, which its config makes again"
        raise InputError(f"{reason}: give the model to write into, of the class that convert_model was given.")
    like = next(model.parameters())
    made: nn.Module = type(model)(copy.deepcopy(config)).to(like.device, like.dtype)
    places = dict(made.named_modules())
    for path, module in model.named_modules():
        for name in [*places[path]._modules] if path in places else []:
            if getattr(module, name, made) is None:  # as a pooler that was left out
                setattr(places[path], name, None)
    return made.train(model.training)
