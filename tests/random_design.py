"""Random designs that the language allows: grown from the output, so that everything reaches it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from tests.random_names import LEG_NAMES, MAPS, POSITIVE, SEQUENCES, TENSOR_NAMES
from tests.random_text import legs_in, pruned, spoken

Legs = tuple[str, ...]


def listed(items: Any) -> list[Any]:
    """As a list; a set in alphabetical order, so that one seed always means one design."""
    return sorted(items) if isinstance(items, (set, frozenset)) else list(items)


@dataclass
class Growth:
    """A design in the making; `legs` are those of features and heads, `query` and `key` the sequences."""

    draw: random.Random
    data: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    heads: set[str] = field(default_factory=set)
    query: str = "n"
    key: str = "m"
    relative: str = ""
    maxima: bool = False
    made: dict[str, Legs] = field(default_factory=dict)  # tensors and steps that may be used again
    steps: dict[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    budget: int = 12

    def one_of(self, items: Any) -> Any:
        return self.draw.choice(listed(items))

    def some(self, items: Any, least: int = 0) -> list[Any]:
        items = listed(items)
        return self.draw.sample(items, self.draw.randint(min(least, len(items)), len(items)))

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def mixed(self, legs: Any) -> Legs:
        legs = listed(legs)
        self.draw.shuffle(legs)
        return tuple(legs)

    def name(self) -> str:
        return self.names.pop() if self.names else f"t{len(self.made)}_{len(self.steps)}"

    # Leaves

    def leaf(self, role: str, legs: Legs, **more: Any) -> str:
        name = self.name()
        self.data.setdefault(role, {})[name] = {"legs": list(legs), **more} if more or role == "state" else list(legs)
        self.made[name] = legs
        return name

    def weight(self, legs: Legs) -> str:
        more: dict[str, Any] = {"init": "normal(0.7)"} if self.chance(0.7) else {}
        if self.chance(0.1):
            more["frozen"] = True
        return self.leaf("weights", legs, **more)

    def grown_leaf(self, legs: Legs) -> str:
        """A tensor with just these legs, a new one or one that stands already."""
        sequences = {leg for leg in legs if leg in (self.query, self.key)}
        known = [
            name for name, own in self.made.items() if sorted(own) == sorted(legs) and name not in self.data["inputs"]
        ]
        if known and self.chance(0.3):
            return self.one_of(known)
        if sequences and not self.maxima:
            return self.sized_leaf(legs)
        if self.chance(0.1) and len(legs) == 2 and not sequences:
            return self.leaf("constants", legs, value=self.one_of(["eye", "full(0.3)", "ones"]))
        if self.chance(0.08) and not sequences:
            return self.state(legs)
        return self.weight(legs)

    def state(self, legs: Legs) -> str:
        """A state and the step that updates it, its legs in any order."""
        x, own = next(iter(self.data["inputs"].items()))
        update, inner = self.name(), own[1] if own[0] == self.query else own[0]
        new = self.mixed(legs)
        weight = self.weight((inner, *(leg for leg in legs if leg != inner)))
        of = f"{x}[{' '.join(own)}] {weight}[{' '.join(self.made[weight])}] -> {' '.join([self.query, *new])}"
        self.steps[update] = {"mean": self.query, "of": of}
        return self.leaf("state", legs, init=self.one_of(["full(0.4)", "ones"]), update=update)

    def first(self, legs: Legs, leg: str) -> Legs:
        return (leg, *(other for other in legs if other != leg))

    def sized_leaf(self, legs: Legs) -> str:
        """A leaf on sequence legs: an input, noise, or a constant."""
        pair = {self.query, self.key}
        if len(legs) == 2 and set(legs) == pair and self.chance(0.3):
            return self.leaf("constants", legs, value="distance")
        if len(legs) == 2 and len(set(legs) & pair) == 1 and self.chance(0.2):
            leg = next(leg for leg in legs if leg in pair)
            return self.leaf("constants", self.first(legs, leg), value="sinusoid")
        if self.chance(0.2):
            return self.leaf("noise", legs, **({"std": 0.5} if self.chance(0.5) else {}))
        return self.leaf("inputs", legs) if len(self.data["inputs"]) < 4 else self.leaf("noise", legs)

    # Expressions

    def use(self, legs: Legs, depth: int) -> str:
        """`name[legs]`: a leaf, a new step, or an input under new legs."""
        pair = {self.query, self.key} & set(legs)
        inputs = [n for n, own in self.data["inputs"].items() if self.fits(own, legs)]
        if inputs and self.chance(0.6):
            name = self.one_of(inputs)
            own = self.data["inputs"][name]
            own = own["legs"] if isinstance(own, dict) else own
            rest = [leg for leg in legs if leg not in pair]
            legs = [min(pair) if leg in (self.query, self.key) else rest.pop(rest.index(leg)) for leg in own]
            return f"{name}[{' '.join(legs)}]"
        if self.relative in legs:
            return self.by_distance(legs)
        if depth > 0 and self.budget > 0 and self.chance(0.6):
            own = self.mixed(legs)
            return f"{self.step(own, depth - 1)}[{' '.join(own)}]"
        name = self.grown_leaf(self.mixed(legs))
        return f"{name}[{' '.join(self.made[name])}]"

    def by_distance(self, legs: Legs) -> str:
        """A product that has the relative leg: a weight where it has a size, else a sinusoid times a weight."""
        rest = [leg for leg in legs if leg != self.relative]
        if self.data["legs"][self.relative] != "relative" and not {self.query, self.key} & set(legs):
            name = self.weight(legs)
            return f"{name}[{' '.join(legs)}]"
        inner = self.one_of([leg for leg in self.sizes if leg not in rest] or rest)
        table = self.leaf("constants", (self.relative, inner), value="sinusoid")
        other = self.mixed({inner, *rest})
        return f"{table}[{self.relative} {inner}] {self.use(other, 0)}"

    def fits(self, own: Any, legs: Legs) -> bool:
        own = own["legs"] if isinstance(own, dict) else own
        pair = {self.query, self.key}
        mine, theirs = sorted(leg for leg in own if leg not in pair), sorted(leg for leg in legs if leg not in pair)
        return mine == theirs and len(set(own) & pair) == len(set(legs) & pair) == 1

    def expression(self, legs: Legs, depth: int) -> str:
        terms = self.one_of([1, 1, 1, 2, 2, 3])
        covered: set[str] = set()
        texts = []
        for place in range(terms):
            last = place == terms - 1
            mine = set(self.some(legs)) if terms > 1 and self.chance(0.5) else set(legs)
            if last:
                mine |= set(legs) - covered
            covered |= mine
            texts.append((" + " if self.chance(0.7) else " - ", self.term(self.mixed(mine), depth)))
        if self.chance(0.1):
            texts.append((" + ", self.one_of(["1", "0.5", "(2 * " + self.one_of(self.sizes) + ")"])))
        first = self.one_of(["", "", "", "-"]) + texts[0][1]
        return first + "".join(sign + text for sign, text in texts[1:]) + f" -> {' '.join(legs)}".rstrip()

    def coefficient(self) -> str:
        leg, sequence = self.one_of(self.sizes), self.one_of([self.query, self.key])
        plain = ["", "", "", "", "2 * ", "0.5 * ", "(0.3 - 1) * "]
        sized = [f"({leg} ** -0.5) * ", f"(sqrt({leg}) + log(2)) * "]
        return self.one_of([*plain, *sized, f"(1 / {sequence}) * ", f"(-min({leg}, 2) / max({sequence}, 2)) * "])

    def term(self, legs: Legs, depth: int) -> str:
        """A product whose summed legs stand on two factors, those of heads on more."""
        count = self.one_of([1, 1, 2, 2, 2, 3, 3, 4]) if depth > 0 else 1
        factors: list[set[str]] = [set() for _ in range(count)]
        for leg in legs:
            for place in self.draw.sample(range(count), self.one_of([1, 1, min(2, count), count])):
                factors[place].add(leg)
        if count > 1:
            candidates = [leg for leg in (*self.sizes, self.key) if leg not in legs]
            for leg in self.draw.sample(candidates, min(self.one_of([0, 1, 1, 2]), len(candidates))):
                many = leg in self.heads and self.chance(0.5)
                for place in self.draw.sample(range(count), count if many else 2):
                    factors[place].add(leg)
        factors = [factor for factor in factors if factor] or [set(legs)]
        return self.coefficient() + " ".join(self.use(self.mixed(factor), depth) for factor in factors)

    # Steps

    def step(self, legs: Legs, depth: int) -> str:
        """A new step with these legs in this order."""
        self.budget -= 1
        value = self.value(legs, depth)
        name = self.name()
        self.steps[name], self.made[name] = value, legs
        return name

    def value(self, legs: Legs, depth: int) -> Any:
        """What may stand after a step's name or after `of`."""
        if self.relative in legs or depth <= 0 or self.chance(0.4):
            return self.expression(legs, depth)
        both = self.query in legs and self.key in legs
        boxes = ["map", "dropout", "reduce", "reduce"]
        boxes += ["softmax", "norm", "topk", "along"] if legs else []
        boxes += ["attention"] * 3 if both else []
        boxes += ["shift"] * 2 if both and self.relative else []
        boxes += ["delta"] * 2 if self.query in legs and self.key not in legs else []
        boxes += ["scan", "cumsum"] if self.query in legs and self.key not in legs else []
        boxes += ["cumsum"] if both else []
        boxes += ["heads"] * 4 if self.query in legs and self.key not in legs else []
        boxes += ["rope"] * 2 if {self.query, self.key} & set(legs) and self.even(legs) else []
        return getattr(self, f"box_{self.one_of(boxes)}")(legs, depth - 1)

    def of(self, legs: Legs, depth: int) -> Any:
        value = self.value(legs, depth) if self.budget > 0 else self.expression(legs, 0)
        if self.chance(0.3):
            self.budget -= 1
            name = self.name()
            self.steps[name], self.made[name] = value, legs
            return name if self.chance(0.5) else f"{name}[{' '.join(legs)}]"
        return value

    def even(self, legs: Legs) -> list[str]:
        return [leg for leg in legs if leg in self.sizes and self.sizes[leg] % 2 == 0]

    def masks(self) -> dict[str, Any]:
        return {"mask": self.some(["causal", "band(1)", "window(2, 0)", "window(1, 1)"])} if self.chance(0.4) else {}

    def box_map(self, legs: Legs, depth: int) -> Any:
        return {"map": self.one_of(MAPS), "of": self.of(legs, depth)}

    def box_dropout(self, legs: Legs, depth: int) -> Any:
        return {"dropout": 0, "of": self.of(legs, depth)}

    def box_softmax(self, legs: Legs, depth: int) -> Any:
        scale = (
            {"scale": self.one_of(["0.5", f"{self.one_of(self.sizes)} ** -0.5", "-(0.3 + 1)"])}
            if self.chance(0.6)
            else {}
        )
        return {"softmax": self.one_of(legs), **scale, "of": self.of(legs, depth)}

    def box_attention(self, legs: Legs, depth: int) -> Any:
        kind = self.one_of(["softmax", "softmax", "normalize", "keep"])
        of = self.of(legs, depth)
        if kind == "normalize":
            return {
                "normalize": self.key,
                **self.masks(),
                "eps": self.one_of([0, 0.1]),
                "of": {"map": self.one_of(POSITIVE), "of": of},
            }
        return {kind: self.key, **self.masks(), "of": of}

    def box_heads(self, legs: Legs, depth: int) -> Any:
        """Softmax attention with heads among the legs: what the planner may fuse."""
        n, m, inner = self.query, self.key, self.one_of(self.sizes)
        heads = [leg for leg in self.some(leg for leg in legs if leg != n) if leg != inner]
        own = [leg for leg in legs if leg not in (n, *heads)]
        shared = heads[: self.draw.randint(0, len(heads))] if self.chance(0.4) else heads
        scores = self.mixed([*heads, n, m])
        q, k, v = (
            self.use(self.mixed(legs), depth) for legs in ([*heads, n, inner], [*shared, m, inner], [*shared, m, *own])
        )
        box = {
            "softmax": m,
            "scale": f"{inner} ** -0.5",
            **self.masks(),
            "of": f"{self.coefficient()}{q} {k} -> {' '.join(scores)}",
        }
        name = self.name()
        self.steps[name], self.made[name] = box, scores
        return f"{self.coefficient()}{name}[{' '.join(scores)}] {v} -> {' '.join(legs)}"

    def box_norm(self, legs: Legs, depth: int) -> Any:
        return {
            self.one_of(["rmsnorm", "layernorm", "l1norm", "l2norm"]): self.one_of(legs),
            "eps": 0.1,
            "of": self.of(legs, depth),
        }

    def box_topk(self, legs: Legs, depth: int) -> Any:
        sized = [leg for leg in legs if leg in self.sizes]
        if not sized:
            return self.expression(legs, depth)
        leg = self.one_of(sized)
        by = {}
        if self.chance(0.4):
            others = self.mixed({leg, *self.some(legs)})
            by = {"by": self.of(others, depth)}
        return {"topk": leg, "k": self.draw.randint(1, self.sizes[leg]), **by, "of": self.of(legs, depth)}

    def box_along(self, legs: Legs, depth: int) -> Any:
        return {
            "normalize": self.one_of(legs),
            "eps": 0.2,
            "of": {"map": self.one_of(POSITIVE), "of": self.of(legs, depth)},
        }

    def box_reduce(self, legs: Legs, depth: int) -> Any:
        free = [leg for leg in (*self.sizes, self.key, self.key) if leg not in legs]
        if not free or self.relative in legs:
            return self.expression(legs, depth)
        leg = self.one_of(free)
        masks = self.masks() if leg == self.key and self.query in legs else {}
        place = self.draw.randint(0, len(legs))
        of = self.of((*legs[:place], leg, *legs[place:]), depth)
        return {self.one_of(["sum", "mean", "max", "logsumexp"]): leg, **masks, "of": of}

    def box_shift(self, legs: Legs, depth: int) -> Any:
        p = self.relative
        if self.chance(0.3) and legs.index(self.key) == legs.index(self.query) + 1:  # one table for all queries
            own = tuple(p if leg == self.key else leg for leg in legs if leg != self.query)
        else:
            own = tuple(p if leg == self.key else leg for leg in legs)
        if len(own) < 2:
            return self.expression(legs, depth)
        return {"rel_shift": p, "to": self.key, "of": f"{self.term(own, max(depth, 1))} -> {' '.join(own)}"}

    def box_rope(self, legs: Legs, depth: int) -> Any:
        sequence = self.one_of({self.query, self.key} & set(legs))
        along = self.one_of(self.even(legs))
        more = {"fraction": 0.5} if self.sizes[along] == 4 and self.chance(0.5) else {}
        return {"rope": sequence, "along": along, **more, "of": self.of(legs, depth)}

    def box_delta(self, legs: Legs, depth: int) -> Any:
        """Fast weights: heads are those of the value's legs that query, key or rate have as well."""
        n, m = self.query, self.key
        value = tuple(m if leg == n else leg for leg in legs)
        rest = [leg for leg in legs if leg != n]
        inner = self.some([leg for leg in self.sizes if leg not in legs])[:2]
        query, key = self.mixed([n, *self.some(rest), *inner]), self.mixed([m, *self.some(rest), *inner])
        mode = self.one_of(["none", "none", "read", "both"])
        grown: dict[str, Any] = {}
        spare = [leg for leg in self.sizes if leg not in (*legs, *inner)]
        step = [self.one_of(spare)] if spare and mode == "none" and self.chance(0.2) else []
        key, value = (self.mixed([*own, *step]) for own in (key, value)) if step else (key, value)
        for role, own in (
            ("query", query),
            ("key", key),
            ("value", value),
            ("rate", self.mixed([m, *self.some(rest), *step])),
        ):
            of = self.of(own, depth)
            grown[role] = {"map": "sigmoid", "of": of} if role == "rate" or mode != "none" else of
        if mode == "none":
            grown |= self.gates(key, (m, *self.some(rest), *self.some(inner)), depth)
            grown |= {"steps": step[0]} if step else {}
        return {"delta_rule": m, **grown, "normalize": mode, "eps": 0.1}

    def gates(self, key: Legs, decay: Legs, depth: int) -> dict[str, Any]:
        """Some of what a gated delta rule has."""
        found = {}
        if self.chance(0.4):
            found["decay"] = self.decay(self.mixed([*decay]), depth)
        for role in (self.one_of(["erase", "erase_undecayed"]), "write"):
            if self.chance(0.3):
                found[role] = self.of(self.mixed([*key]), depth)
        return found

    def decay(self, legs: Legs, depth: int) -> Any:
        """A logarithm that is below 0."""
        self.budget -= 1
        name = self.name()
        self.steps[name], self.made[name] = {"map": "sigmoid", "of": self.of(legs, depth)}, legs
        return f"-1 * {name}[{' '.join(legs)}] -> {' '.join(legs)}"

    def box_scan(self, legs: Legs, depth: int) -> Any:
        own = tuple(self.key if leg == self.query else leg for leg in legs)
        fading = self.mixed([self.key, *self.some([leg for leg in own if leg != self.key])])
        return {"scan": self.key, "decay": self.decay(fading, depth), "of": self.of(own, depth)}

    def box_cumsum(self, legs: Legs, depth: int) -> Any:
        if self.key in legs:
            return {self.one_of(["cumsum", "reverse_cumsum"]): self.key, **self.masks(), "of": self.of(legs, depth)}
        own = tuple(self.key if leg == self.query else leg for leg in legs)
        return {"cumsum": self.key, "of": self.of(own, depth)}


