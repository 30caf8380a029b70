"""FiSHformer's and MGK's formulas, Tuformer's percentages, whole language models, Swin-T's four figures."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

import tensornet_attn as ta
from tensornet_attn.cost.paper import TABLES, as_printed
from tests.paper_tables import compare_row, compared, split

SIZES = [
    {"N": 1024, "H": 8, "M": 4, "D": 64, "Dx": 512},
    {"N": 256, "H": 8, "M": 2, "D": 16, "Dx": 128},
    {"N": 97, "H": 6, "M": 3, "D": 20, "Dx": 77},
]
by_length = pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"N{sizes['N']}")


def equations(table, sizes):
    """The equations of a table at other sizes, by model and unit."""
    rows = [row for row in TABLES[table].rows if row.where == "equations"]
    found = [number for row in rows for number in compare_row(replace(row, values=sizes), split)]
    return {(number.row.model, number.count.unit): number for number in found}


@by_length
def test_the_formulas_of_fish(sizes):
    N, H, M, D, Dx = (sizes[name] for name in ("N", "H", "M", "D", "Dx"))
    found = equations("fish", sizes)
    softmax = N**2 * H * (2 * D - 1) + 2 * N * H * D * (2 * Dx - 1)
    shared = (2 * (D + H) * M - H) * N**2 + 2 * N * M * D * (2 * Dx - 1)
    weights, fewer = 2 * H * D * Dx, 2 * M * D * Dx + H * M + M
    wanted = {
        ("D (i), softmax", "FLOPs"): softmax,
        ("D (ii), FiSH", "FLOPs"): shared,
        ("2.5 and D, FiSH saves", "FLOPs"): softmax - shared,
        ("D (iii), softmax", "parameters"): weights,
        ("D (iv), FiSH", "parameters"): fewer,
        ("2.5 and D, FiSH saves", "parameters"): weights - fewer,
    }
    assert {key: number.paper for key, number in found.items()} == wanted
    assert {key: number.stated for key, number in found.items()} == wanted
    # in 2 FLOPs a multiply-add: the same but for one addition a number of the projections, and sigma
    saving = found["2.5 and D, FiSH saves", "FLOPs"]
    assert saving.ours == saving.stated + 2 * (H - M) * D * N - 2 * M * H


@by_length
def test_the_formulas_of_mgk(sizes):
    """M = 2 but in the formula for any M, which has the M of the sizes."""
    N, H, D, Dx = (sizes[name] for name in ("N", "H", "D", "Dx"))
    two, many = equations("mgk", sizes | {"M": 2}), equations("mgk", sizes | {"M": sizes["M"]})
    single = N**2 * H * (4 * D - 1) + N * H * D * (6 * Dx + 2 * H * D - 5)
    exact = N**2 * H * (3 * D - Fraction(1, 2)) + N * H * D * (4 * Dx + H * D - Fraction(7, 2))
    weights = 3 * H * D * Dx + (H * D) ** 2
    mixture = 2 * H * D * Dx + (H * D) ** 2 // 2 + H
    wanted = {
        ("B (i), softmax", "FLOPs"): single,
        ("B (ii), any M, MGK", "FLOPs"): exact,
        ("B (ii), M = 2, MGK", "FLOPs"): exact,
        ("B, saving, MGK saves", "FLOPs"): single - exact,
        ("B (iii), softmax", "parameters"): weights,
        ("B (iv), MGK", "parameters"): mixture,
        ("B, saving, MGK saves", "parameters"): weights - mixture,
    }
    assert {key: number.paper for key, number in two.items()} == wanted
    slips = {key: number.stated - number.paper for key, number in two.items() if number.stated != number.paper}
    assert slips == {  # - 4 for - 7 / 2, and - 1 for - 3 / 2
        ("B (ii), M = 2, MGK", "FLOPs"): -Fraction(N * H * D, 2),
        ("B, saving, MGK saves", "FLOPs"): Fraction(N * H * D, 2),
    }
    general = many["B (ii), any M, MGK", "FLOPs"]
    assert general.paper == general.stated


def test_the_percentages_of_tuformer():
    found = {
        number.row.model: (number.count.printed, number.recount, number.ours)
        for number in compared("tuformer").numbers
        if number.row.where == "table 2" and number.count.unit == "parameters"
    }
    whole = 4 * 512 * 512
    assert found == {
        "MHSA": ("100%", "100%", whole),
        "MHSA with 125% params": ("125%", "125%", whole + whole // 4),
        "MHSA with 1.5% params": ("1.5%", "1.6%", whole // 64),
        "THSA": ("125%", "125%", whole + 512**2),
        "skip-right, C1 (x) (1 1^T)": ("101%", "100%", whole + 8**2),
        "skip-left, I_H (x) (C2^T C3)": ("100%", "100%", whole + 2 * 64),
        "trainable heads-only, C1": ("6%", "2%", 4 * 512 * 8 + 8**2),
        "heads-only, I_H": ("1.5%", "1.6%", 4 * 512 * 8),
    }


def test_what_the_notes_on_tuformer_say():
    """6.35 % with 32 heads, 100.78 % with factors of D x D, 150 % with R = 1,024."""
    whole = 4 * 512 * 512
    heads = ta.cost(ta.load("trainable_heads_only", legs={"h": 32})).parameters
    left = ta.cost(ta.load("skip_left", legs={"c": 64})).parameters
    wide = ta.cost(ta.load("thsa", legs={"r": 1024, "s": 1024})).parameters
    assert f"{100 * heads / whole:.2f}" == "6.35"
    assert f"{100 * left / whole:.2f}" == "100.78"
    assert wide / (4 * 512 * 1024) == 1.5


def test_the_language_models():
    numbers = [*compared("fmm").numbers, *compared("mgk").numbers]
    found = {n.row.model: n.ours for n in numbers if n.count.unit == "parameters" and n.row.where != "equations"}
    softmax = 267_735 * 128 + 16 * (4 * 128**2 + 2 * 128 * 2048 + 2048 + 128 + 4 * 128)
    assert found["Softmax"] == found["Linear"] == found["Band5"] == softmax == 43_750_272
    assert found["FMMformer (2-kernel + Band20)"] - softmax == 16 * 8 * 2  # the blend of near and far field
    assert found["Fast weight"] - softmax == 16 * 128 * 8  # the rate of each head
    assert found["section 3.2: Softmax 8 heads (medium)"] == 89_564_928
    assert found["section 3.2: BERT-Base"] == 109_482_240


SWIN = {(number.row.model, number.count.unit): number for number in compared("swin").numbers}
DENSE, HALF = "Softmax-12/24: mhsa", "Hard-GFiSH-6/12: hard_fish"


def test_the_four_figures_of_swin():
    """The column of FLOPs is the MACs of one image, to two digits of G, times 1,024."""
    printed = {
        (DENSE, "parameters"): "28.3M",
        (DENSE, "MACs"): "4618.24",
        (HALF, "parameters"): "26.2M",
        (HALF, "MACs"): "4372.48",
    }
    assert {key: number.count.printed for key, number in SWIN.items()} == printed
    assert {key: number.recount for key, number in SWIN.items()} == printed
    assert (4.51 * 1024, 4.27 * 1024) == (4618.24, 4372.48)


def test_our_count_of_swin_by_hand():
    """What global heads save in the last two stages, and what mixing them costs."""
    assert SWIN[DENSE, "parameters"].ours == 28_288_354
    saved_weights = sum(depth * (width**2 + width) for depth, width in ((6, 384), (2, 768)))
    mixing = 6 * 6 * 12 + 2 * 12 * 24
    assert SWIN[HALF, "parameters"].ours == 28_288_354 - saved_weights + mixing
    saved = sum(depth * tokens * (width**2 + 49 * width // 2) for depth, tokens, width in ((6, 196, 384), (2, 49, 768)))
    mixed = 49 * (6 * 196 * 6 * 12 + 2 * 49 * 12 * 24)
    assert SWIN[HALF, "MACs"].ours == SWIN[DENSE, "MACs"].ours - saved + mixed


READINGS = [  # stages (from 0) with half of their heads global, parameters, MACs
    ((3,), "27.1M", "4.45G"),
    ((2, 3), "26.2M", "4.27G"),
    ((1, 2, 3), "26.1M", "4.21G"),
    ((0, 1, 2, 3), "26.1M", "4.16G"),  # 2 of the first stage's 3 heads
]


@pytest.mark.parametrize(("half", "weights", "work"), READINGS)
def test_one_reading_of_half_the_heads_gives_both_figures(half, weights, work):
    """Each stage has fewer queries, keys and scores, and one layer that mixes the heads."""
    parameters, macs = (SWIN[DENSE, unit].paper for unit in ("parameters", "MACs"))
    for stage in half:
        depth, heads, tokens = (2, 2, 6, 2)[stage], 3 * 2**stage, 56**2 // 4**stage
        width, fewer = 32 * heads, heads // 2
        parameters += depth * (heads * (heads - fewer) - 64 * fewer * (width + 1))
        macs += depth * tokens * (49 * heads * (heads - fewer) - 64 * fewer * width - 49 * 32 * fewer)
    assert (as_printed(parameters, weights), as_printed(macs, work)) == (weights, work)
    if half == (2, 3):
        assert (parameters, macs) == tuple(SWIN[HALF, unit].paper for unit in ("parameters", "MACs"))


def test_two_layers_that_mix_would_take_more():
    """h x h more multiply-adds a pair of tokens in the blocks of the last two stages: 4.28G where 4.27G is printed."""
    second = 49**2 * (6 * 4 * 12 * 12 + 2 * 24 * 24)
    assert f"{(SWIN[HALF, 'MACs'].paper + second) / 1e9:.2f}" == "4.28"


def test_what_fvcore_counts_on_the_released_code():
    """fvcore 0.1.5, images of 224 x 224; HDP_RATIOS [2], NON_LINEAR False, STAGES [2, 3]."""
    assert [SWIN[model, "parameters"].paper for model in (DENSE, HALF)] == [28_288_354, 26_221_138]
    assert [SWIN[model, "MACs"].paper for model in (DENSE, HALF)] == [4_509_194_496, 4_270_607_616]


def test_what_the_released_code_counts_itself():
    """`flops()` has 1 operation a normalised number, but 4 for the last norm: 4.49G, not the 4.51G of the paper."""
    number = SWIN[DENSE, "MACs"]
    ((_, norms),) = number.adjustments
    assert number.ours + norms // 5 + 3 * 768 * 49 == 4_494_405_120
