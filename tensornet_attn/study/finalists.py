"""Finalists: the designs that are trained again with seeds that nothing was chosen by, and what their scores become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensornet_attn.compare.spread import Mean, mean_of
from tensornet_attn.study.config import Study
from tensornet_attn.study.objectives import values_at
from tensornet_attn.study.rank import EDGE, front, hypervolume, scaled
from tensornet_attn.study.record import Trial

CONFIRM = "confirm"  # the arm of confirmations


@dataclass(frozen=True)
class Confirmed:
    """A finalist and its qualities on the last rung: `search`, which it was chosen by, and those of fresh seeds.

    `mean` has their 95 % interval; `drop` is how far it lies below `search`. `failed`: runs that gave no quality.
    """

    of: int
    search: float
    mean: Mean
    drop: float
    failed: int = 0


def finalists(study: Study, finished: Sequence[Trial]) -> tuple[int, ...]:
    """The slots to confirm: of each arm up to `study.finalists`; a design of both arms once.

    Those of its front come first, then those of the front of what is left, and so on: what is behind by a little in the
    search may be the best, and a single objective has a front of one.
    """
    found: dict[str, int] = {}
    for arm in study.arms:
        left, chosen = [trial for trial in finished if trial.arm == arm], list[Trial]()
        while len(chosen) < study.finalists and (best := front(study, left)):
            chosen += _chosen(study, best, study.finalists - len(chosen))
            taken = {trial.essence for trial in best}
            left = [trial for trial in left if trial.essence not in taken]
        for trial in chosen:
            found.setdefault(trial.essence, trial.slot)
    return tuple(found.values())


def _chosen(study: Study, best: Sequence[Trial], most: int) -> list[Trial]:
    """Of a front the best in the first objective, then those that add the most hypervolume, one after the other."""
    scale, edge = scaled(study, best), (EDGE,) * len(study.objectives)
    chosen: list[Trial] = []
    while len(chosen) < min(most, len(best)):
        have = [scale[trial.slot] for trial in chosen]
        volumes = {
            t.slot: hypervolume([*have, scale[t.slot]], edge) if chosen else 0.0 for t in best if t not in chosen
        }
        chosen.append(max((t for t in best if t not in chosen), key=lambda t: volumes[t.slot]))
    return chosen


def confirmations(study: Study, finished: Sequence[Trial]) -> list[tuple[int, int, int]]:
    """What to train for the finalists: (slot, the slot it confirms, fresh seed), `fresh_seeds` times for each.

    Slots of confirmations are negative and follow from the slot confirmed and the place of the seed alone, so that
    those which are finished stay what they are when a study is given more trials.
    """
    return [
        (-(1 + of * study.fresh_seeds + place), of, study.fresh_seed(place))
        for of in finalists(study, finished)
        for place in range(study.fresh_seeds)
    ]


def confirmed(study: Study, trials: Sequence[Trial]) -> list[Confirmed]:
    """The finalists that have qualities of fresh seeds, the highest mean first."""
    found = []
    for of in finalists(study, trials):
        runs = sorted((t for t in trials if t.arm == CONFIRM and t.of == of), key=lambda trial: -trial.slot)
        values = [quality for trial in runs if (quality := _quality(study, trial)) is not None]
        search = _quality(study, next(trial for trial in trials if trial.slot == of))
        if values and search is not None:
            mean = mean_of(values)
            found.append(Confirmed(of, search, mean, search - mean.value, len(runs) - len(values)))
    return sorted(found, key=lambda one: (-one.mean.value, one.of))


def _quality(study: Study, trial: Trial) -> float | None:
    """The quality on the last rung."""
    return values_at(trial, len(study.rungs)).get("quality")
