"""The attentions that can be read, a row for each: class names, how it is read, and what takes its place in a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from tensornet_attn.convert import families
from tensornet_attn.convert.families import Trained, refusal
from tensornet_attn.convert.wrap import Swapped, SwappedEncoder, SwappedGPT2, SwappedLlama, SwappedTorch
from tensornet_attn.errors import InputError


@dataclass(frozen=True)
class Family:
    """Classes of one kind by name, so that no other package is imported; a subclass that keeps `forward` counts too.

    `behind`: where a module has what lies behind its attention and stays, dropout and LayerNorm.
    """

    classes: tuple[str, ...]
    read: Callable[[Any, str], Trained]
    swap: type[Swapped]
    behind: tuple[str, ...] = ()


FAMILIES = (
    Family(("MultiheadAttention",), families.read_multihead, SwappedTorch),
    Family(
        ("BertAttention", "RobertaAttention"),
        families.read_bert,
        SwappedEncoder,
        ("output.dropout", "output.LayerNorm"),
    ),
    Family(("BertSelfAttention", "RobertaSelfAttention"), families.read_bert_self, SwappedEncoder),
    Family(("BertCrossAttention", "RobertaCrossAttention"), families.read_bert_cross, SwappedEncoder),
    Family(("AlbertAttention",), families.read_albert, SwappedEncoder, ("output_dropout", "LayerNorm")),
    Family(("GPT2Attention",), families.read_gpt2, SwappedGPT2, ("resid_dropout",)),
    Family(("ViTAttention",), families.read_vit, SwappedEncoder),
    Family(("LlamaAttention",), families.read_llama, SwappedLlama),
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
    if not isinstance(module, nn.Module):
        raise InputError(f"a {type(module).__name__} is no attention: give an nn.Module.")
    place, family = place_of(module, where), family_of(module)
    if family is None:
        known = ", ".join(name for row in FAMILIES for name in row.classes if "Cross" not in name)
        raise InputError(f"{place} is no attention that can be read; known: {known}.")
    if "forward" in vars(module):
        raise refusal(place, "its forward was replaced on this instance, by a hook or a patch")
    named: Any = next(kin for kin in type(module).__mro__ if kin.__name__ in family.classes)
    if type(module).forward is not named.forward:
        raise refusal(place, "its class overrides forward, so it computes something of its own")
    return family.read(module, place)


def place_of(module: nn.Module, where: str) -> str:
    """`encoder.layer.0.attention (BertAttention)`, the class alone without a path."""
    name = type(module).__name__
    return f"{where} ({name})" if where else name
