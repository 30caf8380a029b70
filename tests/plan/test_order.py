"""The order search against opt_einsum's searches on random hyper-networks: never worse."""

from __future__ import annotations

import random

import opt_einsum
import pytest

from tensornet_attn import limits
from tensornet_attn.cost import cost, sizes_at
from tensornet_attn.cost.devices import DEVICES, GENERIC, Device
from tensornet_attn.cost.order import order, path_text, price, split_best
from tensornet_attn.graph import build
from tensornet_attn.graph.pairs import BATCH, left_to_right, primitive, split_products
from tensornet_attn.spec import load
from tensornet_attn.spec.library import names

WORK = DEVICES["flops"]


def network(seed):
    """3 to 7 tensors whose legs join one (open) to four of them; some legs of the result join several."""
    draw = random.Random(seed)
    count = draw.randint(3, 7)
    factors = [[] for _ in range(count)]
    result, sizes = [], {}
    for i in range(draw.randint(count, 2 * count)):
        leg = opt_einsum.get_symbol(i)
        joined = draw.sample(range(count), draw.randint(1, min(4, count)))
        for j in joined:
            factors[j].append(leg)
        sizes[leg] = draw.choice([1, 2, 3, 5, 8, 16])
        if len(joined) == 1 or draw.random() < 0.2:
            result.append(leg)
    return [tuple(factor) for factor in factors], tuple(result), sizes


def hyper(factors, result):
    uses = [leg for factor in (*factors, result) for leg in factor]
    return any(uses.count(leg) > 2 for leg in uses)


@pytest.mark.parametrize("part", range(4))
def test_never_worse_than_opt_einsum(part):
    better = 0
    for seed in range(part, 1000, 4):
        factors, result, sizes = network(seed)
        equation = ",".join("".join(factor) for factor in factors) + "->" + "".join(result)
        shapes = [tuple(sizes[leg] for leg in factor) for factor in factors]
        searches = ["optimal", "branch-all", "greedy"] + ["dp"] * (not hyper(factors, result))
        reports = [opt_einsum.contract_path(equation, *shapes, shapes=True, optimize=s)[1] for s in searches]
        ours = order(factors, result, sizes, WORK)
        assert ours.method == "exact"
        assert ours.flops <= min(report.opt_cost for report in reports), seed
        better += ours.flops < reports[0].opt_cost
    assert better > 0  # else the comparison has no teeth: `optimal` is known to miss some


def test_opt_einsum_reports_the_same_cost():
    factors, result, sizes = network(7)
    equation = ",".join("".join(factor) for factor in factors) + "->" + "".join(result)
    shapes = [tuple(sizes[leg] for leg in factor) for factor in factors]
    found = order(factors, result, sizes, WORK)
    _, report = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize=[*found.path])
    assert report.opt_cost == found.flops
    assert report.largest_intermediate == found.biggest


@pytest.mark.parametrize("seed", range(40))
def test_exact_is_the_best_of_all_trees(seed):
    factors, result, sizes = network(seed)
    device = Device("tight", rate=7, bandwidth=3)
    factors = factors[:4]
    result = tuple(leg for leg in result if any(leg in factor for factor in factors))
    found = order(factors, result, sizes, device)
    assert found.rank == min(price(p, factors, result, sizes, device).rank for p in every_path(len(factors)))


def every_path(count):
    if count < 2:
        yield ()
        return
    for i in range(count):
        for j in range(i + 1, count):
            for rest in every_path(count - 1):
                yield ((i, j), *rest)


def test_linear_attention_flips_with_the_length():
    factors, result = [("n", "d"), ("m", "d"), ("m", "e")], ("n", "e")
    long = order(factors, result, {"n": 1024, "m": 1024, "d": 64, "e": 64}, GENERIC)
    short = order(factors, result, {"n": 16, "m": 16, "d": 64, "e": 64}, GENERIC)
    assert long.path == ((1, 2), (0, 1))
    assert short.path == ((0, 1), (0, 1))


