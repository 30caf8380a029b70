"""Designs that once broke a relation, as the explorer shrank them."""

from __future__ import annotations

from tests.relations.text import Data


def _design(name: str, inputs: Data, diagram: Data, **more: Data) -> Data:
    legs = {"n": "query"} | ({"m": "key"} if "m" in inputs.values() else {}) | more.pop("legs", {})
    output = [*diagram][-1]
    return {"tensornet": 1, "name": name, "legs": legs, "inputs": inputs, **more, "diagram": diagram, "output": output}


MET = {"x": "n", "k": "m", "v": "m"}
KEY_SUMS = {  # of values and of ones, with the same keys, mixed over heads before queries read them
    "Q": "x[n f] W[f h d] -> n h d",
    "K": {"map": "elu1", "of": "k[m f] U[f g d] -> m g d"},
    "s": {"sum": "m", "of": "each[n] K[m g d] v[m g e] -> n m g d e"},
    "z": {"sum": "m", "of": "each[n] K[m g d] -> n m g d"},
    "t": "P[g h] s[n g d e] -> n h d e",
    "u": "P[g h] z[n g d] -> n h d",
}
MIXED = {
    "legs": {"m": "key", "f": 4, "g": "head 2", "h": "head 2", "d": "shared 2", "e": "shared 2"},
    "weights": {"W": "f h d", "U": "f g d", "P": "g h"},
    "constants": {"each": {"legs": "n", "value": "ones"}},
}
ATTEND = {"softmax": "m", "of": "x[n] k[m] -> n m"}
GATES = {  # of each head
    "Q": "x[n f] W[f h d] -> n h d",
    "K": "x[m f] U[f h d] -> m h d",
    "u": {"map": "softplus", "of": "x[m f] G[f h] -> m h"},
    "g": "-1 * u[m h] -> m h",
    "c": {"cumsum": "m", "of": "g"},
    "D": {"map": "exp", "of": "c[n h] - c[m h] -> h n m"},
}
GATED: Data = {
    "causal": True,
    "legs": {"m": "key", "f": 4, "h": "head 2", "d": 2},
    "weights": {"W": "f h d", "U": "f h d", "G": "f h"},
}
FOUND = (
    _design(
        "product_over_keys",
        MET,
        {"A": ATTEND, "s": "k[m] v[m] ->", "y": "A[n m] v[m] + s[] -> n"},
    ),
    _design(
        "table_of_a_memory",
        {"x": "n", "k": "m"},
        {"A": {"softmax": "m", "of": "x[n] k[m] P[m] -> n m"}, "y": "A[n m] k[m] -> n"},
        legs={"m": "key 24"},
        weights={"P": "m"},
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
    _design(
        "sums_with_values_and_without",
        {"x": "n f", "k": "m f", "v": "m g e"},
        KEY_SUMS | {"r": {"map": "tanh", "of": "Q[n h d] u[n h d] -> n h"}, "y": "r[n h] Q[n h d] t[n h d e] -> n h e"},
        **MIXED,
    ),
    _design(
        "sum_for_a_loss",
        {"x": "n f", "k": "m f", "v": "m g e"},
        KEY_SUMS
        | {
            "r": "Q[n h d] u[n h d] -> n h",
            "a": {"mean": "n", "of": "r"},
            "b": {"mean": "h", "of": "a"},
            "y": "Q[n h d] t[n h d e] -> n h e",
        },
        **MIXED,
        losses={"aux": {"step": "b", "weight": 0.1}},
    ),
    _design(
        "one_feature_of_queries_and_keys",
        {"x": "n f"},
        {
            "P": {"map": "elu1", "of": "x[n f] W[f h d] -> n h d"},
            "A": {"normalize": "m", "of": "P[n h d] P[m h d] -> h n m"},
            "V": "x[n f] U[f h d] -> n h d",
            "y": "A[h n m] V[m h d] -> n h d",
        },
        legs={"m": "key", "f": 4, "h": "head 2", "d": 2},
        weights={"W": "f h d", "U": "f h d"},
    ),
    _design(
        "sum_that_is_subtracted",
        MET,
        {
            "E": "x[n] k[m] + 1 -> n m",
            "A": {"map": "sigmoid", "of": "k[m] - E[n m] -> n m"},
            "y": "A[n m] v[m] -> n",
        },
    ),
    _design(
        "map_that_a_sum_and_values_read",
        {"x": "n f"},
        GATES
        | {
            "S": {"keep": "m", "of": "Q[n h d] K[m h d] D[h n m] -> h n m"},
            "s": {"sum": "m", "of": "S"},
            "a": {"map": "clamp_min(1)", "of": {"map": "abs", "of": "s"}},
            "r": {"map": "reciprocal", "of": "a"},
            "o": "S[h n m] K[m h d] -> n h d",
            "y": "o[n h d] r[h n] -> n h d",
        },
        **GATED,
    ),
    _design(
        "gated_square",
        {"x": "n f"},
        GATES
        | {
            "S": {"map": "square", "of": "Q[n h d] K[m h d] -> h n m"},
            "A": {"normalize": "m", "of": "S[h n m] D[h n m] -> h n m"},
            "y": "A[h n m] K[m h d] -> n h d",
        },
        **GATED,
    ),
    _design(
        "sum_over_earlier_keys",
        {"x": "n f"},
        {name: GATES[name] for name in "QKugc"}
        | {
            "b": "c[n h] - g[n h] -> n h",
            "E": {"map": "exp", "of": "b[n h] - c[m h] -> h n m"},
            "s": {"sum": "m", "mask": "causal(1)", "of": "Q[n h d] K[m h d] E[h n m] -> h n m"},
            "A": {"keep": "m", "of": "Q[n h d] K[m h d] -> h n m"},
            "t": {"sum": "m", "of": "A"},
            "y": "s[h n] t[h n] Q[n h d] -> n h d",
        },
        **GATED,
    ),
    _design(
        "gated_relu",
        {"x": "n f"},
        GATES
        | {
            "S": {"map": "relu", "of": "Q[n h d] K[m h d] -> h n m"},
            "A": {"keep": "m", "of": "S[h n m] D[h n m] -> h n m"},
            "y": "A[h n m] K[m h d] -> n h d",
        },
        **GATED,
    ),
    _design(
        "square_with_its_sums",
        {"x": "n f"},
        GATES
        | {
            "S": {"map": "square", "of": "Q[n h d] K[m h d] -> h n m"},
            "A": {"keep": "m", "of": "S[h n m] D[h n m] -> h n m"},
            "s": {"sum": "m", "of": "A"},
            "r": {"map": "reciprocal", "of": "1 + s[h n] -> h n"},
            "y": "r[h n] A[h n m] K[m h d] -> n h d",
        },
        **GATED,
    ),
    _design(
        "earlier_keys",
        {"x": "n f"},
        {name: GATES[name] for name in "QKugc"}
        | {
            "b": "c[n h] - g[n h] -> n h",
            "D": {"map": "exp", "of": "b[n h] - c[m h] -> h n m"},
            "A": {"keep": "m", "mask": "causal(1)", "of": "Q[n h d] K[m h d] D[h n m] -> h n m"},
            "y": "A[h n m] K[m h d] + Q[n h d] -> n h d",
        },
        **GATED,
    ),
    _design(
        "undecayed_earlier_keys",
        {"x": "n f"},
        {
            "Q": {"map": "elu1", "of": GATES["Q"]},
            "K": {"map": "elu1", "of": GATES["K"]},
            "A": {"normalize": "m", "mask": "causal(1)", "of": "Q[n h d] K[m h d] -> h n m"},
            "y": "A[h n m] K[m h d] -> n h d",
        },
        legs=GATED["legs"],
        weights={"W": "f h d", "U": "f h d"},
    ),
    _design(
        "sink_that_is_a_logarithm",
        {"q": "n h d", "k": "m h d"},
        {
            "l": {"logsumexp": "m", "of": "q[n h d] k[m h d] -> h n m"},
            "A": {"softmax": "m", "mask": "prefix(4)", "sink": "l", "of": "q[n h d] k[m h d] -> h n m"},
            "y": "A[h n m] k[m h d] -> n h d",
        },
        legs={"m": "key", "h": "head 2", "d": 4},
    ),
    _design(
        "joined_keys_of_shared_heads",
        {"q": "n g j d", "k": "m r g d", "v": "m g d"},
        {
            "L": {"logsumexp": "r", "of": "q[n g j d] k[m r g d] -> g j n m r"},
            "A": {"softmax": "m", "of": "L"},
            "y": "A[g j n m] v[m g d] -> n g j d",
        },
        legs={"m": "key", "g": "head 2", "j": "head 2", "r": 3, "d": 4},
    ),
    _design(
        "products_beside_features",
        {"q": "n d", "x": "n f", "k": "m d", "z": "m f", "s": "m", "b": "m"},
        {
            "A": {"softmax": "m", "of": "q[n d] k[m d] + x[n f] z[m f] + B[] C[] s[m] + b[m] -> n m"},
            "y": "A[n m] b[m] -> n",
        },
        legs={"m": "key", "d": 2, "f": 3},
        weights={"B": "", "C": ""},
    ),
    _design(
        "window_with_a_sink_beside_a_sum_of_the_query",
        {"x": "n f", "q": "n", "u": "n", "g": "m", "v": "m"},
        {
            "K": "x[m f] W[f] -> m",
            "c": {"cumsum": "m", "of": "g"},
            "A": {"softmax": "m", "mask": "window(2, 0)", "sink": "u", "of": "q[n] K[m] - c[n] -> n m"},
            "y": "A[n m] v[m] + x[n f] -> n f",
        },
        legs={"m": "key", "f": 1},
        weights={"W": "f"},
    ),
)
