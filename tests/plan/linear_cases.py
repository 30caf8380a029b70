"""Small designs whose scores are sums of products: which of them sum the keys first, and which cannot."""

from __future__ import annotations

import re
from typing import Any

SIZES = {"f": 4, "h": 3, "g": 2, "j": 2, "d": 4, "e": 3, "a": 2}
WEIGHTS = {
    "Wq": "f h d", "Wk": "f h d", "Wv": "f h e", "Wo": "h e f", "Wg": "f g d", "Wj": "f h j d", "Wc": "f d",
    "Ws": "f e", "Wa": "f a", "Wt": "f h", "Wu": "e f", "wP": "g h", "wC": "d h", "wR": "g j", "wb": "h", "wu": "d",
    "wB": "d a h", "Wp": "j h e f",
}  # fmt: skip


def positive(text: str) -> dict[str, str]:
    """A map that keeps the sums of rows away from zero."""
    return {"map": "softplus", "of": text}


STEPS: dict[str, Any] = {
    "Q": positive("x[n f] Wq[f h d] -> n h d"),
    "K": positive("z[m f] Wk[f h d] -> m h d"),
    "Qg": positive("x[n f] Wg[f g d] -> n g d"),
    "Kg": positive("z[m f] Wg[f g d] -> m g d"),
    "Qj": positive("x[n f] Wj[f h j d] -> n h j d"),
    "Qc": positive("x[n f] Wc[f d] -> n d"),
    "Kc": positive("z[m f] Wc[f d] -> m d"),
    "Ka": positive("z[m f] Wa[f a] -> m a"),
    "q": positive("x[n f] Wt[f h] -> n h"),
    "k": positive("z[m f] Wt[f h] -> m h"),
    **{name: positive(f"w{name}") for name in ("P", "C", "R", "b", "u", "B")},
    "V": "z[m f] Wv[f h e] -> m h e",
    "Vs": "z[m f] Ws[f e] -> m e",
    "Vh": "z[m f] Wt[f h] -> m h",
    "Vj": "z[m f] Wp[j h e f] -> m h j e",
    "S": "Q[n h d] K[m h d] -> h n m",
    "Sr": {"map": "relu", "of": "S"},
    "Sp": {"map": "power(3)", "of": "S"},
    "Sb": "Q[n h d] K[m h d] + k[m h] + 0.5 -> h n m",
    "Sm": "P[g h] Qg[n g d] Kg[m g d] -> h n m",
    "Sg": "Qg[n g d] Kg[m g d] -> g n m",
    "Sj": "Qj[n h j d] K[m h d] + 0.5 -> j h n m",
    "Sh": "Qj[n h j d] K[m h d] + 0.25 -> j h n m",
    "Sn": "Qg[n g d] Kg[m g d] + 0.5 -> g n m",
    "W": "V[m h e] q[n h] -> n m h e",
}
READ = "A[h n m] V[m h e] Wo[h e f] -> n f"
SCORES = "Q[n h d] K[m h d] -> h n m"


def design(scores: Any, read: Any = READ, **more: Any) -> dict[str, Any]:
    """A design with a map A of these scores and the output `read`; `more`: keys of the box, steps of other names."""
    keys = {key: more.pop(key) for key in ("mask", "eps") if key in more}
    kind = more.pop("kind", "normalize")
    return diagram({"A": {kind: "m", "of": scores, **keys}, **more, "y": read})


def diagram(own: dict[str, Any]) -> dict[str, Any]:
    """A design of these steps, the last of them y, and of what else of `STEPS` they speak."""
    used: dict[str, Any] = {}
    text = str(own)
    for name in reversed(STEPS):
        if re.search(rf"\b{name}\[|'{name}'", text):
            used = {name: STEPS[name]} | used
            text += str(STEPS[name])
    weights = {name: legs for name, legs in WEIGHTS.items() if re.search(rf"\b{name}\b", text)}
    legs = {leg: f"head {SIZES[leg]}" for leg in SIZES if any(leg in own.split() for own in (*weights.values(), "f"))}
    return {
        "tensornet": 1, "name": "one", "legs": {"n": "query", "m": "key", **legs}, "inputs": {"x": "n f", "z": "m f"},
        "weights": weights, "diagram": used | own, "output": "y",
    }  # fmt: skip


