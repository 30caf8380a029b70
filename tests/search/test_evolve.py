"""Proposals of a study: pure functions of what is finished; seeds, random designs, offspring; better than chance."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from math import exp
from statistics import fmean
from typing import Any

import pytest

from tensornet_attn.errors import InputError
from tensornet_attn.search import evolve, load, size_of, to_text
from tensornet_attn.search.evolve import Draft, Exhausted, draft
from tensornet_attn.search.rank import hypervolumes
from tensornet_attn.search.space import Path, of_kind
from tensornet_attn.search.study import Limit, Study
from tensornet_attn.search.trial import DIVERGED, Trial, values_of
from tests.refusals import refusal
from tests.search.made import SPACE, study, trial

SMALL: dict[str, Any] = {
    "space": 1,
    "name": "small",
    "base": ["mhsa", "gqa"],
    "legs": {"f": 16, "h": [2, 4], "g": [1, 2]},
}


def evaluated(found: Draft, quality: float = 0.5, **rest: Any) -> Trial:
    """The finished trial of a draft."""
    own = found.proposal
    fields = {"how": found.how, "parents": found.parents, "price": own.price, "values": values_of(own.price, quality)}
    given = {"path": own.path, "hash": own.hash, "essence": own.essence, "design": own.design.to_yaml()}
    return replace(trial(found.slot, found.arm, quality, own.price.macs), **{**given, **fields, **rest})


def searched(own: Study, quality: Callable[[Path], float], upto: int | None = None) -> list[Trial]:
    """A study of one worker, where a function of the path is the quality of a design."""
    space = load(own.space)
    done: list[Trial] = []
    for slot in range(own.proposals if upto is None else upto):
        found = draft(own, space, slot, done)
        done.append(evaluated(found, quality(found.proposal.path)))
    return done


def moves(path: Path) -> float:
    """More moves, better designs."""
    return 0.2 + 0.3 * len(of_kind(path, "move"))


@pytest.fixture(autouse=True)
def small_litters(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Fewer proposals are priced for each slot, but for tests written as slow, which ask how good proposals are."""
    if "slow" not in {mark.name for mark in getattr(request.function, "pytestmark", ())}:
        priced_few(monkeypatch)


