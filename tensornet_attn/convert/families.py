"""The supported families of attention modules, one row per family: attribute names and properties."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

# Attributes of attention modules that change the computation, with the reason to refuse them. A family whose designs
# support an attribute lists it in `FamilyLayout.features`.
FEATURES = {
    "distance_embedding": "its positions are learned distances between queries and keys (position_embedding_type)",
    "sliding_window": "it has a sliding window",
    "q_norm": "it normalises queries",
    "k_norm": "it normalises keys",
    "sinks": "it has attention sinks",
    "attn_logit_softcapping": "it caps its scores",
    "pruned_heads": "some of its heads are pruned",
    "clip_qkv": "it clips queries, keys and values",
}


@dataclass(frozen=True)
class FamilyLayout:
    """The weights of a family's modules, and the properties of their forward.

    `projections`: the layers of queries, keys, values and output, or a fused layer and that of the output. If the
    output is empty, the concatenated heads are the output. `fused`: the order in a fused layer: "qkv" has all queries
    before all keys, "heads" groups them by head. `inside`: the attribute of the module with the heads; empty for the
    module itself. `rope`: "whole" if rotary positions act on all of a head, "partial" if the config has a fraction.
    `interleaved`: rotary pairs are neighbours, not half a head apart. `features`: supported entries of FEATURES.
    `causal`: None if it is an attribute of the module. `alibi`: the argument of forward with ALiBi biases. `hides`:
    masks are true for hidden keys. `buckets`: relative position biases as in T5, which the first attention of a stack
    owns; decoder attentions that are not causal are cross-attentions. `once`: the model has each rotary angle once, not
    for both entries of a pair.
    """

    projections: str = "q_proj k_proj v_proj o_proj"
    fused: str = ""
    inside: str = ""
    rope: str = ""
    interleaved: bool = False
    features: tuple[str, ...] = ()
    causal: bool | None = None
    alibi: str = ""
    hides: bool = False
    buckets: bool = False
    once: bool = False


@dataclass(frozen=True)
class Family:
    """Attention classes with one layout. They are given by name, so that their package need not be imported.

    A subclass with the same `forward` belongs to the family. `behind`: attributes of the dropout and the LayerNorm
    after the attention, which conversion keeps.
    """

    classes: tuple[str, ...]
    layout: FamilyLayout = field(default_factory=FamilyLayout)
    behind: tuple[str, ...] = ()


def named(stems: str, end: str = "Attention") -> tuple[str, ...]:
    """Class names from their stems.

    >>> named("Bert ViT")
    ('BertAttention', 'ViTAttention')
    """
    return tuple(f"{stem}{end}" for stem in stems.split())


# Families with the same forward share a row.
BERT = "Bert Roberta BertGeneration Camembert Data2VecText Electra Ernie XLMRoberta"
BEFORE = "RobertaPreLayerNorm RoCBert XLMRobertaXL Xmod"  # with LayerNorm before the attention or elsewhere
LLAMA = "Llama Arcee Csm Emu3 EuroBert Gemma Granite GraniteMoe GraniteMoeShared HyperCLOVAX Jais2 Phimoe Qwen2Moe"
NORMS, WINDOW = ("q_norm", "k_norm"), ("sliding_window",)
FAMILIES = (
    Family(("MultiheadAttention",)),
    Family(
        named(BERT),
        FamilyLayout("self.query self.key self.value output.dense", inside="self"),
        ("output.dropout", "output.LayerNorm"),
    ),
    Family(
        (*named(f"{BERT} {BEFORE}", "SelfAttention"), *named(f"{BERT} {BEFORE}", "CrossAttention")),
        FamilyLayout("query key value "),
    ),
    Family(("AlbertAttention",), FamilyLayout("query key value dense"), ("output_dropout", "LayerNorm")),
    Family(("DistilBertSelfAttention",), FamilyLayout("q_lin k_lin v_lin out_lin")),
    Family(("GPT2Attention",), FamilyLayout("c_attn c_proj", "qkv", causal=True), ("resid_dropout",)),
    Family(named("ViT AST DeiT Dinov2 Dinov2WithRegisters IJepa ViTMAE ViTMSN Vivit")),
    Family(named(f"{LLAMA} SolarOpen"), FamilyLayout(rope="whole")),
    Family(named("Mistral Mixtral Qwen2 Cwm MiniMax Ministral"), FamilyLayout(rope="whole", features=WINDOW)),
    Family(named("Qwen3 Qwen3Moe Dots1 Gemma3 Mellum"), FamilyLayout(rope="whole", features=(*NORMS, *WINDOW))),
    Family(named("Gemma2 VaultGemma"), FamilyLayout(rope="whole", features=(*WINDOW, "attn_logit_softcapping"))),
    Family(named("Olmo2 FlexOlmo"), FamilyLayout(rope="whole", features=NORMS)),
    Family(named("GptOss"), FamilyLayout(rope="whole", once=True, features=(*WINDOW, "sinks"))),
    Family(named("Cohere"), FamilyLayout(rope="whole", interleaved=True, features=NORMS)),
    Family(named("Phi3"), FamilyLayout("qkv_proj o_proj", "qkv", rope="partial", features=WINDOW)),
    Family(named("GPTNeoX"), FamilyLayout("query_key_value dense", "heads", rope="partial")),
    Family(
        named("Bloom"), FamilyLayout("query_key_value dense", "heads", causal=True, alibi="alibi"), ("hidden_dropout",)
    ),
    Family(named("Mpt"), FamilyLayout("Wqkv out_proj", "qkv", causal=True, alibi="position_bias", hides=True)),
    Family(named("T5 MT5"), FamilyLayout("q k v o", buckets=True)),
    Family(named("ModernBert"), FamilyLayout("Wqkv Wo", "qkv", rope="whole", features=WINDOW), ("out_drop",)),
)


def family_of(module: nn.Module) -> Family | None:
    """The family of a module's class or of its nearest base class. The class must be from torch or transformers."""
    for kin in type(module).__mro__:
        for family in FAMILIES:
            theirs = kin is nn.MultiheadAttention or kin.__module__.startswith("transformers.models.")
            if theirs and kin.__name__ in family.classes:
                return family
    return None
