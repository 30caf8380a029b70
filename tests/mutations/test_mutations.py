"""The list of mutations fits the tree: each change can be made, and its tests are there. Making them is `__main__`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutations.__main__ import MUTATIONS, main
from tests.mutations.model import Mutation
from tests.mutations.relations import RELATIONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("one", MUTATIONS, ids=lambda one: f"{one.file}: {one.breaks}")
def test_each_can_be_made_and_its_tests_are_there(one: Mutation) -> None:
    text = (ROOT / one.path).read_text()
    changed = one.applied(text)
    assert changed != text
    if str(one.path).endswith(".py"):
        ast.parse(changed)
    for node in one.nodes:
        path, _, rest = node.partition("::")
        assert (ROOT / path).exists(), path
        name = rest.partition("[")[0]
        assert not name or f"\ndef {name}(" in (ROOT / path).read_text(), node


def test_there_are_enough_and_no_two_are_one() -> None:
    assert len(MUTATIONS) >= 40
    assert len({(one.file, one.old) for one in MUTATIONS}) == len(MUTATIONS)
    assert all(one.breaks.endswith(".") for one in MUTATIONS)
    assert all(test.startswith("relations/") for one in RELATIONS for test in one.tests)


def test_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "Kronecker"]) == 0
    told = "tensornet_attn/special/value.py: A row of numbers in a Kronecker product is a column.\n"
    assert capsys.readouterr().out == told
    assert main(["no such text"]) == 2
    assert capsys.readouterr().out == "there is no such mutation.\n"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_each_is_caught(part: int) -> None:
    """In eight parts, so that workers share them."""
    assert main(["--no-check", *(one.breaks for one in MUTATIONS[part::8])]) == 0
