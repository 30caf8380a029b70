"""Small designs whose n x m values no fused operation takes: which are computed in blocks, and which cannot be."""

from __future__ import annotations

from typing import Any

SCORES = "Q[n h d] K[m h d] -> h n m"
READ = "A[h n m] V[m h d] Wo[h d f] -> n f"
LEGS = {"f": 6, "h": "head 2", "g": "head 2", "d": "head 3", "e": 3}
WEIGHTS = {
    "Wq": "f h d", "Wk": "f h d", "Wv": "f h d", "Wo": "h d f", "P": "h g", "b": "h", "B": "h t", "Bp": "h p",
    "R": "d p", "L": "l f", "S": "n h", "T": "m h", "Wr": "f h e",
}  # fmt: skip


def design(scores: Any = SCORES, read: Any = READ, *, box: Any = None, legs: Any = None, **more: Any) -> dict[str, Any]:
    """A design with these scores and this output; `box`: more keys of the softmax; `more`: sections, and steps."""
    sections = {name: more.pop(name) for name in ("constants", "noise", "state", "causal") if name in more}
    first = {"Q": "x[n f] Wq[f h d] -> n h d", "K": "z[m f] Wk[f h d] -> m h d", "V": "z[m f] Wv[f h d] -> m h d"}
    before = {name: more.pop(name) for name in ("U", "U2") if name in more}
    after = {name: more.pop(name) for name in tuple(more) if name.startswith("after")}
    A = more.pop("A", {"softmax": "m", "of": scores, **(box or {})})
    diagram = {**before, "A": A, **more, "y": read, **after}
    diagram = {
        name: step for name, step in first.items() if f"{name}[" in str(diagram) or f"'{name}'" in str(diagram)
    } | diagram
    text = " ".join(map(str, diagram.values()))
    weights = {name: own for name, own in WEIGHTS.items() if f"{name}[" in text or f"'of': '{name}'" in text}
    known = {"n": "query", "m": "key", **LEGS, **(legs or {})}
    used = {"n", "m", *(leg for own in weights.values() for leg in own.split())}
    said = text + str(sections)
    wanted = {leg: size for leg, size in known.items() if leg in used or leg in (legs or {}) or f" {leg} " in said}
    return {"tensornet": 1, "name": "one", "legs": wanted, "inputs": {"x": "n f", "z": "m f"}, "weights": weights,
            **sections, "diagram": diagram, "output": "y"}  # fmt: skip


