"""Study files and options: what they stand for, and what is wrong with them, each in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensornet_attn.errors import DesignError, InputError
from tensornet_attn.search import load
from tensornet_attn.search.study import Limit, Rung, Study, space_data, study_data, yaml_of
from tensornet_attn.search.study_file import read
from tests.search.made import SPACE

SPACE_FILE = "space: 1\nname: tiny\nbase: [mhsa, ./own.yaml]\nlegs: {f: 16, h: [2, 4]}\n"
OWN = "tensornet: 1\nname: own\nextends: mhsa\n"
FILE = """\
study: 1
space: spaces/tiny.yaml
rungs:
- {task: mqar, options: {length: 32}, run: {steps: 5}, rates: [1e-3]}
- {task: copy, run: {steps: 9}}
trials: 7
bounds: {macs: 1e6, quality: 0.5, parameters: {least: 10, most: 1000}}
"""


def written(folder: Path, text: str = FILE) -> Path:
    (folder / "spaces").mkdir(exist_ok=True)
    (folder / "spaces" / "tiny.yaml").write_text(SPACE_FILE)
    (folder / "spaces" / "own.yaml").write_text(OWN)
    (folder / "study.yaml").write_text(text)
    return folder / "study.yaml"


def test_a_file_with_its_space_beside_it(tmp_path: Path) -> None:
    study = read(written(tmp_path), {"seed": 3, "trials": 9})
    assert [rung.task for rung in study.rungs] == ["mqar", "copy"]
    assert study.rungs[0].run == {"steps": 5, "width": 16}  # that of the designs
    assert (study.seed, study.trials, study.proposals) == (3, 9, 18)
    assert study.bounds == {
        "macs": Limit(most=1e6),
        "quality": Limit(least=0.5),
        "parameters": Limit(least=10, most=1000),
    }
    assert load(study.space).hash == load(tmp_path / "spaces" / "tiny.yaml").hash
    assert [base["name"] for base in study.space["base"]] == ["mhsa", "own"]


def test_a_space_inside_the_file(tmp_path: Path) -> None:
    text = FILE.replace("spaces/tiny.yaml", "{space: 1, base: spaces/own.yaml, legs: {f: 16}}")
    assert list(load(read(written(tmp_path, text), {}).space).bases) == ["own"]


def test_a_study_is_read_back_from_what_is_written_of_it(tmp_path: Path) -> None:
    study = read(written(tmp_path), {})
    (tmp_path / "again.yaml").write_text(yaml_of(study))
    assert read(tmp_path / "again.yaml", {}) == study
    assert read(study_data(study), {}) == study


WIDE: dict[str, Any] = {
    "space": 1,
    "name": "wide",
    "about": "All that a space can say.",
    "base": ["mhsa", "moa"],
    "legs": {"f": 64, "h": {"divisors": 8}, "d": {"range": [2, 8]}},
    "settings": {"k": {"log": [1, 8]}},
    "alternatives": {
        "K": {
            "normed": {"step": {"rmsnorm": "d", "of": "x[m f] Wk[f h d] -> m h d"}},
            "one": {
                "weights": {"Wk": "f d"},
                "steps": {"A": {"softmax": "m", "scale": "d ** -0.5", "of": "Q[n h d] K[m d] -> h n m"}},
                "step": "x[m f] Wk[f d] -> m d",
            },
        }
    },
    "moves": {"share": {"g": [2, 4]}, "kernel": None, "split": {"band": {"range": [3, 9]}}},
    "most": 2,
    "bounds": {
        "n": 32,
        "batch": 2,
        "macs": 10**9,
        "parameters": {"least": 5},
        "activations": {"least": 0, "most": 10**9},
    },
}


@pytest.mark.parametrize(
    "space", [SPACE, WIDE, {"space": 1, "base": "mhsa", "settings": {}}], ids=["tiny", "wide", "bare"]
)
def test_a_space_is_read_back_from_what_is_written_of_it(space: dict[str, Any]) -> None:
    one = load(space)
    data = space_data(one)
    assert load(data).hash == one.hash
    assert (load(data).name, load(data).about) == (one.name, one.about)
    assert space_data(load(data)) == data


def rungs(**given: Any) -> tuple[Rung, ...]:
    return read(None, {"space": SPACE, **given}).rungs


def test_a_task_alone_comes_after_a_short_mqar() -> None:
    first = Rung(task="mqar", options={"length": 64}, run={"steps": 750, "mlp": "none", "width": 16})
    assert rungs(task="copy") == (first, Rung(task="copy", run={"width": 16}))
    assert rungs(task="mqar", options={"length": 128})[0] == first
    run = {"steps": 30, "depth": 1, "mlp": "mlp", "batch": 8}
    short = Rung(
        task="mqar", options={"length": 64}, run={"steps": 30, "mlp": "mlp", "depth": 1, "width": 16}, rates=(0.1,)
    )
    last = Rung(task="copy", run={**run, "width": 16}, rates=(0.1,), measure="loss")
    assert rungs(task="copy", run=run, rates=[0.1], measure="loss") == (short, last)
    assert [rung.measure for rung in rungs(task="char_lm")] == ["accuracy", "loss"]


def test_a_task_as_short_as_the_first_one_and_a_function_are_the_only_rung() -> None:
    assert rungs(task="mqar", options={"length": 32}) == (Rung(task="mqar", options={"length": 32}, run={"width": 16}),)
    function = "tests.search.functions:quality"
    assert rungs(task=function, options={"a": 1}) == (Rung(task=function, options={"a": 1}),)


def test_options_win_over_the_file_and_a_task_over_its_rungs(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert [rung.task for rung in read(path, {"task": "listops_mini"}).rungs] == ["mqar", "listops_mini"]
    path = written(tmp_path, "study: 1\nspace: spaces/tiny.yaml\ntask: copy\nrates: [0.1]\n")
    assert [rung.rates for rung in read(path, {"options": {"length": 64}}).rungs] == [(0.1,), (0.1,)]
    assert read(path, {"rungs": [{"task": "mqar"}]}).rungs == (Rung(task="mqar", run={"width": 16}),)


def told(source: Any, options: dict[str, Any]) -> str:
    with pytest.raises((DesignError, InputError)) as error:
        read(source, options)
    return "\n".join(line for line in str(error.value).splitlines() if not line.startswith("    "))


NOT_BOTH = "a study has 'rungs' and a 'task': give only one of them."
HERE = {"space": SPACE, "task": "mqar"}
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"space": None}, "a study needs a 'space': the path of a space file, or the content of one."),
    ({"space": 3}, "'space' must be the path of a space file, or the content of one, got 3."),
    ({"space": "nope.yaml"}, "'nope.yaml' cannot be read: No such file or directory."),
    ({"space": "mhsa"}, "'mhsa' cannot be read: No such file or directory."),
    ({"task": None}, "a study needs a 'task', e.g. mqar, or 'rungs', a list of tasks."),
    ({"task": "mqarr"}, "rung 2: there is no task 'mqarr': did you mean 'mqar'?"),
    (
        {"task": "reverse"},
        "rung 2: task 'reverse' needs an encoder and a decoder, but a study has one stack: try byte_lm, char_lm, "
        "copy, image_generation, listops, listops_mini, lra_image, lra_listops, lra_pathfinder, lra_retrieval, "
        "lra_text, mqar, selective_copy, text_classification, uea, wikitext.",
    ),
    (
        {"options": {"length": "x"}},
        "rung 2: task 'mqar', option 'length': input should be a valid integer, unable to parse string as an "
        "integer, got 'x'.",
    ),
    ({"options": 3}, "option 'rungs 1 options': input should be a valid dictionary, got 3."),
    ({"run": {"lr": 1}}, "rung 1: leave out 'lr' under 'run': it is set by 'rates'."),
    ({"run": {"design": "mhsa"}}, "rung 1: leave out 'design' under 'run': it is set by the space."),
    ({"run": {"stepss": 1}}, "rung 1: a run has no option 'stepss': did you mean 'steps'?"),
    (
        {"run": {"steps": 0}},
        "rung 1: option 'steps': input should be greater than or equal to 1, got 0; it is the number of "
        "optimiser steps.",
    ),
    (
        {"run": {"width": 64}},
        "rung 1: the input of the designs of 'tiny' has the width 16, but the rung has 'width: 64'; leave it out.",
    ),
    ({"rates": [0]}, "option 'rungs 1 rates 1': input should be greater than 0, got 0."),
    ({"trials": 0}, "option 'trials': input should be greater than or equal to 1, got 0."),
    ({"triials": 1}, "a study has no option 'triials': did you mean 'trials'?"),
    ({"objectives": []}, "option 'objectives': give at least one, got a list."),
    (
        {"objectives": ["quality", "mac"]},
        "there is no objective 'mac'; choose from quality, macs, parameters, activations, decoding_state, latency.",
    ),
    ({"objectives": ["macs", "macs"]}, "the objective 'macs' is given twice: remove one."),
    (
        {"bounds": {"mac": 5}},
        "there is no objective 'mac'; choose from quality, macs, parameters, activations, decoding_state, latency.",
    ),
    ({"bounds": {"macs": {"last": 5}}}, "a study has no option 'bounds macs last': did you mean 'least'?"),
    (
        {"bounds": {"macs": "many"}},
        "option 'bounds macs': input should be a valid dictionary or instance of Limit, got the text 'many'.",
    ),
    (
        {"bounds": {"macs": {"least": 5, "most": 2}}},
        "the bound on 'macs' has least 5 above most 2; e.g. 1000000, or {least: 1000, most: 1000000}.",
    ),
    ({"fresh_seeds": 4}, "option 'fresh_seeds': input should be greater than or equal to 5, got 4."),
    ({"rungs": [{"task": "mqar"}]}, NOT_BOTH),
    (
        {"rungs": [{"task": "mqar"}], "task": None, "rates": [0.1]},
        "'rates' belongs to a 'task', but this study has 'rungs': move 'rates' into a rung.",
    ),
    (
        {"rungs": [{"tasks": 3}], "task": None},
        "a study needs 'rungs 1 task': docs/search.md lists all keys.\n"
        "a study has no option 'rungs 1 tasks': did you mean 'task'?",
    ),
    (
        {"space": {**SPACE, "legs": {"f": [16, 32]}}},
        "leg 'f' of 'mhsa' is the width of the model, which must not vary: give it one size in the space 'tiny', "
        "e.g. 'f: 16'.",
    ),
    (
        {
            "space": {
                "space": 1,
                "base": ["mhsa", {"tensornet": 1, "name": "small", "extends": "mhsa", "legs": {"f": 64}}],
            }
        },
        "the bases of the space 'space' have different widths: 512 on leg 'f' of 'mhsa', 64 on leg 'f' of "
        "'small'; give all the same width.",
    ),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS, ids=range(len(OPTIONS)))
def test_options(options: dict[str, Any], message: str) -> None:
    assert told(None, {**HERE, **options}) == message


PLACES: list[tuple[str, list[str]]] = [
    (
        "trials: 3\n",
        ["study.yaml:1:1: version: expected version 1 of study files, got nothing.", "  hint: write 'study: 1'."],
    ),
    (
        FILE + "trails: 3\n",
        ["study.yaml:8:1: unknown-key: there is no key 'trails' here.", "  hint: did you mean 'trials'?"],
    ),
    (
        FILE.replace("run: {steps: 9}", "kep: 0.5"),
        ["study.yaml:5:16: unknown-key: there is no key 'kep' here.", "  hint: did you mean 'keep'?"],
    ),
    (
        FILE.replace("trials: 7", "trials: many"),
        [
            "study.yaml:6:9: wrong-value: trials: input should be a valid integer, got the text 'many'.",
            "  hint: docs/search.md lists all keys.",
        ],
    ),
    (
        FILE.replace("task: copy, ", ""),
        ["study.yaml:5:3: wrong-value: rungs 2 task: field required.", "  hint: docs/search.md lists all keys."],
    ),
    (FILE + "task: copy\n", [NOT_BOTH]),
    ("", ["'study.yaml' is not a study file: it must be a mapping that begins with 'study: 1'."]),
    ("study: 1\n", ["a study needs a 'space': the path of a space file, or the content of one."]),
]


@pytest.mark.parametrize(("text", "lines"), PLACES, ids=range(len(PLACES)))
def test_places(tmp_path: Path, text: str, lines: list[str]) -> None:
    assert told(written(tmp_path, text), {}).replace(f"{tmp_path}/", "").splitlines() == lines


def test_what_is_wrong_in_the_space_is_told_at_its_place(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "spaces" / "tiny.yaml").write_text(SPACE_FILE.replace("h: [2, 4]", "hh: 2"))
    assert told(path, {}).replace(f"{tmp_path}/", "") == (
        "spaces/tiny.yaml:4:15: unknown-name: no base has a leg 'hh'.\n  hint: did you mean 'h'?"
    )
    path = written(tmp_path, FILE.replace("spaces/", ""))
    assert told(path, {}).replace(f"{tmp_path}/", "") == "'tiny.yaml' cannot be read: No such file or directory."


def test_a_study_may_be_given_as_its_parts() -> None:
    study = Study(space=SPACE, rungs=(Rung(task="mqar"),))
    given = {"space": load(SPACE), "rungs": study.rungs, "bounds": {"macs": Limit(most=5)}, "objectives": ["quality"]}
    assert read(None, given).bounds == {"macs": Limit(most=5)}
    assert read({**HERE, "rates": (0.5,)}, {}).rungs[0].rates == (0.5,)
