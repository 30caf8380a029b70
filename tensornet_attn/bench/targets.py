"""The speed that is aimed at: ratios to reach on two CPU cores, forward and backward in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensornet_attn.errors import InputError, nearest

BATCH = 4


@dataclass(frozen=True)
class Target:
    """`against` takes at least `ratio` times as long as our torch backend, at length n and batch 4."""

    design: str
    against: str
    ratio: float
    legs: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)
    n: int = 1024

    @property
    def label(self) -> str:
        """
        >>> Target("epa", "eager", 1.5, {"f": 256, "h": 2}, {"k": 2}).label
        'epa f 256 h 2 k 2'
        """
        return " ".join([self.design, *(f"{name} {value}" for name, value in {**self.legs, **self.settings}.items())])


WIDTH = {"f": 256, "h": 8}  # h is what most designs call their heads
TARGETS = (
    Target("mhsa", "sdpa", 0.97, WIDTH),
    Target("hard_fish", "eager", 2.8, WIDTH | {"g": 2}),
    Target("mgk", "eager", 4.0, WIDTH | {"r": 2}),
    Target("thsa", "eager", 4.0, {"f": 256, "r": 64, "s": 64}),
    Target("talking_heads", "eager", 2.0, {"f": 256, "g": 8, "h": 8, "e": 8}),
    Target("fmm2", "softmax", 4.0, WIDTH, {"k": 5}, n=4096),
    Target("mlk", "eager", 1.0, WIDTH | {"r": 2}),
    Target("linear", "eager", 1.0, WIDTH),
    Target("epa", "eager", 1.5, {"f": 256, "h": 2, "e": 5}, {"k": 2}),
)


def targets_of(designs: Sequence[str] = ()) -> tuple[Target, ...]:
    """The targets of these designs, of all without any. Raises InputError for a design that has none.

    >>> [target.design for target in targets_of(["linear", "mhsa"])]
    ['mhsa', 'linear']
    """
    known = [target.design for target in TARGETS]
    for name in designs:
        if name not in known:
            raise InputError(f"there is no target for '{name}': {nearest(name, known)}")
    return tuple(target for target in TARGETS if not designs or target.design in designs)