def priced_few(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(evolve, "OFFSPRING", 8)
    patch.setattr(evolve, "STRANGERS", 4)


STUDY = study(trials=10, population=5, crossover=0.5, seed=3)


@cache
def whole() -> list[Trial]:
    """All proposals of a study, evaluated: the same ones, whichever test asks first."""
    with pytest.MonkeyPatch.context() as patch:
        priced_few(patch)
        return searched(STUDY, moves)


def test_seeds_then_random_ones_then_offspring() -> None:
    own, done = STUDY, whole()
    hows = {arm: [one.how for one in done if one.arm == arm] for arm in own.arms}
    assert hows["random"] == ["random"] * 10
    assert hows["evolution"][:5] == ["seed"] * 3 + ["random"] * 2
    assert set(hows["evolution"][5:]) & {"mutate", "cross"}
    assert [to_text(one.path) for one in done if one.how == "seed"] == [
        "mhsa; f = 16; h = 4",
        "gqa; f = 16; g = 2; j = 2",
        "linear; f = 16; h = 4",
    ]
    for one in done:
        assert len(one.parents) == {"mutate": 1, "cross": 2}.get(one.how, 0)
        assert all(parent % 2 == 0 and parent < one.slot for parent in one.parents)  # of evolution, and earlier
        assert len(set(one.parents)) == len(one.parents)


@pytest.mark.parametrize(("share", "how", "count"), [(0.0, "mutate", 1), (1.0, "cross", 2)])
def test_crossover_is_a_share(share: float, how: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolve, "STRANGERS", 0)
    own = study(**{**STUDY.model_dump(), "crossover": share})
    found = draft(own, load(own.space), 16, whole()[:16])
    assert (found.how, len(set(found.parents))) == (how, count)


def test_a_proposal_is_a_function_of_what_is_finished_in_any_order() -> None:
    own, done, space = STUDY, whole(), load(STUDY.space)
    for slot in (0, 1, 9, 12, 16, 19):
        finished = done[:slot]
        random.Random(slot).shuffle(finished)
        again = draft(study(**own.model_dump()), load(own.space), slot, finished)
        assert evaluated(again).design == done[slot].design
        assert (again.how, again.parents, again.proposal.path) == (done[slot].how, done[slot].parents, done[slot].path)
        assert again == draft(own, space, slot, [*done[: slot + 1]])  # its own trial is nothing that it knows
    other = study(**{**own.model_dump(), "seed": 6})
    assert draft(other, space, 1, []).proposal != draft(own, space, 1, []).proposal
    bred = [[draft(each, space, slot, done[:slot]).proposal for slot in (10, 14, 18)] for each in (other, own)]
    assert bred[0] != bred[1]


def test_each_arm_sees_its_own_trials_alone() -> None:
    own, done, space = STUDY, whole(), load(STUDY.space)
    for slot, arm in ((16, "evolution"), (17, "random")):
        mine = [one for one in done[:slot] if one.arm == arm]
        confirms = [replace(done[0], slot=-1, arm="confirm")]
        assert draft(own, space, slot, mine).proposal == draft(own, space, slot, [*confirms, *done[:slot]]).proposal


def test_no_arm_has_a_design_twice() -> None:
    own, done = STUDY, whole()
    for arm in own.arms:
        essences = [one.essence for one in done if one.arm == arm]
        assert len(set(essences)) == len(essences) == 10


def test_bases_that_are_one_design_come_once() -> None:
    one = {"space": 1, "name": "one", "base": ["mhsa", "gqa"], "legs": {"f": 16, "h": 4, "g": 4, "j": 1}}
    own = study(space=one, baseline=False)
    first = draft(own, load(one), 0, [])
    assert (first.how, to_text(first.proposal.path)) == ("seed", "mhsa; f = 16; h = 4")
    with pytest.raises(Exhausted) as error:
        draft(own, load(one), 1, [evaluated(first)])
    assert str(error.value).startswith(
        "the space 'one' has 1 different design within bounds, and evolution has evaluated all "
    )


def test_what_is_being_evaluated_is_avoided() -> None:
    own, space = study(trials=10), load(SPACE)
    first = draft(own, space, 0, [])
    second = draft(own, space, 2, [], frozenset({first.proposal.essence}))
    assert [to_text(one.proposal.path) for one in (first, second)] == [
        "mhsa; f = 16; h = 4",
        "gqa; f = 16; g = 2; j = 2",
    ]
    assert draft(own, space, 2, [evaluated(first)]).proposal == second.proposal
    drawn = draft(own, space, 1, [])
    assert draft(own, space, 1, [], frozenset({drawn.proposal.essence})).proposal.essence != drawn.proposal.essence


def test_nothing_beyond_the_bounds_is_proposed() -> None:
    most = sorted(one.price.macs for one in whole())[10]
    own = study(trials=6, population=4, bounds={"macs": Limit(most=most)})
    done = searched(own, moves)
    assert max(one.price.macs for one in done) <= most
    assert {one.how for one in done} & {"mutate", "cross"}


def test_failed_trials_are_parents_when_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    own = study(**{**STUDY.model_dump(), "tournament": 32})
    done = [replace(one, state=DIVERGED, results=one.results[:1]) for one in whole()[:16]]
    assert draft(own, load(SPACE), 16, done).how in ("mutate", "cross", "random")
    monkeypatch.setattr(evolve, "STRANGERS", 0)
    good = [*done[:4], whole()[4], *done[5:]]
    assert draft(own, load(SPACE), 16, good).parents[0] == 4  # old, and still the best


def test_a_small_space_is_found_whole_and_then_exhausted() -> None:
    size = size_of(load(SMALL))
    assert (size.count, size.exact) == (4, True)
    own = study(space=SMALL, trials=5)
    done = searched(own, moves, upto=8)
    assert len({one.essence for one in done}) == 4
    for slot, arm in ((8, "evolution"), (9, "random")):
        with pytest.raises(Exhausted) as error:
            draft(own, load(SMALL), slot, done)
        assert str(error.value) == (
            f"the space 'small' has 4 different designs within bounds, and {arm} has evaluated all of them: lower "
            "'trials', or add choices to the space."
        )


def test_a_large_space_gives_up_after_some_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolve, "ATTEMPTS", 2)
    own, space = study(space=WIDE), load(WIDE)
    known: frozenset[str] = frozenset()
    for _ in range(2):
        known |= {draft(own, space, 1, [], known).proposal.essence}
    with pytest.raises(Exhausted) as error:
        draft(own, space, 1, [], known)
    assert str(error.value) == (
        "2 drafts of the space 'wide' gave no design that random has not evaluated: lower 'trials', or add "
        "choices to the space."
    )


