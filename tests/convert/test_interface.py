"""Designs as `attn_implementation`: the outputs of sdpa, masks, caches, training, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tests.convert import models
from tests.refusals import refusal

F64 = torch.float64


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    """Leaves transformers as it was."""
    from transformers import AttentionInterface, AttentionMaskInterface

    tables = [kind._global_mapping for kind in (AttentionInterface, AttentionMaskInterface)]
    before = [dict(table) for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)


def both(model: Any, design: Any, given: dict[str, Tensor], **options: Any) -> tuple[Tensor, Tensor]:
    """What the model gives with sdpa, and with the design between queries, keys and values."""
    found = []
    for implementation in ("sdpa", ta.register_attention(design, **options)):
        model.set_attn_implementation(implementation)
        y = model(**given)[0]
        padding = given.get("attention_mask")
        found.append(y[padding.bool()] if padding is not None and padding.dim() == 2 else y)
    return found[0], found[1]


@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("name", models.MODELS)
def test_mhsa_is_what_models_compute(name: str, padding: str) -> None:
    """gqa too, whose groups are those of the model; here also the gradients."""
    model, given = models.made(name).double(), models.inputs(name, padding)
    given = {key: value.to(F64) if value.is_floating_point() else value for key, value in given.items()}
    for design in ("mhsa", "gqa"):
        wanted, found = both(model, design, given)
        torch.testing.assert_close(found, wanted)
        pair = [
            torch.autograd.grad(y.square().sum(), list(model.parameters()), allow_unused=True) for y in (wanted, found)
        ]
        torch.testing.assert_close(pair[1], pair[0])


@pytest.mark.parametrize(("name", "dtype", "tolerance"), [("bert", F64, 1e-12), ("llama", torch.float32, 1e-5)])
def test_it_is_also_what_eager_attention_computes(name: str, dtype: torch.dtype, tolerance: float) -> None:
    """That of Llama rounds its maps to float32."""
    model, given = models.made(name, attn_implementation="eager").to(dtype), models.inputs(name, "right")
    wanted = models.outputs(model, given)
    model.set_attn_implementation(ta.register_attention("mhsa"))
    torch.testing.assert_close(models.outputs(model, given), wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_maps_are_returned_where_asked_for(name: str) -> None:
    model, given = models.made(name, attn_implementation="eager"), models.inputs(name, "right")
    wanted = model(**given, output_attentions=True).attentions
    for design in ("mhsa", "gqa"):
        model.set_attn_implementation(ta.register_attention(design))
        found = model(**given, output_attentions=True).attentions
        assert len(found) == len(wanted) == 2
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def test_a_design_decides_what_a_query_sees() -> None:
    """band of five diagonals, two of them before a query, is sdpa with a mask of these; with padding on either side."""
    model = models.made("llama").double()
    for padding in ("none", "left", "right"):
        given = models.inputs("llama", padding)
        n = given["input_ids"].shape[1]
        near = (
            torch.ones(n, n, dtype=torch.bool).tril().triu(-2)
            & given.get("attention_mask", torch.ones(3, n)).bool()[:, None]
        )
        ids = (given["attention_mask"].cumsum(-1) - 1).clamp(min=0) if "attention_mask" in given else None
        model.set_attn_implementation("sdpa")
        wanted = model(given["input_ids"], attention_mask=near[:, None], position_ids=ids)[0]
        model.set_attn_implementation(ta.register_attention("band", settings={"k": 5}))
        found = model(**given, position_ids=ids)[0]
        seen = given["attention_mask"].bool() if ids is not None else slice(None)
        torch.testing.assert_close(found[seen], wanted[seen])


@pytest.mark.parametrize("design", ["mhsa", "gqa", "band", "alibi", "linear"])
def test_generation_with_the_cache_of_the_model(design: str) -> None:
    model = models.made("llama", attn_implementation=ta.register_attention(design)).double()
    given = models.inputs("llama", "left")
    options = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    cached, anew = (model.generate(**given, **options, use_cache=use) for use in (True, False))
    assert torch.equal(cached.sequences, anew.sequences)
    torch.testing.assert_close(cached.logits, anew.logits)
    with torch.no_grad():
        whole = model(input_ids=given["input_ids"])[0]
        first = model(input_ids=given["input_ids"][:, :4], use_cache=True)
        rest = model(input_ids=given["input_ids"][:, 4:], past_key_values=first.past_key_values)[0]
    torch.testing.assert_close(torch.cat((first[0], rest), 1), whole)


def test_a_cache_with_room_behind_its_keys() -> None:
    model, given = models.made("llama").double(), models.inputs("llama", "left")
    options = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    model.set_attn_implementation(ta.register_attention("mhsa"))
    grows, static = (model.generate(**given, **options, cache_implementation=kind) for kind in ("dynamic", "static"))
    torch.testing.assert_close(static.logits, grows.logits)
    model.set_attn_implementation(ta.register_attention("band"))
    assert refusal(model.generate, **given, **options, cache_implementation="static") == APART


APART = (
    "band: it needs its last query at the last key, unlike here: in cross-attention, or with a cache of fixed size; "
    "use a cache that grows, e.g. DynamicCache."
)


def test_a_step_of_training() -> None:
    model, given = models.made("llama", attention_dropout=0.5).train(), models.inputs("llama", "right")
    model.set_attn_implementation(ta.register_attention("mhsa"))
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        loss = model(**given, labels=given["input_ids"]).loss
        model.zero_grad()
        loss.backward()
        assert all(weight.grad is not None for weight in model.parameters())
        torch.optim.SGD(model.parameters(), 1e-3).step()
        losses.append(float(loss.detach()))
    assert losses[1] < losses[0]
    torch.manual_seed(1)
    assert float(model(**given, labels=given["input_ids"]).loss.detach()) != losses[1]  # dropout


def test_one_program_of_torch_compile() -> None:
    """The design is compiled by a first call, since torch cannot trace that."""
    model, given = (
        models.made("bert", attn_implementation=ta.register_attention("mhsa")),
        models.inputs("bert", "right"),
    )
    wanted = models.outputs(model, given)
    whole = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(models.outputs(whole, given), wanted)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_masks_of_ones_own(name: str) -> None:
    """[batch, heads or 1, n, m], boolean or added; those of a causal model may show later keys."""
    model, ids = models.made(name).double(), models.inputs(name)["input_ids"]
    shape, generator = (3, model.config.num_attention_heads, 9, 9), torch.Generator().manual_seed(0)
    seen = torch.rand(shape, generator=generator) < 0.7
    seen[..., 0] = True
    numbers, least = torch.randn(shape, generator=generator, dtype=F64), torch.finfo(F64).min
    every = [seen, numbers, torch.zeros(shape, dtype=F64).where(seen, least), numbers.where(seen, least)]
    for mask in [*every, *(mask[:, :1] for mask in every)]:
        wanted, found = both(model, "mhsa", {"input_ids": ids, "attention_mask": mask})
        torch.testing.assert_close(found, wanted)


def test_windows_of_the_model() -> None:
    from transformers.models.mistral import MistralConfig, MistralForCausalLM

    config = MistralConfig(**models.SIZES | {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 3})
    model = models.drawn(MistralForCausalLM(config)).double().eval()
    for design in ("mqa", "gqa", "mhsa"):
        wanted, found = both(model, design, models.inputs("llama", "left"))
        torch.testing.assert_close(found, wanted)


def test_attention_to_another_sequence() -> None:
    from transformers.models.bart import BartConfig, BartModel

    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "d_model": 24}
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 3}
    model = (
        models.drawn(BartModel(BartConfig(vocab_size=50, max_position_embeddings=40, **sizes, **heads))).double().eval()
    )
    given = models.inputs("bert", "right") | {"decoder_input_ids": torch.randint(5, 50, (3, 5))}
    found = []
    for implementation in ("sdpa", ta.register_attention("mhsa")):
        model.set_attn_implementation(implementation)
        found.append(model(**given)[0])
    torch.testing.assert_close(found[1], found[0])
    model.set_attn_implementation(ta.register_attention("band"))
    assert refusal(model, **given) == APART


def test_a_scale_of_the_model_and_heads_of_other_widths() -> None:
    """The queries are multiplied; values may be wider than keys where a design has a leg of its own for them."""
    inputs = {"query": "n h d", "key": "m h d", "value": "m h e"}
    design = {
        "tensornet": 1,
        "name": "own",
        "legs": {"n": "query", "m": "key", "h": "head 2", "d": 4, "e": 4},
        "inputs": inputs,
        "diagram": {
            "A": {"softmax": "m", "scale": "d ** -0.5", "of": "query[n h d] key[m h d] -> h n m"},
            "y": "A[h n m] value[m h e] -> h n e",
        },
        "output": "y",
    }
    name = ta.register_attention(design)
    from transformers import AttentionInterface

    q, k, v = (torch.randn(2, heads, 5, width, dtype=F64) for heads, width in ((4, 6), (2, 6), (2, 3)))
    y, maps = AttentionInterface()[name](torch.nn.Module(), q, k, v, None, scaling=0.3, is_causal=True)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(y, wanted.transpose(1, 2))
    assert maps is None


def test_a_scale_where_scores_are_not_linear_in_the_queries() -> None:
    """ALiBi's slopes are not scaled, as in models that have them; distances and feature maps would be other ones."""
    from transformers import AttentionInterface

    q, k, v = (torch.randn(1, 2, 5, 4, dtype=F64) for _ in range(3))
    call = {"module": torch.nn.Module(), "query": q, "key": k, "value": v, "attention_mask": None, "is_causal": True}
    slopes, places = torch.tensor([2.0**-4, 2.0**-8], dtype=F64), torch.arange(5)
    bias = -slopes[:, None, None] * (places[:, None] - places)
    bias = bias.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    y, _ = AttentionInterface()[ta.register_attention("alibi")](**call, scaling=0.2)
    torch.testing.assert_close(y.transpose(1, 2), (0.2 * q @ k.mT + bias).softmax(-1) @ v)
    for name in ("gaussian", "linear", "mhsa_poly"):
        attention = AttentionInterface()[ta.register_attention(name)]
        attention(**call, scaling=0.5)
        assert refusal(attention, **call, scaling=0.2) == (
            f"{name}: the model scales its scores by 0.2, not by d ** -0.5, and the scores of this design are not "
            "linear in its queries; use a design whose scores are, e.g. mhsa."
        )


