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
    """How a run measures. `costs`: what ours is planned for, `measured`, or a device of the cost table; None: the
    former where rates are measured, as on a GPU. `memory` in GiB; None: 8, and half of a GPU's.

    Of targets, `n` replaces their own lengths; criteria are of the first backend. `planned`: the device of `costs`.
    """

    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0
    costs: str | None = None
    tune: bool = False
    memory: float | None = None
    repeats: int = 20
    seconds: float = 10.0
    n: int | None = None
    batch: int = BATCH
    backends: tuple[str, ...] = ("torch",)
    planned: Device | None = None

    def ready(self, options: Options, always: bool) -> tuple[Run, Options, list[Rates], Setting]:
        """What a run begins with: itself, its options, the machine's rates, and this with what ours is planned for.

        Rates are measured where something is over them. Raises InputError for a device that the cost table lacks.
        """
        select(self.device)
        limit = memory_limit(self.device, MEMORY) if self.memory is None else self.memory
        options = replace(options, repeats=self.repeats, seconds=self.seconds, memory=limit)
        wanted = always or is_gpu(self.device) or self.costs == MEASURED
        rates = [measured_rates(self.device, self.dtype)] if wanted else []
        planned = rates[0].device if rates else None
        if self.costs not in (None, MEASURED):
            planned = device_named(str(self.costs))
        told = {"seed": self.seed, "costs": self.costs or (MEASURED if rates else None), "tune": self.tune}
        run = Run("", machine(self.device), asdict(options) | told, load=[load()], rates=list(rates))
        return run, options, rates, replace(self, planned=planned)


def cases_of(target: Target, setting: Setting) -> list[Case]:
    """The case of a target, and that of half its length where growth counts. Raises InputError where one cannot be."""
    design = compiler.load(target.design, legs=target.legs, settings=target.settings)
    shared = {name: getattr(setting, name) for name in ("batch", "dtype", "device", "seed", "tune")}
    case = Case(design, setting.n or target.n, costs=setting.planned, **shared)
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


@dataclass
class Session:
    """The run so far. `pairs`: its results with their targets, where these are measured; `gpu`: those of a GPU."""

    run: Run
    results: Iterable[Result]
    setting: Setting
    pairs: list[tuple[Target, Result]] | None = None
    gpu: bool = False

    def measured(self) -> Iterator[None]:
        """Adds result after result to the run, and what of the criteria is known by then."""
        for result in self.results:
            self.run.results.append(result)
            self.run.criteria = [outcome.as_dict() for outcome in self.outcomes()]
            yield
        self.run.rates += [measured_rates(self.setting.device, rate.dtype) for rate in self.run.rates]
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


def of_cases(cases: Sequence[Case], options: Options, setting: Setting, say: Say) -> Session:
    """A run of designs at lengths. Raises InputError for what cannot be measured, before anything is."""
    for case in cases:
        case.check()
    run, options, rates, setting = setting.ready(options, always=False)
    planned = [replace(case, costs=setting.planned, tune=setting.tune) for case in cases]
    return Session(run, Bench(options, say, rates[0] if rates else None).results(planned), setting)


def of_targets(targets: Sequence[Target], setting: Setting, say: Say, gpu: bool) -> Session:
    """A run of targets; those of a `gpu` have figures over the machine's rates. Raises InputError as `of_cases`."""
    for target in targets:
        cases_of(target, setting)
    names = dict.fromkeys(name for target in targets for name in target.against if name not in OURS)
    passes = dict.fromkeys(kind for target in targets for kind in target.passes)
    options = Options(tuple(names), setting.backends, tuple(passes))
    run, options, rates, setting = setting.ready(options, always=gpu)
    pairs: list[tuple[Target, Result]] = []
    results = _target_results(targets, options, setting, say, rates[0] if rates else None, pairs)
    return Session(run, results, setting, pairs, gpu)
