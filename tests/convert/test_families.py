"""Language models of each family: converted, they give the same logits, gradients and texts, from their caches too."""

from __future__ import annotations

import ast
import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tensornet_attn.convert.model import convert_model
from tensornet_attn.convert.table import FAMILIES, read_trained
from tensornet_attn.convert.wrap import Swapped
from tensornet_attn.errors import InputError
from tests.convert import models

ONE_KEY_HEAD_A_QUERY = ("gpt2", "gpt_neox")
CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # angles and norms are float32 in the models, whatever their dtype
LATER = [pytest.param(name, marks=pytest.mark.rotated) for name in models.DECODERS]  # what differs is read in all


@cache
def pair(name: str) -> tuple[Any, Any]:
    """A model and what it is converted to, in float64."""
    before = models.made(name).double()
    design = "mhsa" if name in ONE_KEY_HEAD_A_QUERY else "gqa"
    return before, convert_model(copy.deepcopy(before), design)


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", models.GENERATING)
def test_logits_and_gradients(name: str, padding: str) -> None:
    both, given = pair(name), models.inputs(name, padding)
    if name == "gemma2" and padding == "left":  # its own mask is NaN in float64 where a row sees nothing
        both = tuple(copy.deepcopy(model).float() for model in both)
    close = CLOSE if both[0].dtype == torch.float64 else {"rtol": 2e-3, "atol": 2e-3}
    found = []
    for model in both:
        model.zero_grad()
        y = models.outputs(model, given, use_cache=False)
        y.square().mean().backward()
        found.append((y, model.get_input_embeddings().weight.grad))
    torch.testing.assert_close(found[1], found[0], **close)


OPTIONS = {
    "max_new_tokens": 7,
    "do_sample": False,
    "eos_token_id": None,
    "pad_token_id": 0,
    "return_dict_in_generate": True,
    "output_logits": True,
}


def generated(model: Any, padding: str, **options: Any) -> Any:
    given = {"attention_mask": torch.ones(3, 9, dtype=torch.long)} | models.inputs("llama", padding)
    return model.generate(**given, **OPTIONS | options)


@pytest.mark.parametrize("name", models.GENERATING)
def test_generation_from_a_cache(name: str) -> None:
    """Greedy: the same logits at each step, behind more positions than a window holds."""
    before, after = (generated(model, "none") for model in pair(name))
    torch.testing.assert_close(after.logits, before.logits, **CLOSE)
    assert torch.equal(after.sequences, before.sequences)
    assert after.past_key_values.get_seq_length() == 15


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", *LATER])
def test_beams_of_a_batch_with_padding_on_the_left(name: str) -> None:
    if name == "gemma2":
        pytest.skip("its own mask is NaN in float64 where a row sees nothing")
    before, after = (generated(model, "left", num_beams=3) for model in pair(name))
    assert torch.equal(after.sequences, before.sequences)
    torch.testing.assert_close(after.sequences_scores, before.sequences_scores, **CLOSE)


def test_one_token_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    forward = Swapped.forward

    def counted(self: Swapped, *given: Any, **named: Any) -> Any:
        lengths.append(named["hidden_states"].shape[1])
        return forward(self, *given, **named)

    monkeypatch.setattr(Swapped, "forward", counted)
    generated(pair("llama")[1], "none")
    assert lengths == [9] * 2 + [1] * 12  # two layers


@pytest.mark.parametrize("options", [{"use_cache": False}, {"cache_implementation": "static"}, {"num_beams": 2}])
def test_other_ways_to_generate(options: dict[str, Any]) -> None:
    before, after = (generated(model, "left", **options) for model in pair("llama"))
    assert torch.equal(after.sequences, before.sequences)


def test_an_assistant_goes_back_in_the_cache() -> None:
    before, after = pair("llama")
    helper = models.llama(num_hidden_layers=1)
    texts = []
    for model in (before, after, convert_model(copy.deepcopy(before), "mhsa")):
        model.generation_config.num_assistant_tokens = 3
        given = {"input_ids": models.inputs("llama")["input_ids"][:1], "attention_mask": torch.ones(1, 9)}
        texts.append(model.generate(**given, **OPTIONS, assistant_model=helper.double().eval()).sequences)
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])


