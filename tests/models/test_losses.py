"""Auxiliary losses of models: those of all their designs by the places these stand at, and their weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tests.models import tiny

MIXER = {"design": "moa_regularised", "legs": {"e": 4}, "settings": {"k": 2}}
MLP = {"design": "sigma_moe_regularised", "legs": {"e": 4, "l": 6}, "settings": {"k": 2, "entropy_weight": 0.5}}
LAYERS = [{"mixer": MIXER, "mlp": "mlp"}, {"mixer": {"design": "mhsa", "legs": {"h": 2}}, "mlp": MLP}]
WEIGHTS = {
    "layers.0.mixer.importance": 0,
    "layers.0.mixer.balance": 0.01,
    "layers.0.mixer.router_z": 0.001,
    "layers.1.mlp.entropy": 0.5,
}
SEEN = torch.tensor([[True] * 6, [True, True, False, False, True, False]])


def of_designs(model: Any, *arguments: Tensor, **options: Any) -> dict[str, Tensor]:
    """What each design of a model returns when it is asked by itself, with what it is given in the model."""
    found: dict[str, Tensor] = {}
    asked = set[str]()

    def look(name: str) -> Any:
        def hook(module: Any, given: tuple[Tensor, ...], named: dict[str, Any], _: Any) -> None:
            if name in asked:  # by this hook
                return
            asked.add(name)
            losses = module(*given, key_mask=named.get("key_mask"), losses=True)[1]
            found.update({f"{name.removesuffix('.design')}.{key}": value for key, value in losses.items()})

        return hook

    places = [(name, part) for name, part in model.named_modules() if name.endswith(".design")]
    handles = [part.register_forward_hook(look(name), with_kwargs=True) for name, part in places]
    model(*arguments, **options)
    for handle in handles:
        handle.remove()
    return found


def same(got: object, want: object) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("key_mask", [None, SEEN])
def test_a_language_model(key_mask: Tensor | None) -> None:
    model = tiny.spread(tiny.language(layers=LAYERS)).eval()
    logits, losses = model(tiny.tokens(), key_mask, losses=True)
    same(logits, model(tiny.tokens(), key_mask))
    assert model.spec.loss_weights == WEIGHTS
    assert list(losses) == list(WEIGHTS)
    same(losses, of_designs(model, tiny.tokens(), key_mask))


def test_places_and_memory_stand_before_the_losses() -> None:
    xl = {"mixer": {"design": "transformer_xl", "legs": {"h": 2}}, "mlp": MLP}
    model = tiny.language(layers=[xl], memory=4, positions="none").eval()
    memory, at = model.new_memory(2), torch.tensor([1, 7])
    logits, after, losses = model(tiny.tokens(), memory=memory, at=at, losses=True)
    assert logits.shape == (2, tiny.VOCABULARY)
    assert after.rows == 4
    assert list(losses) == ["layers.0.mlp.entropy"]
    logits, losses = model(tiny.tokens(), at=at, losses=True)
    assert logits.shape == (2, tiny.VOCABULARY)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_classifier(pooling: str) -> None:
    model = tiny.spread(tiny.classifier(layers=LAYERS, pooling=pooling)).eval()
    logits, losses = model(tiny.tokens(), SEEN, losses=True)
    same(logits, model(tiny.tokens(), SEEN))
    assert list(losses) == list(WEIGHTS)


def test_a_seq2seq_model_has_those_of_both_halves() -> None:
    cross = {"design": "cross", "legs": {"h": 2}}
    model = tiny.seq2seq(encoder=LAYERS, decoder=[LAYERS[1] | {"cross": cross}]).eval()
    arguments = (tiny.tokens(), tiny.tokens(n=4), SEEN)
    logits, losses = model(*arguments, losses=True)
    same(logits, model(*arguments))
    names = [name.replace("layers", "encoder") for name in WEIGHTS] + ["decoder.0.mlp.entropy"]
    assert list(losses) == list(model.spec.loss_weights) == names
    same(losses, of_designs(model, *arguments))


def test_a_model_without_losses_has_none() -> None:
    model = tiny.language().eval()
    logits, losses = model(tiny.tokens(), losses=True)
    assert torch.equal(logits, model(tiny.tokens()))
    assert losses == model.spec.loss_weights == {}


def test_a_description_keeps_losses_and_weights() -> None:
    model = tiny.language(layers=LAYERS)
    for whole in (False, True):
        assert ta.models.load(model.to_yaml(whole)).loss_weights == WEIGHTS


def test_gradients_reach_every_layer_below() -> None:
    model = tiny.language(layers=LAYERS).eval()
    _, losses = model(tiny.tokens(), losses=True)
    gradient = torch.autograd.grad(losses["layers.1.mlp.entropy"], [model.layers[0].mixer.design.Wq])[0]
    assert gradient.abs().max() > 0


def test_one_graph_and_one_program() -> None:
    model = tiny.language(layers=LAYERS).eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    same(compiled(tiny.tokens(), losses=True), model(tiny.tokens(), losses=True))
    program = torch.export.export(model, (tiny.tokens(),), {"losses": True}).module()
    same(program(tiny.tokens(), losses=True), model(tiny.tokens(), losses=True))
