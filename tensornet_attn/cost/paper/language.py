"""The parameters of whole language models on WikiText-103, as MGK and FMMformer train them, and of BERT.

L layers of attention of width f and a feed-forward layer of width l, two norms each; V words, whose embedding is the
output as well. BERT alone has P learned positions, two token types, a norm, a pooler, and biases in attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensornet_attn.cost.paper.model import Adjustment, Count, Formulas, Part, Rounding

ONE = {"n": "1", "m": "1"}  # parameters do not depend on lengths
WORDS = 267_735  # of WikiText-103

AROUND = (
    Adjustment("embedding", "V * f", "one matrix over the vocabulary, for input and output."),
    Adjustment("norms", "(4 * L + 2) * f", "two layer norms a layer and one more."),
)
POSITIONS = Adjustment("positions and token types", "(P + 2) * f", "learned, of BERT.")
BIASES = Adjustment("biases of attention", "4 * L * f", "on queries, keys, values and output, in BERT.")
POOLER = Adjustment("pooler", "(f + 1) * f", "a linear layer on BERT's first position.")


@dataclass(frozen=True)
class Model:
    """A language model: its attention, and sizes by the letters above."""

    design: str | Mapping[str, Any]
    values: Mapping[str, int]
    settings: Formulas = field(default_factory=dict)
    rest: tuple[Adjustment, ...] = AROUND


def small(design: str | Mapping[str, Any], settings: Formulas | None = None) -> Model:
    """16 layers of width 128 with 8 heads and feed-forward layers of width 2,048."""
    return Model(design, {"L": 16, "f": 128, "h": 8, "l": 2048, "V": WORDS}, settings or {})


MEDIUM = Model("mhsa", {"L": 16, "f": 256, "h": 8, "l": 2048, "V": WORDS})
BERT = Model(
    "mhsa",
    {"L": 12, "f": 768, "h": 12, "l": 3072, "V": 30_522, "P": 512},
    rest=(*AROUND, POSITIONS, BIASES, POOLER),
)


def language_model(model: Model, printed: str, rounding: Rounding, note: str | None) -> Count:
    """The parameters of a model."""
    layers = model.values["L"]
    parts = (
        Part(model.design, {"f": "f", "h": "h"}, ONE, model.settings, layers),
        Part("mlp", {"f": "f", "l": "l"}, ONE, times=layers),
    )
    return Count("parameters", printed=printed, rest=model.rest, parts=parts, note=note, rounding=rounding)
