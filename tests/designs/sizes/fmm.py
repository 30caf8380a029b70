"""Small sizes of the designs in specs/fmm."""

from tests.designs.case import FH, Case

CASES = {
    "fmm1": Case(FH, {"k": 3}),
    "fmm2": Case(FH, {"k": 4}),
    "fmm3": Case(FH, {"k": 3}),
    "fmm1_causal": Case(FH, {"k": 2}),
    "fmm2_causal": Case(FH, {"k": 3}),
    "fmm3_causal": Case(FH, {"k": 2}),
    "linear2": Case(FH),
    "linear3": Case(FH),
    "fmm1_rows": Case(FH, {"k": 3}),
    "fmm2_rows": Case(FH, {"k": 4}),
    "fmm3_shifted": Case(FH, {"k": 3}),
    "linear3_shifted": Case(FH),
    "fast_weight1": Case(FH | {"e": 3}, causal=(True,), masks=False),
    "fast_weight2": Case(FH | {"e": 3}, causal=(True,), masks=False),
    "fmm_fast_weight1": Case(FH | {"e": 3}, {"k": 2}, causal=(True,), masks=False),
    "fmm_fast_weight2": Case(FH | {"e": 3}, {"k": 2}, causal=(True,), masks=False),
    "fmm_lra_release": Case(FH, {"k": 2}),
}
