"""One run of the command: the rates of the machine, results as they are made, criteria reached, the rates again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from tensornet_attn import compiler
from tensornet_attn.bench.case import TRAINING, Case
from tensornet_attn.bench.contestants import OURS
from tensornet_attn.bench.machine import Rates, load, machine, measured_rates, memory_limit, select
from tensornet_attn.bench.measure import is_gpu
from tensornet_attn.bench.report import rates_text, target_table, target_text, text
from tensornet_attn.bench.results import Result, Run
from tensornet_attn.bench.run import Bench, Options
from tensornet_attn.bench.targets import BATCH, Outcome, Target, outcomes
from tensornet_attn.cost.devices import Device, device_named

MEMORY = 8.0  # GiB, on a CPU
MEASURED = "measured"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """Under what the targets are measured; `n` replaces their own lengths; criteria are of the first backend."""

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


def _target_results(
    targets: Sequence[Target],
    options: Options,
    setting: Setting,
    say: Say,
    rates: Rates | None,
    pairs: list[tuple[Target, Result]],
) -> Iterator[Result]:
    """The results of each target in turn, as they are made, also into `pairs`; of `options` times and memory count."""
    alone = replace(options, against=(), backends=setting.backends[:1], passes=(TRAINING,))
    for target in targets:
        case, *half = cases_of(target, setting)
        for who, cases in ((options_of(target, options, setting), [case]), (alone, half)):
            for result in Bench(who, say, rates).results(cases):
                pairs.append((target, result))
                yield result


def options_of(target: Target, options: Options, setting: Setting) -> Options:
    """Who is measured for a target: our backends, those among the peers as well, and the others."""
    backends = dict.fromkeys([*setting.backends, *(name for name in target.against if name in OURS)])
    against = [name for name in target.against if name not in OURS]
    return replace(options, against=against, backends=tuple(backends), passes=target.passes)


@dataclass(frozen=True)
class How:
    """How a run measures. `costs`: what ours is planned for, `measured`, or a device of the cost table; None: the
    former where rates are measured, as on a GPU. `memory` in GiB; None: 8, and half of a GPU's."""

    device: str
    dtype: str
    seed: int
    costs: str | None
    tune: bool
    memory: float | None
    repeats: int
    seconds: float

    def ready(self, options: Options, dtype: str, always: bool) -> tuple[Run, Options, list[Rates], Device | None]:
        """What a run begins with: itself, its options, the machine's rates, and what ours is planned for.

        Rates are measured where something is over them. Raises InputError for a device that the cost table lacks.
        """
        select(self.device)
        limit = memory_limit(self.device, MEMORY) if self.memory is None else self.memory
        options = replace(options, repeats=self.repeats, seconds=self.seconds, memory=limit)
        wanted = always or is_gpu(self.device) or self.costs == MEASURED
        rates = [measured_rates(self.device, dtype)] if wanted else []
        costs = rates[0].device if rates else None
        if self.costs not in (None, MEASURED):
            costs = device_named(str(self.costs))
        told = {"seed": self.seed, "costs": self.costs or (MEASURED if rates else None), "tune": self.tune}
        run = Run("", machine(self.device), asdict(options) | told, load=[load()], rates=list(rates))
        return run, options, rates, costs


@dataclass
class Session:
    """The run so far. `pairs`: its results with their targets, where these are measured; `gpu`: those of a GPU."""

    run: Run
    results: Iterable[Result]
    how: How
    pairs: list[tuple[Target, Result]] | None = None
    gpu: bool = False

    def measured(self) -> Iterator[None]:
        """Adds result after result to the run, and what of the criteria is known by then."""
        for result in self.results:
            self.run.results.append(result)
            self.run.criteria = [outcome.as_dict() for outcome in self.outcomes()]
            yield
        self.run.rates += [measured_rates(self.how.device, rate.dtype) for rate in self.run.rates]
        self.run.finished = True
        self.run.load.append(load())
        yield

    def outcomes(self) -> list[Outcome]:
        return outcomes(self.pairs or (), self.run.rates[0] if self.run.rates else None)

    def text(self) -> str:
        """The tables that are printed."""
        if self.pairs is None:
            return "\n\n".join(filter(None, [text(self.run.results), rates_text(self.run.rates)]))
        found = self.outcomes()
        return target_text(self.pairs, found, self.run.rates) if self.gpu else target_table(found)


def of_cases(cases: Sequence[Case], options: Options, how: How, say: Say) -> Session:
    """A run of designs at lengths. Raises InputError for what cannot be measured, before anything is."""
    for case in cases:
        case.check()
    run, options, rates, costs = how.ready(options, how.dtype, always=False)
    planned = [replace(case, costs=costs, tune=how.tune) for case in cases]
    return Session(run, Bench(options, say, rates[0] if rates else None).results(planned), how)


def of_targets(targets: Sequence[Target], setting: Setting, how: How, say: Say, gpu: bool) -> Session:
    """A run of targets; those of a `gpu` have figures over the machine's rates. Raises InputError as `of_cases`."""
    for target in targets:
        cases_of(target, setting)
    names = dict.fromkeys(name for target in targets for name in target.against if name not in OURS)
    passes = dict.fromkeys(kind for target in targets for kind in target.passes)
    options = Options(tuple(names), setting.backends, tuple(passes))
    run, options, rates, costs = how.ready(options, setting.dtype, always=gpu)
    setting, pairs = replace(setting, costs=costs), list[tuple[Target, Result]]()
    results = _target_results(targets, options, setting, say, rates[0] if rates else None, pairs)
    return Session(run, results, how, pairs, gpu)
