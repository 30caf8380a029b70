"""What the hash counts and what it does not, one change of a design at a time."""

from __future__ import annotations

import pytest

import tensornet_attn as ta
from tensornet_attn.graph.canonical import graph_hash


def built(name):
    return ta.build(ta.load(name))


MHSA = ta.load("mhsa").as_dict()


def hashed(base=MHSA, **sections) -> str:
    """The hash of a design with some sections merged in; None removes a key."""
    data = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    for section, value in sections.items():
        if not isinstance(value, dict):
            data[section] = value
            continue
        merged = data.get(section, {}) | value
        data[section] = {key: item for key, item in merged.items() if item is not None}
    return graph_hash(ta.build(ta.load(data)))


SCORES = "Q[n h d] K[m h d] -> h n m"
A = {"softmax": "m", "scale": "d ** -0.5", "of": SCORES}
SAME = {
    "another name": {"name": "other", "about": "x", "source": "y"},
    "a step of its own": {"diagram": {"A": None, "y": None, "S": SCORES, "T": A | {"of": "S"},
                                      "z": "T[h n m] V[m h d] Wo[h d f] -> n f"}, "output": "z"},
    "a use instead of a name": {"diagram": {"A": None, "y": None, "S": SCORES, "T": A | {"of": "S[h n m]"},
                                            "z": "V[m h d] Wo[h d f] T[h n m] -> n f"}, "output": "z"},
    "no head": {"legs": {"d": "head 64"}},
    "sizes written otherwise": {"legs": {"h": "head 2 ** 3", "d": 64}},
    "a scale written otherwise": {"diagram": {"A": A | {"scale": "1 / sqrt(d)"}}},
    "a scale from a setting": {"settings": {"s": 0.125}, "diagram": {"A": A | {"scale": "s"}}},
    "a default written out": {"diagram": {"A": A | {"dropout": 0, "mask": []}}},
    "an initialiser written out": {"weights": {"Wq": {"legs": "f h d", "init": "xavier", "frozen": False}}},
    "a weight's legs in another order": {"weights": {"Wq": "d f h"}, "diagram": {"Q": "Wq[d f h] x[n f] -> h d n",
                                         "A": A | {"of": "Q[h d n] K[m h d] -> h n m"}}},
    "another name of an input": {"inputs": {"memory": None, "z": {"legs": "m f", "default": "x"}}, "diagram": {
        "K": "z[m f] Wk[f h d] -> m h d", "V": "z[m f] Wv[f h d] -> m h d"}},
    "a coefficient of 1": {"diagram": {"Q": "1 * x[n f] Wq[f h d] -> n h d"}},
    "a leg of its own for the values": {"legs": {"e": "d"}, "weights": {"Wv": "f h e", "Wo": "h e f"},
        "diagram": {"V": "memory[m f] Wv[f h e] -> m h e", "y": "A[h n m] V[m h e] Wo[h e f] -> n f"}},
}  # fmt: skip


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_same(change):
    assert hashed(**change) == graph_hash(built("mhsa"))


def of(**change):
    return {"diagram": {"A": A | change}}


