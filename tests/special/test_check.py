"""The check of `contains`: bounded in its work, and silent about files that are no designs."""

from __future__ import annotations

from pathlib import Path

import tensornet_attn as ta
from tensornet_attn.special import embed, special_cases
from tests.bounded import bounded

ENTRY = "tensornet: 1\nname: t\nextends: mhsa\ncontains:\n"


def codes(text: str) -> list[str]:
    return [problem.code for problem in bounded(ta.check, text)]


def test_many_special_cases_are_refused() -> None:
    text = ENTRY + "".join(f"  ./d{i}.yaml: {{}}\n" for i in range(2_000))
    assert codes(text) == ["too-large"]


def test_a_hostile_value() -> None:
    assert codes(ENTRY + '  mhsa: {legs: {h: "9**9**9"}}\n') == ["number"]
    assert codes(ENTRY + f'  mhsa: {{weights: {{Wq: "{"(" * 900}Wq"}}}}\n') != []
    assert codes(ENTRY + '  mhsa: {weights: {Wq: "eye[a b] -> a b"}}\n') == ["leg-count"]
    assert codes(ENTRY + '  mhsa: {weights: {Wq: "kron(ones(10 ** 9, 10 ** 9), ones(10 ** 9, 10 ** 9))"}}\n') == [
        "init-shape"
    ]


def test_nothing_is_shown_of_a_file_that_is_no_design(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("password: swordfish\n")
    (tmp_path / "t.yaml").write_text(ENTRY + "  ./secret.yaml: {}\n")
    told = "\n".join(str(problem) for problem in ta.check(tmp_path / "t.yaml"))
    assert "unknown-design" in told
    assert "swordfish" not in told
    assert "password" not in told


def test_a_design_of_ones_own_may_be_the_special_case(tmp_path: Path) -> None:
    (tmp_path / "narrow.yaml").write_text("tensornet: 1\nname: narrow\nextends: mhsa\nlegs: {d: 4}\n")
    (tmp_path / "t.yaml").write_text(ENTRY + "  ./narrow.yaml: {}\n")
    assert ta.check(tmp_path / "t.yaml") == []
    assert embed(ta.load(tmp_path / "t.yaml"), "./narrow.yaml").general.legs["d"] == 4


def test_every_entry_of_a_shipped_design_fits() -> None:
    for general, special in special_cases().edges:
        embed(ta.load(general), special)


def test_a_child_does_not_inherit_what_its_parent_contains() -> None:
    assert not ta.load("alibi").contains
    assert ta.load("mhsa").contains


def test_contains_is_part_of_the_text_and_not_of_the_hash() -> None:
    with_it, without = ta.load("thsa"), ta.load({**ta.load("thsa").as_dict(), "contains": {}})
    assert ta.load(with_it.to_yaml()).contains == with_it.contains
    assert with_it.hash == without.hash
