"""Configuration and models: known to the Auto classes, written and read back, wrong ones refused in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tensornet_attn as ta
from tests.hf import tiny
from tests.models import tiny as models

AUTO = {
    "language_model": transformers.AutoModelForCausalLM,
    "masked_language_model": transformers.AutoModelForMaskedLM,
    "sequence_classifier": transformers.AutoModelForSequenceClassification,
    "seq2seq": transformers.AutoModelForSeq2SeqLM,
}


def inputs_of(kind: str) -> dict[str, torch.Tensor]:
    return tiny.batch() | ({"decoder_input_ids": models.tokens(3, 4)} if kind == "seq2seq" else {})


@pytest.mark.parametrize("kind", AUTO)
def test_written_and_read_back(kind: str, tmp_path: Path) -> None:
    model = tiny.of_kind(kind, eos_token_id=5)
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == ["model.safetensors"]
    written = json.loads((tmp_path / "config.json").read_text())
    assert ta.models.load(written["diagram"]).kind == kind
    assert (written["model_type"], written["dtype"], written["hidden_size"]) == ("tensornet", "float64", 8)
    again = AUTO[kind].from_pretrained(tmp_path)
    assert type(again) is type(model)
    assert (again.training, again.config.eos_token_id, again.dtype) == (False, 5, torch.float64)
    assert {name: value.dtype for name, value in again.state_dict().items()} == {
        name: value.dtype for name, value in model.state_dict().items()
    }
    assert torch.equal(again(**inputs_of(kind)).logits, model(**inputs_of(kind)).logits)
    assert isinstance(transformers.AutoConfig.from_pretrained(tmp_path), ta.hf.TensornetConfig)
    halves = AUTO[kind].from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {value.dtype for value in halves.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["thsa", "hard_fish", "fmm_fast_weight2", "sigma_moe", "mgk_em"])
def test_designs_with_constants_and_states(name: str, tmp_path: Path) -> None:
    model = tiny.of_design("mhsa", mlp=name, mlp_legs={}) if name == "sigma_moe" else tiny.of_design(name)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(**tiny.batch()).logits, model(**tiny.batch()).logits)


FRESH = """
import sys, torch, tensornet_attn.hf
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5).tolist())
"""


def test_a_fresh_process_reads_it(tmp_path: Path) -> None:
    model = tiny.of_kind("language_model")
    model.save_pretrained(tmp_path)
    done = subprocess.run([sys.executable, "-c", FRESH, str(tmp_path)], capture_output=True, text=True, check=False)
    wanted = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5).tolist()
    assert (done.stdout, done.returncode) == (f"{wanted}\n", 0), done.stderr


def test_weights_that_a_checkpoint_lacks_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.of_kind("language_model")
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mixer.design.Wq"], weights["model.layers.0.mlp.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    made, init = [], ta.models.LanguageModel.__init__
    monkeypatch.setattr(ta.models.LanguageModel, "__init__", lambda *a, **k: (made.append(1), init(*a, **k))[1])
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).model
    assert len(made) == 2  # itself, and once for all that is lacking
    drawn, kept = again.layers[1].mixer.design.Wq, again.layers[1].mixer.design.Wk
    assert torch.equal(kept, model.model.layers[1].mixer.design.Wk)
    assert 0 < drawn.std() < 1
    assert drawn.isfinite().all()
    assert torch.equal(again.layers[0].mlp.norm.weight, torch.ones(8, dtype=torch.float64))
    states = tiny.of_design("mgk_em")
    states.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (first, *_) = names = [name for name, _ in states.named_buffers()]
    save_file({name: weights[name] for name in weights if name not in names}, tmp_path / "model.safetensors")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    wanted = dict(ta.hf.make(states.model.spec, dtype=torch.float64).named_buffers())[first]
    assert torch.equal(dict(again.named_buffers())[first], wanted)


def test_trained_models_and_designs_become_one(tmp_path: Path) -> None:
    trained = models.spread(models.language(positions="sinusoid")).eval()
    wrapped = ta.hf.make(trained)
    tokens = models.tokens()
    assert torch.equal(wrapped(tokens).logits, trained(tokens))
    for name, value in {"depth": 3, "backend": "torch", "dtype": torch.float32}.items():
        message = refused(ta.InputError, lambda name=name, value=value: ta.hf.make(trained, **{name: value}))
        assert message == f"a trained model keeps its '{name}': leave it out."
    literal = ta.models.LanguageModel(vocabulary=9, length=8, width=16, layers=["mhsa"], backend="reference")
    assert ta.hf.make(literal, eos_token_id=5).config.backend == "reference"
    assert ta.hf.make(models.classifier()).get_output_embeddings() is None
    path = tmp_path / "own.yaml"
    path.write_text("tensornet: 1\nname: own\nextends: mhsa\nlegs: {h: head 2}\n")
    model = ta.hf.make(str(path), kind="masked_language_model", vocabulary=9, length=8, width=16, depth=3)
    assert isinstance(model, ta.hf.TensornetForMaskedLM)
    assert (model.config.num_hidden_layers, model.config.vocab_size, model.config.spec.name) == (3, 9, "own")
    double = ta.hf.make("mhsa", vocabulary=9, length=8, width=16, legs={"h": 2}, dtype=torch.float64)
    assert {value.dtype for value in double.parameters()} == {torch.float64}
    small = ta.hf.config_of("wikitext_small", depth=2, vocabulary=50)
    assert (small.hidden_size, small.max_position_embeddings, small.spec.name) == (128, 256, "wikitext_small")


@pytest.mark.parametrize("kind", ["language_model", "masked_language_model", "sequence_classifier"])
def test_hidden_states(kind: str) -> None:
    model, tokens = tiny.of_kind(kind), models.tokens()
    states = model(tokens, output_hidden_states=True).hidden_states
    assert [list(state.shape) for state in states] == [[2, 6, 8]] * 3
    assert len(model(tokens, return_dict=False)) == (2 if kind == "language_model" else 1)


def test_padding_and_both_sides() -> None:
    """What stands in padding reaches no logits, and a masked language model sees what comes after."""
    for kind in ("masked_language_model", "sequence_classifier"):
        model, inputs = tiny.of_kind(kind), tiny.batch()
        other = inputs | {"input_ids": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, 4)}
        one, two = model(**inputs).logits, model(**other).logits
        seen = slice(None) if kind == "sequence_classifier" else inputs["attention_mask"].bool()
        assert torch.equal(one[seen], two[seen])
    model, tokens = tiny.of_kind("masked_language_model"), models.tokens()
    later = tokens.clone()
    later[:, -1] = (later[:, -1] + 1) % tiny.VOCABULARY
    assert (model(tokens).logits[:, 0] - model(later).logits[:, 0]).abs().max() > 1e-3


@pytest.mark.parametrize("positions", ["learned", "sinusoid"])
@pytest.mark.parametrize("made", [models.masked, models.classifier], ids=["masked", "classifier"])
def test_padding_on_the_left_moves_no_position(made, positions: str) -> None:
    model = ta.hf.make(models.spread(made(positions=positions))).eval()
    tokens = models.tokens(2, 4)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]]).expand(2, 6)
    padded, alone = model(torch.nn.functional.pad(tokens, (2, 0)), mask).logits, model(tokens).logits
    torch.testing.assert_close(padded[:, 2:] if alone.dim() == 3 else padded, alone, rtol=1e-10, atol=1e-11)


def test_a_cls_row_has_no_padding_behind_it() -> None:
    """Rotary positions do not count padding, on the left neither, where it is between the row and the tokens."""
    model = ta.hf.make(models.spread(models.classifier(positions="learned", pooling="cls"))).eval()
    tokens, mask = models.tokens(2, 6), torch.tensor([[1, 1, 1, 1, 0, 0]]).expand(2, 6)
    torch.testing.assert_close(model(tokens, mask).logits, model(tokens[:, :4]).logits, rtol=1e-10, atol=1e-11)
    left = model(tokens, mask.flip(1)).logits
    torch.testing.assert_close(left, model(tokens[:, 2:]).logits, rtol=1e-10, atol=1e-11)


def refused(error: type[Exception], call) -> str:
    with pytest.raises(error) as found:
        call()
    return str(found.value)


def test_configurations_that_are_refused() -> None:
    config = tiny.of_kind("sequence_classifier").config
    seq2seq = tiny.of_kind("seq2seq").config
    assert refused(ta.InputError, ta.hf.TensornetConfig) == (
        "a TensornetConfig requires 'diagram', the YAML text of a model: create it with ta.hf.config_of."
    )
    assert refused(ta.InputError, lambda: ta.hf.TensornetConfig(diagram=config.diagram, hidden_size=9)) == (
        "'hidden_size' is 8 in the diagram, not 9: pass other sizes to ta.hf.config_of."
    )
    assert refused(ta.InputError, lambda: ta.hf.TensornetConfig(diagram=config.diagram, num_labels=2)) == (
        "the diagram has 3 classes, not 2 labels: set 'classes' in the diagram."
    )
    assert refused(ta.DesignError, lambda: ta.hf.TensornetConfig(diagram="tensornet: 1")).startswith(
        "<text>:1:1: wrong-type: expected a mapping, got nothing."
    )
    assert refused(ta.DesignError, lambda: ta.hf.TensornetConfig(diagram="wikitext_small")).startswith("<text>:1:1: ")
    assert refused(ta.InputError, lambda: AUTO["language_model"].from_config(seq2seq)) == (
        "the diagram describes a seq2seq; TensornetForCausalLM requires a language_model."
    )
    assert refused(ta.InputError, lambda: ta.hf.make("mhsa", kind="seq2seq")) == (
        "an encoder-decoder model requires a model file: a design alone gives one stack of layers."
    )
    assert refused(TypeError, lambda: ta.hf.make("wikitext_small", dropuot=0.1)) == (
        "config_of() got an unexpected keyword argument 'dropuot'; did you mean 'dropout'?"
    )
    assert refused(ta.InputError, lambda: ta.hf.make("wikitext_small", kind="seq2seq")) == (
        "a model file defines its kind: leave out 'kind'."
    )


def test_calls_that_are_refused() -> None:
    model, pair, tokens = tiny.of_kind("language_model"), tiny.of_kind("seq2seq"), models.tokens()
    assert refused(ta.InputError, lambda: model(tokens, token_type_ids=tokens)) == (
        "TensornetForCausalLM does not accept 'token_type_ids': leave it out."
    )
    packed = torch.tensor([[0, 1, 2, 0, 1, 2]]).expand(2, 6)
    assert refused(ta.InputError, lambda: model(tokens, position_ids=packed)) == (
        "'position_ids' restart within a row of a batch, or after cached positions: give all sequences as one row."
    )
    assert refused(ta.InputError, lambda: model(tokens, attention_mask=torch.ones(2, 1, 6, 6))) == (
        "'attention_mask' has shape [2, 1, 6, 6]; give [batch, positions], 1 = token."
    )
    assert refused(ta.InputError, lambda: pair(tokens, output_hidden_states=True, decoder_input_ids=tokens)) == (
        "TensornetForConditionalGeneration does not accept 'output_hidden_states': leave it out."
    )
    assert refused(ta.InputError, lambda: pair(tokens)) == (
        "a decoder requires 'decoder_input_ids', or 'labels' to derive them from."
    )
    pair.config.decoder_start_token_id = None
    assert refused(ta.InputError, lambda: pair(tokens, labels=tokens)) == (
        "'labels' alone require 'decoder_start_token_id' in the configuration: set it, or give 'decoder_input_ids'."
    )
    assert refused(ta.InputError, lambda: model.resize_token_embeddings(20)) == (
        "the diagram has 11 tokens, not 20: create the model with 'vocabulary=20'."
    )
    layers = {"kind": "sequence_classifier", "features": 3, "length": 8, "width": 16, "classes": 2, "layers": ["mhsa"]}
    numbers = ta.hf.make({"tensornet": 1, "model": layers})
    assert refused(ta.InputError, numbers.resize_token_embeddings) == (
        "the diagram has 'features' instead of tokens: there is no embedding to resize."
    )


WITHOUT = """
import sys
sys.modules["transformers"] = None
import tensornet_attn as ta
try:
    ta.hf
except ta.MissingPartError as error:
    print(error)
"""


def test_without_transformers() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.stdout == "Hugging Face models require transformers: pip install 'tensornet-attn[hf]'.\n", done.stderr
