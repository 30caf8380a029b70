"""Designs as `attn_implementation` of Hugging Face models, which compute queries, keys and values themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose, prod
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn import compiler
from tensornet_attn.convert import gain
from tensornet_attn.convert.beside import maps, refuse, split_float_mask
from tensornet_attn.convert.masks import shown
from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph
from tensornet_attn.ir.steps import without
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.nn.offsets import of_one_forward
from tensornet_attn.nn.tokens import call_of_tokens
from tensornet_attn.ops import OPS
from tensornet_attn.spec.read import Source
from tensornet_attn.special.between import AttentionCore, between, scaled_by_queries

PREFIX = "tensornet:"


def register_attention(
    design: Source, name: str | None = None, settings: Mapping[str, int | float | str] | None = None
) -> str:
    """Registers a design with transformers, and returns its name for `attn_implementation`.

    The name is `tensornet:` followed by `name`, or by the name of the design. The model's projections replace those of
    the design; the design must have no other weights. `settings` is as in `load`. A second registration of a name
    replaces the first. Raises InputError if the design has other weights, DesignError if it is invalid, and
    MissingPartError without transformers.

    >>> register_attention("band", settings={"k": 255})
    'tensornet:band'
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError:
        raise MissingPartError("register_attention needs transformers: pip install 'tensornet-attn[hf]'.") from None
    core = between(compiler.load(design, settings=settings))
    full_name, attention = f"{PREFIX}{name or core.graph.name}", DesignAttention(core)
    AttentionInterface.register(full_name, attention.forward)
    AttentionMaskInterface.register(full_name, attention.mask)
    return full_name


