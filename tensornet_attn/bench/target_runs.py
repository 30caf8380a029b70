"""Measures the targets: each design beside those that its criteria name, and at half the length where growth counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tensornet_attn import compiler
from tensornet_attn.bench.case import TRAINING, Case
from tensornet_attn.bench.ours import OURS
from tensornet_attn.bench.rates import Rates
from tensornet_attn.bench.results import Result
from tensornet_attn.bench.run import Bench, Options
from tensornet_attn.bench.targets import BATCH, Target
from tensornet_attn.cost.devices import Device


@dataclass(frozen=True)
class Setting:
    """Under what the targets are measured; `n` is in the place of their own lengths. Targets are of the first backend."""

    n: int | None = None
    batch: int = BATCH
    dtype: str = "float32"
    device: str = "cpu"
    backends: tuple[str, ...] = ("torch",)
    seed: int = 0
    costs: Device | None = None
    tune: bool = False


def cases_of(target: Target, setting: Setting) -> list[Case]:
    """The case of a target, and that of half its length where growth counts. Raises InputError where one cannot be."""
    design = compiler.load(target.design, legs=target.legs, settings=target.settings)
    shared = {name: getattr(setting, name) for name in ("batch", "dtype", "device", "seed", "costs", "tune")}
    case = Case(design, setting.n or target.n, **shared)
    found = [case, case.at(case.n // 2)] if target.grows else [case]
    for one in found:
        one.check()
    return found


def target_results(
    targets: Sequence[Target],
    options: Options,
    setting: Setting,
    say: Callable[[str], None],
    rates: Rates | None = None,
) -> Iterator[tuple[Target, Result]]:
    """The results of each target in turn, as they are made; of `options` only how long to measure counts."""
    for target in targets:
        case, *half = cases_of(target, setting)
        for result in Bench(options_of(target, options, setting), say, rates).results([case]):
            yield target, result
        alone = replace(options, against=(), backends=setting.backends[:1], passes=(TRAINING,))
        for result in Bench(alone, say, rates).results(half):
            yield target, result


def options_of(target: Target, options: Options, setting: Setting) -> Options:
    """Who is measured for a target: our backends, those among the peers as well, and the others."""
    backends = dict.fromkeys([*setting.backends, *(name for name in target.against if name in OURS)])
    against = [name for name in target.against if name not in OURS]
    return replace(options, against=against, backends=tuple(backends), passes=target.passes)
