"""Small designs whose scores decay by exp(a - b), a of queries and b of keys, and some that only look like it."""

from __future__ import annotations

import re
from typing import Any

from .linear_cases import SCORES, design

CONSTANTS = {"gap": {"legs": "n m", "value": "distance"}, "s": {"legs": "h", "value": "alibi_slopes"}}
CONSTANTS |= {"one": {"legs": "n", "value": "ones"}, "pairs": {"legs": "n m", "value": "ones"}}
GATE = {"sum": "m", "mask": ["causal"], "of": "one[n] k[m h] -> h n m"}
GATES = {"sum": "m", "mask": ["causal"], "of": "one[n] K[m h d] -> h d n m"}
FADED = "Q[n h d] K[m h d] D[h n m] -> h n m"


def decayed(scores: Any = FADED, **more: Any) -> dict[str, Any]:
    """A causal design with a map of these scores; `more`: its other steps, before the map, or another mask."""
    made = design(scores, **{"mask": ["causal"], **more})
    last = {name: made["diagram"].pop(name) for name in ("A", "y")}
    steps = made["diagram"] | last
    read = str(steps)
    constants = {name: own for name, own in CONSTANTS.items() if re.search(rf"\b{name}\[|'{name}'", read)}
    return made | {"constants": constants, "diagram": steps}


def exp(text: str) -> dict[str, str]:
    return {"map": "exp", "of": text}


BY_DISTANCE = exp("-1 * b[h] gap[n m] -> h n m")
FADING: dict[str, dict[str, Any]] = {
    "by distance": decayed(D=BY_DISTANCE),
    "by distance, kept": decayed(D=BY_DISTANCE, kind="keep"),
    "by the size of the distance": decayed(G={"map": "abs", "of": "gap"}, D=exp("-1 * G[n m] b[h] -> h n m")),
    "by slopes, with eps": decayed(D=exp("-2 * s[h] gap[n m] + 0.5 -> h n m"), eps=0.5),
    "by gates": decayed(G=GATE, D=exp("G[h m] - G[h n] -> h n m"), kind="keep"),
    "by gates and distance": decayed(G=GATE, D=exp("G[h m] - G[h n] - b[h] gap[n m] -> h n m")),
    "by numbers of a query and of a key": decayed(D=exp("q[n h] - k[m h] -> h n m")),
    "all heads alike": decayed("Q[n h d] K[m h d] D[n m] -> h n m", D=exp("-0.25 * gap[n m] -> n m")),
    "by keys alone": decayed(D=exp("-0.5 * one[n] k[m h] -> h n m")),
    "two factors": decayed(
        "Q[n h d] K[m h d] D[h n m] E[n m] -> h n m", D=BY_DISTANCE, E=exp("-0.25 * gap[n m] -> n m"), kind="keep"
    ),
    "some terms": decayed(
        "Q[n h d] K[m h d] D[h n m] + 0.5 * q[n h] k[m h] D[h n m] + q[n h] k[m h] + D[h n m] -> h n m", D=BY_DISTANCE
    ),
    "nothing else": decayed(exp("q[n h] - b[h] gap[n m] -> h n m")),
    "mixed heads that decay each": decayed("P[g h] Qg[n g d] Kg[m g d] D[h n m] -> h n m", D=BY_DISTANCE),
    "by features": decayed("Q[n h d] K[m h d] D[h d n m] -> h n m", G=GATES, D=exp("G[h d m] - G[h d n] -> h d n m")),
    "by features, kept": decayed(
        "Q[n h d] K[m h d] D[h d n m] E[h n m] -> h n m",
        G=GATES,
        D=exp("G[h d m] - G[h d n] -> h d n m"),
        E=BY_DISTANCE,
        kind="keep",
    ),
}


def weighted(scores: str, values: str = "A[h n m] V[m h e] Wo[h e f]", **more: Any) -> dict[str, Any]:
    """A causal design with a softmax of 0.7 times these scores, which are no product of queries and keys."""
    made = decayed(scores, kind="softmax", read=f"q[n h] {values} -> n f", **more)
    made["diagram"]["A"]["scale"] = 0.7
    return made


