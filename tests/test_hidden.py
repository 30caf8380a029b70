"""What a mask hides may be infinite or NaN: it reaches neither the output nor a gradient, on any backend."""

from __future__ import annotations

import random
from functools import reduce
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn import ops
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.hidden import looks
from tensornet_attn.reference import ReferenceRun, evaluate, seen_by
from tests.decay_designs import DECAYS, compare_decay
from tests.designs.cases import ATTENTION, CASES, drawn
from tests.hidden_cases import (
    BAD,
    BOXES,
    F64,
    FORMS,
    MAPS,
    MASKS,
    OVERFLOWS,
    PADDED,
    ROWS,
    Case,
    S,
    check,
    check_overflow,
    check_padded,
    check_rows,
    design_of_pairs,
    module_of,
    of_pairs,
    results,
    rows_design,
)
from tests.random_call import Call, assert_same, usable
from tests.random_call import results as results_of
from tests.test_random_designs import causal_of, checked, filtered, pair, seeds

pytestmark = pytest.mark.usefixtures("in_blocks")

PLANS = [("reference", {}), ("torch", {}), ("torch", {"linear_memory": True})]


def turned(place: int) -> tuple[Case, torch.dtype, float]:
    """Every map in every box, each with another form, mask, dtype and number than the one before."""
    function, box = MAPS[place // len(BOXES)], BOXES[place % len(BOXES)]
    cases = (
        Case(function, box, form, mask)
        for step in range(99)
        for form, mask in [([*FORMS][(place * 5 + step) % len(FORMS)], MASKS[(place * 3 + step) % len(MASKS)])]
    )
    return next(case for case in cases if case.possible), (torch.float32, F64)[place % 2], BAD[place % len(BAD)]


def test_no_map_is_left_out() -> None:
    assert {function.partition("(")[0] for function in MAPS} == {*ops.MAPS}


@pytest.mark.parametrize("place", range(len(MAPS) * len(BOXES)), ids=lambda place: str(turned(place)[0]))
def test_every_map_in_every_box(place: int) -> None:
    case, dtype, bad = turned(place)
    check(case, PLANS, 24, dtype, bad)


@pytest.mark.parametrize("options", [*PLANS, ("cpp", {})], ids=str)
@pytest.mark.parametrize("name", OVERFLOWS)
def test_products_that_overflow(name: str, options: tuple[str, dict[str, Any]]) -> None:
    check_overflow(name, *options)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("options", PLANS, ids=str)
def test_a_keep_is_more_than_a_factor_that_is_zero(options: tuple[str, dict[str, Any]], bad: float) -> None:
    """Rows that do not see a key stay what they are, though it makes another factor of a kept product infinite."""
    maps = {
        "A": {"softmax": "m", "mask": ["causal"], "of": "q[n d] k[m d] -> n m"},
        "P": {"keep": "m", "mask": ["causal"], "of": "A[n m] b[m] -> n m"},
    }
    design = design_of_pairs({"b": "m", "e": "m"}, maps, "P[n m] e[m] W[h] -> n h")
    module, draw = module_of(design, options[0], F64, **options[1]), torch.Generator().manual_seed(0)
    q, k, b, e = (torch.rand(24, *wide, generator=draw, dtype=F64) for wide in ((2,), (2,), (), ()))
    torch.testing.assert_close(module(q, k, b.index_fill(0, torch.tensor([23]), bad), e)[:23], module(q, k, b, e)[:23])


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_a_norm_over_keys_reads_what_a_product_hides(backend: str) -> None:
    """The keys are operands of both: the norm divides by all of them, and the product omits those of the key mask."""
    design = {
        "tensornet": 1,
        "name": "norm_of_scores",
        "legs": {"n": "query", "m": "key", "h": 2},
        "inputs": {"q": "n", "k": "m"},
        "weights": {"W": "h"},
        "diagram": {
            "S": "q[n] k[m] W[h] -> h n m",
            "B": {"l2norm": "m", "of": "S"},
            "y": "B[h n m] k[m] -> n h",
        },
        "output": "y",
    }
    inputs = [torch.randn(2, n, generator=torch.Generator().manual_seed(n), dtype=F64) for n in (5, 7)]
    key_mask = torch.tensor([[1, 0, 1, 1, 0, 1, 0], [0] * 7]) > 0
    wanted, outcome = (
        results(module_of(design, name, F64), inputs, {"key_mask": key_mask}) for name in ("reference", backend)
    )
    torch.testing.assert_close(outcome, wanted)


@pytest.mark.parametrize("n", [64, 1024])
@pytest.mark.parametrize("options", PLANS, ids=str)
@pytest.mark.parametrize("name", DECAYS)
def test_recurrences_that_decay(name: str, options: tuple[str, dict[str, Any]], n: int) -> None:
    """exp(c[n] - c[m]) overflows in float32 where the key is later than the query."""
    compare_decay(name, *options, n, torch.float32)


@pytest.mark.parametrize("options", PLANS, ids=str)
@pytest.mark.parametrize("name", DECAYS)
def test_recurrences_that_decay_in_float64(name: str, options: tuple[str, dict[str, Any]]) -> None:
    compare_decay(name, *options, 64, F64)


@pytest.mark.parametrize("options", PLANS[1:], ids=str)
@pytest.mark.parametrize("name", DECAYS)
def test_recurrences_that_decay_under_masks_of_the_call(name: str, options: tuple[str, dict[str, Any]]) -> None:
    data, draw = DECAYS[name][0], torch.Generator().manual_seed(3)
    mask, key_mask = torch.rand(128, 128, generator=draw) < 0.5, torch.rand(2, 128, generator=draw) < 0.6
    x = torch.randn(2, 128, 6, generator=draw, dtype=F64)
    oracle, module = module_of(data, "reference", F64), module_of(data, options[0], torch.float32, **options[1])
    for call in ({"mask": mask}, {"key_mask": key_mask}, {"mask": mask, "key_mask": key_mask}):
        for got, want in zip(results(module, [x], call), results(oracle, [x], call), strict=True):
            scale = max(1.0, want.abs().max().item())
            torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-6 * 128 * scale)


