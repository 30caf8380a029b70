"""First values by name: how wide they are, and what they leave as the design says."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.compiler import build
from tensornet_attn.models.base import random_matrices, residual_outputs

WIDTH, DEPTH = 96, 4


def model(init: str, mixer: str = "mhsa", mlp: str = "mlp") -> ta.models.LanguageModel:
    torch.manual_seed(0)
    layers = [{"mixer": mixer, "mlp": mlp, "repeat": DEPTH}]
    return ta.models.LanguageModel(
        vocabulary=50, length=8, width=WIDTH, layers=layers, init=init, positions="learned", tied=False
    )


def spread(made: ta.models.LanguageModel, name: str) -> float:
    found = [value.detach().flatten() for key, value in made.named_parameters() if key.endswith(name)]
    return float(torch.cat(found).std())


def near(found: float, wanted: float) -> bool:
    return abs(found / wanted - 1) < 0.08


FAN = WIDTH**-0.5
WANTED = {  # the std of: embedding, mixer Wq, mixer Wo, mlp W1, mlp W2, output
    "design": (0.02, FAN, FAN, (2 / (5 * WIDTH)) ** 0.5, (2 / (5 * WIDTH)) ** 0.5, (2 / (50 + WIDTH)) ** 0.5),
    "normal": (0.02,) * 6,
    "gpt2": (0.02, 0.02, 0.02 * 8**-0.5, 0.02, 0.02 * 8**-0.5, 0.02),
    "xavier": (FAN, FAN, FAN, (2 / (5 * WIDTH)) ** 0.5, (2 / (5 * WIDTH)) ** 0.5, (2 / (50 + WIDTH)) ** 0.5),
    "transformer_xl": (0.02,) * 6,
    "mgk": (0.02,) * 6,
    "fmm": (0.02,) * 6,
    "lra": (0.02, FAN * 3**-0.5, FAN * 3**-0.5, FAN * 3**-0.5, FAN / 2 * 3**-0.5, FAN * 3**-0.5),
    "epa": (FAN, FAN * 0.5**0.5, FAN * 0.5**0.5, FAN * 0.5**0.5, FAN / 2 * 0.5**0.5, FAN),
}


@pytest.mark.parametrize("init", WANTED)
def test_how_wide_first_values_are(init: str) -> None:
    made = model(init)
    names = "embedding.weight mixer.design.Wq mixer.design.Wo mlp.design.W1 mlp.design.W2 output.weight".split()
    found = [spread(made, name) for name in names]
    assert all(map(near, found, WANTED[init])), found
    assert near(spread(made, "positions.table"), WANTED[init][0])
    assert spread(made, "mlp.design.b1") == 0
    if init in ("mgk", "fmm", "transformer_xl"):
        assert near(spread(made, "mixer.norm.weight"), 0.02)
    else:
        assert spread(made, "mixer.norm.weight") == 0


def test_every_name_is_known_on_both_sides() -> None:
    assert set(WANTED) == set(ta.models.INITIALISATIONS)
    assert ta.models.json_schema()["$defs"]["LanguageModelConfig"]["properties"]["init"]["enum"] == list(WANTED)


def test_experts_have_their_own_fan_in_times_the_depth() -> None:
    made = model("epa", "epa", "sigma_moe")
    assert near(spread(made, "mixer.design.Wv"), FAN * 0.5**0.5)
    assert near(spread(made, "mlp.design.W2"), (16 * 128) ** -0.5 * 0.5**0.5)
    assert near(spread(model("normal", "epa", "sigma_moe"), "mixer.design.Wo"), 0.02)


def test_other_weights_start_as_the_design_says() -> None:
    graph = build(ta.load("smgk"))
    assert set(random_matrices(graph)) == {"Wq", "Wk", "Wv", "Wo"}
    made = model("normal", "smgk")
    assert near(spread(made, "mixer.design.b"), 1)
    assert spread(made, "mixer.design.logpi") == 0


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("mhsa", {"Wo"}),
        ("mlp", {"W2", "b2"}),
        ("epa", {"Wo"}),
        ("sigma_moe", {"W2"}),
        ("thsa", {"Wo"}),
        ("differential", {"Wo"}),
        ("fmm1", {"Wo"}),
    ],
)
def test_which_weights_write_to_the_residual_stream(name: str, wanted: set[str]) -> None:
    assert residual_outputs(build(ta.load(name))) == wanted
