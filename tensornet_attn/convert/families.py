"""The families of attentions that can be read: a row for each, of what its modules call things and what they do."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

# Attributes of attention modules that change what is computed, and what they mean. A family that applies one in a way
# that a design can carry lists it in its layout; in all others it is refused.
FEATURES = {
    "distance_embedding": "its positions are learned distances between queries and keys (position_embedding_type)",
    "sliding_window": "it sees a sliding window only",
    "q_norm": "it normalises queries",
    "k_norm": "it normalises keys",
    "sinks": "it has attention sinks",
    "attn_logit_softcapping": "it caps its scores",
    "pruned_heads": "some of its heads are pruned",
    "clip_qkv": "it clips queries, keys and values",
}


@dataclass(frozen=True)
class Layout:
    """Where the modules of a family keep their weights, and what their forward does beside plain attention.

    `projections`: the layers of queries, keys, values and output, or the one layer of the first three and that of the
    output; an empty output means that the heads, one after another, are it. `fused`: how one layer holds the three,
    "qkv" one after another, or "heads", the three of a head side by side. `inside`: the attribute with the heads,
    empty for the module itself. `rope`: "whole" where all of a head turns, "partial" where the config says how much.
    `interleaved`: neighbours are turned together, not the halves of a head. `features`: those of FEATURES that it
    applies. `causal`: None where the module says so. `alibi`: the argument of its forward with ALiBi's biases;
    `hides`: its masks are true where a key is hidden. `buckets`: biases of distances in buckets, which the first
    attention of a stack has for all, as those of T5; one that is no other's self-attention attends to another sequence.
    `once`: the model gives the angle of a rotary pair once.
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
    """Classes of one kind by name, so that no other package is imported; a subclass that keeps `forward` counts too.

    `behind`: where a module has what lies behind its attention and stays, dropout and LayerNorm.
    """

    classes: tuple[str, ...]
    layout: Layout = field(default_factory=Layout)
    behind: tuple[str, ...] = ()


def named(stems: str, end: str = "Attention") -> tuple[str, ...]:
    """Class names, by what stands before their end."""
    return tuple(f"{stem}{end}" for stem in stems.split())


# Families whose modules have one forward stand in one row.
BERT = "Bert Roberta BertGeneration Camembert Data2VecText Electra Ernie XLMRoberta"
BEFORE = "RobertaPreLayerNorm RoCBert XLMRobertaXL Xmod"  # whose LayerNorm stands before, or elsewhere
LLAMA = "Llama Arcee Csm Emu3 EuroBert Gemma Granite GraniteMoe GraniteMoeShared HyperCLOVAX Jais2 Phimoe Qwen2Moe"
NORMS, WINDOW = ("q_norm", "k_norm"), ("sliding_window",)
FAMILIES = (
    Family(("MultiheadAttention",)),
    Family(
        named(BERT),
        Layout("self.query self.key self.value output.dense", inside="self"),
        ("output.dropout", "output.LayerNorm"),
    ),
    Family(
        (*named(f"{BERT} {BEFORE}", "SelfAttention"), *named(f"{BERT} {BEFORE}", "CrossAttention")),
        Layout("query key value "),
    ),
    Family(("AlbertAttention",), Layout("query key value dense"), ("output_dropout", "LayerNorm")),
    Family(("DistilBertSelfAttention",), Layout("q_lin k_lin v_lin out_lin")),
    Family(("GPT2Attention",), Layout("c_attn c_proj", "qkv", causal=True), ("resid_dropout",)),
    Family(named("ViT AST DeiT Dinov2 Dinov2WithRegisters IJepa ViTMAE ViTMSN Vivit")),
    Family(named(f"{LLAMA} SolarOpen"), Layout(rope="whole")),
    Family(named("Mistral Mixtral Qwen2 Cwm MiniMax Ministral"), Layout(rope="whole", features=WINDOW)),
    Family(named("Qwen3 Qwen3Moe Dots1 Gemma3 Mellum"), Layout(rope="whole", features=(*NORMS, *WINDOW))),
    Family(named("Gemma2 VaultGemma"), Layout(rope="whole", features=(*WINDOW, "attn_logit_softcapping"))),
    Family(named("Olmo2 FlexOlmo"), Layout(rope="whole", features=NORMS)),
    Family(named("GptOss"), Layout(rope="whole", once=True, features=(*WINDOW, "sinks"))),
    Family(named("Cohere"), Layout(rope="whole", interleaved=True, features=NORMS)),
    Family(named("Phi3"), Layout("qkv_proj o_proj", "qkv", rope="partial", features=WINDOW)),
    Family(named("GPTNeoX"), Layout("query_key_value dense", "heads", rope="partial")),
    Family(named("Bloom"), Layout("query_key_value dense", "heads", causal=True, alibi="alibi"), ("hidden_dropout",)),
    Family(named("Mpt"), Layout("Wqkv out_proj", "qkv", causal=True, alibi="position_bias", hides=True)),
    Family(named("T5 MT5"), Layout("q k v o", buckets=True)),
    Family(named("ModernBert"), Layout("Wqkv Wo", "qkv", rope="whole", features=WINDOW), ("out_drop",)),
)


def family_of(module: nn.Module) -> Family | None:
    """The row of a module's class, or of the nearest class it inherits from; others of the same name are others."""
    for kin in type(module).__mro__:
        for family in FAMILIES:
            theirs = kin is nn.MultiheadAttention or kin.__module__.startswith("transformers.models.")
            if theirs and kin.__name__ in family.classes:
                return family
    return None
