"""Nothing in a picture overlaps, every label stands at its own wire, and all designs face the same way."""

import random
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.draw import to_svg
from tensornet_attn.draw.flatten import flatten
from tensornet_attn.draw.layout import layout_of
from tensornet_attn.draw.picture import WIDTH
from tensornet_attn.draw.scene import edges
from tensornet_attn.graph import build
from tensornet_attn.spec import load
from tensornet_attn.spec.library import names as list_designs
from tests.draw.geometry import picture_of
from tests.random_design import random_design

SIBLINGS = ("mhsa", "mhsa_core", "thsa", "thsa_low_rank", "skip_left", "skip_right", "trainable_heads_only")


@pytest.mark.parametrize("name", list_designs())
def test_shipped_designs_have_clean_pictures(name: str) -> None:
    assert picture_of(to_svg(build(load(name)), title=name)).faults() == []


@pytest.mark.parametrize("seed", range(24))
def test_random_designs_have_clean_pictures(seed: int) -> None:
    data = random_design(random.Random(seed))
    if any(problem.severity == "error" for problem in ta.check(data)):
        pytest.skip("one random design in twenty has an error")
    assert picture_of(to_svg(build(load(data)))).faults() == []


@pytest.mark.parametrize("name", SIBLINGS)
def test_siblings_face_the_same_way(name: str) -> None:
    """Queries on the left, keys on the right, then values; the result below."""
    picture = picture_of(to_svg(build(load(name))))
    ((q, high),), ((k, level),), ((v, _),), ((o, low),) = (
        picture.middle(weight) for weight in ("Wq", "Wk", "Wv", "Wo")
    )
    assert q < o < v
    assert q < k < v
    assert high == level < low


@pytest.mark.parametrize("name", list_designs())
def test_legs_leave_every_frame_in_one_order(name: str) -> None:
    scene, wires = edges(flatten(build(load(name))))
    layout = layout_of(scene, wires, WIDTH)
    for frame in scene.frames:
        border = sorted((node for node in scene.held[frame.id] if node.border), key=lambda n: layout.nodes[n.id].x)
        outside = {end: wire.leg.name for wire in scene.wires for end in wire.ends if wire.frame != frame.id}
        legs = [scene.order.index(outside[node.id]) for node in border if node.id in outside]
        assert legs == sorted(legs)


def test_what_one_row_has_no_room_for_takes_several() -> None:
    scene, wires = edges(flatten(build(load("fmm3"))))
    one, several = layout_of(scene, wires, 9_999), layout_of(scene, wires, WIDTH)
    assert several.width < 0.6 * one.width
    assert several.height > one.height


def test_pictures_have_a_white_ground(mixed: Any) -> None:
    svg = to_svg(mixed)
    ground = svg.index('<polygon fill="white" stroke="none"')
    assert ground < svg.index("<text") < svg.index("</svg>")


HEAD = '<svg xmlns="http://www.w3.org/2000/svg"><g class="graph">'
FRAME = '<g class="cluster frame box"><polygon points="0,0 100,0 100,-100 0,-100"/></g>'
SQUARE = '<g class="node constant"><polygon points="40,-60 60,-60 60,-40 40,-40"/></g>'


def text(words: str, x: float, y: float, classes: str = "node") -> str:
    return f'<g class="{classes}"><text text-anchor="middle" x="{x}" y="{y}" font-size="10">{words}</text></g>'


def wire(name: str, x: float, end: float = -90) -> str:
    third = end / 3
    return f'<g class="edge {name}"><path d="M{x},0C{x},{third} {x},{2 * third} {x},{end}"/></g>'


FAULTS = [
    (text("one", 20, -20) + text("other", 30, -22), ["'one' overlaps 'other'"]),
    (FRAME + text("scale", 50, -97), ["'scale' stands on the border of box"]),
    (SQUARE + text("scale", 50, -42), ["'scale' overlaps constant"]),
    (wire("w1", 50) + text("scale", 50, -42), ["wire w1 runs through 'scale'"]),
    (wire("w1", 50) + SQUARE, ["wire w1 runs through constant"]),
    (wire("w1", 50, -38) + text("n", 50, -42, "node leg w1"), []),
    (
        wire("w1", 50, -38) + wire("w2", 54) + text("n", 50, -42, "node leg w1"),
        ["'n' is no nearer to its own wire than to another"],
    ),
    (wire("w1", 50, -30) + text("n", 50, -50, "node leg w1"), ["'n' is no nearer to its own wire than to another"]),
    (wire("w1", 50, -40) + SQUARE, []),
]


@pytest.mark.parametrize(("inside", "faults"), FAULTS)
def test_faults_are_found(inside: str, faults: list[str]) -> None:
    assert picture_of(f"{HEAD}{inside}</g></svg>").faults() == faults
