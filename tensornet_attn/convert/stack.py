"""Attentions of a stack that shares biases of distances, as T5's: the first one gives their weight to the others.

In the place of biases of all queries and keys the stack passes the weight on, and each design reads it by distance.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tensornet_attn.convert.beside import maps, refuse
from tensornet_attn.convert.masks import of_hugging_face, of_memory
from tensornet_attn.convert.wrap import Place, Swapped, SwappedTorch
from tensornet_attn.errors import InputError


class SwappedBiased(Swapped):
    """A design in the place of T5's attention, of itself or of another sequence."""

    def forward(self, *given: Any, **named: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:  # type: ignore[override]
        """The attention of hidden_states [batch, n, f]; the weight of the biases; maps where they are asked for."""
        place = self.place
        named |= zip(place.parameters, given, strict=False)
        refuse(place.where, named, taken={"position_bias"})
        x, memory, mask = named["hidden_states"], named.get("key_value_states"), named.get("mask")
        if (memory is None) == place.cross:
            what = "key_value_states are needed" if place.cross else "key_value_states are of a second sequence"
            raise InputError(f"{place.where}: {what}; it attends to {'another' if place.cross else 'its own'} one.")
        kept = self._memory_of(named) if place.cross else self._own(named)
        cache = None if kept is None else kept.cache
        seen = 0 if cache is None or place.cross else cache.length
        masks = self.shared.get(
            lambda: (
                of_memory(mask, place.where)
                if place.cross
                else of_hugging_face(mask, x.shape[1], place.causal, place.where, seen)
            ),
            (mask,),
            (x.shape, x.device, seen, place.causal, place.cross),
        )
        table = self._table(named)
        inputs: dict[str, Tensor] = {} if place.gives or table is None else {place.table: table}
        if place.cross and (cache is None or not cache.length):
            inputs[self.design.plan.graph.of_role("input")[1].name] = memory
        y = self.design(x, **inputs, **masks, cache=cache)
        found = self._maps(x, inputs, masks, cache) if named.get("output_attentions") else None
        return y, table, found

    def _table(self, named: dict[str, Any]) -> Tensor | None:
        """The weight of the biases. Raises InputError where the first attention should have given it."""
        place = self.place
        if place.gives:
            table: Tensor = getattr(self.design, place.table)
            return table
        if place.table and named.get("position_bias") is None:
            raise InputError(f"{place.where}: position_bias is not given; it is what the first attention returns.")
        return named.get("position_bias") if place.table else None

    def _own(self, named: dict[str, Any]) -> Any:
        past = named.get("past_key_values")
        return None if past is None or not self.place.causal else self._kept(past)

    def _memory_of(self, named: dict[str, Any]) -> Any:
        """The layer of a cache that keeps what is made of the other sequence."""
        past, layer = named.get("past_key_values"), self.place.layer
        if past is None or not hasattr(past, "cross_attention_cache"):
            return None
        kept = self._kept(past.cross_attention_cache)
        if kept is not None and layer is not None:
            past.is_updated[layer] = True
        return kept

    def _maps(self, x: Tensor, inputs: dict[str, Tensor], masks: dict[str, Tensor], cache: Any) -> Tensor:
        if cache is not None:
            raise InputError(f"{self.place.where}: maps are given without a cache; call with use_cache=False.")
        return maps(self.design, self.design._signature.ordered((x,), inputs), masks)


def swap_of(module: nn.Module, place: Place) -> type[Swapped]:
    """The class that stands in the place of a module."""
    if isinstance(module, nn.MultiheadAttention):
        return SwappedTorch
    return SwappedBiased if place.biased else Swapped