ALONE: dict[str, dict[str, Any]] = {
    "a softmax of numbers of keys": weighted("one[n] k[m h] -> h n m"),
    "numbers of keys, by distance": weighted("k[m h] - b[h] gap[n m] -> h n m"),
    "by the size of the distance": weighted("k[m h] - b[h] G[n m] -> h n m", G={"map": "abs", "of": "gap"}),
    "with numbers of queries": weighted("2 * k[m h] + q[n h] -> h n m"),
    "by gates": weighted("G[h m] - G[h n] + k[m h] -> h n m", G=GATE),
    "nothing but distance": weighted("-1 * s[h] gap[n m] -> h n m"),
    "with more of the own position": weighted(
        "k[m h] - b[h] gap[n m] + same[n m] s[h] + 2 * same[n m] k[m h] -> h n m",
        same={"keep": "m", "mask": ["window(0, 0)"], "of": "pairs"},
    ),
    "each number of a value": weighted("one[n] K[m h d] -> h d n m", "A[h d n m] K[m h d] Wq[f h d]"),
}
SHARED: dict[str, dict[str, Any]] = {  # what decays is read by a map and by a sum
    "scores": decayed(
        "F",
        kind="keep",
        D=BY_DISTANCE,
        F=FADED,
        T={"sum": "m", "mask": ["causal"], "of": "F"},
        read="T[h n] A[h n m] V[m h e] Wo[h e f] -> n f",
    ),
    "a factor of two scores": decayed(
        G=GATE,
        D=exp("G[h m] - G[h n] -> h n m"),
        kind="keep",
        T={"sum": "m", "mask": ["causal"], "of": "q[n h] k[m h] D[h n m] -> h n m"},
        read="T[h n] A[h n m] V[m h e] Wo[h e f] -> n f",
    ),
    "an exponent": decayed(
        "Q[n h d] K[m h d] D[h n m] E[h n m] -> h n m",
        kind="keep",
        X="-1 * b[h] gap[n m] -> h n m",
        D=exp("X"),
        E=exp("X"),
    ),
}
SUM = "is not a sum of a query part and a key part"
UNFADING: dict[str, tuple[dict[str, Any], str | None]] = {
    "another map": (
        decayed(D={"map": "tanh", "of": "-1 * b[h] gap[n m] -> h n m"}),
        "'D' in the scores depends on both query and key",
    ),
    "a product": (decayed(D=exp(f"0.1 * {SCORES}")), f"the exponent of 'D' in the scores {SUM}"),
    "how far, either way": (
        decayed(G={"map": "abs", "of": "gap"}, D=exp("-1 * G[n m] b[h] -> h n m"), mask=[]),
        f"the exponent of 'D' in the scores {SUM}",
    ),
    "a rate of the query": (
        decayed(D=exp("-1 * q[n h] gap[n m] -> h n m")),
        f"the exponent of 'D' in the scores {SUM}",
    ),
    "mixed heads": (
        decayed("P[g h] Qg[n g d] Kg[m g d] D[n m] -> h n m", D=exp("-0.25 * gap[n m] -> n m")),
        None,  # rewriting makes it fit after all
    ),
    "by some of the features": (
        decayed(
            "Q[n h d] K[m h d] G[n a] Ka[m a] D[d n m] -> h n m",
            G="x[n f] Wa[f a] -> n a",
            D=exp("-1 * u[d] gap[n m] -> d n m"),
        ),
        "'D' decays along 'd', but the scores sum 'a' and 'd'",
    ),
}
FORGETTING = {  # scores less the gates between key and query, as in the Forgetting Transformer
    "tensornet": 1,
    "name": "forgetting",
    "extends": "mhsa",
    "causal": True,
    "weights": {"Wg": "f h"},
    "constants": {"one": CONSTANTS["one"]},
    "diagram": {
        "gate": {"map": "softplus", "of": "x[n f] Wg[f h] -> n h"},
        "since": {"sum": "m", "of": "one[n] gate[m h] -> h n m"},
        "A": {"softmax": "m", "of": "(d ** -0.5) * Q[n h d] K[m h d] + since[h m] - since[h n] -> h n m"},
    },
}
