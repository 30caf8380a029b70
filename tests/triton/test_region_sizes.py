"""Every shipped design on Triton at many sizes, in the interpreter: values and gradients of the oracle.

Of lengths x widths x dtypes each design has three, and all of them together meet each length with each width and dtype
many times.
"""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tensornet_attn.graph import build
from tests.designs.cases import ATTENTION, CASES
from tests.designs.sizes import EPA
from tests.triton.agreement import WIDTHS
from tests.triton.regions import draw, on_triton, pair, same

LENGTHS = (1, 17, 64, 130)
NEAR = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 3e-2}
DTYPES = tuple(NEAR)
# These divide by numbers near zero, which rounding moves by any factor; in float16, others decide ties, or the sign of
# a number near zero, in another way.
DTYPES_OF = dict.fromkeys(("fmm3", "fmm3_causal", "linear3"), 1)
DTYPES_OF |= dict.fromkeys(("gla", "mgk_hard", "smgk_hard", "gfish_release"), 2)
# The weight of an only key is 1, so gradients of its score are 0, to which features of products add up too late; and a
# norm divides by the size of (1 - lambda) V, so that gradients of lambda are 0, on torch with the same error.
ONLY_KEY = {("mhsa_poly", 1, torch.float32), ("diffllama", 1, torch.float16)}
# Nothing of these has kernels, whatever the sizes.
BY_TORCH = "lfish hard_lfish glfish hard_glfish hgrn rg_lru mamba1 mingru stick_breaking cope".split()
PICKED = [  # name, length, width, dtype
    (name, LENGTHS[(i + j) % 4], WIDTHS[j], DTYPES[(2 * i + j) % DTYPES_OF.get(name, 3)])
    for i, name in enumerate(ATTENTION)
    if name not in BY_TORCH
    for j in sorted((i + more) % len(WIDTHS) for more in (0, 1, 3))
]
PICKED = [(name, n, width, dtype) for name, n, width, dtype in PICKED if (name, n, dtype) not in ONLY_KEY]


def sized(name: str, width: int, dtype: torch.dtype) -> ta.Design:
    """A design whose scores are sums of `width` products, or the next number that it can be made with.

    What a rounded score decides is left open in float64 alone: elsewhere all experts are chosen.
    """
    case = CASES[name]
    legs, settings = {**case.legs}, {**case.settings}
    leg = "d" if "d" in legs else "s" if "s" in legs else None
    if name in EPA and dtype != torch.float64:
        settings["k"] = legs.get("e") or legs["h"]
    for size in (width, width + 1, width + 3):
        made = legs | ({leg: size} if leg else {})
        if not [p for p in ta.check(name, legs=made, settings=settings) if p.severity == "error"]:
            return ta.load(name, legs=made, settings=settings)
    raise AssertionError(f"{name} cannot be made with a width near {width}")


@pytest.mark.parametrize("name", BY_TORCH)
def test_what_has_no_kernels(name: str) -> None:
    plan = plan_of(build(ta.load(name, legs=CASES[name].legs, settings=CASES[name].settings)), "triton")
    assert set(plan.backends.values()) == {"torch"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n", "width", "dtype"), PICKED, ids=lambda value: str(value).removeprefix("torch."))
def test_sizes(name: str, n: int, width: int, dtype: torch.dtype) -> None:
    design = sized(name, width, dtype)
    ours, oracle = pair(design, dtype, positive=(*CASES[name].positive, "pi"))
    assert on_triton(ours)
    graph = ours.plan.graph
    inputs = [draw(1, n, graph.leg["f"].size, seed=7 + i) for i, _ in enumerate(graph.of_role("input"))]
    sizes = {leg.name: leg.size or n for leg in graph.legs}
    noise = {t.name: draw(1, *(sizes[leg] for leg in t.legs), seed=9) for t in graph.of_role("noise")}
    same(ours, oracle, inputs, NEAR[dtype], **({"noise": noise} if noise else {}))
