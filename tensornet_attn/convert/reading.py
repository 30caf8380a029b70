"""Layers of other packages that are a shipped design as they stand: how their weights are read, name by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn import compiler
from tensornet_attn.convert.calls import alone
from tensornet_attn.convert.rotary import scaling_of
from tensornet_attn.convert.values import fill
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.model import Graph
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.spec import Design
from tensornet_attn.spec.read import Source
from tensornet_attn.special import gain

DROPOUTS = ("attention_dropout", "attn_dropout", "attn_dropout_p")  # where a layer has that of its map
Numbers = dict[str, Any]  # legs and settings by name
CLOSE = (
    1e-5  # of the check against the layer itself, relative: many turn and normalise in float32, whatever their dtype
)


@dataclass(frozen=True)
class Reading:
    """How a layer of some classes is read as one design, and is called alone.

    `numbers` gives the legs and settings. `weights` says where each weight of the design stands: a path and the shape
    there in the legs of the design, "q_proj.weight: (g j d) f"; 1/3 in a shape is the second of three parts. Without a
    shape the legs are the design's own; what no path says, a function gives, in the design's legs. `pairs`: weights
    whose last leg has those entries beside each other that rotary positions turn together, and the design half the
    turned part apart. `outside`: parameters that the layer's own output does not depend on, or that stay where they
    are. `call`: its output for [batch, n, f]. `extra`: what of the design is written again.
    `in_models`: its forward is called as that of an attention in Hugging Face's decoders, so that `convert_model` can
    put the design in its place; `once`: these give the angle of a pair once.
    """

    design: str
    classes: tuple[str, ...]
    numbers: Callable[[Any], Numbers]
    weights: Mapping[str, str | Callable[[Any, Numbers], Tensor]]
    pairs: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    call: Callable[[Any, Tensor], Tensor] = alone
    extra: Mapping[str, Any] = field(default_factory=dict)
    in_models: bool = False
    once: bool = False

    def source(self) -> Source:
        """The design, with what is written again."""
        child = {"tensornet": 1, "name": f"{self.design}_read", "extends": self.design}
        return {**child, **self.extra} if self.extra else self.design

    def sized(self, module: Any, where: str = "") -> Design:
        """The design at the sizes of a module, with what this has and the design has not: a window, dropout, scaled
        rotary positions. Raises InputError, naming `where`, for such as no design has."""
        plain, numbers = compiler.load(self.source()), self.numbers(module)
        legs = {name: number for name, number in numbers.items() if name in plain.legs}
        settings = {name: number for name, number in numbers.items() if name not in plain.legs}
        design = compiler.load(self.source(), legs=legs, settings=settings)
        graph, window, dropout = build(design), window_of(module), dropout_of(module)
        data = design.as_dict()
        if scaling := scaling_of(where, module) if "base" in numbers else {}:
            data = gain.with_scaling(data, scaling)
        if window is not None and "window" not in settings:
            data = gain.with_window(data, graph, *window)
        if dropout:
            data = gain.with_dropout(data, graph, dropout)
        return compiler.load(data) if data != design.as_dict() else design

    def values(self, module: Any, graph: Graph) -> dict[str, Tensor]:
        """The weights of the design, not detached from those of the module."""
        numbers = {**{leg.name: leg.size for leg in graph.legs}, **self.numbers(module)}
        found = {}
        for name, place in self.weights.items():
            legs = list(graph.legs_of(name))
            value = laid(module, place, legs, numbers) if isinstance(place, str) else place(module, numbers)
            found[name] = halves(value, numbers.get("turned", 1.0)) if name in self.pairs else value
        return found


def window_of(module: Any) -> tuple[int, int] | None:
    """How many keys before and after it a query of a layer of transformers sees, its window's; None where all."""
    window = getattr(module, "sliding_window", None)
    return (window - 1, 0 if module.is_causal else window - 1) if window else None


def dropout_of(module: Any) -> float:
    """On the attention map of a layer of transformers."""
    held = next((getattr(module, name) for name in DROPOUTS if getattr(module, name, None) is not None), 0.0)
    return float(getattr(held, "p", held))


