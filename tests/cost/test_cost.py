"""The cost of diagrams small enough to count by hand: work, traffic, memory, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod

import pytest

from tensornet_attn.cost import Cost, StepCost, cost, cost_of, device_named, dtype_bytes, sizes_at
from tensornet_attn.cost.price import price_of
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.target import Target
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Box, Contraction, Function, Graph, Leg, Step, Tensor, Term, Use
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.ir.arithmetic import ONE, Number, parse
from tensornet_attn.kernels.scan import ScanWork
from tensornet_attn.plan.make import make_plan
from tensornet_attn.rewrite.fused import fuse
from tensornet_attn.spec import load
from tests.refusals import refusal


def use(text):
    name, _, legs = text.partition(" ")
    return Use(name, tuple(legs.split()))


def product(name, factors, legs, coefficient=ONE):
    return Step(name, Contraction((Term(coefficient, tuple(map(use, factors))),)), tuple(legs.split()))


def box(name, kind, leg, of, legs, **fields):
    return Step(name, Box(kind, leg, (("of", use(of)),), **fields), tuple(legs.split()))


def leaf(name, role, legs, **fields):
    return Tensor(name, role, tuple(legs.split()), **fields)


F, H, D = 8, 2, 4
LEGS = (Leg("n", "query"), Leg("m", "key"), Leg("f", "size", F), Leg("h", "head", H), Leg("d", "size", D))
LEAVES = (
    leaf("x", "input", "n f"),
    *(leaf(name, "weight", "f h d") for name in ("Wq", "Wk", "Wv")),
    leaf("Wo", "weight", "h d f"),
)
SCALE = (("scale", parse("d ** -0.5")), ("dropout", Number(0)))
MHSA = Graph(
    "mhsa",
    LEGS,
    (),
    LEAVES,
    (
        product("Q", ["x n f", "Wq f h d"], "n h d"),
        product("K", ["x m f", "Wk f h d"], "m h d"),
        product("V", ["x m f", "Wv f h d"], "m h d"),
        product("A.of", ["Q n h d", "K m h d"], "h n m"),
        box("A", "softmax", "m", "A.of h n m", "h n m", numbers=SCALE),
        product("y", ["A h n m", "V m h d", "Wo h d f"], "n f"),
    ),
    "y",
)
FUSED = fuse(MHSA, "A")
N, B = 5, 3
REPORT = replace(cost_of(MHSA, FUSED, N, None, B), decoding_state=80)
ROWS = {row.step: row for row in REPORT.written.steps}


def test_the_formula_of_mhsa():
    assert REPORT.written.formula == "2 n f h d + 2 m f h d + 2 n m h d"
    assert REPORT.planned.formula == REPORT.written.formula


def test_work():
    projection, scores = B * N * F * H * D, B * N * N * H * D
    assert [row.macs for row in REPORT.written.steps] == [projection] * 3 + [scores, 0, scores + projection]
    assert (
        REPORT.written.flops == 2 * REPORT.written.macs == 2 * REPORT.planned.macs == 2 * (4 * projection + 2 * scores)
    )
    assert ROWS["A"].elementwise == REPORT.planned.total.elementwise == 6 * B * H * N * N  # softmax and its scale


def test_traffic():
    width, weight, scores = B * N * H * D, F * H * D, B * H * N * N
    assert ROWS["Q"].bytes == 4 * (B * N * F + weight + width)
    assert ROWS["A.of"].bytes == 4 * (2 * width + scores)
    assert ROWS["A"].bytes == 4 * 2 * scores
    assert ROWS["y"].bytes == 4 * ((scores + 2 * width) + (width + weight + B * N * F))
    assert REPORT.planned.total.bytes == REPORT.written.total.bytes - 4 * 4 * scores


def test_live_memory():
    fixed, width, scores = 4 * F * H * D + B * N * F, B * N * H * D, B * H * N * N
    assert ROWS["Q"].live_bytes == 4 * (fixed + width)
    assert ROWS["A"].live_bytes == 4 * (fixed + width + 2 * scores)  # Q and K are gone
    assert REPORT.written.total.live_bytes == max(row.live_bytes for row in REPORT.written.steps)
    assert REPORT.planned.total.live_bytes == 4 * (fixed + 4 * width)


def test_saved_floats():
    width, scores = B * N * H * D, B * H * N * N
    assert [row.saved_floats for row in REPORT.written.steps] == [B * N * F, 0, 0, 2 * width, scores, width + width]
    assert REPORT.planned.total.saved_floats == B * N * F + 4 * width + B * H * N  # no scores; a log-sum-exp a row


def test_fused_steps_are_named_in_their_row():
    (row,) = [row for row in REPORT.planned.steps if row.fused]
    assert (row.step, row.fused) == ("A", ("A.of", "A V"))


def test_parameters_count_frozen_weights_apart_and_states_not():
    tensors = (*LEAVES[:-1], replace(LEAVES[-1], frozen=True), leaf("pi", "state", "h"))
    found = cost(replace(MHSA, tensors=tensors), {"n": 2, "m": 2})
    assert (found.parameters, found.frozen) == (3 * F * H * D, F * H * D)


def test_a_weight_on_a_sequence_leg_counts_as_stored():
    legs = (Leg("n", "query", maximum=32), Leg("f", "size", F))
    tensors = (leaf("x", "input", "n f"), leaf("P", "weight", "n f"))
    step = Step("y", Contraction((Term(ONE, (use("x n f"),)), Term(ONE, (use("P n f"),)))), ("n", "f"))
    found = cost(Graph("g", legs, (), tensors, (step,), "y"), {"n": 3})
    assert (found.parameters, found.macs, found.total.elementwise) == (32 * F, 0, 3 * F)
    assert found.total.bytes == 4 * 3 * 3 * F


def test_products_of_weights_have_no_batch():
    tensors = (leaf("x", "input", "n f"), leaf("W", "weight", "f h"), leaf("U", "weight", "h d"))
    steps = (product("WU", ["W f h", "U h d"], "f d"), product("y", ["x n f", "WU f d"], "n d"))
    found = cost(Graph("g", LEGS, (), tensors, steps, "y"), {"n": 3, "m": 3}, batch=7)
    assert [row.macs for row in found.steps] == [F * H * D, 7 * 3 * F * D]
    assert found.formula == "f h d + n f d"
    assert [row.saved_floats for row in found.steps] == [0, 7 * 3 * F + F * D]


def test_a_frozen_weight_saves_no_input():
    tensors = (leaf("x", "input", "n f"), leaf("W", "weight", "f h", frozen=True))
    found = cost(Graph("g", LEGS, (), tensors, (product("y", ["x n f", "W f h"], "n h"),), "y"), {"n": 3, "m": 3})
    assert found.total.saved_floats == 0


def test_a_plan_stores_no_states_of_a_scan_that_one_product_reads():
    """Those before each of two blocks are saved; as written, and on a GPU, all are."""
    graph = build(load("mamba1", legs={"f": 64, "a": 256, "s": 16}))
    length, states = 64, 256 * 16
    found = cost_of(graph, make_plan(graph).schedule, length)
    saved = [{row.step: row.saved_floats for row in own.steps} for own in (found.written, found.planned)]
    assert saved[0]["H"] == 2 * length * states
    assert not {"H", "decay"} & saved[1].keys()
    schedule = make_plan(graph).schedule
    scene = SizedGraph(split_products(schedule), {**graph.values, "n": length, "m": length})
    assert ScanWork(scene, schedule.step["Y.p1"]).stored == {"Y.p1: states": states}
    assert sum(saved[1].values()) < length * states
    peaks = [
        price_of(make_plan(graph).schedule, own.sizes(graph), own).bytes
        for own in (Target(n=8 * length), Target(device=device_named("h200"), n=8 * length))
    ]
    assert peaks[1] - peaks[0] > 3 * 4 * 8 * length * states


def test_views_cost_nothing_and_keep_their_memory():
    steps = (
        product("Q", ["x n f", "Wq f h d"], "n h d"),
        product("T", ["Q n h d"], "h d n"),
        product("y", ["T h d n"], "n d h", Number(2)),
    )
    found = cost(replace(MHSA, steps=steps), {"n": 3, "m": 3})
    q, t, y = found.steps
    assert (t.macs, t.elementwise, t.bytes, t.live_bytes) == (0, 0, 0, q.live_bytes)
    assert (y.elementwise, y.live_bytes - q.live_bytes) == (3 * H * D, 4 * 3 * H * D)


def test_products_that_sum_nothing_are_elementwise():
    steps = (product("Q", ["x n f", "Wq f h d"], "n h d"), product("y", ["Q n h d", "Q n h d"], "n h d", Number(0.5)))
    row = cost(replace(MHSA, steps=steps), {"n": 3, "m": 3}).steps[1]
    assert (row.macs, row.elementwise) == (0, 2 * 3 * H * D)
    assert (row.bytes, row.saved_floats) == (2 * 4 * 3 * H * D, 3 * H * D)  # the operand is read, and saved, once


def test_a_linear_combination():
    q, k = use("Q n h d"), use("K n h d")
    terms = (Term(Number(2), (q,)), Term(parse("-1"), (k,)), Term(Number(3), ()))
    steps = (*MHSA.steps[:1], replace(MHSA.steps[0], name="K"), Step("y", Contraction(terms), ("n", "h", "d")))
    row = cost(replace(MHSA, steps=steps), {"n": 3, "m": 3}).steps[2]
    assert (row.macs, row.elementwise, row.saved_floats) == (0, 3 * 3 * H * D, 0)


SIZE = 3 * H * D
BOXES = [  # box, its fields, elementwise and saved for each number of `of` with legs n h d
    ("softmax", {"numbers": (("scale", ONE), ("dropout", Number(0)))}, 5, SIZE),
    ("softmax", {"numbers": (("scale", Number(2)), ("dropout", Number(0.1)))}, 7, SIZE),
    ("rmsnorm", {}, 3, SIZE + 3 * H),
    ("layernorm", {}, 5, SIZE + 2 * 3 * H),
    ("l1norm", {}, 3, SIZE + 3 * H),
    ("rope", {"other": "d", "numbers": (("base", Number(10000)), ("fraction", Number(0.5)))}, 1.5, 0),
    ("dropout", {"numbers": (("dropout", Number(0)),)}, 0, 0),
    ("dropout", {"numbers": (("dropout", Number(0.1)),)}, 1, 0),
    ("map", {"function": Function("exp")}, 1, SIZE),
    ("map", {"function": Function("square")}, 1, SIZE),
    ("topk", {"numbers": (("k", Number(2)),)}, 2, 2 * 3 * H),
    ("keep", {}, 0, 0),
]


@pytest.mark.parametrize(("kind", "fields", "each", "saved"), BOXES)
def test_boxes(kind, fields, each, saved):
    steps = (product("Q", ["x n f", "Wq f h d"], "n h d"), box("y", kind, "d", "Q n h d", "n h d", **fields))
    row = cost(replace(MHSA, steps=steps), {"n": 3, "m": 3}).steps[1]
    assert (row.macs, row.elementwise, row.saved_floats) == (0, each * SIZE, saved)


def test_a_mask_is_an_operation_for_each_score():
    causal = cost(replace(MHSA, causal=True), {"n": N, "m": N}, B).total
    assert causal.elementwise - REPORT.written.total.elementwise == B * H * N * N


def test_the_delta_rule():
    legs = (*LEGS, Leg("e", "size", 6))
    operands = tuple((use_.name, use_) for use_ in map(use, ("query n h d", "key m h d", "value m h e", "rate m h")))
    tensors = tuple(Tensor(name, "input", use_.legs) for name, use_ in operands)
    step = Step("y", Box("delta_rule", "m", operands, mode="read"), ("n", "h", "e"))
    found = cost(Graph("g", legs, (), tensors, (step,), "y"), {"n": 5, "m": 5}, 3)
    assert found.formula == "2 m h d e + n h d e"
    assert found.macs == 3 * 3 * 5 * H * D * 6
    assert found.total.elementwise == 3 * 5 * H * (2 * D + D + 6 + 2 * 6)
    assert found.total.saved_floats == 3 * 5 * H * ((2 * D + 6 + 1) + (D + 6 + 1))  # operands; sums, reads, totals


def test_a_relative_leg_without_a_reach():
    legs = (*LEGS, Leg("p", "relative"), Leg("r", "relative", size=65, reach=32))
    sizes = sizes_at(replace(MHSA, legs=legs), {"n": 3, "m": 5})
    assert (sizes["p"], sizes["r"]) == (7, 65)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "'n' is 0; give an integer from 1 to 2147483647, e.g. n=1."),
        ({"n": True}, "'n' is True; give an integer from 1 to 2147483647, e.g. n=1."),
        ({"n": 4, "m": 2.5}, "'m' is 2.5; give an integer from 1 to 2147483647, e.g. m=1."),
        ({"n": 4, "batch": -1}, "'batch' is -1; give an integer from 1 to 2147483647, e.g. batch=1."),
        ({"n": 4, "dtype": "float31"}, "there is no dtype 'float31' in the cost model: did you mean 'float32'?"),
    ],
)
def test_refusals(arguments, message):
    assert refusal(cost_of, MHSA, None, **arguments) == message


def test_a_length_above_the_maximum_is_refused():
    graph = replace(MHSA, legs=(LEGS[0], Leg("m", "key", maximum=4), *LEGS[2:]))
    assert refusal(cost_of, graph, None, 3, 5) == "'m' is 5, but the key leg 'm' has a maximum of 4; use m=4 or less."
    assert refusal(cost, MHSA, {"n": 3}) == "the key leg 'm' has no length; give lengths={'m': 1024}."


def test_a_coefficient_without_a_value_at_a_length_is_refused():
    steps = (product("y", ["x n f"], "n f", parse("1 / (n - 1)")),)
    graph = replace(MHSA, steps=steps)
    assert cost(graph, {"n": 3, "m": 3}).total.elementwise == 3 * F
    assert refusal(cost, graph, {"n": 1, "m": 3}) == "at n = 1, m = 3: '1 / (n - 1)' divides by zero."


def test_lengths_that_are_not_given_keep_to_the_maxima():
    def lengths(n, query=None, key=None):
        legs = (Leg("n", "query", maximum=query), Leg("m", "key", maximum=key), *LEGS[2:])
        return dict(cost_of(replace(MHSA, legs=legs), None, n).lengths)

    assert lengths(None) == {"n": 1024, "m": 1024}
    assert lengths(None, query=8) == {"n": 8, "m": 8}
    assert lengths(None, query=64, key=8) == {"n": 8, "m": 8}  # self-attention: one length
    with pytest.raises(InputError):
        lengths(16, key=8)


def test_m_is_ignored_without_a_key_leg():
    graph = replace(MHSA, legs=(LEGS[0], *LEGS[2:]), steps=MHSA.steps[:1], output="Q")
    assert cost_of(graph, None, 3, m=-1).lengths == (("n", 3),)


def test_dtypes_and_devices():
    assert dtype_bytes("torch.float16") == 2
    half = cost_of(MHSA, None, N, None, B, "bfloat16").written
    assert (half.total.bytes * 2, half.macs) == (REPORT.written.total.bytes, REPORT.written.macs)
    assert refusal(device_named, "generick") == (
        "there is no device 'generick' in the cost table: did you mean 'generic'?"
    )


def test_as_dict_is_json():
    found = json.loads(json.dumps(REPORT.as_dict()))
    assert found["lengths"] == {"n": N, "m": N}
    assert found["written"]["total"]["flops"] == REPORT.written.flops
    assert found["planned"]["steps"][-2]["fused"] == ["A.of", "A V"]
    counts = ["macs", "flops", "elementwise", "bytes", "live_bytes", "saved_floats", "routed_macs"]
    assert sorted(found["planned"]["steps"][-1]) == sorted(["step", *counts, "fused", "training"])
    assert sorted(found["planned"]["total"]) == sorted(counts)
    assert found["planned"]["evaluation"] == found["planned"]["total"]
    assert cost_of(MHSA, None, N).as_dict()["planned"] is None


def test_to_text():
    empty = Cost((StepCost("y", macs=1500, bytes=8),), "n", 3, 1)
    assert replace(REPORT, written=empty, planned=None).to_text() == TEXT


TEXT = """\
mhsa: n = 5, m = 5, batch 3, float32

