"""Classifiers of numbers in place of tokens, and of all rows side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import tensornet_attn as ta
from tests.models import tiny
from tests.refusals import refusal


def classifier(**config: Any) -> ta.models.SequenceClassifier:
    return tiny.spread(tiny.classifier(vocabulary=None, features=4, **({"length": 6} | config)))


def numbers(batch: int = 2, n: int = 6) -> torch.Tensor:
    return torch.randn(batch, n, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("pooling", ["mean", "cls", "concat"])
def test_numbers_are_projected_and_padding_is_irrelevant(pooling: str) -> None:
    model = classifier(pooling=pooling, positions="learned", embedding_scale="width ** 0.5")
    x, keep = numbers().requires_grad_(), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    y = model(x, keep)
    assert list(y.shape) == [2, 3]
    torch.testing.assert_close(y, model(torch.where(keep[..., None], x, 7.0), keep), rtol=1e-10, atol=1e-11)
    if pooling != "concat":
        torch.testing.assert_close(y[1:], model(x[1:, :4]), rtol=1e-10, atol=1e-11)
    y.square().sum().backward()
    assert bool((x.grad[~keep] == 0).all())
    assert bool((x.grad[keep].abs().sum(-1) > 0).all())
    assert all(value.grad.abs().max() > 0 for value in model.parameters())


def test_the_projection_is_that_of_the_equation() -> None:
    """Width times root of the width, as the code of Zerveas et al. has it, before the first layer."""
    model, x = classifier(embedding_scale="width ** 0.5"), numbers()
    weight, bias = model.projection.weight, model.projection.bias
    seen = []
    model.layers[0].register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    model(x)
    torch.testing.assert_close(seen[0], (torch.einsum("bnc,fc->bnf", x, weight) + bias) * 8**0.5)


def test_all_rows_side_by_side_are_one_matrix() -> None:
    model, x = tiny.spread(tiny.classifier(pooling="concat", length=6)), tiny.tokens()
    keep = torch.tensor([[True] * 6, [True] * 5 + [False]])
    seen = []
    model.norm.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    y = model(x, keep)
    weight = model.output.weight.unflatten(1, (6, 8))
    wanted = torch.einsum("bnf,cnf->bc", seen[0] * keep[..., None], weight) + model.output.bias
    torch.testing.assert_close(y, wanted, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("config", [{}, {"positions": "learned"}, {"pooling": "concat"}, {"pooling": "cls"}])
def test_costs_descriptions_and_checkpoints(config: dict[str, Any], tmp_path: Path) -> None:
    model = classifier(**config)
    cost = model.cost(6, 2)
    assert cost.parameters == sum(value.numel() for value in model.parameters())
    (row,) = [row for row in cost.rows if row.place == "embedding"]
    assert row.macs == 2 * 6 * 4 * 8
    (output,) = [row for row in cost.rows if row.place == "output"]
    assert output.macs == 2 * model.output.weight.numel()
    assert model.spec.legs == {"features": 4, "length": 6, "width": 8}
    assert ta.models.load(model.to_yaml()).to_yaml() == model.to_yaml()
    ta.save(model, tmp_path / "model.pt")
    assert torch.equal(ta.restore(tmp_path / "model.pt")(numbers()), model(numbers()))


@pytest.mark.parametrize(("init", "std"), [("normal", 0.02), ("transformer_xl", 0.02), ("epa", 64**-0.5)])
def test_a_projection_starts_as_a_matrix(init: str, std: float) -> None:
    torch.manual_seed(0)
    model = ta.models.SequenceClassifier(features=64, length=8, width=64, classes=3, layers=["mhsa"], init=init)
    assert model.projection.weight.std().item() == pytest.approx(std, rel=0.05)


def test_what_is_no_such_model_or_input() -> None:
    config = {"kind": "sequence_classifier", "vocabulary": None, "classes": 3}
    (problem,) = ta.models.check(tiny.model_of(**config))
    assert (problem.code, problem.message) == ("missing-key", "the key 'vocabulary' is missing.")
    assert problem.hint == "e.g. 'vocabulary: 256'; or 'features: 3' for numbers instead of tokens."
    (problem,) = ta.models.check(tiny.model_of(**config | {"vocabulary": 9, "features": 4}))
    assert (problem.code, problem.message) == ("no-fit", "a model has 'vocabulary' or 'features', not both.")
    assert [problem.code for problem in ta.models.check(tiny.model_of(**config | {"features": 0}))] == ["wrong-type"]
    assert [problem.code for problem in ta.models.check(tiny.model_of(features=4))] == ["unknown-key"]
    schema = ta.models.json_schema()
    data = tiny.model_of(**config | {"features": 4, "pooling": "concat"})
    del data["model"]["vocabulary"]
    jsonschema.validate(data, schema)
    model, x = classifier(pooling="concat"), numbers()
    wrong = [
        ((x[:, :5],), "the call has 5 positions; 'pooling: concat' takes 6, the model's length."),
        ((x[..., :3],), "'tokens' is [2, 6, 3] torch.float64; give [batch, n, 4], torch.float32."),
        ((tiny.tokens(),), "'tokens' is [2, 6] torch.int64; give [batch, n, 4], torch.float32."),
        ((x, torch.ones(2, 6)), "'key_mask' is [2, 6] torch.float32; give [2, 6], torch.bool, true = a token."),
    ]
    for given, message in wrong:
        assert refusal(model, *given) == message
