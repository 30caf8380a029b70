"""Random layers of attention: what today's layers have beside each other, one with another.

Projections with norms over one leg or several, convolutions, rotary positions and gates; scores with biases of
distances, decays and softcaps, under masks; sinks; delta rules and scans with decays; chosen heads; a second attention.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

MASKS = (
    *(None,) * 3,
    "causal",
    "window(2, 0)",
    "window(1, 1)",
    "causal and (window(1, 0) or prefix(1))",
    "document",
    "causal and not dilated(3)",
    ["causal", "window(3, 0)"],
    "band(1) or global(1)",
    "block(2)",
    "causal(1)",
)


@dataclass
class Layer:
    """A layer in the making; every name begins with that of its attention."""

    draw: random.Random
    legs: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, Any] = field(default_factory=dict)

    def one(self, *items: Any) -> Any:
        return self.draw.choice(items)

    def weight(self, name: str, legs: str) -> str:
        self.weights[name] = {"legs": legs, "init": "normal(0.5)"}
        return f"{name}[{legs}]"

    def step(self, name: str, value: Any) -> str:
        self.steps[name] = value
        return name

    def project(self, name: str, seq: str, last: str) -> str:
        """Queries, keys or values: a product, and up to two boxes around it."""
        legs = f"{seq} h {last}"
        value: Any = f"x[{seq} f] {self.weight('W' + name, f'f h {last}')} -> {legs}"
        for place in range(self.one(0, 0, 1, 1, 2)):
            kinds = ["norm", "norms", "map", "conv", "full", "gate", *(["rope"] if last == "d" else [])]
            kind, inner = self.one(*kinds), f"{name}_{place}"
            if kind in ("norm", "norms"):
                over = last if kind == "norm" else self.one(["h", last], [last, "h"])
                value = {self.one("rmsnorm", "l2norm", "layernorm"): over, "eps": 0.1, "of": value}
            elif kind == "map":
                value = {"map": self.one("silu", "tanh", "relu"), "of": value}
            elif kind == "rope":
                value = {"rope": seq, "along": "d", "base": 10, "interleaved": self.one(True, False), "of": value}
            elif kind == "gate":
                gate = f"x[{seq} f] {self.weight('G' + inner, 'f h')} -> {seq} h"
                gate = self.step(f"{inner}g", {"map": "sigmoid", "of": gate})
                value = f"{self.step(inner, value)}[{legs}] {gate}[{seq} h] -> {legs}"
            else:
                self.legs |= {"w": 2} | ({f"t{last}": last} if kind == "full" else {})
                new = f"t{last}" if kind == "full" else last
                taps = self.weight("C" + inner, f"w h {last} {new}" if kind == "full" else f"w h {last}")
                of = f"{self.step(inner, value)}[{legs}] {taps} -> {seq} w h {new}"
                conv = self.step(f"{inner}c", {"conv": seq, "width": "w", "of": of})
                value = f"{conv}[{legs}] -> {legs}"
        return f"{self.step(name, value)}[{legs}]"

    def fading(self, name: str, legs: str, sign: str = "-1 * ") -> str:
        """A number of each key that is at most 0; with no sign at least 0."""
        of = f"x[m f] {self.weight('W' + name, f'f {legs[2:]}'.strip())} -> {legs}"
        soft = self.step(f"{name}_soft", {"map": "softplus", "of": of})
        return self.step(name, f"{sign}{soft}[{legs}] -> {legs}")

    def bias(self, at: str) -> str:
        """A term of the scores."""
        kind = self.one("", "", "alibi", "shift", "decay", "key", "query")
        if kind == "alibi":
            self.constants |= {"gap": {"legs": "n m", "value": "distance"}}
            self.constants |= {"slopes": {"legs": "h", "value": "alibi_slopes"}}
            return " - slopes[h] gap[n m]"
        if kind == "shift":
            self.legs["p"] = "relative 2"
            return (
                f" + {self.step(at + 'near', {'rel_shift': 'p', 'to': 'm', 'of': self.weight(at + 'B', 'h p')})}[h n m]"
            )
        if kind == "decay":
            sums = self.step(f"{at}c", {"cumsum": "m", "of": self.fading(f"{at}forget", "m h", "")})
            return f" - {sums}[n h] + {sums}[m h]"
        if not kind:
            return ""
        seq = "m" if kind == "key" else "n"
        of = f"x[{seq} f] {self.weight(at + 'Wb', 'f h')} -> {seq} h"
        return f" + {self.step(f'{at}b', of)}[{seq} h]"

    def sink(self, at: str) -> Any:
        kind = self.one("", "", "number", "heads", "rows")
        if kind == "rows":
            u = self.step(f"{at}u", f"x[n f] {self.weight(at + 'Wu', 'f')} -> n")
            return f"{u}[n] + {self.weight(at + 's', 'h')} -> n h"
        return {"": None, "number": 0, "heads": self.weight(f"{at}s", "h") if kind == "heads" else None}[kind]

    def recurrence(self, at: str, kind: str) -> str:
        v, decay = self.project(f"{at}V", "m", "e"), self.one("m h", "m h d" if kind == "delta" else "m h e")
        if kind == "scan":
            box: dict[str, Any] = {"scan": "m", "decay": self.fading(f"{at}decay", decay), "of": v}
        else:
            rate = {"map": "sigmoid", "of": f"x[m f] {self.weight(at + 'Wr', 'f h')} -> m h"}
            key = {"l2norm": "d", "eps": 0.1, "of": self.project(f"{at}K", "m", "d")}
            box = {"delta_rule": "m", "query": self.project(f"{at}Q", "n", "d"), "key": key, "value": v, "rate": rate}
            box |= {"decay": self.fading(f"{at}decay", decay)} if self.draw.random() < 0.6 else {}
        return f"{self.step(f'{at}o', box)}[n h e]"

    def attention(self, at: str) -> str:
        """Tensors of a product whose legs are those of heads, n h e."""
        kind = self.one(*["softmax"] * 5, "normalize", "keep", "delta", "scan")
        if kind in ("delta", "scan"):
            return self.recurrence(at, kind)
        q, k, v = (self.project(at + name, seq, last) for name, seq, last in ("Qnd", "Kmd", "Vme"))
        row, masks = self.one("h n m", "n h m"), self.one(*MASKS)
        box: dict[str, Any] = {} if masks is None else {"mask": masks}
        of: Any = f"(d ** -0.5) * {q} {k}{self.bias(at) if kind != 'normalize' else ''} -> {row}"
        if kind == "normalize":
            of = {"map": "softplus", "of": of}
            box["eps"] = 0.1
        elif self.draw.random() < 0.2:
            of = {"map": self.one("softcap(3)", "tanh"), "of": of}
        over: Any = "m"
        if kind == "softmax" and self.draw.random() < 0.15:
            over = ["h", "m"]
        elif kind == "softmax" and (sink := self.sink(at)) is not None:
            box["sink"] = sink
        return f"{self.step(f'{at}A', {kind: over, **box, 'of': of})}[{row}] {v}"


def random_layer(draw: random.Random) -> dict[str, Any]:
    """A layer as a dict, of one input, x[n f]."""
    layer = Layer(draw)
    h = layer.one(1, 2, 3)
    layer.legs = {"n": "query", "m": "key", "f": layer.one(3, 4), "h": f"head {h}", "d": layer.one(2, 4), "e": 2}
    heads, gate = layer.attention("a_"), layer.one("", "", "topk", "chosen", "sigmoid")
    after = layer.one("", "", "norm", "joined", "map")
    if after:
        heads = f"{layer.step('o', heads if heads == 'a_o[n h e]' else f'{heads} -> n h e')}[n h e]"
    if after in ("norm", "map"):
        box = {"rmsnorm": layer.one("e", ["h", "e"])} if after == "norm" else {"map": "silu"}
        heads = f"{layer.step('behind', box | {'of': heads})}[n h e]"
    of = f"x[n f] {layer.weight('R', 'f h')} -> n h" if gate else ""
    chosen = {"topk": "h", "k": draw.randint(1, h), "of": of}
    gates = {"topk": chosen, "chosen": {"softmax": "h", "of": {**chosen, "fill": "-inf"}}}
    factor = f"{layer.step('G', gates.get(gate, {'map': 'sigmoid', 'of': of}))}[n h] " if gate else ""
    if after == "joined" and not gate:
        layer.legs["j"] = "h * e"
        out = f"{layer.step('side', 'o[n h e] -> n (h e)')}[n j] {layer.weight('Wo', 'j f')}"
    else:
        out = f"{factor}{heads} {layer.weight('Wo', 'h e f')}"
    if draw.random() < 0.25:
        out += f" + {layer.attention('b_')} {layer.weight('Wb', 'h e f')}"
    layer.step("y", f"{out} + x[n f] -> n f")
    if not any("d" in weight["legs"].split() for weight in layer.weights.values()):  # all of it are scans
        del layer.legs["d"]
    recurrent = any(isinstance(step, dict) and {"scan", "delta_rule"} & {*step} for step in layer.steps.values())
    causal = recurrent or draw.random() < 0.7
    made: dict[str, Any] = {"tensornet": 1, "name": "layer", "legs": layer.legs, "inputs": {"x": "n f"}}
    made |= {"weights": layer.weights, "diagram": layer.steps, "output": "y", "causal": causal}
    return made | ({"constants": layer.constants} if layer.constants else {})
