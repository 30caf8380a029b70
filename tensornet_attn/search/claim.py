"""Who evaluates what: trials take slots and designs one after the other, in the order of their numbers.

A trial chooses when all running ones of a lower number have chosen. What it sees of them cannot change any more, and
those of a higher number wait for it, so no slot and no design is taken twice, whatever is killed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensornet_attn.search.evolve import Draft, Exhausted, draft
from tensornet_attn.search.rank import CONFIRM, confirmations
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


def wanted(study: Study, finished: Sequence[Trial], exhausted: Mapping[str, int]) -> dict[int, Confirmation | None]:
    """Every slot that there will be, in order, and what it confirms, None for a proposal; as far as is known.

    An arm that has every design of a small space ends early. Confirmations are known when all proposals are finished.
    """
    by_slot, arms = {trial.slot: trial for trial in finished}, study.arms
    every = range(study.proposals)
    found: dict[int, Confirmation | None] = dict.fromkeys(
        slot for slot in every if slot < exhausted.get(arms[slot % len(arms)], study.proposals)
    )
    if by_slot.keys() >= found.keys():
        found |= {slot: Confirmation(slot, by_slot[of], fresh) for slot, of, fresh in confirmations(study, finished)}
    return found


def still_open(
    study: Study, finished: Sequence[Trial], running: Sequence[Running], exhausted: Mapping[str, int]
) -> dict[int, Confirmation | None]:
    """The wanted slots that nobody has filled or fills."""
    taken = {trial.slot for trial in finished} | {one.claim["slot"] for one in running if one.claim is not None}
    return {slot: of for slot, of in wanted(study, finished, exhausted).items() if slot not in taken}


def complete(study: Study, finished: Sequence[Trial], exhausted: Mapping[str, int]) -> bool:
    """Whether there is nothing left to do."""
    return not still_open(study, finished, (), exhausted)


def free_dead(store: Store) -> None:
    """Marks as lost the trials of workers that are gone: those of this machine at once, others by their silence."""
    for one in store.look()[1]:
        mute = one.claim is None and one.seconds > MUTE
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
    while left := still_open(study, finished, running, store.exhausted):
        slot, confirmation = next(iter(left.items()))
        if confirmation is not None:
            return confirmation
        arm = study.arms[slot % len(study.arms)]
        busy = (one.claim for one in running if one.claim is not None and one.claim["arm"] == arm)
        try:
            return draft(study, space, slot, finished, frozenset(str(one["essence"]) for one in busy))
        except Exhausted:
            if slot < len(study.arms):
                raise  # not one design
            store.exhaust(arm, slot)
    return None


def as_data(chosen: Claim) -> dict[str, object]:
    """What others must know of a claim."""
    if isinstance(chosen, Draft):
        arm, how, essence, path = chosen.arm, chosen.how, chosen.proposal.essence, chosen.proposal.path
    else:
        arm, how, essence, path = CONFIRM, CONFIRM, chosen.of.essence, chosen.of.path
    return {"slot": chosen.slot, "arm": arm, "how": how, "essence": essence, "text": to_text(path)}


def awaited(store: Store, number: int, chosen: Draft) -> Trial | None:
    """The trial of another arm that has a draft's design; waited for, where one of a lower number evaluates it now."""
    essence = chosen.proposal.essence
    while True:
        finished, running = store.look()
        for trial in finished:
            if trial.slot >= 0 and trial.essence == essence and trial.arm != chosen.arm:
                return trial
        claims = (one.claim for one in running if one.number < number and one.claim is not None)
        if not any(one["essence"] == essence and one["arm"] not in (chosen.arm, CONFIRM) for one in claims):
            return None
        wait(store)
