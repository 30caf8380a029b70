"""Shapes, causality, padding, gradients and ties of the kinds of model."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.models import tiny
from tests.refusals import refusal
from tests.regions import few_of

MAKERS = {"language": tiny.language, "masked": tiny.masked, "classifier": tiny.classifier, "seq2seq": tiny.seq2seq}
SHAPES = {"language": [2, 6, 11], "masked": [2, 6, 11], "classifier": [2, 3], "seq2seq": [2, 4, 11]}


def call(model: torch.nn.Module) -> torch.Tensor:
    x = tiny.tokens()
    return model(x, tiny.tokens(2, 4, seed=3)) if isinstance(model, ta.models.Seq2Seq) else model(x)


@pytest.mark.parametrize("token", [-1, 11])
@pytest.mark.parametrize("kind", MAKERS)
def test_tokens_outside_the_vocabulary(kind: str, token: int) -> None:
    wrong, sentence = (
        torch.tensor([[3, token]]),
        f"tokens are {min(3, token)} to {max(3, token)}; give 0 to 10, the vocabulary.",
    )
    targets = (tiny.tokens(1, 3),) if kind == "seq2seq" else ()
    assert refusal(MAKERS[kind](), wrong, *targets) == sentence
    if targets:
        assert refusal(MAKERS[kind](), *targets, wrong) == sentence


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoid"])
@pytest.mark.parametrize("kind", MAKERS)
def test_shapes(kind: str, positions: str) -> None:
    assert list(call(MAKERS[kind](positions=positions)).shape) == SHAPES[kind]


def test_a_masked_model_sees_both_sides_and_no_padding() -> None:
    model, x = tiny.spread(tiny.masked()), tiny.tokens()
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    y, at = model(x, keep), torch.tensor([2, 7])
    torch.testing.assert_close(y[1:, :4], model(x[1:, :4]), rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(model(x, keep, at=at), y.flatten(0, 1)[at], rtol=1e-10, atol=1e-11)
    later = x.clone()
    later[:, 5] = (x[:, 5] + 1) % tiny.VOCABULARY
    assert (model(later)[:, 0] - model(x)[:, 0]).abs().max() > 1e-4


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooling_and_norms(pooling: str, norm: str) -> None:
    model = tiny.spread(tiny.classifier(pooling=pooling, norm=norm, positions="learned"))
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    x = tiny.tokens()
    y = model(x, keep)
    torch.testing.assert_close(y[1:], model(x[1:, :4]), rtol=1e-10, atol=1e-11)
    nothing = model(x, torch.zeros(2, 6, dtype=torch.bool))
    assert nothing.isfinite().all()


@pytest.mark.parametrize("name", few_of(tiny.CAUSAL))
def test_a_later_token_changes_nothing_before_it(name: str) -> None:
    layers = [{"mixer": tiny.part(name), "mlp": "mlp"}]
    model = tiny.spread(tiny.language(layers=layers, width=tiny.width(name), positions="learned")).eval()
    x = tiny.tokens()
    other = x.clone()
    other[:, 3] = (x[:, 3] + 1) % tiny.VOCABULARY
    torch.manual_seed(0)
    y = model(x)
    torch.manual_seed(0)
    z = model(other)
    torch.testing.assert_close(y[:, :3], z[:, :3], rtol=1e-10, atol=1e-11)
    assert (y[:, 3] - z[:, 3]).abs().max() > 1e-4
    assert (y[:, 4:] - z[:, 4:]).abs().max() > 1e-8


@pytest.mark.parametrize("name", tiny.CAUSAL)
def test_gradients_reach_every_parameter(name: str) -> None:
    model = tiny.language(layers=[{"mixer": tiny.part(name), "mlp": "mlp"}], width=tiny.width(name), tied=False)
    model(tiny.tokens()).square().sum().backward()
    missing = [key for key, value in model.named_parameters() if value.requires_grad and value.grad is None]
    assert missing == []
    assert model.embedding.weight.grad.abs().max() > 0


@pytest.mark.parametrize("kind", MAKERS)
def test_no_gradient_is_zero(kind: str) -> None:
    model = tiny.spread(MAKERS[kind](positions="learned"))
    call(model).square().sum().backward()
    zero = [key for key, value in model.named_parameters() if not value.grad.abs().max() > 0]
    assert zero == []


@pytest.mark.parametrize("name", few_of(tiny.BOTH_WAYS))
def test_what_stands_in_padding_is_irrelevant(name: str) -> None:
    layers = [{"mixer": {**tiny.part(name), "causal": False}, "mlp": "mlp"}]
    model = tiny.spread(tiny.classifier(layers=layers, width=tiny.width(name))).eval()
    x = tiny.tokens()
    keep = torch.tensor([[True] * 6, [False, True, True, True, False, False]])
    other = torch.where(keep, x, (x + 1) % tiny.VOCABULARY)
    torch.testing.assert_close(model(x, keep), model(other, keep), rtol=1e-10, atol=1e-11)
    assert (model(x) - model(other))[1].abs().max() > 1e-6


def test_padding_on_the_left_of_a_language_model() -> None:
    model, x = tiny.spread(tiny.language()), tiny.tokens()
    keep = torch.tensor([[False] * 2 + [True] * 4] * 2)
    torch.testing.assert_close(model(x, keep)[:, 2:], model(x[:, 2:]), rtol=1e-10, atol=1e-11)


def test_padding_of_source_and_target() -> None:
    model, source, target = tiny.spread(tiny.seq2seq()), tiny.tokens(), tiny.tokens(2, 5, seed=3)
    keep = torch.tensor([[True] * 4 + [False] * 2] * 2)
    y = model(source, target, keep)
    torch.testing.assert_close(y, model(source[:, :4], target), rtol=1e-10, atol=1e-11)
    seen = torch.tensor([[True] * 3 + [False] * 2] * 2)
    z = model(source, target, keep, seen)
    torch.testing.assert_close(z[:, :3], y[:, :3], rtol=1e-10, atol=1e-11)


def test_the_decoder_is_causal_and_the_encoder_is_not() -> None:
    model, source, target = tiny.spread(tiny.seq2seq()), tiny.tokens(), tiny.tokens(2, 5, seed=3)
    y = model(source, target)
    later = target.clone()
    later[:, 3] = (later[:, 3] + 1) % tiny.VOCABULARY
    torch.testing.assert_close(model(source, later)[:, :3], y[:, :3], rtol=1e-10, atol=1e-11)
    source[:, -1] = (source[:, -1] + 1) % tiny.VOCABULARY
    assert (model(source, target) - y)[:, 0].abs().max() > 1e-6
    assert (model.encode(source) - model.encode(tiny.tokens()))[:, 0].abs().max() > 1e-6


def test_the_source_may_have_a_vocabulary_of_its_own() -> None:
    model = tiny.seq2seq(vocabulary=20, target_vocabulary=7)
    assert list(model(torch.full((2, 3), 19), torch.full((2, 4), 6)).shape) == [2, 4, 7]
    assert model.target_embedding.weight.shape == (7, 8)


@pytest.mark.parametrize("kind", ["language", "masked", "seq2seq"])
def test_tied_embeddings_are_one_parameter(kind: str) -> None:
    tied, untied = MAKERS[kind](), MAKERS[kind](tied=False)
    assert tied.output is None
    assert "output.weight" not in tied.state_dict()
    assert "output.weight" in untied.state_dict()
    before = call(tied)
    with torch.no_grad():
        tied.embedding.weight[7] = 0
    assert torch.equal(call(tied)[..., 7], torch.zeros_like(before[..., 7]))
    call(tied).sum().backward()
    assert tied.embedding.weight.grad[10].abs().max() > 0


@pytest.mark.parametrize("tied", [True, False])
def test_an_output_may_have_a_bias_for_each_token(tied: bool) -> None:
    model = tiny.language(tied=tied, output_bias=True)
    assert model.output_bias.tolist() == [0.0] * tiny.VOCABULARY
    before = call(model)
    with torch.no_grad():
        model.output_bias[3] = 2.5
    shift = torch.nn.functional.one_hot(torch.tensor(3), tiny.VOCABULARY) * 2.5
    torch.testing.assert_close(call(model), before + shift, rtol=1e-10, atol=1e-11)
    assert sum(value.numel() for value in model.parameters()) == model.cost().parameters
    call(model).square().sum().backward()
    assert model.output_bias.grad.abs().min() > 0


def test_a_hybrid_has_its_designs_in_order() -> None:
    layers = [{"mixer": "mhsa", "repeat": 2}, "linear", {"mixer": "band", "mlp": "sigma_moe"}]
    model = tiny.language(layers=layers, width=16, positions="sinusoid")
    names = [[getattr(block, role).design.design.name for role in block.roles] for block in model.layers]
    assert names == [["mhsa"], ["mhsa"], ["linear"], ["band", "sigma_moe"]]
    first, second = model.layers[0].mixer.design.Wq, model.layers[1].mixer.design.Wq
    assert not torch.equal(first, second)
    assert model(tiny.tokens()).isfinite().all()


@pytest.mark.parametrize("kind", MAKERS)
def test_copies_pickles_and_state_dicts(kind: str) -> None:
    model = tiny.spread(MAKERS[kind](positions="learned"))
    y = call(model)
    again = MAKERS[kind](seed=9, positions="learned")
    again.load_state_dict(model.state_dict())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), again):
        assert torch.equal(call(other), y)
        assert other.to_yaml() == model.to_yaml()


@pytest.mark.parametrize("kind", MAKERS)
def test_one_graph_and_the_same_gradients(kind: str) -> None:
    torch._dynamo.reset()
    model = tiny.spread(MAKERS[kind](positions="sinusoid", dropout=0.0))
    inputs = (tiny.tokens(),) if kind != "seq2seq" else (tiny.tokens(), tiny.tokens(2, 4))
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    y = torch.compile(model, fullgraph=True, backend="aot_eager")(*inputs, keep)
    wanted = model(*inputs, keep)
    torch.testing.assert_close(y, wanted, rtol=1e-10, atol=1e-11)
    parameters = list(model.parameters())
    got, want = (torch.autograd.grad(out.square().sum(), parameters) for out in (y, wanted))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


def test_autocast() -> None:
    model = tiny.language().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(tiny.tokens())
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    assert all(value.grad.isfinite().all() for value in model.parameters())


def test_dropout_acts_in_training_alone() -> None:
    model, x = tiny.language(dropout=0.5), tiny.tokens()
    assert not torch.equal(model(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def test_the_same_seed_makes_the_same_model() -> None:
    for kind in MAKERS:
        one, two = MAKERS[kind](seed=4).state_dict(), MAKERS[kind](seed=4).state_dict()
        assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("kind", MAKERS)
def test_cost_counts_the_parameters_there_are(kind: str) -> None:
    for config in ({}, {"positions": "learned", "norm": "rmsnorm"}):
        if kind != "classifier":
            config = config | {"tied": bool(config)}
        model = MAKERS[kind](**config)
        assert model.cost(6, 2).parameters == sum(value.numel() for value in model.parameters())
    one, two = model.cost(6), model.cost(6, batch=2)
    assert two.macs == 2 * one.macs > 0
    assert model.cost().n == 12


def test_cost_is_that_of_the_designs() -> None:
    cost = tiny.language().cost(6, 3)
    mixer = ta.cost(ta.load("mhsa_rope", legs={"f": 8, "h": 2}), 6, batch=3, causal=True).macs
    mlp = ta.cost(ta.load("mlp", legs={"f": 8, "l": 10}), 6, batch=3).macs
    assert cost.macs == 2 * (mixer + mlp) + 3 * 6 * 8 * tiny.VOCABULARY
    assert cost.to_text().splitlines()[0] == "language_model: n = 6, m = 6, batch 3"
    assert cost.as_dict()["flops"] == 2 * cost.macs


def test_a_checkpoint_carries_the_model(tmp_path) -> None:
    design = ta.load("mhsa").as_dict() | {"name": "own"}
    layers = [{"mixer": {"design": design, "legs": {"h": 2}}}, *tiny.LAYERS]
    model = tiny.spread(tiny.language(layers=layers))
    ta.save(model, tmp_path / "model.pt", {"seen": torch.ones(2)})
    again = ta.restore(tmp_path / "model.pt")
    assert torch.equal(call(again), call(model))
    assert again.to_yaml(whole=True) == model.to_yaml(whole=True)
    assert "extends" not in model.to_yaml(whole=True)
    assert ta.read_checkpoint(tmp_path / "model.pt").model.name == "language_model"
    assert list(ta.read_checkpoint(tmp_path / "model.pt").extra) == ["seen"]


def test_a_checkpoint_of_other_weights(tmp_path) -> None:
    path = tmp_path / "model.pt"
    ta.save(tiny.language(), path)
    content = torch.load(path, weights_only=True)
    buffer = io.BytesIO()
    torch.save(content | {"state": {"a": torch.ones(1)}}, buffer)
    path.write_bytes(buffer.getvalue())
    wanted = f"'{path}': the weights do not match its model 'language_model': Missing key"
    assert refusal(ta.restore, path).startswith(wanted)
    sentence = f"'{path}' holds a model, and its description sets causal: remove causal=."
    assert refusal(ta.restore, path, causal=True) == sentence


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoid"])
@pytest.mark.parametrize(
    ("offsets", "sentence"),
    [
        ([0, 5], "'cu_seqlens' is a list; give a tensor, torch.int32 [documents + 1]."),
        (torch.tensor([0.0, 5.0]), "'cu_seqlens' is torch.float32; give torch.int32."),
        (torch.tensor(5), "'cu_seqlens' has shape []; give [documents + 1], at least 2."),
        (torch.tensor([0, 4]), "'cu_seqlens' ends at 4, but there are 5 positions."),
        (torch.tensor([0, 3, 2, 5]), "'cu_seqlens' decreases: 2 at index 2 follows 3."),
        (torch.tensor([1, 5]), "'cu_seqlens' begins at 1; it must begin at 0."),
    ],
    ids=str,
)
def test_offsets_are_checked_before_positions_are_made_of_them(positions: str, offsets: Any, sentence: str) -> None:
    model = tiny.language(positions=positions)
    assert refusal(model, tiny.tokens(1, 5), cu_seqlens=offsets) == f"{model.spec.name}: {sentence}"


def test_a_document_of_a_row_may_be_empty() -> None:
    model = tiny.language(positions="learned").eval()
    tokens = tiny.tokens(1, 5)
    apart = torch.cat([model(part) for part in tokens.split((3, 2), 1)], 1)
    torch.testing.assert_close(model(tokens, cu_seqlens=torch.tensor([0, 0, 3, 3, 5])), apart)
