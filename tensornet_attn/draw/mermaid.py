"""Writes a picture as Mermaid text, which web pages render."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from tensornet_attn.draw.flatten import flatten
from tensornet_attn.draw.kept import NOTHING, Marks
from tensornet_attn.draw.looks import CORE, GREY, KEPT, TRAINED_CORE, kinds
from tensornet_attn.draw.scene import Edge, Scene, SceneNode, edges
from tensornet_attn.draw.words import KINDS, plain
from tensornet_attn.graph.graph import Graph

_SHAPES = {
    "state": '((("{}")))',
    "step": '[["{}"]]',
    "frozen": '["{}"]',
    "constant": '["{}"]',
    "number": '["{}"]',
    "ones": '["{}"]',
    "rule": '["{}"]',
    "kept": '["{}"]',
    "leg": '["{}"]',
    "tap": '("{}")',
}
_SMALL = {"port": "#9679;", "point": "#8226;", "pass": " ", "open": " "}
_LINKS = {"bond": "==="}
_NODE = "fill:#ffffff,stroke:#000000,color:#000000"  # visible on dark pages
_CLASSES = {
    "input": f"{_NODE},stroke-width:4px",
    "weight": f"{_NODE.replace('#ffffff', GREY)}",
    "frozen": f"{_NODE.replace('#ffffff', GREY)}",
    "constant": _NODE,
    "noise": f"{_NODE},stroke-dasharray:5 4",
    "state": _NODE,
    "other": _NODE,
    "core": f"stroke:{CORE['color']},stroke-width:5px,font-weight:bold",
    "tuned": f"fill:{TRAINED_CORE['fillcolor']}",
    "small": "fill:none,stroke:none",
    "kept": f"stroke:{KEPT['color']},stroke-width:4px",
    "softmax": "fill:none,stroke-dasharray:6 4",
    "box": "fill:none",
    "step": "fill:none,stroke:#888888",
    "term": "fill:none,stroke-dasharray:1 3",
    "part": "fill:none,stroke:#888888",
}


def to_mermaid(graph: Graph, title: str | None = None, about: str | None = None, kept: Marks = NOTHING) -> str:
    """The Mermaid flowchart of a diagram; `kept` has the marks of steps."""
    scene, wires = _joined(*edges(flatten(graph, kept)))
    name = _harmless(title or graph.name)
    lines = ["---", f"title: {json.dumps(name, ensure_ascii=False)}", "---", "flowchart TD", f"  accTitle: {name}"]
    lines += [f"  accDescr: {_harmless(about)}"] if about and _harmless(about) else []
    lines += _inside(scene, None, "  ")
    for edge in wires:
        label = f'|"{_quoted(edge.label)}"|' if edge.label else ""
        lines.append(f"  {edge.tail} {_LINKS.get(edge.look, '---')}{label} {edge.head}")
    legend = kinds(scene.nodes, scene.frames)
    lines += ["  subgraph legend", *(f"    {node.id}{_shape(node, words)}" for words, node in legend), "  end"]
    return "\n".join(lines + _styles(scene, [node for _, node in legend])) + "\n"


def _joined(scene: Scene, wires: Iterable[Edge]) -> tuple[Scene, list[Edge]]:
    """Removes the nodes at which wires cross borders of frames, because Mermaid edges can cross them."""
    joined, crossed = list(wires), set()
    for node in [node for node in scene.nodes if node.look == "pass"]:
        ends = [edge for edge in joined if node.id in (edge.tail, edge.head)]
        into, out = ([edge for edge in ends if edge.head == node.id], [edge for edge in ends if edge.tail == node.id])
        if len(into) == len(out) == 1:
            joined[joined.index(into[0])] = replace(into[0], head=out[0].head, label=into[0].label or out[0].label)
            joined.remove(out[0])
            crossed.add(node.id)
    return replace(scene, nodes=tuple(node for node in scene.nodes if node.id not in crossed)), joined


def _harmless(text: str) -> str:
    """The text as one line without characters that start directives, comments or markup."""
    return plain(text.translate(str.maketrans("<>{}%;#`", "()()    ")))


def _quoted(text: str) -> str:
    """The text of a label, with the special characters of Mermaid as entities."""
    return "".join(f"#{ord(c)};" if c in '"#;<>&`%{}' else c for c in plain(text))


def _inside(scene: Scene, frame: str | None, indent: str) -> list[str]:
    lines = [f"{indent}{node.id}{_shape(node, node.label)}" for node in scene.held[frame]]
    for inner in scene.inner[frame]:
        title = ", ".join(_quoted(word) for word in inner.words) or " "
        lines += [f'{indent}subgraph {inner.id}["{title}"]', *_inside(scene, inner.id, indent + "  "), f"{indent}end"]
    return lines


def _shape(node: SceneNode, label: str) -> str:
    if node.look in _SMALL:
        return f'["{_SMALL[node.look]}"]'
    return _SHAPES.get(node.look, '(("{}"))').format(_quoted(label))


def _styles(scene: Scene, legend: list[SceneNode]) -> list[str]:
    """Class definitions, then the members of each class."""
    groups: dict[str, list[str]] = {}
    classes = []
    for node in (*scene.nodes, *legend):
        role = node.look if node.look in KINDS else "other"
        core = ["core"] * node.core + ["tuned"] * (node.core and node.look == "weight")
        core += ["kept"] * (node.look == "kept")
        small = node.look in _SMALL or node.look == "leg"
        classes += [(node.id, name) for name in (["small"] if small else [role, *core])]
    kept = [(frame.id, "kept") for frame in scene.frames if frame.kept]
    for member, group in classes + [(frame.id, frame.look) for frame in scene.frames] + kept + [("legend", "part")]:
        groups.setdefault(group, []).append(member)
    lines = [f"  classDef {look} {_CLASSES[look]}" for look in groups]
    return lines + [f"  class {','.join(ids)} {look}" for look, ids in groups.items()]
