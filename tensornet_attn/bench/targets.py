"""Speed targets on two CPU cores in float32 and on a GPU in bfloat16, and their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tensornet_attn.bench.case import FORWARD, TRAINING
from tensornet_attn.bench.machine import Rates
from tensornet_attn.bench.results import Entry, PassResult, Spread
from tensornet_attn.errors import InputError, nearest

BATCH = 4
SHARE, GROWTH, BEST = "the matmul rate", "half of n", "best"  # denominators of outcomes
NOT_YET = "not measured yet."


@dataclass(frozen=True)
class Ratio:
    """The fastest of `against` takes at least `least` times as long as ours."""

    least: float
    against: tuple[str, ...]


@dataclass(frozen=True)
class RateShare:
    """In the forward, our FLOP/s are at least this share of the measured rate of matrix products."""

    least: float


@dataclass(frozen=True)
class Growth:
    """Our time is at most this multiple of that at half the length."""

    most: float


Criterion = Ratio | RateShare | Growth


@dataclass(frozen=True)
class BenchmarkTarget:
    """The targets of a design at length n and batch 4. `peers` are measured too."""

    design: str
    criteria: tuple[Criterion, ...]
    legs: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)
    n: int = 1024
    peers: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """
        >>> BenchmarkTarget("epa", (), {"f": 256, "h": 2}, {"k": 2}).label
        'epa f 256 h 2 k 2'
        """
        return " ".join([self.design, *(f"{name} {value}" for name, value in {**self.legs, **self.settings}.items())])

    @property
    def against(self) -> tuple[str, ...]:
        """The other contestants, without duplicates."""
        named = [name for criterion in self.criteria if isinstance(criterion, Ratio) for name in criterion.against]
        return tuple(dict.fromkeys([*named, *self.peers]))

    @property
    def passes(self) -> tuple[str, ...]:
        return (
            (FORWARD, TRAINING) if any(isinstance(criterion, RateShare) for criterion in self.criteria) else (TRAINING,)
        )

    @property
    def grows(self) -> bool:
        """Whether half the length is also measured."""
        return any(isinstance(criterion, Growth) for criterion in self.criteria)


WIDTH = {"f": 256, "h": 8}


def _one(design: str, against: str, ratio: float, sizes: Mapping[str, int], **options: Any) -> BenchmarkTarget:
    return BenchmarkTarget(design, (Ratio(ratio, (against,)),), sizes, **options)


TARGETS = (
    _one("mhsa", "sdpa", 0.97, WIDTH),
    _one("hard_fish", "eager", 2.8, WIDTH | {"g": 2}),
    _one("mgk", "eager", 4.0, WIDTH | {"r": 2}),
    _one("thsa", "eager", 4.0, {"f": 256, "r": 64, "s": 64}),
    _one("talking_heads", "eager", 2.0, {"f": 256, "g": 8, "h": 8, "e": 8}),
    _one("fmm2", "softmax", 4.0, WIDTH, settings={"k": 5}, n=4096),
    _one("mlk", "eager", 1.0, WIDTH | {"r": 2}),
    _one("linear", "eager", 1.0, WIDTH),
    _one("epa", "eager", 1.5, {"f": 256, "h": 2, "e": 5}, settings={"k": 2}),
)

HEADS = {"f": 512, "h": 8}  # of width 64
LONG = 65536
PEERS = ("eager", "compile", "sdpa", "flex", "fused", "torch")  # a ratio is to the fastest of these
FAST = ("eager", "compile", "torch")
GPU_TARGETS = (
    BenchmarkTarget("mhsa", (Ratio(0.98, ("sdpa",)),), HEADS, n=4096, peers=PEERS),
    BenchmarkTarget("hard_fish", (Ratio(1.3, PEERS), Ratio(1.0, ("softmax",))), HEADS | {"g": 2}, n=4096),
    BenchmarkTarget("gfish", (Ratio(3.0, PEERS),), HEADS | {"g": 4}, n=4096),
    BenchmarkTarget("mgk", (Ratio(1.25, PEERS),), HEADS | {"r": 2}, n=4096),
    BenchmarkTarget("thsa", (Ratio(2.0, PEERS), RateShare(0.4)), {"f": 512, "r": 256, "s": 256}, n=2048),
    BenchmarkTarget("talking_heads", (Ratio(1.5, PEERS),), {"f": 512, "g": 8, "h": 8, "e": 8}, n=4096),
    # 128 positions on each side
    BenchmarkTarget("band", (Ratio(1.0, ("flex",)),), HEADS, {"k": 257}, n=32768, peers=("compile", "torch")),
    BenchmarkTarget("linear", (Ratio(20.0, ("softmax",)), Growth(2.2)), HEADS, n=LONG, peers=FAST),
    BenchmarkTarget("fmm2", (Ratio(20.0, ("softmax",)), Growth(2.2)), HEADS, {"k": 5}, n=LONG, peers=FAST),
    # without 'eager' and 'compile': the handwritten layer loops over positions, and torch.compile would unroll it
    BenchmarkTarget("fmm_fast_weight1", (Ratio(0.8, ("fla",)),), HEADS, {"k": 5}, n=4096, peers=("torch",)),
    # as in the paper, d is the largest multiple of 16 with at most the parameters of mhsa with 8 heads of width 64
    BenchmarkTarget(
        "epa", (Ratio(1.6, ("dense",)),), {"f": 512, "h": 2, "e": 5, "d": 80}, {"k": 2}, n=4096, peers=PEERS
    ),
)


def targets_of(designs: Sequence[str] = (), gpu: bool = False) -> tuple[BenchmarkTarget, ...]:
    """The targets of these designs, or of all designs. Raises InputError for a design without targets.

    >>> [target.design for target in targets_of(["linear", "mhsa"])]
    ['mhsa', 'linear']
    """
    targets = GPU_TARGETS if gpu else TARGETS
    with_targets = [target.design for target in targets]
    for name in designs:
        if name not in with_targets:
            raise InputError(f"there is no target for '{name}': {nearest(name, with_targets)}")
    return tuple(target for target in targets if not designs or target.design in designs)


@dataclass(frozen=True)
class CriterionOutcome:
    """The outcome of one criterion. `kind`: ratio, share or growth; `wanted`: its minimum, or the maximum of a growth.

    `over`: the denominator of the figure. If `reached` is None, `reason` explains why. `peak_ours` and `peak_other` are
    bytes; the latter is that of the contestant in `over`.
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


