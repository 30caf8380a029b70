"""A user's own layer beside ours: made with the sizes of the design, compared by values, or measured uncompared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import tensornet_attn as ta
from tensornet_attn.bench.bench import Bench, Options
from tensornet_attn.bench.case import PASSES, Case
from tensornet_attn.bench.own import maker_named, own_layer
from tests import own_modules
from tests.bench.schema import SCHEMA
from tests.refusals import refusal

LAYERS = """
import torch
import torch.nn.functional as F
from torch import nn


class Same(nn.Module):
    def __init__(self, f, h, d, causal=False):
        super().__init__()
        self.causal = causal
        for name in ("Wq", "Wk", "Wv"):
            setattr(self, name, nn.Parameter(torch.empty(f, h, d)))
        self.Wo = nn.Parameter(torch.empty(h, d, f))

    def forward(self, x):
        q, k, v = (torch.einsum("bnf,fhd->bhnd", x, W) for W in (self.Wq, self.Wk, self.Wv))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return torch.einsum("bhnd,hdf->bnf", o, self.Wo)


class Unlike(nn.Module):
    def __init__(self, f, h):
        super().__init__()
        self.heads = h
        self.qkv, self.out = nn.Linear(f, 3 * f, bias=False), nn.Linear(f, f)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Fused(Unlike):
    def weights_from(self, weights):
        qkv = torch.cat([weights[name].flatten(1) for name in ("Wq", "Wk", "Wv")], 1)
        out = weights["Wo"].flatten(0, 1)
        return {"qkv.weight": qkv.T, "out.weight": out.T, "out.bias": torch.zeros(len(out.T))}


class Detached(Fused):
    def weights_from(self, weights):
        return super().weights_from({name: value.detach() for name, value in weights.items()})


class Partly(Fused):
    def weights_from(self, weights):
        return super().weights_from(weights | {"Wk": weights["Wk"].detach()})


class Short(Fused):
    def weights_from(self, weights):
        return {name: value for name, value in super().weights_from(weights).items() if name != "out.bias"}


class Turned(Fused):
    def weights_from(self, weights):
        return super().weights_from(weights) | {"qkv.weight": weights["Wq"].flatten(1)}


class Odd(Fused):
    def weights_from(self, weights):
        return super().weights_from(weights) | {"qkv": weights["Wq"]}


class Text(Fused):
    def weights_from(self, weights):
        return "weights"


class Wrong(Same):
    def forward(self, x):
        y = super().forward(x)
        return 1.001 * y + 0.01 * (y - y.detach())


class WrongGradient(Fused):
    def forward(self, x):
        y = super().forward(x)
        return y + 0.01 * (self.qkv.weight - self.qkv.weight.detach()).sum()


class Pair(Same):
    def forward(self, x):
        return super().forward(x), None


class Flat(Same):
    def forward(self, x):
        return super().forward(x)[0]


class Wide(nn.Module):
    def __init__(self, f, dim):
        super().__init__()


def made(f, h, d, causal):
    return Same(f, h, d, causal)


def nothing(f):
    return f
