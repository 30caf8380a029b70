"""Modules that replace an attention in a model: a design with the call signature of the attention.

In a stack with shared relative position biases, such as T5's, the first attention returns the weight of the biases,
instead of biases for all queries and keys, and the stack passes it to the others. Each design reads it by distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from tensornet_attn.convert.beside import maps, refuse
from tensornet_attn.convert.masks import (
    AlibiBiases,
    RopePositions,
    Window,
    arguments,
    of_hugging_face,
    of_memory,
    of_torch,
    shifts_of,
    visible_pairs,
)
from tensornet_attn.errors import InputError
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.nn.offsets import of_one_forward
from tensornet_attn.nn.tokens import call_of_tokens

MOST = 8  # cached results: a call has one for each kind of layer


class Shared:
    """Caches recent results by their arguments: identical tensors that were not modified, and equal other values.

    Of inference tensors, which do not count their changes, results are kept during one call of the model.
    """

    def __init__(self) -> None:
        self._last: list[tuple[tuple[Any, ...], list[Any], Any]] = []
        self._called = False

    def watch(self, model: nn.Module) -> None:
        """Registers hooks that tell when a call of the model begins and ends."""
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end)

    def _begin(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._last, self._called = [], True

    def _end(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._called = False

    def get(self, compute: Callable[[], Any], tensors: tuple[Tensor | None, ...], others: tuple[Any, ...]) -> Any:
        """The cached result for these arguments, or that of `compute()`."""
        untracked = not self._called and any(tensor.is_inference() for tensor in tensors if tensor is not None)
        if torch.compiler.is_compiling() or untracked:
            return compute()
        for cached_others, refs, cached in self._last:
            if cached_others == others and all(map(_same, refs, tensors)):
                return cached
        cached = compute()
        refs = [None if tensor is None else (ref(tensor, self._forget), _version(tensor)) for tensor in tensors]
        self._last = [*self._last[1 - MOST :], (others, refs, cached)]
        return cached

    def _forget(self, gone: Any) -> None:
        self._last = []

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a model has an empty cache."""
        return Shared, ()


def _same(reference: Any, tensor: Tensor | None) -> bool:
    if reference is None or tensor is None:
        return reference is tensor
    return reference[0]() is tensor and bool(reference[1] == _version(tensor))


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


Output = tuple[Tensor, Tensor | None]

PAST = ("past_key_values", "layer_past", "past_key_value")  # names of the cache argument


@dataclass(frozen=True)
class ReplacedAttention:
    """Properties of the replaced attention.

    `where`: its path and class, for errors. `parameters`: the argument names of its forward, in order. `rope`, `alibi`:
    its positions; each call is compared with them. `hides`: masks are true for hidden keys. `behind`: the attributes of
    the dropout and the LayerNorm after the attention, which are kept. `layer`: its index in caches. `backend`: the
    backend of the design, for saving. `biased`: it is in a stack with relative position biases, such as T5's; `table`
    is their weight, and `gives` is true for the first attention, which passes it to the others. `cross`: keys and
    values come from another sequence. `looks_back`: the design is causal, even if the attention was not.
    """

    where: str
    parameters: tuple[str, ...]
    causal: bool
    rope: RopePositions | None = None
    window: Window = None
    behind: tuple[str, ...] = ()
    layer: int | None = None
    backend: str = "auto"
    alibi: AlibiBiases | None = None
    hides: bool = False
    biased: bool = False
    cross: bool = False
    table: str = ""
    gives: bool = False
    looks_back: bool = False

    @property
    def counted(self) -> bool:
        """Whether hidden rows between tokens are positions, as in the old attention, which had positions."""
        return (self.rope, self.window, self.alibi, self.table) != (None, None, None, "")