as written    MACs   FLOPs  elementwise  moved  live  saved
  y         1.50 k  3.00 k            0    8 B   0 B      0
  total     1.50 k  3.00 k            0    8 B   0 B      0
  MACs of one batch element: n

parameters: 3, and 1 frozen
decoding cache: 80 floats for 5 tokens of one sequence
FLOPs = 2 MACs, elementwise operations not included; moved: read and written; live: in memory while the step runs
(total: the peak); saved: floats stored for backward, each counted once; k, M, G, T are powers of 1000."""


INTERNAL = ["alibi", "deepseek_v3", "fox", "gaussian", "mgk", "mgk_mqa", "mhsa_core", "softmax_smgk"]  # legs of plans


@pytest.mark.parametrize("name", INTERNAL)
def test_formulas_are_written_in_declared_legs(name: str) -> None:
    design = load(name)
    report = cost_of(build(design), make_plan(build(design)).schedule, 96, 64)
    assert report.planned is not None
    sizes = {**design.legs, **dict(report.lengths)}
    for formula, total in (
        (report.planned.formula, report.planned.macs),
        (report.planned.routed_formula, report.planned.total.routed_macs),
    ):
        terms = [term.split() for term in formula.split(" + ")]
        assert {word for term in terms for word in term if not word.isdigit()} <= {*design.declared_legs}
        assert sum(prod(int(word) if word.isdigit() else sizes[word] for word in term) for term in terms) == total
