"""A broken design shrinks to the few lines that break it, and the command line writes and replays them."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensornet_attn as ta
from tests.relations import explore
from tests.relations.__main__ import main
from tests.relations.generator import drawn_design, shipped
from tests.relations.shrink import shrunk
from tests.relations.subject import Subject
from tests.relations.table import RELATIONS, Relation
from tests.relations.text import Data, compact, normal_form, slots, sum_of


def test_terms_of_a_sum() -> None:
    text = "-(0.3 - 1) * a[h n] b[n] + (sqrt(d) + log(2)) * c[h] - 2 -> h n"
    expression = sum_of(text)
    assert expression.terms == ["+ -(0.3 - 1) * a[h n] b[n]", "+ (sqrt(d) + log(2)) * c[h]", "- 2"]
    assert str(expression) == text
    assert str(sum_of("K[m] x[m] ->")) == "K[m] x[m] ->"


def keeps(kind: str, data: Data) -> bool:
    return any(isinstance(slot.value, dict) and kind in slot.value for slot in slots(data))


@pytest.mark.parametrize(("name", "kind", "lines"), [("rwkv7", "delta_rule", 18)])
def test_what_does_not_matter_goes(name: str, kind: str, lines: int) -> None:
    small = shrunk(normal_form(shipped(name)), lambda data: keeps(kind, data))
    assert ta.check(small) == [] or all(problem.severity == "warning" for problem in ta.check(small))
    assert keeps(kind, small)
    assert len(compact(small).splitlines()) <= lines, compact(small)


def has_no_maximum(subject: Subject) -> None:
    assert not keeps("max", subject.data), "there is a maximum"


def test_a_failure_is_written_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explore, "TABLE", (Relation(has_no_maximum),))
    monkeypatch.setitem(RELATIONS, "has_no_maximum", Relation(has_no_maximum))
    seed = next(seed for seed in range(999) if keeps("max", drawn_design(seed).data))
    assert main(["--out", str(tmp_path), "--seed", str(seed)]) == 1
    (path,) = tmp_path.iterdir()
    failed, replay, *design = path.read_text().splitlines()
    assert failed.startswith("# has no maximum, torch: AssertionError: there is a maximum")
    assert len(design) <= 20
    told = capsys.readouterr().out.splitlines()
    command = f"python -m tests.relations --relation has_no_maximum --backend torch --seed {seed}"
    assert (told[0], told[-1].split()) == (command, ["has", "no", "maximum", "1,", "1", "failed"])
    assert replay == f"# {command} --designs {path}"
    assert main([*replay.split()[4:], "--out", str(tmp_path)]) == 1
    assert main(["--out", str(tmp_path), "--designs", "mhsa"]) == 0
