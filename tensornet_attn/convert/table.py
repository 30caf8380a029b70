"""The attentions that can be read, a row for each: class names, how it is read, and what takes its place in a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from torch import nn

from tensornet_attn.convert.families import Layout, Trained, read_hugging_face, read_multihead, refusal
from tensornet_attn.errors import InputError


@dataclass(frozen=True)
class Family:
    """Classes of one kind by name, so that no other package is imported; a subclass that keeps `forward` counts too.

    `behind`: where a module has what lies behind its attention and stays, dropout and LayerNorm.
    """

    classes: tuple[str, ...]
    layout: Layout = field(default_factory=Layout)
    behind: tuple[str, ...] = ()
    read: Callable[[Any, str, Layout], Trained] = read_hugging_face


def named(stems: str, end: str = "Attention") -> tuple[str, ...]:
    """Class names, by what stands before their end."""
    return tuple(f"{stem}{end}" for stem in stems.split())


# Families whose modules have one forward stand in one row.
BERT = "Bert Roberta BertGeneration Camembert Data2VecText Electra Ernie XLMRoberta"
NORMS, WINDOW = ("q_norm", "k_norm"), ("sliding_window",)
FAMILIES = (
    Family(("MultiheadAttention",), read=read_multihead),
    Family(
        named(BERT),
        Layout("self.query self.key self.value output.dense", inside="self"),
        ("output.dropout", "output.LayerNorm"),
    ),
    Family((*named(BERT, "SelfAttention"), *named(BERT, "CrossAttention")), Layout("query key value ")),
    Family(("AlbertAttention",), Layout("query key value dense"), ("output_dropout", "LayerNorm")),
    Family(("DistilBertSelfAttention",), Layout("q_lin k_lin v_lin out_lin")),
    Family(("GPT2Attention",), Layout("c_attn c_proj", "qkv", causal=True), ("resid_dropout",)),
    Family(named("ViT AST DeiT Dinov2 Dinov2WithRegisters IJepa ViTMAE ViTMSN Vivit")),
    Family(named("Llama Arcee EuroBert Gemma Granite GraniteMoe Qwen2Moe"), Layout(rope="whole")),
    Family(named("Mistral Mixtral Qwen2 Cwm Ministral"), Layout(rope="whole", features=WINDOW)),
    Family(named("Qwen3 Qwen3Moe Dots1 Gemma3"), Layout(rope="whole", features=(*NORMS, *WINDOW))),
    Family(named("Gemma2 VaultGemma"), Layout(rope="whole", features=(*WINDOW, "attn_logit_softcapping"))),
    Family(named("Olmo2 FlexOlmo"), Layout(rope="whole", features=NORMS)),
    Family(named("Cohere"), Layout(rope="whole", interleaved=True, features=NORMS)),
    Family(named("Phi3"), Layout("qkv_proj o_proj", "qkv", rope="partial", features=WINDOW)),
    Family(named("GPTNeoX"), Layout("query_key_value dense", "heads", rope="partial")),
    Family(named("Bloom"), Layout("query_key_value dense", "heads", causal=True, alibi="alibi"), ("hidden_dropout",)),
    Family(named("Mpt"), Layout("Wqkv out_proj", "qkv", causal=True, alibi="position_bias", hides=True)),
    Family(named("ModernBert"), Layout("Wqkv Wo", "qkv", rope="whole", features=WINDOW), ("out_drop",)),
)


def family_of(module: nn.Module) -> Family | None:
    """The row of a module's class, or of the nearest class it inherits from."""
    for kin in type(module).__mro__:
        for family in FAMILIES:
            if kin.__name__ in family.classes and (
                kin is nn.MultiheadAttention or kin.__name__ != "MultiheadAttention"
            ):
                return family
    return None


def read_trained(module: nn.Module, where: str = "") -> Trained:
    """Weights by the letters of the diagrams, copied; `where` is the module's path in its model, for errors.

    Raises InputError, naming path and class, for a module of no known kind and for what no design can carry.

    >>> trained = read_trained(nn.MultiheadAttention(12, 3), "encoder.self_attn")
    >>> trained.where
    'encoder.self_attn (MultiheadAttention)'
    >>> [f"{name} {list(value.shape)}" for name, value in trained.weights.items()]
    ['Wq [12, 3, 4]', 'Wk [12, 3, 4]', 'Wv [12, 3, 4]', 'Wo [3, 4, 12]']
    """
    family, place = known(module, where)
    return family.read(module, place, family.layout)


def known(module: nn.Module, where: str = "") -> tuple[Family, str]:
    """The row of a module that can be taken out of its model, and its path and class. Raises InputError."""
    if not isinstance(module, nn.Module):
        raise InputError(f"a {type(module).__name__} is no attention: give an nn.Module.")
    place, family = place_of(module, where), family_of(module)
    if family is None:
        kinds = [name for row in FAMILIES for name in row.classes if "Cross" not in name]
        near = get_close_matches(type(module).__name__, kinds, 3)
        hint = f"the nearest that can: {', '.join(near)}" if near else "docs/convert.md lists those that can"
        raise InputError(f"{place} is no attention that can be read; {hint}.")
    if "forward" in vars(module):
        raise refusal(place, "its forward was replaced on this instance, by a hook or a patch")
    named: Any = next(kin for kin in type(module).__mro__ if kin.__name__ in family.classes)
    if type(module).forward is not named.forward:
        raise refusal(place, "its class overrides forward, so it computes something of its own")
    return family, place


def place_of(module: nn.Module, where: str) -> str:
    """`encoder.layer.0.attention (BertAttention)`, the class alone without a path."""
    name = type(module).__name__
    return f"{where} ({name})" if where else name
