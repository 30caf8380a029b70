"""Small sizes of the shipped designs."""

from typing import Any

from tests.designs.case import FH, Case, N


def each(names: str, *said: Any, **more: Any) -> dict[str, Case]:
    """The same of several designs."""
    return dict.fromkeys(names.split(), Case(*said, **more))


CHOICES = ("v", "k", "q", "o", "vk", "vq", "kq", "ko", "qo", "vkq", "vko", "vqo", "kqo", "vkqo")  # and epa: vo
RULE = FH | {"e": 3}
STATEFUL = {"causal": (True,), "masks": False}
GROUPS = {"f": 24, "g": 2, "j": 3}  # d is 4
EXPERTS = {"f": 6, "e": 4, "l": 5}
EPA = {
    "epa": Case(FH | {"e": 6}, {"k": 2}),
    **{f"epa_{letters}": Case({"f": 7, "h": 3, "d": 4, "e": 6}, {"k": 2}) for letters in CHOICES},
    "epa_rope": Case({"f": 12, "h": 3, "d": 8, "e": 4}, {"k": 2, "fraction": 0.5}),
    "epa_xl": Case(FH | {"e": 6}, {"k": 2}),
    "head_gated": Case(FH, {"k": 2}),
    "moa": Case({"f": 12, "e": 4, "d": 7}, {"k": 2}),
    "moa_regularised": Case({"f": 12, "e": 4, "d": 7}, {"k": 2}),
    "moa_sigmoid": Case({"f": 12, "e": 4, "d": 7}, {"k": 3}),
    "sigma_moe": Case({"f": 6, "e": 4, "l": 7}, {"k": 2}, causal=(None,)),
    "sigma_moe_regularised": Case({"f": 6, "e": 4, "l": 7}, {"k": 2}, causal=(None,), masks=False),
}

