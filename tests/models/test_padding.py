"""Padding of models: on either side, a padded sequence gives the outputs and gradients of the sequence alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models import tiny
from tests.refusals import refusal
from tests.work import reads

PLAIN = {"Q": "x[n f] Wq[f h d] -> n h d", "K": "x[m f] Wk[f h d] -> m h d", "V": "x[m f] Wv[f h d] -> m h d"}
SCORES = {"softmax": "m", "scale": "d ** -0.5", "of": "Q[n h d] K[m h d] -> h n m"}
BIASED = "x[n f] C[w f] + b[f] -> n w f"  # a row of zeros is no padding: the bias reaches it


def changed(diagram: dict[str, Any], legs: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """Attention of its own rows with other steps."""
    base = {"tensornet": 1, "name": "padded", "extends": "mhsa", "legs": {"h": "head 2", **(legs or {})}}
    return {**base, "diagram": diagram | {step: PLAIN[step] for step in PLAIN if step not in diagram}, **keys}


CONVOLVED = {"tensornet": 1, "name": "padded", "legs": {"n": "query", "f": 8, "g": 8, "w": 4}, "inputs": {"x": "n f"}}
CONVOLVED |= {"weights": {"C": "w f", "b": "f", "W": "f g"}, "output": "y"}
CONVOLVED |= {"diagram": {"c": {"conv": "n", "width": "w", "of": BIASED}, "y": "c[n f] W[f g] -> n g"}}
DESIGNS = {
    "length": changed({"A": SCORES | {"scale": "m ** -0.5"}}),
    "rows": changed({"V": "x[m f] Wv[f h d] + P[m h d] -> m h d"}, {"m": "key 12"}, weights={"P": "m h d"}),
    "prefix": changed({"A": SCORES | {"mask": ["prefix(2)"]}}),
    "sinusoid": changed(
        {"V": "x[m f] Wv[f h d] + s[m d] -> m h d"}, constants={"s": {"legs": "m d", "value": "sinusoid"}}
    ),
    "turned": changed({"V": {"rope": "m", "along": "d", "of": PLAIN["V"]}}),
    "convolved queries": changed(
        {"q": PLAIN["Q"], "Q": {"conv": "n", "width": "w", "of": "q[n h d] C[w h d] -> n w h d"}},
        {"w": 3},
        weights={"C": "w h d"},
    ),
    "convolved rows": CONVOLVED,
}
REASONS = {
    "length": "'A' has the length 'm' in a number",
    "rows": "the weight 'P' has a row for each position of leg 'm'",
    "prefix": "a mask of 'A' depends on absolute positions",
    "sinusoid": "the constant 's' depends on absolute positions",
    "turned": "'V' is rotated by its position, and is not used in a product of a query and a key",
}
SIZES = ((4, 2, 0), (6, 0, 0), (3, 0, 3), (2, 3, 1))  # tokens of a sequence, padding before them and after them


def padded(seed: int = 3) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Sequences, the batch of them with padding, and its mask."""
    parts = [tiny.tokens(1, size, seed + size)[0] for size, *_ in SIZES]
    rows = [torch.nn.functional.pad(part, sides, value=7) for part, (_, *sides) in zip(parts, SIZES, strict=True)]
    shown = [
        torch.nn.functional.pad(torch.ones_like(part), sides) for part, (_, *sides) in zip(parts, SIZES, strict=True)
    ]
    return parts, torch.stack(rows), torch.stack(shown).bool()


def model_of(kind: str, design: Any, **config: Any) -> Any:
    layers = [{"mixer": {"design": design}, "mlp": "mlp"}]
    return tiny.spread(getattr(tiny, kind)(layers=layers, **config)).eval()


KINDS = ("language", "masked", "classifier")
CASES = [(name, kind, "learned") for name in DESIGNS for kind in KINDS]
CASES += [("length", kind, positions) for kind in KINDS for positions in ("none", "sinusoid")]