GAP = "c[n a] - c[m a] -> a n m"
FADED = {"keep": "m", "of": {"map": "exp", "of": GAP}}
WRITTEN = {  # what a query and a later key have overflows, or is the root of what is negative
    "read twice": {"D": FADED, "z": "D[a n m] v[m a] -> n a", "y": "D[a n m] z[m a] -> n a"},
    "a product in a step of its own": {
        "E": {"map": "exp", "of": GAP},
        "F": "E[a n m] v[n a] -> a n m",
        "D": {"keep": "m", "of": "F"},
        "y": "D[a n m] v[m a] -> n a",
    },
    "through another map": {
        "E": {"map": "exp", "of": GAP},
        "D": {"keep": "m", "of": {"map": "square", "of": "E"}},
        "y": "D[a n m] v[m a] -> n a",
    },
    "a root that is kept": {
        "D": {"keep": "m", "of": {"map": "sqrt", "of": "1 - c[n a] + c[m a] -> a n m"}},
        "y": "D[a n m] v[m a] -> n a",
    },
    "a root in a softmax": {
        "D": {"softmax": "m", "of": {"map": "sqrt", "of": "1 - c[n a] + c[m a] -> a n m"}},
        "y": "D[a n m] v[m a] -> n a",
    },
}


@pytest.mark.parametrize("sums", [{"sum": "m", "of": "g[m a] one[n] -> n m a"}, {"cumsum": "m", "of": "g"}], ids=str)
@pytest.mark.parametrize("name", WRITTEN)
def test_decays_as_they_are_written(name: str, sums: dict[str, str]) -> None:
    one = {"constants": {"one": {"legs": "n", "value": "ones"}}} if "sum" in sums else {}
    data = {
        "tensornet": 1,
        "name": "overflow",
        "causal": True,
        "legs": {"n": "query", "m": "key", "a": "head 4"},
        "inputs": {"x": "m a", "g": "m a"},
        "weights": {"w": "a"},
        "diagram": {"v": "x[m a] w[a] -> m a", "c": sums, **WRITTEN[name]},
        "output": "y",
    } | one
    draw = torch.Generator().manual_seed(0)
    x, g = (torch.randn(2, 150, 4, generator=draw, dtype=F64) for _ in range(2))
    inputs = [x, -3 * g.abs() - 0.01]
    wanted = results(module_of(data, "reference", F64), inputs, {})
    for dtype, eps in ((torch.float32, 1e-4), (F64, 1e-12)):  # c goes to -360, of which float32 has 4e-5
        for backend, options in PLANS:
            found = results(module_of(data, backend, dtype, **options), inputs, {})
            for got, want in zip(found, wanted, strict=True):
                assert got.isfinite().all()
                torch.testing.assert_close(got.double(), want, rtol=0, atol=eps * max(1.0, float(want.abs().max())))