INSTEAD = "use ta.convert_model to put the whole design into a model."
REFUSED = {
    "thsa": f"without its projections it still has 'C', but the rest of a design must have no weights; {INSTEAD}",
    "mlp": f"it has no attention map that weighs all values; {INSTEAD}",
    "differential": "it has 2 projections to queries, 2 to keys and 1 to values; exactly one of each can be removed; "
    f"{INSTEAD}",
    "heads_only": "its queries, keys and values are [n h], [m h], [m h]; each needs one leg besides its heads.",
}


@pytest.mark.parametrize("name", REFUSED)
def test_designs_with_more_than_that(name: str) -> None:
    assert refusal(ta.register_attention, name) == f"{name}: {REFUSED[name]}"


@pytest.mark.parametrize(
    ("design", "model", "options", "message"),
    [
        ("alibi", "bert", {}, "alibi: it is causal, but this attention sees later keys."),
        ("mqa", "llama", {}, "mqa: 4 heads of queries and 2 of keys do not fit its legs [h] and []."),
        ("mhsa", "llama", {"softcap": 3.0}, "mhsa: it does not cap its scores."),
    ],
)
def test_calls_that_are_refused(design: str, model: str, options: dict[str, Any], message: str) -> None:
    made = models.made(model, attn_implementation=ta.register_attention(design))
    assert refusal(made, **models.inputs(model), **options) == message


def test_dropout_of_the_design_gives_way() -> None:
    """Where the model has one too."""
    box = {"softmax": "m", "scale": "d ** -0.5", "dropout": 0.9, "of": "Q[n h d] K[m h d] -> h n m"}
    own = {"tensornet": 1, "name": "dropped", "extends": "mhsa", "contains": {}, "diagram": {"A": box}}
    assert "dropout: 0.2" in ta.nn.MultiheadAttention(own, 24, 4, dropout=0.2).design.design.to_yaml()
    model = models.made("llama", attn_implementation=ta.register_attention(own), attention_dropout=0.2).train()
    assert model(**models.inputs("llama")).logits.isfinite().all()


def test_dropout_needs_a_softmax() -> None:
    model = models.made("llama", attn_implementation=ta.register_attention("linear"), attention_dropout=0.1).train()
    wanted = "'linear' has no softmax over its keys, so dropout cannot be added."
    assert refusal(model, **models.inputs("llama")) == wanted