DIFFERENT = {
    "a size": {"legs": {"f": 256}},
    "a split": {"legs": {"h": "head 4"}},
    "a maximum": {"legs": {"m": "key 256"}},
    "a scale": of(scale="d ** -0.6"),
    "a scale by the length": of(scale="m ** -0.5"),
    "a scale by the queries": of(scale="n ** -0.5"),
    "dropout": of(dropout=0.1),
    "a mask": of(mask=["causal"]),
    "a band": of(mask=["band(2)"]),
    "a wider band": of(mask=["band(3)"]),
    "a window": of(mask=["window(3, 0)"]),
    "a window the other way": of(mask=["window(0, 3)"]),
    "another box": {"diagram": {"A": {"normalize": "m", "of": SCORES}}},
    "another eps": {"diagram": {"A": {"normalize": "m", "eps": 1e-6, "of": SCORES}}},
    "keys seen by queries": of(softmax="h"),
    "an initialiser": {"weights": {"Wq": {"legs": "f h d", "init": "normal(0.1)"}}},
    "another initialiser": {"weights": {"Wq": {"legs": "f h d", "init": "normal(0.2)"}}},
    "the initialiser of another weight": {"weights": {"Wv": {"legs": "f h d", "init": "normal(0.1)"}}},
    "frozen": {"weights": {"Wq": {"legs": "f h d", "frozen": True}}},
    "one weight for queries and keys": {"weights": {"Wk": None}, "diagram": {"K": "memory[m f] Wq[f h d] -> m h d"}},
    "one weight for keys and values": {"weights": {"Wv": None}, "diagram": {"V": "memory[m f] Wk[f h d] -> m h d"}},
    "a coefficient": {"diagram": {"Q": "2 * x[n f] Wq[f h d] -> n h d"}},
    "a sign": {"diagram": {"Q": "- x[n f] Wq[f h d] -> n h d"}},
    "a term": {"diagram": {"Q": "x[n f] Wq[f h d] + x[n f] Wq[f h d] -> n h d"}},
    "one input": {"inputs": {"memory": None}, "diagram": {"K": "x[m f] Wk[f h d] -> m h d",
                                                          "V": "x[m f] Wv[f h d] -> m h d"}},
    "keys alone from the second input": {"diagram": {"V": "x[m f] Wv[f h d] -> m h d"}},
    "no default": {"inputs": {"memory": "m f"}},
    "a third input": {"inputs": {"z": "m f"}, "diagram": {"K": "z[m f] Wk[f h d] -> m h d"}},
    "another default": {"inputs": {"z": {"legs": "m f", "default": "x"}},
                        "diagram": {"K": "z[m f] Wk[f h d] -> m h d"}},
    "the inputs' legs": {"inputs": {"x": "f n", "memory": {"legs": "f m", "default": "x"}}, "diagram": {
        "Q": "x[f n] Wq[f h d] -> n h d", "K": "memory[f m] Wk[f h d] -> m h d",
        "V": "memory[f m] Wv[f h d] -> m h d"}},
    "the output's legs": {"diagram": {"y": "A[h n m] V[m h d] Wo[h d f] -> f n"}},
    "a broadcast bias": {"weights": {"b": "h"}, "diagram": {"Q": "x[n f] Wq[f h d] + b[h] -> n h d"}},
    "a bias on the width": {"weights": {"b": "d"}, "diagram": {"Q": "x[n f] Wq[f h d] + b[d] -> n h d"}},
}  # fmt: skip


def test_different():
    hashes = {name: hashed(**change) for name, change in DIFFERENT.items()} | {"as it is": graph_hash(built("mhsa"))}
    assert len(set(hashes.values())) == len(hashes), sorted(hashes.items(), key=lambda item: item[1])


def core(legs, product, **sections):
    """A small design around one product of weights."""
    base = {
        "tensornet": 1, "name": "core", "legs": {"n": "query", "f": 4} | legs, "inputs": {"x": "n f"},
        "diagram": {"y": f"x[n f] {product} -> n f"}, "output": "y",
    }  # fmt: skip
    return hashed(base, **sections)


def test_which_leg_is_glued_to_which():
    legs = dict.fromkeys("abcd", "head 3")

    def product(factors, names="UVWX"):
        return core(legs, factors, weights=dict.fromkeys(names, "a b"))

    parallel = product("U[a b] V[a b] W[c d] X[c d]")
    assert parallel == product("X[a b] W[a b] V[c d] U[c d]")
    assert parallel == product("U[a b] V[b a] W[c d] X[c d]")  # a diagram does not order the legs of V
    assert parallel != product("U[a b] V[b c] W[c d] X[d a]")
    assert product("U[a b] U[a b] W[c d] W[c d]", "UW") != product("U[a b] U[b a] W[c d] W[c d]", "UW")


def ring(groups, one_weight):
    edges = [(a, b) for group in groups for a, b in zip(group, group[1:] + group[:1], strict=True)]
    names = ["W" if one_weight else f"W{i}" for i, _ in enumerate(edges)]
    legs = {"n": "query", "w": 4} | dict.fromkeys("abcdef", "head 3")
    base = {
        "tensornet": 1, "name": "ring", "legs": legs, "inputs": {"x": "n w"},
        "weights": dict.fromkeys(names, "a b"), "output": "y",
        "diagram": {"y": f"x[n w] {' '.join(f'{w}[{a} {b}]' for w, (a, b) in zip(names, edges, strict=True))} -> n w"},
    }  # fmt: skip
    return hashed(base)


