"""The graph of special cases: which designs contain which, the way from one to another, and its pictures."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import pytest

import tensornet_attn as ta
from tensornet_attn.cli import main
from tensornet_attn.draw.lattice import lattice_picture
from tensornet_attn.special import contains, embed, route
from tests.refusals import refusal


def test_the_designs_around_one() -> None:
    graph = ta.special_cases("mhsa")
    for name in ("thsa", "thsa_low_rank", "skip_left", "skip_right", "mhsa_core", "gqa", "fish", "mgk", "epa", "mla"):
        assert ta.special_cases("mhsa").has_node(name)
        assert contains(ta.load(name), "mhsa")
    assert not graph.has_node("mlp")
    assert graph.nodes["thsa"]["family"] == "tuformer"
    assert set(graph.edges) <= set(ta.special_cases().edges)


def test_an_unknown_design() -> None:
    with pytest.raises(ta.DesignError, match=r"no shipped design 'mhsb'\.\n  hint: did you mean 'mhsa'\?"):
        ta.special_cases("mhsb")


def test_the_way_is_the_shortest() -> None:
    assert route(ta.load("mgk"), "mhsa") == ["mgk", "gaussian", "mhsa"]
    assert route(ta.load("thsa"), "gqa") == ["thsa", "mhsa", "gqa"]
    assert route(ta.load("mhsa"), "mhsa") == ["mhsa"]


def test_no_way() -> None:
    assert refusal(route, ta.load("linear"), "mhsa") == (
        "no weights are known at which 'linear' equals 'mhsa'; the nearest designs that contain it: fmm1, fmm1_rows, "
        "band. Designs list their special cases under 'contains'."
    )


def test_a_design_of_ones_own_with_the_name_of_a_shipped_one() -> None:
    mine = ta.load({"tensornet": 1, "name": "thsa", "extends": "linear", "contains": {"linear": {}}})
    assert route(mine, "linear") == ["thsa", "linear"]
    assert not contains(mine, "mhsa")


def test_the_designs_around_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    text = "tensornet: 1\nname: mine\nextends: hard_fish\ncontains:\n  hard_fish: {}\n"
    mine.write_text(text)
    assert main(["lattice", str(mine)]) == 0
    assert "mine (given) contains hard_fish" in [" ".join(x.split()) for x in capsys.readouterr().out.splitlines()]
    assert ta.special_cases(str(mine), equal_sizes=True).has_edge("mine (given)", "hard_fish")
    assert set(ta.special_cases(text)) == {
        "mine (given)",
        *nx.descendants(ta.special_cases(), "hard_fish"),
        "hard_fish",
    }
    mine.write_text(text.partition("contains")[0])
    assert main(["lattice", str(mine)]) == 0
    assert capsys.readouterr().out.startswith("no design contains it")
    mine.write_text(text.replace("  hard_fish", "  hard_fishes"))
    assert main(["lattice", str(mine)]) == 1
    assert f"{mine}:5:3: unknown-design: there is no shipped design 'hard_fishes'." in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["svg", "png", "dot", "txt"])
def test_the_command_draws(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"lattice.{suffix}"
    assert main(["lattice", "-o", str(path)]) == 0
    data = path.read_bytes()
    assert data.startswith({"svg": b"<svg", "png": b"\x89PNG", "dot": b"digraph", "txt": b"band "}[suffix])


def test_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lattice", "band"]) == 0
    assert "fmm_fast_weight1  contains  band (both causal)\n" in capsys.readouterr().out
    assert main(["lattice", "gqa_rope", "--json"]) == 0
    edges = json.loads(capsys.readouterr().out)
    assert {"design": "gqa_rope", "contains": "mhsa_rope", "causal": False} in edges
    assert main(["lattice", "nope"]) == 1
    assert main(["lattice", "-o", "x.pdf"]) == 2


def test_designs_that_contain_each_other_share_a_box() -> None:
    text = lattice_picture(ta.special_cases(), "dot").decode()
    assert 'label="gqa, mhsa, mhsa_core\nmla, softmax_smgk"' in text
    assert "style=dashed" in text


TUFORMER = ("thsa", "thsa_kron", "skip_left", "skip_right", "mhsa", "trainable_heads_only", "heads_only")


def test_the_order_of_tuformer_at_equal_sizes() -> None:
    """Figs. 4c and 6: which of its designs is more expressive than which, all with f, h, d of mhsa and R = H D."""
    graph = ta.special_cases(equal_sizes=True)
    below = {name: sorted(nx.descendants(graph, name) & {*TUFORMER}) for name in TUFORMER}
    assert below == {
        "thsa": ["heads_only", "mhsa", "skip_left", "skip_right", "thsa_kron", "trainable_heads_only"],
        "thsa_kron": ["heads_only", "mhsa", "skip_left", "skip_right", "trainable_heads_only"],
        "skip_left": ["heads_only", "mhsa"],
        "skip_right": ["heads_only", "mhsa", "trainable_heads_only"],
        "mhsa": ["heads_only"],
        "trainable_heads_only": ["heads_only"],
        "heads_only": [],
    }


@pytest.mark.parametrize("edge", sorted(ta.special_cases().edges), ids=" ".join)
def test_an_edge_holds_at_equal_sizes_where_its_entry_changes_none(edge: tuple[str, str]) -> None:
    """The general design is made at the sizes that its entry gives, and compared with the one of its file."""
    general, special = edge
    design = ta.load(general)
    given = ta.build(embed(design, special).general).values
    assert ta.special_cases(equal_sizes=True).has_edge(*edge) == (given == ta.build(design).values)


def test_edges_that_change_a_size_are_left_out() -> None:
    every, equal = ta.special_cases(), ta.special_cases(equal_sizes=True)
    assert set(equal) == set(every)
    gone = set(every.edges) - set(equal.edges)
    for edge in (("gqa", "mhsa"), ("hard_fish", "mhsa"), ("thsa", "trainable_heads_only"), ("mhsa", "heads_only")):
        assert edge in gone
    assert ("trainable_heads_only", "thsa") in gone  # or both would be one
    assert equal.edges["fmm1", "band"] == every.edges["fmm1", "band"]


def test_the_command_at_equal_sizes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["lattice", "trainable_heads_only", "--equal-sizes"]) == 0
    assert capsys.readouterr().out == (
        "skip_right            contains  trainable_heads_only\n"
        "thsa                  contains  skip_right, thsa_kron\n"
        "thsa_kron             contains  skip_right\n"
        "thsa_xl               contains  thsa\n"
        "trainable_heads_only  contains  heads_only\n"
    )
    assert main(["lattice", "heads_only", "--equal-sizes", "--json"]) == 0
    edges = json.loads(capsys.readouterr().out)
    assert {"design": "mhsa_core", "contains": "heads_only", "causal": False} in edges
    assert {"design": "mhsa", "contains": "heads_only", "causal": False} not in edges
    assert main(["lattice", "thsa", "--equal-sizes", "-o", str(tmp_path / "a.svg")]) == 0
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<svg")
