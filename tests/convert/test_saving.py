"""What saving a converted model does: its state dict goes to a file and back, Hugging Face's own calls are refused."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensornet_attn.convert.model import convert_model
from tensornet_attn.errors import InputError
from tests.convert import models

CLASSES = {"bert": "BertModel", "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "vit": "ViTModel"}


def message(model: str, call: str) -> str:
    return (
        f"{model}: {call} is not possible after convert_model: from_pretrained would load it with random attention; "
        "save its state dict, torch.save(model.state_dict(), 'model.pt'), and load that into the original model after "
        "the same convert_model, model.load_state_dict(torch.load('model.pt'))."
    )


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        call(*arguments, **options)
    return str(error.value)


@pytest.mark.parametrize("name", CLASSES)
def test_nothing_is_written(name: str, tmp_path: Path) -> None:
    model = convert_model(models.made(name), "thsa")
    for same in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert refusal(same.save_pretrained, tmp_path / "model") == message(CLASSES[name], "save_pretrained")
        assert refusal(same.save_pretrained, tmp_path / "model", push_to_hub=True, repo_id="me/it")
        assert refusal(same.push_to_hub, "me/it") == message(CLASSES[name], "push_to_hub")
    assert list(tmp_path.iterdir()) == []


def test_models_inside_are_refused_too(tmp_path: Path) -> None:
    """The Trainer saves what stands behind its wrappers; the language model holds a model without a head."""
    model = convert_model(models.made("gpt2"), "mhsa")
    assert refusal(model.transformer.save_pretrained, tmp_path / "model") == message("GPT2Model", "save_pretrained")
    outer = convert_model(nn.Sequential(models.made("bert"), nn.Linear(24, 2)), "mhsa")
    assert refusal(outer[0].save_pretrained, tmp_path / "model") == message("BertModel", "save_pretrained")
    assert list(tmp_path.iterdir()) == []


class Sentences(nn.Sequential):
    """Has the calls of sentence-transformers, whose `save` is that of all its parts."""

    def save(self, path: Path) -> None:
        path.mkdir()

    save_pretrained = save


def test_a_model_of_models(tmp_path: Path) -> None:
    model = convert_model(Sentences(models.made("bert")), "mhsa")
    assert refusal(model.save, tmp_path / "model") == message("Sentences", "save")
    assert refusal(model.save_pretrained, tmp_path / "model") == message("Sentences", "save_pretrained")
    assert not hasattr(model, "push_to_hub")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_could_not_be_converted_saves_as_before(tmp_path: Path) -> None:
    model = models.made("bert")
    with pytest.raises(InputError):
        convert_model(model, "cross")
    model.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "config.json").exists()


@pytest.mark.rotated
@pytest.mark.parametrize("design", ["thsa", "fish"])
@pytest.mark.parametrize("name", models.MODELS)
def test_what_the_error_says_to_do_works(name: str, design: str, tmp_path: Path) -> None:
    model, path = convert_model(models.made(name), design), tmp_path / "model.pt"
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.9)  # as if it had been trained
    torch.save(model.state_dict(), path)
    other = convert_model(models.MODELS[name]().eval(), design)  # the original model, here with weights of its own
    other.load_state_dict(torch.load(path))
    given = models.inputs(name)
    with torch.no_grad():
        torch.testing.assert_close(models.outputs(other, given), models.outputs(model, given), rtol=0, atol=0)
