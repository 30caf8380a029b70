"""Compares a layer of another package with the design that computes the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn.convert.attentions import place_of
from tensornet_attn.convert.calls import alone
from tensornet_attn.convert.export import reader_of, written
from tensornet_attn.convert.layers import Reading, needed, read_as
from tensornet_attn.convert.make import convert
from tensornet_attn.errors import MissingPartError
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.nn.module import CompiledDesign

POSITIONS = 11  # longer than the windows of all layers


@dataclass(frozen=True)
class ParityLayer:
    """A layer to compare. `make` returns the module at small sizes; `design` is the argument of `convert`.

    `reading`: how to read its weights, if `convert` does not support the class. `call`: its output for [batch, n, f].
    `single`: the parts that run in float32 whatever the dtype of the weights, which limits the agreement.
    """

    package: str  # name of the distribution
    name: str
    design: str | Mapping[str, Any]
    make: Callable[[], nn.Module]
    reading: Reading | None = None
    call: Callable[[Any, Tensor], Tensor] | None = None
    single: str = ""
    legs: Mapping[str, int] | None = None

    @property
    def design_name(self) -> str:
        return self.design if isinstance(self.design, str) else str(self.design["name"])

    def drawn(self, seed: int = 0) -> nn.Module:
        """The module in float64 and evaluation mode, with random parameters, so that none is zero or one."""
        if find_spec(MODULES[self.package]) is None:
            raise MissingPartError(f"{self.name} needs {self.package}: pip install 'tensornet-attn[test]'.")
        module = self.make().double().eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.normal_(0, 0.3, generator=generator)
        return module

    def converted(self, module: nn.Module) -> CompiledDesign:
        """The design with the weights of a module."""
        if self.reading is not None:
            return read_as(self.reading, module, place_of(module, ""))
        return convert(module, self.design, legs=self.legs)

    def exported(self, layer: CompiledDesign, module: nn.Module) -> nn.Module:
        """The module with the weights of the design."""
        return written(layer, module, reader_of(module, self.design, layer, self.reading), place_of(module, ""))

    def called(self, module: nn.Module, x: Tensor) -> Tensor:
        call = self.call or (self.reading.call if self.reading is not None else alone)
        return call(module, x)


MODULES = {"transformers": "transformers", "x-transformers": "x_transformers", "fla-core": "fla", "torch": "torch"}


@dataclass(frozen=True)
class Agreement:
    """The maximum differences of outputs, of gradients, and of weights that are exported and read again.

    They are relative to the maximum value of the layer. `plan` describes how the design is computed.
    """

    output: float
    gradients: float
    back: float
    plan: str


def compare(layer: ParityLayer) -> Agreement:
    """Compares a layer and its design in float64: outputs, and gradients of the input and of all parameters.

    The derivatives of the reading map the gradients of the design's weights to those of the module's parameters.
    """
    theirs = layer.drawn()
    ours = layer.converted(theirs)
    width = size_of(ours.plan.graph, ours.plan.graph.of_role("input")[0].legs[-1]) or 1
    generator = torch.Generator().manual_seed(1)
    x, towards = (torch.randn(2, POSITIONS, width, generator=generator, dtype=torch.float64) for _ in range(2))
    our_input, their_input = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = ours(*[our_input] * needed(ours)), layer.called(theirs, their_input)
    named = dict(theirs.named_parameters())
    (y * towards).sum().backward()
    grads = torch.autograd.grad((expected * towards).sum(), [their_input, *named.values()], allow_unused=True)
    read = reader_of(theirs, layer.design, ours, layer.reading)(theirs)
    weights = [(read[name], weight.grad) for name, weight in ours.named_parameters()]
    reached = [(weight, grad) for weight, grad in weights if weight.requires_grad and grad is not None]
    carried = torch.autograd.grad(
        [weight for weight, _ in reached], list(named.values()), [grad for _, grad in reached], allow_unused=True
    )
    pairs = [(our_input.grad, grads[0]), *zip(carried, grads[1:], strict=True)]
    compared = [(a, b) for a, b in pairs if a is not None and b is not None]
    largest = max(float(b.abs().max()) for _, b in compared)  # of all: the gradient of a key bias is only rounding
    differences = [float((a - b).abs().max()) / largest for a, b in compared]
    unread = [name for name, a, b in zip(named, carried, grads[1:], strict=True) if (a is None) != (b is None)]
    assert not unread, f"{layer.name}: only one side has gradients of {', '.join(unread)}"
    exported = layer.exported(ours, layer.drawn(seed=2))
    read_back = reader_of(exported, layer.design, ours, layer.reading)(exported)
    lost = max(float((read_back[name] - weight).detach().abs().max()) for name, weight in read.items())
    output = float(((y - expected).abs().max() / expected.abs().max().clamp(min=1e-12)).detach())
    return Agreement(output, max(differences), lost, plan_of(ours))


PLAIN = re.compile(r"dense|one product|one pass|two operands")


def plan_of(layer: CompiledDesign) -> str:
    """The implementations of the plan in the words of `explain`, without plain products."""
    steps = [line.split(": ") for line in layer.explain().splitlines() if line.startswith("  ") and line[2] != " "]
    implementations = dict.fromkeys(fields[1] for fields in steps if len(fields) > 1 and not PLAIN.match(fields[1]))
    return ", ".join(implementations) or "as written"
