"""Random small diagrams, each of a kind that one rule fires in: sizes, head legs and masks are drawn."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

Diagram = dict[str, Any]
Draw = random.Random

ATTEND = {"softmax": "m", "scale": "d ** -0.5", "of": "Q[n h d] K[m h d] -> h n m"}
READ = "A[h n m] V[m h e] Wo[h e f] -> n f"


def attention(draw: Draw, of: Any = None, read: str = READ, **more: Any) -> Diagram:
    """Attention with heads h and g, whose scores and reader may be replaced, and more sections and steps."""
    h = draw.choice([1, 2, 3])
    legs = {"n": "query", "m": "key", "f": draw.choice([2, 3]), "h": f"head {h}", "g": f"head {draw.choice([1, 2])}"}
    legs |= {"d": f"head {draw.choice([1, 2, 3])}", "e": f"head {draw.choice([1, 2])}"}
    weights = {"Wq": "f h d", "Wk": "f h d", "Wv": "f h e", "Wo": "h e f"} | more.pop("weights", {})
    box = dict(draw.choice([ATTEND, ATTEND | {"mask": ["window(1, 0)"]}]))
    box |= {"of": of} if of else {}
    steps = {"Q": "x[n f] Wq[f h d] -> n h d", "K": "x[m f] Wk[f h d] -> m h d", "V": "x[m f] Wv[f h e] -> m h e"}
    steps |= more.pop("before", {}) | {"A": box} | more.pop("after", {}) | {"y": read}
    made = {"tensornet": 1, "name": "small", "legs": legs | more.pop("legs", {}), "inputs": {"x": "n f"}}
    return used(made | {"weights": weights, "diagram": steps, "output": "y"} | more)


def used(made: Diagram) -> Diagram:
    """Without the steps, weights and legs that nothing speaks of."""
    steps = made["diagram"]
    while True:
        told = [set(re.findall(r"\w+", str(value))) for value in [*steps.values(), made.get("state")]]
        kept = {name: value for name, value in steps.items() if name == "y" or any(name in words for words in told)}
        if kept == steps:
            break
        steps = kept
    told = set(re.findall(r"\w+", str(steps)))
    weights = {name: legs for name, legs in made["weights"].items() if name in told}
    spoken = set(re.findall(r"\w+", str([weights, steps, made.get("constants"), *made["legs"].values()])))
    legs = {leg: size for leg, size in made["legs"].items() if leg in spoken}
    return made | {"diagram": steps, "weights": weights, "legs": legs}


def constants(**value: str) -> Diagram:
    return {
        "constants": {name: dict(zip(("legs", "value"), text.split(": "), strict=True)) for name, text in value.items()}
    }


def renamed(draw: Draw) -> Diagram:
    return attention(draw, before={"Z": "Q[n h d] -> h n d"}, of="Z[h n d] K[m h d] -> h n m")


def in_documents(draw: Draw) -> Diagram:
    mask = draw.choice(["document", "causal and document", "band(1) and (document or prefix(1))"])
    made = attention(draw)
    made["diagram"]["A"] = ATTEND | {"mask": mask}
    return made


def mixed_back(draw: Draw) -> Diagram:
    """Maps mixed over heads, the new ones read by the letter of the old ones, at once or behind a box."""
    mixed = {"M": "A[h n m] M1[h u] -> u n m"}
    boxed = {"B": {"map": "tanh", "of": "M[h n m]"}}
    after = draw.choice([mixed, mixed | boxed, mixed | {"B": "A[h n m] - 0.5 * M[h n m] -> h n m"}])
    name = "B" if "B" in after else "M"
    read = f"{name}[h n m] V[m h e] Wo[h e f] -> n f"
    return attention(draw, after=after, read=read, weights={"M1": "h u"}, legs={"u": "head h"})


def mixed_scores(draw: Draw) -> Diagram:
    """Scores mixed over heads, which a box reads by the letter of the old ones."""
    own = {"S": "Q[n h d] K[m h d] P[h u] -> u n m"}
    of = draw.choice(["S[h n m]", {"map": "tanh", "of": "S[h n m]"}])
    return attention(draw, of=of, before=own, weights={"P": "h u"}, legs={"u": "head h"})


def twice(draw: Draw) -> Diagram:
    order = draw.choice(["n h d", "h n d", "d n h"])
    own = {"R": f"Wq[f h d] x[n f] -> {order}"}
    return attention(draw, before=own, of=f"Q[n h d] K[m h d] + 0.5 * R[{order}] K[m h d] R[{order}] -> h n m")


def two_maps(draw: Draw) -> Diagram:
    """The same box twice, and the boxes inside of it."""
    box = {"softmax": "m", "of": {"map": "tanh", "of": "K[m h d] Q[n h d] -> n h m"}}
    other = {"softmax": "m", "of": {"map": "tanh", "of": "Q[n h d] K[m h d] -> h n m"}}
    steps = {"B": box, "A": other}
    return attention(draw, after=steps, read="A[h n m] V[m h e] Wo[h e f] + B[n h m] V[m h e] Wo[h e f] -> n f")


def eye(draw: Draw) -> Diagram:
    of = draw.choice(["I[h h2] Q[n h2 d] K[m h d] -> h n m", "I[h2 h] Q[n h d] K[m h2 d] -> h n m"])
    return attention(draw, of=of, legs={"h2": "head h"}, **constants(I="h h2: eye"))


def uniform(draw: Draw) -> Diagram:
    value = draw.choice(["ones", "full(0.5)", "full(d ** -0.5)"])
    of = draw.choice(["B[h] Q[n h d] K[m h d] -> h n m", "B[h] Q[n h d] K[m h d] + B[h] Q[n h d] Q[n h d] -> h n m"])
    return attention(draw, of=of, **constants(B=f"h: {value}"))


def spread(draw: Draw) -> Diagram:
    """A constant that alone has a leg, which others sum, or sum together with the constant."""
    own = draw.choice(["B[g] Q[n h d] -> n h g d", "B[g] Q[n h d] + 0.5 * B[g] Q[n h d] -> n h g d"])
    of = draw.choice(["u[n h g d] K[m h d] c[g] -> h n m", "u[n h g d] K[m h d] u[n h g d] -> h n m"])
    return attention(draw, before={"u": own}, of=of, weights={"c": "g"}, **constants(B="g: full(0.7)"))


def counted(draw: Draw) -> Diagram:
    """A box between a constant that alone has a leg and the product that sums it."""
    before = {"u": {"map": "tanh", "of": "B[g] Q[n h d] -> n h g d"}}
    return attention(draw, before=before, of="u[n h g d] K[m h d] B[g] -> h n m", **constants(B="g: ones"))


def turned(draw: Draw) -> Diagram:
    """The same, of a box between that acts along two other legs."""
    ones = constants(B="g: ones")
    if draw.random() < 0.5:
        before = {
            "u": {"rope": "n", "along": "c", "of": "B[g] x[n f] Wc[f h c] -> n h g c"},
            "k": "x[m f] Wd[f h c] -> m h c",
        }
        weights, legs = {"Wc": "f h c", "Wd": "f h c"}, {"c": draw.choice([2, 4])}
        return attention(
            draw, before=before, of="u[n h g c] k[m h c] B[g] -> h n m", weights=weights, legs=legs, **ones
        )
    before = {"T": {"rel_shift": "p", "to": "m", "of": "B[g] Q[n h d] E[p h d] -> g h n p"}}
    of, legs = "Q[n h d] K[m h d] + T[g h n m] B[g] -> h n m", {"p": "relative 2"}
    return attention(draw, before=before, of=of, weights={"E": "p h d"}, legs=legs, **ones)


def kron(draw: Draw, shifted: bool = False) -> Diagram:
    """A structured core, its matrices in either order, and a part that is not square."""
    matrices = draw.choice(
        ["kron(eye(h), ones(d, e))", "kron(ones(d, e), eye(h))", "kron(eye(h), kron(ones(d, e), eye(g)))"]
    )
    deep = matrices.count("kron") > 1
    legs = {"r": "head h * d * g" if deep else "head h * d", "s": "head h * e * g" if deep else "head h * e"}
    steps: Diagram = {"Q": "x[n f] Wq[f s] -> n s", "K": "x[m f] Wk[f s] -> m s", "V": "x[m f] Wv[f r] -> m r"}
    weights, of = {"Wq": "f s", "Wk": "f s", "Wv": "f r", "Wo": "r f"}, "C[r s] Q[n s] K[m s] -> r n m"
    if shifted:
        steps |= {"T": {"rel_shift": "p", "to": "m", "of": "C[r s] Q[n s] E[p s] -> r n p"}}
        weights, of, legs = weights | {"E": "p s"}, of.replace("->", "+ T[r n m] ->"), legs | {"p": "relative 2"}
    return attention(
        draw, of=of, before=steps, read="A[r n m] V[m r] Wo[r f] -> n f",
        legs=legs, weights=weights, **constants(C=f"r s: {matrices}"),
    )  # fmt: skip


def kron_shifted(draw: Draw) -> Diagram:
    return kron(draw, shifted=True)


def low_rank(draw: Draw) -> Diagram:
    return attention(
        draw, before={"Q": "x[n f] Wc[f c] Wu[c h d] -> n h d"}, weights={"Wc": "f c", "Wu": "c h d"}, legs={"c": 2}
    )


def ranks(draw: Draw) -> Diagram:
    """Queries made in two steps."""
    before = {
        "c": "x[n f] Wc[f c] -> n c",
        "Q": draw.choice(["c[n c] Wu[c h d] -> n h d", "-1 * Wu[c h d] c[n c] -> h n d"]),
    }
    scores = f"Q[{before['Q'].partition('> ')[2]}] K[m h d] -> h n m"
    return first("c", attention(draw, scores, before=before, weights={"Wc": "f c", "Wu": "c h d"}, legs={"c": 2}))


def first(names: str, made: Diagram) -> Diagram:
    """The diagram with these steps before the others."""
    steps = made["diagram"]
    return made | {"diagram": {name: steps[name] for name in names if name in steps} | steps}


def mixed(draw: Draw) -> Diagram:
    """Heads mixed after the softmax, at once or in a step of their own."""
    if draw.random() < 0.5:
        return attention(
            draw, after={"U": "A[h n m] P[h g] -> g n m"}, read="U[g n m] V[m g e] Wo[g e f] -> n f", **_mix()
        )
    return attention(draw, read="P[h g] A[h n m] V[m g e] Wo[g e f] -> n f", **_mix())


def _mix() -> Diagram:
    return {"weights": {"P": "h g", "Wv": "f g e", "Wo": "g e f"}, "before": {"V": "x[m f] Wv[f g e] -> m g e"}}


def blend(draw: Draw) -> Diagram:
    """A sum of maps, or of features, that a product reads."""
    if draw.random() < 0.5:
        before = {"u": "0.5 * Q[n h d] + b[h e] Q[n h e2] Z[e e2 d] -> n h d"}
        return attention(
            draw, before=before, of="u[n h d] K[m h d] -> h n m", weights={"b": "h e", "Z": "e e2 d"}, legs={"e2": "d"}
        )
    second = {"B": {"normalize": "m", "of": {"map": "exp", "of": "Q[n h d] K[m h d] -> h n m"}}}
    after = second | {"U": "b[h] A[h n m] - 2 * B[h n m] -> h n m"}
    return attention(draw, after=after, read="U[h n m] V[m h e] Wo[h e f] -> n f", weights={"b": "h"})


def shared(draw: Draw) -> Diagram:
    of = draw.choice([
        "Q[n h d] K[m h d] - 0.5 * u[h d] K[m h d] -> h n m",
        "Q[n h d] K[m h d] + u[h d] K[m h d] + v[h g] Z[g d] K[m h d] -> h n m",
    ])  # fmt: skip
    return attention(draw, of=of, weights={"u": "h d", "v": "h g", "Z": "g d"})


def mixture(draw: Draw) -> Diagram:
    of = {"logsumexp": "g", "of": "Q[n h d] K[m g h d] + b[g h] -> h g n m"}
    before = {"K": "x[m f] Wk[f g h d] -> m g h d"}
    made = attention(draw, of=of, before=before, weights={"Wk": "f g h d", "b": "g h"})
    made["diagram"]["A"].pop("scale")
    return made


def own_norm(draw: Draw) -> Diagram:
    """A term of the scores that is the same for every key, of tensors that are read elsewhere too."""
    of = draw.choice([
        "Q[n h d] K[m h d] - Q[n h d] Q[n h d] -> h n m",
        "Q[n h d] K[m h d] - q2[n h] -> h n m",
        "Q[n h d] K[m h d] + 3 -> h n m",
    ])  # fmt: skip
    return attention(draw, of=of, before={"q2": "Q[n h d] Q[n h d] -> n h"})


def core(draw: Draw) -> Diagram:
    return attention(draw, of="C[h g] Q[n h d] K[m g d] -> g n m", read="A[g n m] V[m g e] Wo[g e f] -> n f",
                     weights={"C": "h g", "Wk": "f g d", "Wv": "f g e", "Wo": "g e f"},
                     before={"K": "x[m f] Wk[f g d] -> m g d", "V": "x[m f] Wv[f g e] -> m g e"})  # fmt: skip


def in_steps(draw: Draw) -> Diagram:
    """Scores whose products stand in steps of their own, mixed over heads or not, one inside another."""
    of = draw.choice([
        "S[h n m] + R[h n m] -> h n m",
        "0.5 * S[h n m] - B[h] T[h n m] -> h n m",
        "C[h h2] S[h2 n m] + R[h n m] -> h n m",
        "S[h n m] R[h n m] -> h n m",
    ])  # fmt: skip
    steps = {
        "S": "Q[n h d] K[m h d] -> h n m",
        "R": draw.choice(["x[n f] x[m f] b[m h] -> h n m", "0.25 * Q[n h d] K[m h d] b[m h] - b[m h] -> h n m"]),
        "T": "R[h n m] + 2 * S[h n m] -> h n m" if "S[" not in of else "R[h n m] - b[n h] b[m h] -> h n m",
    }
    before = {"b": "K[m h d] K[m h d] -> m h"} | steps
    more = {"weights": {"B": "h", "C": "h h2"}, "legs": {"h2": "head h", "f": "head 2"}}
    return attention(draw, of=of, before=before, **more)


def sides(draw: Draw) -> Diagram:
    """Several factors of the keys, or of the queries, in products with others and alone."""
    of = draw.choice([
        "t[m h] Q[n h d] K[m h d] -> h n m",
        "0.5 * t[n h] Q[n h d] K[m h d] t[n h] - B[h] t[m h] -> h n m",
        "Q[n h d] K[m h d] - 0.5 * C[h d] K[m h d] K[m h d] -> h n m",
        "2 * C[h d] Q[n h d] K[m h d] t[m h] + K[m h d] K[m h d] -> h n m",
        "t[m g] Q[n h d] t[n g] K[m h d] C[h d] -> h n m",
    ])  # fmt: skip
    kind = "g" if "g]" in of else "h"
    before = {"t": {"map": "softplus", "of": f"x[n f] Wt[f {kind}] -> n {kind}"}}
    return attention(draw, of=of, before=before, weights={"Wt": f"f {kind}", "B": "h", "C": "h d"})


def by_side(draw: Draw) -> Diagram:
    """Scores of several products, and terms of keys alone: places learned, or sums that grow with the length."""
    of = draw.choice([
        "Q[n h d] K[m h d] + b[m h] -> h n m",
        "Q[n h d] K[m h d] + B[h] b[m h] - R[m h] -> h n m",
        "Q[n h d] K[m h d] - 0.5 * x[n f] x[m f] -> h n m",
        "2 * Q[n h d] K[m h d] + s[h m] - s[h n] -> h n m",
        "2 * Q[n h d] K[m h d] - 0.5 * x[n f] x[m f] + B[h] s[h m] - B[h] s[h n] + b[m h] -> h n m",
    ])  # fmt: skip
    before = {"b": "K[m h d] K[m h d] -> m h", "s": {"sum": "m", "mask": ["causal"], "of": "b[n h] b[m h] -> h n m"}}
    legs = {"m": "key 9"} if "R[" in of else {}
    return attention(draw, of=of, before=before, weights={"B": "h", "R": "m h"}, legs=legs)


def distances(draw: Draw) -> Diagram:
    """Distances in the scores, and where they are causal their sizes."""
    of = draw.choice([
        "Q[n h d] K[m h d] - B[h] gap[n m] -> h n m",
        "Q[n h d] K[m h d] - 0.5 * gap[n m] + b[m h] -> h n m",
        "Q[n h d] K[m h d] - B[h] far[n m] -> h n m",
    ])  # fmt: skip
    before = {"b": "K[m h d] K[m h d] -> m h", "far": {"map": "abs", "of": "gap"}}
    return attention(draw, of=of, before=before, weights={"B": "h"}, causal=True, **constants(gap="n m: distance"))


def latent(draw: Draw) -> Diagram:
    """Keys and values of one latent, or of one each, with other factors on the key leg and heads of their own."""
    before = {"c": "x[m f] Wc[f g] -> m g"}
    key = draw.choice(
        ["c[m g] Wk[g h d] -> m h d", "c[m g] b[m h] Wk[g h d] -> m h d", "2 * Wk[g h d] c[m g] -> d m h"]
    )
    value = draw.choice(["c[m g] Wv[g h e] -> m h e", "x[m f] Wv[f h e] -> m h e", "b[m h] c[m g] Wv[g h e] -> e h m"])
    before |= {"b": "x[m f] Wb[f h] -> m h", "K": key, "V": value}
    of = draw.choice(["{Q} {K} -> h n m", "0.5 * C[h d d2] {Q2} {K} - u[n h] -> h n m"])
    names = {"Q": "Q[n h d]", "K": f"K[{key.partition('> ')[2]}]", "Q2": "Q[n h d2]"}
    read = f"A[h n m] V[{value.partition('> ')[2]}] Wo[h e f] -> n f"
    weights = {"Wc": "f g", "Wb": "f h", "Wk": "g h d", "C": "h d d2", "Wu": "f h"}
    weights["Wv"] = "g h e" if "c[" in value else "f h e"
    before |= {"u": "x[n f] Wu[f h] -> n h"}
    return first(
        "bcu", attention(draw, of=of.format(**names), before=before, read=read, weights=weights, legs={"d2": "d"})
    )


def tables(draw: Draw) -> Diagram:
    """Products of queries, of keys or of weights with a table of relative positions, shifted to keys or to queries."""
    to, legs, of = draw.choice([
        ("m", "n m h d", "E"), ("n", "m n h d", "E"), ("m", "h d n m", "E[p h d] Q[n h d] -> h d n p"),
        ("n", "m n d h", "K[m h d] E[p h d] -> m p d h"), ("m", "n m e h d", "E[p h d] C[e h] -> p e h d"),
    ])  # fmt: skip
    scores = "Q[n h d] K[m h d] - D Q[n h d] b[m e] -> h n m" if "e" in legs else draw.choice([
        "Q[n h d] K[m h d] - 0.5 * K[m h d] D -> h n m",
        "D Q[n h d] + Q[n h d] K[m h d] -> h n m",
        "Q[n h d] K[m h d] + C[e h] D Q[n h d] b[m e] -> h n m",
        "Q[n h d] K[m h d] + u[h d] D -> h n m",
    ])  # fmt: skip
    before = {"b": "x[m f] Wb[f e] -> m e", "D": {"rel_shift": "p", "to": to, "of": of}}
    weights = {"E": "p h d", "C": "e h", "u": "h d", "Wb": "f e"}
    scores = scores.replace("D", f"D[{legs}]")
    return attention(draw, of=scores, before=before, weights=weights, legs={"p": "relative 2", "e": "head 2"})


def plain(draw: Draw) -> Diagram:
    return attention(draw)


def relus(draw: Draw) -> Diagram:
    """Scores of h through a relu for each of c mixtures, summed by a box or by a product."""
    part = {"map": "relu", "of": "2 * P[h c] Q[n h d] K[m h d] -> h c n m"}
    summed = {"L": {"sum": "h", "of": part}} if draw.random() < 0.5 else {"Z": part, "L": "B[h] Z[h c n m] -> c n m"}
    weights = {"P": "h c", "R": "h c", "B": "h"}
    legs = {"c": f"head {draw.choice([3, 4])}"}
    return attention(draw, before=summed, of="R[h c] L[c n m] -> h n m", weights=weights, legs=legs)


def masked_relus(draw: Draw) -> Diagram:
    """A relu with a weight of the keys, summed over those that a query sees: with causality no product is that sum."""
    part = {"map": "relu", "of": "P[m c] Q[n h d] K[m h d] -> h c n m"}
    return attention(
        draw,
        before={"L": {"sum": "m", "of": part}},
        read="L[h c n] U[h c f] -> n f",
        weights={"P": "m c", "U": "h c f"},
        legs={"n": "query 8", "m": "key 8", "c": f"head {draw.choice([3, 4])}"},
    )


def followed(draw: Draw) -> Diagram:
    """Scores that a state follows as well."""
    return attention(
        draw,
        before={"L": "Q[n h d] K[m h d] -> h n m"},
        of="L[h n m]",
        after={"share": {"softmax": "h", "of": "L[h n m]"}, "seen": {"mean": "n", "of": {"mean": "m", "of": "share"}}},
        state={"s": {"legs": "h", "init": "ones", "update": "seen"}},
    )


def shared_scores(draw: Draw) -> Diagram:
    """One score that several maps read, or a map and something else."""
    other = draw.choice([
        ({"B": {"normalize": "m", "of": {"map": "exp", "of": "L[h n m]"}}}, "B[h n m] V[m h e]"),
        ({"B": {"softmax": "m", "mask": ["window(1, 0)"], "of": "L[h n m]"}}, "B[h n m] V[m h e]"),
        ({"B": {"keep": "m", "of": "L[h n m]"}}, "b[h] B[h n m] V[m h e]"),
        ({"B": {"logsumexp": "m", "of": "L"}}, "A[h n m] V[m h e] B[h n]"),
        ({"B": {"mean": "m", "of": "L"}}, "V[n h e] B[h n]"),
    ])  # fmt: skip
    steps, read = other
    own = {"L": "Q[n h d] K[m h d] -> h n m"}
    read = f"A[h n m] V[m h e] Wo[h e f] + {read} Wo[h e f] -> n f"
    return attention(draw, before=own, of="L[h n m]", after=steps, read=read, weights={"b": "h"})


KINDS: dict[str, tuple[Callable[[Draw], Diagram], ...]] = {
    "another name": (renamed,),
    "identical steps": (twice, two_maps),
    "mask of all": (in_documents,),
    "identity": (eye,),
    "own names": (mixed_back, mixed_scores),
    "relu of a weight": (relus, masked_relus),
    "split": (kron, kron_shifted),
    "one map for all": (kron, uniform, spread, counted, turned),
    "weights first": (low_rank,),
    "mixed map into its reader": (mixed,),
    "values side by side": (mixed,),
    "distribution": (blend,),
    "common factor": (shared,),
    "scores in one sum": (in_steps,),
    "distance in two": (distances,),
    "joint keys": (mixture,),
    "constant dropped": (own_norm,),
    "one side first": (sides,),
    "core into the query": (core,),
    "sum before the product": (shared,),
    "features side by side": (by_side,),
    "state apart": (followed,),
    "duplicated scores": (shared_scores,),
    "shift after the product": (tables,),
    "absorbed key": (plain, latent, core, mixture),
    "absorbed value": (plain, latent, mixed),
    "chain of projections": (latent, ranks),
}