KEYS_ALONE = {
    "tensornet": 1,
    "name": "keys",
    "legs": {"n": "query", "m": "key", "h": "head 2", "d": 3},
    "inputs": {"x": "n d", "g": "m h", "e": "m d"},
    "weights": {"W": "d h"},
    "diagram": {
        "l": {"sum": "m", "of": {"map": "log", "of": "g"}},
        "K": {"map": "exp", "of": "e[m d] W[d h] -> m d h"},
        "A": {"normalize": "m", "of": "x[n d] K[m d h] -> h n m"},
        "y": "l[h] A[h n m] e[m d] -> n h d",
    },
    "output": "y",
}
FAST = KEYS_ALONE | {
    "name": "fast",
    "causal": True,
    "inputs": {"x": "m d", "g": "m h", "e": "m d"},
    "diagram": {
        "rate": {"map": "power(-0.5)", "of": "g"},
        "K": {"l1norm": "d", "of": {"map": "exp", "of": "e[m d] W[d h] -> m d h"}},
        "V": "x[m d] W[d h] -> m h",
        "y": {"delta_rule": "m", "query": "x[n d] W[d h] -> n d h", "key": "K", "value": "V", "rate": "rate"},
    },
}


@pytest.mark.parametrize("data", [KEYS_ALONE, FAST], ids=lambda data: data["name"])
@pytest.mark.parametrize("options", PLANS, ids=str)
def test_keys_that_a_key_mask_hides(options: tuple[str, dict[str, Any]], data: dict[str, Any]) -> None:
    """Roots and logs of gates that are zero there, features that overflow: infinite maps of finite keys."""
    draw = torch.Generator().manual_seed(0)
    x, g, e = (torch.rand(2, 20, width, generator=draw, dtype=F64) + 0.5 for width in (3, 2, 3))
    key_mask = torch.rand(2, 20, generator=draw) < 0.6
    hidden = ~key_mask[..., None]
    module = module_of(data, options[0], F64, **options[1])
    plain = results(module, [x, g, e], {"key_mask": key_mask})
    found = results(module, [x, g.masked_fill(hidden, 0), e.masked_fill(hidden, 1e4)], {"key_mask": key_mask})
    for got, want in zip(found, plain, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10 * max(1.0, want.abs().max().item()))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("options", PLANS, ids=str)
