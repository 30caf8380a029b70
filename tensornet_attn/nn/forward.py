"""A class for the modules of each generated code: its forward names the inputs of the design.

torch.export, Hugging Face's Trainer and editors read a forward by its signature. torch.compile counts graphs by the
code object of a forward: designs that shared one would run into its limit together, and equal layers share theirs.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from inspect import Parameter
from types import FunctionType
from typing import Any

from torch import nn

from tensornet_attn.nn.call import Shape

Inputs = tuple[tuple[str, Shape, str | None], ...]  # (name, shape, default), as those of a `Signature`


@lru_cache(maxsize=256)
def named_class(plain: type[nn.Module], inputs: Inputs, tensors: tuple[str, ...], code: str) -> type[nn.Module]:
    """A subclass of the same name, with a forward of its own that takes these inputs; one for equal arguments.

    `tensors`: the names that its modules hold. `code`: what they run.
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
    """The class that a class of `named_class`, or one that was made from it, came from; any other as it is."""
    return getattr(kind, "_plain", kind)


def _signature(shared: inspect.Signature, inputs: Inputs) -> inspect.Signature:
    """Inputs by position or by name in the place of `*inputs` and `**named`; the options stay."""
    given, optional = [], False
    for name, _, default in inputs:
        optional |= default is not None  # what follows an input that may be left out is given by name
        kind = "Tensor | None" if default is not None else "Tensor"
        value = None if optional else Parameter.empty
        given.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value, annotation=kind))
    taken = {parameter.name for parameter in given}
    options = [one for one in shared.parameters.values() if one.kind is one.KEYWORD_ONLY and one.name not in taken]
    own = Parameter("_self" if "self" in taken else "self", Parameter.POSITIONAL_ONLY)
    return shared.replace(parameters=[own, *given, *options])


class CallSignature:
    """What `inspect.signature(module)` reads: the signature of the module's forward."""

    def __get__(self, module: nn.Module | None, kind: type[nn.Module]) -> inspect.Signature:
        if module is None:
            raise AttributeError("the class is called to make a module")
        return inspect.signature(module.forward)


class Hidden:
    """A method that a later version of the package, or of torch, gave the name of a design's tensor: it gives way."""

    def __get__(self, module: nn.Module | None, kind: type[nn.Module]) -> Any:
        raise AttributeError("the name of a tensor")
