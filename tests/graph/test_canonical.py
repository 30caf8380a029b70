"""The canonical form of whole designs: disguised, changed in one place, full of equal parts."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensornet_attn as ta
from tensornet_attn.graph.canonical import canonical, graph_hash
from tensornet_attn.graph.graph import Box, Contraction, Function, Graph, Step, Term, Use
from tensornet_attn.ir.arithmetic import Binary, FunctionCall, Name, Negative, parse

DESIGNS = ta.list_designs()
POSITIONAL = ("kron", "sinusoid")  # values that say of each leg what stands on it


@cache
def built(name: str) -> Graph:
    return ta.build(ta.load(name))


class Disguise:
    """The same diagram under other names and in another order."""

    def __init__(self, graph: Graph, seed: int):
        self.draw, self.graph = random.Random(seed), graph
        self.numbers = self.names([leg.name for leg in graph.legs] + [name for name, _ in graph.settings])
        self.tensors = self.names([*graph.tensor, *graph.step])
        free = [step.name for step in graph.steps if step.name != graph.output]
        free += [
            t.name for t in graph.tensors if t.role in ("weight", "constant", "state") and not self.positional(t.init)
        ]
        self.turned = {name: self.mixed(range(len(graph.legs_of(name)))) for name in free}

    def positional(self, init: Function | None) -> bool:
        return init is not None and init.name in POSITIONAL

    def names(self, old: list[str]) -> dict[str, str]:
        return dict(zip(old, self.mixed(f"v{i}" for i in range(len(old))), strict=True))

    def mixed(self, items):
        items = list(items)
        return self.draw.sample(items, len(items))

    def legs(self, owner: str | None, legs: tuple[str, ...]) -> tuple[str, ...]:
        order = self.turned.get(owner, range(len(legs)))
        return tuple(self.numbers[legs[i]] for i in order)

    def use(self, use: Use) -> Use:
        return Use(self.tensors[use.name], self.legs(use.name, use.legs))

    def tree(self, tree):
        if isinstance(tree, Name):
            return Name(self.numbers[tree.name])
        if isinstance(tree, Negative):
            return Negative(self.tree(tree.of))
        if isinstance(tree, Binary):
            return Binary(tree.op, self.tree(tree.left), self.tree(tree.right))
        return (
            FunctionCall(tree.function, tuple(map(self.tree, tree.arguments)))
            if isinstance(tree, FunctionCall)
            else tree
        )

    def function(self, function):
        if not isinstance(function, Function):
            return function and self.tree(function)
        return Function(function.name, tuple(map(self.function, function.arguments)))

    def op(self, op):
        if isinstance(op, Contraction):
            terms = (Term(self.tree(t.coefficient), tuple(self.mixed(map(self.use, t.factors)))) for t in op.terms)
            return Contraction(tuple(self.mixed(terms)))
        masks = self.mixed(map(self.function, op.masks))
        return Box(
            op.kind,
            self.numbers.get(op.leg),
            tuple((role, self.use(use)) for role, use in op.operands),
            tuple(self.mixed((name, self.tree(value)) for name, value in op.numbers)),
            (*masks, *masks[:1]),
            self.numbers.get(op.other),
            self.function(op.function),
            op.mode,
            parts=tuple(self.numbers[leg] for leg in op.parts),
        )

    def tensor(self, tensor):
        return replace(
            tensor,
            name=self.tensors[tensor.name],
            legs=self.legs(tensor.name, tensor.legs),
            init=self.function(tensor.init),
            default=self.tensors.get(tensor.default),
            update=self.tensors.get(tensor.update),
            std=self.tree(tensor.std),
        )

    def steps(self):
        """Any order in which each step stands after what it uses."""
        waiting, done = self.mixed(self.graph.steps), set(self.graph.tensor)
        while waiting:
            step = next(step for step in waiting if {use.name for use in step.op.uses} <= done)
            waiting.remove(step)
            done.add(step.name)
            yield Step(self.tensors[step.name], self.op(step.op), self.legs(step.name, step.legs))

    def made(self) -> Graph:
        graph = self.graph
        legs = [replace(leg, name=self.numbers[leg.name], text=None) for leg in graph.legs]
        inputs = graph.of_role("input")
        others = self.mixed(tensor for tensor in graph.tensors if tensor.role != "input")
        return Graph(
            "other",
            tuple(replace(leg, kind="head") if leg.kind == "size" else leg for leg in self.mixed(legs)),
            tuple(self.mixed((self.numbers[name], value) for name, value in graph.settings)),
            tuple(map(self.tensor, (*inputs, *others))),
            tuple(self.steps()),
            self.tensors[graph.output],
            graph.causal,
            tuple(
                replace(loss, step=self.tensors[loss.step], weight=self.tree(loss.weight))
                for loss in self.mixed(graph.losses)
            ),
        )


@pytest.mark.parametrize("name", DESIGNS)
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_names_and_orders_do_not_count(name, seed):
    assert canonical(Disguise(built(name), seed).made()) == canonical(built(name))


def test_the_shipped_designs_differ():
    hashes = {name: graph_hash(built(name)) for name in DESIGNS}
    assert len(set(hashes.values())) == len(DESIGNS), sorted(hashes.items(), key=lambda item: item[1])
    assert all(len(text) == 64 for text in hashes.values())


def mutations(graph: Graph):
    """Graphs that differ from a graph in one place."""
    for place, leg in enumerate(graph.legs):
        if leg.size is not None and any(leg.name in part.legs for part in (*graph.tensors, *graph.steps)):
            more = {"size": leg.size + 1} if leg.reach is None else {"size": leg.size + 2, "reach": leg.reach + 1}
            yield replace(graph, legs=(*graph.legs[:place], replace(leg, **more), *graph.legs[place + 1 :]))
    for place, tensor in enumerate(graph.tensors):
        if tensor.role == "weight":
            frozen = replace(tensor, frozen=not tensor.frozen)
            yield replace(graph, tensors=(*graph.tensors[:place], frozen, *graph.tensors[place + 1 :]))
    for place, step in enumerate(graph.steps):
        if isinstance(step.op, Contraction):
            first, *others = step.op.terms
            op = Contraction((Term(Binary("*", first.coefficient, parse(3)), first.factors), *others))
        else:
            kind, mode = ("delta_rule", "both") if step.op.kind == "delta_rule" else ("hide", step.op.mode)
            op = replace(step.op, kind=kind, mode=mode)
        yield replace(graph, steps=(*graph.steps[:place], replace(step, op=op), *graph.steps[place + 1 :]))


@pytest.mark.parametrize("name", DESIGNS)
def test_a_change_in_one_place_counts(name):
    graph = built(name)
    assert graph_hash(graph) not in {graph_hash(changed) for changed in mutations(graph)}


def alike(count):
    """Attention with many interchangeable heads, each a step of its own."""
    weights = {f"{w}{i}": "f d" for i in range(count) for w in ("Wq", "Wk", "Wv", "Wo")}
    steps = {}
    for i in range(count):
        steps |= {f"Q{i}": f"x[n f] Wq{i}[f d] -> n d", f"K{i}": f"x[m f] Wk{i}[f d] -> m d"}
        steps |= {f"A{i}": {"softmax": "m", "of": f"Q{i}[n d] K{i}[m d] -> n m"}}
    heads = " + ".join(f"A{i}[n m] x[m e] Wv{i}[e d] Wo{i}[f d]" for i in range(count))
    base = {"tensornet": 1, "name": "alike", "legs": {"n": "query", "m": "key", "f": 16, "e": "f", "d": 4}}
    return base | {
        "inputs": {"x": "n f"},
        "weights": weights,
        "diagram": steps | {"y": f"{heads} -> n f"},
        "output": "y",
    }


def test_sixty_interchangeable_heads():
    graph = ta.build(ta.load(alike(60)))
    want = graph_hash(graph)
    assert want == graph_hash(Disguise(graph, 1).made())
    first = graph.tensors[17]
    changed = tuple(replace(t, frozen=True) if t == first else t for t in graph.tensors)
    assert want != graph_hash(replace(graph, tensors=changed))


def test_which_of_two_alike_is_meant():
    """Two heads that share a weight are another design when the weight is shared across another pair."""

    def shared(first, second):
        data = alike(4)
        data["diagram"]["K1"] = data["diagram"]["K1"].replace("Wk1", first)
        data["diagram"]["K3"] = data["diagram"]["K3"].replace("Wk3", second)
        data["weights"] = {name: legs for name, legs in data["weights"].items() if name not in ("Wk1", "Wk3")}
        return graph_hash(ta.build(ta.load(data)))

    assert shared("Wk0", "Wk2") == shared("Wk2", "Wk0")
    assert shared("Wk0", "Wk2") != shared("Wk0", "Wk0")
    assert shared("Wk0", "Wk2") != shared("Wq0", "Wk2")


def test_the_text():
    design = {
        "tensornet": 1, "name": "tiny", "legs": {"n": "query", "f": 2}, "inputs": {"x": "n f"},
        "weights": {"b": {"legs": "f", "init": "zeros"}},
        "diagram": {"y": "x[n f] - 0.5 * b[f] -> n f"}, "output": "y",
    }  # fmt: skip
    assert canonical(ta.build(ta.load(design))).splitlines() == [
        "canonical form 1",
        "t0 = input 0 [2 #1, query #0]",
        "t1 = sum output [w0 2 result #1, w1 query result #0] (term -0.5 factor t2[w0]) (term 1 factor t0[w0 w1])",
        "t2 = weight full(0) [2]",
    ]


def test_the_hash_of_a_text_is_the_same_in_every_process():
    program = (
        "import tensornet_attn as ta; from tensornet_attn.graph.canonical import graph_hash;"
        "print([graph_hash(ta.build(ta.load(name))) for name in ('mhsa', 'fmm2', 'differential', 'mgk_em')])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{[graph_hash(built(name)) for name in ('mhsa', 'fmm2', 'differential', 'mgk_em')]}\n"}
