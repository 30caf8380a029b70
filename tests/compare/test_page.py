"""The page: in one file, without network and scripts, every text escaped, every design drawn once."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import tensornet_attn as ta
from tests.compare.folders import folder, model, several

MIXED = [
    {"mixer": {"design": "epa", "legs": {"h": 2, "e": 3}}, "mlp": "mlp"},
    {"mixer": {"design": "mhsa", "legs": {"h": 2}}},
]


def page(tmp_path: Path) -> str:
    paths = several(tmp_path, "a", [0.7, 0.8, 0.9]) + several(tmp_path, "b", [0.2, 0.3, 0.4], model=model("linear"))
    paths += [folder(tmp_path / "c<d>", None, model=model(layers=MIXED)), folder(tmp_path / "e", task="copy")]
    return ta.compare(paths).to_html("<Runs>")


def test_the_page(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "<title>&lt;Runs&gt;</title>" in text
    assert "c&lt;d&gt;" in text
    assert "<script" not in text
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", text)
    assert text.count('class="badge">best<') == 1
    names = re.findall(r"<figcaption><b>(\w+)</b>", text)
    assert names == ["mhsa", "linear", "epa", "mlp"]
    assert "Used by mhsa (layers 1); mhsa (e 3, k 2, l 32, layers 2); mhsa." in text
    assert "tensornet-attn train --seed 2" in text


def test_drawings_are_well_formed_and_their_ids_their_own(tmp_path: Path) -> None:
    text = page(tmp_path)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) > 8
    for drawing in drawings:
        ElementTree.fromstring(drawing.replace("xlink:href", "href"))
    ids = re.findall(r' id="([^"]+)"', text)
    own = [name for name in ids if not re.match(r"(graph|node|edge|clust|a_)", name)]
    assert len(own) == len({*own})
