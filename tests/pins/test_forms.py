"""Every reduction over the key leg is as pinned: an attention, a recurrence, or general for a reason that is told."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import tensornet_attn as ta
from tensornet_attn.graph import Graph, build
from tensornet_attn.graph.attention import Attention, MapReader, ScoreTerm
from tensornet_attn.graph.recurrence import Recurrence, erases, linear
from tests.decay_designs import DECAYS
from tests.forms import randoms, reductions
from tests.pins.pinned import Pinned, joined
from tests.shipped import graph_of

WORDS = {
    "SoftmaxOfScores": "softmax",
    "NormalizedScores": "normalize",
    "UnnormalizedScores": "masked",
    "MappedScores": "map",
    "OpaqueScores": "given",
}
HEAD: dict[str, Any] = {"tensornet": 1, "output": "y", "inputs": {"x": "m f"}}
LEGS = {"n": "query", "m": "key", "f": 4, "h": "head 2", "d": 3}
QKV = {"Q": "x[n f] Wq[f h d] -> n h d", "K": "x[m f] Wk[f h d] -> m h d", "V": "x[m f] Wv[f h d] -> m h d"}
WEIGHTS = {"Wq": "f h d", "Wk": "f h d", "Wv": "f h d"}
OTHERS: dict[str, dict[str, Any]] = {  # what people write today for what the language has no word for yet
    "an overflow that is hidden": HEAD
    | {
        "name": "overflow",
        "causal": True,
        "legs": {"n": "query", "m": "key", "a": "head 4"},
        "inputs": {"x": "m a", "g": "m a"},
        "constants": {"one": {"legs": "n", "value": "ones"}},
        "diagram": {
            "c": {"sum": "m", "of": "g[m a] one[n] -> n m a"},
            "D": {"keep": "m", "of": {"map": "exp", "of": "c[n a] - c[m a] -> a n m"}},
            "z": "D[a n m] x[m a] -> n a",
            "y": "D[a n m] z[m a] -> n a",
        },
    },
    "a sink": HEAD
    | {
        "name": "sink",
        "legs": LEGS,
        "weights": WEIGHTS | {"b": "h"},
        "diagram": QKV
        | {
            "S": "Q[n h d] K[m h d] -> h n m",
            "A": {"softmax": "m", "of": "S"},
            "total": {"logsumexp": "m", "of": "S"},
            "share": {"map": "sigmoid", "of": "total[h n] - b[h] -> h n"},
            "y": "share[h n] A[h n m] V[m h d] -> n h d",
        },
    },
    "a softmax over the largest": HEAD
    | {
        "name": "largest",
        "legs": LEGS,
        "weights": WEIGHTS,
        "diagram": QKV
        | {
            "A": {"softmax": "m", "of": "Q[n h d] K[m h d] -> h n m"},
            "T": {"topk": "m", "k": 2, "of": "A"},
            "B": {"l1norm": "m", "of": "T"},
            "y": "B[h n m] V[m h d] -> n h d",
        },
    },
    "a delta rule with gates": HEAD
    | {
        "name": "gated_delta",
        "causal": True,
        "legs": LEGS,
        "weights": WEIGHTS | {"Wr": "f h"},
        "diagram": QKV
        | {
            "rate": {"map": "sigmoid", "of": "x[m f] Wr[f h] -> m h"},
            "y": {"delta_rule": "m", "query": "Q", "key": "K", "value": "V", "rate": "rate"},
        },
    },
}


def told(graph: Graph) -> list[str]:
    return joined((place, _words(form)) for place, form in reductions(graph))


def _words(form: Attention | Recurrence | str) -> str:
    if isinstance(form, str):
        return f"general: {form}"
    if isinstance(form, Recurrence):
        return f"recurrence, {_recurrence(form)}"
    first = linear(form)
    more = f"; as a recurrence, {_recurrence(first)}" if isinstance(first, Recurrence) else ""
    scores = " + ".join(map(_term, form.terms)) or _word(form.score)
    reader = form.reader()
    read = f"{reader.step.name} with {_names(reader.values)}" if isinstance(reader, MapReader) else reader
    return f"attention {form.box.name}, {_word(form.weighting)} of {scores}, read: {read}{more}"


def _word(structure: object) -> str:
    """The word in the pins for a class of `graph/attention.py`."""
    name = type(structure).__name__
    return WORDS.get(name, name.lower())


def _recurrence(form: Recurrence) -> str:
    parts = [" + ".join(map(_term, form.terms))]
    parts += [f"value {form.value.name}"] if form.value else []
    legs_by_role = {"heads": form.heads, "mixed": form.mixed, "own": form.value_legs}
    parts += [f"{role} {' '.join(legs)}" for role, legs in legs_by_role.items() if legs]
    parts += [f"decay {decay.box.name}" for decay in form.decays]
    operands = dict(form.box.box.operands) if form.box.box is not None else {}
    parts += [f"fades by {operands['decay'].name}"] if "decay" in operands else []
    return ", ".join([*parts, *(["erase"] if erases(form.box) else [])])


def _term(term: ScoreTerm) -> str:
    return f"({' | '.join(map(_names, (term.query, term.key, term.core, term.pairwise)))})"


def _names(uses: Any) -> str:
    return " ".join(use.name for use in uses)


def test_every_reduction_of_the_shipped_designs(pinned: Pinned) -> None:
    for name in ta.list_designs():
        pinned.check("forms.txt", name, told(graph_of(name)))


def test_every_reduction_of_what_others_wrote(pinned: Pinned) -> None:
    for name, design in (OTHERS | {name: design for name, (design, _) in DECAYS.items()}).items():
        pinned.check("forms.txt", f"others: {name}", told(build(ta.load(design))))


def test_every_reduction_of_random_designs(pinned: Pinned) -> None:
    """How often each form stands there, and each reason why there is none."""
    found = Counter[str]()
    for graph in randoms(300):
        for _, form in reductions(graph):
            found[re.sub(r"'\w[\w.]*'", "'_'", form) if isinstance(form, str) else type(form).__name__.lower()] += 1
    pinned.check("forms.txt", "random", [f"{count} {what}" for what, count in sorted(found.items())])