class Swapped(nn.Module):
    """A design in place of an attention, with its call signature, dropout and LayerNorm."""

    def __init__(self, design: CompiledDesign, replaced: ReplacedAttention, module: nn.Module, shared: Shared):
        super().__init__()
        self.design, self.replaced, self.shared = design, replaced, shared
        dropout, norm = (*replaced.behind, "", "")[:2]
        old_dropout = attrgetter(dropout)(module) if dropout else nn.Identity()
        self.dropout = (
            old_dropout if isinstance(old_dropout, nn.Module) else nn.Dropout(old_dropout).train(module.training)
        )
        if norm:
            self.LayerNorm = module.get_submodule(norm)

    def forward(self, *args: Any, **named: Any) -> tuple[Tensor, *tuple[Tensor | None, ...]]:
        """Returns the output [batch, n, f], and maps [batch, heads, n, n] with `output_attentions`."""
        replaced = self.replaced
        named |= zip(replaced.parameters, args, strict=False)
        past = next((named[name] for name in PAST if named.get(name) is not None), None)
        packs = past is None and not named.get("output_attentions")  # a cache has a batch, and maps are of all pairs
        offsets = named.get("cu_seq_lens_q") if packs and named.get("attention_mask") is None else None
        taken = {"position_bias"} & {*replaced.parameters} | ({"cu_seq_lens_q"} if offsets is not None else set())
        refuse(replaced.where, named, taken)
        if named.get("encoder_hidden_states") is not None:
            raise InputError(f"{replaced.where}: it attends to one sequence; leave out encoder_hidden_states.")
        if named.get("is_causal") not in (None, replaced.causal):
            raise InputError(
                f"{replaced.where}: is_causal is {named['is_causal']}, but was {replaced.causal} at the conversion."
            )
        x, mask = named["hidden_states"], named.get("attention_mask")
        cache_layer = None if past is None else self._kept(past)
        n, seen = x.shape[1], 0 if cache_layer is None else cache_layer.get_seq_length()
        turns, ids = named.get("position_embeddings"), named.get("position_ids")
        before = None if cache_layer is None else cache_layer.shifts
        bias = named.get(replaced.alibi.argument) if replaced.alibi else None

        def compute() -> tuple[dict[str, Tensor], Tensor | None]:
            shown = ~mask if replaced.hides and mask is not None else mask
            masks = of_hugging_face(shown, n, replaced.causal, replaced.where, seen, replaced.window, packs)
            masks |= {} if offsets is None else {"cu_seqlens": of_one_forward(offsets)}
            if replaced.alibi is not None:
                replaced.alibi.check(
                    replaced.where, bias, visible_pairs(masks, n, replaced.causal, x.device, seen).any(-2)
                )
            return masks, None if replaced.rope is None else self._shifts(x, masks, turns, ids, before, seen)

        masks, shifts = self.shared.get(
            compute,
            (mask, offsets, *(turns or ()), ids, before, bias),
            (x.shape, x.device, seen, packs, replaced.causal, replaced.rope, replaced.window, replaced.alibi),
        )
        if cache_layer is not None and cache_layer.records:
            cache_layer.record(partial(self._replay, x, masks, seen))
        y, seen_maps = self._finish(x, masks, named, None if cache_layer is None else cache_layer.cache)
        if cache_layer is not None:
            cache_layer.shifts = shifts
        return y, seen_maps

    @torch.no_grad()
    def _replay(self, x: Tensor, masks: dict[str, Tensor], seen: int, cache: Cache, count: int) -> None:
        """Computes the first positions of a call again, after the `seen` earlier positions."""
        m = seen + count
        cut = {name: mask[..., :m] if name == "key_mask" else mask[..., :count, :m] for name, mask in masks.items()}
        self.design(x[:, :count], **cut, cache=cache)

    def _kept(self, past: Any) -> Any:
        """The layer of this attention in a Hugging Face cache."""
        from tensornet_attn.convert.cache import layer_of

        if self.replaced.layer is None:
            raise InputError(f"{self.replaced.where}: it has no layer_idx for a cache; call with use_cache=False.")
        return layer_of(past, self.replaced.layer, self.design, self.replaced.where, self.training)

    def _shifts(self, x: Tensor, masks: dict[str, Tensor], turns: Any, ids: Any, before: Any, seen: int) -> Tensor:
        """The offset of the call's positions from the design's own. Raises InputError if they do not match."""
        replaced, n = self.replaced, x.shape[1]
        ids = torch.arange(seen, seen + n, device=x.device)[None] if ids is None else ids
        assert replaced.rope is not None
        replaced.rope.check(replaced.where, turns, ids, seen + n)

        def visible() -> Tensor:
            return visible_pairs(masks, n, replaced.causal, x.device, seen, replaced.window)

        return shifts_of(replaced.where, ids, before, visible, seen)

    def _finish(self, x: Tensor, masks: dict[str, Tensor], named: dict[str, Any], cache: Any = None) -> Output:
        with_maps = named.get("output_attentions")
        if with_maps and cache is not None and cache.length:
            raise InputError(f"{self.replaced.where}: maps cannot be returned with a cache; call with use_cache=False.")
        y = self.dropout(call_of_tokens(self.design, (x,), cache=cache, counted=self.replaced.counted, **masks))
        if named.get("residual") is not None:
            y = y + named["residual"]
        if hasattr(self, "LayerNorm"):
            y = self.LayerNorm(x + y)
        return y, maps(self.design, (x,), masks, counted=self.replaced.counted) if with_maps else None