class DesignAttention:
    """A design without projections, compiled for each combination of sizes, dtype and mode that a model calls."""

    def __init__(self, core: AttentionCore):
        self.core, self.name, self.fixed = core, core.graph.name, placed(core.graph)
        self.scalable = scaled_by_queries(core.graph)
        self.compiled: dict[tuple[Any, ...], CompiledDesign] = {}

    def forward(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        **arguments: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the output [batch, n, heads, d], and the maps [batch, heads, n, m] with `output_attentions`.

        query: [batch, heads, n, d]; key and value: [batch, groups, m, d], where groups divides heads. `attention_mask`
        is a result of `mask`, or [batch, heads or 1, n, m], boolean (true = visible) or added to scores.
        """
        refuse(self.name, arguments)
        n, core = query.shape[2], self.core
        module_causal = is_causal if is_causal is not None else bool(getattr(module, "is_causal", True))
        causal = n > 1 and (module_causal if attention_mask is None else attention_mask.dim() == 2)
        sizes = self._sizes(query, key, value)
        design = self._compiled(sizes, causal, dropout, module.training, query)
        masks = self._masks(design, attention_mask, causal, n)
        if scaling is not None and not isclose(factor := scaling * query.shape[-1] ** 0.5, 1):
            if not self.scalable:
                raise InputError(
                    f"{self.name}: the model scales its scores by {scaling:g}, not by d ** -0.5, and the scores of "
                    "this design are not linear in its queries; use a design whose scores are, e.g. mhsa."
                )
            query = query * factor
        inputs = tuple([self._laid(side, x, sizes) for side, x in enumerate((query, key, value))])
        keys = masks.get("key_mask")
        one_sequence = causal or self.fixed
        rows = keys[..., keys.shape[-1] - n :] if keys is not None and one_sequence else None
        y = call_of_tokens(design, inputs, rows=rows, **masks)
        order = [core.output.index(leg) + 1 for leg in (core.graph.query, *core.heads[0], core.width[2])]
        weights = maps(design, inputs, masks, core.heads[0], rows) if arguments.get("output_attentions") else None
        return y.permute(0, *order).flatten(2, -2), weights

    def mask(
        self,
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: int | Tensor = 0,
        kv_offset: int = 0,
        mask_function: Callable[..., Any] | None = None,
        attention_mask: Tensor | None = None,
        **arguments: Any,
    ) -> Tensor | None:
        """The mask that `forward` receives, boolean with true = visible.

        It is None if only later keys of a causal call are hidden, [batch, m] if only padding is hidden as well, and
        otherwise [batch, 1, n, m].
        """
        from transformers.masking_utils import causal_mask_function, sdpa_mask

        function = causal_mask_function if mask_function is None else mask_function
        last = not isinstance(q_offset, Tensor) and q_offset + q_length == kv_offset + kv_length
        if not last and self.fixed:
            raise InputError(
                f"{self.name}: it needs its last query at the last key, unlike here: in cross-attention, or with a "
                "cache of fixed size; use a cache that grows, e.g. DynamicCache."
            )
        if last and function is causal_mask_function:
            keys = None if attention_mask is None else attention_mask[:, kv_offset : kv_offset + kv_length]
            hides = keys is None or torch.compiler.is_compiling() or not bool(keys.all())
            return of_one_forward(keys) if hides else None
        arguments |= {"allow_is_causal_skip": False}
        offset: Any = q_offset  # sdpa_mask declares an int, and accepts the tensor of a static cache
        return sdpa_mask(batch_size, q_length, kv_length, offset, kv_offset, function, attention_mask, **arguments)

    def _compiled(
        self, sizes: dict[str, int], causal: bool, dropout: float, training: bool, like: Tensor
    ) -> CompiledDesign:
        """The design at these sizes, causal if the call is, in the model's training mode."""
        kind = (*sizes.items(), causal, dropout, training, like.device, like.dtype)
        if kind not in self.compiled:
            design = self.core.sized(sizes)
            if dropout:
                design = compiler.load(gain.with_dropout(design.as_dict(), self.core.graph, dropout))
            compiled = compiler.compile(design, causal=causal or None, device=like.device, dtype=like.dtype)
            self.compiled[kind] = compiled.train(training)
        return self.compiled[kind]

    def _sizes(self, query: Tensor, key: Tensor, value: Tensor) -> dict[str, int]:
        """The sizes of the head legs and of the legs within a head. Raises InputError."""
        heads, groups = query.shape[1], key.shape[1]
        own, shared = self.core.heads[:2]
        rest = without(own, *shared)  # on queries only: several query heads share a key head
        legs_and_counts = ((shared, groups), (rest, heads // groups)) if rest else ((shared, heads),)
        if any(len(legs) > 1 or (not legs and count != 1) for legs, count in legs_and_counts):
            raise InputError(
                f"{self.name}: {heads} heads of queries and {groups} of keys do not fit its legs [{' '.join(own)}] and "
                f"[{' '.join(shared)}]."
            )
        sizes = {leg: count for legs, count in legs_and_counts for leg in legs}
        for leg, x in zip(self.core.width, (query, key, value), strict=True):
            if sizes.setdefault(leg, x.shape[-1]) != x.shape[-1]:
                difference = f"is {sizes[leg]} for one and {x.shape[-1]} for another"
                raise InputError(f"{self.name}: leg '{leg}' of queries, keys and values {difference}.")
        return sizes

    def _laid(self, side: int, x: Tensor, sizes: Mapping[str, int]) -> Tensor:
        """Permutes [batch, heads, positions, entries] to the legs of an input, and repeats heads as needed."""
        core, legs = self.core, self.core.heads[side]
        heads = prod([sizes[leg] for leg in legs])
        if heads != x.shape[1]:
            x = x.repeat_interleave(heads // x.shape[1], 1)
        x = x.unflatten(1, [sizes[leg] for leg in legs]) if legs else x.squeeze(1)
        named = [*legs, next(leg for leg in core.rows[side] if core.graph.leg[leg].sequence), core.width[side]]
        return x.permute(0, *(named.index(leg) + 1 for leg in core.rows[side]))

    def _masks(self, design: CompiledDesign, mask: Tensor | None, causal: bool, n: int) -> dict[str, Any]:
        """The mask arguments of the design. Raises InputError if a causal design would see later keys."""
        if self.core.graph.causal and n > 1 and not causal:
            visible = None if mask is None else shown(mask)
            if visible is None or bool(visible.triu(1 + visible.shape[-1] - n).any()):
                raise InputError(f"{self.name}: it is causal, but this attention sees later keys.")
        if mask is None:
            return {}
        if mask.dim() == 2:
            return {"key_mask": mask}
        if mask.dtype == torch.bool and mask.shape[1] == 1 and (mask.stride(2) == 0 or n == 1):
            return {"key_mask": mask[:, 0, 0]}
        others = [tuple(size or 1 for _, size in legs) for _, _, legs in design.mask_places.places]
        mask = mask[:, 0] if mask.shape[1] == 1 else mask.unflatten(1, others[0])
        if mask.dtype == torch.bool:
            return {"mask": mask}
        visible, numbers = split_float_mask(design, "the attention mask", mask)
        return {"mask": visible if numbers is None else torch.where(visible, numbers, -torch.inf)}


def placed(graph: Graph) -> bool:
    """Whether the design depends on positions: by masks, constants along a sequence, or boxes such as rope."""
    pair = (graph.query, graph.key)
    boxes = [step.box for step in graph.steps if step.box is not None]
    constants = [tensor for tensor in graph.of_role("constant") if any(not size_of(graph, leg) for leg in tensor.legs)]
    alone = [box for box in boxes if box.leg in pair and OPS[box.kind].counts_positions(box)]
    looking = [box for box in boxes if OPS[box.kind].looks_back or box.masks]
    return graph.causal or bool(constants or alone or looking)
