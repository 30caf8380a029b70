"""One run of the command: the machine's rates, results as they are made and the criteria they reach, the rates again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

from tensornet_attn.bench.case import Case
from tensornet_attn.bench.gpu import is_gpu, memory_limit, select
from tensornet_attn.bench.machine import load, machine
from tensornet_attn.bench.ours import OURS
from tensornet_attn.bench.outcome import outcomes
from tensornet_attn.bench.rates import Rates, measured_rates
from tensornet_attn.bench.report import rates_text, target_table, target_text
from tensornet_attn.bench.results import Result, Run
from tensornet_attn.bench.run import Bench, Options
from tensornet_attn.bench.table import text
from tensornet_attn.bench.target_runs import Setting, cases_of, target_results
from tensornet_attn.bench.targets import Target
from tensornet_attn.cost.devices import Device, device_named

MEMORY = 8.0  # GiB, on a CPU
MEASURED = "measured"
Say = Callable[[str], None]


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

    def options(self, options: Options) -> Options:
        limit = memory_limit(self.device, MEMORY) if self.memory is None else self.memory
        return replace(options, repeats=self.repeats, seconds=self.seconds, memory=limit)

    def rates(self, dtype: str, always: bool) -> list[Rates]:
        """The rates of the machine, where something is over them."""
        wanted = always or is_gpu(self.device) or self.costs == MEASURED
        return [measured_rates(self.device, dtype)] if wanted else []

    def planned_for(self, rates: Sequence[Rates]) -> Device | None:
        """Raises InputError for a device that the cost table does not have."""
        if self.costs not in (None, MEASURED):
            return device_named(str(self.costs))
        return rates[0].device if rates else None


@dataclass
class Session:
    """The run so far. `pairs`: its results with their targets, where these are measured; `gpu`: those of a GPU."""

    run: Run
    results: Iterator[Result]
    pairs: list[tuple[Target, Result]] | None = None
    gpu: bool = False
    again: Callable[[], list[Rates]] = field(default=list)

    def measured(self) -> Iterator[None]:
        """Adds result after result to the run, and what of the criteria is known by then."""
        for result in self.results:
            self.run.results.append(result)
            self.run.criteria = [outcome.as_dict() for outcome in outcomes(self.pairs or (), self.rates)]
            yield
        self.run.rates += self.again()
        self.run.finished = True
        self.run.load.append(load())
        yield

    @property
    def rates(self) -> Rates | None:
        return self.run.rates[0] if self.run.rates else None

    def text(self) -> str:
        """The tables that are printed."""
        if self.pairs is None:
            return "\n\n".join(filter(None, [text(self.run.results), rates_text(self.run.rates)]))
        found = outcomes(self.pairs, self.rates)
        return target_text(self.pairs, found, self.run.rates) if self.gpu else target_table(found)


def of_cases(cases: Sequence[Case], options: Options, how: How, say: Say) -> Session:
    """A run of designs at lengths. Raises InputError for what cannot be measured, before anything is."""
    for case in cases:
        case.check()
    select(how.device)
    options, rates = how.options(options), how.rates(how.dtype, always=False)
    planned = [replace(case, costs=how.planned_for(rates), tune=how.tune) for case in cases]
    results = Bench(options, say, rates[0] if rates else None).results(planned)
    return Session(_run(how, options, rates), results, again=_again(how, rates))


def of_targets(targets: Sequence[Target], setting: Setting, how: How, say: Say, gpu: bool) -> Session:
    """A run of targets; those of a `gpu` have figures over the machine's rates. Raises InputError as `of_cases`."""
    for target in targets:
        cases_of(target, setting)
    select(how.device)
    names = dict.fromkeys(name for target in targets for name in target.against if name not in OURS)
    passes = dict.fromkeys(kind for target in targets for kind in target.passes)
    options = how.options(Options(tuple(names), setting.backends, tuple(passes)))
    rates = how.rates(setting.dtype, always=gpu)
    setting, pairs = replace(setting, costs=how.planned_for(rates)), list[tuple[Target, Result]]()
    found = target_results(targets, options, setting, say, rates[0] if rates else None)
    return Session(_run(how, options, rates), _kept(found, pairs), pairs, gpu, _again(how, rates))


def _kept(found: Iterable[tuple[Target, Result]], pairs: list[tuple[Target, Result]]) -> Iterator[Result]:
    for pair in found:
        pairs.append(pair)
        yield pair[1]


def _again(how: How, rates: Sequence[Rates]) -> Callable[[], list[Rates]]:
    return lambda: [measured_rates(how.device, rate.dtype) for rate in rates]


def _run(how: How, options: Options, rates: list[Rates]) -> Run:
    told = asdict(options) | {"seed": how.seed, "costs": how.costs or (MEASURED if rates else None), "tune": how.tune}
    return Run("", machine(how.device), told, load=[load()], rates=list(rates))
