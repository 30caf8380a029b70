"""The fenced blocks of README.md and docs/: found, completed where they are fragments, and run.

| block | what happens |
| --- | --- |
| `yaml` that begins with `tensornet:` or `space:` | a whole design, model or space: the checker must find nothing |
| `yaml` after `<!-- in: NAME -->` | a child of the design NAME, shipped or on the page: `complete` |
| `yaml` after `<!-- mistaken -->` | a whole design with a mistake; the `text` block after it is the checker's answer |
| `python` | run, all of a page in one namespace; a `text` block right after it is what it prints |
| `python` after `<!-- file: NAME.py -->` | a module beside the designs, for commands and other Python blocks |
| `console` | each `$ command` is run beside the page's designs; what follows is its output, `...` for anything |
| `sh` | not run (installation); its make targets must exist |
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if p.parent.name not in ("designs", "playground")),
]
_BLOCK = re.compile(r"(?:^<!-- ((?:(?!-->).)*?)\s*-->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"^name: (\w+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block; `start` is where its text stands in the page."""

    page: Path
    line: int
    language: str
    note: str
    text: str
    start: int

    @property
    def id(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def kind(self) -> str:
        """`design`, `fragment`, `mistaken`, or the language."""
        if self.language != "yaml":
            return self.language
        if self.note.startswith("in:"):
            return "fragment"
        return "mistaken" if self.note == "mistaken" else "design"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        found.append(Block(page, line, match[2], match[1] or "", match[3], match.start(3)))
    return found


def all_blocks(kind: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.kind == kind]


def after(block: Block) -> Block | None:
    """The `text` block right after this one, if nothing but blank lines stands between."""
    page = block.page.read_text(encoding="utf-8")
    end = block.start + len(block.text) + len("```\n")
    for other in blocks(block.page):
        if other.language == "text" and other.start > end and not page[end : other.start - len("```text\n")].strip():
            return other
    return None


def name_of(block: Block) -> str:
    match = _NAME.search(block.text)
    assert match, f"{block.id}: this design has no name"
    return match[1]


def write_designs(page: Path, folder: Path) -> None:
    """The page's whole designs and modules as files, so that fragments, commands and Python blocks can use them."""
    for block in blocks(page):
        if block.note.startswith("file:"):
            (folder / block.note.removeprefix("file:").strip()).write_text(block.text, encoding="utf-8")
        if block.kind in ("design", "mistaken"):
            (folder / f"{name_of(block)}.yaml").write_text(block.text, encoding="utf-8")


def complete(block: Block, folder: Path) -> Path:
    """Writes the design a fragment stands for: the parent, what the note adds unseen, then the block itself.

    `<!-- in: mhsa/diagram -->` puts the block under `diagram`; further lines of the comment are YAML that nobody sees.
    """
    head, _, unseen = block.note.removeprefix("in:").partition("\n")
    parent, _, section = head.strip().partition("/")
    parent = f"./{parent}.yaml" if (folder / f"{parent}.yaml").exists() else parent
    lines = block.text.splitlines(keepends=True)
    shown = f"{section}:\n" + "".join(f"  {line}" for line in lines) if section else block.text
    (folder / "unseen.yaml").write_text(_child(parent, unseen), encoding="utf-8")
    path = folder / "fragment.yaml"
    path.write_text(_child("./unseen.yaml", shown), encoding="utf-8")
    return path


def _child(parent: str, text: str) -> str:
    return f"tensornet: 1\nname: fragment\nextends: {parent}\n{text}\n"


def run_python(page: Path) -> Iterator[tuple[Block, str]]:
    """Each Python block of a page with what it printed."""
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page):
        if block.language == "python" and not block.note:
            code = compile(
                "\n" * block.line + block.text, str(page), "exec"
            )  # so that a traceback names the page's line
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(code, namespace)
            yield block, printed.getvalue()


def run_console(block: Block, folder: Path) -> str:
    """The block with each command's real output in place of the one shown."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    shown = []
    for part in re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE):
        if not part.strip():
            continue
        line, _, expected = part.partition("\n")
        command = ["bash", "-c", line.removeprefix("$ ")]
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert not re.search("^Traceback|command not found", done.stdout, re.MULTILINE), f"{block.id}: {done.stdout}"
        output = expected if matches(expected, done.stdout) else done.stdout
        shown.append(f"{line}\n{output}")
    return "".join(shown)


def matches(expected: str, output: str) -> bool:
    """Whether an output is as shown; `...` stands for any text, as in doctest."""
    pattern = ".*".join(re.escape(piece) for piece in expected.rstrip("\n").split("..."))
    return re.fullmatch(pattern, output.rstrip("\n"), re.DOTALL) is not None


def rewrite(block: Block, text: str) -> None:
    """Puts a text in place of a block's; the caller reads the page again before the next."""
    page = block.page.read_text(encoding="utf-8")
    end = block.start + len(block.text)
    assert page[block.start : end] == block.text
    block.page.write_text(page[: block.start] + text + page[end:], encoding="utf-8")
