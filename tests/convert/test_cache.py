"""Caches of converted models: what `generate` does with them, and what they refuse."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.convert.cache import ConvertedLayer
from tensornet_attn.convert.replace import convert_model
from tensornet_attn.convert.wrap import Swapped
from tests.convert import models
from tests.refusals import refusal

CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # angles are float32 in the models, whatever their dtype


def test_one_token_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    forward = Swapped.forward

    def counted(self: Swapped, *given: Any, **named: Any) -> Any:
        lengths.append(named["hidden_states"].shape[1])
        return forward(self, *given, **named)

    monkeypatch.setattr(Swapped, "forward", counted)
    models.generated(models.pair("llama")[1], "none")
    assert lengths == [9] * 2 + [1] * 12  # two layers


@pytest.mark.parametrize("options", [{"use_cache": False}, {"cache_implementation": "static"}, {"num_beams": 2}])
def test_other_ways_to_generate(options: dict[str, Any]) -> None:
    before, after = (models.generated(model, "left", **options) for model in models.pair("llama"))
    assert torch.equal(after.sequences, before.sequences)


def test_an_assistant_goes_back_in_the_cache() -> None:
    before, after = models.pair("llama")
    helper, texts = models.model_of("llama", num_hidden_layers=1).double().eval(), []
    options = models.GREEDY | {"num_assistant_tokens": 3}
    for model in (before, after, convert_model(copy.deepcopy(before), "mhsa")):
        given = {"input_ids": models.inputs("llama")["input_ids"][:1], "attention_mask": torch.ones(1, 9)}
        texts.append(model.generate(**given, **options, assistant_model=helper).sequences)
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])


@pytest.mark.parametrize("padding", ["none", "left"])
def test_an_assistant_goes_back_further_than_a_window(padding: str) -> None:
    """Three candidates at a time, most of them wrong, behind more positions than the window of five holds."""
    given = {"attention_mask": torch.ones(3, 9, dtype=torch.long)} | models.inputs("llama", padding)
    given = {name: value[1:2] for name, value in given.items()}
    helper, texts = models.model_of("llama", num_hidden_layers=1).double().eval(), []
    options = models.GREEDY | {"num_assistant_tokens": 3}
    for model in models.pair("mistral"):
        texts.append(model.generate(**given, **options, assistant_model=helper).sequences)
        texts.append(model.generate(**given, **models.GREEDY).sequences)
    assert all(torch.equal(text, texts[0]) for text in texts)


@pytest.mark.parametrize("name", ["qwen3", "mistral", "gemma3", "bloom"])
def test_chunks_of_any_length(name: str) -> None:
    """One call after another with what the last one gave; windows are shorter than what was seen."""
    after, ids, past, found = models.pair(name)[1], models.inputs("llama")["input_ids"], None, []
    with torch.no_grad():
        for chunk in ids.split([4, 1, 3, 1], 1):
            result = after(input_ids=chunk, past_key_values=past, use_cache=True)
            past = result.past_key_values
            found.append(result.logits)
        torch.testing.assert_close(torch.cat(found, 1), after(input_ids=ids, use_cache=False).logits)


def test_a_cache_is_selected_repeated_and_cropped() -> None:
    after, ids = models.pair("qwen3")[1], models.inputs("llama")["input_ids"]
    with torch.no_grad():
        whole = after(input_ids=ids, use_cache=True)
        past = whole.past_key_values
        past.batch_select_indices(torch.tensor([True, False, True]))
        past.batch_repeat_interleave(2)
        past.crop(-2)
        again = after(input_ids=ids[[0, 0, 2, 2], 7:], past_key_values=past).logits
    torch.testing.assert_close(again, whole.logits[[0, 0, 2, 2], 7:])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_design_that_keeps_sums(name: str) -> None:
    model = convert_model(models.made(name).double(), "linear", init="fresh", legs={"h": 4})
    given = {"input_ids": models.inputs(name)["input_ids"], **models.GREEDY}
    assert torch.equal(model.generate(**given).sequences, model.generate(**given, use_cache=False).sequences)
    assert "A.state1" in next(module for module in model.modules() if isinstance(module, Swapped)).design.new_cache()


def test_training_keeps_no_cache() -> None:
    """A model makes one at every call unless it is told not to; it costs nothing, and whoever reads it is told."""
    model = convert_model(models.made("llama"), "gqa").train()
    given = models.inputs("llama")
    past = model(**given).past_key_values
    assert refusal(lambda: model(**given, past_key_values=past)) == (
        "model.layers.0.self_attn (LlamaAttention): a training call with gradients fills no cache; call "
        "model.eval() before it."
    )
    with torch.no_grad():
        assert model(**given).past_key_values.get_seq_length() == 9


def test_caches_of_others_are_refused() -> None:
    before, after = models.pair("llama")
    given, layer = models.inputs("llama"), "model.layers.0.self_attn (LlamaAttention): "
    with torch.no_grad():
        past = before(**given).past_key_values
    assert refusal(lambda: after(**given, past_key_values=past)) == (
        layer + "the cache contains keys and values of another model; give an empty cache."
    )
    assert refusal(lambda: models.generated(after, "none", cache_implementation="offloaded")) == (
        layer + "offloaded DynamicCache is not supported with a design; leave out cache_implementation."
    )


def test_positions_behind_a_cache_are_compared() -> None:
    """Padding on the right, gone on from: the model would put the next token beside the last one that is no padding."""
    after = models.pair("llama")[1]
    given = models.inputs("llama", "right")
    with torch.no_grad():
        past = after(**given, use_cache=True).past_key_values
        mask = torch.cat((given["attention_mask"], torch.ones(3, 1)), 1)
        step = {"input_ids": given["input_ids"][:, :1], "attention_mask": mask, "past_key_values": past}
        assert refusal(lambda: after(**step, position_ids=torch.tensor([[9], [6], [3]]))) == (
            "model.layers.0.self_attn (LlamaAttention): position_ids are not consecutive between a query and a visible "
            "key, as the design assumes."
        )


def test_a_design_without_a_cache() -> None:
    """Its scale depends on the length, so nothing that is kept stays right; the model generates without a cache."""
    design = {"tensornet": 1, "name": "by_length", "extends": "mhsa"}
    design["diagram"] = {"A": {"softmax": "m", "scale": "m ** -0.5", "of": "Q[n h d] K[m h d] -> h n m"}}
    model = convert_model(models.made("llama"), design, init="fresh", legs={"h": 4})
    assert not model.config.use_cache
    assert not model.generation_config.use_cache
    given = {"input_ids": models.inputs("llama")["input_ids"], **models.GREEDY}
    assert model.generate(**given).sequences.shape == (3, 16)
    assert refusal(lambda: model.generate(**given, use_cache=True)).startswith("by_length: no cache can be kept: ")


def test_sequences_with_padding_change_places_in_the_cache() -> None:
    """Each takes along how far its positions are shifted."""
    given, order = models.inputs("llama", "left"), torch.tensor([2, 0, 2])
    step = {"input_ids": given["input_ids"][:, :1]}
    mask = torch.cat((given["attention_mask"], torch.ones(3, 1, dtype=torch.long)), 1)[order]
    found = []
    with torch.no_grad():
        for model in models.pair("llama"):
            places = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
            past = model(**given, position_ids=places, use_cache=True).past_key_values
            past.reorder_cache(order)
            at = mask.sum(1, keepdim=True) - 1
            found.append(model(**step, attention_mask=mask, position_ids=at, past_key_values=past).logits)
            past.crop(-1)
            past.batch_select_indices(torch.tensor([0, 1]))
            past.batch_repeat_interleave(2)
            rows = torch.tensor([0, 0, 1, 1])
            again = {"attention_mask": mask[rows], "position_ids": at[rows], "past_key_values": past}
            found.append(model(input_ids=step["input_ids"][rows % 3], **again).logits)
    for before, after in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(after, before, **CLOSE)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_a_mask_that_changed_in_place_is_read_again(mode: Any) -> None:
    """Layers share what the first of them made of a mask, as long as it is that mask."""
    before, after = (model.transformer.h[0].attn for model in models.pair("gpt2"))
    x = torch.randn(1, 5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    with mode():
        mask = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
        for _ in range(2):
            torch.testing.assert_close(after(x, attention_mask=mask)[0], before(x, attention_mask=mask)[0])
            mask[..., 1] = False


def test_biases_of_positions_are_compared() -> None:
    """ALiBi's biases come with each call; the design makes its own."""
    attention = models.pair("bloom")[1].transformer.h[0].self_attention
    x, where = torch.zeros(1, 4, 24, dtype=torch.float64), "transformer.h.0.self_attention (BloomAttention): "
    wrong = torch.arange(4.0).expand(3, 1, 4)
    wanted = where + "'alibi' does not contain the biases of consecutive positions."
    assert refusal(lambda: attention(x, x, wrong)) == wanted
    assert refusal(lambda: attention(x, x, None)) == (
        where + "'alibi' is missing; it is compared with the design's own biases."
    )


def test_a_crop_that_is_refused_leaves_what_was_recorded() -> None:
    """A band of two positions, behind six; the call with all of them is computed again."""
    layer = ta.compile(ta.load("band", legs={"f": 8, "h": 2}, settings={"k": 3}), causal=True).eval()
    kept, x = ConvertedLayer(layer.new_cache(), records=True), torch.randn(1, 6, 8)
    with torch.no_grad():
        kept.record(lambda cache, count: layer(x[:, :count], cache=cache))
        layer(x, cache=kept.cache)
        assert refusal(kept.crop, 2) == "band: 'tokens_to_remove' is 2; give minus the number of positions to drop."
        assert kept.get_seq_length() == 6
        kept.crop(-2)
        torch.testing.assert_close(layer(x[:, 4:], cache=kept.cache), layer(x)[:, 4:])
