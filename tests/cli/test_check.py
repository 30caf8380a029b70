"""`check`: every file told, every problem told, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

GOOD = """\
tensornet: 1
name: good
extends: mhsa
"""
BAD = """\
tensornet: 1
name: bad
extends: mhsa
diagram:
  Q: x[n f] Wqq[f h d] -> n h d
  y: A[h n m] V[m h d] Wo[h d f] -> n
"""
TRANSPOSED = """\
tensornet: 1
name: transposed
legs: {n: query, r: 4, s: 4}
inputs: {x: n r}
weights: {C: r s}
diagram:
  y: x[n r] C[s r] -> n s
output: y
"""
BAD_MESSAGES = """\
{file}:5:13: unknown-name: there is no tensor or step 'Wqq'.
      Q: x[n f] Wqq[f h d] -> n h d
                ^^^
  hint: did you mean 'Wq'?
{file}:6:31: dangling: leg 'f' dangles: it is on one tensor of the product and not in the result.
      y: A[h n m] V[m h d] Wo[h d f] -> n
                                  ^
  hint: add it to the result or to a second tensor, or sum over it with a 'sum' box.
"""
OK = "ok  mhsa: mhsa, 5 steps, 1,048,576 parameters\n"


def test_a_shipped_name(run) -> None:
    assert run("check", "mhsa") == (0, OK, "")


def test_all_files_are_told_and_all_problems_of_each(run, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    (tmp_path / "good.yaml").write_text(GOOD)
    bad, good = str(tmp_path / "bad.yaml"), str(tmp_path / "good.yaml")
    outcome = run("check", bad, "mhsa", good)
    assert outcome == (1, f"{OK}ok  {good}: good, 5 steps, 1,048,576 parameters\n", BAD_MESSAGES.format(file=bad))


def test_standard_input(run) -> None:
    assert run("check", "-", stdin=GOOD.encode()) == (0, "ok  <stdin>: good, 5 steps, 1,048,576 parameters\n", "")
    assert run("check", "-", stdin=BAD.encode()) == (1, "", BAD_MESSAGES.format(file="<stdin>"))


def test_overrides(run) -> None:
    assert run("check", "mhsa", "--legs", "f=256,h=4").out == "ok  mhsa: mhsa, 5 steps, 262,144 parameters\n"
    assert run("check", "mhsa", "--legs", "f=min(64, 32)", "--legs", "h=2").code == 0
    assert run("check", "-", "--legs", "f=256", stdin=GOOD.encode()).out.endswith("262,144 parameters\n")
    assert run("check", "epa", "--set", "k=9").code == 1


def test_a_warning_fails_only_under_strict(run) -> None:
    calm = run("check", "-", stdin=TRANSPOSED.encode())
    assert (calm.code, calm.out) == (0, "ok  <stdin>: transposed, 1 step, 16 parameters\n")
    assert calm.err.startswith("<stdin>:7:13: transpose: warning: ")
    assert run("check", "-", "--strict", stdin=TRANSPOSED.encode()) == (1, "", calm.err)


def test_json(run, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    outcome = run("check", "mhsa", str(tmp_path / "bad.yaml"), "--json")
    good, bad = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (1, "")
    assert good == {"file": "mhsa", "ok": True, "name": "mhsa", "steps": 5, "parameters": 1048576, "problems": []}
    assert (bad["ok"], [p["code"] for p in bad["problems"]]) == (False, ["unknown-name", "dangling"])
    assert bad["problems"][0] == {
        "code": "unknown-name",
        "message": "there is no tensor or step 'Wqq'.",
        "hint": "did you mean 'Wq'?",
        "file": str(tmp_path / "bad.yaml"),
        "field": "diagram.Q",
        "line": 5,
        "column": 13,
        "source": "  Q: x[n f] Wqq[f h d] -> n h d",
        "caret": 12,
        "width": 3,
        "severity": "error",
    }


def test_what_cannot_be_read_is_told_like_any_mistake(run, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.yaml")
    assert run("check", missing, "mhsa") == (
        1,
        OK,
        f"{missing}: unreadable: this file cannot be read: No such file or directory.\n"
        "  hint: give the path of a YAML file.\n",
    )
    (tmp_path / "binary.yaml").write_bytes(b"tensornet: 1\n\xff\xfe\x00")
    for source in (str(tmp_path), str(tmp_path / "binary.yaml"), "", "no/such", "mhsaa"):
        outcome = run("check", source)
        assert (outcome.code, outcome.out) == (1, "")
        assert "Traceback" not in outcome.err


def test_usage(run) -> None:
    for arguments in (
        ("check",),
        ("check", "mhsa", "--legs", "f"),
        ("check", "mhsa", "--legs", "=3"),
        ("chek", "mhsa"),
    ):
        outcome = run(*arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith("Usage: tensornet-attn")
