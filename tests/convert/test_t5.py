"""T5, whose attentions share biases of distances and in the decoder attend to the encoder: the same when converted."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MT5Config, MT5EncoderModel, T5Config, T5ForConditionalGeneration

import tensornet_attn as ta
from tests.convert import models
from tests.refusals import refusal

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
SIZES = {
    "vocab_size": 50,
    "d_model": 24,
    "d_kv": 6,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "pad_token_id": 0,
    "eos_token_id": None,
    "decoder_start_token_id": 0,
}


def made() -> Any:
    return models.drawn(T5ForConditionalGeneration(T5Config(**SIZES))).eval().double()


@cache
def pair() -> tuple[Any, Any]:
    before = made()
    return before, ta.convert_model(copy.deepcopy(before), "mhsa")


def source() -> dict[str, torch.Tensor]:
    """Three sentences, of which one is shorter."""
    ids = torch.randint(1, 50, (3, 19), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 11:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_tokens_hidden_between_others_keep_their_positions() -> None:
    ids, mask = source()["input_ids"], torch.ones(3, 19, dtype=torch.int64)
    mask[0, 4:9] = mask[2, ::3] = 0
    before, after = (model.encoder(ids, attention_mask=mask).last_hidden_state[mask.bool()] for model in pair())
    torch.testing.assert_close(after, before, **CLOSE)


def test_logits_and_gradients() -> None:
    target, found = torch.randint(1, 50, (3, 15), generator=torch.Generator().manual_seed(2)), []
    for model in pair():
        model.zero_grad()
        logits = model(**source(), decoder_input_ids=target).logits
        logits.square().mean().backward()
        stacks = (model.encoder, model.decoder)
        first = [stack.block[0].layer[0].SelfAttention for stack in stacks]
        tables = [one.design.B if hasattr(one, "design") else one.relative_attention_bias.weight for one in first]
        found.append([logits, model.shared.weight.grad, *(table.grad for table in tables)])
    torch.testing.assert_close(found[1], found[0], **CLOSE)


def test_a_trained_model_goes_back() -> None:
    """With the table that the first attention of a stack has for all, and the attention to the encoder."""
    model = ta.convert_model(made(), "mhsa")
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.05 * torch.randn_like(weight)
    given = source() | {"decoder_input_ids": torch.randint(1, 50, (3, 5))}
    torch.testing.assert_close(ta.export_to(model)(**given).logits, model(**given).logits, **CLOSE)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"use_cache": False}])
def test_texts_from_a_cache(options: dict[str, Any]) -> None:
    greedy = {"max_new_tokens": 17, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    told = [model.generate(**source(), **greedy | options) for model in pair()]
    assert torch.equal(told[1].sequences, told[0].sequences)
    torch.testing.assert_close(told[1].logits, told[0].logits, rtol=1e-5, atol=1e-5)


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    _, after = pair()
    after.save_pretrained(tmp_path)
    again = T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float64)
    target = torch.ones(3, 4, dtype=torch.long)
    with torch.no_grad():
        torch.testing.assert_close(
            again(**source(), decoder_input_ids=target).logits,
            after(**source(), decoder_input_ids=target).logits,
            **CLOSE,
        )


def test_an_encoder_alone() -> None:
    before = models.drawn(MT5EncoderModel(MT5Config(**SIZES))).eval().double()
    after = ta.convert_model(copy.deepcopy(before), "mhsa")
    with torch.no_grad():
        found = [model(**source()).last_hidden_state for model in (before, after)]
    torch.testing.assert_close(found[1], found[0], **CLOSE)


def test_single_attentions_become_designs() -> None:
    """The first has the biases; that of the decoder to the encoder has a second input."""
    model, x = made(), torch.randn(2, 9, 24, dtype=torch.float64)
    memory = torch.randn(2, 5, 24, dtype=torch.float64)
    own, cross = model.encoder.block[0].layer[0].SelfAttention, model.decoder.block[0].layer[1].EncDecAttention
    with torch.no_grad():
        layer = ta.convert(own, "mhsa")
        torch.testing.assert_close(layer(x), own(x)[0], **CLOSE)
        assert layer.design.constants["own_bucket"].value == "bucket(8, 12, 1)"
        torch.testing.assert_close(ta.convert(cross, "mhsa")(x, memory), cross(x, key_value_states=memory)[0], **CLOSE)


def test_no_bias_of_all_pairs_is_made() -> None:
    """Blocks of queries read the table of distances."""
    attention = pair()[1].encoder.block[1].layer[0].SelfAttention.design
    assert "queries at a time" in ta.compile(attention.design, n=4096, m=4096).explain()


def test_a_call_out_of_its_stack_says_what_is_missing() -> None:
    _, after = pair()
    x = torch.randn(1, 3, 24, dtype=torch.float64)
    second, cross = after.encoder.block[1].layer[0].SelfAttention, after.decoder.block[0].layer[1].EncDecAttention
    assert refusal(lambda: second(x)) == (
        "encoder.block.1.layer.0.SelfAttention (T5Attention): position_bias is missing; pass the one that the first "
        "attention returns."
    )
    assert refusal(lambda: cross(x)) == (
        "decoder.block.0.layer.1.EncDecAttention (T5Attention): key_value_states are missing; it attends to another "
        "sequence."
    )


def test_fresh_designs_take_their_places() -> None:
    """One that attends to another sequence stays what it was trained to be."""
    before = models.drawn(MT5EncoderModel(MT5Config(**SIZES))).eval()
    after = ta.convert_model(before, "thsa", init="fresh")
    assert after(**source()).last_hidden_state.shape == (3, 19, 24)
    assert refusal(lambda: ta.convert_model(made(), "thsa", init="fresh")) == (
        "decoder.block.0.layer.1.EncDecAttention (T5Attention) cannot be converted: it attends to another sequence "
        "(cross-attention)."
    )
