"""Small sizes of the designs in specs/mgk."""

from tests.designs.case import FH, Case

CASES = {
    "mgk": Case(FH | {"r": 2}),
    "smgk": Case(FH | {"r": 3}),
    "mlk": Case(FH | {"r": 2}),
    "mgk_hard": Case(FH | {"r": 2}),
    "smgk_hard": Case(FH | {"r": 5}),
    "softmax_mgk": Case(FH | {"r": 2}),
    "softmax_smgk": Case(FH | {"r": 5}),
    "smlk": Case(FH | {"r": 5}),
    "gaussian": Case(FH),
    "mgk_em": Case(FH | {"r": 2}),
    "smgk_em": Case(FH | {"r": 3}),
    "mgk_mqa": Case(FH | {"r": 2}),
}
