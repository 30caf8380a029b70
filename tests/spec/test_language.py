"""What the language can say, from a file, YAML text, a dict or Python: each feature of docs/language.md once."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import pytest

import tensornet_attn as ta
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Box, Function
from tensornet_attn.ir.arithmetic import Number
from tensornet_attn.spec import library, read_text
from tests.refusals import refusal

HEAD = "tensornet: 1\nname: t\n"
LEGS = {"n": "query", "m": "key", "p": "relative", "r": "relative 3", "h": "head 2", "d": "f / h", "f": "8", "w": "5"}
SETTINGS = {"kk": "2", "sc": "kk ** -0.5", "p0": "0.1"}
DECLARED = {
    "inputs": {"x": "n f"},
    "weights": {"W": "f h d", "b": "h", "bias": "h r", "M": "f w"},
    "constants": {
        "c": "{legs: p f, value: sinusoid}",
        "P": "{legs: n f, value: sinusoid}",
        "far": "{legs: n m, value: distance}",
        "slopes": "{legs: h, value: alibi_slopes}",
    },
    "noise": {"xi": "{legs: h n m, std: 0.5, always: true}"},
    "state": {"pi": "{legs: h, init: full(1 / h), update: u}"},
}
SHIPPED = ta.list_designs()


def design(diagram: str, legs: dict[str, str] = LEGS, **declared: dict[str, str]) -> str:
    """The design around some steps: of what could be declared it declares what they use."""
    body = f"diagram:\n{diagram}output: y\n"
    for section, values in (DECLARED | declared).items():
        body = section_of(section, values, body) + body
    sizes = ""
    for _ in range(3):  # a size may need another
        text = sizes + body
        sizes = section_of("legs", legs, text) + section_of("settings", SETTINGS, text)
    return HEAD + sizes + body


def section_of(section: str, values: dict[str, str], text: str) -> str:
    words = set(re.findall(r"\w+", text))
    used = [f"{name}: {value}" for name, value in values.items() if name in words]
    return f"{section}: {{{', '.join(used)}}}\n" if used else ""


def codes(text: str) -> list[str]:
    return [problem.code for problem in ta.check(text)]


Q = "  Q: x[n f] W[f h d] -> n h d\n"
QK = Q + "  K: x[m f] W[f h d] -> m h d\n"
S = QK + "  S: Q[n h d] K[m h d] -> h n m\n"
A = S + "  A: {softmax: m, of: S}\n"
Y = "  y: A[h n m] K[m h d] W[f h d] -> n f\n"

LINES = {
    "one product": "  y: x[n f] W[f h d] -> n h d\n",
    "a sum with coefficients": Q + "  y: -(0.5 * d ** -0.5) * Q[n h d] Q[n h d] + b[h] - 2 * b[h] + 1 -> h n\n",
    "a sign at the start": Q + "  y: +Q[n h d] - 2 ** -1 * Q[n h d] + 3 / (4) * Q[n h d] -> n h d\n",
    "lengths in a coefficient": Q + "  y: (1 / n) * Q[n h d] -> n h d\n",
    "a number alone": Q + "  y: Q[n h d] + (f - 1) -> n h d\n",
    "broadcasting over queries": Q + "  y: Q[n h d] + b[h] -> n h d\n",
    "a bare name": Q + "  y: Q\n",
    "a use": Q + "  y: 'Q[n h d]'\n",
    "an input as the content": "  y: {map: relu, of: x}\n",
    "a junction on a head leg": A + Y,
    "softmax": S + "  y: {softmax: m, scale: d ** -0.5, mask: causal, dropout: 0.1, of: S}\n",
    "a scale by length": S + "  y: {softmax: m, scale: log(m) * n ** -0.5, of: S}\n",
    "several masks": S + "  y: {softmax: m, mask: [causal, band(w), 'window(2 * w, -1)'], of: S}\n",
    "softmax over heads": Q + "  y: {softmax: h, of: Q}\n",
    "softmax over distances": "  y: {softmax: p, of: 'x[n f] c[p f] -> n p'}\n",
    "normalize": S + "  y: {normalize: m, mask: [band(2)], eps: 1e-6, of: {map: exp, of: S}}\n",
    "keep": S + "  y: {keep: m, of: {map: sigmoid, of: S}}\n",
    "reductions over keys": S + "  y: {logsumexp: m, mask: causal, of: S}\n",
    "reductions over the rest": S
    + "  B: {max: h, of: S}\n  C: {sum: m, of: B}\n  D: {mean: d, of: Q}\n  y: C[n] D[n h] -> n h\n",
    "topk": Q + "  y: {topk: d, k: 2, of: Q}\n",
    "topk by fewer legs": Q + "  g: {mean: d, of: Q}\n  y: {topk: h, k: h - 1, by: g, of: Q}\n",
    "norms": Q + "  y: {rmsnorm: d, of: {layernorm: d, eps: 0, of: {l1norm: h, of: {l2norm: d, eps: 1e-5, of: Q}}}}\n",
    "rope": Q + "  y: {rope: n, along: d, base: 500, fraction: 1 / 2, of: Q}\n",
    "rel_shift": S + "  B: {rel_shift: p, to: m, of: 'x[n f] c[p f] -> n p'}\n  y: S[h n m] + B[n m] -> h n m\n",
    "rel_shift of a table": S + "  B: {rel_shift: r, to: m, of: bias}\n  y: S[h n m] + B[h n m] -> h n m\n",
    "delta rule": QK + "  y: {delta_rule: m, query: Q, key: K, value: K, rate: 'K[m h d]', normalize: both, eps: 1}\n",
    "delta rule with boxes": QK
    + "  R: {map: sigmoid, of: 'x[m f]'}\n"
    + "  y: {delta_rule: m, query: {map: elu1, of: Q}, key: 'K[m h d]', value: 'x[m f]', rate: R}\n",
    "dropout": Q + "  y: {dropout: 1 / 10, of: Q}\n",
    "five boxes deep": Q
    + "  y: {map: relu, of: {map: tanh, of: {dropout: 0.1, of: {rmsnorm: d, of: {softmax: h, of: Q}}}}}\n",
    "noise": S + "  y: {softmax: m, of: 'S[h n m] + xi[h n m] -> h n m'}\n",
    "a constant on a sequence leg": "  y: x[n f] + P[n f] -> n f\n",
    "a distance": S + "  y: {softmax: m, of: 'S[h n m] - slopes[h] far[n m] -> h n m'}\n",
    "a state": S + "  y: 'pi[h] S[h n m] -> h n m'\n  u: {mean: n, of: {mean: m, of: S}}\n",
    "settings": S + "  y: {softmax: m, scale: sc, dropout: p0, mask: [band(kk)], of: S}\n",
    "a folded text": "  y: >\n    x[n f]\n    W[f h d] -> n h d\n",
}


@pytest.mark.parametrize("title", LINES)
def test_a_line_of_a_diagram(title: str) -> None:
    assert codes(design(LINES[title])) == []


@pytest.mark.parametrize(
    "mapping",
    "relu gelu silu elu elu1 elu1_neg tanh sigmoid exp log square sqrt abs softplus "
    "softcap(3*w) power(-1/2) 'clamp(-w,w)'".split(),
)
def test_a_map(mapping: str) -> None:
    assert codes(design(f"{Q}  y: {{map: {mapping}, of: Q}}\n")) == []


INITS = ["xavier", "normal(f ** -0.5)", "uniform(1 / f)", "zeros", "ones", "full(-2)", "eye", "eye(8)"]
INITS += ["ones(f, f)", "kron(eye(2), ones(4, 4))", "kron(kron(eye(2), ones(2, 2)), eye(2))"]


@pytest.mark.parametrize("init", INITS)
def test_an_initialiser(init: str) -> None:
    legs = {"n": "query", "f": "8", "g": "f"}
    weights = {"M": f'{{legs: f g, init: "{init}", frozen: true}}'}
    assert codes(design("  y: x[n f] M[f g] -> n g\n", legs, weights=weights)) == []


def test_every_kind_of_leg_and_its_resolved_size() -> None:
    text = "{n: query, m: key, q: relative, r: relative 3, g: head kk * 2, c: 'min(f, 9, kk)', f: 8, e: key 256}"
    read = read_text(
        f"{HEAD}legs: {text}\nsettings: {{kk: 2 ** 3}}\ninputs: {{x: n f}}\ndiagram: {{y: x}}\noutput: y\n", "t"
    )
    assert read.design is not None
    with pytest.raises(ta.DesignError, match="'e' is a second key leg"):
        read.design.legs
    legs = read.design.declared_legs | {"e": "head f"}
    sizes = read.design.model_copy(update={"declared_legs": legs}).legs
    assert sizes == {"n": None, "m": None, "q": None, "r": 7, "g": 16, "c": 8, "f": 8, "e": 8}
    kinds = build(ta.load("transformer_xl")).leg
    assert [kinds[leg].kind for leg in "nmpfhd"] == ["query", "key", "relative", "size", "head", "size"]


SIZES = {
    "7 // 2 * 2": 6, "2 ** 3 ** 0": 2, "-2 ** 2 + 8": 4, "sqrt(16)": 4, "8 / 2 / 2": 2, "max(1, 2, 3)": 3,
    "(1 + 2) * 3": 9, "1e1": 10, "exp(0)": 1, "log(exp(3))": 3, "+4": 4, "--4": 4, "1 / 3 * 3 + 2": 3, "0.5 * 8": 4,
}  # fmt: skip


@pytest.mark.parametrize("text", SIZES)
def test_sizes_follow_python(text: str) -> None:
    assert ta.load("mhsa", legs={"f": text, "h": 1}).legs["d"] == SIZES[text]


def test_a_weight_on_a_sequence_leg_with_a_maximum() -> None:
    legs = {"n": "query 16", "m": "key 256", "f": "8", "p": "relative 32"}
    steps = "  B: {rel_shift: p, to: m, of: b}\n  y: x[n f] + T[n f] + 0 * B[n m] P[m f] -> n f\n"
    graph = build(ta.load(design(steps, legs, weights={"P": "m f", "T": "n f", "b": "p"}, constants={})))
    assert [graph.shape_of(name) for name in "PTb"] == [(256, 8), (16, 8), (65,)]


def test_a_scalar_is_used_with_empty_brackets() -> None:
    weights = {"w": "[]", "v": "{legs: [], init: zeros}"}
    assert codes(design("  y: w[] v[] x[n f] -> n f\n", {"n": "query", "f": "8"}, weights=weights)) == []


def test_legs_may_be_a_list() -> None:
    text = design("  y: x[n f] M[f w] -> n w\n", inputs={"x": "[n, f]"}, weights={"M": "{legs: [f, w]}"})
    assert codes(text) == []


def test_an_input_may_stand_in_for_another() -> None:
    inputs = {"x": "n f", "memory": "{legs: m f, default: x}", "z": "{legs: m f, default: memory}"}
    steps = "  A: {softmax: m, of: 'x[n f] memory[m f] -> n m'}\n  y: A[n m] z[m f] -> n f\n"
    graph = build(ta.load(design(steps, inputs=inputs)))
    assert [(t.name, t.default) for t in graph.of_role("input")] == [("x", None), ("memory", "x"), ("z", "memory")]


def test_causal_of_the_design_and_of_the_call() -> None:
    graph = build(ta.load("mhsa"), causal=True)
    assert graph.masks(graph.step["A"]) == (Function("causal"),)
    assert build(ta.load("alibi")).causal
    assert not build(ta.load("alibi"), causal=False).causal
    masks = build(ta.load("band"), causal=True)
    assert [mask.name for mask in masks.masks(masks.step["A"])] == ["band", "causal"]


def test_parameters_have_their_defaults() -> None:
    box = build(ta.load(design(Q + "  y: {rope: n, along: d, of: Q}\n"))).step["y"].op
    assert isinstance(box, Box)
    assert (box.number("base"), box.number("fraction"), box.other) == (Number(10000), Number(1), "d")
    box = build(ta.load(design(A + Y))).step["A"].op
    assert isinstance(box, Box)
    assert (box.number("scale"), box.number("dropout"), box.masks) == (Number(1), Number(0), ())


PARENT = f"""\
{HEAD}legs: {{n: query, f: 8}}
settings: {{a: 1, b: 2}}
inputs: {{x: n f}}
weights: {{W: f}}
diagram:
  one: a * x[n f] -> n f
  two: one[n f] W[f] -> n f
  three: (b) * two[n f] -> n f
