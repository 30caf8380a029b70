"""Random attention whose map has several legs: what kernels of regions compute, with every way to read the map.

Scores of some heads, which may be mixed; one or two maps over the keys, or over keys and heads together; boxes behind a
map; a reader that sums any of their legs. Legs have sizes 1 to 3, and may all be absent.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.random_text import pruned

MASKS = (None, None, "causal", "window(2, 1)", "causal and not dilated(3)", "prefix(2)", "document")
HEADS = ("g", "h", "v")
SCORES = ("tanh", "softcap(3)", "silu", "square")


@dataclass
class Region:
    """A design in the making."""

    draw: random.Random
    legs: dict[str, Any]
    weights: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, Any] = field(default_factory=dict)

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def some(self, legs: str | tuple[str, ...] | list[str]) -> list[str]:
        return [leg for leg in legs if self.chance(0.5)]

    def mixed(self, *legs: str) -> str:
        return " ".join(self.draw.sample(legs, len(legs)))

    def weight(self, legs: str) -> str:
        name = f"W{len(self.weights)}"
        self.weights[name] = {"legs": legs, "init": "normal(0.6)"}
        return f"{name}[{legs}]"

    def step(self, name: str, value: Any, legs: str) -> str:
        name = f"{name}{len(self.steps)}"
        self.steps[name] = value
        return f"{name}[{legs}]"

    def project(self, name: str, sequence: str, heads: list[str], width: str = "") -> str:
        legs = self.mixed(sequence, *heads, *([width] if width else []))
        weight = self.weight(self.mixed("f", *heads, *([width] if width else [])))
        return self.step(name, f"x[{sequence} f] {weight} -> {legs}", legs)

    def scores(self, heads: list[str]) -> str:
        """A step of scores with these heads, and terms of some of them."""
        queries = self.some(heads)
        keys = [leg for leg in heads if leg not in queries or self.chance(0.5)]
        legs = self.mixed("n", "m", *heads)
        product = f"{self.project('Q', 'n', queries, 'd')} {self.project('K', 'm', keys, 'd')}"
        if self.chance(0.25):
            product = f"{self.weight(self.mixed(*(self.some(heads) or heads[:1])))} {product}" if heads else product
        of = f"(d ** -0.5) * {product}"
        for sequence in ("m", "n"):
            if self.chance(0.2):
                of += f" + {self.project('b', sequence, self.some(heads))}"
        value: Any = f"{of} -> {legs}"
        if self.chance(0.3):
            value = {"map": self.draw.choice(SCORES), "of": value}
        return self.step("S", value, legs)

    def map(self, scores: str, heads: list[str]) -> tuple[str, list[str]]:
        """A map over the keys and maybe some heads; its legs besides queries and keys."""
        kind = self.draw.choice(["softmax"] * 4 + ["normalize", "keep"])
        box: dict[str, Any] = {} if (mask := self.draw.choice(MASKS)) is None else {"mask": mask}
        over, legs = ["m"], scores[scores.index("[") + 1 : -1]
        if kind == "softmax":
            over = self.mixed("m", *self.some(heads)).split() if self.chance(0.6) else over
            if self.chance(0.2):
                box["sink"] = self.draw.choice([0, 0.5])
            if self.chance(0.2):
                box["dropout"] = 0
            if self.chance(0.2):
                box["scale"] = 0.7
        of: Any = scores
        if kind == "normalize":
            of, box["eps"] = {"map": self.draw.choice(["sigmoid", "softplus"]), "of": scores}, 0.1
        box = {kind: over if len(over) > 1 else "m", **box, "of": of}
        return self.step("A", box, legs), heads

    def behind(self, a: str, heads: list[str]) -> tuple[str, list[str]]:
        """A box or a product behind a map."""
        legs = a[a.index("[") + 1 : -1]
        kind = self.draw.choice(["", "", "", "sum", "along", "mix", "map", "gate"])
        if kind == "sum" and heads:
            leg = self.draw.choice(heads)
            rest = [own for own in heads if own != leg]
            left = " ".join(own for own in legs.split() if own != leg)
            return self.step("B", {self.draw.choice(["sum", "mean", "max"]): leg, "of": a}, left), rest
        if kind == "along" and heads:
            leg = self.draw.choice(heads)
            box = self.draw.choice([{"softmax": leg}, {"normalize": leg, "eps": 0.2}])
            return self.step("B", {**box, "of": a}, legs), heads
        if kind == "mix" and heads:
            leg, new = self.draw.choice(heads), "u"
            left = " ".join(new if own == leg else own for own in legs.split())
            mixed = f"{a} {self.weight(self.mixed(leg, new))} -> {left}"
            return self.step("B", mixed, left), [new if own == leg else own for own in heads]
        if kind == "map":
            return self.step("B", {"map": self.draw.choice(["square", "tanh"]), "of": a}, legs), heads
        if kind == "gate" and heads:
            return self.step("B", f"{a} {self.weight(self.mixed(*(self.some(heads) or heads)))} -> {legs}", legs), heads
        return a, heads

    def read(self, a: str, heads: list[str]) -> tuple[str, list[str]]:
        """A product of a map and values, or a sum of the map; the legs of the result besides queries."""
        rest = self.some(heads)
        if self.chance(0.15):
            over = ["m", *(leg for leg in heads if leg not in rest)]
            out = self.mixed("n", *rest)
            left = [leg for leg in a[a.index("[") + 1 : -1].split() if leg not in over]
            return self.step(
                "o", {self.draw.choice(["sum", "mean"]): over if len(over) > 1 else "m", "of": a}, " ".join(left)
            ), rest
        shared = self.some(heads)
        values = self.project("V", "m", shared, "e")
        alone = [leg for leg in heads if leg not in rest and leg not in shared]
        factor = f"{self.project('u', 'n', self.some(heads))} " if self.chance(0.2) else ""
        factor += f"{self.weight(self.mixed(*alone))} " if alone else ""
        out = self.mixed("n", *rest, "e")
        return self.step("o", f"{factor}{a} {values} -> {out}", out), [*rest, "e"]


def random_region(draw: random.Random) -> dict[str, Any]:
    """A design of one input, x[n f]."""
    heads = draw.sample(HEADS, draw.choice([0, 1, 1, 2, 2, 3]))
    sizes = {leg: draw.choice([1, 2, 2, 3]) for leg in (*heads, "u")}
    width = {"f": 3, "d": draw.choice([1, 2, 4]), "e": draw.choice([1, 2, 3, 8])}
    made = Region(draw, {"n": "query", "m": "key"} | {leg: f"head {size}" for leg, size in (width | sizes).items()})
    scores = made.scores(heads)
    results = []
    for again in range(draw.choice([1, 1, 2])):
        own = made.scores(heads) if again and made.chance(0.4) else scores
        if made.chance(0.1):
            over, rest = made.some(heads), []
            box = {"logsumexp": made.mixed("m", *over).split()}
            left = [leg for leg in own[own.index("[") + 1 : -1].split() if leg not in (*over, "m")]
            results.append((made.step("o", {**box, "of": own}, " ".join(left)), [leg for leg in left if leg != "n"]))
            continue
        a, legs = made.behind(*made.map(own, heads))
        results.append(made.read(a, legs))
    terms = [f"{out} {made.weight(made.mixed(*legs, 'f'))}" for out, legs in results]
    made.steps["y"] = f"{' + '.join(terms)} -> n f"
    causal = {"causal": True} if made.chance(0.3) else {}
    return pruned(
        {
            "tensornet": 1,
            "name": "region",
            "legs": made.legs,
            "inputs": {"x": "n f"},
            "weights": made.weights,
            "diagram": made.steps,
            "output": "y",
        }
        | causal
    )