def test_a_space_in_which_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("tensornet_attn.search.propose"), "ATTEMPTS", 16)
    own = study(bounds={"macs": Limit(most=10)})
    for slot in (0, 1):
        with pytest.raises(InputError) as error:
            draft(own, load(SPACE), slot, [])
        assert not isinstance(error.value, Exhausted)
        assert str(error.value).startswith(
            "all 16 drafts of the space 'tiny' were refused: 16 by 'macs at most 10'; the "
        )


def test_slots_of_proposals_have_proposals() -> None:
    assert refusal(draft, study(trials=3), load(SPACE), 6, []) == "the study has no slot 6; choose a slot from 0 to 5."


WIDE: dict[str, Any] = {
    "space": 1,
    "name": "wide",
    "base": ["mhsa", "gqa", "linear"],
    "legs": {"f": 16, "h": [1, 2, 4, 8], "g": [1, 2, 4], "j": 2},
    "moves": {
        "share": {"g": [1, 2, 4]},
        "core": {"c": [2, 4]},
        "mixture": {"r": [2, 3]},
        "gate": {"k": [1, 2]},
        "mix": {"e": [2, 3, 4]},
        "latent": {"c": [2, 4, 8]},
        "split": {"band": [3, 5]},
    },
    "most": 3,
    "bounds": {"n": 16},
}


def landscape(seed: int) -> Callable[[Path], float]:
    """A quality by path, other for each seed: each choice and each pair with a move adds something, up to about 1."""

    def part(*choices: object) -> float:
        return random.Random(f"{seed} {sorted(map(repr, choices))}").gauss()

    def quality(path: Path) -> float:
        firsts: list[object] = [(one.kind, one.name, one.value) for one in path]
        moved = {repr((one.kind, one.name, one.value)) for one in of_kind(path, "move")}
        total = sum(0.8 * part(one) for one in firsts) + sum(
            0.4 * part(one.name, o) for one in path for o in one.options
        )
        pairs = [(one, two) for place, one in enumerate(firsts) for two in firsts[:place]]
        total += sum(0.5 * part(*pair) for pair in pairs if moved & set(map(repr, pair)))
        return 0.12 + 0.87 / (1 + exp(0.5 - total)) + 0.002 * part(path)  # and what a seed of training adds

    return quality


def ahead(seed: int, trials: int) -> float:
    """By how much evolution's hypervolume is above that of random search at the end."""
    own = study(space=WIDE, trials=trials, population=8, seed=seed)
    done = searched(own, landscape(seed))
    evolution, chance = (hypervolumes(own, done, arm) for arm in own.arms)
    assert len(evolution) == len(chance) == trials
    return evolution[-1] - chance[-1]


@pytest.mark.slow
def test_evolution_is_ahead_of_chance_on_many_landscapes() -> None:
    found = [ahead(seed, 40) for seed in range(10)]
    assert fmean(found) > 0.05
    assert sum(one > 0 for one in found) >= 8
