"""The shipped designs with the notes, remarks and parents in their files. Each design is read once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from pathlib import Path

from tensornet_attn import compiler
from tensornet_attn.cost.report import Report
from tensornet_attn.graph import Graph, build
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.ir.arithmetic import Number
from tensornet_attn.spec import Design, library
from tensornet_attn.spec.design import SECTIONS
from tensornet_attn.spec.sources import file_document

AGAINST, AGAINST_WITHOUT_KEYS = "mhsa", "mlp"  # baselines of costs, with and without a key leg
_SECTION = re.compile(rf"({'|'.join((*SECTIONS, 'contains'))}):")
_REMARK = re.compile(r"\s#\s*(.*)$")


@dataclass(frozen=True)
class CatalogueEntry:
    """One design. `path` is its file, or None for a resized baseline."""

    design: Design
    path: Path | None = None
    costs: dict[int, Report] = field(default_factory=dict, compare=False)  # by length

    @property
    def name(self) -> str:
        return self.design.name

    @property
    def family(self) -> str:
        return library.family_of(self.name)

    @property
    def title(self) -> str:
        """`mhsa (f = 512, h = 8)`: the name, and the sizes that are numbers in the file."""
        legs = [leg for leg in self.graph.legs if isinstance(leg.text, Number)]
        return f"{self.name} ({', '.join(f'{leg.name} = {leg.size}' for leg in legs)})"

    @cached_property
    def graph(self) -> Graph:
        return build(self.design)

    def cost(self, n: int) -> Report:
        """The costs of one sequence in float32 at query length n, and at key length n if its leg allows it."""
        if n not in self.costs:  # page, plot and index use the same lengths
            self.costs[n] = compiler.cost_of(self.graph, n)
        return self.costs[n]

    @cached_property
    def longest(self) -> int | None:
        """The maximum length, or None if there is none."""
        names = (self.graph.query, self.graph.key if self.graph.tied else None)
        legs = [self.graph.leg[name] for name in names if name is not None]
        return min((leg.maximum for leg in legs if leg.maximum is not None), default=None)

    def at(self, n: int) -> int:
        """This length, or the maximum length of the design if that is less."""
        return n if self.longest is None else min(n, self.longest)

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8") if self.path else ""

    @cached_property
    def parent(self) -> str | None:
        """The design that the file extends: a shipped name, or the stem of a path."""
        extends = file_document(str(self.path))[0].data.get("extends") if self.path else None
        return Path(extends).stem if isinstance(extends, str) else None

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """The comments at the head of the file, by paragraph."""
        return notes_of(self.text)

    def remark(self, section: str, name: str) -> str:
        """The comment on the line that declares a leg, setting or tensor."""
        location = self.design.document.keys.get((section, name))
        match = _REMARK.search(location.file.lines[location.line]) if location else None
        return match[1] if match else ""


def notes_of(source: str) -> tuple[str, ...]:
    """The comments before the first section of a file, joined to paragraphs. An empty `#` separates paragraphs.

    >>> notes_of("name: a\\n# One note\\n# on two lines.\\nextends: b\\n# Another.\\nlegs:\\n# no note\\n")
    ('One note on two lines.', 'Another.')
    """
    paragraphs: list[list[str]] = [[]]
    for line in source.splitlines():
        if _SECTION.match(line):
            break
        words = line.lstrip("#").strip() if line.startswith("#") else ""
        if words:
            paragraphs[-1].append(words)
        elif paragraphs[-1]:
            paragraphs.append([])
    return tuple(" ".join(lines) for lines in paragraphs if lines)


class Catalogue:
    """All shipped designs by name, in alphabetical order."""

    def __init__(self) -> None:
        self.entries = {name: CatalogueEntry(compiler.load(name), library.path_of(name)) for name in library.names()}
        self._resized: dict[tuple[str, int], CatalogueEntry] = {}

    def __iter__(self) -> Iterator[CatalogueEntry]:
        return iter(self.entries.values())

    def families(self) -> dict[str, list[CatalogueEntry]]:
        names = sorted({entry.family for entry in self})
        return {name: [entry for entry in self if entry.family == name] for name in names}

    def ancestors(self, entry: CatalogueEntry) -> Iterator[str]:
        """The ancestors of a design, from the nearest."""
        while entry.parent in self.entries:
            entry = self.entries[entry.parent]
            yield entry.name

    def holders(self, name: str) -> list[str]:
        """The designs with this design under `contains`."""
        return [entry.name for entry in self if name in entry.design.contains]

    def against(self, entry: CatalogueEntry) -> CatalogueEntry | None:
        """The baseline of a design's costs, at the width of its first input, or None for the baseline itself."""
        name = AGAINST if entry.graph.key else AGAINST_WITHOUT_KEYS
        if entry.name == name or name not in self.entries:
            return None
        sizes = [size_of(entry.graph, leg) for leg in entry.graph.of_role("input")[0].legs]
        width = [1, *(size for size in sizes if size is not None)][-1]
        if (name, width) not in self._resized:
            self._resized[name, width] = CatalogueEntry(_resized(self.entries[name].graph, width))
        return self._resized[name, width]


def _resized(graph: Graph, width: int) -> Design:
    """A shipped design at another input width. Numbers of heads are reduced to divisors of the width."""
    sizes = {graph.of_role("input")[0].legs[-1]: width}
    sizes |= {leg.name: gcd(leg.size or 1, width) for leg in graph.legs if leg.kind == "head"}
    return compiler.load(graph.name, legs=sizes)
