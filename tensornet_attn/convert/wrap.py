"""What stands in a model where an attention stood: the design, called the way the attention was."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn.convert.families import Trained
from tensornet_attn.convert.masks import arguments, check_positions, of_hugging_face, of_torch
from tensornet_attn.errors import InputError
from tensornet_attn.nn.module import CompiledDesign

Output = tuple[Tensor, Tensor | None]

# What a call may not ask for: argument -> what is wrong with it.
REFUSED = {
    "past_key_values": "it keeps no cache of keys and values; call with use_cache=False",
    "past_key_value": "it keeps no cache of keys and values; call with use_cache=False",
    "encoder_hidden_states": "it attends to one sequence; encoder_hidden_states are a second one",
    "head_mask": "its heads are no longer those that head_mask counts",
    "position_bias": "it takes no position_bias",
    "softcap": "it does not cap its scores",
    "cu_seq_lens_q": "it takes no packed sequences without a mask (cu_seq_lens_q)",
    "cache": "it takes no paged cache",
}


class Swapped(nn.Module):
    """The design and what of the old module lay behind it: dropout, then LayerNorm over the sum with the input.

    `dropout` and `norm` say where the old module has these; where absent, there are none. Subclasses give the signature
    of a family's attention.
    """

    def __init__(self, design: CompiledDesign, trained: Trained, module: nn.Module, dropout: str = "", norm: str = ""):
        super().__init__()
        self.design, self.where, self.causal = design, trained.where, trained.causal
        self.dropout = module.get_submodule(dropout) if dropout else nn.Identity()
        if norm:
            self.LayerNorm = module.get_submodule(norm)

    def attend(self, x: Tensor, mask: Any, given: dict[str, Any]) -> Output:
        """The attention of x [batch, n, f], and its maps [batch, heads, n, n] where the call asks for them."""
        return self._finish(x, arguments(of_hugging_face(mask, self.where), self.causal, self.where), given)

    def _finish(self, x: Tensor, masks: dict[str, Tensor], given: dict[str, Any]) -> Output:
        refuse(self.where, given, self.causal)
        y = self.dropout(self.design(x, **masks))
        if hasattr(self, "LayerNorm"):
            y = self.LayerNorm(x + y)
        return y, maps(self.design, x, masks, self.where) if given.get("output_attentions") else None


class SwappedEncoder(Swapped):
    """In the place of BertAttention, BertSelfAttention, RobertaAttention, AlbertAttention and ViTAttention."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_hidden_states: Any = None,
        encoder_attention_mask: Any = None,
        past_key_values: Any = None,
        **given: Any,
    ) -> Output:
        given |= {"encoder_hidden_states": encoder_hidden_states, "past_key_values": past_key_values}
        return self.attend(hidden_states, attention_mask, given)


class SwappedGPT2(Swapped):
    """In the place of GPT2Attention."""

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: Any = None,
        attention_mask: Any = None,
        encoder_hidden_states: Any = None,
        encoder_attention_mask: Any = None,
        output_attentions: bool | None = False,
        **given: Any,
    ) -> Output:
        given |= {"encoder_hidden_states": encoder_hidden_states, "past_key_values": past_key_values}
        return self.attend(hidden_states, attention_mask, given | {"output_attentions": output_attentions})


class SwappedLlama(Swapped):
    """In the place of LlamaAttention; `base` is that of the rotary positions."""

    def __init__(self, design: CompiledDesign, trained: Trained, module: nn.Module):
        super().__init__(design, trained, module)
        assert trained.rope_base is not None
        self.base = trained.rope_base

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Any = None,
        past_key_values: Any = None,
        position_ids: Tensor | None = None,
        **given: Any,
    ) -> Output:
        refuse(self.where, given | {"past_key_values": past_key_values}, self.causal)
        masks = arguments(of_hugging_face(attention_mask, self.where), self.causal, self.where)
        check_positions(self.where, self.base, position_embeddings, position_ids, masks, self.causal)
        return self._finish(hidden_states, masks, given)


class SwappedTorch(Swapped):
    """In the place of nn.MultiheadAttention, whose attributes keep nn.TransformerEncoderLayer off its fast path."""

    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, design: CompiledDesign, trained: Trained, module: Any):
        super().__init__(design, trained, module)
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
            raise InputError(f"{self.where}: query, key and value are not the same tensor; it attends to one sequence.")
        if is_causal and attn_mask is None:
            raise InputError(f"{self.where}: is_causal is only a hint about attn_mask, which is not given.")
        turned = query.dim() == 3 and not self.batch_first
        x = query.transpose(0, 1) if turned else query
        masks = arguments(of_torch(attn_mask, key_padding_mask, self.num_heads, self.where), self.causal, self.where)
        y, seen = self._finish(x, masks, {"output_attentions": need_weights})
        if seen is not None and average_attn_weights:
            seen = seen.mean(-3)
        return y.transpose(0, 1) if turned else y, seen


def refuse(where: str, given: dict[str, Any], causal: bool) -> None:
    """Raises InputError for what a call asks and the design does not do."""
    for name, reason in REFUSED.items():
        if given.get(name) is not None:
            raise InputError(f"{where}: {reason}.")
    if given.get("is_causal") not in (None, causal):
        raise InputError(f"{where}: is_causal is {given['is_causal']}, and it was converted as {causal}.")


def maps(design: CompiledDesign, x: Tensor, masks: dict[str, Tensor], where: str) -> Tensor:
    """The design's attention maps, [batch, heads, n, n], computed as the diagram is written. Raises InputError."""
    graph = design.plan.graph
    steps = [name for name, kind, _ in design._signature.masks.places if kind == "softmax"]
    if len(steps) != 1 or tuple(graph.legs_of(steps[0])[-2:]) != (graph.query, graph.key):
        raise InputError(
            f"{where}: '{graph.name}' has not one softmax over the keys whose maps could be returned; "
            "ask its design.capture for a step."
        )
    found: Tensor = design.capture(x, steps[0], **masks)
    heads = torch.Size(found.shape[x.dim() - 2 : -2])
    return found.reshape(*x.shape[:-2], heads.numel(), *found.shape[-2:])
