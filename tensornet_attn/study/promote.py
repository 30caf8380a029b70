"""Promotion: whether a trial goes on to the next rung, decided at once from those that have been on this one."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from tensornet_attn.study.config import Study
from tensornet_attn.study.objectives import values_at
from tensornet_attn.study.rank import standing
from tensornet_attn.study.record import Trial


def promoted(study: Study, trial: Trial, finished: Sequence[Trial]) -> bool:
    """Whether a trial goes on after its highest rung, as asynchronous successive halving has it.

    It does where fewer than `keep` of the trials of its arm on that rung, itself among them, have a better
    non-dominated rank; the first 1 / keep of them do in any case. The static rung only has to be passed; a trial whose
    last result is not finite, and one on the last rung, have nowhere to go.
    """
    last = trial.results[-1] if trial.results else None
    if last is None or last.counts is None or last.rung == len(study.rungs):
        return False
    if last.rung == 0:
        return True
    others = [other for other in finished if other.arm == trial.arm and other.slot != trial.slot]
    group = [trial, *(other for other in others if any(result.rung == last.rung for result in other.results))]
    keep = study.rungs[last.rung - 1].keep
    own, *ranks = standing(study, [values_at(one, last.rung) for one in group])
    better = sum(rank < own for rank in ranks)
    return len(group) <= round(1 / keep) or better < ceil(round(keep * len(group), 9))
