"""Language models of each family: converted, they give the same logits, gradients and texts, from their caches too."""

from __future__ import annotations

import ast
import copy
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensornet_attn as ta
from tensornet_attn.convert.attentions import read_trained
from tensornet_attn.convert.families import FAMILIES, family_of
from tensornet_attn.convert.replace import convert_model
from tensornet_attn.errors import InputError
from tests.convert import models
from tests.refusals import refusal

CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # angles and norms are float32 in the models, whatever their dtype


SINGLE = ("gemma2", "bloom", "mpt")  # whose masks of float64 are NaN in softmax where a row sees nothing


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", models.GENERATING)
def test_logits_and_gradients(name: str, padding: str) -> None:
    single = name in SINGLE and padding == "left"
    given, found = models.inputs(name, padding), []
    for model in models.pair(name, single):
        model.zero_grad()
        y = models.outputs(model, given, use_cache=False)
        y.square().mean().backward()
        found.append((y, model.get_input_embeddings().weight.grad))
    torch.testing.assert_close(found[1], found[0], **({"rtol": 2e-3, "atol": 2e-3} if single else CLOSE))


@pytest.mark.parametrize("name", models.GENERATING)
def test_generation_from_a_cache(name: str) -> None:
    """Greedy: the same logits at each step, behind more positions than a window holds."""
    before, after = (models.generated(model, "none") for model in models.pair(name))
    torch.testing.assert_close(after.logits, before.logits, **CLOSE)
    assert torch.equal(after.sequences, before.sequences)
    assert after.past_key_values.get_seq_length() == 15


@pytest.mark.parametrize("name", models.DECODERS)
def test_beams_of_a_batch_with_padding_on_the_left(name: str) -> None:
    before, after = (models.generated(model, "left", num_beams=3) for model in models.pair(name, name in SINGLE))
    assert torch.equal(after.sequences, before.sequences)
    torch.testing.assert_close(after.sequences_scores, before.sequences_scores, rtol=1e-4, atol=1e-6)


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
        wanted = models.outputs(before, given)
        torch.testing.assert_close(models.outputs(after, given, use_cache=False), wanted, **CLOSE)
        if design == "thsa" and name == "mistral":
            assert refusal(partial(models.outputs, after, given)) == (
                "thsa: sequences of a cache take no padding, because 'Q' is rotated by its position, and is not used "
                "in a product of a query and a key: pad on the right, or give sequences of equal length."
            )
    assert refusal(lambda: convert_model(models.made("qwen3"), "thsa")) == (
        "model.layers.0.self_attn (Qwen3Attention) cannot become 'thsa': 'thsa' has no leg of 8 entries in 'x[n f] "
        "Wq[f s] + bq[s] -> n s' for a norm."
    )


SCALED = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 20, "beta_fast": 4.0},
    "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 20},
}


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_positions(kind: str, tmp_path: Path) -> None:
    """Llama 3.1's and others': logits, texts from a cache, and what is saved. The last position is beyond a maximum."""
    length = {"max_position_embeddings": 20 if kind == "dynamic" else 40}
    rope = {"rope_type": kind, "rope_theta": 500.0, **SCALED[kind]}
    before = models.made("llama", rope_parameters=rope, **length).double()
    after = convert_model(copy.deepcopy(before), "gqa")
    given = {"input_ids": torch.randint(5, 50, (2, 25), generator=torch.Generator().manual_seed(3))}
    torch.testing.assert_close(models.outputs(after, given), models.outputs(before, given), **CLOSE)
    if kind != "dynamic":  # whose cache in transformers holds keys that were turned by the angles of shorter texts
        told = [models.generated(model, "left") for model in (before, after)]
        torch.testing.assert_close(told[1].logits, told[0].logits, **CLOSE)
    after.save_pretrained(tmp_path)
    again = type(before).from_pretrained(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(models.outputs(again, given), models.outputs(after, given), **CLOSE)


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


class LlamaAttention(nn.Module):
    """One's own, of a name that Hugging Face has too."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(24, 24)


def test_another_class_of_the_same_name_is_not_theirs() -> None:
    with pytest.raises(InputError, match="LlamaAttention"):
        ta.convert(LlamaAttention(), "gqa")
    assert family_of(LlamaAttention()) is None
