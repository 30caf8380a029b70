"""Designs of one's own in the places of a model's attentions, with weights of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensornet_attn.convert.loading import load_converted
from tensornet_attn.convert.replace import convert_model
from tensornet_attn.errors import InputError
from tests.convert import models
from tests.convert.test_model import swapped
from tests.refusals import refusal

OWN = """
tensornet: 1
name: sigmoid_heads
legs: {n: query, m: key, e: 16, h: head 4, d: e / h}
inputs: {x: n e}
weights: {Wq: e h d, Wk: e h d, Wv: e h d, Wo: h d e}
diagram:
  Q: x[n e] Wq[e h d] -> n h d
  K: x[m e] Wk[e h d] -> m h d
  V: x[m e] Wv[e h d] -> m h d
  A: {keep: m, of: {map: sigmoid, of: "(d ** -0.5) * Q[n h d] K[m h d] -> h n m"}}
  y: A[h n m] V[m h d] Wo[h d e] -> n e
output: y
"""


@pytest.mark.parametrize("design", ["mla", "fmm1_causal", "transformer_xl", "own file"])
def test_a_language_model_trains_and_generates(design: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    source = str(path) if design == "own file" else design
    torch.manual_seed(0)
    model = convert_model(models.model_of("llama"), source, init="fresh", legs={"h": 4}).train()
    given, losses = models.inputs("llama", "left"), []
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(5):
        optimiser.zero_grad()
        loss = model(**given, labels=given["input_ids"]).loss
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert all(weight.grad is not None for module in swapped(model) for weight in module.parameters())
    model.eval()
    options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    assert torch.equal(model.generate(**given, **options), model.generate(**given, **options, use_cache=False))


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "bloom", "mpt"])
def test_the_input_s_leg_takes_the_model_s_width(name: str) -> None:
    model = convert_model(models.made(name).double(), OWN, init="fresh")
    for module in swapped(model):
        assert module.design.design.legs["e"] == 24
        assert module.design.Wq.dtype == torch.float64
        assert module.design.plan.graph.causal == (name not in ("bert", "vit"))
    assert models.outputs(model, models.inputs(name)).isfinite().all()


def test_what_could_not_be_read_may_be_replaced() -> None:
    """What an attention computes does not matter to a design that starts afresh."""
    model = models.made("llama")
    model.model.layers[0].self_attn.sinks = nn.Parameter(torch.zeros(4))
    with pytest.raises(InputError):
        convert_model(model, "gqa")
    convert_model(model, "gqa", init="fresh", legs={"j": 3})
    assert len(swapped(model)) == 2


def test_torch_layers() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 4, 32, batch_first=True), 2)
    convert_model(encoder, OWN, init="fresh")
    assert encoder(torch.randn(2, 5, 24)).shape == (2, 5, 24)


WIDE = {"tensornet": 1, "name": "wide", "legs": {"n": "query", "f": 24, "o": 30}, "inputs": {"x": "n f"}}
WIDE |= {"weights": {"W": "f o"}, "diagram": {"y": "x[n f] W[f o] -> n o"}, "output": "y"}
HEADS = {"tensornet": 1, "name": "heads", "legs": {"n": "query", "h": 4, "d": 6}, "inputs": {"x": "n h d"}}
HEADS |= {"weights": {"W": "h d"}, "diagram": {"y": "x[n h d] W[h d] -> n h d"}, "output": "y"}
WHERE = "encoder.layer.0.attention (BertAttention) cannot become "


@pytest.mark.parametrize(
    ("design", "options", "message"),
    [
        (WIDE, {}, WHERE + "'wide': its output has the legs n o 30, but must be [batch, n, 24]."),
        (HEADS, {}, WHERE + "'heads': 'x' has the legs n h d, but its input is [batch, n, 24]."),
        (OWN, {"legs": {"e": 32}}, WHERE + "'sigmoid_heads': leg 'e' is 32, but its input has width 24."),
        ("cross", {"legs": {"h": 4}}, WHERE + "'cross': it needs x, memory, but is called with one input."),
    ],
)
def test_what_does_not_fit(design: Any, options: dict[str, Any], message: str) -> None:
    assert refusal(convert_model, models.made("bert"), design, init="fresh", **options) == message


def test_another_start() -> None:
    wanted = "init is 'trained' or 'fresh', not 'zeros'."
    assert refusal(convert_model, models.made("bert"), "mhsa", init="zeros") == wanted


@pytest.mark.parametrize("design", ["fmm1_causal", "gla"])
def test_a_causal_design_in_a_model_that_looks_ahead(design: str, tmp_path: Path) -> None:
    """Masks hide the padding; no mask of such a model hides later keys, but the design does."""
    torch.manual_seed(0)
    model = convert_model(models.model_of("bert"), design, init="fresh", legs={"h": 4}).double().eval()
    alone = models.inputs("bert", "right")
    padded = models.outputs(model, alone)
    changed = {**alone, "input_ids": alone["input_ids"].clone()}
    changed["input_ids"][:, 4:] += 1
    torch.testing.assert_close(models.outputs(model, changed)[:4], padded[:4])
    for row, length in enumerate((9, 6, 3)):
        short = {name: value[row : row + 1, :length] for name, value in alone.items()}
        start = sum((9, 6, 3)[:row])
        torch.testing.assert_close(models.outputs(model, short), padded[start : start + length])
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(models.outputs(load_converted(tmp_path), alone), padded)


def test_a_causal_design_in_torch_layers() -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 4, 32, batch_first=True), 2).eval()
    convert_model(encoder, "fmm1_causal", init="fresh", legs={"h": 4})
    x, hidden = torch.randn(2, 5, 24), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    y = encoder(x, src_key_padding_mask=hidden)
    torch.testing.assert_close(y[1, :3], encoder(x[1:, :3])[0])
    masked = encoder(x, mask=torch.ones(5, 5).triu(1).bool(), src_key_padding_mask=hidden)
    torch.testing.assert_close(masked[~hidden], y[~hidden])
