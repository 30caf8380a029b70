"""The exact prover: laws that it knows, rules that it refuses, and what all rules do to designs, proved."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import tensornet_attn as ta
from tensornet_attn.graph import Graph, build
from tensornet_attn.graph.graph import Contraction, Term, Use
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.plan.make import make_plan
from tensornet_attn.rewrite import simplified
from tensornet_attn.rewrite.change import with_steps, with_terms
from tensornet_attn.rewrite.engine import Rule, everywhere, rewritten
from tensornet_attn.rewrite.table import CHOICES, RULES, steps_of
from tests.designs.cases import CASES
from tests.mutations.__main__ import MUTATIONS
from tests.mutations.model import Mutation
from tests.random_design import random_design
from tests.rewrite.proof import P, Q, W, prove

from .diagrams import ATTEND, attention
from .test_rules import drawn, run

PACKAGE = Path(ta.__file__).resolve().parent


def small(**diagram: object) -> Graph:
    """A design whose output is `y`, of inputs x and z and weights w and C."""
    made = {"tensornet": 1, "name": "small", "legs": {"n": "query", "m": "key", "f": "head 2"}, "diagram": diagram}
    made |= {"inputs": {"x": "n f", "z": "m f"}, "output": "y", "weights": {"w": "f", "C": "f"}}
    if "z[m" not in str(diagram):
        made |= {"legs": {"n": "query", "f": "head 2"}, "inputs": {"x": "n f"}}
    return build(ta.load(made))


def verdict(before: dict, after: dict) -> str:
    """Whether two ways to make `y` are one; both read both weights."""
    return str(prove(small(**before), small(**after)))


def prime(number: int) -> bool:
    """Miller's test with Rabin's bases, which is no test of chance below 3.3e24."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41):
        powers = [pow(base, odd * 2**i, number) for i in range(twos)]
        if powers[0] != 1 and number - 1 not in powers:
            return False
    return True


def test_the_primes() -> None:
    assert prime(P)
    assert prime(Q)
    assert P == 2 * Q + 1
    assert W != 1 == pow(W, Q, P)
    assert all(pow(number, Q, P) == 1 for number in range(1, 32))
    assert pow(-1, Q, P) == P - 1
    assert not prime(P + 2) or not prime(Q + 2)


