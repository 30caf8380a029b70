"""generate(): with the cache of the designs as without, one token fed a step; what cannot be cached, and says why."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache

import tensornet_attn as ta
from tests.hf import tiny
from tests.refusals import refusal

DESIGNS = ["mhsa_rope", "band", "linear", "mla", "transformer_xl", "fmm2_causal", "fast_weight1"]
WAYS = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 5},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampled beams": {"num_beams": 3, "do_sample": True},
    "penalties": {"do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
}


def both(model, inputs, **options) -> list[torch.Tensor]:
    """What is generated with a cache and without, the same seed before each."""
    found = []
    for use_cache in (True, False):
        torch.manual_seed(7)
        found.append(model.generate(**inputs, max_new_tokens=8, use_cache=use_cache, **options))
    return found


@pytest.mark.parametrize("name", DESIGNS)
def test_designs_with_a_cache_are_designs_without(name: str) -> None:
    model = tiny.of_design(name)
    for way in ("greedy", "beams"):
        cached, plain = both(model, tiny.batch(), **WAYS[way])
        assert torch.equal(cached, plain)
    options = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_logits": True}
    one, two = (torch.stack(model.generate(**tiny.batch(), use_cache=use, **options).logits) for use in (True, False))
    torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["language_model", "seq2seq"])
@pytest.mark.parametrize("way", WAYS)
def test_ways_to_generate(kind: str, way: str) -> None:
    cached, plain = both(tiny.of_kind(kind), tiny.batch(), **WAYS[way])
    assert torch.equal(cached, plain)


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoid"])
def test_a_sequence_behind_padding_is_the_sequence_alone(positions: str) -> None:
    model, inputs = tiny.of_design("mhsa_rope", positions=positions), tiny.batch()
    together, logits = model.generate(**inputs, max_new_tokens=8), model(**inputs).logits
    for row, start in enumerate((0, 1, 2)):
        tokens = inputs["input_ids"][row : row + 1, start:]
        assert torch.equal(together[row, start:], model.generate(tokens, max_new_tokens=8)[0])
        torch.testing.assert_close(logits[row, start:], model(tokens).logits[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ["language_model", "seq2seq"])
def test_one_token_is_fed_a_step(kind: str) -> None:
    model, seen = tiny.of_kind(kind), []
    inner = model.model.layers if kind == "language_model" else model.model.decoder
    inner[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    inputs = tiny.batch()
    model.generate(**inputs, max_new_tokens=4)
    assert seen == [6 if kind == "language_model" else 1, 1, 1, 1]
    seen.clear()
    model.generate(**inputs, max_new_tokens=4, use_cache=False)
    start = 6 if kind == "language_model" else 1
    assert seen == [start, start + 1, start + 2, start + 3]


def test_a_cache_goes_on() -> None:
    """From call to call of generate, and by hand, chunk by chunk."""
    model, inputs = tiny.of_kind("language_model"), tiny.batch()
    first = model.generate(**inputs, max_new_tokens=3, return_dict_in_generate=True)
    assert first.past_key_values.get_seq_length() == 8
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 3), value=1)
    on = model.generate(
        input_ids=first.sequences, attention_mask=mask, past_key_values=first.past_key_values, max_new_tokens=3
    )
    assert torch.equal(on, model.generate(**inputs, max_new_tokens=6))
    tokens = inputs["input_ids"][:1]
    with torch.no_grad():
        past = model(tokens[:, :4], use_cache=True).past_key_values
        again = copy.deepcopy(past)
        for kept in (past, again):
            out = model(tokens[:, 4:], past_key_values=kept)
            torch.testing.assert_close(out.logits, model(tokens).logits[:, 4:], rtol=1e-10, atol=1e-10)
            assert out.past_key_values is kept


def test_logits_of_the_last_positions() -> None:
    model, inputs = tiny.of_kind("language_model"), tiny.batch()
    whole = model(**inputs).logits
    for asked, wanted in ((2, whole[:, -2:]), (9, whole), (torch.tensor([0, 5]), whole[:, [0, 5]])):
        torch.testing.assert_close(model(**inputs, logits_to_keep=asked).logits, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["language_model", "seq2seq"])
def test_an_assistant_guesses(kind: str) -> None:
    model, tokens = tiny.of_kind(kind), tiny.batch()["input_ids"][:1]
    assistant = copy.deepcopy(model)
    assistant.generation_config.assistant_confidence_threshold = 0.0  # it guesses, sure or not
    torch.manual_seed(1)
    with torch.no_grad():
        assistant.model.output.weight += 0.1 * torch.randn_like(assistant.model.output.weight)  # wrong now and then
    plain = model.generate(tokens, max_new_tokens=12)
    found = model.generate(tokens, max_new_tokens=12, assistant_model=assistant)
    assert torch.equal(found, plain)
    assert not torch.equal(assistant.generate(tokens, max_new_tokens=12), plain)


def test_sums_cannot_go_back_behind_an_assistant() -> None:
    tokens, assistant = tiny.batch()["input_ids"][:1], tiny.of_design("mhsa_rope")
    assistant.generation_config.assistant_confidence_threshold = 0.0  # it guesses, sure or not
    with pytest.raises(ta.InputError, match="is a state: one value for all positions"):
        tiny.of_design("linear").generate(tokens, max_new_tokens=8, assistant_model=assistant)


def test_a_long_prompt_in_chunks() -> None:
    for name in ("mhsa_rope", "linear"):
        model, inputs = tiny.of_design(name), tiny.batch()
        found = model.generate(**inputs, max_new_tokens=4, prefill_chunk_size=2)
        assert torch.equal(found, model.generate(**inputs, max_new_tokens=4, use_cache=False))


def test_what_keeps_no_cache_generates_without() -> None:
    model, inputs = tiny.of_design("fmm_lra_release"), tiny.batch()
    assert model.config.use_cache is False
    assert ta.hf.TensornetConfig(diagram=model.config.diagram).use_cache is False
    assert torch.equal(
        model.generate(**inputs, max_new_tokens=4), model.generate(**inputs, max_new_tokens=4, use_cache=False)
    )
    assert refusal(model.generate, **inputs, max_new_tokens=4, use_cache=True) == (
        "layers.0.mixer: fmm_lra_release: no cache can be kept: 'far1.of' depends on the length 'm'. "
        "Call with use_cache=False."
    )


def test_caches_of_others_are_refused() -> None:
    model, inputs = tiny.of_kind("language_model"), tiny.batch()
    assert refusal(model.generate, **inputs, past_key_values=DynamicCache(), max_new_tokens=2) == (
        "past_key_values is a DynamicCache; give the one that the model returned, or new_cache()."
    )
    assert refusal(model.generate, **inputs, cache_implementation="static", max_new_tokens=2) == (
        "cache_implementation='static' is for keys and values: leave it out, designs have their own cache."
    )
