"""Every refusal as a newcomer meets it: mistaken designs and the whole answers, in the tables of refusals/*.txt.

A case is a title, edits of the base design (`-` what it says, `+` what the mistake makes of it) or a whole text (`=`),
other files (`@ name`), and the problems. After a change of wording run this file as a script: it writes the answers
again, and the difference is read by eye.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import tensornet_attn as ta

TABLES = sorted((Path(__file__).parent / "refusals").glob("*.txt"))
PACKAGE = Path(ta.__file__).parent
BLOCK = r"(?:^@ .*$)|(?:(?:^- .*\n?)+(?:^\+ ?.*\n?)*)|(?:(?:^= ?.*\n?)+)"  # another file, an edit, a whole text
ONE_EACH = ("form", "legs", "tensors", "steps", "boxes", "contains", "losses")  # tables in which a case has one mistake
ELSEWHERE = {"not-utf-8", "unreadable", "too-large", "too-many"}  # codes that test_hostile.py sees
BASE = """\
tensornet: 1
name: t
legs:
  n: query
  m: key
  f: 8
  h: head 2
  d: f / h
inputs:
  x: n f
weights:
  Wq: f h d
  Wk: f h d
  Wv: f h d
  Wo: h d f
diagram:
  Q: x[n f] Wq[f h d] -> n h d
  K: x[m f] Wk[f h d] -> m h d
  V: x[m f] Wv[f h d] -> m h d
  A:
    softmax: m
    scale: d ** -0.5
    of: Q[n h d] K[m h d] -> h n m
  y: A[h n m] V[m h d] Wo[h d f] -> n f
output: y
"""


@dataclass
class Case:
    """A mistaken design and what is said of it."""

    title: str
    given: list[str] = field(default_factory=list)  # lines of the table before the answer
    answer: str = ""

    @property
    def files(self) -> dict[str, str]:
        """The files by name; `t.yaml` is the one that is checked."""
        files, name = {"t.yaml": BASE}, "t.yaml"
        whole = set()
        for block in re.findall(BLOCK, "\n".join(self.given), re.MULTILINE):
            lines = block.rstrip("\n").split("\n")
            text = {sign: "\n".join(line[2:] for line in lines if line[:1] == sign) for sign in "-+="}
            if block.startswith("@"):
                name = block[2:].strip()
            elif block.startswith("="):
                files[name] = (files[name] if name in whole else "") + text["="] + "\n"
                whole.add(name)
            else:
                assert text["-"] in files[name], f"{self.title}: nothing to edit"
                files[name] = files[name].replace(text["-"] + "\n" * (not text["+"]), text["+"], 1)
        return files


def cases_of(table: Path) -> list[Case]:
    cases: list[Case] = []
    for block in re.split(r"^### ", table.read_text(encoding="utf-8"), flags=re.M)[1:]:
        title, *lines = block.rstrip("\n").split("\n")
        given = [line for line in lines if line[:1] in "-+=@" and line]
        answer = "\n".join(line for line in lines if not line or line[0] not in "-+=@").strip("\n")
        cases.append(Case(title, given, answer))
    return cases


def answer_to(case: Case, folder: Path) -> str:
    for name, text in case.files.items():
        (folder / name).write_bytes(text.encode())
    before = Path.cwd()
    os.chdir(folder)
    try:
        return "\n".join(str(problem) for problem in ta.check("t.yaml"))
    finally:
        os.chdir(before)


ALL = [pytest.param(case, id=f"{table.stem}: {case.title}") for table in TABLES for case in cases_of(table)]


@pytest.mark.parametrize("case", ALL)
def test_the_whole_answer(case: Case, tmp_path: Path) -> None:
    assert answer_to(case, tmp_path) == case.answer


@pytest.mark.parametrize("case", [param for param in ALL if str(param.id).startswith(ONE_EACH)])
def test_one_mistake_is_one_problem_with_a_caret_and_a_hint(case: Case) -> None:
    lines = case.answer.split("\n")
    assert sum(not line.startswith(" ") for line in lines) == 1
    assert re.fullmatch(r"[\w.]+:\d+:\d+: [a-z-0-9]+: .+\.", lines[0])
    assert re.fullmatch(r" {4,}\^+", lines[2])
    assert re.fullmatch(r"  hint: .+", lines[3])


def test_the_base_design_is_fine(tmp_path: Path) -> None:
    assert answer_to(Case("base"), tmp_path) == ""


def test_every_code_of_the_checker_is_in_a_table() -> None:
    sources = [path for folder in ("ir", "ops", "spec", "graph", "special") for path in (PACKAGE / folder).glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    call = r"(?:Refusal|\.error|\.warning|_stop|Problem|unreadable)\(\s*(?:\w+,\s*)?f?\"([a-z][a-z0-9-]*)"
    codes = {code if not code.endswith("-") else f"{code}map" for code in re.findall(call, text)}
    tables = "\n".join(table.read_text(encoding="utf-8") for table in TABLES)
    said = set(re.findall(r"^[^\s:]+(?::\d+:\d+)?: ([a-z0-9-]+): ", tables, re.MULTILINE))
    assert sorted(codes - said - ELSEWHERE) == []


def write_again() -> None:
    for table in TABLES:
        head = table.read_text(encoding="utf-8").partition("### ")[0]
        parts = []
        for case in cases_of(table):
            with tempfile.TemporaryDirectory() as folder:
                parts.append("\n".join([f"### {case.title}", *case.given, answer_to(case, Path(folder))]))
        table.write_text(head + "\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_again()
