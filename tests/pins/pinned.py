"""Files of pinned lines, one section a subject: compared with what is, or written again."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from pathlib import Path

DATA = Path(__file__).parent / "data"
HEAD = "== "
RENEW = "If this change is meant: 'python -m pytest tests/pins --write-pins -n 0', and the commit says why."


def joined(found: Iterable[Iterable[str]], between: str = ": ") -> list[str]:
    """A line for each value, after the names next to each other that have it."""
    return [
        f"{', '.join(name for name, _ in rows)}{between}{value}"
        for value, rows in groupby(map(tuple, found), key=itemgetter(1))
    ]


class Pinned:
    """The pins of `data/`. A file holds sections in alphabetical order: `== name`, then its lines."""

    def __init__(self, write: bool = False, folder: Path = DATA):
        self.write, self.folder, self.files = write, folder, dict[str, dict[str, list[str]]]()

    def sections(self, file: str) -> dict[str, list[str]]:
        """The sections of a file, by name; none where there is no file."""
        if file not in self.files:
            path = self.folder / file
            self.files[file] = found = {}
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            for line in lines:
                if line.startswith(HEAD):
                    found[line.removeprefix(HEAD)] = []
                else:
                    found[list(found)[-1]].append(line)
        return self.files[file]

    def check(self, file: str, section: str, lines: list[str]) -> None:
        """Raises AssertionError with a diff where the lines of a section are not those that are pinned."""
        known = self.sections(file)
        if self.write:
            if known.get(section) != lines:
                known[section] = lines
                self._save(file)
            return
        assert section in known, f"{file} has no pin of '{section}'. {RENEW}"
        if known[section] != lines:
            diff = difflib.unified_diff(known[section], lines, "pinned", "now", lineterm="", n=1)
            raise AssertionError("\n".join([f"{file}: '{section}' is not as pinned. {RENEW}", *diff]))

    def only(self, file: str, sections: list[str]) -> None:
        """Raises AssertionError where a file pins what there is no more."""
        known = self.sections(file)
        gone = sorted({*known} - {*sections})
        if self.write and gone:
            for name in gone:
                del known[name]
            self._save(file)
        elif not self.write:
            assert gone == [], f"{file} pins what is gone: {', '.join(gone)}. {RENEW}"

    def _save(self, file: str) -> None:
        lines = [line for name, body in sorted(self.files[file].items()) for line in (f"{HEAD}{name}", *body)]
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / file).write_text("\n".join([*lines, ""]), encoding="utf-8")
