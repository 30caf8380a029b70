"""The speed that is aimed at: on two CPU cores in float32, on a GPU in bfloat16, each forward and backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensornet_attn.bench.case import FORWARD, TRAINING
from tensornet_attn.errors import InputError, nearest

BATCH = 4


@dataclass(frozen=True)
class Ratio:
    """The fastest of `against` takes at least `least` times as long as ours."""

    least: float
    against: tuple[str, ...]


@dataclass(frozen=True)
class Share:
    """Forward, ours makes the operations of its plan at this part of the measured rate of matrix products."""

    least: float


@dataclass(frozen=True)
class Growth:
    """Ours takes at most so many times as long as at half the length."""

    most: float


Criterion = Ratio | Share | Growth


@dataclass(frozen=True)
class Target:
    """What is aimed at for one design, at length n and batch 4. `peers` are measured beside those that a criterion names."""

    design: str
    criteria: tuple[Criterion, ...]
    legs: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)
    n: int = 1024
    peers: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """
        >>> Target("epa", (), {"f": 256, "h": 2}, {"k": 2}).label
        'epa f 256 h 2 k 2'
        """
        return " ".join([self.design, *(f"{name} {value}" for name, value in {**self.legs, **self.settings}.items())])

    @property
    def against(self) -> tuple[str, ...]:
        """Who is measured beside ours, each once."""
        named = [name for criterion in self.criteria if isinstance(criterion, Ratio) for name in criterion.against]
        return tuple(dict.fromkeys([*named, *self.peers]))

    @property
    def passes(self) -> tuple[str, ...]:
        return (FORWARD, TRAINING) if any(isinstance(criterion, Share) for criterion in self.criteria) else (TRAINING,)

    @property
    def grows(self) -> bool:
        """Whether half the length is measured too."""
        return any(isinstance(criterion, Growth) for criterion in self.criteria)


WIDTH = {"f": 256, "h": 8}  # h is what most designs call their heads


def _one(design: str, against: str, ratio: float, *sizes: Mapping[str, int], **options: Any) -> Target:
    return Target(design, (Ratio(ratio, (against,)),), *sizes, **options)


TARGETS = (
    _one("mhsa", "sdpa", 0.97, WIDTH),
    _one("hard_fish", "eager", 2.8, WIDTH | {"g": 2}),
    _one("mgk", "eager", 4.0, WIDTH | {"r": 2}),
    _one("thsa", "eager", 4.0, {"f": 256, "r": 64, "s": 64}),
    _one("talking_heads", "eager", 2.0, {"f": 256, "g": 8, "h": 8, "e": 8}),
    _one("fmm2", "softmax", 4.0, WIDTH, {"k": 5}, n=4096),
    _one("mlk", "eager", 1.0, WIDTH | {"r": 2}),
    _one("linear", "eager", 1.0, WIDTH),
    _one("epa", "eager", 1.5, {"f": 256, "h": 2, "e": 5}, {"k": 2}),
)

HEADS = {"f": 512, "h": 8}  # of width 64
LONG = 65536
PEERS = ("eager", "compile", "sdpa", "flex", "fused", "torch")  # the best of these is who a ratio is over, never one
FAST = ("eager", "compile", "torch")
GPU_TARGETS = (
    Target("mhsa", (Ratio(0.98, ("sdpa",)),), HEADS, n=4096, peers=PEERS),
    Target("hard_fish", (Ratio(1.3, PEERS), Ratio(1.0, ("softmax",))), HEADS | {"g": 2}, n=4096),
    Target("gfish", (Ratio(3.0, PEERS),), HEADS | {"g": 4}, n=4096),
    Target("mgk", (Ratio(1.25, PEERS),), HEADS | {"r": 2}, n=4096),
    Target("thsa", (Ratio(2.0, PEERS), Share(0.4)), {"f": 512, "r": 256, "s": 256}, n=2048),
    Target("talking_heads", (Ratio(1.5, PEERS),), {"f": 512, "g": 8, "h": 8, "e": 8}, n=4096),
    # 128 positions on either side
    Target("band", (Ratio(1.0, ("flex",)),), HEADS, {"k": 257}, n=32768, peers=("compile", "torch")),
    Target("linear", (Ratio(20.0, ("softmax",)), Growth(2.2)), HEADS, n=LONG, peers=FAST),
    Target("fmm2", (Ratio(20.0, ("softmax",)), Growth(2.2)), HEADS, {"k": 5}, n=LONG, peers=FAST),
    # the delta rule; the layer by hand takes a step a position, which is left out and torch.compile would unroll
    Target("fmm_fast_weight1", (Ratio(0.8, ("fla",)),), HEADS, {"k": 5}, n=4096, peers=("torch",)),
    # d is the largest multiple of 16 with no more parameters than mhsa of 8 heads of width 64, as in the paper
    Target("epa", (Ratio(1.6, ("dense",)),), {"f": 512, "h": 2, "e": 5, "d": 80}, {"k": 2}, n=4096, peers=PEERS),
)


def targets_of(designs: Sequence[str] = (), gpu: bool = False) -> tuple[Target, ...]:
    """The targets of these designs, of all without any. Raises InputError for a design that has none.

    >>> [target.design for target in targets_of(["linear", "mhsa"])]
    ['mhsa', 'linear']
    """
    targets = GPU_TARGETS if gpu else TARGETS
    known = [target.design for target in targets]
    for name in designs:
        if name not in known:
            raise InputError(f"there is no target for '{name}': {nearest(name, known)}")
    return tuple(target for target in targets if not designs or target.design in designs)
