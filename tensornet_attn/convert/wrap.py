"""What stands in a model where an attention stood: the design, called the way the attention was."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn.convert.beside import maps, refuse
from tensornet_attn.convert.masks import (
    Alibi,
    Rope,
    Window,
    arguments,
    of_hugging_face,
    of_torch,
    shifts_of,
    visible_pairs,
)
from tensornet_attn.convert.shared import Shared
from tensornet_attn.errors import InputError
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.module import CompiledDesign

Output = tuple[Tensor, Tensor | None]

PAST = ("past_key_values", "layer_past", "past_key_value")  # what families call the cache


@dataclass(frozen=True)
class Place:
    """What a design takes over from the attention in whose place it stands.

    `where`: its path and class, for errors; `parameters`: those of its forward, in order. `rope`, `alibi`: positions
    that came from it, and are compared with those of each call. `hides`: masks are true for hidden keys. `behind`:
    where a module has what lies behind its attention and stays, dropout, then LayerNorm over the sum with the input;
    `layer`: its place in caches; `backend`: what the design was compiled for, as a saved model has to say. `biased`: of
    a stack with biases of distances; `table`: their weight, which the first attention `gives` to the others, whose
    input it is; `cross`: keys and values are of another sequence.
    """

    where: str
    parameters: tuple[str, ...]
    causal: bool
    rope: Rope | None = None
    window: Window = None
    behind: tuple[str, ...] = ()
    layer: int | None = None
    backend: str = "auto"
    alibi: Alibi | None = None
    hides: bool = False
    biased: bool = False
    cross: bool = False
    table: str = ""
    gives: bool = False


class Swapped(nn.Module):
    """A design in the place of an attention, with what of the old module lay behind it; called the way that was."""

    def __init__(self, design: CompiledDesign, place: Place, module: nn.Module, shared: Shared):
        super().__init__()
        self.design, self.place, self.shared = design, place, shared
        dropout, norm = (*place.behind, "", "")[:2]
        held = attrgetter(dropout)(module) if dropout else nn.Identity()
        self.dropout = held if isinstance(held, nn.Module) else nn.Dropout(held).train(module.training)
        if norm:
            self.LayerNorm = module.get_submodule(norm)

    def forward(self, *given: Any, **named: Any) -> Output:
        """The attention of hidden_states [batch, n, f], and its maps [batch, heads, n, n] where they are asked for."""
        place = self.place
        named |= zip(place.parameters, given, strict=False)
        past = next((named[name] for name in PAST if named.get(name) is not None), None)
        packs = past is None and not named.get("output_attentions")  # a cache has a batch, and maps are of all pairs
        offsets = named.get("cu_seq_lens_q") if packs and named.get("attention_mask") is None else None
        taken = {"position_bias"} & {*place.parameters} | ({"cu_seq_lens_q"} if offsets is not None else set())
        refuse(place.where, named, taken)
        if named.get("encoder_hidden_states") is not None:
            raise InputError(f"{place.where}: it attends to one sequence; encoder_hidden_states are a second one.")
        if named.get("is_causal") not in (None, place.causal):
            raise InputError(
                f"{place.where}: is_causal is {named['is_causal']}, and it was converted as {place.causal}."
            )
        x, mask = named["hidden_states"], named.get("attention_mask")
        kept = None if past is None else self._kept(past)
        n, seen = x.shape[1], 0 if kept is None else kept.get_seq_length()
        turns, ids = named.get("position_embeddings"), named.get("position_ids")
        before = None if kept is None else kept.shifts
        bias = named.get(place.alibi.argument) if place.alibi else None

        def worked_out() -> tuple[dict[str, Tensor], Tensor | None]:
            shown = ~mask if place.hides and mask is not None else mask
            masks = of_hugging_face(shown, n, place.causal, place.where, seen, place.window, packs)
            masks |= {} if offsets is None else {"cu_seqlens": offsets}
            if place.alibi is not None:
                place.alibi.check(place.where, bias, visible_pairs(masks, n, place.causal, x.device, seen).any(-2))
            return masks, None if place.rope is None else self._shifts(x, masks, turns, ids, before, seen)

        masks, shifts = self.shared.get(
            worked_out,
            (mask, offsets, *(turns or ()), ids, before, bias),
            (x.shape, x.device, seen, packs, place.causal, place.rope, place.window, place.alibi),
        )
        if kept is not None and kept.records:
            kept.record(partial(self._replay, x, masks, seen))
        y, seen_maps = self._finish(x, masks, named, None if kept is None else kept.cache)
        if kept is not None:
            kept.shifts = shifts
        return y, seen_maps

    @torch.no_grad()
    def _replay(self, x: Tensor, masks: dict[str, Tensor], seen: int, cache: Cache, count: int) -> None:
        """Computes the first positions of a call once more, behind those that were seen."""
        m = seen + count
        cut = {name: mask[..., :m] if name == "key_mask" else mask[..., :count, :m] for name, mask in masks.items()}
        self.design(x[:, :count], **cut, cache=cache)

    def _kept(self, past: Any) -> Any:
        """The layer of a cache of Hugging Face's that this attention keeps its past in."""
        from tensornet_attn.convert.cache import layer_of

        if self.place.layer is None:
            raise InputError(f"{self.place.where}: it has no layer_idx, and so no place in a cache; use_cache=False.")
        return layer_of(past, self.place.layer, self.design, self.place.where, self.training)

    def _shifts(self, x: Tensor, masks: dict[str, Tensor], turns: Any, ids: Any, before: Any, seen: int) -> Tensor:
        """How far the call's positions are from the design's own, which they are compared with. Raises InputError."""
        place, n = self.place, x.shape[1]
        ids = torch.arange(seen, seen + n, device=x.device)[None] if ids is None else ids
        assert place.rope is not None
        place.rope.check(place.where, turns, ids, seen + n)

        def visible() -> Tensor:
            return visible_pairs(masks, n, place.causal, x.device, seen, place.window)

        return shifts_of(place.where, ids, before, visible, seen)

    def _finish(self, x: Tensor, masks: dict[str, Tensor], named: dict[str, Any], cache: Any = None) -> Output:
        wanted = named.get("output_attentions")
        if wanted and cache is not None and cache.length:
            raise InputError(f"{self.place.where}: maps are given without a cache; call with use_cache=False.")
        y = self.dropout(self.design(x, **masks, cache=cache))
        if named.get("residual") is not None:
            y = y + named["residual"]
        if hasattr(self, "LayerNorm"):
            y = self.LayerNorm(x + y)
        return y, maps(self.design, (x,), masks) if wanted else None


class SwappedTorch(Swapped):
    """In the place of nn.MultiheadAttention, whose attributes keep nn.TransformerEncoderLayer off its fast path."""

    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, design: CompiledDesign, place: Place, module: Any, shared: Shared):
        super().__init__(design, place, module, shared)
        self.batch_first, self.embed_dim, self.num_heads = module.batch_first, module.embed_dim, module.num_heads

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Output:
        if not (query is key and key is value):
            raise InputError(
                f"{self.place.where}: query, key and value are not the same tensor; it attends to one sequence."
            )
        if is_causal and attn_mask is None:
            raise InputError(f"{self.place.where}: is_causal is only a hint about attn_mask, which is not given.")
        turned = query.dim() == 3 and not self.batch_first
        x = query.transpose(0, 1) if turned else query
        where = self.place.where
        masks = arguments(of_torch(attn_mask, key_padding_mask, self.num_heads, where), self.place.causal, where)
        y, seen = self._finish(x, masks, {"output_attentions": need_weights})
        if seen is not None and average_attn_weights:
            seen = seen.mean(-3)
        return y.transpose(0, 1) if turned else y, seen
