"""Random designs that reach the whole language: every source of designs that the tests have, and edits of these."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

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


def joint(draw: random.Random) -> Data:
    """Attention whose scores have several legs, which the box runs along and the readers sum, together or not."""

    def some(legs: list[str], least: int = 0) -> list[str]:
        return draw.sample(legs, draw.randint(least, len(legs)))

    wide = draw.choice([["h"], ["v"], ["h", "v"], ["v", "h"]])
    legs = {"n": "query", "m": "key", "f": 3, "d": 2, "e": 2} | {leg: draw.choice(SIZES[leg]) for leg in wide}
    weights: dict[str, list[str]] = {}

    def projected(name: str, row: str, own: list[str]) -> str:
        weights[f"W{name}"] = ["f", *own]
        return f"x[{row} f] W{name}[f {' '.join(own)}] -> {row} {' '.join(own)}"

    of_query = some(wide)
    of_key = [leg for leg in wide if leg not in of_query or draw.random() < 0.5]
    steps: Data = {"Q": projected("q", "n", [*of_query, "d"]), "K": projected("k", "m", [*of_key, "d"])}
    order = draw.sample([*wide, "n", "m"], len(wide) + 2)
    scores = f"Q[n {' '.join([*of_query, 'd'])}] K[m {' '.join([*of_key, 'd'])}]"
    if draw.random() < 0.3:
        weights["b"] = some(wide, 1)
        scores += f" + b[{' '.join(weights['b'])}]"
    readers = []
    for name in draw.choice([["A"], ["A"], ["A", "B"]]):
        over = [*some(wide), "m"]
        mask = draw.choice(MASKED)
        of: Any = draw.choice(
            [f"{scores} -> {' '.join(order)}", {"map": "tanh", "of": f"{scores} -> {' '.join(order)}"}]
        )
        steps[name] = {"softmax": draw.sample(over, len(over)), **({"mask": mask} if mask else {}), "of": of}
        for values in draw.choice(["V", "V", "VU"]):
            on_values, kept = some(wide), ["e", *(some(wide) if name == "A" and not readers else [])]
            kept = kept if not readers else readers[0][1]
            steps[values + name] = projected(values + name, "m", [*on_values, "e"])
            lone = [leg for leg in wide if leg not in on_values and leg not in kept]
            weights |= {f"g{name}{leg}": [leg] for leg in lone}
            uses = [f"{name}[{' '.join(order)}]", f"{values}{name}[m {' '.join([*on_values, 'e'])}]"]
            readers.append((" ".join([*uses, *(f"g{name}{leg}[{leg}]" for leg in lone)]), kept))
    steps["y"] = f"{' + '.join(text for text, _ in readers)} -> n {' '.join(readers[0][1])}"
    return {
        "tensornet": 1,
        "name": "joint",
        "legs": legs,
        "inputs": {"x": ["n", "f"]},
        "weights": weights,
        "diagram": steps,
        "output": "y",
    }


SIZES = {"h": ["head 1", "head 2", "head 3"], "v": [1, 2, "shared 2", "shared 3"]}
MASKED = (None, None, "causal", "window(2, 0)", "band(1)", "prefix(2)")
SOURCES: dict[str, tuple[int, Callable[[random.Random], Data]]] = {
    "grown": (4, random_design),
    "layer": (4, random_layer),
    "joint": (4, joint),
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
