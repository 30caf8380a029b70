"""The relations on the designs of fixed seeds and on every shipped design; `python -m tests.relations` tries others."""

from __future__ import annotations

import random
from typing import NamedTuple
from zlib import crc32

import pytest

from tests.designs.cases import CASES
from tests.relations.explore import Counts, Trial, relations, shrunk_failure, written
from tests.relations.found import FOUND
from tests.relations.generator import drawn_design, joint, shipped
from tests.relations.text import Data, normal_form
from tests.tiles.test_cpp import needs_compiler

ON_EVERY_PLAN = ("backends_agree", "hidden_rows", "rows_before", "documents", "chunks", "nothing")
CHEAP = ("hidden", "rows", "tokens", "documents", "sequences", "queries", "masks", "nothing", "strides", "calls")
# Random designs with generated kernels: joint legs, masks and sinks, noise, several maps, keys of their own.
COMPILED = (7, 8, 24)
TRACED = ("transformer_xl", "linear")  # blocks of queries, sums of states
JOINT = (3, 4)  # of `joint`, whose readers sum one of several legs


class Shipped(NamedTuple):
    """The name of a shipped design, of which the tests of a day are not a part."""

    name: str


def check(data: Data, backend: str, texts: tuple[str, ...], seed: int, origin: str = "random") -> None:
    """Tries relations and raises AssertionError with the failing designs, shrunk."""
    counts = Counts()
    for relation in relations(texts):
        counts.add(Trial(relation.name, backend, seed, data, origin))
    assert not counts.failures, "\n".join(written(shrunk_failure(failure, 100)) for failure in counts.failures)


@pytest.mark.parametrize("seed", range(48))
def test_random_designs(seed: int) -> None:
    check(drawn_design(seed).data, "torch", (), seed)


@pytest.mark.parametrize("backend", ["reference", "blocks", "long", "decoding"])
@pytest.mark.parametrize("seed", range(1000, 1008))
def test_random_designs_on_other_plans(seed: int, backend: str) -> None:
    check(drawn_design(seed).data, backend, ON_EVERY_PLAN, seed)


@pytest.mark.parametrize("backend", ["torch", "reference", "blocks"])
@pytest.mark.parametrize("design", FOUND, ids=lambda design: design["name"])
def test_found_designs(design: Data, backend: str) -> None:
    check(normal_form(design), backend, (), 2, "file")


@pytest.mark.parametrize("design", [Shipped(name) for name in CASES], ids=lambda design: design.name)
def test_shipped_designs(design: Shipped) -> None:
    """Each with a seed of its own, so that together they see what a relation draws."""
    seed = crc32(design.name.encode()) % 1000
    check(normal_form(shipped(design.name)), "torch", CHEAP, seed, design.name)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "reference", "blocks", "long", "decoding"])
@pytest.mark.parametrize("design", [Shipped(name) for name in CASES], ids=lambda design: design.name)
def test_shipped_designs_on_every_plan(design: Shipped, backend: str) -> None:
    check(normal_form(shipped(design.name)), backend, (), 1, design.name)


@pytest.mark.parametrize("name", TRACED)
def test_layers_share_a_trace(name: str) -> None:
    check(normal_form(shipped(name)), "torch", ("layers_share_a_trace",), 1, name)


@needs_compiler
@pytest.mark.parametrize("seed", COMPILED)
def test_random_designs_in_cpp(seed: int) -> None:
    check(drawn_design(seed).data, "cpp", ("backends_agree", "hidden_rows"), seed)


@needs_compiler
@pytest.mark.parametrize("seed", JOINT)
def test_joint_legs_in_cpp(seed: int) -> None:
    check(normal_form(joint(random.Random(seed))), "cpp", ("backends_agree",), seed, "file")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("design", FOUND, ids=lambda design: design["name"])
def test_found_designs_in_cpp(design: Data) -> None:
    check(normal_form(design), "cpp", ("backends_agree", "hidden_rows", "wide_biases"), 5, "file")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 5, 12, 27])
def test_compiled_and_exported(seed: int) -> None:
    check(drawn_design(seed).data, "torch", ("traced", "exported", "onnx"), seed)
