"""Model files: what is read, what goes round, and the whole text of every refusal."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import tensornet_attn as ta
from tensornet_attn.spec.sources import text_document
from tests.models import tiny
from tests.refusals import refusal

WHOLE = """\
tensornet: 1
name: tiny
about: A hybrid.
model:
  kind: language_model
  vocabulary: 11
  length: 12
  width: 12
  positions: none
  embedding_scale: width ** 0.5
  norm: rmsnorm
  dropout: 0.1
  init: gpt2
  tied: false
  memory: 6
  layers:
    - mixer: {design: transformer_xl, legs: {h: 3}}
      mlp: {design: mlp, legs: {l: 2 * f}}
      repeat: 2
    - mixer: {design: ./own.yaml, settings: {k: 3}}
    - mixer:
        design:
          tensornet: 1
          name: inline
          extends: mhsa
          legs: {h: head 2}
    - trainable_heads_only
"""
OWN = "tensornet: 1\nname: own\nextends: band\nlegs: {h: head 4}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "own.yaml").write_text(OWN)
    (tmp_path / "model.yaml").write_text(WHOLE)
    return tmp_path / "model.yaml"


def test_a_file_with_everything(file: Path) -> None:
    spec = ta.models.load(file)
    names = [{role: part.design.name for role, part in block.items()} for block in spec.stacks["layers"]]
    xl = {"mixer": "transformer_xl", "mlp": "mlp"}
    assert names == [xl, xl, {"mixer": "own"}, {"mixer": "inline"}, {"mixer": "trainable_heads_only"}]
    parts = [block["mixer"].design for block in spec.stacks["layers"]]
    assert [part.legs["f"] for part in parts] == [12] * 5
    assert [part.legs["h"] for part in parts[:4]] == [3, 3, 4, 2]
    assert (spec.stacks["layers"][0]["mlp"].design.legs["l"], parts[2].settings["k"]) == (24, 3)
    assert (spec.name, spec.about, spec.embedding_scale) == ("tiny", "A hybrid.", 12**0.5)


@pytest.mark.parametrize("whole", [False, True])
def test_text_goes_round(file: Path, whole: bool) -> None:
    spec = ta.models.load(file)
    again = ta.models.load(spec.to_yaml(whole))
    assert again.to_yaml(whole) == spec.to_yaml(whole)
    for mine, theirs in zip(spec.stacks["layers"], again.stacks["layers"], strict=True):
        assert [part.design.legs for part in mine.values()] == [part.design.legs for part in theirs.values()]
        assert [part.design.hash for part in mine.values()] == [part.design.hash for part in theirs.values()]
    assert again.to_yaml(whole=True) == spec.to_yaml(whole=True)
    made, remade = ta.models.make(spec), ta.models.make(again)
    assert {k: v.shape for k, v in made.state_dict().items()} == {k: v.shape for k, v in remade.state_dict().items()}


def test_designs_may_be_objects_and_paths_and_text(file: Path) -> None:
    design = ta.load("mhsa", legs={"h": 2})
    layers = [design, {"mixer": {"design": design.as_dict()}}, {"mixer": design.to_yaml()}, file.parent / "own.yaml"]
    spec = ta.models.load(tiny.model_of(layers=layers))
    assert [block["mixer"].design.name for block in spec.stacks["layers"]] == ["mhsa"] * 3 + ["own"]
    again = ta.models.load(spec.to_yaml())
    assert again.to_yaml() == spec.to_yaml()


def test_the_width_is_found_from_the_design_and_not_by_its_name() -> None:
    data = json.loads(json.dumps(ta.load("mhsa").as_dict()).replace("n f", "n w").replace("m f", "m w"))
    text = ta.load("mhsa").to_yaml().replace("[n f]", "[n w]").replace("[m f]", "[m w]").replace("f h d", "w h d")
    text = text.replace("h d f", "h d w").replace("  f: 512", "  w: 512").replace("f / h", "w / h")
    text = (
        text.replace("n f", "n w")
        .replace("legs: m f", "legs: m w")
        .replace("[f h d]", "[w h d]")
        .partition("contains:")[0]
    )
    assert data["name"] == "mhsa"
    spec = ta.models.load(tiny.model_of(layers=[{"mixer": {"design": text, "legs": {"h": 4}}}]))
    assert spec.stacks["layers"][0]["mixer"].design.legs == {"n": None, "m": None, "w": 8, "h": 4, "d": 2}


def test_the_schema_accepts_what_is_read_and_refuses_what_is_not(file: Path) -> None:
    schema = ta.models.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for text in (WHOLE, ta.models.load(file).to_yaml()):
        jsonschema.validate(text_document(text, "text", None)[0].data, schema)
    for config in ({"layers": []}, {"kind": "gan"}, {"width": 0}, {"colour": 1}, {"dropout": 1.0}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tiny.model_of(**config), schema)


def refusals(tmp_path: Path, text: str) -> str:
    (tmp_path / "model.yaml").write_text(text)
    return "".join(f"{p}\n" for p in ta.models.check(tmp_path / "model.yaml")).replace(f"{tmp_path}/", "")


HEAD = "tensornet: 1\nmodel:\n  kind: language_model\n  vocabulary: 9\n  length: 8\n  width: 16\n"
WRONG = {
    "form": (
        "tensornet: 1\nmodels: 3\nmodel:\n  kind: language_model\n  vocabulary: 0\n  width: wide\n  colour: red\n"
        "  init: zero\n  dropout: 1\n  layers:\n    - mixer: {designs: mhsa}\n    - {mlp: 3}\n    - 4\n",
        """\
