"""Which moves paid: how qualities and costs differ between trials with and without a choice, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt

from tensornet_attn.compare.spread import mean_of, quantile
from tensornet_attn.search.space import Choice, Path
from tensornet_attn.search.study import ARMS, Study
from tensornet_attn.search.trial import Trial, values_at

LEAST = 2  # values on each side of a difference that has an interval
ALL = "all"  # trials of all arms


@dataclass(frozen=True)
class Effect:
    """The mean of `metric` in trials with a choice, less that in trials without it, and its 95 % interval.

    `move`: what was chosen, a move, a base or `STEP: ALTERNATIVE`, by `kind`. `with_`, `without`: how many trials.
    `arm`: random, whose trials nothing was chosen by, or all. `paired`: over pairs of mutant and parent that differ in
    this choice alone, of which there are `with_`. `rung`: the one that gave the qualities, 0 for costs.
    """

    move: str
    kind: str
    metric: str
    difference: float
    low: float
    high: float
    with_: int
    without: int
    arm: str = ALL
    paired: bool = False
    rung: int = 0


Key = tuple[str, str]  # kind, name
Values = Mapping[str, float]


def effects(study: Study, trials: Iterable[Trial]) -> list[Effect]:
    """The effects of all choices on quality and the objectives, where there are two trials at least on either side.

    Qualities are compared on each rung by itself, among all that were trained there; costs among all proposals. A
    design that both arms have counts once. Unpaired ones of a study are confounded: evolution adds moves to what was
    good already, so look at the random arm and at pairs first.
    """
    own = sorted((trial for trial in trials if trial.arm in ARMS), key=lambda trial: trial.slot)
    found: list[Effect] = []
    for rung, metric in _measures(study):
        for arm in (ALL, *study.arms[1:]):
            rows = _rows((trial for trial in own if arm in (ALL, trial.arm)), rung, metric)
            found += _unpaired(rows, metric, arm, rung)
        found += _paired(own, metric, rung)
    return found


def _measures(study: Study) -> list[tuple[int, str]]:
    """(rung, metric): quality on every rung, other objectives once; latency may be known of few."""
    others = [name for name in study.objectives if name != "quality"]
    return [*((rung, "quality") for rung in range(len(study.rungs), 0, -1)), *((0, name) for name in others)]


def _rows(trials: Iterable[Trial], rung: int, metric: str) -> list[tuple[frozenset[Key], float]]:
    """What each design has chosen and its value, each design once."""
    rows: dict[str, tuple[frozenset[Key], float]] = {}
    for trial in trials:
        value = values_at(trial, rung).get(metric)
        if value is not None:
            rows.setdefault(trial.essence, (frozenset(_keys(trial.path)), value))
    return list(rows.values())


def _keys(path: Path) -> Iterator[Key]:
    """What is compared of a path: sizes and options are left out."""
    for choice in path:
        key = _key(choice)
        if key is not None:
            yield key


def _key(choice: Choice) -> Key | None:
    if choice.kind in ("base", "move"):
        return choice.kind, choice.name
    return ("alternative", f"{choice.name}: {choice.value}") if choice.kind == "alternative" else None


def _unpaired(rows: Sequence[tuple[frozenset[Key], float]], metric: str, arm: str, rung: int) -> Iterator[Effect]:
    known = dict.fromkeys(key for keys, _ in rows for key in sorted(keys))
    for kind, name in sorted(known):
        with_ = [value for keys, value in rows if (kind, name) in keys]
        without = [value for keys, value in rows if (kind, name) not in keys]
        if min(len(with_), len(without)) >= LEAST:
            middle, half = welch(with_, without)
            ends = middle - half, middle + half
            yield Effect(name, kind, metric, middle, *ends, len(with_), len(without), arm, False, rung)


def welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """The difference of two means, and half of its 95 % interval, for variances that may differ (Welch, 1947).

    >>> [round(value, 3) for value in welch([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])]
    [2.0, 2.267]
    """
    means = [fsum(values) / len(values) for values in (first, second)]
    pairs = list(zip((first, second), means, strict=True))
    # the variance of each mean
    parts = [fsum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values) for values, mean in pairs]
    total = fsum(parts)
    if total == 0:
        return means[0] - means[1], 0.0
    shares = zip(parts, (first, second), strict=True)
    freedom = total**2 / fsum(part**2 / (len(values) - 1) for part, values in shares)
    return means[0] - means[1], quantile(max(1, int(freedom + 1e-9))) * sqrt(total)  # whole, hence not too narrow


def _paired(trials: Sequence[Trial], metric: str, rung: int) -> Iterator[Effect]:
    """Over mutants that differ from their parent in one move or alternative alone, added or dropped."""
    slots = {trial.slot: trial for trial in trials}
    found: dict[Key, list[float]] = {}
    for trial in trials:
        parent = slots.get(trial.parents[0]) if trial.how == "mutate" and trial.parents else None
        pair = [None if one is None else values_at(one, rung).get(metric) for one in (trial, parent)]
        key, sign = _single(trial.path, parent.path) if parent is not None else (None, 0)
        if key is not None and pair[0] is not None and pair[1] is not None:
            found.setdefault(key, []).append(sign * (pair[0] - pair[1]))
    for (kind, name), values in sorted(found.items()):
        mean = mean_of(values)
        if len(values) >= LEAST:
            yield Effect(name, kind, metric, mean.value, mean.low, mean.high, len(values), len(values), ALL, True, rung)


def _single(child: Path, parent: Path) -> tuple[Key | None, int]:
    """The one move or alternative that a child has and its parent has not, and 1; -1 where the parent has it."""
    mine, theirs = ({_plain(choice) for choice in path} for path in (child, parent))
    added, dropped = mine - theirs, theirs - mine
    if len(added) + len(dropped) != 1:
        return None, 0
    (choice,) = added or dropped
    key = _key(choice)
    return (None, 0) if key is None or key[0] == "base" else (key, 1 if added else -1)


def _plain(choice: Choice) -> Choice:
    """Without the box it was made at, whose name other moves change."""
    return Choice(choice.kind, choice.name, choice.value, options=choice.options)
