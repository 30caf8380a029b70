"""Small sizes of the designs in specs/modern whose state fades, or whose scores are made of running sums."""

from tests.designs.case import FH, Case

RULE = FH | {"e": 3}
STATEFUL = {"causal": (True,), "masks": False}
CASES = {
    "gated_deltanet": Case(RULE, **STATEFUL),
    "kda": Case(RULE | {"r": 2}, **STATEFUL),
    "comba": Case(RULE, **STATEFUL),
    "gated_deltaproduct": Case(RULE | {"r": 3}, **STATEFUL),
    "rwkv7": Case(RULE | {"r": 2}, **STATEFUL),
    "retnet": Case(RULE, causal=(True,), masks=False),
    "gla": Case({"f": 12, "h": 2, "d": 3, "e": 4, "r": 2}, {"tau": 4}, causal=(True,), masks=False),
    "hgrn": Case({"f": 6, "a": 5}, {"bound": 0.3}, **STATEFUL),
    "rg_lru": Case({"f": 12, "h": 3, "d": 4, "e": 4}, {"c": 3}, **STATEFUL),
    "mamba1": Case({"f": 6, "a": 5, "s": 3, "r": 2}, **STATEFUL),
    "mamba2": Case({"f": 6, "h": 2, "d": 3, "s": 4}, causal=(True,), masks=False),
    "mingru": Case({"f": 6, "a": 5}, **STATEFUL),
    "stick_breaking": Case(FH),
    "cope": Case(FH | {"p": 3}),
    "fox": Case(FH),
}