model.yaml:2:1: unknown-key: there is no key 'models' here.
    models: 3
    ^^^^^^
  hint: did you mean 'model'?
model.yaml:3:1: missing-key: the key 'length' is missing.
    model:
    ^^^^^
  hint: e.g. 'length: 128'.
model.yaml:5:15: wrong-type: expected a whole number from 1, got 0.
      vocabulary: 0
                  ^
  hint: e.g. 64.
model.yaml:6:10: wrong-type: expected a whole number from 1, got the text 'wide'.
      width: wide
             ^^^^
  hint: e.g. 64.
model.yaml:7:3: unknown-key: there is no key 'colour' here.
      colour: red
      ^^^^^^
  hint: known here: dropout, embedding_scale, init, kind, layers, length, memory, memory_kind, norm, output_bias, \
positions, post_norm, ....
model.yaml:8:9: wrong-value: the text 'zero' is not a value of 'init'.
      init: zero
            ^^^^
  hint: use one of design, normal, gpt2, xavier, transformer_xl, mgk, fmm, lra, epa.
model.yaml:9:12: wrong-type: expected a number from 0 up to but not including 1, got 1.
      dropout: 1
               ^
  hint: e.g. 0.1.
model.yaml:11:7: missing-key: the key 'design' is missing.
        - mixer: {designs: mhsa}
          ^^^^^
  hint: e.g. 'design: mhsa'.
model.yaml:11:15: unknown-key: there is no key 'designs' here.
        - mixer: {designs: mhsa}
                  ^^^^^^^
  hint: did you mean 'design'?
model.yaml:12:7: missing-key: the key 'mixer' is missing.
        - {mlp: 3}
          ^
  hint: e.g. 'mixer: mhsa'.
model.yaml:12:13: wrong-type: expected a design, got 3.
        - {mlp: 3}
                ^
  hint: e.g. mhsa, or {design: mhsa, legs: {h: 4}}.
model.yaml:13:7: wrong-type: expected a layer, got 4.
        - 4
          ^
  hint: e.g. {mixer: mhsa, mlp: mlp}.
""",
    ),
    "kind": (
        "tensornet: 2\nmodel: {kind: languag_model}\n",
        """\
model.yaml:1:12: version: expected version 1 of the language, got 2.
    tensornet: 2
               ^
  hint: write 'tensornet: 1'.
model.yaml:2:15: wrong-value: the text 'languag_model' is not a kind of model.
    model: {kind: languag_model}
                  ^^^^^^^^^^^^^
  hint: did you mean 'language_model'?
""",
    ),
    "names and legs": (
        HEAD
        + "  layers:\n    - mhs\n    - mixer: {design: mhsa, legs: {q: 3, f: 8}}\n    - {mixer: mhsa, mlp: ./no.yaml}\n"
        "    - mixer: {design: band, settings: {w: 3}, legs: {h: 0}}\n",
        """\
