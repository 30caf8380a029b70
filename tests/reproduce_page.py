"""docs/reproduce.md taken apart: papers, rows, and the commands of each row as bash expands them; none is run."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reproduce.md"
STATES = ("reproduced", "contradicted", "needs a GPU", "not done")
COLUMNS = ("row", "paper", "question", "ours", "needs", "state", "evidence")
NUMBERS = {  # numbered tables and figures of each paper, appendices included
    "Tuformer": {"table": 2, "fig": 12},
    "FiSHformer": {"table": 13, "fig": 8},
    "Transformer-MGK": {"table": 9, "fig": 14},
    "FMMformer": {"table": 3, "fig": 8},
    "Expert Projection Attention": {"table": 7, "fig": 6},
}
_ITEM = r"\d+[A-Za-z]?(?: (?:left|middle|right))?"
_LIST = re.compile(rf"\b(table|fig)s?\.? ({_ITEM}(?:(?:, | and | to ){_ITEM})*)")

# Stands in for each program: writes down what it is called with, and makes the folder of a run.
RECORDER = """#!/bin/bash
printf '%s\\0' "$#" "$ROW" "${0##*/}" "$@" >> "$CALLS"
[[ $1 = train ]] || exit 0
while [[ $# -gt 0 ]]; do [[ $1 = --out ]] && mkdir -p "$2"; shift; done
"""
PROGRAMS = ("tensornet-attn", "python")


@dataclass(frozen=True)
class Row:
    """A line of a table of the page; `state` is one of STATES, `remark` what follows it in the cell."""

    id: str
    paper: str
    question: str
    ours: str
    needs: str
    state: str
    remark: str
    evidence: str


@dataclass(frozen=True)
class Call:
    """A program and its arguments, as a command of the row calls it."""

    row: str
    program: str
    words: tuple[str, ...]


def section(paper: str) -> str:
    return PAGE.read_text(encoding="utf-8").partition(f"\n## {paper}\n")[2].partition("\n## ")[0]


def table(text: str, first: str) -> list[list[str]]:
    """The lines of the table whose header begins with `first`, header and rule left out, as cells."""
    lines = text.partition(f"| {first} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def rows(paper: str) -> list[Row]:
    found = []
    for cells in table(section(paper), "row"):
        assert len(cells) == len(COLUMNS), cells
        state = next((state for state in STATES if cells[5].startswith(state)), cells[5])
        found.append(Row(*cells[:5], state, cells[5].removeprefix(state), cells[6]))
    return found


def numbers(text: str, kind: str) -> set[int]:
    """The numbers of the tables or figures that a text names.

    >>> sorted(numbers("figs. 3A to 3C, 6 and 8 left, C; tables 1 to 3 and 9", "fig"))
    [3, 6, 8]
    """
    found: set[int] = set()
    for word, listed in _LIST.findall(text):
        if word == kind:
            for first, last in re.findall(r"(\d+)[A-Za-z]?(?: to (\d+))?", listed):
                found |= {*range(int(first), int(last or first) + 1)}
    return found


def blocks(paper: str) -> str:
    """The commands of a paper, `# ID` before those of each row."""
    return "".join(re.findall(r"^```sh\n(.*?)^```$", section(paper), re.DOTALL | re.MULTILINE))


@cache
def calls(paper: str, folder: Path) -> list[Call]:
    """What the commands of a paper call, bash having expanded loops and variables in `folder`, the runs made there."""
    programs, record = folder / "programs", folder / f"{paper}.calls"
    programs.mkdir(exist_ok=True)
    for name in PROGRAMS:
        (programs / name).write_text(RECORDER)
        (programs / name).chmod(0o755)
    if not (folder / "docs").exists():
        (folder / "docs").symlink_to(ROOT / "docs")
    record.touch()
    script = re.sub(r"^# ([A-Z]\d+)\b.*$", r"export ROW=\1", blocks(paper), flags=re.MULTILINE)
    environment = {"PATH": f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin", "CALLS": str(record), "ROW": ""}
    done = subprocess.run(
        ["bash", "-eu", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    words = record.read_bytes().decode().split("\0")[:-1]
    found = []
    while words:
        count, row, program, words = int(words[0]), words[1], words[2], words[3:]
        found.append(Call(row, program, tuple(words[:count])))
        words = words[count:]
    return found


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