@pytest.mark.parametrize("one_weight", [False, True])
def test_a_ring_of_six_is_not_two_rings_of_three(one_weight):
    six, threes = ring(["abcdef"], one_weight), ring(["abc", "def"], one_weight)
    assert six != threes
    assert six == ring(["fadceb"], one_weight)
    assert threes == ring(["fdb", "eca"], one_weight)


def test_noise_state_and_values():
    def fish(**noise):
        data = ta.load("fish").as_dict()
        return hashed(data, noise={"eps": {"legs": "h n m"} | noise})

    assert fish() == fish(std="0.5 + 0.5", always=False) == graph_hash(built("fish"))
    assert len({fish(), fish(std=2), fish(always=True), fish(std=0.1)}) == 4
    state = ta.load("mgk_em").as_dict()
    pi = {"legs": "h r", "update": "prior"}
    assert hashed(state, state={"pi": pi | {"init": "full(0.25 * 2)"}}) == graph_hash(built("mgk_em"))
    assert hashed(state, state={"pi": pi | {"init": "ones"}}) == hashed(state, state={"pi": pi | {"init": "full(1)"}})
    assert hashed(state, state={"pi": pi | {"init": "ones"}}) != graph_hash(built("mgk_em"))


def test_values_by_leg():
    data = ta.load("mhsa_core").as_dict()
    kron = "kron(eye({}), ones({}, {}))".format
    assert hashed(data, constants={"C": {"legs": "r s", "value": kron("f // d", 64, "d")}}) == graph_hash(
        built("mhsa_core")
    )
    assert hashed(data, constants={"C": {"legs": "r s", "value": kron(16, 32, 32)}}) != graph_hash(built("mhsa_core"))
    wide = {"legs": {"r": "head 6", "s": "head 4"}}
    one = hashed(data, **wide, constants={"C": {"legs": "r s", "value": kron(2, 3, 2)}})
    turned = {"A": data["diagram"]["A"] | {"of": "C[s r] Q[n s] K[m s] -> r n m"}}
    assert one == hashed(data, **wide, constants={"C": {"legs": "s r", "value": kron(2, 2, 3)}}, diagram=turned)


def test_causal_is_counted_by_what_it_does():
    causal = graph_hash(ta.build(ta.load("mhsa"), causal=True))
    assert causal == hashed(causal=True) == hashed(**of(mask=["causal", "causal"])) != hashed()
    assert hashed(**of(mask=["causal", "band(2)"])) == hashed(**of(mask=["band(4 // 2)", "causal"]))
    mlp = ta.load("mlp")
    assert graph_hash(ta.build(mlp, causal=True)) == graph_hash(ta.build(mlp))


LENGTHS = [
    ("(2 * n + n) / sqrt(m * 4)", "1.5 * n * m ** -0.5"),
    ("1 / (n * m)", "m ** -1 / n"),
    ("log(n + 1) - 1", "log(1 + n) + (2 - 3)"),
    ("min(n, m, n)", "min(m, n)"),
    ("(n + m) * (n + d)", "(64 + n) * (m + n)"),
    ("n // 2", "n // (8 / 4)"),
    ("n - n + 3", "3"),
]


@pytest.mark.parametrize(("one", "other"), LENGTHS)
def test_lengths_in_a_scale(one, other):
    assert hashed(**of(scale=one)) == hashed(**of(scale=other))


def test_lengths_that_differ():
    scales = (
        "n; m; n + m; n * m; n / m; m / n; n ** m; m ** n; n // 2; 2 // n; -n; exp(n); log(n); n - 5; (n - 5) ** 2; "
    )
    scales += "((n - 5) ** 2) ** 0.5; (n + 1) * (n + 2); min(n, 2); max(n, 2)"
    assert len({hashed(**of(scale=scale)) for scale in scales.split("; ")}) == 19
