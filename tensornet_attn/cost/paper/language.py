"""The parameters of whole language models on WikiText-103, as MGK and FMMformer train them, and of BERT.

L layers of attention of h heads of width d and a feed-forward layer of width l, with two norms each; V words, with one
matrix of width f for embedding and output. BERT also has P learned positions, two token types, one more norm, a pooler,
and biases in attention. Other sizes are those of the shipped models, whose files are read directly: they have numbers
for sizes and one entry under `layers`, and `ta.models` checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tensornet_attn.cost.paper.model import Adjustment, Count, Formulas, Part, Rounding
from tensornet_attn.spec import library
from tensornet_attn.spec.sources import file_document

ONE = {"n": "1", "m": "1"}  # parameters do not depend on lengths

AROUND = (
    Adjustment("embedding", "V * f", "one matrix over the vocabulary, for input and output."),
    Adjustment("norms", "4 * L * f", "two layer norms per layer."),
)
NORM = Adjustment("norm of the embedding", "2 * f", "a layer norm, of BERT.")
POSITIONS = Adjustment("positions and token types", "(P + 2) * f", "learned, of BERT.")
BIASES = Adjustment("biases of attention", "4 * L * f", "on queries, keys, values and output, in BERT.")
POOLER = Adjustment("pooler", "(f + 1) * f", "a linear layer on BERT's first position.")


@dataclass(frozen=True)
class Layer:
    """A mixer or an MLP: a shipped name or the keys of a design, and its sizes and settings."""

    design: str | Mapping[str, Any]
    legs: Mapping[str, int]
    settings: Mapping[str, int]


@dataclass(frozen=True)
class Shipped:
    """A model of `layers` equal layers; `memory` is 0 if it has none."""

    width: int
    vocabulary: int
    length: int
    memory: int
    layers: int
    mixer: Layer
    mlp: Layer

    @property
    def inner(self) -> int:
        """The width of the feed-forward layer, in total over all experts.

        >>> shipped("xl_47m").inner, shipped("fast_transformer").inner
        (2053, 2048)
        """
        return self.mlp.legs["l"] * self.mlp.legs.get("e", 1)


@cache
def shipped(name: str) -> Shipped:
    """A shipped model by name. Raises InputError.

    >>> shipped("epa_47m_xl").mixer
    Layer(design='epa_xl', legs={'h': 2, 'e': 5, 'd': 76}, settings={'k': 2})
    """
    model = file_document(str(library.path_of(name, "model")))[0].data["model"]
    (layer,) = model["layers"]
    sizes = (model["width"], model["vocabulary"], model["length"], model.get("memory", 0), layer["repeat"])
    parts = (layer["mixer"], layer["mlp"])
    return Shipped(*sizes, *(Layer(part["design"], part["legs"], part.get("settings", {})) for part in parts))


@dataclass(frozen=True)
class Model:
    """A language model: its attention, and sizes by the letters above."""

    design: str | Mapping[str, Any]
    values: Mapping[str, int]
    settings: Formulas = field(default_factory=dict)
    rest: tuple[Adjustment, ...] = AROUND


def of(name: str, design: str | None = None, settings: Formulas | None = None) -> Model:
    """A shipped model, optionally with another design."""
    model = shipped(name)
    values = {"L": model.layers, "f": model.width, "l": model.inner, "V": model.vocabulary}
    values |= {"h": model.mixer.legs["h"], "d": model.mixer.legs["d"]}
    return Model(design or model.mixer.design, values, settings or {})


def small(design: str, settings: Formulas | None = None) -> Model:
    """The small model with a design in place of its softmax attention."""
    return of("wikitext_small", design, settings)


MEDIUM = of("wikitext_medium")
BERT = Model(
    "mhsa",
    {"L": 12, "f": 768, "h": 12, "d": 64, "l": 3072, "V": 30_522, "P": 512},
    rest=(*AROUND, NORM, POSITIONS, BIASES, POOLER),
)


def language_model(model: Model, printed: str, rounding: Rounding, note: str | None) -> Count:
    """The parameters of a model."""
    layers = model.values["L"]
    parts = (
        Part(model.design, {"f": "f", "h": "h", "d": "d"}, ONE, model.settings, layers),
        Part("mlp", {"f": "f", "l": "l"}, ONE, times=layers),
    )
    return Count("parameters", printed=printed, rest=model.rest, parts=parts, note=note, rounding=rounding)
