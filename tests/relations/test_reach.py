"""The designs of fixed seeds reach the whole language: every box, mask, role, kind of kernel and form."""

from __future__ import annotations

from tests.relations.edits import valid
from tests.relations.generator import SOURCES, drawn_design
from tests.relations.reach import EVERYTHING, reach, to_text

SEEDS = range(240)


def test_random_designs_reach_everything() -> None:
    drawn = [drawn_design(seed) for seed in SEEDS]
    counts = reach(design.data for design in drawn)
    missing = {part: wanted - counts[part].keys() for part, wanted in EVERYTHING.items()}
    assert not any(missing.values()), f"{missing}\n{to_text(counts)}"
    assert {design.origin for design in drawn} == {*SOURCES}
    assert all(valid(design.data) for design in drawn[:20])


def test_a_seed_is_one_design() -> None:
    assert [drawn_design(seed) for seed in range(8)] == [drawn_design(seed) for seed in range(8)]
