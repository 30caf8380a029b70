"""Misspelt keywords and values of the public functions: each is named in quotes, with the nearest that is known."""

from __future__ import annotations

import inspect
import pickle
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import tensornet_attn as ta
from tensornet_attn import compiler
from tests.refusals import refusal

MODEL = {
    "tensornet": 1,
    "model": {"kind": "language_model", "vocabulary": 9, "length": 4, "width": 16, "layers": ["mhsa"]},
}
KEYWORDS: dict[str, tuple[Callable[[], Any], str]] = {
    "compile": (lambda: ta.compile("mhsa", bakend="x"), "'bakend'; did you mean 'backend'?"),
    "explain": (lambda: ta.explain("mhsa", buckt="decoding"), "'buckt'; did you mean 'bucket'?"),
    "reference": (lambda: ta.reference("mhsa", devise="cpu"), "'devise'; did you mean 'device'?"),
    "emit_source": (lambda: ta.emit_source("mhsa", memry="2GiB"), "'memry'; did you mean 'memory'?"),
    "cost": (lambda: ta.cost("mhsa", batchh=1), "'batchh'; did you mean 'batch'?"),
    "rewrites": (lambda: ta.rewrites("mhsa", legs={"f": 8}), "'legs'; give it to load(design, legs=...)"),
    "load": (lambda: ta.load("mhsa", leg={"f": 8}), "'leg'; did you mean 'legs'?"),
    "restore": (lambda: ta.restore("layer.pt", devise="cpu"), "'devise'; did you mean 'device'?"),
    "convert": (lambda: ta.convert(nn.Identity(), "mhsa", leg={}), "'leg'; did you mean 'legs'?"),
    "convert_model": (lambda: ta.convert_model(nn.Identity(), "mhsa", seting={}), "'seting'; did you mean 'settings'?"),
    "train": (lambda: ta.train(out="nowhere", stepss=3), "'stepss'; did you mean 'steps'?"),
    "search": (lambda: ta.search("nothing", trialss=3), "'trialss'; did you mean 'trials'?"),
    "make": (lambda: ta.models.make(MODEL, dtyp=None), "'dtyp'; did you mean 'dtype'?"),
    "report": (lambda: ta.report(x=1), "'x'; known here: band, notes, sections, title."),
}


@pytest.mark.parametrize("name", KEYWORDS)
def test_an_unknown_keyword(name: str) -> None:
    call, told = KEYWORDS[name]
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == f"{name}() got an unexpected keyword argument {told}"


def test_every_public_function_is_checked_or_takes_inputs_by_name() -> None:
    functions = {name: value for name in ta.__all__ if inspect.isfunction(value := getattr(ta, name))}
    unchecked = {name for name, value in functions.items() if not hasattr(value, "__wrapped__")}
    # their modules check the names of inputs
    names = {"attention_maps", "attention_scores", "expert_selections", "load_converted", "model_sections", "verify"}
    assert unchecked == names


def test_whatever_is_public_and_no_function_is_itself() -> None:
    assert ta.models.INITIALISATIONS is import_module("tensornet_attn.models.base").INITIALISATIONS
    for package in (ta, ta.models):
        for name in package.__all__:
            value = getattr(package, name)
            assert hasattr(value, "__wrapped__") <= inspect.isfunction(value), name


def test_a_checked_function_is_one_function_with_its_documentation() -> None:
    assert ta.compile is ta.compile
    assert ta.compile.__wrapped__ is compiler.compile  # type: ignore[attr-defined]
    assert ta.compile.__doc__ == compiler.compile.__doc__
    assert inspect.signature(ta.compile) == inspect.signature(compiler.compile)
    for function in (ta.compile, ta.load, ta.models.load):
        assert pickle.loads(pickle.dumps(function)) is function


def test_other_mistakes_stay_those_of_the_function() -> None:
    with pytest.raises(TypeError, match=r"cost\(\) missing 1 required positional argument: 'design'"):
        ta.cost()  # type: ignore[call-arg]


VALUES: list[tuple[Callable[[], Any], str]] = [
    (lambda: ta.compile("mhsa", backend="tritn"), "there is no backend 'tritn'; did you mean 'triton'?"),
    (lambda: ta.explain("mhsa", "tritn"), "there is no backend 'tritn'; did you mean 'triton'?"),
    (lambda: ta.compile("mhsa", workload="trainning"), "there is no workload 'trainning': did you mean 'training'?"),
    (
        lambda: ta.compile("mhsa", device_costs="h20"),
        "there is no device 'h20' in the cost table: did you mean 'h200'?",
    ),
    (lambda: ta.cost("mhsa", dtype="float3"), "there is no dtype 'float3' in the cost model: did you mean 'float32'?"),
    (
        lambda: ta.load("mhsaa"),
        "mhsaa: unknown-design: there is no shipped design 'mhsaa'.\n"
        "  hint: did you mean 'mhsa'? A path contains '/' or ends in '.yaml'.",
    ),
    (
        lambda: ta.load("mhsa", legs={"hh": 8}),
        "legs= argument:1:1: unknown-leg: the design has no leg 'hh' to replace.\n    hh: 8\n    ^^^^^\n"
        "  hint: did you mean 'h'?",
    ),
]


@pytest.mark.parametrize(("call", "message"), VALUES)
def test_a_misspelt_value(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ta.TensornetError) as error:
        call()
    assert str(error.value) == message


def test_a_model_refuses_options_of_a_single_design(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    ta.save(ta.models.make(MODEL), path)
    assert refusal(ta.restore, path, workload="decoding") == (
        f"'{path}' holds a model, but 'workload' is an option of single designs: remove it."
    )


def test_a_warning_names_the_line_that_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensornet_attn.runtime.triton.target.reasons_against", lambda dtype=None: ["there is no GPU"])
    for compile_design in (ta.compile, compiler.compile):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            compile_design("mhsa", backend="triton")
        assert [warning.filename for warning in found] == [__file__]