def test_rows_that_a_key_mask_hides(options: tuple[str, dict[str, Any]], name: str) -> None:
    """Keys, values and gates as they are given, read by every form: their hidden rows are NaN."""
    module = module_of(rows_design(name), options[0], F64, **options[1])
    check_rows(module, torch.nan)
    check_rows(module, torch.inf)


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("options", [*PLANS, ("cpp", {})], ids=str)
def test_hidden_keys_do_not_count(options: tuple[str, dict[str, Any]], name: str) -> None:
    """In products that sum keys, among the best keys, and in the logsumexp of a row that sees none of them."""
    module = module_of(rows_design(name), options[0], F64, **options[1])
    for bad in (torch.nan, 1e30):
        check_padded(module, bad)


def test_hidden_keys_of_a_product_of_scores_alone() -> None:
    """No operand of a kernel could be zero there, so that the product is computed by itself."""
    maps = {"A": {"map": "exp", "of": S}, "B": {"map": "tanh", "of": S}}
    data = rows_design("product of scores") | {"diagram": {**maps, "y": "A[h n m] B[h n m] q[n h d] W[h] -> n h d"}}
    data = data | {"legs": {"n": "query", "m": "key", "h": "head 2", "d": 4}, "inputs": {"q": "n h d", "k": "m h d"}}
    for backend in ("reference", "torch", "cpp"):
        check_padded(module_of(data, backend, F64), torch.nan)
    with pytest.raises(ta.InputError, match="sums keys, and reads no tensor in which the key mask could hide"):
        ta.compile(data, linear_memory=True)


@pytest.mark.parametrize("mask", [[], ["band(1)"]], ids=str)
@pytest.mark.parametrize("options", PLANS, ids=str)
def test_rows_of_a_tensor_that_is_query_and_key(options: tuple[str, dict[str, Any]], mask: list[str]) -> None:
    """Its hidden rows are queries too: a second attention that reads their results as keys must not see them."""
    data = {
        "tensornet": 1,
        "name": "shared",
        "legs": {"n": "query", "m": "key", "f": 6, "d": 4},
        "inputs": {"x": "n f"},
        "weights": {"W": "f d", "U": "d f"},
        "diagram": {
            "s": "x[n f] W[f d] -> n d",
            "A": {"softmax": "m", "mask": mask, "of": "s[n d] s[m d] -> n m"},
            "r": "A[n m] x[m f] -> n f",
            "B": {"softmax": "m", "of": "x[n f] r[m f] -> n m"},
            "y": "B[n m] s[m d] U[d f] -> n f",
        },
        "output": "y",
    }
    check_rows(module_of(data, options[0], F64, **options[1]), torch.nan, without=0)


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "two maps", "distance"])
def test_rows_that_a_key_mask_hides_from_cpp(name: str) -> None:
    check_rows(module_of(rows_design(name), "cpp", F64), torch.nan)


@pytest.mark.parametrize("options", [pytest.param(PLANS[0], marks=pytest.mark.slow), *PLANS[1:]], ids=str)
@pytest.mark.parametrize("name", ATTENTION)
def test_hidden_rows_of_the_shipped_designs(name: str, options: tuple[str, dict[str, Any]]) -> None:
    """Of the memory, if there is one. Of the queries' own input, the rows reach only what is computed for them."""
    case = CASES[name]
    design = ta.load(name, legs=case.legs, settings=case.settings)
    module = drawn(ta.compile(design, options[0], dtype=F64, **options[1]), 0, case.positive)
    alone = len(module.plan.graph.of_role("input")) == 1
    for bad in (torch.nan, torch.inf, 1e30):
        check_rows(module, bad, 17, 0 if alone else None)


def differs(design: dict[str, Any], seed: int, causal: bool | None = None) -> None:
    """Compares the oracle with one that hides nothing, where all is finite."""
    draw = random.Random(seed)
    first, second = (pair(design, seed, causal, "reference")[0] for _ in range(2))
    inputs, options = Call(first.plan.graph, draw, seed).arguments()
    with patch.dict(evaluate.__globals__, hiding=lambda graph, *_, **__: graph):
        wanted = results_of(first, inputs, options)
    assume(usable(wanted))
    assert_same(results_of(second, inputs, options), wanted)