SCORES = "x[n f] z[m f] w[f] C[f] -> n m"
READ = {"y": "A[n m] z[m f] -> n f"}
LAWS = {
    "a sum in another order": (
        {"y": "2 * x[n f] w[f] + x[n f] C[f] -> n f"},
        {"s": "C[f] + 2 * w[f] -> f", "y": "x[n f] s[f] -> n f"},
        "proved",
    ),
    "another number": (
        {"y": "2 * x[n f] w[f] + x[n f] C[f] -> n f"},
        {"y": "x[n f] w[f] + x[n f] C[f] -> n f"},
        "'y' differs",
    ),
    "exp of a sum is a product": (
        {"y": {"map": "exp", "of": "x[n f] w[f] + C[f] -> n f"}},
        {"a": {"map": "exp", "of": "x[n f] w[f] -> n f"}, "b": {"map": "exp", "of": "C"}, "y": "a[n f] b[f] -> n f"},
        "proved",
    ),
    "exp of a sum is no sum": (
        {"y": {"map": "exp", "of": "x[n f] w[f] + C[f] -> n f"}},
        {"a": {"map": "exp", "of": "x[n f] w[f] -> n f"}, "b": {"map": "exp", "of": "C"}, "y": "a[n f] + b[f] -> n f"},
        "'y' differs",
    ),
    "softmax of what all keys have": (
        {"A": {"softmax": "m", "of": SCORES.replace(" ->", " + x[n f] w[f] ->")}} | READ,
        {"A": {"softmax": "m", "of": SCORES}} | READ,
        "proved",
    ),
    "softmax as exp and normalize": (
        {"A": {"softmax": "m", "of": SCORES}} | READ,
        {"e": {"map": "exp", "of": SCORES}, "A": {"normalize": "m", "eps": 0, "of": "e"}} | READ,
        "proved",
    ),
    "exp of a logarithm": (
        {"l": {"map": "log", "of": "w"}, "y": {"map": "exp", "of": "x[n f] C[f] - 2 * l[f] -> n f"}},
        {"r": {"map": "reciprocal", "of": "w"}, "e": {"map": "exp", "of": "x[n f] C[f] -> n f"},
         "y": "e[n f] r[f] r[f] -> n f"},
        "proved for any log",
    ),
    "relu of a product": (
        {"y": {"map": "relu", "of": "0.3 * x[n f] w[f] C[f] C[f] -> n f"}},
        {"a": {"map": "abs", "of": "x[n f] w[f] -> n f"}, "c": "0.15 * C[f] C[f] -> f",
         "y": "a[n f] c[f] + x[n f] w[f] c[f] -> n f"},
        "proved",
    ),
    "a number whose sign the primes do not show": (
        {"y": {"map": "relu", "of": "0.37 * x[n f] w[f] C[f] C[f] -> n f"}},
        {"a": {"map": "relu", "of": "x[n f] w[f] -> n f"}, "y": "0.37 * a[n f] C[f] C[f] -> n f"},
        "not proved: 'y' differs for some relu",
    ),
    "relu of a sum": (
        {"y": {"map": "relu", "of": "x[n f] w[f] + C[f] -> n f"}},
        {"a": {"map": "relu", "of": "x[n f] w[f] -> n f"}, "b": {"map": "relu", "of": "C"},
         "y": "a[n f] + b[f] -> n f"},
        "'y' differs",
    ),
    "any function": (
        {"y": {"map": "tanh", "of": "x[n f] w[f] + x[n f] C[f] -> n f"}},
        {"y": {"map": "tanh", "of": "x[n f] C[f] + x[n f] w[f] -> n f"}},
        "proved for any tanh",
    ),
    "a law of one function": (
        {"a": {"map": "tanh", "of": "-1 * x[n f] w[f] C[f] -> n f"}, "y": "-1 * a[n f] -> n f"},
        {"y": {"map": "tanh", "of": "x[n f] w[f] C[f] -> n f"}},
        "not proved: 'y' differs for some tanh",
    ),
    "an exp of an exp": (
        {"a": {"map": "exp", "of": "x[n f] w[f] C[f] -> n f"}, "y": {"map": "exp", "of": "2 * a[n f] -> n f"}},
        {"a": {"map": "exp", "of": "x[n f] w[f] C[f] -> n f"}, "b": {"map": "exp", "of": "a"},
         "y": "b[n f] b[n f] -> n f"},
        "not proved: 'y' differs for some exp of what has an exp inside",
    ),
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_laws(law: str) -> None:
    before, after, said = LAWS[law]
    assert verdict(before, after) == said


# Rules that are false


def without_scale(graph: Graph, place: str) -> Graph | None:
    """softmax_m with scale c of S   ->   softmax_m of S"""
    box = graph.step[place].box
    if box is None or box.kind != "softmax" or box.number("scale") == ONE:
        return None
    numbers = tuple((name, ONE if name == "scale" else value) for name, value in box.numbers)
    return with_steps(graph, {place: [replace(graph.step[place], op=replace(box, numbers=numbers))]})


def without_mask(graph: Graph, place: str) -> Graph | None:
    """softmax_m of S with a mask   ->   softmax_m of S"""
    box = graph.step[place].box
    if box is None or not box.masks:
        return None
    return with_steps(graph, {place: [replace(graph.step[place], op=replace(box, masks=()))]})


def softmax_of_a_sum(graph: Graph, place: str) -> Graph | None:
    """softmax_m of (S + T)   ->   softmax_m of S + softmax_m of T"""
    box, step = graph.step[place].box, graph.step[place]
    scores = graph.step[box.operand("of").name] if box is not None and box.kind == "softmax" else step
    if box is None or scores.contraction is None or len(scores.contraction.terms) < 2:
        return None
    parts, maps = [], []
    for i, term in enumerate(scores.contraction.terms):
        part = replace(with_terms(scores, [term]), name=f"{place}.s{i}")
        parts.append(part)
        maps.append(replace(step, name=f"{place}.a{i}", op=replace(box, operands=(("of", Use(part.name, part.legs)),))))
    total = replace(step, op=Contraction(tuple(Term(ONE, (Use(own.name, own.legs),)) for own in maps)))
    return with_steps(graph, {scores.name: parts, place: [*maps, total]})


FALSE: tuple[tuple[Callable[[Graph, str], Graph | None], dict], ...] = (
    (without_scale, {"softmax": "m", "scale": 0.5, "of": ATTEND["of"]}),
    (without_mask, {"softmax": "m", "mask": ["window(1, 0)"], "of": ATTEND["of"]}),
    (softmax_of_a_sum, {"softmax": "m", "of": "Q[n h d] K[m h d] + b[h] Q[n h d] Q[m h d] -> h n m"}),
)


@pytest.mark.parametrize(("rule", "box"), FALSE, ids=[rule.__name__ for rule, _ in FALSE])
def test_false_rules_are_refused(rule: Callable[[Graph, str], Graph | None], box: dict) -> None:
    graph = build(ta.load(attention(random.Random(1), weights={"b": "h"}) | {"weights": WEIGHTS, "legs": LEGS} | {
        "diagram": STEPS | {"A": box, "y": "A[h n m] V[m h e] Wo[h e f] + 0.1 * b[h] V[n h e] Wo[h e f] -> n f"},
    }))  # fmt: skip
    made, trace = rewritten(graph, "A", (Rule("false", "a -> b", rule),))
    assert len(trace) == 1
    assert str(prove(graph, made)) == "'y' differs"
    assert str(prove(graph, graph)) == "proved"


LEGS = {"n": "query", "m": "key", "f": 2, "h": "head 2", "d": "head 2", "e": "head 2"}
WEIGHTS = {"Wq": "f h d", "Wk": "f h d", "Wv": "f h e", "Wo": "h e f", "b": "h"}
STEPS = {"Q": "x[n f] Wq[f h d] -> n h d", "K": "x[m f] Wk[f h d] -> m h d", "V": "x[m f] Wv[f h e] -> m h e"}

# of rules: what a call's masks hide is not in a diagram, and no rule fuses an attention
OTHERS = ("rewrite/hidden.py", "rewrite/fused.py")
MISTAKES = [one for one in MUTATIONS if one.file.startswith("rewrite/") and one.file not in OTHERS]


@pytest.mark.parametrize("mutation", MISTAKES, ids=lambda mutation: mutation.breaks)
def test_mistakes_in_rules_are_refused(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake of tests/mutations in a rule: on some random diagram of some rule the prover sees it."""
    name = f"tensornet_attn.{mutation.file.removesuffix('.py').replace('/', '.')}"
    module, mistaken = importlib.import_module(name), ModuleType(name)
    source = (PACKAGE / mutation.file).read_text("utf-8").replace(mutation.old, mutation.new)
    monkeypatch.setitem(sys.modules, name, mistaken)
    exec(compile(source, mutation.file, "exec"), mistaken.__dict__)
    for key, value in vars(mistaken).items():  # functions that rules of other modules hold
        if isinstance(value, FunctionType) and value.__module__ == name:
            monkeypatch.setattr(getattr(module, key), "__code__", value.__code__)
    rules = {rule.name: rule for rule in getattr(mistaken, "RULES", RULES.values())}
    drawings = ((rule, drawn(key, seed)) for key, rule in rules.items() for seed in range(12))
    assert any(not prove(graph, run(graph, rule)[0]).proved for rule, graph in drawings)


# What rules do to designs


def design(name: str, causal: bool | None = None) -> Graph:
    case = CASES[name]
    return build(ta.load(name, legs=case.legs, settings=case.settings), causal=causal)


@pytest.mark.parametrize("name", CASES)
def test_what_every_group_does_to_a_design(name: str) -> None:
    if name == "rwkv4":  # its scores have an exp inside, whose exp has no number modulo a prime
        return
    for group, start, trace in steps_of(design(name)):
        assert not trace or prove(start, trace[-1].graph).proved, group.name


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("causal", [None, True])
def test_what_is_planned_is_the_design(name: str, causal: bool | None) -> None:
    """Scores that the planner rewrites, fused attention, sums over keys, bands: all is what the diagram says."""
    graph = design(name, causal)
    assert prove(graph, make_plan(graph).schedule).proved


@pytest.mark.parametrize("seed", range(60))
def test_random_designs(seed: int) -> None:
    data = random_design(random.Random(seed))
    if any(problem.severity == "error" for problem in ta.check(data)):
        return
    graph = build(ta.load(data))
    made, _ = simplified(graph)
    assert prove(graph, made).proved
    for group in CHOICES:
        assert prove(made, everywhere(made, group.rules)[0]).proved, group.name