MAPPED = {"map": "softcap(3)", "of": SCORES}  # a box between scores and softmax: nothing fused takes that
GAP = {"gap": {"legs": "n m", "value": "distance"}}
BACK = {"gap": {"legs": "m n", "value": "distance"}}
TAKEN = {
    "a map on the scores": design(MAPPED),
    "causal": design(MAPPED, causal=True),
    "causal, divided by all keys": design({"map": "softcap(3)", "of": f"(1 / m) * {SCORES}"}, causal=True),
    "causal, turned by the keys": design(
        {"map": "softcap(3)", "of": "U[h n m d] Q[n h d] -> h n m"},
        legs={"d": "head 4"},
        causal=True,
        U={"rope": "m", "along": "d", "of": "Q[n h d] K[m h d] -> h n m d"},
    ),
    "a number of each sequence": design(
        {"map": "softcap(3)", "of": f"U[] {SCORES}"}, U={"mean": "n", "of": {"mean": "f", "of": "x"}}
    ),
    "a band": design(MAPPED, box={"mask": ["band(1)"]}),
    "a window to one side": design(MAPPED, box={"mask": ["window(2, -1)"]}),
    "heads mixed before and after": design(
        {"map": "relu", "of": "P[h g] Q[n h d] K[m h d] -> g n m"},
        "A2[h n m] V[m h d] Wo[h d f] -> n f",
        A2="A[g n m] P[h g] -> h n m",
    ),
    "mixed heads read by the old letter": design(
        {"map": "relu", "of": "U[h n m]"},
        "A2[h n m] V[m h d] Wo[h d f] -> n f",
        U="P[h g] Q[n h d] K[m h d] -> g n m",
        A2="A[h n m] P[h g] -> g n m",
    ),
    "maps beside mixed ones": design(
        MAPPED,
        "A3[h n m] V[m h d] Wo[h d f] -> n f",
        A2="A[h n m] P[h g] -> g n m",
        A3="A[h n m] - 0.5 * A2[h n m] -> h n m",
    ),
    "a constant of every row": design(
        f"{SCORES[:-9]} + b[h] + 0.5 -> h n m", A2={"map": "square", "of": "A"}, read=READ.replace("A[", "A2[")
    ),
    "a weight on the query leg": design(
        f"S[n h] {SCORES}", legs={"n": "query 8"}, A2={"map": "sqrt", "of": "A"}, read=READ.replace("A[", "A2[")
    ),
    "a weight on the key leg": design({"map": "softcap(3)", "of": f"T[m h] {SCORES}"}, legs={"m": "key 8"}),
    "distances": design({"map": "tanh", "of": f"{SCORES[:-9]} - b[h] gap[n m] -> h n m"}, constants=GAP),
    "distances turned": design({"map": "tanh", "of": f"{SCORES[:-9]} - b[h] gap[m n] -> h n m"}, constants=BACK),
    "a constant of all pairs": design(
        {"map": "tanh", "of": f"{SCORES[:-9]} + level[n m] -> h n m"},
        constants={"level": {"legs": "n m", "value": "full(0.5)"}},
    ),
    "all relative positions": design(
        {"map": "tanh", "of": f"{SCORES[:-9]} + U[h n m] -> h n m"},
        legs={"l": "relative"},
        U={"rel_shift": "l", "to": "m", "of": "Q[n h d] far[l d] -> h n l"},
        constants={"far": {"legs": "l d", "value": "sinusoid"}},
    ),
    "near positions": design(
        {"map": "tanh", "of": f"{SCORES[:-9]} + U[h n m] -> h n m"},
        legs={"p": "relative 2"},
        U={"rel_shift": "p", "to": "m", "of": "Q[n h d] R[d p] -> h n p"},
    ),
    "a table of near positions": design(
        {"map": "tanh", "of": f"{SCORES[:-9]} + U[h n m] -> h n m"},
        legs={"p": "relative 2"},
        U={"rel_shift": "p", "to": "m", "of": "Bp"},
    ),
    "nearby relative positions of keys": design(
        {"map": "tanh", "of": f"{SCORES[:-9]} + U[h m n] -> h n m"},
        legs={"p": "relative 2"},
        U={"rel_shift": "p", "to": "n", "of": "K[m h d] R[d p] -> h m p"},
    ),
    "nearby relative positions of keys in a window": design(
        {"map": "tanh", "of": f"{SCORES[:-9]} + U[h n m] + U2[h m n] -> h n m"},
        box={"mask": ["window(3, 1)"]},
        legs={"p": "relative 1"},
        U={"rel_shift": "p", "to": "m", "of": "Q[n h d] R[d p] -> h n p"},
        U2={"rel_shift": "p", "to": "n", "of": "Bp"},
    ),
    "top keys": design(A={"topk": "m", "k": 1, "of": {"map": "sigmoid", "of": SCORES}}),
    "a norm along the keys": design(A={"l2norm": "m", "eps": 0.1, "of": SCORES}),
    "the most of each pair": design({"max": "g", "of": "P[h g] Q[n h d] K[m h d] -> h g n m"}),
    "a softmax over heads": design(A={"softmax": "h", "of": SCORES}),
    "less the mean of the heads": design("U[h n m] - 0.5 * U2[n m] -> h n m", U=SCORES, U2={"mean": "h", "of": "U"}),
    "kept": design(A={"keep": "m", "of": {"map": "sigmoid", "of": SCORES}}),
    "kept, times a map of the distance": design(
        A={"keep": "m", "of": "U[h n m] U2[h n m] -> h n m"},
        U=SCORES,
        U2={"map": "sigmoid", "of": "b[h] gap[n m] -> h n m"},
        constants=GAP,
        causal=True,
    ),
    "kept, then summed over heads": {  # the gradient of what is kept lacks the heads; a mask of the call may have them
        "tensornet": 1,
        "name": "one",
        "legs": {"n": "query", "m": "key", "f": 6, "h": "head 3", "d": 2, "e": 2},
        "inputs": {"x": "n f", "z": "m f"},
        "weights": {"Wq": "f h d", "Wk": "f d", "Wv": "f e", "Wo": "e f"},
        "diagram": {
            "Q": "x[n f] Wq[f h d] -> n h d",
            "K": "z[m f] Wk[f d] -> m d",
            "V": "z[m f] Wv[f e] -> m e",
            "S": "Q[n h d] K[m d] -> h n m",
            "A": {"keep": "m", "of": "S[h n m]"},
            "B": {"sum": "h", "of": "A[h n m]"},
            "y": "B[n m] V[m e] Wo[e f] -> n f",
        },
        "output": "y",
    },
    "neither kept nor divided": design(
        A={"map": "sigmoid", "of": SCORES},
        T2="A[h n m] T[m h] -> h n",
        read="T2[h n] Q[n h d] Wo[h d f] -> n f",
        legs={"m": "key 8"},
    ),
    "a softmax less what is divided by sums": design(
        A2={"normalize": "m", "of": {"map": "softplus", "of": SCORES}},
        A3="A[h n m] - 0.5 * A2[h n m] -> h n m",
        read="A3[h n m] V[m h d] Wo[h d f] -> n f",
    ),
    "divided by sums, and mixed": design(
        A={"normalize": "m", "of": {"map": "exp", "of": SCORES}},
        A2="A[g n m] P[h g] -> h n m",
        read="A2[h n m] V[m h d] Wo[h d f] -> n f",
    ),
    "a table beside what no mask hides": design(
        A2={"map": "relu", "of": f"{SCORES[:-9]} + U[h n m] -> h n m"},
        A3="A[h n m] + A2[h n m] -> h n m",
        legs={"p": "relative 2"},
        U={"rel_shift": "p", "to": "m", "of": "Bp"},
        read="A3[h n m] V[m h d] Wo[h d f] -> n f",
    ),
    "powers": design(
        A={"normalize": "m", "eps": 0.1, "of": {"map": "power(1.5)", "of": {"map": "relu", "of": SCORES}}},
        A2={"map": "power(5)", "of": "A"},
        read=READ.replace("A[", "A2["),
    ),
    "the mean and the sum over keys": design(
        A={"map": "relu", "of": SCORES},
        T2={"mean": "m", "of": "A"},
        T3={"sum": "m", "of": "A", "mask": ["band(2)"]},
        read="T2[h n] T3[h n] Q[n h d] Wo[h d f] -> n f",
        causal=True,
    ),
    "a multiple, averaged over the keys": design(
        A="0.25 * Q[n h d] K[m h d] -> h n m", T2={"mean": "m", "of": "A"}, read="T2[h n] Q[n h d] Wo[h d f] -> n f"
    ),
    "divided by sums": design(A={"normalize": "m", "eps": 0.1, "of": {"map": "sigmoid", "of": SCORES}}),
    "read twice": design(
        MAPPED, "A[h n m] V[m h d] Wo[h d f] + A2[h n m] K[m h d] Wo[h d f] -> n f", A2={"map": "square", "of": "A"}
    ),
    "reduced along the keys": design(
        "U", "A[h n m] V[m h d] T2[h n] Wo[h d f] -> n f", U=MAPPED, T2={"logsumexp": "m", "of": "U"}
    ),
    "summed as exponentials": design(
        A={"softmax": "m", "scale": "d ** -0.5", "of": "U"},
        U=SCORES,
        T2={"logsumexp": "m", "of": "U"},
        T3={"map": "sigmoid", "of": "T2[h n] - b[h] -> h n"},
        read="A[h n m] V[m h d] T3[h n] Wo[h d f] -> n f",
        causal=True,
    ),
    "the most of each row": design(
        read="T2[h n] V2[h d] Wo[h d f] -> n f", A=MAPPED, T2={"max": "m", "of": "A"}, V2={"mean": "m", "of": "V"}
    ),
    "noise": design({"map": "tanh", "of": f"{SCORES[:-9]} + eps[h n m] -> h n m"}, noise={"eps": {"legs": "h n m"}}),
    "dropout": design(MAPPED, box={"dropout": 0.5}),
}

