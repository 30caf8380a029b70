"""What became of each criterion: the figure reached, over whom, and whether it is what was aimed at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from tensornet_attn.bench.case import FORWARD, TRAINING
from tensornet_attn.bench.rates import Rates
from tensornet_attn.bench.ratios import Spread
from tensornet_attn.bench.results import MEASURED, Entry, Result
from tensornet_attn.bench.targets import Criterion, Growth, Ratio, Share, Target

SHARE, GROWTH, BEST = "the matmul rate", "half of n", "best"


@dataclass(frozen=True)
class Outcome:
    """One criterion of one target. `kind`: ratio, share or growth; `wanted` the least of it, of a growth the most.

    `over`: whose time, or what, the figure is over. `reached` None: there is no figure, and `reason` says why.
    Peaks are bytes of ours and of whom the ratio is over.
    """

    target: str
    n: int
    kind: str
    wanted: float
    over: str
    reached: Spread | None = None
    peak_ours: int | None = None
    peak_other: int | None = None
    reason: str = ""

    @property
    def met(self) -> bool | None:
        if self.reached is None:
            return None
        return self.reached.median <= self.wanted if self.kind == "growth" else self.reached.median >= self.wanted

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"met": self.met}


def outcomes(pairs: Iterable[tuple[Target, Result]], rates: Rates | None) -> list[Outcome]:
    """The outcome of every criterion of the targets whose results are there, all of a target's results together."""
    found: dict[int, tuple[Target, list[Result]]] = {}
    for target, result in pairs:
        found.setdefault(id(target), (target, []))[1].append(result)
    return [
        outcome(criterion, target, results, rates)
        for target, results in found.values()
        for criterion in target.criteria
    ]


def outcome(criterion: Criterion, target: Target, results: Sequence[Result], rates: Rates | None) -> Outcome:
    longest = max(result.n for result in results)
    if isinstance(criterion, Share):
        empty = Outcome(target.label, longest, "share", criterion.least, SHARE)
        return _share(empty, _of(results, longest, FORWARD), rates)
    if isinstance(criterion, Growth):
        empty = Outcome(target.label, longest, "growth", criterion.most, GROWTH)
        return _growth(empty, _of(results, longest, TRAINING), _of(results, longest // 2, TRAINING))
    empty = Outcome(
        target.label, longest, "ratio", criterion.least, criterion.against[0] if len(criterion.against) == 1 else BEST
    )
    return _ratio(empty, criterion, _of(results, longest, TRAINING))


def _of(results: Sequence[Result], n: int, kind: str) -> Result | None:
    """The result of a pass at a length, once it is there."""
    return next((result for result in results if (result.n, result.kind) == (n, kind)), None)


def _ratio(empty: Outcome, criterion: Ratio, result: Result | None) -> Outcome:
    if result is None:
        return _not_yet(empty)
    mine = result.entry(result.ours)
    others = [entry for entry in result.entries if entry.name in criterion.against and entry.name != result.ours]
    if mine.status != MEASURED:
        return _without(empty, mine)
    timed = [(entry.seconds.median, entry) for entry in others if entry.seconds is not None]
    if not timed:
        return _without(empty, *others)
    best = min(timed, key=lambda pair: pair[0])[1]
    peaks = {"peak_ours": mine.peak_bytes, "peak_other": best.peak_bytes}
    over = best.name if len(criterion.against) == 1 else f"{BEST}: {best.name}"
    return replace(empty, over=over, reached=best.ratio, **peaks)


def _share(empty: Outcome, result: Result | None, rates: Rates | None) -> Outcome:
    if result is None:
        return _not_yet(empty)
    mine = result.entry(result.ours)
    if mine.seconds is None:
        return _without(empty, mine)
    if rates is None or result.model is None:
        return replace(empty, reason="the rates of the machine were not measured.")
    part = [result.model.flops / rates.flops / x for x in (mine.seconds.median, mine.seconds.high, mine.seconds.low)]
    return replace(empty, reached=Spread(*part), peak_ours=mine.peak_bytes)


def _growth(empty: Outcome, whole: Result | None, half: Result | None) -> Outcome:
    """The quartiles are of the two times, which were measured apart: the low one over the high one, and so on."""
    if whole is None or half is None:
        return _not_yet(empty)
    long, short = whole.entry(whole.ours), half.entry(half.ours)
    if long.seconds is None or short.seconds is None:
        return _without(empty, long if long.seconds is None else short)
    a, b = long.seconds, short.seconds
    return replace(
        empty, reached=Spread(a.median / b.median, a.low / b.high, a.high / b.low), peak_ours=long.peak_bytes
    )


def _not_yet(empty: Outcome) -> Outcome:
    return replace(empty, reason="not measured yet.")


def _without(empty: Outcome, *entries: Entry) -> Outcome:
    reasons = [f"{entry.name} {entry.status}: {entry.reason}" for entry in entries if entry.status != MEASURED]
    return replace(empty, reason=" ".join(reasons) or "there is nobody to compare with.")
