"""bench --decoding: steps written by hand are those of the designs; the table, the JSON, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import jsonschema
import pytest
import torch

from tensornet_attn import compiler
from tensornet_attn.bench.baselines.steps import STEPS
from tensornet_attn.bench.case import Case
from tensornet_attn.bench.decoding import KEEP_POSITIONS, KEEP_STATES, RETENTION, checked, usual_cases
from tests.bench.schema import SCHEMA

SMALL = ("--legs", "f=16,h=2", "--repeats", "3", "--seconds", "0")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def case_of(source: object, n: int = 5, batch: int = 2) -> Case:
    legs = {"f": 16} if source == "gqa" else {"f": 16, "h": 2}
    return Case(compiler.load(source, legs=legs), n, batch, True, "float64")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_by_hand_is_that_of_the_design(name: str) -> None:
    case = case_of(RETENTION if name == "retention" else name)
    for who in ("torch", "hand"):
        entry, call = checked(who, case, 2**30)
        assert (entry.status, entry.reason) == ("measured", "")
        assert call is not None
        assert entry.error is not None
        assert entry.error < 1e-12
        call(), call()  # each behind as many positions as the first


def test_what_is_kept_is_bounded_by_memory() -> None:
    entry, call = checked("torch", case_of("mhsa", n=1000), 2**10)
    assert (entry.status, call) == ("skipped", None)
    assert entry.reason.startswith("its cache would take about 0.0 GiB, more than the limit of 0.0 GiB (--memory)")
    assert checked("hand", case_of("linear", n=1000), 2**20)[1] is not None  # states have one size
    assert checked("hand", case_of("band"), 2**30)[0].reason == "there is no handwritten step of 'band'."


def test_a_step_with_other_numbers_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = STEPS["linear"].step
    monkeypatch.setattr(STEPS["linear"], "step", lambda self, x: 1.1 * plain(self, x))
    entry, call = checked("hand", case_of("linear"), 2**30)
    assert (entry.status, call) == ("wrong", None)
    assert "the relative error of its output is 1.0e-01 at n = 33" in entry.reason


def test_the_usual_steps() -> None:
    made = usual_cases(lambda design, n, batch: (design, n, batch), (1, 16))  # type: ignore[arg-type, return-value]
    assert made[:2] == [("mhsa", 4096, 1), ("mhsa", 4096, 16)]
    assert [one for one in made if one[0] == "linear"][:3] == [("linear", n, 1) for n in (256, 4096, 16384)]
    assert len(made) == 2 * (len(KEEP_POSITIONS) + 3 * len(KEEP_STATES))


def test_results_as_json(run) -> None:
    outcome = run("bench", "mhsa", "linear", "--decoding", "--n", "5,9", "--batch", "2", *SMALL, "--json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    jsonschema.validate(found, SCHEMA)
    assert found["machine"]["threads"] == 1
    assert found["options"]["against"] == ["hand", "softmax"]
    results = [(r["design"], r["n"], r["batch"], r["pass"], r["causal"]) for r in found["results"]]
    assert results == [(name, n, 2, "decoding", True) for name in ("mhsa", "linear") for n in (5, 9)]
    assert [one["note"] for r in found["results"] for one in r["contestants"][:1]] == [
        "cache 1.28 kB", "cache 2.30 kB", "cache 1.15 kB", "cache 1.15 kB",
    ]  # fmt: skip


def test_a_line_for_each_length(run) -> None:
    outcome = run("bench", "mlp", "cross", "--decoding", "--n", "4", "--batch", "1", "--legs", "f=8", *SMALL[2:])
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0].split() == "design batch after torch quartiles growth hand ratio softmax ratio".split()
    assert [line.split()[:3] for line in lines[1:3]] == [["mlp", "1", "4"], ["cross", "1", "4"]]
    assert "cross: torch failed: cross: no cache can be kept: " in outcome.out
