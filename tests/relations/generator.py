"""Random designs that reach the whole language: every source of designs that the tests have, and edits of these."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import tensornet_attn as ta
from tests.decay_designs import DECAYS
from tests.designs.cases import CASES
from tests.hidden_cases import FORMS, KEPT, MAPS, MASKS, REDUCED, ROWS, Case, of_pairs, rows_design
from tests.masked import MASKS as FORMULAS
from tests.masked import design as masked_design
from tests.random_design import random_design
from tests.random_layer import random_layer
from tests.relations.edits import edited, valid
from tests.relations.text import Data, normal_form
from tests.rewrite.diagrams import KINDS


class Drawn(NamedTuple):
    """A random design and how it came about: its source, and the edits."""

    data: Data
    origin: str
    edits: tuple[str, ...]


def shipped(name: str) -> Data:
    """A shipped design at a small size, as plain data."""
    data = ta.load(name, legs=CASES[name].legs, settings=CASES[name].settings).as_dict()
    return {key: value for key, value in data.items() if key not in ("about", "source", "contains")}


def _hidden_case(draw: random.Random) -> Data:
    while True:
        box = draw.choice([*KEPT, *REDUCED])
        case = Case(draw.choice(MAPS), box, draw.choice([*FORMS]), draw.choice(MASKS))
        if case.possible:
            return case.design()


def _masked(draw: random.Random) -> Data:
    kind = draw.choice(["softmax", "normalize", "keep"])
    return masked_design(draw.choice([*FORMULAS]), kind, draw.random() < 0.5, draw.random() < 0.5)


SOURCES: dict[str, tuple[int, Callable[[random.Random], Data]]] = {
    "grown": (4, random_design),
    "layer": (4, random_layer),
    "shipped": (6, lambda draw: shipped(draw.choice([*CASES]))),
    "rewriting": (3, lambda draw: draw.choice(draw.choice([*KINDS.values()]))(draw)),
    "pairs": (1, of_pairs),
    "hidden": (1, _hidden_case),
    "rows": (1, lambda draw: rows_design(draw.choice([*ROWS]))),
    "decay": (1, lambda draw: draw.choice([*DECAYS.values()])[0]),
    "masked": (1, _masked),
}


def drawn_design(seed: int) -> Drawn:
    """The design of a seed; the checker accepts it."""
    draw = random.Random(seed)
    while True:
        (origin,) = draw.choices([*SOURCES], [weight for weight, _ in SOURCES.values()])
        data = normal_form(SOURCES[origin][1](draw))
        if valid(data):
            break
    edits = []
    for _ in range(draw.choice([0, 1, 1, 2, 2, 3])):
        data, name = edited(data, draw)
        edits += [name] if name else []
    return Drawn({**data, "name": "drawn"}, f"{origin}", tuple(edits))
