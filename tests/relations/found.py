"""Designs that once broke a relation, as the explorer shrank them."""

from __future__ import annotations

from tests.relations.text import Data


def _design(name: str, inputs: Data, diagram: Data, **more: Data) -> Data:
    legs = {"n": "query"} | ({"m": "key"} if "m" in inputs.values() else {}) | more.pop("legs", {})
    output = [*diagram][-1]
    return {"tensornet": 1, "name": name, "legs": legs, "inputs": inputs, **more, "diagram": diagram, "output": output}


MET = {"x": "n", "k": "m", "v": "m"}
ATTEND = {"softmax": "m", "of": "x[n] k[m] -> n m"}
FOUND = (
    _design(
        "product_over_keys",
        MET,
        {"A": ATTEND, "s": "k[m] v[m] ->", "y": "A[n m] v[m] + s[] -> n"},
    ),
    _design(
        "features_of_keys",
        {"x": "n", "k": "m"},
        {"K": {"map": "elu1", "of": "k"}, "s": "K[m] K[m] ->", "y": "x[n] + s[] -> n"},
    ),
    _design("met_directly", MET, {"A": ATTEND, "y": "A[n m] v[m] -> n"}),
    _design(
        "recurrence_over_memory",
        MET | {"g": "m"},
        {"o": {"delta_rule": "m", "query": "x", "key": "k", "value": "v", "rate": "g"}},
    ),
    _design("mean_of_keys", {"x": "n", "k": "m"}, {"s": {"mean": "m", "of": "k"}, "y": "x[n] + s[] -> n"}),
    _design("most_of_keys", {"x": "n", "k": "m"}, {"s": {"max": "m", "of": "k"}, "y": "x[n] s[] -> n"}),
    _design(
        "convolved_queries",
        {"x": "n"},
        {"c": {"conv": "n", "width": "w", "of": "x[n] W[w] -> n w"}, "y": "c[n] x[n] -> n"},
        legs={"w": 2},
        weights={"W": "w"},
    ),
    _design("logarithm_of_keys", {"x": "n", "k": "m"}, {"l": {"logsumexp": "m", "of": ATTEND["of"]}}),
    _design(
        "two_softmaxes",
        MET,
        {
            "S": "x[n] k[m] -> n m",
            "l": {"logsumexp": "m", "of": "S"},
            "t": "x[n] w[r] -> n r",
            "A": {"softmax": "r", "sink": "l", "of": "t"},
            "B": {"softmax": "m", "sink": {"logsumexp": "r", "of": "t"}, "of": "S"},
            "y": "A[n r] w[r] + B[n m] v[m] -> n",
        },
        legs={"r": 3},
        weights={"w": "r"},
    ),
    _design(
        "map_of_weights",
        MET,
        {"A": {"map": "sigmoid", "of": ATTEND}, "y": "A[n m] v[m] -> n"},
    ),
    _design(
        "mixed_components",
        {"x": "n f"},
        {
            "Q": "x[n f] W[f g d] -> n g d",
            "K": "x[m f] U[f g d] -> m g d",
            "S": "P[g h] Q[n g d] K[m g d] + c[h u] -> h u n m",
            "A": {"softmax": "m", "of": {"logsumexp": "u", "of": "S"}},
            "y": "A[h n m] K[m h d] -> n h d",
        },
        legs={"m": "key", "f": 4, "h": "head 2", "g": "head h", "u": 2, "d": 4},
        weights={"W": "f g d", "U": "f g d", "P": "g h", "c": "h u"},
    ),
)
