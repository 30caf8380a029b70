"""Attentions of a stack with shared relative position biases, such as T5's.

The first attention returns the weight of the biases, instead of biases for all queries and keys, and the stack passes
it to the other attentions. Each design reads it by distance.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tensornet_attn.convert.beside import maps, refuse
from tensornet_attn.convert.masks import of_hugging_face, of_memory
from tensornet_attn.convert.wrap import Place, Swapped, SwappedTorch
from tensornet_attn.errors import InputError


class SwappedBiased(Swapped):
    """A design in place of a self-attention or cross-attention of T5."""

    def forward(self, *given: Any, **named: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:  # type: ignore[override]
        """Returns the output [batch, n, f], the weight of the biases, and maps with `output_attentions`."""
        place = self.place
        named |= zip(place.parameters, given, strict=False)
        refuse(place.where, named, taken={"position_bias"})
        x, memory, mask = named["hidden_states"], named.get("key_value_states"), named.get("mask")
        if (memory is None) == place.cross:
            what = "key_value_states are missing" if place.cross else "leave out key_value_states"
            raise InputError(
                f"{place.where}: {what}; it attends to {'another' if place.cross else 'its own'} sequence."
            )
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
        """The weight of the biases. Raises InputError if the call does not pass that of the first attention."""
        place = self.place
        if place.gives:
            table: Tensor = getattr(self.design, place.table)
            return table
        if place.table and named.get("position_bias") is None:
            raise InputError(f"{place.where}: position_bias is missing; pass the one that the first attention returns.")
        return named.get("position_bias") if place.table else None

    def _own(self, named: dict[str, Any]) -> Any:
        past = named.get("past_key_values")
        return None if past is None or not self.place.causal else self._kept(past)

    def _memory_of(self, named: dict[str, Any]) -> Any:
        """The layer of a cache with the keys and values of the other sequence."""
        past, layer = named.get("past_key_values"), self.place.layer
        if past is None or not hasattr(past, "cross_attention_cache"):
            return None
        kept = self._kept(past.cross_attention_cache)
        if kept is not None and layer is not None:
            past.is_updated[layer] = True
        return kept

    def _maps(self, x: Tensor, inputs: dict[str, Tensor], masks: dict[str, Tensor], cache: Any) -> Tensor:
        if cache is not None:
            raise InputError(f"{self.place.where}: maps cannot be returned with a cache; call with use_cache=False.")
        return maps(self.design, self.design._signature.ordered((x,), inputs), masks)


def swap_of(module: nn.Module, place: Place) -> type[Swapped]:
    """The class that replaces a module."""
    if isinstance(module, nn.MultiheadAttention):
        return SwappedTorch
    return SwappedBiased if place.biased else Swapped