CASES: dict[str, Case] = {
    # specs/baselines
    **each("mhsa mqa", FH),
    "gqa": Case({"f": 12, "g": 2, "j": 3}),
    "mla": Case(FH | {"c": 5}),
    "cross": Case(FH, inputs=(3, N)),
    "linear": Case(FH),
    "band": Case(FH, {"k": 3}),
    "mhsa_rope": Case(FH),
    "gqa_rope": Case({"f": 24, "g": 2, "j": 3}),
    "alibi": Case({"f": 12, "h": 2}),
    "transformer_xl": Case(FH),
    "talking_heads": Case({"f": 12, "g": 2, "h": 3, "e": 4}),
    "differential": Case({"f": 12, "h": 2}, {"lambda_init": 0.2}),
    "mlp": Case({"f": 6, "l": 7}, causal=(None,)),
    # specs/tuformer
    "thsa": Case({"f": 12, "r": 6, "s": 4}),
    "mhsa_core": Case(FH, arguments={"heads": 3}),
    "skip_right": Case({"f": 12, "h": 3, "g": 2}),
    "skip_left": Case({"f": 12, "h": 3, "d": 4, "e": 5, "c": 2}),
    "thsa_kron": Case({"f": 12, "h": 3, "g": 2, "d": 4, "e": 5, "c": 2}),
    "trainable_heads_only": Case({"f": 12, "h": 6, "g": 4}),
    "heads_only": Case({"f": 12, "h": 6}),
    "thsa_low_rank": Case({"f": 12, "r": 6, "s": 4, "c": 3}),
    **each("thsa_elu thsa_square", {"f": 12, "r": 6, "s": 4, "h": 2}, positive=("C",)),
    "thsa_poly": Case({"f": 12, "r": 6, "s": 4}),
    "mhsa_poly": Case(FH),
    "thsa_xl": Case({"f": 12, "r": 6, "s": 4}),
    # specs/fish
    **each("hard_fish fish fish_simplex mish", FH | {"g": 2}),
    **each("hard_gfish gfish gfish_release", FH | {"g": 2, "k": 5}),
    **each("hard_fish_simplex mish_simplex kernel_fish", FH | {"g": 2}),
    "kernel_gfish": Case(FH | {"g": 2, "k": 5}),
    **each("hard_lfish lfish", FH | {"g": 2, "e": 5}),
    **each("hard_glfish glfish", FH | {"g": 2, "e": 3, "k": 5}),
    # specs/mgk
    "mgk": Case(FH | {"r": 2}),
    "smgk": Case(FH | {"r": 3}),
    **each("mlk mgk_hard", FH | {"r": 2}),
    "smgk_hard": Case(FH | {"r": 5}),
    "softmax_mgk": Case(FH | {"r": 2}),
    **each("softmax_smgk smlk", FH | {"r": 5}),
    "gaussian": Case(FH),
    "mgk_em": Case(FH | {"r": 2}),
    "smgk_em": Case(FH | {"r": 3}),
    "mgk_mqa": Case(FH | {"r": 2}),
    # specs/fmm
    "fmm1": Case(FH, {"k": 3}),
    "fmm2": Case(FH, {"k": 4}),
    "fmm3": Case(FH, {"k": 3}),
    "fmm1_causal": Case(FH, {"k": 2}),
    "fmm2_causal": Case(FH, {"k": 3}),
    "fmm3_causal": Case(FH, {"k": 2}),
    **each("linear2 linear3", FH),
    "fmm1_rows": Case(FH, {"k": 3}),
    "fmm2_rows": Case(FH, {"k": 4}),
    "fmm3_shifted": Case(FH, {"k": 3}),
    "linear3_shifted": Case(FH),
    **each("fast_weight1 fast_weight2", FH | {"e": 3}, **STATEFUL),
    **each("fmm_fast_weight1 fmm_fast_weight2", FH | {"e": 3}, {"k": 2}, **STATEFUL),
    "fmm_lra_release": Case(FH, {"k": 2}),
    **EPA,
    # specs/modern: states that fade, or scores made of cumulative sums
    "gated_deltanet": Case(RULE, **STATEFUL),
    "kda": Case(RULE | {"r": 2}, **STATEFUL),
    "comba": Case(RULE, **STATEFUL),
    "gated_deltaproduct": Case(RULE | {"r": 3}, **STATEFUL),
    "rwkv7": Case(RULE | {"r": 2}, **STATEFUL),
    "retnet": Case(RULE, **STATEFUL),
    "gla": Case({"f": 12, "h": 2, "d": 3, "e": 4, "r": 2}, {"tau": 4}, **STATEFUL),
    "hgrn": Case({"f": 6, "a": 5}, {"bound": 0.3}, **STATEFUL),
    "rg_lru": Case({"f": 12, "h": 3, "d": 4, "e": 4}, {"c": 3}, **STATEFUL),
    "mamba1": Case({"f": 6, "a": 5, "s": 3, "r": 2}, **STATEFUL),
    "mamba2": Case({"f": 6, "h": 2, "d": 3, "s": 4}, **STATEFUL),
    "mingru": Case({"f": 6, "a": 5}, **STATEFUL),
    "stick_breaking": Case(FH),
    "cope": Case(FH | {"p": 3}),
    "fox": Case(FH),
    # specs/modern: others
    "llama": Case(GROUPS),
    "mistral": Case(GROUPS, {"window": 3}),
    **each("qwen2 qwen3", GROUPS),
    "qwen3_next": Case(GROUPS, {"turned": 0.5}),
    "gemma2": Case(GROUPS, {"scalar": 3, "cap": 2}),
    "gemma2_local": Case(GROUPS, {"scalar": 3, "cap": 2, "window": 3}),
    "gemma3": Case(GROUPS, {"scalar": 3}),
    "gemma3_local": Case(GROUPS, {"scalar": 3, "window": 3}),
    **each("cohere olmo2 nemotron gpt_oss", GROUPS),
    "gpt2": Case(FH),
    "gpt_neox": Case({"f": 16, "h": 4}, {"turned": 0.5}),
    "phi": Case({"f": 16, "h": 4}),
    "bloom": Case({"f": 12, "h": 2}),
    "mpt": Case({"f": 12, "h": 2}, {"clip": 0.7}),
    "moonshine": Case({"f": 16, "h": 4}, {"turned": 0.5}),
    "deberta_v2": Case(FH | {"p": 2}),
    "t5": Case(FH | {"b": 8}, {"furthest": 4}),
    "lfm2": Case({"f": 6, "a": 5, "w": 3}, causal=(None,)),
    "xlnet": Case(FH),
    "diffllama": Case({"f": 12, "g": 1, "j": 2, "d": 4}, {"lambda_init": 0.2}),
    "deepseek_v3": Case({"f": 12, "h": 3, "d": 4, "r": 2, "e": 3, "a": 5, "c": 6}),
    "perceiver": Case(FH | {"c": 12}, inputs=(3, N)),
    **each("l2_attention qk_l2norm", FH),
    "tpa": Case({"f": 12, "h": 3, "d": 4, "q": 3, "r": 2}),
    **each("sigmoid_attention laser", FH),
    "based": Case({"f": 12, "h": 3, "d": 2}),
    "gau": Case({"f": 6, "e": 8, "s": 5}),
    "abc": Case(FH | {"r": 3}),
    "gsa": Case(FH | {"r": 3}, {"tau": 2}, **STATEFUL),
    "minimax": Case({"f": 12, "h": 2}, {"speed": 0.5}),
    "moh": Case({"f": 12, "s": 2, "h": 3, "d": 4}, {"k": 2}),
    "rwkv4": Case({"f": 6, "a": 5}, **STATEFUL),
    **each("nemotron_mlp swiglu geglu", {"f": 6, "l": 7}, causal=(None,)),
    "mixtral": Case(EXPERTS, {"k": 2}, causal=(None,)),
    "qwen2_moe": Case(EXPERTS | {"s": 7}, {"k": 2}, causal=(None,)),
    "deepseek_moe": Case(
        {"f": 6, "e": 8, "l": 5, "s": 7}, {"k": 2, "groups": 4, "k_groups": 2, "stretch": 1.5}, causal=(None,)
    ),
    "switch": Case(EXPERTS, causal=(None,)),
}
