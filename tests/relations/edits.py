"""Random edits of a design: what its author could have written in its place. Each edit either fits or raises Unfit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import tensornet_attn as ta
from tensornet_attn.ops.maps import MAPS as ELEMENTWISE
from tests.random_layer import MASKS
from tests.random_names import MAPS
from tests.relations.text import (
    USE,
    Data,
    Slot,
    fresh,
    legs_of,
    legs_of_kind,
    normal_form,
    pruned,
    sized_legs,
    slots,
    sum_of,
)

Edit = Callable[[Data, random.Random], None]
MASKED = "softmax normalize keep sum mean max logsumexp cumsum reverse_cumsum".split()
KEPT_KEYS = ("softmax", "mask", "of")  # of a softmax whose logarithm is taken
NAN_SLOPES = [name for name, row in ELEMENTWISE.items() if row.nan_slope]
MORE_MASKS = ("prefix(2)", "block_causal(2)", "not causal", "window(-1, 2)", "causal(-1)", "global(1)")


class Unfit(Exception):
    """The design has no place for this edit."""


def choose(draw: random.Random, items: Any) -> Any:
    items = list(items)
    if not items:
        raise Unfit
    return draw.choice(items)


def leg_of(data: Data, kind: str) -> str:
    return (legs_of_kind(data, kind) or [""])[0]


def boxes(data: Data, kinds: Any, leg: str = "") -> list[Slot]:
    """The boxes of these kinds, along a leg if it is given."""
    found = [slot for slot in slots(data) if isinstance(slot.value, dict)]
    kind_of = [(slot, next(iter(slot.value.items()))) for slot in found]
    return [slot for slot, (kind, along) in kind_of if kind in kinds and (not leg or along == leg)]


def steps_with(data: Data, *wanted: str, without: str = "") -> list[tuple[str, list[str]]]:
    """Steps and inputs that have these legs and lack another, each with its legs."""
    legs = {name: legs_of(data, value) for name, value in data["diagram"].items()}
    legs |= {name: value["legs"] for name, value in data["inputs"].items()}
    return [(name, own) for name, own in legs.items() if own and {*wanted} <= {*own} and without not in own]


def joint_legs(data: Data, draw: random.Random) -> None:
    """A softmax or a norm runs along one more leg."""
    slot = choose(draw, boxes(data, ("softmax", "rmsnorm", "layernorm", "l1norm", "l2norm", "topk")))
    kind, along = next(iter(slot.value.items()))
    along = [along] if isinstance(along, str) else along
    legs = legs_of(data, slot.value["of"]) or []
    slot.value[kind] = [choose(draw, (leg for leg in legs if leg in sized_legs(data) and leg not in along)), *along]


def summed_leg(data: Data, draw: random.Random) -> None:
    """A product sums over a leg that it had, and its readers lack the leg."""
    names = [name for name, value in data["diagram"].items() if isinstance(value, str) and "->" in value]
    name = choose(draw, names)
    expression = sum_of(data["diagram"][name])
    leg = choose(draw, (leg for leg in expression.legs if leg in sized_legs(data)))
    at = expression.legs.index(leg)
    data["diagram"][name] = str(expression._replace(legs=[own for own in expression.legs if own != leg]))

    def shorter(match: Any) -> str:
        legs = match[2].split()
        kept = [own for place, own in enumerate(legs) if place != at or match[1] != name]
        return f"{match[1]}[{' '.join(kept)}]"

    for slot in slots(data):
        if isinstance(slot.value, str):
            slot.holder[slot.key] = USE.sub(shorter, slot.value)


def masked(data: Data, draw: random.Random) -> None:
    """Another mask, on any box that takes one."""
    slot = choose(draw, boxes(data, MASKED, leg_of(data, "key")))
    mask = draw.choice([*MASKS, *MORE_MASKS])
    slot.value.pop("mask", None)
    if mask is not None:
        slot.value["mask"] = mask


def other_weights(data: Data, draw: random.Random) -> None:
    """Other weights of the keys: softmax, normalised or masked scores."""
    key = leg_of(data, "key")
    slot = choose(draw, boxes(data, ("softmax", "normalize", "keep"), key))
    box, kind = slot.value, draw.choice(["softmax", "normalize", "keep"])
    of = {"map": "softplus", "of": box["of"]} if kind == "normalize" else box["of"]
    slot.holder[slot.key] = {kind: key, **({"mask": box["mask"]} if "mask" in box else {}), "of": of}


def sink(data: Data, draw: random.Random) -> None:
    """One more score in the rows of a softmax: a number, or a weight."""
    slot = choose(draw, boxes(data, ("softmax",)))
    along = next(iter(slot.value.values()))
    legs = legs_of(data, slot.value["of"]) or []
    slot.value["sink"] = draw.choice([0, 0.5])
    wide = [leg for leg in legs if leg in sized_legs(data) and leg not in along]
    if wide and draw.random() < 0.6:
        slot.value["sink"] = f"{weight(data, [draw.choice(wide)])}"


def weight(data: Data, legs: list[str], init: str = "normal(0.5)") -> str:
    """A new weight as a use."""
    name = fresh(data, "w")
    data.setdefault("weights", {})[name] = {"legs": legs, "init": init}
    return f"{name}[{' '.join(legs)}]"


def wrapped(data: Data, draw: random.Random) -> None:
    """A box around a value."""
    slot = choose(draw, slots(data))
    legs = legs_of(data, slot.value)
    if slot.key in ("positions", "decay") or legs is None:
        raise Unfit
    slot.holder[slot.key] = around(data, draw, legs, slot.value)


def around(data: Data, draw: random.Random, legs: list[str], of: Any) -> Data:
    query, key = leg_of(data, "query"), leg_of(data, "key")
    sized = [leg for leg in legs if leg in sized_legs(data)]
    kinds = ["map", "dropout", *(["norm", "softmax", "topk", "groups"] if sized else [])]
    kinds += ["rope"] * bool(sized and {query, key} & {*legs}) + ["cumsum", "keep"] * ({query, key} <= {*legs})
    kind = draw.choice(kinds)
    if kind == "norm":
        return {draw.choice(["rmsnorm", "layernorm", "l1norm", "l2norm"]): draw.choice(sized), "eps": 0.1, "of": of}
    if kind == "topk":
        return {"topk": draw.choice([*sized, *[key] * (key in legs)]), "k": draw.choice([1, 2]), "of": of}
    return {
        "map": {"map": draw.choice(MAPS), "of": of},
        "dropout": {"dropout": 0, "of": of},
        "softmax": {"softmax": draw.choice(sized or [""]), "of": of},
        "groups": {"groupnorm": draw.choice(sized or [""]), "groups": draw.choice([1, 2]), "of": of},
        "rope": {
            "rope": draw.choice([leg for leg in (query, key) if leg in legs] or [""]),
            "along": draw.choice(sized or [""]),
            "of": of,
        },
        "cumsum": {draw.choice(["cumsum", "reverse_cumsum"]): key, "of": of},
        "keep": {"keep": key, "mask": draw.choice(["causal", "band(1)"]), "of": of},
    }[kind]


def convolved(data: Data, draw: random.Random) -> None:
    """A convolution of a step, along one sequence leg or along both."""
    query, key = leg_of(data, "query"), leg_of(data, "key")
    both = steps_with(data, query, key) if key else []
    name, legs = choose(draw, [*steps_with(data, query, without=key), *steps_with(data, key, without=query), *both])
    if name not in data["diagram"] or not key:
        raise Unfit
    before, steps = fresh(data, "before"), data["diagram"]
    pair, taps = {query, key} <= {*legs}, [fresh(data, "tap"), fresh(data, "other_tap")]
    taps = taps if pair else taps[:1]
    data["legs"] |= dict.fromkeys(taps, 2)
    sized = [leg for leg in legs if leg in sized_legs(data)]
    use = f"{before}[{' '.join(legs)}] {weight(data, [*taps, *sized])} -> {' '.join([*legs, *taps])}"
    along: Any = [query, key] if pair else next(leg for leg in legs if leg in (query, key))
    box = {"conv": along, "width": taps if pair else taps[0], "of": use}
    data["diagram"] = {}
    for step, value in steps.items():
        data["diagram"] |= {before: value, name: box} if step == name else {step: value}


def own_memory(data: Data, draw: random.Random) -> None:
    """Keys and values of an input of their own."""
    query, key = leg_of(data, "query"), leg_of(data, "key")
    name, value = choose(draw, ((name, value) for name, value in data["inputs"].items() if query in value["legs"]))
    at, memory, reads = value["legs"].index(query), fresh(data, "memory"), 0

    def moved(match: Any) -> str:
        nonlocal reads
        moves = match[1] == name and key in match[2].split()[at : at + 1]
        reads += moves
        return f"{memory}[{match[2]}]" if moves else match[0]

    for slot in slots(data):
        if isinstance(slot.value, str):
            slot.holder[slot.key] = USE.sub(moved, slot.value)
    if not reads:
        raise Unfit
    data["inputs"][memory] = {"legs": [key if leg == query else leg for leg in value["legs"]]}


def noisy(data: Data, draw: random.Random) -> None:
    """Noise in a sum."""
    slot = choose(draw, (slot for slot in slots(data) if "->" in str(slot.value) and isinstance(slot.value, str)))
    expression, name = sum_of(slot.value), fresh(data, "noise")
    data.setdefault("noise", {})[name] = {"legs": expression.legs, "std": 0.5}
    expression.terms.append(f"+ {name}[{' '.join(expression.legs)}]")
    slot.holder[slot.key] = str(expression)


def mean(data: Data, name: str, legs: list[str]) -> str:
    """A new step: the mean of another over all of its legs."""
    value: Any = f"{name}[{' '.join(legs)}]"
    for leg in legs:
        value = {"mean": leg, "of": value}
    step = fresh(data, "mean")
    data["diagram"][step] = value
    return step


def loss(data: Data, draw: random.Random) -> None:
    """The mean of a step is a loss."""
    name, legs = choose(draw, steps_with(data))
    data.setdefault("losses", {})[mean(data, name, legs)] = 0.1


def beside(data: Data, scalar: str) -> None:
    """Adds a scalar step to the output."""
    legs = legs_of(data, data["output"])
    if legs is None or data["output"] not in data["diagram"]:
        raise Unfit
    last = fresh(data, "last")
    data["diagram"][last] = f"{data['output']}[{' '.join(legs)}] + {scalar}[] -> {' '.join(legs)}"
    data["output"] = last


def second_reader(data: Data, draw: random.Random) -> None:
    """The mean of a step is added to the output."""
    beside(data, mean(data, *choose(draw, steps_with(data))))


def over_keys(data: Data, draw: random.Random) -> None:
    """A product sums over the keys, without a box."""
    query, key = leg_of(data, "query"), leg_of(data, "key")
    rows = steps_with(data, key, without=query) if key else []
    (one, legs), (other, more) = choose(draw, rows), choose(draw, rows)
    kept = list(dict.fromkeys(leg for leg in (*legs, *more) if leg != key))
    step = fresh(data, "summed")
    data["diagram"][step] = f"{one}[{' '.join(legs)}] {other}[{' '.join(more)}] -> {' '.join(kept)}"
    beside(data, mean(data, step, kept))


def state(data: Data, draw: random.Random) -> None:
    """A state, updated by the mean of a step and added to the output."""
    step = mean(data, *choose(draw, steps_with(data)))
    name = fresh(data, "state")
    data.setdefault("state", {})[name] = {"legs": [], "init": "ones", "update": step}
    beside(data, name)


def causal(data: Data, draw: random.Random) -> None:
    data["causal"] = not data.get("causal", False)


def logarithm(data: Data, draw: random.Random) -> None:
    """The logarithm of the sum of a softmax over the keys is the output, or its sigmoid is added to that."""
    box = choose(draw, boxes(data, ("softmax",), leg_of(data, "key"))).value
    legs = [leg for leg in legs_of(data, box["of"]) or [] if leg != box["softmax"]]
    if leg_of(data, "query") not in legs:
        raise Unfit
    name = fresh(data, "logarithm")
    data["diagram"][name] = {"logsumexp" if key == "softmax" else key: box[key] for key in box if key in KEPT_KEYS}
    if draw.random() < 0.5:
        data["output"] = name
        return
    share = fresh(data, "share")
    data["diagram"][share] = {"map": "sigmoid", "of": f"{name}[{' '.join(legs)}]"}
    beside(data, mean(data, share, legs))


def times_rows(data: Data, draw: random.Random, plain: bool) -> list[str]:
    """A product of rows multiplies a masked map where it is read; if not `plain`, also its map, or what is kept of it.

    Returns the names of its inputs.
    """
    query, key, steps = leg_of(data, "query"), leg_of(data, "key"), data["diagram"]
    maps = [slot for slot in boxes(data, ("softmax", "normalize", "keep"), key) if slot.holder is steps]
    name = choose(draw, (slot.key for slot in maps))
    legs = legs_of(data, steps[name]) or []
    if not {query, key} <= {*legs}:
        raise Unfit
    own_keys = any(key in value["legs"] for value in data["inputs"].values())
    rows, scores, product = fresh(data, "rows"), fresh(data, "scores"), fresh(data, "product")
    keys = fresh(data, "keys") if own_keys else rows
    of: Any = f"{rows}[{query}] {keys}[{key}] -> {query} {key}"
    of = {"map": draw.choice(NAN_SLOPES), "of": of} if draw.random() < 0.6 and not plain else of
    of = {"keep": key, "of": of} if draw.random() < 0.5 and not plain else of
    data["inputs"] |= {rows: {"legs": [query]}} | ({keys: {"legs": [key]}} if own_keys else {})
    for slot in slots(data):
        if isinstance(slot.value, str):
            slot.holder[slot.key] = USE.sub(
                lambda use: f"{product}[{use[2]}]" if use[1] == name else use[0], slot.value
            )
    data["diagram"] = {}
    for step, value in steps.items():
        data["diagram"][step] = value
        if step == name:
            data["diagram"][scores] = of
            data["diagram"][product] = f"{name}[{' '.join(legs)}] {scores}[{query} {key}] -> {' '.join(legs)}"
    return [rows, keys]


EDITS: dict[str, tuple[int, Edit]] = {
    "joint legs": (4, joint_legs),
    "a summed leg": (2, summed_leg),
    "a mask": (3, masked),
    "other weights": (1, other_weights),
    "a sink": (1, sink),
    "a box around a value": (3, wrapped),
    "a convolution": (2, convolved),
    "keys of their own": (3, own_memory),
    "noise": (1, noisy),
    "a loss": (1, loss),
    "a second reader": (2, second_reader),
    "a product over keys": (3, over_keys),
    "a state": (1, state),
    "causality": (1, causal),
}


def edited(data: Data, draw: random.Random) -> tuple[Data, str]:
    """The design after one edit that the checker accepts, and what it is; the design itself if none of six fits."""
    for _ in range(6):
        (name,) = draw.choices([*EDITS], [weight for weight, _ in EDITS.values()])
        changed = normal_form(data)
        try:
            EDITS[name][1](changed, draw)
        except Unfit:
            continue
        changed = pruned(changed)
        if valid(changed):
            return changed, name
    return data, ""


def valid(data: Data) -> bool:
    return not any(problem.severity == "error" for problem in ta.check(data))
