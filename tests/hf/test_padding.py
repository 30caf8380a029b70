"""Padding of Hugging Face models: every design computes a padded prompt as the prompt alone, and generates the same."""

from __future__ import annotations

import pytest
import torch

from tests.hf import tiny
from tests.models.tiny import BOTH_WAYS, CAUSAL
from tests.refusals import refusal

SEVERAL = ["lfm2", "gau", "sigmoid_attention", "tpa", "rwkv4"]  # convolutions, lengths, rotations of factors
NO_CACHE = ("gau", "sigmoid_attention", "fmm_lra_release")  # the length of the sequence is in a number


def rows(left: bool) -> tuple[torch.Tensor, torch.Tensor, slice]:
    """Two rows of tokens, of which the first has padding, its mask, and the places of its tokens."""
    inputs = tiny.batch(2, 5)
    tokens, place = inputs["input_ids"].clamp(min=1), slice(2, 5) if left else slice(0, 3)
    mask = torch.ones_like(tokens)
    mask[0] = 0
    mask[0, place] = 1
    return tokens * mask, mask, place


def agree(name: str, kind: str) -> None:
    options = {"kind": "masked_language_model"} if kind == "masked" else {}
    model = tiny.of_design(name, depth=1, **options)
    calls = [{}] if kind == "masked" else [{"use_cache": False}] + [{"use_cache": True}] * (name not in NO_CACHE)
    for call in calls:
        for left in (True, False):
            tokens, mask, place = rows(left)
            found = model(tokens, attention_mask=mask, **call)
            alone = model(tokens[:1, place], **call)
            torch.testing.assert_close(found.logits[0, place], alone.logits[0], rtol=1e-9, atol=1e-10)
            if left and call.get("use_cache"):
                step, longer = torch.tensor([[3], [4]]), torch.nn.functional.pad(mask, (0, 1), value=1)
                later = model(step, attention_mask=longer, past_key_values=found.past_key_values).logits
                wanted = model(step[:1], past_key_values=alone.past_key_values).logits
                torch.testing.assert_close(later[:1], wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ["causal", "masked"])
@pytest.mark.parametrize("name", SEVERAL)
def test_several_designs(name: str, kind: str) -> None:
    agree(name, kind)


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSAL)
def test_every_causal_design(name: str) -> None:
    agree(name, "causal")


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH_WAYS)
def test_every_design_that_sees_both_ways(name: str) -> None:
    agree(name, "masked")


@pytest.mark.parametrize("name", ["lfm2", "sigmoid_attention", "rwkv4"])
def test_a_padded_prompt_continues_as_alone(name: str) -> None:
    model, (tokens, mask, place) = tiny.of_design(name), rows(True)
    for beams in (1, 2):
        options = {"max_new_tokens": 4, "num_beams": beams, "use_cache": name not in NO_CACHE}
        together = model.generate(tokens, attention_mask=mask, **options)
        assert torch.equal(together[0, place.start :], model.generate(tokens[:1, place], **options)[0])


def test_padding_between_tokens() -> None:
    """As where tokens follow a prompt that was padded on the right: rotary positions of a cache would count it."""
    tokens, mask, _ = rows(False)
    longer, step = torch.nn.functional.pad(mask, (0, 1), value=1), tokens[:, :1]
    for name in ("mhsa_rope", "mhsa"):  # positions of the model count tokens alone
        model = tiny.of_design(name)
        alone = model(torch.cat([tokens[:1, :3], step[:1]], 1)).logits[:, -1:]
        whole = model(torch.cat([tokens, step], 1), attention_mask=longer, use_cache=False).logits[:1, -1:]
        torch.testing.assert_close(whole, alone, rtol=1e-9, atol=1e-10)
        cache = model(tokens, attention_mask=mask).past_key_values
        options = {"attention_mask": longer, "past_key_values": cache}
        if name == "mhsa":
            later = model(step, **options).logits
            torch.testing.assert_close(later[:1], alone, rtol=1e-9, atol=1e-10)
        else:
            assert refusal(model, step, **options) == (
                "mhsa_rope: sequences of a cache take no padding, because 'Q' compares the positions of queries and "
                "keys: pad on the left, or give sequences of equal length."
            )
