"""Proposals: functions of space, seed and number; within bounds; mutants and children; what an empty space says."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.search import (
    Choice,
    Proposal,
    as_data,
    built,
    cross,
    from_data,
    load,
    mutate,
    propose,
    seeds,
    to_text,
)
from tests.refusals import refusal
from tests.search.tiny import agrees

SPACE: dict[str, Any] = {
    "space": 1,
    "name": "small",
    "base": ["mhsa", "gqa", "linear", "mla"],
    "legs": {"f": 16, "h": [2, 4], "c": 8},
    "alternatives": {"K": {"normed": {"step": {"rmsnorm": "d", "of": "x[m f] Wk[f h d] -> m h d"}}}},
    "moves": {
        "share": {"g": [1, 2, 4]},
        "group": {"g": [1, 2]},
        "core": {"c": [1, 2]},
        "mixture": {"r": 2},
        "experts": {"e": [2, 3], "k": 1},
        "gate": {"k": 1},
        "mix": {"e": [2, 3]},
        "kernel": None,
        "split": {"band": 3},
        "latent": {"c": [2, 4]},
        "delta": None,
    },
    "most": 3,
    "bounds": {"n": 16, "macs": 400_000},
}


def test_a_proposal_is_a_function_of_seed_and_number() -> None:
    space = load(SPACE)
    first = [propose(space, 3, number) for number in range(6)]
    again = [propose(load(SPACE), 3, number) for number in reversed(range(6))]
    assert [p.as_dict() for p in first] == [p.as_dict() for p in reversed(again)]
    assert [p.hash for p in first] != [propose(space, 4, number).hash for number in range(6)]


SCRIPT = "from tensornet_attn.search import *; s = load({!r}); print(propose(s, 3, 5).as_dict())"


def test_another_process_proposes_the_same() -> None:
    command = [sys.executable, "-c", SCRIPT.format(SPACE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"})
    assert done.stdout == f"{propose(load(SPACE), 3, 5).as_dict()}\n"


def test_a_path_leads_to_its_proposal_again() -> None:
    space = load(SPACE)
    for number in range(12):
        proposal = propose(space, 0, number)
        found = built(space, proposal.path)
        assert isinstance(found, Proposal)
        assert found.as_dict() == proposal.as_dict()
        assert from_data(json.loads(json.dumps(as_data(proposal.path)))) == proposal.path
        assert ta.load(proposal.design.to_yaml()).hash == proposal.hash
        assert proposal.price.macs <= 400_000
        assert len([c for c in proposal.path if c.kind == "move"]) <= 3


def test_choices_without_a_place_drop_out() -> None:
    space = load(SPACE)
    path = (
        Choice("base", "linear"),
        Choice("leg", "c", 8),  # linear has no leg c
        Choice("leg", "f", 16),
        Choice("leg", "h", 4),
        Choice("alternative", "nowhere", "normed"),
        Choice("move", "kernel", at="A", options=(("map", "elu1"),)),  # it has one already
        Choice("move", "mix", at="A", options=(("e", 2),)),
        Choice("move", "mix", at="A", options=(("e", 3),)),  # once is enough
    )
    found = built(space, path)
    assert isinstance(found, Proposal)
    assert to_text(found.path) == "linear; f = 16; h = 4; mix(e=2) at A"
    assert (found.design.name, found.design.about) == ("linear_mix", "linear; f = 16; h = 4; mix(e=2) at A.")


def test_mutants_are_neighbours_and_children_have_both_parents_choices() -> None:
    space = load(SPACE)
    for number in range(8):
        one, two = propose(space, 0, number), propose(space, 0, number + 1)
        mutant, child = mutate(space, one.path, 1, number), cross(space, one.path, two.path, 1, number)
        assert mutant.path != one.path
        inherited = set(one.path) | set(two.path)
        assert {c for c in child.path if c not in inherited and c.kind not in ("leg", "setting")} == set()
        vary = [leg for leg in SPACE["legs"] if leg in space.bases[child.path[0].name]["legs"]]
        assert [choice.name for choice in child.path if choice.kind == "leg"] == vary  # all of them, in order
        assert mutant.as_dict() == mutate(space, one.path, 1, number).as_dict()
        assert child.as_dict() == cross(space, one.path, two.path, 1, number).as_dict()


def test_mutation_reaches_every_kind_of_choice() -> None:
    space = load(SPACE)
    start = built(space, (Choice("base", "mhsa"), Choice("leg", "f", 16), Choice("leg", "h", 2)))
    assert isinstance(start, Proposal)
    mutants = [mutate(space, start.path, 0, number).path for number in range(40)]
    changed = {choice.kind for path in mutants for choice in set(path) - set(start.path)}
    assert changed == {"base", "alternative", "leg", "move"}


def test_what_breaks_a_bound_trades_one_number_for_another() -> None:
    """At the bound one head of 16 becomes two of 8, which is two changes."""
    legs = {"f": 16, "h": [1, 2], "d": [4, 8, 16]}
    space = load({"space": 1, "base": "mhsa", "legs": legs, "moves": ["delta"], "bounds": {"n": 8, "parameters": 1024}})
    start = built(space, (Choice("base", "mhsa"), *(Choice("leg", *leg) for leg in (("f", 16), ("h", 1), ("d", 16)))))
    assert isinstance(start, Proposal)
    assert start.price.parameters == 1024
    found = [mutate(space, start.path, 0, number) for number in range(12)]
    assert all(one.price.parameters <= 1024 for one in found)
    texts = {to_text(one.path) for one in found}
    assert "mhsa; f = 16; h = 2; d = 8" in texts  # of 4 and 8 the nearer one
    assert any("delta" in text and "d = 8" in text for text in texts)  # a rule of its own has weights too


def test_seeds_are_the_bases() -> None:
    found = seeds(load(SPACE))
    assert [to_text(one.path) for one in found] == [
        "mhsa; f = 16; h = 4",  # of 2 and 4 none is the 8 of mhsa
        "gqa; f = 16",
        "linear; f = 16; h = 4",
        "mla; f = 16; h = 4; c = 8",
    ]
    assert found[1].hash == ta.load("gqa", legs={"f": 16}).hash
    wide = seeds(load({"space": 1, "base": "mhsa", "legs": {"h": [2, 4, 8, 16]}}))
    assert [to_text(one.path) for one in wide] == ["mhsa; h = 8"]


def test_a_base_beyond_the_bounds_is_made_smaller() -> None:
    data = {"space": 1, "base": ["mhsa", "linear"], "legs": {"f": 16, "h": [1, 2], "d": [4, 8, 16]}}
    free, bounded = (load({**data, "bounds": {"n": 16, **more}}) for more in ({}, {"macs": 16000}))
    assert [one.price.macs > 16000 for one in seeds(free)] == [True, True]
    found = seeds(bounded)
    assert [to_text(one.path) for one in found] == ["mhsa; f = 16; h = 2; d = 4", "linear; f = 16; h = 1; d = 8"]
    assert seeds(bounded) == found
    assert seeds(load({**data, "bounds": {"n": 16, "macs": 10}})) == []


def test_a_base_beyond_the_bounds_comes_to_lie_at_them() -> None:
    data = {
        "space": 1,
        "base": "band",
        "legs": {"f": 16, "h": [1, 2], "d": {"range": [2, 64]}},
        "settings": {"k": [3, 5, 7]},
    }
    (found,) = seeds(load({**data, "bounds": {"n": 16, "macs": 24000}}))
    assert to_text(found.path) == "band; f = 16; h = 2; d = 5; k = 7"  # the dearest of all that the space has


FOREIGN = [
    ((), "a path needs a base, e.g. (Choice('base', 'mhsa'),)."),
    ((Choice("base", "mhsb"),), "the space 'small' has no base 'mhsb'; did you mean 'mhsa'?"),
]


@pytest.mark.parametrize(("path", "message"), FOREIGN)
def test_a_path_of_another_space(path: tuple[Choice, ...], message: str) -> None:
    space = load(SPACE)
    for call in (lambda: mutate(space, path, 0), lambda: cross(space, path, path, 0)):
        assert refusal(call) == message


@pytest.mark.parametrize("seed", range(24))
def test_a_proposal_compiles_to_the_reference(seed: int) -> None:
    agrees(propose(load(SPACE), 0, seed).design, seed)


@pytest.mark.slow
def test_many_proposals_compile_to_the_reference() -> None:
    space = load(SPACE)
    compared = sum(agrees(propose(space, 1, number).design, number) for number in range(300))
    assert compared > 200


EMPTY: list[tuple[dict[str, Any], str]] = [
    (
        {"base": "mhsa", "bounds": {"n": 64, "macs": 1000}},
        "all 160 drafts of the space 'space' were refused: 160 by 'macs at most 1,000'; "
        "the nearest had macs 71,303,168: widen the bound, or allow smaller legs.",
    ),
    (
        {"base": "mhsa", "bounds": {"parameters": {"least": 10**9}}},
        "all 160 drafts of the space 'space' were refused: 160 by 'parameters at least 1,000,000,000'; "
        "the nearest had parameters 1,048,576: widen the bound, or allow larger legs.",
    ),
    (
        {"name": "odd", "base": "mhsa", "legs": {"h": [3, 5, 7]}},
        "all 160 drafts of the space 'odd' were refused: "
        "55 by 'the checker: leg 'd' is f / h = 170.667, which is not a valid size'; "
        "54 by 'the checker: leg 'd' is f / h = 102.4, which is not a valid size'; "
        "51 by 'the checker: leg 'd' is f / h = 73.1429, which is not a valid size'; "
        "change the legs, settings or alternatives of the space.",
    ),
]


@pytest.mark.parametrize(("space", "message"), EMPTY, ids=["macs", "parameters", "checker"])
def test_an_empty_space(space: dict[str, Any], message: str) -> None:
    assert refusal(propose, load({"space": 1, **space}), 0, 0) == message
