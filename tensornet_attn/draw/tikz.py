"""Writes a picture as a `tikzpicture` for LaTeX, with the layout and looks of the other formats.

It needs only the package tikz. Include it with `\\input`, inside `\\resizebox` for narrow columns. Lengths are in bp
(1/72 inch).
"""

from __future__ import annotations

from collections.abc import Mapping

from tensornet_attn.draw.kept import NOTHING, Marks
from tensornet_attn.draw.layout import Rectangle
from tensornet_attn.draw.looks import DOUBLED, LEG, NODE, TITLE, node_look
from tensornet_attn.draw.overlay import NONE, Overlay
from tensornet_attn.draw.picture import HEAD, Picture, picture_of
from tensornet_attn.draw.themes import GROUND, INK, LIGHT, Theme
from tensornet_attn.draw.words import plain
from tensornet_attn.graph.graph import Graph

_SIGNS = {c: f"\\{c}" for c in "#$%&_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "*": "$*$",
    "\N{MINUS SIGN}": "$-$",
}


def to_tikz(
    graph: Graph,
    title: str | None = None,
    about: str | None = None,
    kept: Marks = NOTHING,
    *,
    theme: Theme = LIGHT,
    overlay: Overlay = NONE,
) -> str:
    """The `tikzpicture` of a diagram. `kept`: marks of steps, from `kept_marks`. `overlay`: the plan or the cost."""
    picture = picture_of(graph, title, kept, overlay)
    lines = [f"% {plain(comment)}" for comment in (picture.title, about) if comment]
    lines += [r"% In the preamble: \usepackage{tikz}"]
    lines += [r"\begin{tikzpicture}[x=1bp, y=-1bp, line width=1bp, inner sep=0, font=\sffamily]"]
    return "\n".join([*lines, *_TikzWriter(picture, theme).lines(), r"\end{tikzpicture}"]) + "\n"


def latex(text: str) -> str:
    """Escapes the special characters of LaTeX.

    >>> latex("d_k <= 64")
    'd\\\\_k $<$= 64'
    """
    return "".join(_SIGNS.get(c, c) for c in plain(text))


class _TikzWriter:
    """Writes frames, then wires, then nodes, because later shapes cover earlier ones."""

    def __init__(self, picture: Picture, theme: Theme):
        self.picture, self.theme = picture, theme
        self.colours: dict[str, str] = {}

    def lines(self) -> list[str]:
        picture, layout = self.picture, self.picture.layout
        drawn = [self.ground()] if self.theme.ground != GROUND else []
        for frame in picture.scene.frames:
            spot = layout.frames[frame.id]
            drawn.append(self.shape({"shape": "box", **picture.frame_look(frame)}, spot))
            if frame.id in layout.titles:
                drawn.append(self.text(layout.titles[frame.id], frame.words, TITLE[frame.look]))
        for curve in layout.curves:
            start, *others = (f"({x:.1f},{y:.1f})" for x, y in curve.points)
            pieces = zip(*(iter(others),) * 3, strict=True)
            path = "".join(f" .. controls {a} and {b} .. {c}" for a, b, c in pieces)
            drawn.append(rf"\draw[{self.options(picture.edge_look(curve.edge))}] {start}{path};")
        for node in picture.scene.nodes:
            drawn += self.node(node_look(node), layout.nodes[node.id], node.label)
        for spot, edge in layout.labels.values():
            drawn.append(self.text(spot, [edge.label], LEG))
        for entry in picture.legend:
            drawn += self.node(entry.look, entry.spot, entry.label)
        drawn.append(self.text(Rectangle(picture.width / 2, -HEAD / 2, picture.width, HEAD), [picture.title], NODE))
        return [rf"\definecolor{{{name}}}{{HTML}}{{{html}}}" for html, name in self.colours.items()] + drawn

    def ground(self) -> str:
        colour = self.colour(self.theme.ground)
        size = f"({self.picture.width + 4:.1f},{self.picture.height + 4:.1f})"
        return rf"\fill[{colour}] (-4,{-HEAD - 4:.1f}) rectangle {size};"

    def node(self, look: Mapping[str, str], spot: Rectangle, label: str) -> list[str]:
        if look.get("shape") == "plain":
            return [self.text(spot, [label], LEG)]
        if look.get("style") == "invis":
            return []
        shapes = []
        if look.get("peripheries") == "2":  # the size includes the outer outline
            shapes.append(self.shape(look, spot))
            outer = DOUBLED["state"]
            spot = Rectangle(spot.x, spot.y, spot.width - outer, spot.height - outer)
        shapes.append(self.shape({"style": "filled", "fillcolor": GROUND, **look}, spot))
        shown = look.get("label", label)
        bold = look.get("fontname", "").endswith("Bold")
        return shapes + ([self.text(spot, [shown], float(look.get("fontsize", NODE)), bold)] if shown else [])

    def shape(self, look: Mapping[str, str], spot: Rectangle) -> str:
        """An ellipse or a rectangle."""
        if look.get("shape") != "box":
            radii = f"x radius={spot.width / 2:.1f}, y radius={spot.height / 2:.1f}"
            return rf"\draw[{self.options(look)}] ({spot.x:.1f},{spot.y:.1f}) ellipse[{radii}];"
        low = f"({spot.x - spot.width / 2:.1f},{spot.top:.1f})"
        high = f"({spot.x + spot.width / 2:.1f},{spot.bottom:.1f})"
        return rf"\draw[{self.options(look)}] {low} rectangle {high};"

    def options(self, look: Mapping[str, str]) -> str:
        styles = look.get("style", "").split(",")
        settings = [f"draw={self.colour(look.get('color', INK))}", f"line width={float(look.get('penwidth', 1)):g}bp"]
        settings += [style for style in ("dashed", "dotted") if style in styles]
        settings += ["rounded corners=5bp"] if "rounded" in styles else []
        settings += [f"fill={self.colour(look['fillcolor'])}"] if "filled" in styles and "fillcolor" in look else []
        return ", ".join(settings)

    def text(self, spot: Rectangle, words: list[str] | tuple[str, ...], size: float, bold: bool = False) -> str:
        font = rf"\fontsize{{{size:g}bp}}{{{1.2 * size:g}bp}}\selectfont\sffamily" + r"\bfseries" * bold
        ink = self.colour(self.theme.colour(INK))
        lines = r"\\".join(map(latex, words))
        return rf"\node[text={ink}, align=center, font={font}] at ({spot.x:.1f},{spot.y:.1f}) {{{lines}}};"

    def colour(self, colour: str) -> str:
        """The name of a colour of the theme in the picture. Named colours of LaTeX are unchanged."""
        shown = self.theme.colour(colour)
        if not shown.startswith("#"):
            return shown
        return self.colours.setdefault(shown[1:].upper(), f"tn{len(self.colours) + 1}")
