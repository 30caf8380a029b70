"""A look into a space: its size, samples with their costs, as text, as JSON, and as a page with pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

from tensornet_attn import compiler
from tensornet_attn.analyse import html
from tensornet_attn.compare.look import STYLE
from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.search.build import Proposal
from tensornet_attn.search.count import Size, every, size_of
from tensornet_attn.search.path import to_text
from tensornet_attn.search.price import COSTS
from tensornet_attn.search.propose import propose
from tensornet_attn.search.space import Space

TIRED = 24  # proposals that are known already, one after the other, until no more are asked for


@dataclass(frozen=True)
class Survey:
    """What a space holds: its size, and different proposals of one seed."""

    space: Space
    size: Size
    samples: tuple[Proposal, ...]

    def ranges(self) -> dict[str, tuple[int, float, int]]:
        """The least, median and greatest of each cost among the samples."""
        found = {cost: [getattr(sample.price, cost) for sample in self.samples] for cost in COSTS}
        return {cost: (min(values), median(values), max(values)) for cost, values in found.items()}

    def as_dict(self) -> dict[str, Any]:
        bounds = self.space.bounds
        return {
            "space": self.space.name,
            "hash": self.space.hash,
            "size": self.size.count,
            "exact": self.size.exact,
            "n": bounds.n,
            "batch": bounds.batch,
            "ranges": {c: dict(zip(("least", "median", "most"), r, strict=True)) for c, r in self.ranges().items()},
            "samples": [sample.as_dict() for sample in self.samples],
        }

    def to_text(self) -> str:
        """What people read."""
        rows = [["", *(cost.replace("_", " ") for cost in COSTS)]]
        for place, word in enumerate(("least", "median", "most")):
            rows.append([word, *(f"{found[place]:,.0f}" for found in self.ranges().values())])
        rows.append(["bounds", *self._bounds()])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = (
            "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        )
        paths = (f"  {to_text(sample.path)}" for sample in self.samples)
        return "\n".join([*self._lines(), "", *table, "", f"{len(self.samples)} samples:", *paths])

    def _lines(self) -> Iterator[str]:
        space = self.space
        about = f": {space.about}" if space.about else ""
        yield f"{space.name}{about}"
        yield f"bases: {', '.join(space.bases)}"
        varies = [*space.legs, *space.settings, *space.alternatives]
        yield f"varies: {', '.join(varies) or 'nothing'}"
        moves = f"{', '.join(space.moves)}; at most {space.most} of them" if space.moves else "none"
        yield f"moves: {moves}"
        yield f"size: {self.size.to_text()}"
        yield f"costs at n = {space.bounds.n}, batch {space.bounds.batch}, of the samples below"

    def _bounds(self) -> Iterator[str]:
        limits = {name: (least, most) for name, least, most in self.space.bounds.limits}
        for cost in COSTS:
            least, most = limits.get(cost, (0, float("inf")))
            words = [
                f"{word} {end:,.0f}"
                for word, end, free in ((">=", least, 0), ("<=", most, float("inf")))
                if end != free
            ]
            yield " ".join(words) or "free"

    def to_html(self) -> str:
        """A page of HTML in one file, with a picture of each sample where Graphviz is there."""
        head = [*self._lines()]
        body = [html.heading(1, head[0]), *(html.paragraph(line, "note") for line in head[1:])]
        ranges = self.ranges()
        rows = [[word, *(f"{ranges[c][i]:,.0f}" for c in COSTS)] for i, word in enumerate(("least", "median", "most"))]
        rows.append(["bounds", *self._bounds()])
        body.append(html.table(["", *(cost.replace("_", " ") for cost in COSTS)], rows, "Costs of the samples."))
        cards = "".join(_card(sample) for sample in self.samples)
        body += [html.heading(2, "Samples"), f'<div class="designs">{cards}</div>']
        return html.page(self.space.name, body, STYLE)


def survey(space: Space, samples: int = 12, seed: int = 0) -> Survey:
    """Looks into a space. Raises InputError where no proposal of it is valid and within bounds."""
    if samples < 1:
        raise InputError(f"'samples' is a whole number from 1, {samples} given.")
    found: dict[str, Proposal] = {}
    number = known = 0
    while len(found) < samples and known < TIRED:
        proposal = propose(space, seed, number)
        known = known + 1 if proposal.essence in found else 0
        found.setdefault(proposal.essence, proposal)
        number += 1
    size = size_of(space)
    if size.exact and len(found) < min(samples, size.count):  # what is drawn seldom
        for proposal in every(space):
            found.setdefault(proposal.essence, proposal)
    return Survey(space, size, tuple(found.values())[:samples])


def _card(sample: Proposal) -> str:
    """A sample: its picture, or why there is none, its path and its costs; its YAML folded away."""
    costs = ", ".join(f"{cost.replace('_', ' ')} {getattr(sample.price, cost):,}" for cost in COSTS)
    try:
        drawing = compiler.picture(sample.design, "svg").decode()
    except MissingPartError as error:
        drawing = html.paragraph(f"No picture: {error}", "note")
    words = f"<b>{escape(to_text(sample.path))}</b><br>{escape(costs)}"
    text = f"<details><summary>YAML</summary><pre>{escape(sample.design.to_yaml())}</pre></details>"
    return f'<figure class="card"><div>{drawing}</div><figcaption>{words}{text}</figcaption></figure>'
