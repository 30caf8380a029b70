"""Tiny models for tests: any shipped design at its test size, in float64."""

from __future__ import annotations

from typing import Any

import torch

import tensornet_attn as ta
from tests.designs.cases import ATTENTION, CASES

MEMORY = ("cross", "perceiver")  # of another sequence
CAUSAL = [name for name in ATTENTION if True in CASES[name].causal and name not in MEMORY]
BOTH_WAYS = [name for name in ATTENTION if False in CASES[name].causal and name not in MEMORY]
VOCABULARY = 11
LAYERS = [
    {"mixer": {"design": "mhsa_rope", "legs": {"h": 2}}, "mlp": {"design": "mlp", "legs": {"l": 10}}, "repeat": 2}
]

ALONE = {  # one input: the rows of its own sequence alone
    "tensornet": 1,
    "name": "alone",
    "extends": "mhsa_rope",
    "diagram": {"K": {"rope": "m", "along": "d", "of": "x[m f] Wk[f h d] -> m h d"}, "V": "x[m f] Wv[f h d] -> m h d"},
}


def part(name: str) -> dict[str, Any]:
    """A shipped design at its test size, the width left to the model."""
    case = CASES[name]
    legs = {leg: size for leg, size in case.legs.items() if leg != "f"}
    return {"design": name, "legs": legs, "settings": dict(case.settings)}


def width(name: str) -> int:
    return CASES[name].legs["f"]


def language(seed: int = 0, **config: Any) -> ta.models.LanguageModel:
    torch.manual_seed(seed)
    config = {"vocabulary": VOCABULARY, "length": 12, "width": 8, "layers": LAYERS} | config
    return ta.models.LanguageModel(dtype=torch.float64, **config)


def of_mixer(name: str, **config: Any) -> ta.models.LanguageModel:
    """A language model of two layers of a shipped design, in evaluation mode."""
    layers = [{"mixer": part(name), "mlp": "mlp", "repeat": 2}]
    return spread(language(**{"layers": layers, "width": width(name)} | config)).eval()


def segments(
    model: ta.models.LanguageModel, x: torch.Tensor, sizes: list[int], mask: torch.Tensor | None = None
) -> Any:
    """The outputs of segments of these sizes, one after another, and the last memory."""
    memory, found = model.new_memory(len(x)), []
    masks = [None] * len(sizes) if mask is None else mask.split(sizes, 1)
    for part, own in zip(x.split(sizes, 1), masks, strict=True):
        y, memory = model(part, own, memory)
        found.append(y)
    return torch.cat(found, 1), memory


def masked(seed: int = 0, **config: Any) -> ta.models.MaskedLanguageModel:
    torch.manual_seed(seed)
    config = {"vocabulary": VOCABULARY, "length": 12, "width": 8, "layers": LAYERS} | config
    return ta.models.MaskedLanguageModel(dtype=torch.float64, **config)


def classifier(seed: int = 0, **config: Any) -> ta.models.SequenceClassifier:
    torch.manual_seed(seed)
    config = {"vocabulary": VOCABULARY, "length": 12, "width": 8, "classes": 3, "layers": LAYERS} | config
    return ta.models.SequenceClassifier(dtype=torch.float64, **config)


def seq2seq(seed: int = 0, **config: Any) -> ta.models.Seq2Seq:
    torch.manual_seed(seed)
    cross = LAYERS[0] | {"cross": {"design": "cross", "legs": {"h": 2}}}
    config = {"vocabulary": VOCABULARY, "length": 12, "width": 8, "encoder": LAYERS, "decoder": [cross]} | config
    return ta.models.Seq2Seq(dtype=torch.float64, **config)


def tokens(batch: int = 2, n: int = 6, seed: int = 1) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(seed))


def spread(model: torch.nn.Module) -> torch.nn.Module:
    """Weights large enough that attention is far from uniform; states and norms stay."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" not in name:
                value += 0.3 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return model


def model_of(**config: Any) -> dict[str, Any]:
    """A model file as a dict."""
    base = {"kind": "language_model", "vocabulary": VOCABULARY, "length": 12, "width": 8, "layers": LAYERS}
    return {"tensornet": 1, "name": "tiny", "model": base | config}
