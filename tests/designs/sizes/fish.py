"""Small sizes of the designs in specs/fish."""

from tests.designs.case import FH, Case

CASES = {
    "hard_fish": Case(FH | {"g": 2}),
    "fish": Case(FH | {"g": 2}),
    "fish_simplex": Case(FH | {"g": 2}),
    "mish": Case(FH | {"g": 2}),
    "hard_gfish": Case(FH | {"g": 2, "k": 5}),
    "gfish": Case(FH | {"g": 2, "k": 5}),
    "gfish_release": Case(FH | {"g": 2, "k": 5}),
    "hard_fish_simplex": Case(FH | {"g": 2}),
    "mish_simplex": Case(FH | {"g": 2}),
    "kernel_fish": Case(FH | {"g": 2}),
    "kernel_gfish": Case(FH | {"g": 2, "k": 5}),
    "hard_lfish": Case(FH | {"g": 2, "e": 5}),
    "lfish": Case(FH | {"g": 2, "e": 5}),
    "hard_glfish": Case(FH | {"g": 2, "e": 3, "k": 5}),
    "glfish": Case(FH | {"g": 2, "e": 3, "k": 5}),
}