def test_left_to_right_wins_ties():
    factors = [("n",)] * 6
    assert list(order(factors, ("n",), {"n": 4}).path) == left_to_right(factors, ("n",), {})


def test_scalars_and_single_factors():
    assert order([()], (), {}).path == ()
    assert order([("n",)], ("n",), {"n": 3}).path == ()
    found = order([(), ("n",), ()], ("n",), {"n": 3}, WORK)
    assert found.path == ((0, 2), (0, 1))
    assert (found.flops, found.biggest, found.bytes) == (4, 3, 4 * (3 + 7))


def test_too_many_factors_are_greedy_and_say_so():
    count = limits.ORDER_FACTORS + 1
    factors = [(f"l{i}", f"l{i + 1}") for i in range(count)]
    sizes = {f"l{i}": 2 + i % 3 for i in range(count + 1)}
    found = order(factors, ("l0", f"l{count}"), sizes)
    assert found.method == "greedy"
    assert len(found.path) == count - 1
    assert order(factors[:-1], ("l0", f"l{count - 1}"), sizes).method == "exact"


def test_an_outer_product_is_taken_where_it_is_cheapest():
    factors, result = [("i",), ("j",), ("i", "j", "k", "l")], ("k", "l")
    assert order(factors, result, {"i": 2, "j": 2, "k": 50, "l": 50}, WORK).flops == 4 + 2 * 10_000


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("length", [1, 1024])
def test_a_shipped_design_is_never_dearer_than_left_to_right(name, length):
    graph = build(load(name))
    lengths = {leg: length for leg in (graph.query, graph.key) if leg}
    best, orders = split_best(graph, sizes_at(graph, lengths) | {BATCH: 2}, WORK)
    assert all(primitive(step) for step in best.steps)
    assert split_products(best) == best
    assert {found.method for found in orders} <= {"exact"}
    written, planned = cost(graph, lengths, 2).total, cost(best, lengths, 2).total
    assert planned.flops + planned.elementwise <= written.flops + written.elementwise


def test_the_order_of_fish_mixes_the_global_scores():
    graph = build(load("hard_fish"))
    sizes = sizes_at(graph, {"n": 1024, "m": 1024})
    best, (scores, values) = split_best(graph, sizes, WORK)
    assert scores.path == ((1, 2), (0, 1))  # the global scores, mixed after: they are fewer than the local ones
    assert values.path == ((0, 1), (0, 1))
    assert [step.name for step in best.steps][3:5] == ["A.of.p1", "A.of"]


def test_beyond_the_exact_search_an_order_is_the_best_of_random_greedy_ones():
    state, methods = random.getstate(), []
    for seed in range(4):
        draw = random.Random(seed)
        factors = [tuple(draw.sample("abcdefghijklmnop", 3)) for _ in range(limits.ORDER_FACTORS + 2)]
        sizes = {leg: draw.choice([2, 3, 8]) for leg in sorted({*"abcdefghijklmnop"})}
        found = order(factors, (), sizes, WORK)
        equation, shapes = ",".join(map("".join, factors)) + "->", [[sizes[leg] for leg in f] for f in factors]
        plain = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="greedy")[1]
        assert found.flops <= plain.opt_cost
        assert found == order(factors, (), sizes, WORK)
        methods.append(found.method)
    assert "random greedy" in methods
    assert random.getstate() == state  # of the caller


def test_the_orders_as_text():
    graph = build(load("thsa", legs={"f": 8, "r": 4, "s": 4}))
    text = path_text(graph, sizes_at(graph, {"n": 16, "m": 16}) | {BATCH: 2}, WORK)
    assert text.startswith("r s , n s batch , m s batch -> r n m batch, exact; a = r, b = s, c = n, d = batch, e = m\n")
    assert text.count("Complete contraction") == 2
    mlp = build(load("mlp"))
    assert path_text(mlp, sizes_at(mlp, {"n": 16})) == "no product has more than two tensors."
