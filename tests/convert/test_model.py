"""Whole models with every attention swapped: the same outputs and gradients, masks, modes, saving, all or nothing."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from tensornet_attn.convert.replace import convert_model
from tensornet_attn.convert.wrap import Swapped
from tensornet_attn.errors import InputError
from tests.convert import models
from tests.refusals import refusal

CLOSE = {"rtol": 0, "atol": 1e-5}


def both(name: str, design: str = "thsa", **options: Any) -> tuple[Any, Any]:
    model = models.made(name, **options)
    return model, convert_model(copy.deepcopy(model), design)


def swapped(model: nn.Module) -> list[Swapped]:
    return [module for module in model.modules() if isinstance(module, Swapped)]


@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", models.TEXT)
def test_text_models_keep_their_outputs(name: str, implementation: str, padding: str) -> None:
    before, after = both(name, attn_implementation=implementation)
    given = models.inputs(name, padding)
    # a core between rotated entries counts positions: with a cache, padding on the left is refused
    options = {"use_cache": False} if (name, padding) == ("llama", "left") else {}
    with torch.no_grad():
        torch.testing.assert_close(models.outputs(after, given, **options), models.outputs(before, given), **CLOSE)
    assert len(swapped(after)) == (1 if name == "albert" else 2)  # ALBERT uses one layer at every depth


@pytest.mark.parametrize(("name", "design"), [("vit", "thsa"), ("bert", "mhsa"), ("bert", "fish"), ("bert", "mgk")])
def test_other_models_and_designs(name: str, design: str) -> None:
    before, after = both(name, design)
    given = models.inputs("vit") if name == "vit" else models.inputs(name, "right")
    with torch.no_grad():
        torch.testing.assert_close(models.outputs(after, given), models.outputs(before, given), **CLOSE)


@pytest.mark.parametrize("name", models.TEXT)
def test_gradients_reach_what_lies_before(name: str) -> None:
    """The embedding gets the gradient it had, and every weight of the designs gets one."""
    pair, given = both(name), models.inputs(name, "right")
    for model in pair:
        models.outputs(model, given).square().mean().backward()
    one, other = (model.get_input_embeddings().weight.grad for model in pair)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert all(weight.grad is not None for module in swapped(pair[1]) for weight in module.parameters())


@pytest.mark.parametrize("name", models.TEXT)
def test_a_step_of_training(name: str) -> None:
    model, given = both(name)[1].train(), models.inputs(name, "left")
    assert all(module.training and module.design.training for module in swapped(model))
    optimiser = torch.optim.SGD(model.parameters(), 1e-3)
    losses = []
    for _ in range(2):
        optimiser.zero_grad()
        torch.manual_seed(0)  # the same dropout twice
        loss = models.outputs(model, given).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[1] < losses[0]


def test_positions_that_start_elsewhere_and_sentences_packed_into_one_row() -> None:
    before, after = both("llama")
    ids = models.inputs("llama")["input_ids"]
    for positions in (torch.arange(5, 14)[None], torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])):
        given = {"input_ids": ids, "position_ids": positions.expand(3, -1)}
        with torch.no_grad():
            one, other = (model(**given, use_cache=False)[0] for model in (after, before))
        torch.testing.assert_close(one, other, **CLOSE)


def test_a_float_mask_is_added() -> None:
    before, after = both("bert")
    mask = torch.randn(3, 1, 9, 9, generator=torch.Generator().manual_seed(4))
    given = models.inputs("bert")
    with torch.no_grad():
        torch.testing.assert_close(
            after(**given, attention_mask=mask)[0], before(**given, attention_mask=mask)[0], **CLOSE
        )


@pytest.mark.parametrize(
    ("dtype", "design"), [(torch.float64, "thsa"), (torch.bfloat16, "mhsa"), (torch.bfloat16, "thsa")]
)
def test_dtype_and_frozen_weights_stay(dtype: torch.dtype, design: str) -> None:
    model = models.made("bert").to(dtype).requires_grad_(False)
    convert_model(model, design)
    weights = [weight for module in swapped(model) for weight in module.parameters()]
    assert {weight.dtype for weight in weights} == {dtype}
    assert not any(weight.requires_grad for weight in weights)
    assert model(**models.inputs("bert"))[0].dtype == dtype


def test_hidden_states_are_still_given() -> None:
    before, given = models.made("bert", attn_implementation="eager"), models.inputs("bert")
    with torch.no_grad():
        before(**given, output_attentions=True)  # leaves hooks of transformers' own on the attentions
        after = convert_model(copy.deepcopy(before), "thsa")
        one, other = (m(**given, output_hidden_states=True).hidden_states for m in (before, after))
    assert len(one) == len(other) == 3
    torch.testing.assert_close(one, other, **CLOSE)


def test_saving_loading_and_copying() -> None:
    after, given = both("gpt2")[1], models.inputs("gpt2")
    other = convert_model(models.drawn(models.model_of("gpt2")).eval(), "thsa")
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
        other.load_state_dict(after.state_dict())
        y = after(**given)[0]
        for same in (other, copy.deepcopy(after), pickle.loads(pickle.dumps(after))):
            torch.testing.assert_close(same(**given)[0], y, rtol=0, atol=0)


def state_of(model: nn.Module) -> dict[str, Any]:
    """Everything a failed conversion must leave: modules, weights and hooks by identity, values, and the config."""
    return {
        "modules": {path: id(module) for path, module in model.named_modules()},
        "hooks": {path: dict(module._forward_pre_hooks) for path, module in model.named_modules()},
        "weights": {name: id(weight) for name, weight in model.named_parameters()},
        "config": model.config.to_dict(),
    }


@pytest.mark.parametrize("design", ["thsa", "linear", "no_such_design"])
def test_all_or_nothing(design: str) -> None:
    """The first layer could be converted, the second cannot; or no layer can become this design."""
    model = models.made("gpt2")
    if design == "thsa":
        model.transformer.h[1].attn.c_attn = nn.Bilinear(1, 1, 1)
    before, values = state_of(model), copy.deepcopy(model.state_dict())
    with pytest.raises((InputError, ValueError)):
        convert_model(model, design)
    assert state_of(model) == before
    torch.testing.assert_close(model.state_dict(), values, rtol=0, atol=0)


def test_the_error_names_the_module_and_the_design() -> None:
    assert refusal(convert_model, models.made("gpt2"), "thsa", legs={"f": 48}).startswith(
        "transformer.h.0.attn (GPT2Attention) cannot become 'thsa': "
    )


def test_options_are_passed_on() -> None:
    model = convert_model(models.made("bert"), "mhsa", backend="reference")
    assert {module.design.plan.backend for module in swapped(model)} == {"reference"}


def encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(24, 4, 32, **options)
    return models.drawn(nn.TransformerEncoder(layer, 2, enable_nested_tensor=options.get("batch_first", False))).eval()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # torch's own fast path
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", ["none", "padding", "causal", "both", "added"])
def test_torch_encoder(mask: str, batch_first: bool) -> None:
    """Without gradients too, where torch would take a fast path around the attention."""
    before = encoder(batch_first=batch_first)
    after = convert_model(copy.deepcopy(before), "thsa")
    x = torch.randn(3, 9, 24, generator=torch.Generator().manual_seed(5))
    padding = torch.arange(9) >= torch.tensor([9, 6, 3])[:, None]
    causal = nn.Transformer.generate_square_subsequent_mask(9)
    given: dict[str, Any] = {
        "none": {},
        "padding": {"src_key_padding_mask": padding},
        "causal": {"mask": causal, "is_causal": True},
        "both": {"mask": torch.ones(9, 9, dtype=torch.bool).triu(1), "src_key_padding_mask": padding},
        "added": {"mask": torch.randn(9, 9, generator=torch.Generator().manual_seed(6))},
    }[mask]
    if not batch_first:
        x = x.transpose(0, 1)
    for gradients in (True,) if mask == "added" else (False, True):  # torch's fast path takes every mask for boolean
        with torch.set_grad_enabled(gradients):
            one, other = (model(x, **given) for model in (before, after))
        keep = ~padding if "src_key_padding_mask" in given else torch.ones(3, 9, dtype=torch.bool)
        keep = keep if batch_first else keep.T
        torch.testing.assert_close(other[keep], one[keep], **CLOSE)


@pytest.mark.parametrize("average", [True, False])
def test_torch_attention_maps(average: bool) -> None:
    before = models.drawn(nn.MultiheadAttention(24, 4, batch_first=True)).eval()
    (after,) = convert_model(nn.ModuleList([copy.deepcopy(before)]), "mhsa")
    x = torch.randn(3, 9, 24, generator=torch.Generator().manual_seed(5))
    padding = torch.arange(9) >= torch.tensor([9, 6, 3])[:, None]
    for options in ({}, {"key_padding_mask": padding}, {"attn_mask": torch.ones(12, 9, 9, dtype=torch.bool).triu(1)}):
        given = {"average_attn_weights": average, **options}
        torch.testing.assert_close(after(x, x, x, **given), before(x, x, x, **given), **CLOSE)
    assert after(x, x, x, need_weights=False)[1] is None
    alone = x[0]  # without a batch
    torch.testing.assert_close(after(alone, alone, alone)[0], before(alone, alone, alone)[0], **CLOSE)


def test_maps_are_those_that_weigh_the_values() -> None:
    """Not those of the one softmax among its parts; without dropout, in training too."""
    (after,) = convert_model(nn.ModuleList([nn.MultiheadAttention(24, 4, 0.5, batch_first=True)]), "fmm1")
    with torch.no_grad():
        after.design.w1.fill_(-2.0)
        after.design.w2.fill_(2.0)
    x = torch.randn(3, 9, 24, generator=torch.Generator().manual_seed(5))
    maps = after.train()(x, x, x, average_attn_weights=False)[1]
    torch.testing.assert_close(maps, after.eval().design.capture(x, "A"))


def test_maps_of_one_swapped_attention() -> None:
    before, after = both("bert", attn_implementation="eager")
    x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(7))
    maps = after.encoder.layer[0].attention(x, output_attentions=True)[1]
    expected = before.encoder.layer[0].attention(x)[1]
    torch.testing.assert_close(maps.unflatten(1, (3, 8)).mean(2), expected, **CLOSE)  # thsa has d maps a head


def test_one_module_in_two_places_is_swapped_once() -> None:
    shared = nn.MultiheadAttention(24, 4)
    model = convert_model(nn.ModuleDict({"a": shared, "b": nn.ModuleList([shared]), "c": shared}), "mhsa")
    assert model["a"] is model["b"][0] is model["c"]


def test_modes_stay() -> None:
    model = models.made("bert").train()
    model.encoder.layer[0].attention.output.dropout.eval()
    model.encoder.layer[1].attention.eval()
    convert_model(model, "mhsa")
    first, second = swapped(model)
    assert (first.training, first.design.training, first.dropout.training) == (True, True, False)
    assert (second.training, second.design.training, second.dropout.training) == (False, False, False)


def test_a_second_conversion_finds_nothing() -> None:
    model = convert_model(encoder(), "mhsa")
    assert refusal(convert_model, model, "thsa") == "no attention found in TransformerEncoder."
