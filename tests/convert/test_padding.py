"""Padding of drop-in attentions and converted models: designs that would count it compute sequences by their tokens."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import tensornet_attn as ta
from tensornet_attn.convert.replace import convert_model
from tests.convert import models, test_interface
from tests.refusals import refusal
from tests.work import reads

F64 = torch.float64
WIDTH, HEADS, N = 16, 4, 6
KEEP = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 0, 0, 1, 1, 0]]).bool()
GAPS = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 1, 0, 1, 1]])
unregistered: Any = test_interface.unregistered
LENGTH = {"tensornet": 1, "name": "counted", "extends": "mhsa", "legs": {"h": "head 4"}}
LENGTH |= {"diagram": {"A": {"softmax": "m", "scale": "m ** -0.5", "of": "Q[n h d] K[m h d] -> h n m"}}}
STEPS = {"q": "x[n f] Wq[f h d] -> n h d", "Q": {"conv": "n", "width": "w", "of": "q[n h d] C[w h d] -> n w h d"}}
STEPS |= {"K": "x[m f] Wk[f h d] -> m h d", "V": "x[m f] Wv[f h d] -> m h d"}
NEAR = LENGTH | {"name": "near", "legs": {"h": "head 4", "w": 3}, "weights": {"C": "w h d"}, "diagram": STEPS}
DESIGNS = {"length": LENGTH, "convolution": NEAR, "distances": "band", "decay": "fox"}


def given_by(side: str) -> dict[str, torch.Tensor]:
    """Tokens of GPT-2 with padding on a side or between them, and positions that count the tokens."""
    given = models.inputs("gpt2", "left" if side == "between" else side)
    mask = GAPS if side == "between" else given["attention_mask"]
    return given | {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}


@pytest.mark.parametrize("name", DESIGNS)
def test_multihead_attention(name: str) -> None:
    """In an encoder of torch, which has padding on either side."""
    encoder = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, 0.0, batch_first=True, dtype=F64)
    encoder.self_attn = ta.nn.MultiheadAttention(DESIGNS[name], WIDTH, HEADS, bias=False, batch_first=True, dtype=F64)
    x = torch.randn(3, N, WIDTH, dtype=F64)
    y = encoder(x, src_key_padding_mask=~KEEP)
    for row, keep, found in zip(x, KEEP, y, strict=True):
        torch.testing.assert_close(found[keep], encoder(row[None, keep])[0], rtol=1e-11, atol=1e-12)


def test_keys_of_multihead_attention() -> None:
    """The length is that of the tokens of the other sequence; there are no maps of padded ones."""
    layer = ta.nn.MultiheadAttention(LENGTH, WIDTH, HEADS, bias=False, batch_first=True, dtype=F64)
    x, memory = torch.randn(3, 4, WIDTH, dtype=F64), torch.randn(3, N, WIDTH, dtype=F64)
    y, _ = layer(x, memory, memory, key_padding_mask=~KEEP, need_weights=False)
    for row, other, keep, found in zip(x, memory, KEEP, y, strict=True):
        keys = other[None, keep]
        torch.testing.assert_close(found, layer(row[None], keys, keys)[0][0], rtol=1e-11, atol=1e-12)
    assert refusal(layer, x, memory, memory, key_padding_mask=~KEEP) == (
        "counted: there are no maps of padded sequences, because 'A' has the length 'm' in a number; call with "
        "need_weights=False or output_attentions=False."
    )


def rows_are_as_alone(model: nn.Module, given: dict[str, torch.Tensor]) -> None:
    y = model(**given, use_cache=False)[0]
    for ids, keep, found in zip(given["input_ids"], given["attention_mask"].bool(), y, strict=True):
        alone = model(ids[None, keep], use_cache=False)[0][0]
        torch.testing.assert_close(found[keep], alone, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("side", ["left", "right", "between"])
@pytest.mark.parametrize("name", DESIGNS)
def test_converted_models(name: str, side: str) -> None:
    """GPT-2, whose own positions follow the mask."""
    model = models.drawn(convert_model(models.model_of("gpt2"), DESIGNS[name], init="fresh")).double().eval()
    rows_are_as_alone(model, given_by(side))


@pytest.mark.parametrize("side", ["left", "right", "between"])
@pytest.mark.parametrize("name", ["length", "distances"])
def test_a_design_as_attn_implementation(name: str, side: str) -> None:
    """In a causal model queries and keys are one sequence."""
    model = models.made("gpt2", attn_implementation=ta.register_attention(DESIGNS[name])).double()
    rows_are_as_alone(model, given_by(side))


@pytest.mark.parametrize(
    ("name", "design"), [("llama", "gqa"), ("llama", "thsa"), ("mistral", "mistral"), ("modernbert", "mhsa")]
)
def test_hidden_tokens_of_a_model_with_positions_keep_their_positions(name: str, design: str) -> None:
    """As in the old attention: rotary positions and windows count the tokens that a mask hides between others."""
    before = models.made(name).double()
    after = convert_model(copy.deepcopy(before), design)
    given = models.inputs(name) | {"attention_mask": GAPS}
    options = {} if name == "modernbert" else {"use_cache": False}
    torch.testing.assert_close(
        models.outputs(after, given, **options), models.outputs(before, given, **options), rtol=1e-5, atol=1e-6
    )


def test_a_mask_of_pairs_with_padding_is_refused() -> None:
    """Where padding would count: a packed row takes no mask of pairs."""
    layer = ta.nn.MultiheadAttention("band", WIDTH, HEADS, batch_first=True, dtype=F64)
    x, pairs = torch.randn(3, N, WIDTH, dtype=F64), torch.ones(N, N, dtype=torch.bool).triu(3)
    assert refusal(layer, x, x, x, key_padding_mask=~KEEP, attn_mask=pairs, need_weights=False) == (
        "band: calls with a mask of pairs take no padding, because a mask of 'A' compares the positions of queries and "
        "keys: pad on the left, or give sequences of equal length."
    )


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_all_layers_read_the_arguments_of_a_call_once(mode: Any) -> None:
    """Masks and rotary positions; a tensor that is changed between two calls is read again."""
    counts = []
    for layers in (1, 3):
        model = convert_model(models.made("llama", num_hidden_layers=layers), "thsa")
        with mode():
            given = {"input_ids": models.inputs("llama")["input_ids"], "attention_mask": GAPS.clone()}
            counts.append(reads(lambda: model(**given, use_cache=False)))  # noqa: B023
            given["attention_mask"].copy_(GAPS.flip(0))
            again, mask = model(**given, use_cache=False)[0], GAPS.flip(0)
            torch.testing.assert_close(again, model(given["input_ids"], mask, use_cache=False)[0])
    assert 0 < counts[0] == counts[1]


def test_torch_layers_read_a_mask_once() -> None:
    counts = []
    for layers in (1, 3):
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)
        encoder = convert_model(nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), "mhsa").eval()
        x = torch.randn(3, N, WIDTH)
        counts.append(reads(lambda: encoder(x, src_key_padding_mask=~KEEP)))  # noqa: B023
    assert 0 < counts[0] == counts[1]
