"""A layer of the user as a contestant: it is made with the sizes of the design, and gets the design's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature

import torch
from torch import nn

from tensornet_attn import compiler
from tensornet_attn.bench.case import Case
from tensornet_attn.errors import InputError, nearest
from tensornet_attn.named import named

Tensor = torch.Tensor
Values = dict[str, Tensor]
HOOK = "weights_from"


def maker_named(name: str) -> Callable[..., nn.Module]:
    """The class or function of the name `module:name`. Raises InputError if it cannot be imported."""
    return named(name, "contestant", "a class or function that makes a layer", Callable)


@dataclass(frozen=True)
class OwnLayer:
    """A layer of the user.

    `state`: its parameters by name, computed from `weights`, the trainable weights of the design, in float64. `unlike`:
    the reason why its weights are not those of the design; empty if they are.
    """

    module: nn.Module
    weights: Values = field(default_factory=dict)
    state: Values = field(default_factory=dict)
    unlike: str = ""

    def ours(self, values: Values) -> Values:
        """The values with gradients of the weights of the design, instead of those of its own parameters."""
        shared = {name: tensor for name, tensor in values.items() if name == "output" or name.startswith("input ")}
        if len(values) == 1:  # a forward
            return shared
        parts = [name for name in values if name in self.state and self.state[name].requires_grad]
        starts = [values[name].to(self.state[name]) for name in parts]
        computed = [self.state[name] for name in parts]
        gradients = torch.autograd.grad(computed, list(self.weights.values()), starts, allow_unused=True)
        device = values["output"].device
        for (name, weight), gradient in zip(self.weights.items(), gradients, strict=True):
            shared[name] = (torch.zeros_like(weight) if gradient is None else gradient).to(device)
        return shared


def own_layer(name: str, case: Case) -> OwnLayer:
    """The layer of the name `module:name` for a case, in evaluation mode, with the weights of the case if they fit.

    The class or function gets the legs and settings of the design that it has parameters for, and `causal`. A layer
    with other parameters than the design has the method `weights_from(weights)`, which returns its state dict, computed
    from the weights of the design. Raises InputError if the layer cannot be made, or returns no output of the design.
    """
    with torch.random.fork_rng():
        torch.manual_seed(case.seed)
        module = maker_named(name)(**_arguments(name, case))
    if not isinstance(module, nn.Module):
        raise InputError(f"'{name}' made {module!r:.60}; return an nn.Module.")
    module = module.double()
    reference = case.loaded(compiler.reference(case.design, case.causal))
    trainable = {key for key, tensor in reference.named_parameters() if tensor.requires_grad}
    rounded = {key: tensor.to("cpu", torch.float64, copy=True) for key, tensor in reference.state_dict().items()}
    weights = {key: tensor.requires_grad_(key in trainable) for key, tensor in rounded.items()}
    state, unlike = _state(name, module, weights, case)
    if not unlike:
        module.load_state_dict({key: tensor.detach() for key, tensor in state.items()}, strict=False)
    module = module.to(case.device, case.torch_dtype).eval()
    return OwnLayer(module, {key: tensor for key, tensor in weights.items() if key in trainable}, state, unlike)


def check_output(name: str, module: nn.Module, case: Case) -> None:
    """Raises InputError unless the layer returns a tensor with the legs of the design's output."""
    with torch.no_grad():
        output = module(*case.inputs())
    shape, right = getattr(output, "shape", None), list(case.cotangent.shape)
    if shape is None or list(shape) != right:
        shown = type(output).__name__ if shape is None else f"a tensor of shape {list(shape)}"
        raise InputError(f"'{name}' returns {shown}; return a tensor of shape {right}, the output of the design.")


def _arguments(name: str, case: Case) -> dict[str, object]:
    """The legs, settings and `causal` that the maker has parameters for. Raises InputError if it needs others."""
    sizes = {key: size for key, size in case.sizes.items() if size is not None} | {"causal": case.graph.causal}
    arguments = {}
    for key, parameter in signature(maker_named(name)).parameters.items():
        if key in sizes:
            arguments[key] = sizes[key]
        elif parameter.default is Parameter.empty and parameter.kind not in (
            Parameter.VAR_POSITIONAL,
            Parameter.VAR_KEYWORD,
        ):
            raise InputError(
                f"'{name}' needs '{key}', which is no leg or setting of '{case.design.name}': {nearest(key, sizes)} "
                "Give it a default, or name a function that makes the layer."
            )
    return arguments


def _state(name: str, module: nn.Module, weights: Values, case: Case) -> tuple[Values, str]:
    """The state of a layer as computed from weights of the design, and why it has none. Raises InputError."""
    shapes = {key: list(tensor.shape) for key, tensor in module.state_dict().items()}
    parameters = [key for key, _ in module.named_parameters()]
    if hasattr(module, HOOK):
        state = getattr(module, HOOK)(weights)
        wrong = _wrong_state(state, shapes, parameters)
        if wrong:
            raise InputError(f"'{HOOK}' of '{name}' {wrong}")
        return dict(state), ""
    state = {key: tensor for key, tensor in weights.items() if shapes.get(key) == list(tensor.shape)}
    for key in parameters:
        if key not in state:
            return {}, f"its parameter '{key}' {shapes[key]} is no weight of '{case.design.name}'"
    for key, tensor in weights.items():
        if tensor.requires_grad and key not in state:
            return {}, f"it has no parameter '{key}' {list(tensor.shape)}, a weight of '{case.design.name}'"
    return state, ""


def _wrong_state(state: object, shapes: Mapping[str, list[int]], parameters: list[str]) -> str:
    """What is wrong with the result of `weights_from`; empty if nothing is."""
    if not isinstance(state, Mapping):
        return f"returns {type(state).__name__}; return a dict of tensors by the names of the layer's state dict."
    for key in [*state, *parameters]:
        if key not in shapes:
            return f"gives '{key}', which is not in the layer's state dict: {nearest(str(key), shapes)}"
        if key not in state:
            return f"gives no '{key}' {shapes[key]}; add it."
        if list(state[key].shape) != shapes[key]:
            return f"gives '{key}' the shape {list(state[key].shape)}; the layer has {shapes[key]}."
    if not any(tensor.requires_grad for tensor in state.values()):
        return "gives no tensor with a gradient: compute all of them from its argument, without detach or no_grad."
    return ""
