"""Small sizes of the designs in specs/tuformer."""

from tests.designs.case import FH, Case

CASES = {
    "thsa": Case({"f": 12, "r": 6, "s": 4}),
    "mhsa_core": Case(FH, arguments={"heads": 3}),
    "skip_right": Case({"f": 12, "h": 3, "g": 2}),
    "skip_left": Case({"f": 12, "h": 3, "d": 4, "e": 5, "c": 2}),
    "thsa_kron": Case({"f": 12, "h": 3, "g": 2, "d": 4, "e": 5, "c": 2}),
    "trainable_heads_only": Case({"f": 12, "h": 6, "g": 4}),
    "heads_only": Case({"f": 12, "h": 6}),
    "thsa_low_rank": Case({"f": 12, "r": 6, "s": 4, "c": 3}),
    "thsa_elu": Case({"f": 12, "r": 6, "s": 4, "h": 2}, positive=("C",)),
    "thsa_square": Case({"f": 12, "r": 6, "s": 4, "h": 2}, positive=("C",)),
    "thsa_poly": Case({"f": 12, "r": 6, "s": 4}),
    "mhsa_poly": Case(FH),
    "thsa_xl": Case({"f": 12, "r": 6, "s": 4}),
}