def random_design(draw: random.Random, prefix: str = "") -> dict[str, Any]:
    """A design as a dict, with an input on the query leg. Another prefix gives the same design under other names."""
    g = Growth(draw)
    legs = draw.sample([prefix + name for name in sorted(set(LEG_NAMES))], draw.randint(2, 5))
    g.query, g.key = draw.sample([prefix + name for name in SEQUENCES if prefix + name not in legs], 2)
    g.sizes = {leg: draw.choice([1, 2, 2, 3, 4]) for leg in legs}
    g.heads = set(g.some(legs))
    g.names = list(g.mixed([prefix + name for name in sorted(set(TENSOR_NAMES))]))
    g.maxima = g.chance(0.25)
    longest = " 9" if g.maxima else ""
    declared: dict[str, Any] = {g.query: f"query{longest}", g.key: f"key{longest}"}
    declared |= {leg: f"head {size}" if leg in g.heads else size for leg, size in g.sizes.items()}
    if g.chance(0.4):
        g.relative = next(prefix + name for name in ("p", "rel", "r1") if prefix + name not in declared)
        declared[g.relative] = draw.choice(["relative", "relative 2"])
    name = draw.choice(["random_one", "tensor", "f", "value_error", "none", "a__b", "nn"])
    g.data = {"tensornet": 1, "name": name, "legs": declared, "inputs": {}}
    g.leaf("inputs", g.mixed([g.query, g.one_of(legs)]))
    if g.chance(0.3):
        g.leaf("inputs", g.mixed([g.key, g.one_of(legs)]))
    if g.chance(0.2):
        g.leaf("inputs", tuple(g.some(legs)))
    output = g.mixed([g.query, *g.some(legs, 1)])
    out = g.step(output, draw.randint(1, 4))
    g.data["diagram"], g.data["output"] = g.steps, joined(g, out, output)
    return pruned(g.data)


def joined(g: Growth, out: str, legs: Legs) -> str:
    """The output, with what no step has used so far added as means."""
    if g.key in legs_in(g.steps) and not any(g.key in own for own in g.data["inputs"].values()) and not g.maxima:
        g.leaf("inputs", (g.key,))
    unused = [name for name in g.data["inputs"] if name not in spoken(g.steps)]
    if not unused:
        return out
    terms = [f"{out}[{' '.join(legs)}]"]
    for name in unused:
        value: Any = name
        for leg in g.mixed(g.data["inputs"][name]):
            value = {"mean": leg, "of": value}
        mean = g.name()
        g.steps[mean] = value if isinstance(value, dict) else {"map": "tanh", "of": value}
        terms.append(f"{mean}[]")
    last = g.name()
    g.steps[last] = f"{' + '.join(terms)} -> {' '.join(legs)}"
    return last
