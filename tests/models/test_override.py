"""What can be otherwise in a model that is loaded: designs, sizes, and the keys of its description."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.models import tiny
from tests.refusals import refusal

FILE = """\
tensornet: 1
name: tiny
about: Two layers.
model:
  kind: language_model
  vocabulary: 11
  length: 12
  width: 8
  layers:
    - mixer: {design: ./own.yaml, legs: {h: 2, d: 3}, settings: {k: 3}}
      mlp:
        design: {tensornet: 1, name: inline, extends: mlp, legs: {l: 3 * f}}
      repeat: 2
"""
OWN = "tensornet: 1\nname: own\nextends: band\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "own.yaml").write_text(OWN)
    (tmp_path / "model.yaml").write_text(FILE)
    return tmp_path / "model.yaml"


def parts(spec: ta.models.ModelSpec, role: str = "mixer") -> list[tuple[str, dict[str, int], dict[str, Any]]]:
    """Name, sizes and settings of the designs of a role, layer by layer."""
    designs = [block[role].design for block in spec.stacks["layers"]]
    sizes = [{leg: size for leg, size in design.legs.items() if size is not None} for design in designs]
    return [(design.name, legs, dict(design.settings)) for design, legs in zip(designs, sizes, strict=True)]


def test_nothing_changed_is_the_file(file: Path) -> None:
    spec = ta.models.load(file)
    assert ta.models.load(spec) is spec
    assert (spec.about, spec.path) == ("Two layers.", str(file))
    assert parts(spec) == [("own", {"f": 8, "h": 2, "d": 3}, {"k": 3})] * 2


def test_legs_and_settings_replace_single_ones(file: Path) -> None:
    spec = ta.models.load(file, legs={"h": 4}, settings={"k": 5}, mlp_legs={"l": 10})
    assert parts(spec) == [("own", {"f": 8, "h": 4, "d": 3}, {"k": 5})] * 2
    assert parts(spec, "mlp") == [("inline", {"f": 8, "l": 10}, {})] * 2
    assert (spec.name, spec.about) == ("tiny", "")


def test_a_new_mixer_keeps_the_sizes_of_its_legs_and_no_settings(file: Path) -> None:
    spec = ta.models.load(file, design="epa")
    assert parts(spec) == [("epa", {"f": 8, "h": 2, "e": 5, "d": 3}, {"k": 2})] * 2
    assert spec.name == "epa_tiny"
    spec = ta.models.load(file, design="band", legs={"h": 1})
    assert parts(spec) == [("band", {"f": 8, "h": 1, "d": 3}, {"k": 5})] * 2
    assert "e" not in parts(ta.models.load(spec, design="mhsa"))[0][1]


def test_a_new_mlp_has_its_own_sizes(file: Path) -> None:
    spec = ta.models.load(file, mlp="sigma_moe", mlp_legs={"e": 3, "l": 2}, mlp_settings={"k": 1})
    assert parts(spec, "mlp") == [("sigma_moe", {"f": 8, "e": 3, "l": 2}, {"k": 1})] * 2
    assert spec.name == "tiny"
    for nothing in (None, "none"):
        assert [[*block] for block in ta.models.load(file, mlp=nothing).stacks["layers"]] == [["mixer"]] * 2


def test_keys_of_the_description_and_the_number_of_layers(file: Path) -> None:
    spec = ta.models.load(file, width=16, vocabulary=5, depth=3, dropout=0.5, tied=False, post_norm=True)
    assert spec.legs == {"vocabulary": 5, "length": 12, "width": 16}
    assert (spec.config.dropout, spec.config.tied, spec.config.post_norm) == (0.5, False, True)
    assert parts(spec) == [("own", {"f": 16, "h": 2, "d": 3}, {"k": 3})] * 3
    assert parts(spec, "mlp") == [("inline", {"f": 16, "l": 48}, {})] * 3  # its arithmetic follows the width
    made = ta.models.make(file, width=16, depth=1, dtype=torch.float64)
    assert (len(made.layers), made.embedding.weight.dtype) == (1, torch.float64)


def test_designs_may_be_mappings_objects_and_paths(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = file.parent / "elsewhere"
    other.mkdir()
    (other / "mine.yaml").write_text("tensornet: 1\nname: mine\nextends: mhsa\n")
    monkeypatch.chdir(other)  # paths that are given are relative to the working directory, the file's to the file
    mine = {"tensornet": 1, "name": "mine", "extends": "mhsa"}
    for design in ("./mine.yaml", Path("mine.yaml"), mine, ta.load(mine), "tensornet: 1\nname: mine\nextends: mhsa\n"):
        spec = ta.models.load(file, design=design)
        assert parts(spec) == [("mine", {"f": 8, "h": 2, "d": 3}, {})] * 2
        assert spec.name == "mine_tiny"
        assert ta.models.load(spec.to_yaml()).to_yaml() == spec.to_yaml()
    assert parts(ta.models.load(spec, depth=1)) == parts(spec)[:1]


def test_every_stack_is_changed_and_cross_attention_is_not() -> None:
    layer = {"mixer": {"design": "mhsa", "legs": {"h": 2}}, "mlp": "mlp"}
    pair = {"encoder": [layer], "decoder": [layer | {"cross": {"design": "cross", "legs": {"h": 2}}}]}
    sizes = {"kind": "seq2seq", "vocabulary": 9, "length": 8, "width": 8}
    spec = ta.models.load({"tensornet": 1, "name": "pair", "model": sizes | pair}, design="linear", depth=2)
    names = {
        stack: [[part.design.name for part in block.values()] for block in blocks]
        for stack, blocks in spec.stacks.items()
    }
    assert names == {"encoder": [["linear", "mlp"]] * 2, "decoder": [["linear", "cross", "mlp"]] * 2}


def test_what_the_file_says_of_causality_stays() -> None:
    layers = [{"mixer": {"design": "alibi", "legs": {"h": 2}, "causal": False}}]
    model = tiny.model_of(kind="sequence_classifier", classes=2, layers=layers)
    spec = ta.models.load(model, design="mhsa")
    assert spec.stacks["layers"][0]["mixer"].causal is False


WRONG = [
    ({"colour": 1}, "a language_model has no 'colour' to override: known here: depth, design, dropout, "
     "embedding_scale, init, legs, length, memory, memory_kind, mlp, mlp_legs, mlp_settings, ...."),
    ({"pos_norm": True}, "a language_model has no 'pos_norm' to override: did you mean 'post_norm'?"),
    ({"legs": 3}, "'legs' must be a mapping of names to numbers, e.g. {'h': 4}, not int."),
    (
        {"mlp": "none", "mlp_legs": {"l": 3}},
        "'mlp_legs' needs an MLP, and 'tiny' has none: leave it out, or add e.g. mlp='mlp'.",
    ),
    ({"design": 3}, "a design must be a name, a path, YAML text, a dict or a Design, not int."),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_what_cannot_be_overridden(changes: dict[str, Any], message: str, file: Path) -> None:
    assert refusal(ta.models.load, file, **changes) == message


def test_the_depth_of_a_model_with_several_entries() -> None:
    layer = {"mixer": {"design": "mhsa", "legs": {"h": 2}}}
    wanted = "'depth' needs a 'layers' of one entry; 'tiny' has 2: leave out 'depth'."
    assert refusal(ta.models.load, tiny.model_of(layers=[layer, layer]), depth=3) == wanted


REFUSED = [
    (
        {"width": 0, "legs": {"q": 3}},
        "tiny: model.width: wrong-type: expected a whole number from 1, got 0.\n  hint: e.g. 64.",
    ),
    (
        {"legs": {"q": 3}},
        "tiny: model.layers[0].mixer.legs.q: unknown-leg: the design has no leg 'q' to replace.\n"
        "  hint: known here: d, f, h, m, n.",
    ),
    (
        {"depth": 0},
        "tiny: model.layers[0].repeat: wrong-type: expected a whole number from 1, got 0.\n  hint: e.g. 64.",
    ),
    (
        {"design": "mhs"},
        "mhs: unknown-design: there is no shipped design 'mhs'.\n"
        "  hint: did you mean 'mhsa'? A path contains '/' or ends in '.yaml'.",
    ),
]


@pytest.mark.parametrize(("changes", "told"), REFUSED)
def test_changes_that_do_not_fit(changes: dict[str, Any], told: str, file: Path) -> None:
    with pytest.raises(ta.DesignError) as error:
        ta.models.load(file, **changes)
    assert [str(problem) for problem in error.value.problems] == [told]


def test_a_broken_file_is_told_at_its_places_before_any_change(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(FILE.replace("width: 8", "width: wide").replace("./own.yaml", "band"))
    with pytest.raises(ta.DesignError) as error:
        ta.models.load(tmp_path / "model.yaml", width=8, design="mhsa")
    (problem,) = error.value.problems
    assert problem.place == f"{tmp_path}/model.yaml:8:10"
