"""Sections of a model: what each of its designs was given in a call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tensornet_attn as ta
from tests.refusals import refusal


def language_model(**config) -> torch.nn.Module:
    layers = [{"mixer": {"design": "mhsa", "legs": {"h": 2}}, "mlp": {"design": "mlp", "legs": {"l": 8}}}, "thsa"]
    sizes = {"vocabulary": 9, "length": 8, "width": 16, "layers": layers, "dropout": 0.5}
    return ta.models.LanguageModel(**sizes | config)


def test_a_section_holds_what_its_design_is_given() -> None:
    model = language_model()
    tokens, seen = torch.randint(9, (3, 6)), torch.ones(3, 6).bool()
    seen[0, 4:] = False
    one, two = ta.model_sections(model, tokens, seen)
    model.eval()
    x = model.positions(model.embedding(tokens))
    first, second = model.layers
    torch.testing.assert_close(one.inputs, (first.mixer.norm(x), None))  # memory is x
    torch.testing.assert_close(two.inputs, (second.mixer.norm(first(x, seen)), None))
    assert [section.title for section in (one, two)] == ["layers.0.mixer: mhsa", "layers.1.mixer: thsa"]
    assert [section.module for section in (one, two)] == [first.mixer.design, second.mixer.design]
    assert list(one.see) == ["key_mask"]
    assert torch.equal(one.see["key_mask"], seen)
    assert (one.repeated, one.notes) == (None, ())
    assert not one.inputs[0].requires_grad


def test_a_mlp_has_no_section_and_experts_have_one() -> None:
    layers = [{"mixer": "mhsa", "mlp": {"design": "sigma_moe", "legs": {"e": 4}, "settings": {"k": 2}}}]
    model = ta.models.LanguageModel(vocabulary=9, length=8, width=16, layers=layers)
    titles = [section.title for section in ta.model_sections(model, torch.zeros(1, 4, dtype=torch.int64))]
    assert titles == ["layers.0.mixer: mhsa", "layers.0.mlp: sigma_moe"]


def test_a_second_call_on_repeated_tokens() -> None:
    model = language_model()
    tokens = ta.repeated_tokens(9, period=4, batch=2)
    sections = ta.model_sections(model, torch.zeros(1, 5, dtype=torch.int64), repeated=tokens)
    again = ta.model_sections(model, tokens)
    for section, wanted in zip(sections, again, strict=True):
        assert torch.equal(section.repeated.inputs[0], wanted.inputs[0])
        assert section.repeated.see == {}
        assert section.inputs[0].shape[:2] == (1, 5)
    data = ta.report_data(sections)
    for part, wanted in zip(data["sections"], again, strict=True):
        maps = ta.attention_maps(wanted.module, *wanted.inputs)["A"]
        assert part["boxes"][0]["induction"] == pytest.approx(ta.induction_scores(maps).tolist())


def test_the_model_is_as_it_was() -> None:
    model = language_model()
    model.layers[0].eval()
    ta.model_sections(model, torch.zeros(1, 4, dtype=torch.int64))
    assert (model.training, model.layers[0].training, model.layers[1].training) == (True, False, True)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_encoder_decoder_and_cross_attention() -> None:
    layer = {"mixer": "mhsa", "cross": "cross"}
    model = ta.models.Seq2Seq(vocabulary=9, length=8, width=16, encoder=["mhsa"], decoder=[layer])
    source, target = torch.randint(9, (2, 7)), torch.randint(9, (2, 5))
    seen = torch.ones(2, 7).bool()
    sections = {section.title: section for section in ta.model_sections(model, source, target, seen)}
    assert list(sections) == ["encoder.0.mixer: mhsa", "decoder.0.mixer: mhsa", "decoder.0.cross: cross"]
    cross = sections["decoder.0.cross: cross"]
    assert [tuple(value.shape) for value in cross.inputs] == [(2, 5, 16), (2, 7, 16)]
    torch.testing.assert_close(cross.inputs[1], model.eval().encode(source, seen))
    assert ta.report(sections.values()).count("All layers") == 1


def test_designs_in_a_module_of_ones_own_called_twice_and_by_name() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = ta.compile(ta.load("cross", legs={"f": 8, "h": 2}))

        def forward(self, x, memory):
            return self.attention(self.attention(x, memory), memory=memory, mask=torch.ones(3, 4).bool())

    x, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    one, two = ta.model_sections(Own(), x, memory)
    assert (one.title, two.title) == ("attention: cross", "attention: cross (call 2)")
    assert torch.equal(two.inputs[1], memory)
    assert list(two.see) == ["mask"]
    (alone,) = ta.model_sections(one.module, x, memory)
    assert alone.title == "cross"


def test_a_default_input_is_left_out() -> None:
    model = ta.models.LanguageModel(vocabulary=9, length=8, width=16, layers=["transformer_xl"], positions="none")
    (section,) = ta.model_sections(model, torch.zeros(2, 4, dtype=torch.int64))
    assert section.inputs[1:] == (None,)
    assert "Inputs: x [2, 4, 16]." in ta.report([section])


def test_a_model_without_attention() -> None:
    assert refusal(ta.model_sections, nn.Linear(2, 2), torch.randn(1, 2)) == (
        "Linear: it has no compiled design with an attention box or a topk."
    )


def test_an_induction_head_built_by_hand_is_found_in_a_model() -> None:
    """Layer 0 copies the token before from its position, layer 1 looks for its own token among these copies.

    The first position has no token before and copies its own. So the query at the second occurrence of the first token
    divides its attention between the positions 0 and 1; all others look at one position, the right one.
    """
    p, v = 8, 16
    mixer = {"design": "mhsa", "legs": {"h": 1, "d": v}}
    layers = [{"mixer": mixer}, {"mixer": mixer}]
    sizes = {"vocabulary": v, "length": 2 * p, "width": 3 * v}
    model = ta.models.LanguageModel(**sizes, layers=layers, norm="rmsnorm", positions="learned")
    token, place, before = torch.eye(3 * v).split(v)  # [v, width] each: where the residual stream holds what
    later = torch.eye(v).roll(1, 1).triu()  # position j -> j + 1
    with torch.no_grad():
        model.embedding.weight.copy_(token)
        model.positions.table.copy_(place)
        first, second = (layer.mixer.design for layer in model.layers)
        for design, query, key, value, out in (
            (first, place, later.T @ place, token, before),
            (second, token, before, token, token),
        ):
            design.Wq.copy_(100 * query.T[:, None])
            design.Wk.copy_(key.T[:, None])
            design.Wv.copy_(value.T[:, None])
            design.Wo.copy_(out[None])
    tokens = ta.repeated_tokens(v, p)
    one, two = ta.report_data(ta.model_sections(model, tokens, repeated=tokens))["sections"]
    assert one["boxes"][0]["induction"] == pytest.approx([0], abs=1e-6)
    assert two["boxes"][0]["induction"] == pytest.approx([(p - 0.5) / p], abs=1e-5)
