"""Converted models on disk: what `save_pretrained` writes is read back to the same function, and by nobody else."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from tensornet_attn.convert.loading import load_converted
from tensornet_attn.convert.replace import convert_model
from tensornet_attn.errors import InputError
from tests.convert import models
from tests.refusals import refusal

DESIGNS = {"qwen3": "gqa", "gemma3": "gqa", "cohere": "gqa", "gpt_neox": "mhsa", "bloom": "mhsa"}


def trained(name: str, design: str, **options: Any) -> Any:
    model = convert_model(models.made(name), design, **options)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.9)  # as if it had been trained
    return model


def same(one: nn.Module, other: nn.Module, name: str) -> None:
    given = models.inputs(name)
    with torch.no_grad():
        torch.testing.assert_close(models.outputs(one, given), models.outputs(other, given), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["llama", "bert", "vit", "qwen3", "gpt2", *sorted(DESIGNS.keys() - {"qwen3"})])
def test_reads_back_to_the_same_function(name: str, tmp_path: Path) -> None:
    model = trained(name, DESIGNS.get(name, "thsa"))
    model.save_pretrained(tmp_path)
    again = load_converted(tmp_path)
    assert type(again) is type(model)
    assert not again.training
    same(again, model, name)
    again.save_pretrained(tmp_path / "again")
    same(load_converted(tmp_path / "again"), model, name)


def test_albert_s_one_layer_stays_one(tmp_path: Path) -> None:
    model = trained("albert", "mhsa")
    model.save_pretrained(tmp_path)
    same(load_converted(tmp_path), model, "albert")


def test_a_fresh_design_in_another_dtype_and_shards(tmp_path: Path) -> None:
    model = trained("llama", "linear", init="fresh", legs={"h": 4}).double()
    model.save_pretrained(tmp_path, max_shard_size="10kB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    again, given = load_converted(tmp_path), models.inputs("llama")
    torch.testing.assert_close(models.outputs(again, given), models.outputs(model, given))  # planned for another dtype
    assert again.dtype == torch.float64
    assert load_converted(tmp_path, dtype=torch.float32).dtype == torch.float32
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(again.generate(**given, **options), model.generate(**given, **options))


def test_copies_pickles_and_models_inside_save_themselves(tmp_path: Path) -> None:
    model = trained("gpt2", "fish")
    for place, other in enumerate((copy.deepcopy(model), pickle.loads(pickle.dumps(model)))):
        with torch.no_grad():
            other.transformer.wte.weight.mul_(2)
        other.save_pretrained(tmp_path / str(place))
        same(load_converted(tmp_path / str(place)), other, "gpt2")
    model.transformer.save_pretrained(tmp_path / "inside")
    again, given = load_converted(tmp_path / "inside"), models.inputs("gpt2")
    torch.testing.assert_close(again(**given)[0], model.transformer(**given)[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    "kind", ["AutoModelForCausalLM", "LlamaForCausalLM", "AutoModel", "LlamaForTokenClassification"]
)
def test_the_classes_of_transformers_read_it(kind: str, tmp_path: Path) -> None:
    """The model without its head, and with another one, too; nothing stays of what made them read it."""
    import transformers

    model, given = trained("llama", "thsa"), models.inputs("llama")
    model.save_pretrained(tmp_path)
    again = getattr(transformers, kind).from_pretrained(tmp_path)
    inner, other = model.model, again if kind == "AutoModel" else again.model
    torch.testing.assert_close(other(**given)[0], inner(**given)[0], rtol=0, atol=0)
    assert not again.is_quantized
    assert not hasattr(again, "hf_quantizer")
    assert "quantization_config" not in again.config.to_dict()
    assert type(again.config).__name__ == "LlamaConfig"


READ = """
import sys, torch, transformers
if "asked" in sys.argv:
    import tensornet_attn.convert.pretrained
try:
    print(transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])(torch.tensor([[5, 6, 7, 8]]))[0].sum().item())
except OSError as error:
    print(str(error).rpartition("/")[2])
