"""One subclass per generated source, with a forward whose signature names the inputs of the design.

torch.export, the Trainer of Hugging Face and editors inspect the signature of a forward. torch.compile limits the
number of graphs per code object, so each design needs a forward of its own; equal layers share one.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from inspect import Parameter
from types import FunctionType
from typing import Any

from torch import nn

from tensornet_attn.nn.call import Shape

Inputs = tuple[tuple[str, Shape, str | None], ...]  # (name, shape, default), as in `Signature`


@lru_cache(maxsize=256)
def named_class(plain: type[nn.Module], inputs: Inputs, tensors: tuple[str, ...], code: str) -> type[nn.Module]:
    """Returns a subclass of the same name whose forward takes these inputs; equal arguments give the same class.

    `tensors`: names of the module's weights and states. `code`: its source.
    """
    shared: Any = plain.forward
    forward = FunctionType(
        shared.__code__.replace(), shared.__globals__, shared.__name__, shared.__defaults__, shared.__closure__
    )
    forward.__kwdefaults__, forward.__annotations__ = shared.__kwdefaults__, shared.__annotations__
    forward.__doc__, forward.__qualname__ = shared.__doc__, shared.__qualname__
    forward.__signature__ = _signature(inspect.signature(shared), inputs)  # type: ignore[attr-defined]
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
    hidden = {name: Hidden() for name in tensors if hasattr(plain, name)}
    return type(plain.__name__, (plain,), {**names, **hidden, "forward": forward, "_plain": plain})


def plain_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The class from which `named_class` derived `kind`, or `kind` itself."""
    return getattr(kind, "_plain", kind)


def _signature(shared: inspect.Signature, inputs: Inputs) -> inspect.Signature:
    """Replaces `*inputs` and `**named` by the inputs of the design and keeps the options."""
    positional, optional = [], False
    for name, _, default in inputs:
        optional |= default is not None  # inputs after an optional one are given by name
        kind = "Tensor | None" if default is not None else "Tensor"
        fallback = None if optional else Parameter.empty
        positional.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=fallback, annotation=kind))
    names = {parameter.name for parameter in positional}
    options = [
        parameter
        for parameter in shared.parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in names
    ]
    receiver = Parameter("_self" if "self" in names else "self", Parameter.POSITIONAL_ONLY)
    return shared.replace(parameters=[receiver, *positional, *options])


class CallSignature:
    """The `__signature__` of a module: that of its forward."""

    def __get__(self, module: nn.Module | None, kind: type[nn.Module]) -> inspect.Signature:
        if module is None:
            raise AttributeError("the class is called to make a module")
        return inspect.signature(module.forward)


class Hidden:
    """Hides a method of this package or of torch whose name is that of a tensor of the design."""

    def __get__(self, module: nn.Module | None, kind: type[nn.Module]) -> Any:
        raise AttributeError("the name of a tensor")
