"""The relations on Triton kernels, in the interpreter: random designs of fixed seeds, and those that broke one."""

from __future__ import annotations

import random

import pytest

from tests.relations.found import FOUND
from tests.relations.generator import drawn_design, joint
from tests.relations.test_relations import check
from tests.relations.text import Data, normal_form


@pytest.mark.parametrize("seed", [15])
def test_random_designs(seed: int) -> None:
    check(drawn_design(seed).data, "triton", ("backends_agree", "hidden_rows"), seed)


@pytest.mark.parametrize("seed", [3, 4])
def test_joint_legs(seed: int) -> None:
    check(normal_form(joint(random.Random(seed))), "triton", ("backends_agree",), seed, "file")


@pytest.mark.parametrize("design", FOUND, ids=lambda design: design["name"])
def test_found_designs(design: Data) -> None:
    check(normal_form(design), "triton", ("backends_agree",), 5, "file")