LINEAR = {
    "heads": design(SCORES),
    "scaled, with eps": design(f"2 * {SCORES}", eps=0.5),
    "kept": design(f"(m ** -0.5) * {SCORES}", kind="keep"),
    "one key for all heads": design("Q[n h d] Kc[m d] -> h n m"),
    "one value for all heads": design(SCORES, "A[h n m] Vs[m e] Wo[h e f] -> n f"),
    "grouped queries": design("Qj[n h j d] K[m h d] -> j h n m", "A[j h n m] V[m h e] Wp[j h e f] -> n f"),
    "mixed heads": design("P[g h] Qg[n g d] Kg[m g d] -> h n m"),
    "mixed heads, kept": design("P[g h] Qg[n g d] Kg[m g d] -> h n m", kind="keep"),
    "mixed and a bias": design("P[g h] Qg[n g d] Kg[m g d] + b[h] -> h n m"),
    "one term of two mixed": design("P[g h] Qg[n g d] Kg[m g d] + Qc[n d] Kc[m d] -> h n m"),
    "mixed, values without heads": design("P[g h] Qg[n g d] Kg[m g d] -> h n m", READ.replace("V[m h e]", "Vs[m e]")),
    "mixed into two legs": design(
        "P[g h] R[g j] Qg[n g d] Kg[m g d] -> j h n m", "A[j h n m] Vj[m h j e] Wp[j h e f] -> n f"
    ),
    "mixed, and groups in queries alone": design("P[g h] Qg[n g d] Kc[m d] -> h n m"),
    "a core of all features": design("C[d h] Qc[n d] Kc[m d] -> h n m", "A[h n m] Vh[m h] Wt[f h] -> n f"),
    "weighted features": design("u[d] Q[n h d] K[m h d] -> h n m"),
    "weighted heads": design("b[h] Q[n h d] K[m h d] -> h n m"),
    "bilinear": design("B[d a h] Qc[n d] Ka[m a] -> h n m"),
    "two factors a side": design("q[n h] Q[n h d] K[m h d] k[m h] -> h n m"),
    "nothing contracted": design("q[n h] k[m h] -> h n m"),
    "a key bias": design("Q[n h d] K[m h d] + u[d] K[m h d] -> h n m"),
    "a query bias": design("Q[n h d] K[m h d] + q[n h] b[h] -> h n m"),
    "a number": design("Q[n h d] K[m h d] + 0.5 -> h n m"),
    "no heads": design("Qc[n d] Kc[m d] -> n m", "A[n m] Vs[m e] Wu[e f] -> n f"),
    "read beside another": design(SCORES, "0.5 * A[h n m] V[m h e] Wo[h e f] - x[n f] -> n f"),
    "heads summed by the reader": design(SCORES, "A[h n m] V[m h e] Wu[e f] -> n f"),
    "a product of scores": design("S[h n m] Q[n h d] K[m h d] -> h n m"),
    "a polynomial": design("1 + S[h n m] + 0.5 * S[h n m] S[h n m] -> h n m"),
    "a square": design({"map": "square", "of": SCORES}),
    "a third power and the first": design("Sp[h n m] + S[h n m] -> h n m"),
    "a square of a sum": design("2 * Sb[h n m] Sb[h n m] -> h n m"),
    "a square of a square": design(
        {"map": "square", "of": {"map": "square", "of": "q[n h] k[m h] + 1 -> h n m"}}, kind="keep"
    ),
    "a square of mixed heads": design("Sm[h n m] Sm[h n m] -> h n m"),
    "products with numbers, summed over a leg": design("Sj[j h n m] Sh[j h n m] -> h n m"),
    "a square with a number, mixed": design("P[g h] Sn[g n m] Sn[g n m] -> h n m"),
    "a square, mixed": design("P[g h] Sg[g n m] Sg[g n m] -> h n m"),
}

REFUSED: dict[str, tuple[dict[str, Any], str | None]] = {  # the reason; None where rewriting makes it fit after all
    "box inside": (design({"map": "relu", "of": SCORES}), "the scores are a 'map' box, not a sum of products"),
    "a map of pairs": (
        design("Sr[h n m] Q[n h d] K[m h d] -> h n m"),
        "'Sr' in the scores depends on both query and key",
    ),
    "a product of scores, read elsewhere": (
        design("S[h n m] S[h n m] -> h n m", READ.replace("->", "+ T[h n] Wt[f h] ->"), T={"max": "m", "of": "S"}),
        None,
    ),
    "band": (design(SCORES, mask=["band(2)"]), "a sum over all keys cannot exclude those that 'band(2)' hides"),
    "read twice": (design(SCORES, READ.replace("->", "+ A[h n m] V[m h e] Wo[h e f] ->")), None),
    "scores elsewhere": (design("S", READ.replace("->", "+ T[h n] Wt[f h] ->"), T={"max": "m", "of": "S"}), None),
    "box between": (
        design(SCORES, "T[h n m] V[m h e] Wo[h e f] -> n f", T={"map": "relu", "of": "A"}),
        "a box is between the attention map and the values",
    ),
    "other names": (design("Qg[n g d] Kg[m g d] -> g n m", "A[j n m] Vj[m h j e] Wp[j h e f] -> n f"), None),
    "key leg kept": (
        design(SCORES, {"sum": "m", "of": "T[h n m e] Wo[h e f] -> m n f"}, T="A[h n m] V[m h e] -> h n m e"),
        "the product with the attention map keeps the key leg",
    ),
    "values of the query": (
        design(SCORES, READ.replace("V[", "W[").replace("m h e", "n m h e", 1)),
        "the values depend on the query",
    ),
}
