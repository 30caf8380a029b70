"""Who evaluates what: trials take slots and designs one after the other, in the order of their numbers.

A trial chooses when all running ones of a lower number have chosen. What it sees of them cannot change any more, and
those of a higher number wait for it, so no slot and no design is taken twice, whatever is killed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tensornet_attn.search.evolve import Draft, Exhausted, draft
from tensornet_attn.search.rank import confirmations
from tensornet_attn.search.space import Space, to_text
from tensornet_attn.search.store import STALE, Running, Store
from tensornet_attn.search.study import Study
from tensornet_attn.search.trial import Trial

PAUSE = 0.05  # seconds between two looks at those that choose
LOOK = 10  # rests from one look for workers that are gone to the next
MUTE = 20 * STALE  # seconds after which a trial that has not chosen is lost, even if it never gave a sign of life


@dataclass(frozen=True)
class Confirmation:
    """A slot in which a design is trained once more, with a seed that nothing was chosen by."""

    slot: int
    of: Trial
    fresh: int


Claim = Draft | Confirmation
Note = Callable[[dict[str, object]], None]


def open_slots(
    study: Study, finished: Sequence[Trial], running: Sequence[Running], exhausted: dict[str, int]
) -> list[int]:
    """The proposals that nobody has made or makes, in order."""
    taken = {trial.slot for trial in finished} | set(_slots(running))
    return [slot for slot in proposal_slots(study, exhausted) if slot not in taken]


def proposal_slots(study: Study, exhausted: dict[str, int]) -> list[int]:
    """The slots of all proposals that there will be; an arm that has every design of a small space ends early."""
    arms = study.arms
    return [slot for slot in range(study.proposals) if slot < exhausted.get(arms[slot % len(arms)], study.proposals)]


def open_confirmations(
    study: Study, finished: Sequence[Trial], running: Sequence[Running], exhausted: dict[str, int]
) -> list[Confirmation]:
    """What is still to be confirmed, once all proposals are finished."""
    by_slot = {trial.slot: trial for trial in finished}
    if any(slot not in by_slot for slot in proposal_slots(study, exhausted)):
        return []
    taken = by_slot.keys() | set(_slots(running))
    wanted = confirmations(study, finished)
    return [Confirmation(slot, by_slot[of], fresh) for slot, of, fresh in wanted if slot not in taken]


def all_slots(study: Study, finished: Sequence[Trial], exhausted: dict[str, int]) -> list[int]:
    """Every slot that is wanted, as far as is known: confirmations are, when all proposals are finished."""
    proposals = proposal_slots(study, exhausted)
    done = {trial.slot for trial in finished}
    after = [slot for slot, _, _ in confirmations(study, finished)] if done.issuperset(proposals) else []
    return [*proposals, *after]


def complete(study: Study, finished: Sequence[Trial], exhausted: dict[str, int]) -> bool:
    """Whether there is nothing left to do."""
    return {trial.slot for trial in finished}.issuperset(all_slots(study, finished, exhausted))


def _slots(running: Sequence[Running]) -> Iterator[int]:
    yield from (one.claim["slot"] for one in running if one.claim is not None)


def free_dead(store: Store) -> None:
    """Marks as lost the trials of workers that are gone: those of this machine at once, others by their silence."""
    for one in store.look()[1]:
        mute = one.claim is None and time.time() - one.began > MUTE
        if mute or (one.worker is not None and one.worker.gone):
            store.fail(one.number)
    store.fail_stale()


def wait(store: Store) -> None:
    """A moment's rest; now and then with a look for workers that are gone."""
    if int(time.monotonic() / PAUSE) % LOOK == 0:
        free_dead(store)
    time.sleep(PAUSE)


def claim(store: Store, number: int, study: Study, space: Space, note: Note) -> Claim | None:
    """What the trial of a number evaluates, written down by `note`; None where nothing is left to take.

    Raises InputError where the space gives nothing.
    """
    while True:
        finished, running = store.look()
        before = [one for one in running if one.number < number]
        if all(one.claim is not None for one in before):
            break
        wait(store)
    chosen = _chosen(store, study, space, finished, before)
    if chosen is not None:
        note(as_data(chosen))
    return chosen


def _chosen(
    store: Store, study: Study, space: Space, finished: Sequence[Trial], running: Sequence[Running]
) -> Claim | None:
    while slots := open_slots(study, finished, running, store.exhausted):
        arm = study.arms[slots[0] % len(study.arms)]
        busy = (one.claim for one in running if one.claim is not None and one.claim["arm"] == arm)
        try:
            return draft(study, space, slots[0], finished, frozenset(str(one["essence"]) for one in busy))
        except Exhausted:
            if slots[0] < len(study.arms):
                raise  # not one design
            store.exhaust(arm, slots[0])
    return next(iter(open_confirmations(study, finished, running, store.exhausted)), None)


def as_data(chosen: Claim) -> dict[str, object]:
    """What others must know of a claim."""
    if isinstance(chosen, Confirmation):
        of = chosen.of
        return {
            "slot": chosen.slot,
            "arm": "confirm",
            "how": "confirm",
            "essence": of.essence,
            "text": to_text(of.path),
        }
    made = chosen.proposal
    text = to_text(made.path)
    return {"slot": chosen.slot, "arm": chosen.arm, "how": chosen.how, "essence": made.essence, "text": text}


def awaited(store: Store, number: int, chosen: Draft) -> Trial | None:
    """The trial of another arm that has a draft's design; waited for, where one of a lower number evaluates it now."""
    essence = chosen.proposal.essence
    while True:
        finished, running = store.look()
        for trial in finished:
            if trial.slot >= 0 and trial.essence == essence and trial.arm != chosen.arm:
                return trial
        claims = (one.claim for one in running if one.number < number and one.claim is not None)
        if not any(one["essence"] == essence and one["arm"] not in (chosen.arm, "confirm") for one in claims):
            return None
        wait(store)
