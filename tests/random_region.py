"""Random attention whose maps have several legs: what kernels of regions compute, and every way to read it.

Scores of some heads; one or two maps, over the keys or over keys and heads together; a box behind a map; a reader that
sums any legs. Heads have sizes 1 to 3, or there are none.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.random_text import pruned

MASKS = (None, None, "causal", "window(2, 1)", "causal and not dilated(3)", "prefix(2)", "document")
HEADS = ("g", "h", "v")


@dataclass
class Region:
    """A design in the making."""

    draw: random.Random
    weights: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, Any] = field(default_factory=dict)

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def some(self, legs: list[str]) -> list[str]:
        return [leg for leg in legs if self.chance(0.5)]

    def mixed(self, *legs: str) -> list[str]:
        return self.draw.sample(legs, len(legs))

    def weight(self, *legs: str) -> str:
        name, own = f"W{len(self.weights)}", " ".join(self.mixed(*legs))
        self.weights[name] = {"legs": own, "init": "normal(0.6)"}
        return f"{name}[{own}]"

    def step(self, name: str, value: Any, legs: list[str]) -> str:
        name = f"{name}{len(self.steps)}"
        self.steps[name] = value if isinstance(value, dict) else f"{value} -> {' '.join(legs)}"
        return f"{name}[{' '.join(legs)}]"

    def project(self, name: str, sequence: str, *legs: str) -> str:
        return self.step(name, f"x[{sequence} f] {self.weight('f', *legs)}", self.mixed(sequence, *legs))

    def scores(self, heads: list[str]) -> str:
        """A step of scores with these heads, and terms of some of them."""
        queries, legs = self.some(heads), self.mixed("n", "m", *heads)
        keys = [leg for leg in heads if leg not in queries or self.chance(0.5)]
        of = f"{self.project('Q', 'n', *queries, 'd')} {self.project('K', 'm', *keys, 'd')}"
        if heads and self.chance(0.25):
            of = f"{self.weight(*(self.some(heads) or heads))} {of}"
        for sequence in "mn":
            if self.chance(0.2):
                of += f" + {self.project('b', sequence, *self.some(heads))}"
        scores = self.step("S", of, legs)
        return (
            self.step("T", {"map": self.draw.choice(["tanh", "square"]), "of": scores}, legs)
            if self.chance(0.3)
            else scores
        )

    def over(self, heads: list[str]) -> Any:
        """The legs of a box: the keys, and maybe some heads."""
        legs = self.mixed("m", *self.some(heads)) if self.chance(0.6) else ["m"]
        return legs if len(legs) > 1 else "m"

    def map(self, scores: str, heads: list[str]) -> str:
        kind, mask = self.draw.choice(["softmax"] * 4 + ["normalize", "keep"]), self.draw.choice(MASKS)
        box: dict[str, Any] = {kind: "m", "of": scores} | ({} if mask is None else {"mask": mask})
        if kind == "softmax":
            more = [{"sink": self.draw.choice([0, 0.5])}, {"dropout": 0}, {"scale": 0.7}]
            box = {**box, kind: self.over(heads)} | self.draw.choice([{}, {}, *more])
        if kind == "normalize":
            box |= {"eps": 0.1, "of": {"map": "softplus", "of": scores}}
        return self.step("A", box, legs_of(scores))

    def behind(self, a: str, heads: list[str]) -> tuple[str, list[str]]:
        """A box or a product behind a map, and the heads that are left."""
        kind, legs = self.draw.choice(["", "", "", "map", "sum", "along", "gate", "mix"]), legs_of(a)
        if kind == "map":
            return self.step("B", {"map": self.draw.choice(["square", "tanh"]), "of": a}, legs), heads
        if not kind or not heads:
            return a, heads
        leg = self.draw.choice(heads)
        if kind == "sum":
            box = {self.draw.choice(["sum", "mean", "max"]): leg, "of": a}
            return self.step("B", box, without(legs, leg)), without(heads, leg)
        if kind == "along":
            return self.step("B", {**self.draw.choice([{"softmax": leg}, {"normalize": leg}]), "of": a}, legs), heads
        if kind == "gate":
            return self.step("B", f"{a} {self.weight(*(self.some(heads) or heads))}", legs), heads
        return self.step("B", f"{a} {self.weight(leg, 'u')}", [*without(legs, leg), "u"]), [*without(heads, leg), "u"]

    def read(self, a: str, heads: list[str]) -> tuple[str, list[str]]:
        """A sum of a map, or its product with values, which sums some heads; and the legs of the result."""
        rest = self.some(heads)
        if self.chance(0.15):
            over = ["m", *without(heads, *rest)]
            box = {self.draw.choice(["sum", "mean"]): over if len(over) > 1 else "m", "of": a}
            return self.step("o", box, without(legs_of(a), *over)), rest
        shared = self.some(heads)
        factors = [a, self.project("V", "m", *shared, "e")]
        if self.chance(0.2):
            factors.append(self.project("u", "n", *self.some(heads)))
        if alone := without(heads, *rest, *shared):  # a sum over a leg is a product of two
            factors.append(self.weight(*alone))
        return self.step("o", " ".join(factors), self.mixed("n", *rest, "e")), [*rest, "e"]

    def result(self, scores: str, heads: list[str]) -> str:
        """A term of the output."""
        if self.chance(0.1):
            over = self.over(heads)
            rest = without(heads, *over)
            read = self.step("o", {"logsumexp": over, "of": scores}, without(legs_of(scores), "m", *over)), rest
        else:
            behind = self.behind(self.map(scores, heads), heads)
            read = self.read(*behind)
        return f"{read[0]} {self.weight('f', *read[1])}"


def legs_of(use: str) -> list[str]:
    return use[use.index("[") + 1 : -1].split()


def without(legs: list[str], *gone: str) -> list[str]:
    return [leg for leg in legs if leg not in gone]


def random_region(draw: random.Random) -> dict[str, Any]:
    """A design of one input, x[n f]."""
    heads = draw.sample(HEADS, draw.choice([0, 1, 1, 2, 2, 3]))
    sizes = {"f": 3, "d": draw.choice([1, 2, 4]), "e": draw.choice([1, 2, 3, 8])}
    sizes |= {leg: draw.choice([1, 2, 2, 3]) for leg in (*heads, "u")}
    made = Region(draw)
    scores = made.scores(heads)
    terms = [made.result(scores, heads)]
    if made.chance(0.3):  # a second map of the same scores, or of others
        terms.append(made.result(scores if made.chance(0.6) else made.scores(heads), heads))
    made.step("y", " + ".join(terms), ["n", "f"])
    legs = {"n": "query", "m": "key"} | {leg: f"head {size}" for leg, size in sizes.items()}
    design = {"tensornet": 1, "name": "region", "legs": legs, "inputs": {"x": "n f"}, "weights": made.weights}
    design |= {"diagram": made.steps, "output": [*made.steps][-1]} | ({"causal": True} if made.chance(0.3) else {})
    return pruned(design)
