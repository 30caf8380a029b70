"""SVG that screen readers can read, and files that appear whole or not at all."""

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from tensornet_attn.draw import draw, render, to_dot, to_mermaid, to_png, to_svg, to_text, to_tikz
from tensornet_attn.errors import MissingPartError, TensornetError
from tensornet_attn.graph.graph import Graph
from tests.refusals import refusal

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = 'a "b" & <script>alert(1)</script> ]]>\x00\n--> end'


def test_svg_has_title_and_description(mixed: Graph) -> None:
    root = ET.fromstring(to_svg(mixed, title=HOSTILE, about=HOSTILE))
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert title.text == 'a "b" & <script>alert(1)</script> ]]> --> end'
    assert desc is not None
    assert desc.text is not None
    assert desc.text.startswith(f"{title.text} A tensor diagram: ")
    assert "Core: P (trainable)." in desc.text
    assert "A[h n m] = softmax over m of d ** -0.5 * P[g h] Q[n g d] K[m g d]" in desc.text
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-labelledby"].split() == [title.attrib["id"], desc.attrib["id"]]
    assert len(root.findall(f".//{SVG}title")) == 1  # no node has its internal name as a tooltip


def test_svg_draws_every_wire(mixed: Graph) -> None:
    root = ET.fromstring(to_svg(mixed))
    drawn = [group for group in root.iter(f"{SVG}g") if "edge" in group.get("class", "").split()]
    lines = [line for line in to_dot(mixed).splitlines() if " -- " in line and "style=invis" not in line]
    assert len(drawn) == len(lines)
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {"x", "P", "Wq", "A: softmax over m", "scale = d ** -0.5", "Q", "K", "V", "y[n f]"} <= texts


def test_same_bytes_twice(plain: Graph) -> None:
    assert to_svg(plain) == to_svg(plain)
    assert to_png(plain) == to_png(plain)


CONTENTS: list[tuple[str, Callable[[Graph], str]]] = [
    ("svg", to_svg),
    ("dot", to_dot),
    ("mmd", to_mermaid),
    ("tex", to_tikz),
    ("txt", to_text),
]


@pytest.mark.parametrize(("suffix", "content"), CONTENTS)
def test_the_suffix_chooses(plain: Graph, tmp_path: Path, suffix: str, content: Callable[[Graph], str]) -> None:
    path = tmp_path / f"picture.{suffix}"
    assert draw(plain, path) == path
    assert path.read_text(encoding="utf-8") == content(plain)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_format_overrides_the_suffix(plain: Graph, tmp_path: Path) -> None:
    path = draw(plain, str(tmp_path / "picture.out"), "png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert draw(plain, tmp_path / "UPPER.TXT").read_text(encoding="utf-8") == to_text(plain)


def test_an_unknown_suffix_names_the_known_ones(plain: Graph, tmp_path: Path) -> None:
    path = tmp_path / "picture.jpeg"
    message = refusal(draw, plain, path)
    known = "known here: dot, mmd, png, svg, tex, txt."
    assert message == f"cannot draw to '{path}': no picture format 'jpeg'; {known}"
    assert refusal(draw, plain, path, "sgv") == f"cannot draw to '{path}': no picture format 'sgv'; did you mean 'svg'?"
    wrong = f"no suffix that names a picture format; {known}"
    assert refusal(draw, plain, tmp_path / "picture") == f"cannot draw to '{tmp_path / 'picture'}': {wrong}"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory(plain: Graph, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "picture.txt"
    assert refusal(draw, plain, path) == f"cannot write '{path}': there is no directory '{path.parent}'."


def test_a_failure_leaves_the_old_file(plain: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "picture.txt"
    path.write_text("old")

    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert refusal(draw, plain, path) == f"cannot write '{path}': No space left on device."
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["picture.txt"]


def test_a_directory_in_the_way(plain: Graph, tmp_path: Path) -> None:
    path = tmp_path / "picture.txt"
    path.mkdir()
    assert refusal(draw, plain, path) == f"cannot write '{path}': is a folder, not a file."
    assert [entry.name for entry in tmp_path.iterdir()] == ["picture.txt"]


def test_without_graphviz(plain: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render.shutil, "which", lambda name: None)
    monkeypatch.setattr(render, "find_spec", lambda name: None)
    with pytest.raises(MissingPartError) as caught:
        to_svg(plain)
    assert str(caught.value) == (
        "drawing SVG and PNG needs Graphviz: `pip install 'tensornet-attn[draw]'` (pygraphviz 2.0 and later include "
        "it), "
        "or install Graphviz so that `dot` is on the PATH."
    )


@pytest.mark.parametrize(("body", "said"), [("echo broken >&2; exit 1", "(broken)"), ("exec sleep 9", "within 1 s")])
def test_a_layout_that_fails_or_hangs(
    plain: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, said: str
) -> None:
    dot = tmp_path / "dot"
    dot.write_text(f"#!/bin/sh\n{body}\n")
    dot.chmod(0o755)
    monkeypatch.setattr(render.shutil, "which", lambda name: str(dot))
    monkeypatch.setattr(render, "SECONDS", 1)
    with pytest.raises(TensornetError) as caught:
        to_svg(plain)
    assert said in str(caught.value)
    assert str(caught.value).endswith("draw to '.dot', '.mmd' or '.txt' instead.")
