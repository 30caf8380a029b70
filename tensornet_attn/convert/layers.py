"""Reads layers of other packages that equal a shipped design, weight by weight."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn import compiler
from tensornet_attn.convert import gain
from tensornet_attn.convert.calls import alone, scaling_of
from tensornet_attn.convert.values import fill
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.spec import Design
from tensornet_attn.spec.read import Source

DROPOUTS = ("attention_dropout", "attn_dropout", "attn_dropout_p")  # attributes with the dropout of the map
Numbers = dict[str, Any]  # legs and settings by name
CLOSE = 1e-5  # relative, of the comparison with the layer: many compute rotary positions and norms in float32


@dataclass(frozen=True)
class Reading:
    """How to read layers of some classes as a design, and how to call such a layer by itself.

    `numbers` returns the legs and settings. `weights` maps each weight of the design to a path in the layer and the
    shape there in legs of the design, such as "q_proj.weight: (g j d) f"; 1/3 in a shape selects the second of three
    parts. Without a shape, the legs are those of the design. A function computes a weight that no path can describe.
    `pairs`: weights whose rotary pairs are neighbours in the last leg; in the design they are half a head apart.
    `outside`: parameters that do not affect the output, or that are not converted. `call` returns the output for
    [batch, n, f]. `extra`: overridden keys of the design. `in_models`: its forward has the signature of an attention in
    Hugging Face decoders, so `convert_model` can replace it. `once`: position embeddings have one angle per pair.
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
        """The design with the overridden keys."""
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
        document = design.as_dict()
        if scaling := scaling_of(where, module) if "base" in numbers else {}:
            document = gain.with_scaling(document, scaling)
        if window is not None and "window" not in settings:
            document = gain.with_window(document, graph, *window)
        if dropout:
            document = gain.with_dropout(document, graph, dropout)
        return compiler.load(document) if document != design.as_dict() else design

    def values(self, module: Any, graph: Graph) -> dict[str, Tensor]:
        """The weights of the design, as differentiable functions of those of the module."""
        numbers = {**{leg.name: leg.size for leg in graph.legs}, **self.numbers(module)}
        tensors = {}
        for name, source in self.weights.items():
            legs = list(graph.legs_of(name))
            tensor = laid(module, source, legs, numbers) if isinstance(source, str) else source(module, numbers)
            tensors[name] = halves(tensor, numbers.get("turned", 1.0)) if name in self.pairs else tensor
        return tensors


def window_of(module: Any) -> tuple[int, int] | None:
    """The window of a transformers layer: keys before and after a query. Returns None if it has no window."""
    window = getattr(module, "sliding_window", None)
    return (window - 1, 0 if module.is_causal else window - 1) if window else None


def dropout_of(module: Any) -> float:
    """The dropout probability of the attention map of a transformers layer."""
    dropout = next((getattr(module, name) for name in DROPOUTS if getattr(module, name, None) is not None), 0.0)
    return float(getattr(dropout, "p", dropout))


def laid(module: Any, pattern: str, legs: list[str], sizes: Mapping[str, Any]) -> Tensor:
    """A tensor of a module, permuted to the leg order of the design.

    >>> layer = nn.Linear(2, 12)
    >>> list(laid(layer, "weight: (h 0/2 d) f", ["f", "h", "d"], {"f": 2, "h": 3, "d": 2}).shape)
    [2, 3, 2]
    """
    path, _, shape = pattern.partition(":")
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
    for piece in path.split("."):
        module = module[int(piece)] if piece.isdigit() else getattr(module, piece)
    return module


def halves(tensor: Tensor, fraction: float = 1.0) -> Tensor:
    """Moves the even entries before the odd entries, in the leading `fraction` of the last axis."""
    turned = round(fraction * tensor.shape[-1])
    inside, rest = tensor[..., :turned], tensor[..., turned:]
    return torch.cat((inside[..., ::2], inside[..., 1::2], rest), -1)


def read_as(reading: Reading, module: nn.Module, where: str, backend: str = "auto") -> CompiledDesign:
    """A compiled design with the weights of a module. Raises InputError if outputs differ on random input."""
    layer = copy.deepcopy(module).cpu().double().eval()
    design = reading.sized(layer, where)
    graph = build(design)
    values = reading.values(layer, graph)
    unread = unread_parameters(layer, values.values(), reading.outside)
    if unread:
        raise InputError(f"{where} cannot become '{graph.name}': the design has no place for its '{unread[0]}'.")
    like = next(module.parameters())
    compiled = compiler.compile(design, backend, None, like.device, like.dtype)
    for name, tensor in values.items():
        if tuple(tensor.shape) != tuple(getattr(compiled, name).shape):
            shapes = f"{list(tensor.shape)}, but that of the design is {list(getattr(compiled, name).shape)}"
            raise InputError(f"{where} cannot become '{graph.name}': its '{name}' is {shapes}.")
    fill(compiled, values)
    worst = difference(reading, layer, values)
    if not worst <= CLOSE:
        raise InputError(
            f"{where} cannot become '{graph.name}': their outputs differ by {worst:.1e}, for instance because of an "
            "option in its config."
        )
    return compiled.train(module.training)


def difference(reading: Reading, layer: Any, values: Mapping[str, Tensor]) -> float:
    """The maximum relative difference between a layer's and a design's outputs, on random input in float64."""
    compiled = compiler.reference(reading.sized(layer), device="cpu", dtype=torch.float64).eval()
    fill(compiled, values)
    width = size_of(compiled.plan.graph, compiled.plan.graph.of_role("input")[0].legs[-1]) or 1
    x = torch.randn(2, 9, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        theirs, mine = reading.call(layer, x).double(), compiled(*[x] * needed(compiled))
    return float((theirs - mine).abs().max() / theirs.abs().max().clamp(min=1e-3))


def needed(compiled: CompiledDesign) -> int:
    """The number of inputs without a default."""
    return sum(tensor.default is None for tensor in compiled.plan.graph.of_role("input"))


def unread_parameters(module: nn.Module, values: Iterable[Tensor], outside: tuple[str, ...]) -> list[str]:
    """Parameters that no value depends on. `outside` excludes parameters by the first part of their name."""
    named = {name: parameter for name, parameter in module.named_parameters() if name.split(".")[0] not in outside}
    for parameter in named.values():
        parameter.requires_grad_()
    reached = [tensor.double().sum() for tensor in values if tensor.requires_grad]
    grads = torch.autograd.grad(reached, list(named.values()), allow_unused=True, retain_graph=True)
    return [name for name, grad in zip(named, grads, strict=True) if grad is None]