def test_chunks_of_any_length_and_a_cache_that_is_handed_over() -> None:
    after = pair("qwen3")[1]
    ids = models.inputs("llama")["input_ids"]
    past, found = None, []
    with torch.no_grad():
        for chunk in ids.split([4, 1, 3, 1], 1):
            result = after(input_ids=chunk, past_key_values=past, use_cache=True)
            past, logits = result.past_key_values, result.logits
            found.append(logits)
        torch.testing.assert_close(torch.cat(found, 1), after(input_ids=ids, use_cache=False).logits)
        past.batch_select_indices(torch.tensor([True, False, True]))
        past.batch_repeat_interleave(2)
        past.crop(-2)
        again = after(input_ids=ids[[0, 0, 2, 2], 7:], past_key_values=past).logits
        torch.testing.assert_close(again[::2], torch.cat(found, 1)[[0, 2], 7:])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_design_that_keeps_sums(name: str) -> None:
    model = convert_model(models.made(name).double(), "linear", init="fresh", legs={"h": 4})
    given = {"input_ids": models.inputs(name)["input_ids"], **OPTIONS}
    assert torch.equal(model.generate(**given).sequences, model.generate(**given, use_cache=False).sequences)
    assert "A.state1" in next(module for module in model.modules() if isinstance(module, Swapped)).design.new_cache()


def message(call: Any) -> str:
    with pytest.raises(InputError) as error:
        call()
    return str(error.value)


def test_training_keeps_no_cache() -> None:
    """A model makes one at every call unless it is told not to; it costs nothing, and whoever reads it is told."""
    model = convert_model(models.made("llama"), "gqa").train()
    given = models.inputs("llama")
    past = model(**given).past_key_values
    assert message(lambda: model(**given, past_key_values=past)) == (
        "model.layers.0.self_attn (LlamaAttention): a call in training with gradients keeps no cache; call "
        "model.eval() before it."
    )
    with torch.no_grad():
        assert model(**given).past_key_values.get_seq_length() == 9


def test_caches_of_others_are_refused() -> None:
    before, after = pair("llama")
    given, layer = models.inputs("llama"), "model.layers.0.self_attn (LlamaAttention): "
    with torch.no_grad():
        past = before(**given).past_key_values
    assert message(lambda: after(**given, past_key_values=past)) == (
        layer + "the cache holds keys and values of another model; give an empty one."
    )
    assert message(lambda: generated(after, "none", cache_implementation="offloaded")) == (
        layer + "a design keeps its past in no offloaded DynamicCache; leave out cache_implementation."
    )


def test_positions_behind_a_cache_are_compared() -> None:
    """Padding on the right, gone on from: the model would put the next token beside the last one that is no padding."""
    after = pair("llama")[1]
    given = models.inputs("llama", "right")
    with torch.no_grad():
        past = after(**given, use_cache=True).past_key_values
        mask = torch.cat((given["attention_mask"], torch.ones(3, 1)), 1)
        step = {"input_ids": given["input_ids"][:, :1], "attention_mask": mask, "past_key_values": past}
        assert message(lambda: after(**step, position_ids=torch.tensor([[9], [6], [3]]))) == (
            "model.layers.0.self_attn (LlamaAttention): position_ids are not consecutive where a query sees a key; a "
            "design counts positions itself."
        )


def test_a_design_without_a_cache() -> None:
    """Its scale depends on the length, so nothing that is kept stays right; the model generates without a cache."""
    design = {"tensornet": 1, "name": "by_length", "extends": "mhsa"}
    design["diagram"] = {"A": {"softmax": "m", "scale": "m ** -0.5", "of": "Q[n h d] K[m h d] -> h n m"}}
    model = convert_model(models.made("llama"), design, init="fresh", legs={"h": 4})
    assert not model.config.use_cache
    assert not model.generation_config.use_cache
    given = {"input_ids": models.inputs("llama")["input_ids"], **OPTIONS}
    assert model.generate(**given).sequences.shape == (3, 16)
    assert message(lambda: model.generate(**given, use_cache=True)).startswith("by_length: no cache can be kept: ")


