"""Small sizes of the designs in specs/epa."""

from tests.designs.case import FH, Case

CHOICES = ("v", "k", "q", "o", "vk", "vq", "kq", "ko", "qo", "vkq", "vko", "vqo", "kqo", "vkqo")  # and epa: vo
CASES = {
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