output: three
""".replace("one: a *", "one: (a) *")


def child(tmp_path: Path, text: str) -> ta.Design:
    (tmp_path / "parent.yaml").write_text(PARENT)
    (tmp_path / "child.yaml").write_text(f"tensornet: 1\nname: child\nextends: ./parent.yaml\n{text}")
    return ta.load(tmp_path / "child.yaml")


def test_a_child_takes_everything(tmp_path: Path) -> None:
    assert child(tmp_path, "").as_dict() == ta.load(PARENT).as_dict() | {"name": "child"}


def test_new_steps_stand_before_the_next_known_one(tmp_path: Path) -> None:
    steps = "diagram:\n  p: x\n  two: one[n f] W[f] p[n f] -> n f\n  q: two\n  r: q\n  three: r\n"
    read = child(tmp_path, steps + "settings: {b: null}\n")
    assert list(read.diagram) == ["one", "p", "two", "q", "r", "three"]
    last = child(tmp_path, "diagram:\n  q: three\noutput: q\n")
    assert list(last.diagram) == ["one", "two", "three", "q"]
    removed = child(tmp_path, "settings: {b: null}\ndiagram:\n  q: two\n  three: null\noutput: q\n")
    assert list(removed.diagram) == ["one", "two", "q"]


def test_values_replace_and_null_removes(tmp_path: Path) -> None:
    text = "legs: {g: 4, f: 2 * g}\nsettings: {a: 7}\nweights: {W: {legs: f, init: ones}}\nabout: new\ncausal: false\n"
    read = child(tmp_path, text)
    assert read.as_dict()["legs"] == {"n": "query", "f": "2 * g", "g": 4}
    assert read.as_dict()["weights"] == {"W": {"legs": "f", "init": "ones"}}
    assert (read.settings["a"], read.about, read.causal, read.output) == (7, "new", False, "three")


def test_extends_is_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "sub").mkdir()
    (tmp_path / "base.yaml").write_text(PARENT)
    (tmp_path / "sub/a.yaml").write_text("tensornet: 1\nname: a\nextends: ../base.yaml\n")
    (tmp_path / "sub/b.yaml").write_text("name: b\nextends: a.yaml\n")
    assert list(ta.load(tmp_path / "sub/b.yaml").diagram) == ["one", "two", "three"]
    assert list(ta.load({"name": "c", "extends": str(tmp_path / "sub/b.yaml")}).diagram) == ["one", "two", "three"]


def test_a_circle_of_three(tmp_path: Path) -> None:
    for name, other in ("ab", "bc", "ca"):
        (tmp_path / f"{name}.yaml").write_text(f"tensornet: 1\nname: {name}\nextends: ./{other}.yaml\n")
    (problem,) = ta.check(tmp_path / "a.yaml")
    assert str(problem) == (
        f"{tmp_path}/c.yaml:3:10: circular-extends: './a.yaml' extends this design in turn.\n"
        "    extends: ./a.yaml\n             ^^^^^^^^\n  hint: remove 'extends' from one of them."
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_design_is_fine_and_reads_back(name: str) -> None:
    loaded = ta.load(name)
    again = ta.load(loaded.to_yaml())
    assert {problem.code for problem in ta.check(name)} <= {"negative-normalize"}  # a warning that its file explains
    assert again.as_dict() == loaded.as_dict()
    assert build(again) == build(loaded)
    assert again.to_yaml() == loaded.to_yaml()


@pytest.mark.parametrize("name", SHIPPED)
def test_all_sources_give_the_same_design(name: str) -> None:
    loaded, path = ta.load(name), library.path_of(name)
    built = ta.Design(**loaded.as_dict())
    for source in (path, str(path), loaded.as_dict(), loaded, built, loaded.to_yaml()):
        assert ta.load(source) == loaded
        assert build(ta.load(source)) == build(loaded)
    assert [problem.code for problem in ta.check(built)] == [problem.code for problem in ta.check(name)]


@pytest.mark.parametrize("name", ["mhsa", "transformer_xl", "fmm_fast_weight1", "epa"])
@pytest.mark.parametrize("again", [lambda d: pickle.loads(pickle.dumps(d)), copy.deepcopy, copy.copy])
def test_a_design_is_copied_and_pickled(name: str, again) -> None:
    loaded = ta.load(name)
    assert again(loaded) == loaded
    assert again(loaded).legs == loaded.legs
    assert build(again(loaded)) == build(loaded)


def test_a_design_does_not_change() -> None:
    loaded = ta.load("mhsa")
    data = loaded.as_dict()
    assert ta.load(loaded, legs={"f": 64}).legs["d"] == 8
    ta.load(data, legs={"f": 64})
    assert loaded.as_dict() == data == ta.load("mhsa").as_dict()
    assert ta.load(loaded).legs["d"] == 64


def test_python_errors_name_the_field() -> None:
    with pytest.raises(ta.DesignError) as raised:
        ta.Design(
            tensornet=1, name="p", legs={"n": "query"}, inputs={"x": 3}, diagram={"y": {"softmax": "m"}}, otput="y"
        )
    assert str(raised.value) == (
        "p: inputs.x: wrong-type: expected the legs of a tensor, got 3.\n"
        "  hint: write names separated by spaces, e.g. 'n f' (a scalar has []).\n"
        "p: diagram.y.of: missing-key: the key 'of' is missing in 'y'.\n"
        "  hint: e.g. 'of: Q[n h d] K[m h d] -> h n m'.\n"
        "p: otput: unknown-key: there is no key 'otput' here.\n"
        "  hint: did you mean 'output'?"
    )
    assert [problem.field for problem in raised.value.problems] == ["inputs.x", "diagram.y.of", "otput"]


def test_a_design_of_nothing_names_all_that_is_missing() -> None:
    with pytest.raises(ta.DesignError) as raised:
        ta.Design()
    required = ["tensornet", "name", "legs", "inputs", "diagram", "output"]
    assert [problem.field for problem in raised.value.problems] == required
    assert [problem.field for problem in ta.check("tensornet: 1\nabout: a\n")] == required[1:]


def test_a_diagram_built_in_python_is_checked_alike() -> None:
    built = ta.Design(tensornet=1, name="p", legs={"n": "query", "f": 8}, inputs={"x": "n f"},
                      diagram={"y": {"map": "relu", "of": "x[n g] -> n g"}}, output="y")  # fmt: skip
    (problem,) = ta.check(built)
    assert str(problem) == (
        "p: diagram.y.of: unknown-leg: there is no leg 'g'.\n    x[n g] -> n g\n        ^\n  hint: known here: f, n."
    )
    with pytest.raises(ta.DesignError, match="there is no leg 'g'"):
        build(built)
    with pytest.raises(ta.DesignError, match="there is no leg or setting 'q'"):
        built.model_copy(update={"declared_legs": {"n": "query", "f": "q"}}).legs


OVERRIDES = [
    ({"h": 4}, {}, {"h": 4, "d": 128}),
    ({"f": "8 * h"}, {}, {"f": 64, "d": 8}),
    ({"h": "head 4"}, {}, {"h": 4, "d": 128}),
    ({"m": "key 64"}, {}, {"m": None}),
]


@pytest.mark.parametrize(("legs", "settings", "sizes"), OVERRIDES)
def test_an_override_replaces_a_size_and_keeps_the_kind(legs, settings, sizes) -> None:
    loaded = ta.load("mhsa", legs=legs, settings=settings)
    assert {leg: loaded.legs[leg] for leg in sizes} == sizes
    assert build(loaded).leg["h"].kind == "head"
    assert build(ta.load("epa", settings={"k": 3})).settings == (("k", 3),)


REFUSED = [
    ({"legs": {"q": 3}}, "legs= argument:1:1: unknown-leg: the design has no leg 'q' to replace."),
    ({"settings": {"q": 3}}, "settings= argument:1:1: unknown-setting: the design has no setting 'q' to replace."),
    ({"legs": {"n": 3}}, "legs= argument:1:1: run-time-leg: leg 'n' is sized by the input at run time."),
    ({"legs": {"f": "head 3"}}, "legs= argument:1:1: run-time-leg: leg 'f' is a size; an override cannot change that."),
    (
        {"legs": {"h": "query"}},
        "legs= argument:1:1: run-time-leg: leg 'h' is a head leg; an override cannot change that.",
    ),
    ({"legs": {"h": 0}}, "legs= argument:1:4: bad-size: leg 'h' is 0, which is not a valid size."),
    ({"legs": {"h": 10**999}}, "legs= argument:1:9: number: '1e999' is not a finite number."),
    ({"legs": {"f": 10**999}}, "legs= argument:1:4: wrong-type: expected the size or kind of a leg, got "),
    ({"legs": {"f": None}}, "legs= argument:1:4: wrong-type: expected the size or kind of a leg, got nothing."),
    ({"legs": {"f": [3]}}, "legs= argument:1:4: wrong-type: expected the size or kind of a leg, got a list."),
]


@pytest.mark.parametrize(("arguments", "answer"), REFUSED)
def test_an_override_that_is_refused(arguments, answer) -> None:
    (problem,) = ta.check("mhsa", **arguments)
    assert str(problem).startswith(answer)
    assert problem.hint


@pytest.mark.parametrize("source", [3, None, b"mhsa", ["mhsa"], object()])
def test_a_source_that_is_none(source) -> None:
    kind = type(source).__name__
    assert refusal(ta.check, source) == f"a design must be a name, a path, YAML text, a dict or a Design, not {kind}."


def test_overrides_are_mappings() -> None:
    assert refusal(ta.load, "mhsa", legs=[("f", 3)]) == "legs= must be a mapping of names to numbers, not list."


def test_the_reserved_names_of_tensors_are_free_for_legs() -> None:
    legs = {"n": "query", "mask": "8"}
    assert codes(design("  y: x[n mask] W[mask] -> n\n", legs, inputs={"x": "n mask"}, weights={"W": "mask"})) == []


def test_a_step_may_be_called_like_a_word_of_the_checker() -> None:
    assert codes(design("  text: x[n f] -> n f\n  y: {map: relu, of: text}\n")) == []
    (problem,) = ta.check(design("  text: {map: rleu, of: x}\n  y: text\n"))
    assert problem.field == "diagram.text.map"