model.yaml:8:7: unknown-design: there is no shipped design 'mhs'.
        - mhs
          ^^^
  hint: did you mean 'mhsa'? A path contains '/' or ends in '.yaml'.
model.yaml:9:45: no-fit: leg 'f' of 'mhsa' has the model's width, 16.
        - mixer: {design: mhsa, legs: {q: 3, f: 8}}
                                                ^
  hint: leave out 'f': the model sets its size.
model.yaml:10:26: unreadable: 'no.yaml' cannot be read: No such file or directory.
        - {mixer: mhsa, mlp: ./no.yaml}
                             ^^^^^^^^^
  hint: give the path of a YAML file.
model.yaml:11:43: unknown-setting: the design has no setting 'w' to replace.
        - mixer: {design: band, settings: {w: 3}, legs: {h: 0}}
                                              ^
  hint: known here: k.
model.yaml:11:57: bad-size: leg 'h' is 0, which is not a valid size.
        - mixer: {design: band, settings: {w: 3}, legs: {h: 0}}
                                                            ^
  hint: use a whole number from 1 to 2147483647.
""",
    ),
    "places": (
        HEAD + "  memory: 4\n  positions: learned\n  embedding_scale: height\n  layers:\n"
        "    - {mixer: cross, mlp: mlp}\n    - {mixer: {design: mhsa, causal: false}}\n"
        "    - {mixer: {design: alibi, legs: {n: 7}}}\n",
        """\
model.yaml:8:14: no-fit: 'learned' positions restart in each segment, so they do not fit a memory.
      positions: learned
                 ^^^^^^^
  hint: write 'positions: none', and use a design that encodes relative positions.
model.yaml:9:20: unknown-name: there is no size 'height'.
      embedding_scale: height
                       ^^^^^^
  hint: use one of vocabulary, length, width.
model.yaml:11:15: no-fit: 'cross' needs a second input 'memory', but a mixer has one input.
        - {mixer: cross, mlp: mlp}
                  ^^^^^
  hint: move the design to 'cross' in a decoder, or use a design with one input.
model.yaml:12:38: no-fit: the model requires a causal design here.
        - {mixer: {design: mhsa, causal: false}}
                                         ^^^^^
  hint: leave out 'causal: false'.
model.yaml:13:41: run-time-leg: leg 'n' is sized by the input at run time.
        - {mixer: {design: alibi, legs: {n: 7}}}
                                            ^
  hint: give it a maximum instead, e.g. 'query 256'.