@pytest.mark.parametrize(("name", "kind", "positions"), CASES)
def test_a_padded_sequence_is_the_sequence_alone(name: str, kind: str, positions: str) -> None:
    model, (parts, rows, keep) = model_of(kind, DESIGNS[name], positions=positions), padded()
    weights = tuple(model.parameters())

    def gradients(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(y.sin().sum(), weights, materialize_grads=True)

    y = model(rows, keep)
    y = y if kind == "classifier" else y[keep]
    alone = torch.cat([model(part[None]).flatten(0, -2) for part in parts])
    torch.testing.assert_close(y, alone, rtol=1e-9, atol=1e-10)
    for one, other in zip(gradients(y), gradients(alone), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def steps(model: Any, rows: torch.Tensor, keep: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """The outputs of chunks up to these ends, with a cache."""
    cache, starts = model.new_cache(), [0, *ends]
    with torch.no_grad():
        found = [model(rows[:, a:b], keep[:, :b], cache=cache) for a, b in zip(starts, ends, strict=False)]
    return torch.cat(found, 1)


LEFT = torch.tensor([[False] * 2 + [True] * 4, [True] * 6])


@pytest.mark.parametrize("ends", [[3, 4, 6], [1, 2, 3, 6], [6]])
@pytest.mark.parametrize("name", ["convolved queries", "convolved rows"])
def test_a_cache_continues_behind_padding(name: str, ends: list[int]) -> None:
    model, x = model_of("language", DESIGNS[name], positions="learned"), tiny.tokens()
    y = steps(model, x, LEFT, ends)
    torch.testing.assert_close(y[0, 2:], model(x[:1, 2:])[0], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(y[1], model(x[1:])[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["rows", "prefix", "sinusoid"])
def test_a_cache_refuses_padding_that_it_would_count(name: str) -> None:
    """On the right it changes nothing; without a cache, each sequence is computed by its tokens."""
    model, x = model_of("language", DESIGNS[name]), tiny.tokens()
    right = LEFT.flip(1)
    torch.testing.assert_close(steps(model, x, right, [6])[right], model(x, right)[right], rtol=1e-9, atol=1e-10)
    assert refusal(model, x, LEFT, cache=model.new_cache()) == (
        f"padded: sequences of a cache take no padding, because {REASONS[name]}: pad on the right, or give sequences "
        "of equal length."
    )


def test_a_design_that_mixes_in_the_length_takes_no_padded_documents() -> None:
    model = model_of("language", DESIGNS["length"])
    assert refusal(model, tiny.tokens(1, 6), LEFT[:1], cu_seqlens=torch.tensor([0, 2, 6])) == (
        f"padded: documents of a packed row take no padding, because {REASONS['length']}: give sequences of equal "
        "length."
    )


def test_losses_of_tokens() -> None:
    """A call by tokens returns losses too, averaged over the sequences."""
    design = DESIGNS["length"] | {"losses": {"size": 1}}
    design["diagram"] = design["diagram"] | {
        "two": {"map": "square", "of": "x[m f] x[m f] -> m"},
        "size": {"mean": "m", "of": "two"},
    }
    model, (parts, rows, keep) = model_of("masked", design), padded()
    _, losses = model(rows, keep, losses=True)
    alone = torch.stack([model(part[None], losses=True)[1]["layers.0.mixer.size"] for part in parts])
    torch.testing.assert_close(losses, {"layers.0.mixer.size": alone.mean()})


@pytest.mark.parametrize("name", ["length", "turned"])
def test_padding_of_source_and_target_on_the_left(name: str) -> None:
    """Also where the decoder reads a source whose length it uses."""
    scores = {"A": SCORES | {"scale": "m ** -0.5"}}
    cross = {"tensornet": 1, "name": "read", "extends": "cross", "legs": {"h": "head 2"}, "diagram": scores}
    layer = {"mixer": {"design": DESIGNS[name]}, "mlp": "mlp"}
    config = {"encoder": [layer], "decoder": [layer | {"cross": {"design": cross}}], "positions": "learned"}
    model, source, target = tiny.spread(tiny.seq2seq(**config)), tiny.tokens(), tiny.tokens(2, 6, seed=3)
    y = model(source, target, LEFT, LEFT)
    torch.testing.assert_close(y[0, 2:], model(source[:1, 2:], target[:1, 2:])[0], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(y[1], model(source[1:], target[1:])[0], rtol=1e-9, atol=1e-10)


def test_a_compiled_call_asserts_that_there_is_no_padding() -> None:
    model, x = model_of("masked", DESIGNS["length"]), tiny.tokens()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, torch.ones_like(LEFT)), model(x))
    with pytest.raises(RuntimeError, match=f"padded: a compiled call takes no padding, because {REASONS['length']}"):
        compiled(x, LEFT)


@pytest.mark.parametrize("pooling", ["mean", "concat"])
def test_features_at_padding_are_not_read(pooling: str) -> None:
    """NaN and infinities reach neither the logits nor a gradient."""
    model = tiny.spread(tiny.classifier(vocabulary=None, features=3, length=6, pooling=pooling)).train()
    series = torch.randn(2, 6, 3, dtype=torch.float64)

    def results(fill: float) -> tuple[torch.Tensor, ...]:
        logits = model(torch.where(LEFT[..., None], series, fill), LEFT)
        return logits, *torch.autograd.grad(logits.sin().sum(), tuple(model.parameters()), materialize_grads=True)

    for fill in (torch.nan, torch.inf, 3.0):
        torch.testing.assert_close(results(fill), results(0.0), rtol=0, atol=0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("memory", [0, 3])
def test_all_layers_read_a_mask_once(memory: int, mode: Any) -> None:
    counts = []
    for layers in (1, 3):
        model = tiny.language(layers=[tiny.LAYERS[0] | {"repeat": layers}], memory=memory)
        with mode():
            mask = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]) > 0
            options = {"memory": model.new_memory(2)} if memory else {}
            counts.append(reads(lambda: model(torch.zeros(2, 4, dtype=torch.int64), mask, **options)))  # noqa: B023
    assert 0 < counts[0] == counts[1]