@settings(max_examples=30, suppress_health_check=filtered)
@given(seeds)
def test_hiding_changes_nothing_else(seed: int) -> None:
    """Nothing counts as hidden that somebody sees: where all is finite, a random design is what it is without it."""
    data = checked(seed)
    differs(data, seed, causal_of(data, random.Random(seed)))


@settings(max_examples=100, suppress_health_check=filtered)
@given(seeds)
def test_hiding_changes_nothing_else_of_pairs(seed: int) -> None:
    data = of_pairs(random.Random(seed))
    assume(not any(problem.severity == "error" for problem in ta.check(data)))
    differs(data, seed)


def hidden_entries(graph: Graph, inputs: list[Tensor], options: dict[str, Any]) -> Tensor:
    """Where `b` is hidden, [batch..., h, n, m]."""
    place = next(i for i, use in enumerate(graph.step["E"].op.uses) if use.name == "b")
    tensors = dict(zip("xeb", inputs, strict=True))
    lengths = {"n": inputs[0].shape[-2], "m": inputs[1].shape[-2]}
    run = ReferenceRun(graph, tensors, lengths, False, options.get("mask"), options.get("key_mask"))
    shown = torch.zeros((), dtype=torch.bool)
    for every in looks(graph)["E"][place]:
        all_of = [seen_by(run, visible, ("h", "n", "m")) for visible in every]
        shown = shown | reduce(torch.logical_and, all_of, torch.ones((), dtype=torch.bool))
    return ~shown.expand(torch.broadcast_shapes(shown.shape, inputs[2].shape))


def compare_pairs(seed: int, backend: str) -> None:
    """A random design of pairs whose hidden entries are NaN, and the oracle's where they are not."""
    data = of_pairs(random.Random(seed))
    oracle = pair(data, seed, None, "reference")[0]
    inputs, options = Call(oracle.plan.graph, random.Random(seed), seed).arguments()
    hidden = hidden_entries(oracle.plan.graph, inputs, options)
    assume(hidden.any())
    inputs[2] = inputs[2].expand(hidden.shape).clone()
    wanted = results_of(oracle, inputs, options)
    assume(usable(wanted))
    inputs[2][hidden] = torch.nan
    assert_same(results_of(oracle, inputs, options), wanted)
    assert_same(results_of(pair(data, seed, None, backend)[1], inputs, options), wanted)


@settings(max_examples=12, suppress_health_check=filtered)
@given(seeds)
def test_hidden_entries_of_random_designs(seed: int) -> None:
    compare_pairs(seed, "torch")


@pytest.mark.slow
@settings(max_examples=500, suppress_health_check=filtered)
@given(seeds)
def test_hidden_entries_of_many_random_designs(seed: int) -> None:
    compare_pairs(seed, "torch")


@pytest.mark.slow
@settings(max_examples=1500, suppress_health_check=filtered)
@given(seeds)
def test_hiding_changes_nothing_else_in_many(seed: int) -> None:
    test_hiding_changes_nothing_else.hypothesis.inner_test(seed)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.sampled_from(MAPS), st.sampled_from(BOXES), st.sampled_from([*FORMS]), st.sampled_from(MASKS), seeds)
def test_many_calls(function: str, box: str, form: str, mask: str, seed: int) -> None:
    case = Case(function, box, form, mask)
    assume(case.possible)
    draw = random.Random(seed)
    check(case, PLANS, draw.choice([1, 17, 64, 130]), draw.choice([torch.float32, F64]), draw.choice(BAD))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_many_queries(form: str) -> None:
    check(Case("exp", "keep", form, "causal"), PLANS, 1024, torch.float32, torch.inf)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["twice", "over heads"])
def test_compiled_by_inductor(form: str) -> None:
    check(Case("exp", "softmax", form, "heads"), [("inductor", {})], 24, torch.float32, torch.inf)
