"""The gallery of the shipped designs: a card each, with figures that the compiler gives when the site is built.

`:::{gallery}` on a page becomes the cards; `static/gallery.js` filters them in the reader's browser.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from jinja2 import Environment, FileSystemLoader
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from docs.generate.catalogue import Catalogue, CatalogueEntry
from tensornet_attn.cost.sizes import LENGTH, human
from tensornet_attn.draw import to_text
from tensornet_attn.errors import InputError
from tensornet_attn.graph import Graph
from tensornet_attn.plan.decoding import as_decoder

BEHIND = 4096  # positions, at which decoding states are compared
STATES = {  # how the decoding state behaves, in the order of the menu
    "grows": "grows with the length",
    "window": "last positions only",
    "fixed": "fixed size",
    "none": "nothing to keep",
    "refused": "no cache",
}
WORK = {"quadratic": "quadratic in the length", "linear": "linear in the length"}


@dataclass(frozen=True)
class Card:
    """What the gallery shows of one design."""

    name: str
    family: str
    about: str
    source: str
    equations: str
    parameters: str
    macs: str
    formula: str
    work: str
    state: str
    kept: str


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directive."""
    app.add_directive("gallery", Gallery)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Gallery(SphinxDirective):
    """All cards with the controls that filter them."""

    def run(self) -> list[nodes.Node]:
        """The gallery as HTML."""
        cards = [card(entry) for entry in Catalogue()]
        templates = Environment(loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True)
        html = templates.get_template("gallery.html.jinja").render(
            cards=cards,
            families=sorted({card.family for card in cards}),
            works=_used(WORK, [card.work for card in cards]),
            states=_used(STATES, [card.state for card in cards]),
            length=LENGTH,
            behind=BEHIND,
        )
        self.env.note_reread()  # it depends on designs, which Sphinx does not watch
        return [nodes.raw("", html, format="html")]


def card(entry: CatalogueEntry) -> Card:
    """The card of one design."""
    report = entry.cost(entry.at(LENGTH))
    state, kept = decoding(entry.graph)
    equations = to_text(entry.graph).partition("\n\n")[2].split("\n\n")
    return Card(
        name=entry.name,
        family=entry.family,
        about=entry.design.about or "",
        source=entry.design.source or "",
        equations=max(equations, key=lambda part: part.count(" = ")),
        parameters=f"{report.written.parameters:,}",
        macs=human(report.best.total.macs),
        formula=report.best.formula,
        work=work(entry.graph, report.best.formula),
        state=state,
        kept=kept,
    )


def work(graph: Graph, formula: str) -> str:
    """`quadratic` where a monomial of the planned multiply-adds has both sequence legs, else `linear`."""
    both = {graph.query, graph.key}
    return "quadratic" if any(both <= {*monomial.split()} for monomial in formula.split(" + ")) else "linear"


def decoding(graph: Graph) -> tuple[str, str]:
    """How the decoding state behaves, a key of STATES, and its size in words."""
    try:
        found = as_decoder(graph)
    except InputError:
        return "refused", "no cache"
    kept = list(found.kept)
    size = f"{human(found.floats(BEHIND))} numbers"
    if not kept:
        return "none", "nothing"
    if any(one.leg is not None and one.reach is None for one in kept):
        return "grows", size
    return ("window" if any(one.leg is not None for one in kept) else "fixed"), size


def _used(words: dict[str, str], found: list[str]) -> dict[str, str]:
    return {key: text for key, text in words.items() if key in found}