@pytest.mark.parametrize("name", ["mistral", "gemma2", "modernbert"])
def test_a_window_is_the_design_s(name: str) -> None:
    model = models.made(name)
    layers = [module for module in model.modules() if type(module).__name__.endswith("Attention")]
    windows = [read_trained(layer).window for layer in layers]
    assert windows == {"mistral": [(4, 0)] * 2, "gemma2": [(3, 0), None], "modernbert": [None, (3, 3)]}[name]


def test_other_designs_carry_norms_and_windows() -> None:
    """Heads' own norms need the heads' leg; a norm over all heads and a window go into designs that merge them."""
    for name, heads, design in (("olmo2", 4, "thsa"), ("qwen3", 2, "mhsa"), ("mistral", 4, "thsa")):
        before = models.made(name, num_key_value_heads=heads).double()
        given, after = models.inputs(name, "left"), convert_model(copy.deepcopy(before), design)
        torch.testing.assert_close(models.outputs(after, given), models.outputs(before, given), **CLOSE)
    assert message(lambda: convert_model(models.made("qwen3"), "thsa")) == (
        "model.layers.0.self_attn (Qwen3Attention) cannot become 'thsa': 'thsa' has no leg of 8 entries in "
        "'x[n f] Wq[f s] + bq[s] -> n s', along which a norm could go."
    )


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "llama3"])
def test_scaled_positions_are_refused(kind: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 20}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    model = models.ALL["qwen2"](rope_parameters=rope)
    assert message(lambda: convert_model(model, "gqa")) == (
        "model.layers.0.self_attn (Qwen2Attention) cannot be converted: its rotary positions are scaled (rope_type "
        f"'{kind}'); a design has 'default' ones."
    )


@cache
def forwards() -> dict[str, set[str]]:
    """The text of each attention's forward, with the rotary positions that it calls, by class."""
    import transformers

    found: dict[str, set[str]] = {}
    for path in (Path(transformers.__file__).parent / "models").glob("*/modeling_*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(name in text for row in FAMILIES for name in row.classes):
            continue
        tree = ast.parse(text)
        turns = [
            plain(node) for node in tree.body if getattr(node, "name", "") in ("apply_rotary_pos_emb", "rotate_half")
        ]
        for node in tree.body:
            for inner in node.body if isinstance(node, ast.ClassDef) and "Attention" in node.name else ():
                if isinstance(inner, ast.FunctionDef) and inner.name == "forward":
                    body = plain(inner)
                    found.setdefault(node.name, set()).add(body + ("".join(turns) if "apply_rotary" in body else ""))
    return found


def plain(function: Any) -> str:
    """A function without its docstring and annotations."""
    arguments = function.args
    for one in (*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg, function):
        if one is not None:
            setattr(one, "returns" if one is function else "annotation", None)
    described = isinstance(function.body[0], ast.Expr) and isinstance(function.body[0].value, ast.Constant)
    return "\n".join(ast.unparse(line) for line in [arguments, *function.body[described:]])


TWO_FORWARDS = ("MistralAttention", "Qwen3Attention")  # the other one is made in these tests too: Qwen2, Gemma3


@pytest.mark.parametrize("row", FAMILIES[1:], ids=lambda row: row.classes[0])
def test_the_families_of_a_row_have_one_forward(row: Any) -> None:
    """Those that no test here makes a model of compute what those do that are made."""
    kinds = [[name for name in row.classes if "Cross" in name], [name for name in row.classes if "Cross" not in name]]
    for names in kinds:
        texts = {frozenset(forwards()[name]) for name in names}
        assert len(texts) <= (2 if row.classes[0] in TWO_FORWARDS else 1)
