"""Draws the figures of hand-written pages into docs/site/pictures: `python docs/site/site_pictures.py [--trained]`.

A picture `site/pictures/NAME.svg` shows the design NAME that its page defines; tests/site compares its mark. The
figures of docs/concepts follow hard_fish and mhsa_core through the compiler. `--trained` also trains the tutorial's
design, which takes a minute, and plots its map.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import graphviz

from tensornet_attn import compiler
from tensornet_attn.draw import to_svg
from tensornet_attn.draw.render import layout
from tensornet_attn.graph import Graph, build
from tensornet_attn.rewrite.whole import simplified

DOCS = Path(__file__).resolve().parents[1]
PICTURES = DOCS / "site" / "pictures"
EXAMPLE = "hard_fish"
PALETTE = ("#8ecae6", "#ffb703", "#b7e4c7", "#f4acb7", "#cdb4db")
_DESIGN = re.compile(r"^```yaml\n(tensornet: 1\nname: (\w+)\n.*?)^```$", re.DOTALL | re.MULTILINE)


def page_designs() -> Iterator[tuple[str, Graph, str | None]]:
    """The designs of pages that show a picture of their own: name, graph, and the line about it."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for source, name in _DESIGN.findall(text):
            if f"site/pictures/{name}.svg" in text:
                design = compiler.load(source)
                yield name, build(design), design.about or None


def flow(graph: Graph, regions: dict[str, str] | None = None) -> str:
    """The steps of a graph with the tensors they read; steps of one region have one colour, and a legend names it."""
    dot = graphviz.Digraph(graph_attr={"rankdir": "TB", "nodesep": "0.25", "ranksep": "0.45", "bgcolor": "white"})
    dot.attr("node", fontname="Helvetica", fontsize="12", margin="0.12,0.06")
    dot.attr("edge", fontname="Helvetica", fontsize="10", arrowsize="0.6", color="#666666")
    regions = regions or {}
    colours = dict(zip(dict.fromkeys(regions.values()), PALETTE, strict=False))
    steps = {step.name for step in graph.steps}
    drawn = set()
    for step in graph.steps:
        region = regions.get(step.name)
        label = f"{step.name}[{' '.join(step.legs)}]" + (f"\n{region}" if region else "")
        dot.node(step.name, label, shape="box", style="rounded,filled", fillcolor=colours.get(region or "", "#eef2f6"))
        for use in step.op.uses:
            if use.name not in steps and use.name not in drawn:
                drawn.add(use.name)
                dot.node(use.name, use.name, shape="ellipse", style="filled", fillcolor="white")
            dot.edge(use.name, step.name, " ".join(use.legs))
    svg = layout(dot.source, "svg").decode("utf-8")
    return svg[svg.index("<svg") :]


def concepts() -> Iterator[tuple[str, str]]:
    """The figures of docs/concepts by name."""
    graph = build(compiler.load(EXAMPLE))
    yield "graph", flow(graph)
    before = build(compiler.load("mhsa_core", legs={"f": 512}))
    yield "before", to_svg(before, title="as written")
    yield "after", to_svg(simplified(before)[0], title="simplified")
    plan = compiler.plan_of(graph)
    words = {step: region.chosen.partition(":")[0] for region in plan.regions for step in region.steps}
    yield "plan", flow(graph, words)
    yield "kernel", kernel()


def kernel() -> str:
    """One program of the forward kernel over queries x keys: its block of queries, its loop over blocks of keys."""
    side, count, left, top, row = 40, 7, 120, 60, 3
    middle, right, below = top + side * count / 2, left + side * count + 12, top + side * count

    def words(x: float, y: float, text: str, more: str = "") -> str:
        return f'<text x="{x}" y="{y}" {more}>{text}</text>'

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 400" width="600"',
        'font-family="Helvetica,Arial,sans-serif" font-size="14" role="img" aria-label="Blocks of queries and keys">',
        '<rect width="600" height="400" fill="white"/>',
        words(left + side * count / 2, 40, "keys m, in blocks", 'text-anchor="middle"'),
        words(40, middle, "queries n, in blocks", f'text-anchor="middle" transform="rotate(-90 40 {middle})"'),
    ]
    for i in range(count):
        for j in range(count):
            colour = "#f1f3f5" if j > i else ("#ffb703" if i == row and j == 1 else "#8ecae6" if i == row else "white")
            place = f'x="{left + side * j}" y="{top + side * i}" width="{side}" height="{side}"'
            parts.append(f'<rect {place} fill="{colour}" stroke="#888"/>')
    y = top + side * row
    arrow = f"M{left + 8} {y + side / 2}H{left + side * (row + 1) - 10}"
    parts += [
        '<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">',
        '<path d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<path d="{arrow}" stroke="black" stroke-width="2" marker-end="url(#head)"/>',
        words(left - 10, y + 25, "program", 'text-anchor="end"'),
        words(right, y + 17, "holds Q[g], running max,"),
        words(right, y + 35, "sum and output[h]"),
        words(right, top + 17, "grey: hidden by a", 'fill="#666"'),
        words(right, top + 35, "causal mask, not visited", 'fill="#666"'),
        words(left, below + 28, "orange: one tile: S[g] = Q[g] K[g], A[h] = sum over g of P[g h] S[g],"),
        words(left + 56, below + 48, "then output[h] += exp(A[h] - max) V[h]"),
        "</svg>",
    ]
    return "\n".join(parts)


def trained_map() -> bytes:
    """The attention map of the tutorial's design after the tutorial's training, as PNG."""
    sys.path.insert(0, str(DOCS.parent))
    from tests.doc_blocks import run_python, write_designs

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_designs(DOCS / "tutorial.md", Path(folder))
        for _ in run_python(DOCS / "tutorial.md"):
            pass
        return Path("maps.png").read_bytes()


def main(arguments: list[str]) -> int:
    """Writes all figures."""
    PICTURES.mkdir(exist_ok=True)
    for name, graph, about in page_designs():
        (PICTURES / f"{name}.svg").write_text(to_svg(graph, title=name, about=about), encoding="utf-8")
    for name, svg in concepts():
        (PICTURES / f"concept-{name}.svg").write_text(svg, encoding="utf-8")
    if "--trained" in arguments:
        (PICTURES / "recall-map.png").write_bytes(trained_map())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