def outcomes(pairs: Iterable[tuple[BenchmarkTarget, PassResult]], rates: Rates | None) -> list[CriterionOutcome]:
    """The outcomes of all criteria of the targets with results."""
    results_by_target: dict[int, tuple[BenchmarkTarget, list[PassResult]]] = {}
    for target, result in pairs:
        results_by_target.setdefault(id(target), (target, []))[1].append(result)
    return [
        outcome(criterion, target, results, rates)
        for target, results in results_by_target.values()
        for criterion in target.criteria
    ]


def outcome(
    criterion: Criterion, target: BenchmarkTarget, results: Sequence[PassResult], rates: Rates | None
) -> CriterionOutcome:
    longest = max(result.n for result in results)
    by_pass = {(result.n, result.kind): result for result in results}
    training = by_pass.get((longest, TRAINING))
    if isinstance(criterion, RateShare):
        empty = CriterionOutcome(target.label, longest, "share", criterion.least, SHARE)
        return _share(empty, by_pass.get((longest, FORWARD)), rates)
    if isinstance(criterion, Growth):
        empty = CriterionOutcome(target.label, longest, "growth", criterion.most, GROWTH)
        return _growth(empty, training, by_pass.get((longest // 2, TRAINING)))
    over = criterion.against[0] if len(criterion.against) == 1 else BEST
    return _ratio(CriterionOutcome(target.label, longest, "ratio", criterion.least, over), criterion, training)


def _ratio(empty: CriterionOutcome, criterion: Ratio, result: PassResult | None) -> CriterionOutcome:
    if result is None:
        return replace(empty, reason=NOT_YET)
    mine = result.entry(result.ours)
    others = [entry for entry in result.entries if entry.name in criterion.against and entry.name != result.ours]
    timed = [(entry.seconds.median, entry) for entry in others if entry.seconds is not None]
    if not mine.measured or not timed:
        return _without(empty, *(others if mine.measured else [mine]))
    best = min(timed, key=lambda pair: pair[0])[1]
    over = best.name if len(criterion.against) == 1 else f"{BEST}: {best.name}"
    return replace(empty, over=over, reached=best.ratio, peak_ours=mine.peak_bytes, peak_other=best.peak_bytes)


def _share(empty: CriterionOutcome, result: PassResult | None, rates: Rates | None) -> CriterionOutcome:
    if result is None:
        return replace(empty, reason=NOT_YET)
    mine = result.entry(result.ours)
    if mine.seconds is None:
        return _without(empty, mine)
    if rates is None or result.model is None:
        return replace(empty, reason="rates of the machine were not measured.")
    shares = [result.model.flops / rates.flops / x for x in (mine.seconds.median, mine.seconds.high, mine.seconds.low)]
    return replace(empty, reached=Spread(*shares), peak_ours=mine.peak_bytes)


def _growth(empty: CriterionOutcome, whole: PassResult | None, half: PassResult | None) -> CriterionOutcome:
    """The two times were not interleaved, so the quartiles are bounds: low over high, and high over low."""
    if whole is None or half is None:
        return replace(empty, reason=NOT_YET)
    long, short = whole.entry(whole.ours), half.entry(half.ours)
    a, b = long.seconds, short.seconds
    if a is None or b is None:
        return _without(empty, long if a is None else short)
    reached = Spread(a.median / b.median, a.low / b.high, a.high / b.low)
    return replace(empty, reached=reached, peak_ours=long.peak_bytes)


def _without(empty: CriterionOutcome, *entries: Entry) -> CriterionOutcome:
    reasons = [f"{entry.name} {entry.status}: {entry.reason}" for entry in entries if not entry.measured]
    return replace(empty, reason=" ".join(reasons) or "there is no contestant to compare with.")
