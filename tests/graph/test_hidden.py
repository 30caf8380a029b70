"""What each step sees of what it uses, where masks and readers hide the rest."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tensornet_attn.graph import Graph, build
from tensornet_attn.graph.graph import Seen
from tensornet_attn.graph.hidden import flattened, looks
from tensornet_attn.plan.make import make_plan
from tensornet_attn.spec import load

INPUTS = {"e": "m d", "b": "h n m"}
WEIGHTS = {"R": "h k"}
READ = "A[h n m] e[m d]"


def box(kind: str, of: str, *masks: str) -> dict[str, Any]:
    return {kind: "m", "of": of, "mask": [*masks]} if masks else {kind: "m", "of": of}


D = {"D": {"map": "exp", "of": "b"}}
A = {"A": box("keep", "D", "causal")}


def made(diagram: dict[str, Any]) -> Graph:
    """A design with what its diagram speaks of; its `y` is added to a product of the query's own."""
    spoken = {*re.findall(r"\w+", str(diagram))}
    data = {
        "tensornet": 1,
        "name": "test",
        "legs": {"n": "query", "m": "key", "h": "head 2", "d": 3} | ({"k": 4} if "R" in spoken else {}),
        "inputs": {"x": "n d"} | {name: legs for name, legs in INPUTS.items() if name in spoken},
        "weights": {"P": "h"} | {name: legs for name, legs in WEIGHTS.items() if name in spoken},
        "diagram": {**diagram, "y": f"{diagram['y']} + x[n d] P[h] -> n h d"},
        "output": "y",
    }
    return build(load(data))


def text(seen: Seen) -> str:
    """`causal h=h`, `band and causal h=`, `everything`: alternatives in order."""
    alternatives = []
    for every in seen:
        parts = []
        for visible in every:
            masks = [mask.name for mask in visible.masks] or ["key_mask" if visible.legs is None else "mask"]
            parts.append(" ".join([*masks, *(f"{own}={leg or ''}" for own, leg in visible.legs or ())]))
        alternatives.append(" and ".join(sorted(parts)) or "everything")
    return " or ".join(sorted(alternatives))


CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {  # diagram, reader, tensor, what it sees of that
    "a box": ({**D, **A, "y": READ}, "A", "D", "causal h=h"),
    "a box without masks": ({**D, "A": box("keep", "D"), "y": READ}, "A", "D", "mask h=h"),
    "a map before a box": ({**D, **A, "y": READ}, "D", "b", "causal h=h"),
    "a product": (
        {**D, "S": "D[h n m] D[h n m] -> h n m", "A": box("softmax", "S", "causal"), "y": READ},
        "S", "D", "causal h=h",
    ),
    "a product with more legs": (
        {**D, "S": "D[h n m] x[n d] -> h d n m", "A": box("sum", "S", "causal"), "y": "A[h d n]"},
        "S", "D", "causal h=h d=",
    ),
    "two boxes": (
        {**D, **A, "B": box("keep", "D", "band(3)"), "y": f"{READ} + B[h n m] e[m d]"},
        "D", "b", "band h=h or causal h=h",
    ),
    "a box in a box": (
        {**D, "B": box("keep", "D", "band(3)"), "A": box("softmax", "B", "causal"), "y": READ},
        "D", "b", "band h=h and causal h=h",
    ),
    "a box of sums in a box": (
        {**D, "B": box("normalize", "D", "band(3)"), "A": box("softmax", "B", "causal"), "y": READ},
        "D", "b", "band h=h",
    ),
    "a product without a box beside": ({**D, **A, "y": f"{READ} + D[h n m] e[m d]"}, "D", "b", "key_mask"),
    "a product that keeps the keys beside": (
        {**D, **A, "F": {"sum": "h", "of": "D"}, "G": {"l1norm": "m", "of": "F"}, "y": f"{READ} + G[n m] e[m d] P[h]"},
        "D", "b", "everything",
    ),
    "keys of a product": ({"K": "e[m d] P[h] -> m d h", "y": "K[m d h] e[m d]"}, "K", "e", "key_mask"),
    "what a map of keys is multiplied with": (
        {**D, "A": box("keep", "b", "causal"), "S": "A[h n m] D[h n m] -> h n m", "y": "S[h n m] e[m d]"},
        "D", "b", "causal h=h",
    ),
    "what a sum with one map of keys is multiplied with": (
        {
            **D, "A": box("keep", "b", "causal"), "S": "A[h n m] + b[h n m] -> h n m",
            "T": "S[h n m] D[h n m] -> h n m", "y": "T[h n m] e[m d]",
        },
        "D", "b", "key_mask",
    ),
    "values": ({"A": box("keep", "b", "causal"), "y": READ}, "y", "e", "key_mask"),
    "a sum over heads": (
        {**D, "S": "D[h n m] R[h k] -> k n m", "A": box("keep", "S", "causal"), "y": "A[k n m] e[m d] R[h k]"},
        "D", "b", "causal k=",
    ),
    "along heads": (
        {**D, "S": {"softmax": "h", "of": "D"}, "A": box("keep", "S", "causal"), "y": READ}, "D", "b", "causal h=",
    ),
    "along queries": (
        {**D, "S": {"max": "n", "of": "D"}, "A": box("sum", "S"), "y": "A[h] x[n d]"}, "D", "b", "key_mask",
    ),
    "along keys": (
        {**D, "S": {"l1norm": "m", "of": "D"}, "A": box("keep", "S", "causal"), "y": READ}, "D", "b", "everything",
    ),
    "keys alone": (
        {"D": {"map": "exp", "of": "e"}, "A": box("sum", "D"), "y": "A[d] x[n d] P[h]"}, "A", "D", "key_mask",
    ),
    "a part of keys": (
        {"D": {"map": "exp", "of": "e"}, "A": box("keep", "x[n d] D[m d] P[h] -> h n m", "causal"), "y": READ},
        "A.of", "D", "key_mask",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_seen(case: str) -> None:
    diagram, reader, name, wanted = CASES[case]
    graph = made(diagram)
    place = next(i for i, use in enumerate(graph.step[reader].op.uses) if use.name == name)
    assert text(looks(graph)[reader][place]) == wanted


def test_what_is_shown_is_seen() -> None:
    graph = made({**D, **A, "y": READ})
    assert text(looks(graph, ["D"])["D"][0]) == "everything"


def test_what_is_read_with_queries_as_keys_is_seen() -> None:
    """In its own legs the mask would be another one."""
    graph = made({**D, "S": "D[h n m] + D[h m n] -> h n m", "A": box("keep", "S", "causal"), "y": READ})
    assert text(looks(graph)["S"][1]) == "causal h=h"
    assert text(looks(graph)["D"][0]) == "everything"


def test_steps_of_a_kernel_inside_a_kernel_have_names_of_their_own() -> None:
    (step,) = [step for step in make_plan(build(load("moa"))).schedule.steps if step.name == "y"]
    steps = [*flattened(step)]
    assert [one.name for one in steps] == ["y Q", "y A.o A.of", "y A.o A", "y A.o", "y"]
    assert not any(one.kernel for one in steps)
