"""The sizes of the shipped models, as their files have them: the tables of whole models compute with these.

The files are read as they stand, with numbers for sizes and one entry under `layers`; `ta.models` checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tensornet_attn.spec import library
from tensornet_attn.spec.sources import file_document


@dataclass(frozen=True)
class Part:
    """A mixer or an MLP: a shipped name or the keys of a design, and the sizes and settings that it has."""

    design: str | Mapping[str, Any]
    legs: Mapping[str, int]
    settings: Mapping[str, int]


@dataclass(frozen=True)
class Shipped:
    """A model of `layers` equal layers; `memory` is 0 where it has none."""

    width: int
    vocabulary: int
    length: int
    memory: int
    layers: int
    mixer: Part
    mlp: Part

    @property
    def inner(self) -> int:
        """The width of the feed-forward layer, that of all experts together.

        >>> shipped("xl_47m").inner, shipped("fast_transformer").inner
        (2053, 2048)
        """
        return self.mlp.legs["l"] * self.mlp.legs.get("e", 1)


@cache
def shipped(name: str) -> Shipped:
    """A shipped model by name. Raises InputError.

    >>> shipped("epa_47m_xl").mixer
    Part(design='epa_xl', legs={'h': 2, 'e': 5, 'd': 76}, settings={'k': 2})
    """
    model = file_document(str(library.path_of(name, "model")))[0].data["model"]
    (layer,) = model["layers"]
    sizes = (model["width"], model["vocabulary"], model["length"], model.get("memory", 0), layer["repeat"])
    return Shipped(*sizes, _part(layer["mixer"]), _part(layer["mlp"]))


def _part(data: Mapping[str, Any]) -> Part:
    return Part(data["design"], data["legs"], data.get("settings", {}))