TWICE = {"eps": {"legs": "h n m"}}
REFUSED = {
    "scores that are not zero at hidden keys, and no values": (
        design(
            A={"map": "sigmoid", "of": SCORES},
            U={"map": "exp", "of": "S[n h] T[m h] -> h n m"},
            T2="A[h n m] U[h n m] -> h n",
            read="T2[h n] Q[n h d] Wo[h d f] -> n f",
            legs={"n": "query 8", "m": "key 8"},
        ),
        "'T2' sums keys, and reads no tensor in which the key mask could hide them",
    ),
    "leaves the diagram": (
        design(MAPPED, "A[h n m] b[h] -> n m"), "'y' has both legs and is a result of the diagram"
    ),
    "summed over the query": (
        design(MAPPED, "Q[n h d] T2[h d] Wo[h d f] -> n f", T1="A[h n m] Q[n h d] -> m h d",
               T2={"mean": "m", "of": "T1"}),
        "'T1' sums over 'n'",
    ),
    "along the query": (design(A={"softmax": "n", "of": SCORES}), "'A' runs along 'n'"),
    "along all relative positions": (
        design({"map": "tanh", "of": f"{SCORES[:-9]} + U[h n m] -> h n m"}, legs={"l": "relative"},
               U={"rel_shift": "l", "to": "m", "of": {"softmax": "l", "of": "Q[n h d] far[l d] -> h n l"}},
               constants={"far": {"legs": "l d", "value": "sinusoid"}}),
        "'U.of' runs along 'l'",
    ),
    "turned": (
        design(MAPPED, "A2[h n m] V[m h d] Wo[h d f] -> n f", A2="A[h m n] A[h n m] -> h n m"),
        "'A2' reads 'A' with leg 'n' renamed to 'm'",
    ),
    "noise used twice": (
        design({"map": "tanh", "of": f"{SCORES[:-9]} + eps[h n m] -> h n m"},
               "A2[h n m] V[m h d] Wo[h d f] -> n f", A2="A[h n m] eps[h n m] -> h n m", noise=TWICE),
        "the noise 'eps' is used more than once, and each use would draw other values",
    ),
    "dropout for two results": (
        design(MAPPED, "A[h n m] V[m h d] Wo[h d f] + A2[h n m] K[m h d] Wo[h d f] -> n f",
               A2={"map": "square", "of": "A"}, box={"dropout": 0.5}),
        "the dropout of 'A' would be drawn separately for two results",
    ),
}  # fmt: skip