""",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_mistakes_and_their_places(what: str, tmp_path: Path) -> None:
    text, wanted = WRONG[what]
    assert refusals(tmp_path, text) == wanted


def design(legs: str, inputs: str, output: str, weights: str = "W: f g") -> str:
    """A design of one step, as YAML text."""
    head = f"tensornet: 1\nname: own\nlegs: {{{legs}}}\ninputs: {{{inputs}}}\nweights: {{{weights}}}\n"
    return f'{head}diagram: {{y: "{output}"}}\noutput: y\n'


SQUARE = "x[n f] W[f g] -> n g"
UNFIT = [  # role, design, message
    ("mixer", design("n: query, f: 8, g: 9", "x: n f", SQUARE),
     "the output of 'own' has 9 on leg 'g', its input 8 on 'f'."),
    ("mixer", design("n: query, f: 8, g: 8", "x: n", "x[n] W[f g] -> n f g"),
     "input 'x' of 'own' has the legs 'n'."),
    ("mixer", design("n: query, f: 8, g: 8", "x: f n", "x[f n] W[f g] -> n g"),
     "input 'x' of 'own' has the legs 'f n'."),
    ("mixer", design("n: query, f: 8, g: 8, h: 2", "x: n f", "x[n f] W[f g h] -> n g h", "W: f g h"),
     "the output of 'own' has the legs 'n g h'."),
    ("mixer", design("n: query, f: 8, g: 8", "x: n f, z: {legs: n f, default: x}, u: {legs: n f, default: x}",
                     "x[n f] W[f g] + z[n f] W[f g] + u[n f] W[f g] -> n g"),
     "'own' has 3 inputs: x, z, u."),
    ("mixer", design("n: query 5, f: 8, g: 8", "x: n f", SQUARE),
     "leg 'n' of 'own' has a maximum of 5; the model needs 12 rows."),
    ("cross", design("n: query, f: 8, g: 8", "x: n f", SQUARE),
     "'own' has one input; 'cross' needs two, the target and the source."),
    ("cross", design("n: query, f: 8, g: 8", "x: n f, z: n f", "x[n f] W[f g] + z[n f] W[f g] -> n g"),
     "the two inputs of 'own' are not separate queries and keys."),
]  # fmt: skip


@pytest.mark.parametrize(("role", "unfit", "wanted"), UNFIT)
def test_designs_that_do_not_fit(role: str, unfit: str, wanted: str) -> None:
    layer = {"mixer": {"design": "mhsa"}, "cross": {"design": "cross"}} | {role: {"design": unfit}}
    kind = {"kind": "seq2seq", "encoder": ["mhsa"], "decoder": [layer]}
    config = {key: value for key, value in tiny.model_of()["model"].items() if key != "layers"}
    found = [p for p in ta.models.check({"tensornet": 1, "model": config | kind}) if p.severity == "error"]
    assert [(p.field, p.code, p.message) for p in found] == [(f"model.decoder[0].{role}", "no-fit", wanted)]
    assert found[0].hint


def test_a_design_that_leaks_is_no_language_model() -> None:
    step = {"A": {"map": "tanh", "of": "Q[n h d] K[m h d] -> h n m"}}
    leaky = {"tensornet": 1, "name": "leaky", "extends": "mhsa", "legs": {"h": "head 2"}, "diagram": step}
    leaky = {"mixer": {"design": leaky}}
    found = ta.models.check(tiny.model_of(layers=[leaky, {"mixer": {"design": "mhsa", "legs": {"h": 2}}}]))
    assert {p.code for p in found} >= {"causal-leak", "refused"}
    with pytest.raises(ta.DesignError, match="this design is invalid as used here, causal and at width 8"):
        ta.models.load(tiny.model_of(layers=[leaky]))
    ta.models.load(tiny.model_of(kind="sequence_classifier", classes=2, layers=[leaky]))


def test_a_memory_wants_a_context_input() -> None:
    alone = [{"mixer": {"design": tiny.ALONE, "legs": {"h": 2}}}]
    (found,) = ta.models.check(tiny.model_of(memory=4, layers=alone))
    assert found.message == "'memory' needs a mixer with a context input, and this model has none."


def test_a_model_is_no_design() -> None:
    (found,) = ta.check(HEAD + "  layers: [mhsa]\n")
    assert (found.place, found.code) == ("<text>:2:1", "unknown-key")
    assert found.message == "this is a model, not a design."


def test_limits() -> None:
    (found,) = ta.models.check(tiny.model_of(layers=[{"mixer": {"design": "mhsa", "legs": {"h": 2}}, "repeat": 1001}]))
    assert (found.code, found.message) == ("too-large", "'layers' has more than 1000 layers.")
    (found,) = ta.models.check(tiny.model_of(vocabulary=2**31 - 1, width=64))
    assert found.message == "a table of 2147483647 rows of width 64 is too large."
    wide = {"design": "mlp", "legs": {"l": 2**29}}
    (found,) = ta.models.check(tiny.model_of(layers=[{"mixer": wide, "repeat": 100}]))
    assert found.message == "the designs of this model have 9.13e+11 weights."


def test_a_file_that_is_no_design_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("password: hunter2\n")
    (tmp_path / "model.yaml").write_text(HEAD + "  layers: [./secret.yaml]\n")
    (found,) = ta.models.check(tmp_path / "model.yaml")
    assert "hunter2" not in str(found)
    assert found.message == "'./secret.yaml' is not a design."


def test_calls_of_classes() -> None:
    wanted = "SequenceClassifier is a sequence_classifier; this describes a language_model: use make()."
    assert refusal(ta.models.SequenceClassifier, tiny.model_of()) == wanted
    wanted = "LanguageModel takes either a description or its keys, e.g. vocabulary=256."
    assert refusal(ta.models.LanguageModel) == wanted
    assert isinstance(ta.models.make(tiny.model_of()), ta.models.LanguageModel)
