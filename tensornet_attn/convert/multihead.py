"""A drop-in replacement of nn.MultiheadAttention that computes a design."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn import compiler
from tensornet_attn.convert import gain
from tensornet_attn.convert.beside import maps, split_float_mask
from tensornet_attn.convert.masks import same_for_all_heads
from tensornet_attn.errors import DesignError, InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.attention import map_of, summing
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph
from tensornet_attn.ir.arithmetic import Number
from tensornet_attn.ir.steps import legs_in
from tensornet_attn.nn.tokens import call_of_tokens
from tensornet_attn.spec import Design
from tensornet_attn.spec.read import Source

Overrides = Mapping[str, int | float | str]


class NotPacked:
    """Replaces the packed weights. The fast path of torch's encoders rejects this class of tensor."""

    weight = bias = None

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise InputError(f"MultiheadAttention of a design has no packed weights for torch's {function}.")


class MultiheadAttention(nn.Module):
    """A design in place of nn.MultiheadAttention, also in nn.TransformerEncoderLayer and nn.TransformerDecoderLayer.

    `design` computes [batch, n, embed_dim] from an input of queries, and at most two more inputs, of keys and values.
    Positional arguments are those of nn.MultiheadAttention: `bias` adds a bias to each weight that multiplies an input,
    and to the output; `dropout` acts in every softmax over keys. `legs` and `settings` set sizes that these arguments
    do not determine; `backend` and `causal` are as in `ta.compile`. The attribute `design` is the compiled design.
    Raises DesignError if the design is invalid, and InputError if it does not fit.

    >>> layer, x = MultiheadAttention("thsa", 16, 4, batch_first=True), torch.randn(2, 5, 16)
    >>> y, weights = layer(x, x, x)
    >>> y.shape, weights.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 5, 5]))
    """

    in_proj_bias, in_proj_weight, out_proj = None, NotPacked(), NotPacked()
    _qkv_same_embed_dim = False

    def __init__(
        self,
        design: Source,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        legs: Overrides | None = None,
        settings: Overrides | None = None,
        backend: str = "auto",
        causal: bool | None = None,
    ):
        super().__init__()
        for name, requested in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            if requested:
                raise InputError(f"{name} is not supported; a design defines its own keys.")
        loaded = compiler.load(design, settings=settings)
        sizes = sizes_for(build(loaded), embed_dim, num_heads, kdim, vdim, legs or {})
        try:
            fitted_design = fitted(compiler.load(design, sizes, settings), dropout, bias)
        except DesignError as error:
            raise InputError(
                f"'{loaded.name}' does not fit embed_dim={embed_dim} and num_heads={num_heads}; change them, or set "
                f"legs with legs={{...}}: {error}"
            ) from error
        check_output(build(fitted_design), embed_dim)
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, batch_first
        self.kdim, self.vdim, self.dropout = kdim or embed_dim, vdim or embed_dim, dropout
        self.design = compiler.compile(fitted_design, backend, causal, device, dtype)

    def reset_parameters(self) -> None:
        """Initialises the weights again, as the design defines."""
        self.design.reset_parameters()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the output and the maps: [batch, n, m], or [batch, heads, n, m] with average_attn_weights=False.

        query: [n, batch, embed_dim], [batch, n, embed_dim] with batch_first, or [n, embed_dim]; key and value likewise.
        Masks are true or minus infinity for hidden keys. An integer `key_padding_mask` is an attention_mask of Hugging
        Face, 1 = visible. The output of a query without visible keys is zero. With `is_causal`, `attn_mask` must be
        causal; a causal design then ignores it. Maps are computed as the diagram is written, without dropout; set
        need_weights=False if they are not needed. Raises InputError if arguments do not fit the design.
        """
        inputs = self._inputs(query, key, value)
        if is_causal and self.design.plan.graph.causal:
            attn_mask = None
        elif is_causal and attn_mask is None:
            raise InputError(f"{self._name}: is_causal is only a hint about attn_mask; give attn_mask too.")
        turned = query.dim() == 3 and not self.batch_first
        if turned:
            inputs = tuple(x.transpose(0, 1) for x in inputs)
        masks = self._masks(attn_mask, key_padding_mask, inputs)
        rows = masks.get("key_mask") if key is query else None
        weights = maps(self.design, inputs, masks, rows=rows) if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(-3)
        y = call_of_tokens(self.design, inputs, rows=rows, **masks)
        return y.transpose(0, 1) if turned else y, weights

    @property
    def _name(self) -> str:
        return self.design.design.name

    def _inputs(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """The inputs of the design. Raises InputError if they do not fit."""
        if any(x.is_nested for x in (query, key, value)):
            raise InputError(f"{self._name}: nested tensors are not supported; give padding and a key_padding_mask.")
        if not query.dim() == key.dim() == value.dim() or query.dim() not in (2, 3):
            raise InputError(f"{self._name}: query, key and value must have 2 dimensions, or 3 with a batch.")
        inputs = self.design.plan.graph.of_role("input")
        if len(inputs) == 3:
            return query, key, value
        if key is not value:
            raise InputError(
                f"{self._name}: keys and values have one input, '{inputs[-1].name}'; pass the same tensor for both."
            )
        if key is query and (len(inputs) == 1 or inputs[1].default is not None):
            return (query,)
        if len(inputs) == 1:
            raise InputError(f"{self._name}: it has one input, '{inputs[0].name}'; pass the same tensor for all three.")
        return query, key

    def _masks(self, attn_mask: Tensor | None, padding: Tensor | None, inputs: tuple[Tensor, ...]) -> dict[str, Any]:
        """The mask arguments of the design: boolean with true = visible, or float if values are added."""
        masks: dict[str, Tensor] = {}
        addends = []
        if padding is not None:
            masks["key_mask"], numbers = self._split("key_padding_mask", padding)
            addends += [] if numbers is None else [numbers[..., None, :]]  # [batch, 1, m]
        if attn_mask is not None:
            heads = self._by_heads(attn_mask, inputs[0].dim() == 3)
            masks["mask"], numbers = self._split("attn_mask", heads)
            addends = [
                addend.unflatten(0, (-1, *[1] * max(0, heads.dim() - 3))) if addend.dim() == 3 else addend
                for addend in addends
            ]
            addends += [] if numbers is None else [numbers]
        if addends:
            dtype, sizes = inputs[0].dtype, (inputs[0].shape[-2], inputs[-1].shape[-2])
            total = torch.stack(torch.broadcast_tensors(*addends)).sum(0).to(dtype) if len(addends) > 1 else addends[0]
            total = total.to(dtype).expand(*total.shape[:-2], *sizes)
            masks["mask"] = torch.where(masks["mask"], total, -torch.inf) if "mask" in masks else total
        return masks

    def _split(self, name: str, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """The visible pairs of a mask, and the values to add, which are None if they are known to be zeros."""
        if mask.dtype == torch.bool:
            return ~mask, None
        if not mask.is_floating_point():
            if name == "key_padding_mask":
                return mask != 0, None
            raise InputError(f"{self._name}: {name} is {mask.dtype}; give booleans (true = hidden) or floats (added).")
        return split_float_mask(self.design, name, mask)

    def _by_heads(self, mask: Tensor, batched: bool) -> Tensor:
        """Splits [batch * heads, n, m] into batch and head legs, or drops heads if those of the design differ.

        A mask [n, m] is returned unchanged. Raises InputError if a mask differs between heads that the design lacks.
        """
        if mask.dim() != 3:
            return mask
        if mask.shape[0] % self.num_heads:
            shapes = "[n, m] or [batch * num_heads, n, m]"
            raise InputError(f"{self._name}: attn_mask has shape {list(mask.shape)}; give {shapes}.")
        mask = mask.unflatten(0, (-1, self.num_heads))
        legs = {tuple(size for _, size in others) for _, _, others in self.design.mask_places.places}
        (map_heads,) = legs if len(legs) == 1 else [()]
        if prod([size or 0 for size in map_heads]) == self.num_heads:
            mask = mask.unflatten(1, map_heads)
        else:
            mask = same_for_all_heads(mask, self._name)
        return mask if batched else mask[0]

    def extra_repr(self) -> str:
        return f"embed_dim {self.embed_dim}, num_heads {self.num_heads}, batch_first {self.batch_first}"


def fitted(design: Design, dropout: float, bias: bool) -> Design:
    """The design with dropout in each softmax over keys, and biases on input projections and on the output."""
    document, graph = design.as_dict(), build(design)
    document.pop("contains", None)
    if bias:
        try:
            document, _ = gain.with_biases(document, graph, projections(graph))
        except InputError as error:
            raise InputError(f"{error} Use bias=False.") from None
        document, _ = gain.with_output_bias(document, graph, graph.legs_of(graph.output)[-1])
    if dropout:
        document = gain.with_dropout(document, graph, dropout)
    return compiler.load(document)


WANTED = "MultiheadAttention needs an input of queries, e.g. 'x: n f', and at most two more, e.g. 'memory: m f'"
Size = int | float | str


def sizes_for(
    graph: Graph, embed_dim: int, num_heads: int, kdim: int | None, vdim: int | None, legs: Mapping[str, Size]
) -> dict[str, Size]:
    """Leg sizes for `load`, including those of `legs`. Raises InputError if the design does not fit.

    embed_dim is the size of the feature leg of the queries, kdim and vdim of those of the other inputs. num_heads is
    the size of head legs that are declared with the number of maps. If a design has one head per feature, as thsa does,
    the size of its head legs is embed_dim.
    """
    features = _features(graph, embed_dim, kdim, vdim)
    for leg, size in features.items():
        if legs.get(leg, size) != size:
            raise InputError(f"{graph.name}: leg '{leg}' is the feature leg of an input, {size}; omit it from 'legs'.")
    return {**_heads(graph, embed_dim, num_heads, legs), **features, **legs}


def check_output(graph: Graph, embed_dim: int) -> None:
    """Raises InputError if the output is not [batch..., queries, embed_dim]."""
    legs = graph.legs_of(graph.output)
    if len(legs) != 2 or legs[0] != graph.query or size_of(graph, legs[1]) != embed_dim:
        shape, expected = ", ".join(str(size_of(graph, leg) or leg) for leg in legs), f"[{graph.query}, {embed_dim}]"
        raise InputError(f"{graph.name}: its output is [{shape}], but MultiheadAttention returns {expected}.")


def projections(graph: Graph) -> dict[str, int]:
    """The weights that multiply an input, each with its axis of input features."""
    axes: dict[str, int] = {}
    inputs = {tensor.name for tensor in graph.of_role("input")}
    weights = {tensor.name for tensor in graph.of_role("weight")}
    for step in graph.steps:
        for term in step.terms:
            features = {leg for use in term.factors if use.name in inputs for leg in use.legs} - {*step.legs}
            for use in term.factors:
                taken = [axis for axis, leg in enumerate(use.legs) if leg in features]
                if use.name in weights and len(taken) == 1:
                    axes[use.name] = taken[0]
    return axes


def _features(graph: Graph, embed_dim: int, kdim: int | None, vdim: int | None) -> dict[str, Size]:
    """The sizes of the feature legs of the inputs. Raises InputError."""
    if not summing(graph):
        raise InputError(f"{graph.name}: its output contains no sum over keys, so it is not an attention.")
    inputs = graph.of_role("input")
    shapes = [tensor.legs for tensor in inputs]
    sequences = [legs[0] if len(legs) == 2 else None for legs in shapes]
    if not 1 <= len(inputs) <= 3 or sequences != [graph.query, graph.key, graph.key][: len(inputs)]:
        listed = ", ".join(f"'{tensor.name}: {' '.join(tensor.legs)}'" for tensor in inputs)
        raise InputError(f"{graph.name}: its inputs are {listed or 'none'}; {WANTED}.")
    input_shapes = [shapes[0], *(shapes[1:] or shapes), shapes[-1]]
    widths = [("embed_dim", embed_dim), ("kdim", kdim or embed_dim), ("vdim", vdim or embed_dim)]
    sizes: dict[str, Size] = {}
    for (_, leg), (name, size) in zip(input_shapes, widths, strict=False):
        if sizes.setdefault(leg, size) != size:
            raise InputError(
                f"{graph.name}: {name} is {size}, but its features are on leg '{leg}', which is {sizes[leg]}."
            )
    return sizes


def _heads(graph: Graph, embed_dim: int, num_heads: int, legs: Mapping[str, Size]) -> dict[str, Size]:
    """The sizes of head legs that are declared with a number and not in `legs`. Raises InputError."""
    heads = {leg.name: int(leg.size or 1) for leg in graph.legs if leg.kind == "head" and isinstance(leg.text, Number)}
    width, reader = size_of(graph, graph.of_role("input")[0].legs[1]), map_of(graph)
    beside = [leg for leg in reader.use.legs if leg not in (graph.query, graph.key)] if reader else []
    values = legs_in(reader.values) - {graph.key} if reader else set()
    on_map = {leg: heads[leg] for leg in beside if leg in heads}
    map_count = prod(on_map.values()) if on_map else max(heads.values(), default=1)
    if reader is not None and map_count == width and values <= {*beside}:  # one head per feature
        return {leg: embed_dim for leg, size in heads.items() if size == width and leg not in legs}
    head_sizes: dict[str, Size] = {
        leg: num_heads for leg, size in heads.items() if size == map_count and leg not in legs
    }
    sizes = {leg: legs.get(leg, head_sizes.get(leg, size)) for leg, size in on_map.items()}
    free = [leg for leg in on_map if leg not in values and leg not in legs]  # on queries only, as within a group
    if not head_sizes and len(free) == 1:
        others = prod(int(size) for leg, size in sizes.items() if leg not in free)
        head_sizes[free[0]] = sizes[free[0]] = max(1, num_heads // others)
    if len(on_map) == len(beside) and reader is not None and prod(int(size) for size in sizes.values()) != num_heads:
        listed = ", ".join(f"{leg} {size}" for leg, size in sizes.items()) or "none"
        sentence = f"num_heads is {num_heads}, but its head legs are {listed}"
        raise InputError(f"{graph.name}: {sentence}; set them with legs={{...}}.")
    return head_sizes
