"""Small sizes of the designs in specs/modern."""

from tests.designs.case import FH, Case, N

GROUPS = {"f": 24, "g": 2, "j": 3}  # d is 4
EXPERTS = {"f": 6, "e": 4, "l": 5}
CASES = {
    "llama": Case(GROUPS),
    "mistral": Case(GROUPS, {"window": 3}),
    "qwen2": Case(GROUPS),
    "qwen3": Case(GROUPS),
    "qwen3_next": Case(GROUPS, {"turned": 0.5}),
    "gemma2": Case(GROUPS, {"scalar": 3, "cap": 2}),
    "gemma2_local": Case(GROUPS, {"scalar": 3, "cap": 2, "window": 3}),
    "gemma3": Case(GROUPS, {"scalar": 3}),
    "gemma3_local": Case(GROUPS, {"scalar": 3, "window": 3}),
    "cohere": Case(GROUPS),
    "olmo2": Case(GROUPS),
    "nemotron": Case(GROUPS),
    "gpt_oss": Case(GROUPS),
    "gpt2": Case(FH),
    "gpt_neox": Case(FH, {"turned": 0.5}),
    "phi": Case(FH),
    "bloom": Case({"f": 12, "h": 2}),
    "mpt": Case({"f": 12, "h": 2}, {"clip": 0.7}),
    "moonshine": Case(FH, {"turned": 0.5}),
    "deberta_v2": Case(FH | {"p": 2}),
    "t5": Case(FH | {"b": 8}, {"furthest": 4}),
    "lfm2": Case({"f": 6, "a": 5, "w": 3}, causal=(None,)),
    "xlnet": Case(FH),
    "diffllama": Case({"f": 12, "g": 1, "j": 2, "d": 4}, {"lambda_init": 0.2}),
    "deepseek_v3": Case({"f": 12, "h": 3, "d": 4, "r": 2, "e": 3, "a": 5, "c": 6}),
    "perceiver": Case(FH | {"c": 12}, inputs=(3, N)),
    "l2_attention": Case(FH),
    "qk_l2norm": Case(FH),
    "tpa": Case({"f": 12, "h": 3, "d": 4, "q": 3, "r": 2}),
    "sigmoid_attention": Case(FH),
    "laser": Case(FH),
    "based": Case({"f": 12, "h": 3, "d": 2}),
    "gau": Case({"f": 6, "e": 8, "s": 5}),
    "abc": Case(FH | {"r": 3}),
    "gsa": Case(FH | {"r": 3}, {"tau": 2}, causal=(True,), masks=False),
    "minimax": Case({"f": 12, "h": 2}, {"speed": 0.5}),
    "rwkv4": Case({"f": 6, "a": 5}, causal=(True,), masks=False),
    "nemotron_mlp": Case({"f": 6, "l": 7}, causal=(None,)),
    "swiglu": Case({"f": 6, "l": 7}, causal=(None,)),
    "geglu": Case({"f": 6, "l": 7}, causal=(None,)),
    "mixtral": Case(EXPERTS, {"k": 2}, causal=(None,)),
    "qwen2_moe": Case(EXPERTS | {"s": 7}, {"k": 2}, causal=(None,)),
    "deepseek_moe": Case(
        {"f": 6, "e": 8, "l": 5, "s": 7}, {"k": 2, "groups": 4, "k_groups": 2, "stretch": 1.5}, causal=(None,)
    ),
    "switch": Case(EXPERTS, causal=(None,)),
}
