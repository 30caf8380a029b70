"""What the papers prove: Tuformer's theorem 4 is strict; FMMformer's lemma 1 and proposition 1 on ranks."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import exp, log, tanh

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta

from .carry import variant

# Tuformer, theorem 4: with R = H D, THSA realises every function of MHSA, and some that MHSA does not. That it realises
# every one is in test_tuformer.py. The proof of the rest (appendix D.2) compares ranks of outputs [N, F]: an MHSA of H
# heads over M keys has rank at most M H, because each head is a product of an N x M and an M x F matrix. The printed
# proof needs repair:
# - It assumes M H < min(N, F). In self-attention M = N, so the assumption never holds: the argument is one for
#   cross-attention. The second test below is an argument for self-attention.
# - It bounds rank(T) of THSA by M R and concludes from H < R that some T has a larger rank. Bounds from above do not
#   show that; an example does, as below. Each term of (D.22) has one column times one row, so that rank(T) <= R too.
# - The bound M H is loose: the rows of each map sum to 1, so the heads share a direction, and rank(M) <= H (M - 1) + 1.
# - In (D.22), Q and K have the index s of the sum, not r; in (D.20), the transpose is missing on the last block.

HEADS, WIDTH = 2, 3
R = HEADS * WIDTH
CROSS = variant(
    "thsa", {"K": "memory[m f] Wk[f s] -> m s", "V": "memory[m f] Wv[f r] -> m r"}, inputs={"memory": "m f"}
)


def unit(*rows: int) -> Tensor:
    """[len(rows), R]: unit vectors."""
    return torch.eye(R, dtype=torch.float64)[list(rows)]


def first_row(values: Tensor) -> Tensor:
    """[R, R]: zeros below the first row."""
    return torch.cat([values[None], torch.zeros(R - 1, R, dtype=torch.float64)])


def has_rank(matrix: Tensor, rank: int) -> bool:
    """Whether that many singular values stand far above rounding, and the others are rounding."""
    part = torch.linalg.svdvals(matrix)
    part = part / part[0]
    return bool(part[rank - 1] > 1e-9) and bool((part[rank:] < 1e-13).all())


def of_modules(source, legs: dict, w: dict[str, Tensor], *inputs: Tensor) -> Tensor:
    module = ta.compile(ta.load(source, legs=legs), backend="reference", dtype=torch.float64)
    module.load_state_dict(w)
    return module.eval()(*inputs)


def test_an_output_of_thsa_has_a_rank_that_none_of_mhsa_has():
    """Two keys, N = F = R = 6: mhsa of 2 heads has rank at most M H = 4, this thsa gives J / 2 + I / 4, of rank 6."""
    x, memory = torch.eye(R).double(), unit(0, 1)
    ones, eye = torch.ones(R).double(), torch.eye(R).double()
    w = {"Wk": first_row(ones), "Wv": first_row(ones), "Wq": eye, "Wo": eye, "C": log(3) * R**0.5 * eye}
    got = of_modules(CROSS, {"f": R, "r": R, "s": R}, w, x, memory)
    # head r gives key 0 the score log 3 for query r and 0 for all others, and key 1 always 0: weights 3 / 4 and 1 / 2
    torch.testing.assert_close(got, 0.5 * torch.ones(R, R).double() + 0.25 * eye, rtol=0, atol=1e-12)
    assert has_rank(got, R)
    assert len(memory) * HEADS < R


def random_mhsa(seed: int) -> dict[str, Tensor]:
    shapes = {"Wq": (R, HEADS, WIDTH), "Wk": (R, HEADS, WIDTH), "Wv": (R, HEADS, WIDTH), "Wo": (HEADS, WIDTH, R)}
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.5 * torch.randn(*shape, generator=generator).double() for name, shape in shapes.items()}


@pytest.mark.parametrize("seed", range(5))
def test_the_rank_of_an_output_of_mhsa_is_at_most_keys_times_heads(seed):
    got = of_modules("cross", {"f": R, "h": HEADS, "d": WIDTH}, random_mhsa(seed), torch.eye(R).double(), unit(0, 1))
    assert has_rank(got, HEADS * (2 - 1) + 1)


COUNTS = [(1, 1), (1, 2), (2, 1), (1, 8), (8, 1), (1, 40), (40, 1)]  # how often the tokens a and b stand in a sequence
ODDS = [Fraction(1, 64), Fraction(1, 8), Fraction(1, 2), Fraction(2), Fraction(8), Fraction(64)]


def outputs_at_a(source: str, legs: dict, w: dict[str, Tensor], a: Tensor, b: Tensor) -> Tensor:
    """What self-attention gives for the query a, for each number of copies of a and b: [counts, F]."""
    sequences = [torch.stack([a] * one + [b] * other) for one, other in COUNTS]
    return torch.stack([of_modules(source, legs, w, sequence)[0] for sequence in sequences])


def test_thsa_is_strictly_more_expressive_in_self_attention():
    """Sequences of two tokens a and b, k_a times and k_b times. The output of mhsa for the query a is

        V_b W^O + sum over heads of p_h (V_a - V_b)_h W_h^O,    p_h = k_a c_h / (k_a c_h + k_b),

    c_h = exp(score of a and a - score of a and b). So the outputs for all k lie in a plane of dimension H. Those of
    thsa have a sum over R heads with a c of their own, and here span R dimensions: no mhsa of H heads gives them.
    """
    a, b = unit(0, 1)
    ones, eye = torch.ones(R).double(), torch.eye(R).double()
    scores = torch.tensor([log(odds) for odds in ODDS], dtype=torch.float64)
    w = {"Wk": first_row(ones), "Wv": first_row(ones), "Wq": first_row(scores), "Wo": eye, "C": R**0.5 * eye}
    got = outputs_at_a("thsa", {"f": R, "r": R, "s": R}, w, a, b)
    exact = [[one * odds / (one * odds + other) for odds in ODDS] for one, other in COUNTS]
    torch.testing.assert_close(got, torch.tensor(exact, dtype=torch.float64), rtol=0, atol=1e-12)
    plane = [[value - first for value, first in zip(row, exact[0], strict=True)] for row in exact[1:]]
    assert determinant(plane) != 0
    assert has_rank(got[1:] - got[0], R)


def determinant(rows: list[list[Fraction]]) -> Fraction:
    """Exact, by elimination."""
    rows, total = [list(row) for row in rows], Fraction(1)
    for place in range(len(rows)):
        pivot = next((row for row in range(place, len(rows)) if rows[row][place]), None)
        if pivot is None:
            return Fraction(0)
        if pivot != place:
            rows[place], rows[pivot], total = rows[pivot], rows[place], -total
        total *= rows[place][place]
        for row in rows[place + 1 :]:
            factor = row[place] / rows[place][place]
            row[:] = [value - factor * other for value, other in zip(row, rows[place], strict=True)]
    return total


@pytest.mark.parametrize("seed", range(5))
def test_outputs_of_mhsa_lie_in_a_plane_of_as_many_dimensions_as_heads(seed):
    a, b = 0.5 * torch.randn(2, R, generator=torch.Generator().manual_seed(100 + seed)).double()
    got = outputs_at_a("mhsa", {"f": R, "h": HEADS, "d": WIDTH}, random_mhsa(seed), a, b)
    assert has_rank(got[1:] - got[0], HEADS)


# FMMformer, lemma 1, for numbers, the case of its proof (section 7), and its example g(s) = 1 / s^2. Keys are around
# k* = 0 and |k| <= delta |q|. With r = k / q, g(|q - k|) = g(|q|) (1 - r)^-2, the sum over m of g(|q|) (m + 1) r^m: p
# terms are a product of rank p. What is left of the sum is at most g(|q|) delta^p (1 + p (1 - delta)) / (1 - delta)^2.
# The proof has r by |q|, 1 + r, and |k|^m in b_m: right where all q are below k* and all k above it, else signs differ.

QUERIES = torch.cat([torch.linspace(-3, -1, 20), torch.linspace(1, 4, 20)]).double()
TERMS = (1, 2, 4, 8, 12)


def inverse_square(queries: Tensor, keys: Tensor) -> Tensor:
    return (queries[:, None] - keys[None, :]) ** -2


def largest_rest(delta: float, terms: int) -> float:
    """The bound for |q| = 1, the nearest query."""
    return delta**terms * (1 + terms * (1 - delta)) / (1 - delta) ** 2


@pytest.mark.parametrize("delta", [0.1, 0.3, 0.5])
def test_a_well_separated_block_is_of_low_rank(delta):
    keys = delta * torch.linspace(-1, 1, 30).double()
    block = inverse_square(QUERIES, keys)
    singular = torch.linalg.svdvals(block)
    for terms in TERMS:
        powers = torch.arange(terms, dtype=torch.float64)
        left = QUERIES[:, None] ** (-2 - powers)  # [queries, terms]
        right = (powers + 1) * keys[:, None] ** powers  # [keys, terms]
        rounding = 1e-13
        rest = largest_rest(delta, terms)
        assert (block - left @ right.T).abs().max() <= rest + rounding
        # no product of that rank is nearer than the best one (Eckart and Young)
        assert singular[terms] <= rest * block.numel() ** 0.5 + rounding


def test_the_rank_grows_with_the_logarithm_of_the_tolerance():
    """p >= C |log_delta eps|: each factor of 1e-2 in the tolerance costs as many singular values, give or take one."""
    singular = torch.linalg.svdvals(inverse_square(QUERIES, 0.3 * torch.linspace(-1, 1, 30).double()))
    ranks = [int((singular > eps * singular[0]).sum()) for eps in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10)]
    steps = [after - before for before, after in pairwise(ranks)]
    assert max(steps) - min(steps) <= 1
    assert ranks[-1] < len(QUERIES) // 2


def test_a_block_that_is_not_separated_has_full_rank():
    keys = torch.linspace(-3, 4, 40).double() + 0.05
    queries = torch.linspace(-3, 4, 40).double()
    singular = torch.linalg.svdvals(inverse_square(queries, keys))
    assert (singular > 1e-2 * singular[0]).all()


# FMMformer, proposition 1: L(x) = sum over l of phi_l(x) phi_l(x)^T, phi_l(x) in R^N, has rank r where the r vectors
# phi_l(x) are linearly independent. There a position has one feature, d = 1, queries are keys, and no row is divided by
# its sum. The far field of eq. 9 differs in all three. With d features a kernel has rank up to d: "a rank one
# approximation", as the text calls eq. 7, is one for d = 1. Once rows are divided by their sums, every kernel has the
# vector of ones among its columns' combinations, so that r kernels have rank r (d - 1) + 1 at most: one for d = 1.

FAR = {"linear": 1, "linear2": 2, "linear3": 3}  # designs by their number of kernels
PHI = (lambda x: x + 1 if x > 0 else exp(x), lambda x: 1 - x if x < 0 else exp(-x), tanh)
POINTS = [-2.0, -1.25, -0.5, 0.25, 1.0, 1.5, 3.0]


def far_field(name: str, box: dict, x: Tensor, width: int = 1) -> Tensor:
    """The sum of a design's far fields, [N, N], each in a box over the keys, for one head.

    With a width of 1 queries and keys are x itself.
    """
    steps = {"A": {**box, "of": "phiQ[n h d] phiK[m h d] -> h n m"}}
    if name != "linear":
        places = range(1, FAR[name] + 1)
        steps = {f"far{i}": {**box, "of": f"phiQ{i}[n h d] phiK{i}[m h d] -> h n m"} for i in places}
    design = ta.load(variant(name, steps), legs={"f": x.shape[1], "h": 1, "d": width})
    torch.manual_seed(0)
    module = ta.compile(design, backend="reference", dtype=torch.float64)
    if width == 1:
        module.load_state_dict({name: torch.ones_like(value) for name, value in module.state_dict().items()})
    return module.capture(x, "A")[0].detach()


def column(points: list[float]) -> Tensor:
    return torch.tensor(points, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("name", FAR)
def test_the_far_field_of_independent_feature_maps_has_as_many_ranks(name):
    got = far_field(name, {"keep": "m"}, column(POINTS))
    kernels = PHI[: FAR[name]]
    wanted = [[sum(phi(one) * phi(other) for phi in kernels) for other in POINTS] for one in POINTS]
    torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)
    features = torch.tensor([[phi(x) for x in POINTS] for phi in kernels], dtype=torch.float64)
    assert has_rank(features, FAR[name])  # independent
    assert has_rank(got, FAR[name])


def test_dependent_feature_maps_have_fewer_ranks():
    """Independent "for almost all x", not for these: three feature maps take two values each."""
    assert has_rank(far_field("linear3", {"keep": "m"}, column([1.0, -2, 1, 1, -2])), 2)


@pytest.mark.parametrize("name", FAR)
def test_rows_divided_by_their_sums_leave_rank_one_of_single_features(name):
    got = far_field(name, {"normalize": "m"}, column(POINTS))
    assert has_rank(got, 1)
    torch.testing.assert_close(got, got[:1].expand_as(got))  # every query sees the same


@pytest.mark.parametrize("name", FAR)
def test_the_rank_of_features_of_width_d(name):
    x = torch.randn(24, 8, generator=torch.Generator().manual_seed(1)).double()
    r, d = FAR[name], 4
    assert has_rank(far_field(name, {"keep": "m"}, x, d), r * d)
    assert has_rank(far_field(name, {"normalize": "m"}, x, d), r * (d - 1) + 1)
