"""Which of some candidates promises most: costs are known before anything is trained, qualities are guessed from kin.

A guess is the mean over the designs evaluated, each weighted by the share of choices that its path has in common with
the candidate's, and one deviation more. The promise is the hypervolume that this would add to what is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, fsum, log, sqrt

from tensornet_attn.search.build import Proposal
from tensornet_attn.search.path import Path
from tensornet_attn.study.config import Study
from tensornet_attn.study.objectives import excess, point, values_at, values_of
from tensornet_attn.study.rank import EDGE, even, hypervolume, unit
from tensornet_attn.study.record import Trial

POWER = 6  # of the share: near kin decide, and with nothing in common a trial still counts for a little
FAINT = 1e-9
OPTIMISM = 1.0  # deviations of kin: a mean alone promises nothing beyond what is known already
Values = Mapping[str, float]


def promising(study: Study, trials: Sequence[Trial], candidates: Sequence[Proposal]) -> list[int]:
    """The places of candidates, the most promising first: within bounds, by what they add, in the order given."""
    known = _known(study, trials)
    if not known or len(candidates) < 2:
        return list(range(len(candidates)))
    guesses = [guess(known, candidate) for candidate in candidates]
    gains = _gains(study, [values for _, values in known if not excess(study, values)], guesses)
    return sorted(range(len(guesses)), key=lambda place: (excess(study, guesses[place]), -gains[place], place))


def _known(study: Study, trials: Sequence[Trial]) -> list[tuple[frozenset[object], Values]]:
    """What trials have chosen, and their values on the highest rung that enough of them have been on.

    A quality that was not finite is as bad as the worst.
    """
    rung = next((rung for rung in range(len(study.rungs), 1, -1) if len(_on(trials, rung)) >= study.population // 2), 1)
    values = [(trial, values_at(trial, rung)) for trial in _on(trials, rung)]
    worst = min((one["quality"] for _, one in values if "quality" in one), default=None)
    return [] if worst is None else [(_choices(trial.path), {"quality": worst, **one}) for trial, one in values]


def _on(trials: Sequence[Trial], rung: int) -> list[Trial]:
    return [trial for trial in trials if any(result.rung == rung for result in trial.results)]


def guess(known: Sequence[tuple[frozenset[object], Values]], candidate: Proposal) -> dict[str, float]:
    """The values that a candidate may have: its own costs, and what may be hoped for from its kin."""
    own = _choices(candidate.path)
    weights = [(len(own & theirs) / len(own | theirs)) ** POWER + FAINT for theirs, _ in known]
    found: dict[str, float] = dict(values_of(candidate.price, None))
    both = list(zip(weights, (values for _, values in known), strict=True))
    quality = [(weight, values["quality"]) for weight, values in both if "quality" in values]
    latency = [(weight, -log(values["latency"])) for weight, values in both if values.get("latency", 0) > 0]
    found |= {"quality": _hoped(quality)} if quality else {}
    return found | ({"latency": exp(-_hoped(latency))} if latency else {})


def _hoped(pairs: Sequence[tuple[float, float]]) -> float:
    """The weighted mean of (weight, value), of which more is better, and a share of their deviation more."""
    total = fsum(weight for weight, _ in pairs)
    mean = fsum(weight * value for weight, value in pairs) / total
    variance = fsum(weight * (value - mean) ** 2 for weight, value in pairs) / total
    return mean + OPTIMISM * sqrt(variance)


def _choices(path: Path) -> frozenset[object]:
    """All that a path chooses, each option of a move by itself; where a move was made is left out."""
    return frozenset(_parts(path))


def _parts(path: Path) -> Iterator[object]:
    for choice in path:
        yield choice.kind, choice.name, choice.value
        yield from ((choice.name, option, value) for option, value in choice.options)


def _gains(study: Study, known: Sequence[Values], guesses: Sequence[Values]) -> list[float]:
    """The hypervolume that each guess adds, where all objectives run from 0 to 1 over what is known and guessed."""
    names, edge = study.objectives, (EDGE,) * len(study.objectives)
    scaled = unit([even(point(values, names), names) for values in (*known, *guesses)])
    have = scaled[: len(known)]
    before = hypervolume(have, edge)
    return [round(hypervolume([*have, one], edge) - before, 12) for one in scaled[len(known) :]]