"""


def test_another_process_reads_it_where_this_package_is_asked_and_stops_elsewhere(tmp_path: Path) -> None:
    """In the place of a model with random attention."""
    model = trained("llama", "thsa")
    model.save_pretrained(tmp_path)
    run = [sys.executable, "-W", "ignore", "-c", READ, str(tmp_path)]
    found = [subprocess.run([*run, *word], capture_output=True, text=True, check=True) for word in ([], ["asked"])]
    assert found[0].stdout == "these weights are read by tensornet_attn.load_converted.safetensors\n"
    assert float(found[1].stdout) == pytest.approx(model(torch.tensor([[5, 6, 7, 8]]))[0].sum().item(), rel=1e-4)


def test_one_process_of_several_writes(tmp_path: Path) -> None:
    model = trained("bert", "mhsa")
    for given, named in (((), {"is_main_process": False}), ((False,), {})):
        model.save_pretrained(tmp_path, *given, **named)
        assert not (tmp_path / "config.json").exists()
    for given, named in (((), {"is_main_process": True}), ((True,), {})):
        model.save_pretrained(tmp_path, *given, **named)
        same(load_converted(tmp_path), model, "bert")


def test_the_backend_is_that_of_the_conversion(tmp_path: Path) -> None:
    trained("bert", "mhsa", backend="reference").save_pretrained(tmp_path)
    assert load_converted(tmp_path).encoder.layer[0].attention.design.plan.backend == "reference"


MEAN = {  # weights of its own it has none
    "tensornet": 1,
    "name": "mean",
    "legs": {"n": "query", "m": "key", "f": 24},
    "inputs": {"x": "n f"},
    "diagram": {"A": {"softmax": "m", "of": "x[n f] x[m f] -> n m"}, "y": "A[n m] x[m f] -> n f"},
    "output": "y",
}


def test_a_design_without_weights(tmp_path: Path) -> None:
    model = trained("bert", MEAN, init="fresh")
    model.save_pretrained(tmp_path)
    same(load_converted(tmp_path), model, "bert")


def test_a_state_dict_goes_into_the_same_conversion(tmp_path: Path) -> None:
    model = trained("gpt2", "thsa")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = convert_model(models.model_of("gpt2").eval(), "thsa")
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    same(other, model, "gpt2")


def test_what_is_refused(tmp_path: Path) -> None:
    model = trained("bert", "mhsa")
    assert refusal(model.save_pretrained, tmp_path / "a", push_to_hub=True, repo_id="me/it") == (
        "BertModel: push a converted model with model.push_to_hub(repo_id), which saves it first."
    )
    assert list(tmp_path.iterdir()) == []
    models.made("bert").save_pretrained(tmp_path)
    assert refusal(load_converted, tmp_path / "none").startswith(f"'{tmp_path}/none' is not a folder; give one that ")
    no_model = f"'{tmp_path}' contains no converted model: its config.json lists no designs."
    assert refusal(load_converted, tmp_path) == no_model
    assert refusal(load_converted, "nobody/nothing", local_files_only=True).startswith(
        "'nobody/nothing': its config.json cannot be read: "
    )
    model.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text[:20])
    assert refusal(load_converted, tmp_path).startswith(f"'{tmp_path}': its config.json cannot be read: ")
    config = json.loads(text)
    for wrong in (["pipeline"], ["AutoModel"], [3], []):  # a file may name anything
        (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": wrong}))
        shown = repr(wrong[0]) if wrong else "[]"
        assert refusal(load_converted, tmp_path).startswith(f"'{tmp_path}': {shown} in its config.json is no model of")
    for odd in (3, None, {**config, "quantization_config": [1]}, {**config, "model_type": ["x"]}):
        (tmp_path / "config.json").write_text(json.dumps(odd))
        assert refusal(load_converted, tmp_path).startswith(f"'{tmp_path}': its config.json cannot be read: ")
    odd_values = {"where": 3, "parameters": [1], "causal": None, "window": [1], "layer": "x", "design": -1}
    for key, odd in {**odd_values, "paths": "x", "cross": 3, "rope": {"base": "x"}, "alibi": 1, "other": None}.items():
        wrong = copy.deepcopy(config)
        wrong["quantization_config"]["attentions"][0][key] = odd
        (tmp_path / "config.json").write_text(json.dumps(wrong))
        assert refusal(load_converted, tmp_path) == (
            "config.json does not describe the converted attentions of the model."
        )
    for key, odd in (
        ("hidden_size", 3),
        ("hidden_size", -1),
        ("hidden_dropout_prob", 3),
        ("add_cross_attention", True),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | {key: odd}))
        assert refusal(load_converted, tmp_path).startswith(
            f"'{tmp_path}': no 'BertModel' can be made of its config.json and "
        )
    config["quantization_config"]["attentions"] = []
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert refusal(load_converted, tmp_path).startswith(f"'{tmp_path}': its files have weights 'encoder.layer.0.")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("GPU"), RuntimeError("DefaultCPUAllocator: no memory")])
def test_a_machine_without_memory_is_no_fault_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    trained("bert", "mhsa").save_pretrained(tmp_path)
    monkeypatch.setattr(sys.modules["tensornet_attn.convert.pretrained"], "put", Mock(side_effect=error))
    with pytest.raises(type(error), match=str(error)):
        load_converted(tmp_path)


def test_a_model_that_could_not_be_converted_saves_as_before(tmp_path: Path) -> None:
    from transformers import BertModel

    model = models.made("bert")
    with pytest.raises(InputError):
        convert_model(model, "cross")
    model.save_pretrained(tmp_path / "model")
    same(BertModel.from_pretrained(tmp_path / "model", add_pooling_layer=False), model, "bert")
