"""Splitting products: names, summed legs, kept orders and coefficients, and that a second run changes nothing."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Box, Contraction, Graph, Leg, Step, Tensor, Term, Use
from tensornet_attn.graph.pairs import BATCH, batched, left_to_right, primitive, split_products, summed
from tensornet_attn.ir.arithmetic import ONE, Number
from tensornet_attn.rewrite.fused import fuse
from tensornet_attn.spec import load

TWO = Number(2)


def uses(text):
    return tuple(Use(name, tuple(legs.split())) for name, legs in re.findall(r"(\w+)\[([^\]]*)\]", text))


def step(text, name="y"):
    """`a[n] b[n] + 2 * c[n] -> n` as a step; tensors are declared by `graph`."""
    left, _, legs = text.partition("->")
    terms = tuple(Term(TWO if "2 *" in term else ONE, uses(term)) for term in left.split("+"))
    return Step(name, Contraction(terms), tuple(legs.split()))


def graph(*steps, inputs="x"):
    made = {s.name for s in steps}
    tensors = {use.name: use.legs for s in steps for use in s.op.uses if use.name not in made}
    legs = dict.fromkeys(leg for s in steps for group in (s, *s.op.uses) for leg in group.legs)
    roles = [Tensor(name, "input" if name in inputs else "weight", own) for name, own in tensors.items()]
    return Graph("g", tuple(Leg(leg, "size", 2) for leg in legs), (), tuple(roles), tuple(steps), steps[-1].name)


def text(made):
    """Steps as `name: 2 a[n] b[n] -> n`."""
    lines = []
    for s in made.steps:
        terms = [
            " ".join(["2"] * (t.coefficient == TWO) + [f"{u.name}[{' '.join(u.legs)}]" for u in t.factors])
            for t in s.op.terms
        ]
        lines.append(f"{s.name}: {' + '.join(terms)} -> {' '.join(s.legs)}".rstrip())
    return lines


def test_a_product_of_three():
    made = split_products(graph(step("2 * A[h n m] V[m h d] Wo[h d f] -> n f")))
    assert text(made) == ["y.p1: A[h n m] V[m h d] -> h n d", "y: 2 y.p1[h n d] Wo[h d f] -> n f"]
    assert [sorted(summed(s)) for s in made.steps] == [["m"], ["d", "h"]]


def test_a_leg_waits_for_the_last_factor_that_has_it():
    made = split_products(graph(step("P[g h] Q[n g d] K[m g d] -> h n m")))
    assert text(made) == ["y.p1: P[g h] Q[n g d] -> g h n d", "y: y.p1[g h n d] K[m g d] -> h n m"]


def test_a_path_is_followed_and_written_order_kept():
    made = split_products(graph(step("P[g h] Q[n g d] K[m g d] -> h n m")), lambda *_: [(1, 2), (0, 1)])
    assert text(made) == ["y.p1: Q[n g d] K[m g d] -> n g m", "y: P[g h] y.p1[n g m] -> h n m"]


def test_a_sum_of_products_becomes_a_linear_combination():
    made = split_products(graph(step("2 * Q[n d] K[m d] + a[n] b[n] c[n] + u[m] -> m n")))
    assert text(made) == [
        "y.p1: Q[n d] K[m d] -> m n",
        "y.p2: a[n] b[n] -> n",
        "y.p3: y.p2[n] c[n] -> n",
        "y: 2 y.p1[m n] + y.p3[n] + u[m] -> m n",
    ]


def test_scalars_are_factors():
    made = split_products(graph(step("a[] b[n] c[] -> n")))
    assert text(made) == ["y.p1: a[] b[n] -> n", "y: y.p1[n] c[] -> n"]


def test_nested_steps_keep_their_names_and_users():
    inner = step("a[n d] b[d e] c[e m] -> n m", "A.of")
    box = Step("A", Box("softmax", "m", (("of", Use("A.of", ("n", "m"))),)), ("n", "m"))
    made = split_products(graph(inner, box))
    assert [s.name for s in made.steps] == ["A.of.p1", "A.of", "A"]
    assert made.steps[-1] is box


@pytest.mark.parametrize(
    "line", ["a[n] b[n] -> n", "2 * a[n m] -> m n", "a[n] + 2 * b[m] -> n m", "x[n d] W[d f] -> n f", "2 * -> "]
)
def test_primitive_steps_stay(line):
    given = graph(step(line))
    assert primitive(given.steps[0])
    assert split_products(given) == given


def test_a_kernel_is_primitive():
    given = fuse(build(load("mhsa")), "A")
    assert primitive(given.step["A.o"])
    assert split_products(given).step["A.o"] == given.step["A.o"]


def test_paths_see_the_batch_and_the_sizes():
    seen = []

    def path_of(factors, result, sizes):
        seen.append((factors, result, sizes))
        return left_to_right(factors, result, sizes)

    split_products(graph(step("x[n f] W[f d] U[d e] -> n e")), path_of, {"n": 7, BATCH: 3})
    factors, result, sizes = seen[0]
    assert factors == [("n", "f", BATCH), ("f", "d"), ("d", "e")]
    assert result == ("n", "e", BATCH)
    assert sizes == {"n": 7, "f": 2, "d": 2, "e": 2, BATCH: 3}


def test_batched_names_are_inputs_noise_and_what_they_make():
    product, made = step("W[f d] U[d e] -> f e", "WU"), step("x[n f] WU[f e] -> n e")
    assert batched(graph(product, made)) == {"x", "y"}


def test_a_path_that_leaves_factors_is_refused():
    with pytest.raises(ValueError) as raised:
        split_products(graph(step("a[n] b[n] c[n] -> n")), lambda *_: [(0, 1)])
    assert str(raised.value) == "the path [(0, 1)] leaves 2 factors of 3, not one."


@pytest.mark.parametrize("seed", range(30))
def test_any_path_gives_the_same_function(seed):
    draw = random.Random(seed)
    names = "abcdefgh"[: draw.randint(3, 6)]
    factors = [draw.sample("ijklm", draw.randint(0, 4)) for _ in names]
    present = sorted({leg for factor in factors for leg in factor})
    result = draw.sample(present, draw.randint(0, len(present)))
    line = " ".join(f"{name}[{' '.join(legs)}]" for name, legs in zip(names, factors, strict=True))
    given = graph(step(f"2 * {line} -> {' '.join(result)}"))
    made = split_products(given, lambda legs, *_: random_path(draw, len(legs)))
    random_numbers = np.random.default_rng(seed)
    values = {t.name: random_numbers.normal(size=(2,) * len(t.legs)) for t in given.tensors}
    for s in (*made.steps, Step("want", given.steps[0].op, given.steps[0].legs)):
        (term,) = s.op.terms
        equation = ",".join("".join(use.legs) for use in term.factors) + "->" + "".join(s.legs)
        values[s.name] = term.coefficient.value * np.einsum(equation, *(values[use.name] for use in term.factors))
    np.testing.assert_allclose(values["y"], values["want"], rtol=1e-10, atol=1e-12)
    assert split_products(made) == made


def random_path(draw, count):
    return [tuple(sorted(draw.sample(range(left), 2))) for left in range(count, 1, -1)]