def laid(module: Any, text: str, legs: list[str], sizes: Mapping[str, Any]) -> Tensor:
    """A tensor of a module with the legs of a design in their order.

    >>> layer = nn.Linear(2, 12)
    >>> list(laid(layer, "weight: (h 0/2 d) f", ["f", "h", "d"], {"f": 2, "h": 3, "d": 2}).shape)
    [2, 3, 2]
    """
    path, _, shape = text.partition(":")
    tensor = at(module, path.strip())
    if not shape:
        return tensor
    words = shape.replace("(", " ").replace(")", " ").split()
    tensor = tensor.reshape([int(word.split("/")[1]) if "/" in word else int(sizes[word]) for word in words])
    for axis, word in reversed(list(enumerate(words))):
        if "/" in word:
            tensor = tensor.select(axis, int(word.split("/")[0]))
    names = [word for word in words if "/" not in word]
    return tensor.permute([names.index(leg) for leg in legs])


def at(module: Any, path: str) -> Any:
    """What stands at a dotted path."""
    for piece in path.split("."):
        module = module[int(piece)] if piece.isdigit() else getattr(module, piece)
    return module


def halves(value: Tensor, part: float = 1.0) -> Tensor:
    """Of the first part of the last axis, the entries at even places, then those at odd ones; the rest stays."""
    turned = round(part * value.shape[-1])
    inside, rest = value[..., :turned], value[..., turned:]
    return torch.cat((inside[..., ::2], inside[..., 1::2], rest), -1)


def read_as(
    reading: Reading, module: nn.Module, where: str, backend: str = "auto", causal: bool | None = None
) -> CompiledDesign:
    """A compiled design with the weights of a module, compared with the module on random input. Raises InputError."""
    own = copy.deepcopy(module).cpu().double().eval()
    design = reading.sized(own, where)
    graph = build(design)
    values = reading.values(own, graph)
    unread = unread_parameters(own, values.values(), reading.outside)
    if unread:
        raise InputError(f"{where} cannot become '{graph.name}': its '{unread[0]}' has no place there.")
    like = next(module.parameters())
    made = compiler.compile(design, backend, causal, like.device, like.dtype)
    for name, value in values.items():
        if tuple(value.shape) != tuple(getattr(made, name).shape):
            shapes = f"{list(value.shape)}, and that of the design is {list(getattr(made, name).shape)}"
            raise InputError(f"{where} cannot become '{graph.name}': its '{name}' is {shapes}.")
    fill(made, values)
    worst = difference(reading, own, values, causal)
    if not worst <= CLOSE:
        raise InputError(
            f"{where} cannot become '{graph.name}': their outputs differ by {worst:.1e}, so that it computes something "
            "of its own, as by an option of its config."
        )
    return made.train(module.training)


def difference(reading: Reading, own: Any, values: Mapping[str, Tensor], causal: bool | None = None) -> float:
    """Of the outputs of a layer in float64 and of the design, on random input, relative to the largest."""
    made = compiler.reference(reading.sized(own), causal, device="cpu", dtype=torch.float64).eval()
    fill(made, values)
    width = made.plan.graph.leg[made.plan.graph.of_role("input")[0].legs[-1]].size or 1
    x = torch.randn(2, 9, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        theirs, mine = reading.call(own, x).double(), made(*[x] * needed(made))
    return float((theirs - mine).abs().max() / theirs.abs().max().clamp(min=1e-3))


def needed(made: CompiledDesign) -> int:
    """How many inputs a call has to give."""
    return sum(tensor.default is None for tensor in made.plan.graph.of_role("input"))


def unread_parameters(module: nn.Module, values: Iterable[Tensor], outside: tuple[str, ...]) -> list[str]:
    """The parameters that reach none of the values, but for those that stay outside, by the first piece of a name."""
    named = {name: parameter for name, parameter in module.named_parameters() if name.split(".")[0] not in outside}
    for parameter in named.values():
        parameter.requires_grad_()
    reached = [value.double().sum() for value in values if value.requires_grad]
    grads = torch.autograd.grad(sum(reached), list(named.values()), allow_unused=True, retain_graph=True)
    return [name for name, grad in zip(named, grads, strict=True) if grad is None]
