"""Which of some candidates promises most: costs are known before anything is trained, qualities are guessed from kin.

A guess is what a Gaussian process over the designs evaluated says of a candidate: its mean, and one deviation more.
The promise is the hypervolume that this would add to what is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log

from tensornet_attn.search.build import Proposal
from tensornet_attn.search.rank import EDGE, even, hypervolume, unit
from tensornet_attn.search.space import Path
from tensornet_attn.search.study import Study
from tensornet_attn.search.trial import Trial, excess, on_rung, point, values_at, values_of

OPTIMISM = 1.0  # deviations: a mean alone promises nothing beyond what is known already
Values = Mapping[str, float]


def promising(study: Study, trials: Sequence[Trial], candidates: Sequence[Proposal]) -> list[int]:
    """The places of candidates, the most promising first: within bounds, by what they add, by quality, as given."""
    known = _known(study, trials)
    if not known or len(candidates) < 2:
        return list(range(len(candidates)))
    guesses = guess(known, candidates)
    gains = _gains(study, [values for _, values in known if not excess(study, values)], guesses)
    hopes = [one.get("quality", 0.0) for one in guesses]
    return sorted(range(len(guesses)), key=lambda at: (excess(study, guesses[at]), -gains[at], -hopes[at], at))


def _known(study: Study, trials: Sequence[Trial]) -> list[tuple[Path, Values]]:
    """The paths of trials, and their values on the highest rung that enough of them have been on.

    A quality that was not finite is as bad as the worst.
    """
    rung = next(
        (rung for rung in range(len(study.rungs), 1, -1) if len(on_rung(trials, rung)) >= study.population // 2), 1
    )
    values = [(trial, values_at(trial, rung)) for trial in on_rung(trials, rung)]
    worst = min((one["quality"] for _, one in values if "quality" in one), default=None)
    return [] if worst is None else [(trial.path, {"quality": worst, **one}) for trial, one in values]


def guess(known: Sequence[tuple[Path, Values]], candidates: Sequence[Proposal]) -> list[dict[str, float]]:
    """The values that candidates may have: their own costs, and what may be hoped for from their kin."""
    paths = [candidate.path for candidate in candidates]
    quality = [(path, values["quality"]) for path, values in known if "quality" in values]
    latency = [(path, -log(values["latency"])) for path, values in known if values.get("latency", 0) > 0]
    found: list[dict[str, float]] = [dict(values_of(candidate.price, None)) for candidate in candidates]
    for name, pairs, undo in (("quality", quality, float), ("latency", latency, lambda hope: exp(-hope))):
        for values, hope in zip(found, _hopes(pairs, paths) if pairs else (), strict=False):
            values[name] = undo(hope)
    return found


def _hopes(pairs: Sequence[tuple[Path, float]], paths: Sequence[Path]) -> list[float]:
    """For each path the mean of what is to be had, of which more is better, and deviations more; given pairs."""
    from tensornet_attn.search.gaussian import regressed  # scikit-learn takes a second to import

    mean, deviation = regressed([path for path, _ in pairs], [value for _, value in pairs], paths)
    hopes = mean + OPTIMISM * deviation
    return [round(hope, 12) for hope in hopes.tolist()]  # what is equal but for rounding keeps its order


def _gains(study: Study, known: Sequence[Values], guesses: Sequence[Values]) -> list[float]:
    """The hypervolume that each guess adds, where all objectives run from 0 to 1 over what is known and guessed."""
    names, edge = study.objectives, (EDGE,) * len(study.objectives)
    scaled = unit([even(point(values, names), names) for values in (*known, *guesses)])
    have = scaled[: len(known)]
    before = hypervolume(have, edge)
    return [round(hypervolume([*have, one], edge) - before, 12) for one in scaled[len(known) :]]
