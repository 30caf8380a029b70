"""DOT and Mermaid say what the picture holds, escape every text, and do not change between runs."""

import os
import re
import subprocess
import sys
from itertools import combinations
from typing import Any

import pytest

from tensornet_attn.draw import to_dot, to_mermaid, to_text
from tensornet_attn.draw.flatten import flatten
from tensornet_attn.draw.looks import kinds, node_look
from tensornet_attn.draw.scene import SceneNode
from tensornet_attn.draw.words import KINDS
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Graph
from tensornet_attn.spec import load

HOSTILE = 'a "quoted" <b>\\N</b>\n--> %%{init}%% ; # end\x00'


def test_nodes_and_frames(plain: Graph) -> None:
    source = to_dot(plain)
    assert len(re.findall(r"label=x class=input ", source)) == 3
    assert len(re.findall(r"label=W[qkvo] class=weight ", source)) == 4
    assert "style=dashed" in source
    assert 'label="A: softmax over m\nscale = d ** -0.5"' in source
    assert source.count("class=port") == 1
    assert source.count('label="f = 512"') == 4


def test_the_core_is_marked_by_more_than_colour(mixed: Graph) -> None:
    (line,) = [line for line in to_dot(mixed).splitlines() if "label=P " in line]
    assert "penwidth=2.8" in line
    assert "Helvetica-Bold" in line
    assert "fillcolor" in line


def test_kinds_differ_without_colour() -> None:
    """In shape, line and fill, where a colour is either white or not."""
    looks = [node_look(SceneNode("n", look, "", None, (), core=core)) for look in KINDS for core in (False, True)]
    greys = [{**look, "color": "", "fillcolor": look.get("fillcolor", "white") == "white"} for look in looks]
    assert all(one != other for one, other in combinations(greys, 2))


def test_a_fixed_core_is_drawn_as_a_constant() -> None:
    """Tuformer, figures 4a and 4b: the same diagram, but for what may be trained."""
    fixed, trained = build(load("mhsa_core")), build(load("thsa"))
    core = {graph.name: next(n for n in flatten(graph).nodes if n.label == "C") for graph in (fixed, trained)}
    assert (core["mhsa_core"].look, core["mhsa_core"].core) == ("constant", True)
    assert (core["thsa"].look, core["thsa"].core) == ("weight", True)
    assert [n for n in flatten(fixed).nodes if n.label != "C"] == [n for n in flatten(trained).nodes if n.label != "C"]
    assert re.search(r"label=C class=constant .*shape=box", to_dot(fixed))
    assert re.search(r"label=C class=weight ", to_dot(trained))
    assert re.search(r'n\d+\["C"\]', to_mermaid(fixed))
    assert re.search(r'n\d+\(\("C"\)\)', to_mermaid(trained))
    assert "core      C (constant)\n" in to_text(fixed)
    assert "core      C (trainable)\n" in to_text(trained)


def test_the_legend_has_the_kinds_that_occur(graph_of: Any) -> None:
    graph = graph_of(weights={"Wq": {"legs": "f h d", "frozen": True}})
    assert [words for words, _ in kinds(flatten(graph).nodes)] == ["input", "trainable", "frozen"]
    for words in ("input", "trainable", "frozen"):
        assert f"label={words} class=legend" in to_dot(graph)
    assert 'kfrozen["frozen"]' in to_mermaid(graph)
    assert "noise" not in to_dot(graph) + to_mermaid(graph)


def test_titles_cannot_break_out(plain: Graph) -> None:
    source = to_dot(plain, title=HOSTILE, about=HOSTILE)
    assert 'label="a \\"quoted\\" <b>\\\\N</b> --> %%{init}%% ; # end"' in source
    mermaid = to_mermaid(plain, title=HOSTILE, about=HOSTILE)
    assert mermaid.startswith('---\ntitle: "a \\"quoted\\" (b)\\\\N(/b) --) (init) end"\n---\nflowchart TD\n')
    assert "%%" not in mermaid
    assert "\x00" not in mermaid + source


def test_mermaid_nests_frames_and_names_legs(mixed: Graph) -> None:
    lines = to_mermaid(mixed).splitlines()
    assert 'subgraph f1["A: softmax over m, scale = d ** -0.5"]' in [line.strip() for line in lines]
    assert sum(line.strip().startswith("subgraph") for line in lines) == sum(line.strip() == "end" for line in lines)
    assert any('|"f = 512"|' in line for line in lines)
    assert any(re.search(r'n\d+\(\("P"\)\)', line) for line in lines)
    assert any(re.search(r'n\d+\["d = 64"\]', line) for line in lines)
    assert not any(" --- " in line and re.search(r'\[" "\]', line) for line in lines)


def test_roles_look_different(graph_of: Any) -> None:
    scores = {"softmax": "m", "of": "Q[n h d] K[m h d] + c[h] + s[h] + eps[h n m] -> h n m"}
    graph = graph_of(
        constants={"c": {"legs": "h", "value": "ones"}},
        noise={"eps": "h n m"},
        state={"s": {"legs": "h", "init": "zeros", "update": "u"}},
        diagram={"A": scores, "u": {"mean": "n", "of": {"mean": "m", "of": "A"}}},
    )
    source = to_dot(graph)
    for pattern in ("label=c .*shape=box", 'label=eps .*style="filled,dashed"', "label=s .*peripheries=2"):
        assert re.search(pattern, source), pattern
    assert 'label="u[h], kept in s"' in source


@pytest.mark.parametrize("function", ["to_dot", "to_mermaid", "to_text"])
def test_same_bytes_under_any_hash_seed(function: str) -> None:
    code = (
        f"from tensornet_attn.draw import {function}; from tensornet_attn.graph import build\n"
        f"from tensornet_attn.spec import load\n"
        f"print(''.join({function}(build(load(name))) for name in ('mhsa', 'fmm2', 'mgk_em')))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != b""