"""
QUICK: dict[str, Any] = {"repeats": 3, "seconds": 0.0}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_modules.write(monkeypatch, tmp_path, "own_layers", LAYERS)
    return tmp_path


def case(name: str = "mhsa", **rest: Any) -> Case:
    return Case(ta.load(name, legs={"f": 8, "h": 2}), 6, 2, **rest)


def entries(layer: Any, subject: Case | None = None, **options: Any) -> list[Any]:
    """The entry of a layer in both passes."""
    against = [f"own_layers:{layer}" if isinstance(layer, str) else layer]
    results = Bench(Options(against, passes=PASSES, **QUICK, **options)).results([subject or case()])
    return [result.entries[-1] for result in results]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("layer", ["Same", "Fused", "made"])
def test_a_layer_that_computes_the_design_is_measured(layer: str, dtype: str) -> None:
    for entry in entries(layer, case(dtype=dtype)):
        assert (entry.status, entry.reason, entry.note, entry.checked_n) == ("measured", "", "", 6)
        assert entry.error <= {"float64": 1e-14, "float32": 1e-6, "bfloat16": 2e-2}[dtype]
        assert entry.seconds.median > 0


def test_gradients_are_those_of_the_weights_of_the_design() -> None:
    """Each of them is compared, although the layer stores them in one tensor."""
    layer = own_layer("own_layers:Fused", case(dtype="float64"))
    values = {"output": layer.weights["Wq"], **{name: value.detach() for name, value in layer.state.items()}}
    ours = layer.ours(values)
    assert set(ours) == {"output", "Wq", "Wk", "Wv", "Wo"}
    for name, weight in layer.weights.items():  # the mapping copies each weight to one place
        assert ours[name].equal(weight)


def test_causal_comes_from_the_case() -> None:
    assert {entry.status for entry in entries("made", case(causal=True))} == {"measured"}
    assert {entry.status for entry in entries("Fused", case(causal=True))} == {"wrong"}


def test_as_a_class() -> None:
    same = maker_named("own_layers:Same")
    assert Options([same]).names == ["torch", "own_layers:Same"]
    assert {entry.status for entry in entries(same)} == {"measured"}


WRONG = [
    ("Wrong", ("output", "gradient of W")),
    ("WrongGradient", (None, "gradient of W")),
    ("Partly", (None, "gradient of Wk")),
]


@pytest.mark.parametrize(("layer", "words"), WRONG)
def test_wrong_values_are_not_timed(layer: str, words: tuple[str | None, ...]) -> None:
    for entry, what in zip(entries(layer, case(dtype="float64")), words, strict=True):
        assert entry.status == ("measured" if what is None else "wrong")
        assert what is None or f"the relative error of its {what}" in entry.reason
        assert (entry.seconds is None) == (what is not None)


HINT = (
    "so its results cannot be compared; add the method 'weights_from' to it, or measure it without a comparison: "
    "--uncompared."
)
UNLIKE = [
    ("mhsa", "Unlike", "its parameter 'qkv.weight' [24, 8] is no weight of 'mhsa'"),
    ("mqa", "Same", "its parameter 'Wk' [8, 2, 4] is no weight of 'mqa'"),
    ("fmm1", "Same", "it has no parameter 'w1' [2], a weight of 'fmm1'"),
]


@pytest.mark.parametrize(("design", "layer", "reason"), UNLIKE)
def test_weights_that_do_not_map(design: str, layer: str, reason: str) -> None:
    subject = case(design)
    for entry in entries(layer, subject):
        assert (entry.status, entry.reason) == ("skipped", f"{reason}, {HINT}")
    for entry in entries(layer, subject, uncompared=True):
        assert (entry.status, entry.reason, entry.note) == ("measured", "", f"not compared: {reason}")
        assert (entry.error, entry.checked_n, entry.floor) == (None, None, None)
        assert entry.seconds.median > 0


FAILED = [
    ("Detached", "gives no tensor with a gradient: compute all of them from its argument, without detach or no_grad."),
    ("Short", "gives no 'out.bias' [8]; add it."),
    ("Turned", "gives 'qkv.weight' the shape [8, 8]; the layer has [24, 8]."),
    ("Odd", "gives 'qkv', which is not in the layer's state dict: known here: out.bias, out.weight, qkv.weight."),
    ("Text", "returns str; return a dict of tensors by the names of the layer's state dict."),
]


@pytest.mark.parametrize(("layer", "words"), FAILED)
def test_a_mapping_that_is_wrong(layer: str, words: str) -> None:
    for entry in entries(layer):
        assert (entry.status, entry.reason) == ("failed", f"'weights_from' of 'own_layers:{layer}' {words}")


def test_a_layer_that_cannot_be_made_or_called() -> None:
    right = "return a tensor of shape [2, 6, 8], the output of the design."
    for layer, reason in (
        ("Pair", f"'own_layers:Pair' returns tuple; {right}"),
        ("Flat", f"'own_layers:Flat' returns a tensor of shape [6, 8]; {right}"),
        ("nothing", "'own_layers:nothing' made 8; return an nn.Module."),
        (
            "Wide",
            "'own_layers:Wide' needs 'dim', which is no leg or setting of 'mhsa': known here: causal, d, f, h. Give it "
            "a default, or name a function that makes the layer.",
        ),
    ):
        assert {(entry.status, entry.reason) for entry in entries(layer)} == {("failed", reason)}
    assert {entry.status for entry in entries("Pair", uncompared=True)} == {"failed"}


def test_a_name_that_is_wrong(folder: Path) -> None:
    told = refusal(Options, ["own_layers:Fussed"])
    assert told == (
        f"the contestant 'own_layers:Fussed': module 'own_layers' ('{folder}/own_layers.py') has no 'Fussed'; "
        "did you mean 'Fused'?"
    )
    assert refusal(Options, ["own_layer:Fused"]).endswith("did you mean 'own_layers'?")


def test_on_the_command_line(run, folder: Path) -> None:
    layers = ",".join(f"own_layers:{name}" for name in ("Fused", "Unlike"))
    options = ("--n", "4", "--legs", "f=8,h=2", "--repeats", "3", "--seconds", "0", "--against", layers)
    outcome = run("bench", "mhsa", *options, "-o", "results.json")
    assert (outcome.code, outcome.err) == (0, "")
    jsonschema.validate(json.loads((folder / "results.json").read_text()), SCHEMA)
    assert outcome.out.count("own_layers:Unlike  skipped: its parameter 'qkv.weight' [24, 8] is no weight of") == 2
    outcome = run("bench", "mhsa", *options, "--uncompared", "--jobs", "2")
    assert outcome.code == 0
    assert outcome.out.count("not compared: its parameter 'qkv.weight' [24, 8] is no weight of 'mhsa'") == 2
    outcome = run("bench", "mhsa", *options[:-1], "own_layers:Wrong")
    assert outcome.code == 1
    assert "'own_layers:Wrong' of 'mhsa', n 4, forward: the relative error of its output is 1.0e-03" in outcome.err
    outcome = run("bench", "mhsa", *options[:-1], "own_layers:Pair")
    assert outcome.code == 1
    assert "'own_layers:Pair' of 'mhsa', n 4, forward: 'own_layers:Pair' returns tuple; return a tensor" in outcome.err
    outcome = run("bench", "--targets", "--uncompared")
    assert (outcome.code, "--targets does not use --uncompared" in outcome.err) == (2, True)