class SwappedTorch(Swapped):
    """In place of nn.MultiheadAttention. Its attributes disable the fast path of nn.TransformerEncoderLayer."""

    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, design: CompiledDesign, replaced: ReplacedAttention, module: Any, shared: Shared):
        super().__init__(design, replaced, module, shared)
        self.batch_first, self.embed_dim, self.num_heads = module.batch_first, module.embed_dim, module.num_heads

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
    ) -> Output:
        if not (query is key and key is value):
            raise InputError(
                f"{self.replaced.where}: query, key and value are not the same tensor; it attends to one sequence."
            )
        if is_causal and attn_mask is None:
            raise InputError(f"{self.replaced.where}: is_causal is only a hint about attn_mask; give attn_mask too.")
        turned = query.dim() == 3 and not self.batch_first
        x = query.transpose(0, 1) if turned else query
        where = self.replaced.where
        masks = self.shared.get(
            lambda: arguments(
                of_torch(attn_mask, key_padding_mask, self.num_heads, where), self.replaced.causal, where
            ),
            (attn_mask, key_padding_mask),
            (self.num_heads, self.replaced.causal),
        )
        y, seen = self._finish(x, masks, {"output_attentions": need_weights})
        if seen is not None and average_attn_weights:
            seen = seen.mean(-3)
        return y.transpose(0, 1) if turned else y, seen


class SwappedBiased(Swapped):
    """A design in place of a self-attention or cross-attention of T5."""

    def forward(self, *args: Any, **named: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Returns the output [batch, n, f], the weight of the biases, and maps with `output_attentions`."""
        replaced = self.replaced
        named |= zip(replaced.parameters, args, strict=False)
        refuse(replaced.where, named, taken={"position_bias"})
        x, memory, mask = named["hidden_states"], named.get("key_value_states"), named.get("mask")
        if (memory is None) == replaced.cross:
            what = "key_value_states are missing" if replaced.cross else "leave out key_value_states"
            raise InputError(
                f"{replaced.where}: {what}; it attends to {'another' if replaced.cross else 'its own'} sequence."
            )
        cache_layer = self._memory_of(named) if replaced.cross else self._own(named)
        cache = None if cache_layer is None else cache_layer.cache
        seen = 0 if cache is None or replaced.cross else cache.length
        masks = self.shared.get(
            lambda: (
                of_memory(mask, replaced.where)
                if replaced.cross
                else of_hugging_face(mask, x.shape[1], replaced.causal, replaced.where, seen)
            ),
            (mask,),
            (x.shape, x.device, seen, replaced.causal, replaced.cross),
        )
        table = self._table(named)
        inputs: dict[str, Tensor] = {} if replaced.gives or table is None else {replaced.table: table}
        if memory is not None and (cache is None or not cache.length):
            inputs[self.design.plan.graph.of_role("input")[1].name] = memory
        behind = cache is not None and cache.length > 0
        ordered = self.design._signature.ordered((x,), inputs, behind) if inputs else (x,)
        y = call_of_tokens(self.design, ordered, cache=cache, counted=replaced.counted, **masks)
        attention_maps = self._maps(x, inputs, masks, cache) if named.get("output_attentions") else None
        return y, table, attention_maps

    def _table(self, named: dict[str, Any]) -> Tensor | None:
        """The weight of the biases. Raises InputError if the call does not pass that of the first attention."""
        replaced = self.replaced
        if replaced.gives:
            table: Tensor = getattr(self.design, replaced.table)
            return table
        if replaced.table and named.get("position_bias") is None:
            raise InputError(
                f"{replaced.where}: position_bias is missing; pass the one that the first attention returns."
            )
        return named.get("position_bias") if replaced.table else None

    def _own(self, named: dict[str, Any]) -> Any:
        past = named.get("past_key_values")
        return None if past is None or not self.replaced.causal else self._kept(past)

    def _memory_of(self, named: dict[str, Any]) -> Any:
        """The layer of a cache with the keys and values of the other sequence."""
        past, layer = named.get("past_key_values"), self.replaced.layer
        if past is None or not hasattr(past, "cross_attention_cache"):
            return None
        cache_layer = self._kept(past.cross_attention_cache)
        if cache_layer is not None and layer is not None:
            past.is_updated[layer] = True
        return cache_layer

    def _maps(self, x: Tensor, inputs: dict[str, Tensor], masks: dict[str, Tensor], cache: Any) -> Tensor:
        if cache is not None:
            raise InputError(f"{self.replaced.where}: maps cannot be returned with a cache; call with use_cache=False.")
        ordered = self.design._signature.ordered((x,), inputs)
        return maps(self.design, ordered, masks, counted=self.replaced.counted)


def swap_of(module: nn.Module, replaced: ReplacedAttention) -> type[Swapped]:
    if isinstance(module, nn.MultiheadAttention):
        return SwappedTorch
    return SwappedBiased if replaced.biased else Swapped
