"""Runs benchmarks: measures the rates of the machine, yields results as they are ready, measures the rates again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from tensornet_attn import compiler
from tensornet_attn.bench.bench import Bench, Options, Say, Work, in_batches
from tensornet_attn.bench.case import DECODING, TRAINING, Case
from tensornet_attn.bench.contestants import OURS
from tensornet_attn.bench.machine import Rates, load, machine, measured_rates, memory_limit, select
from tensornet_attn.bench.measure import is_gpu
from tensornet_attn.bench.report import rates_text, step_text, target_table, target_text, text
from tensornet_attn.bench.results import BenchmarkRun, PassResult
from tensornet_attn.bench.targets import BATCH, BenchmarkTarget, CriterionOutcome, outcomes
from tensornet_attn.cost.devices import Device, device_named

MEMORY = 8.0  # GiB, on a CPU
MEASURED = "measured"


@dataclass(frozen=True)
class Setting:
    """The setting of a run.

    `costs`: the device that our modules are planned for: `measured`, or a device of the cost table; by default
    `measured` if rates are measured, as on a GPU. `memory`: limit in GiB; by default 8, or half of a GPU's memory. `n`
    replaces the lengths of targets. Criteria apply to the first of `backends`. `planned`: the device of `costs`.
    `jobs`: how many cases are prepared at once, each in a process of its own.
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
    graphs: bool = False
    jobs: int = 1

    def ready(self, options: Options, always: bool) -> tuple[BenchmarkRun, Options, Setting]:
        """Starts a run. Returns it with its options, and this setting with `planned`.

        Plans are for the measured rates if `always`, on a GPU, or if `costs` is `measured`. Raises InputError for an
        unknown device.
        """
        select(self.device)
        limit = memory_limit(self.device, MEMORY) if self.memory is None else self.memory
        options = replace(options, repeats=self.repeats, seconds=self.seconds, memory=limit, graphs=self.graphs)
        wanted = always or is_gpu(self.device) or self.costs == MEASURED
        rates = [] if DECODING in options.passes else [measured_rates(self.device, self.dtype)]  # steps have no floor
        planned = rates[0].device if wanted else None
        if self.costs not in (None, MEASURED):
            planned = device_named(str(self.costs))
        further = {"seed": self.seed, "costs": self.costs or (MEASURED if wanted else None), "tune": self.tune}
        run = BenchmarkRun("", machine(self.device), asdict(options) | further, load=[load()], rates=rates)
        return run, options, replace(self, planned=planned)


def cases_of(target: BenchmarkTarget, setting: Setting) -> list[Case]:
    """The case of a target, and one at half the length for a growth criterion. Raises InputError for invalid cases."""
    design = compiler.load(target.design, legs=target.legs, settings=target.settings)
    shared = {name: getattr(setting, name) for name in ("batch", "dtype", "device", "seed", "tune")}
    case = Case(design, setting.n or target.n, costs=setting.planned, **shared)
    cases = [case, case.at(case.n // 2)] if target.grows else [case]
    for checked in cases:
        checked.check()
    return cases


def options_of(target: BenchmarkTarget, options: Options, setting: Setting) -> Options:
    """The options of a target, with its contestants: our backends, and the peers of the target."""
    backends = dict.fromkeys([*setting.backends, *(name for name in target.against if name in OURS)])
    against = [name for name in target.against if name not in OURS]
    return replace(options, against=against, backends=tuple(backends), passes=target.passes)


@dataclass
class BenchmarkSession:
    """The run so far. `pairs`: targets with their results, if targets are measured. `gpu`: they are GPU targets."""

    run: BenchmarkRun
    results: Iterable[PassResult]
    setting: Setting
    pairs: list[tuple[BenchmarkTarget, PassResult]] | None = None
    gpu: bool = False

    def measured(self) -> Iterator[None]:
        """Adds results and outcomes to the run, one result per iteration."""
        for result in self.results:
            self.run.results.append(result)
            self.run.criteria = [outcome.as_dict() for outcome in self.outcomes()]
            yield
        self.run.rates += [measured_rates(self.setting.device, rate.dtype) for rate in self.run.rates]
        self.run.finished = True
        self.run.load.append(load())
        yield

    def outcomes(self) -> list[CriterionOutcome]:
        return outcomes(self.pairs or (), self.run.rate)

    def text(self) -> str:
        if self.pairs is None and all(result.kind == DECODING for result in self.run.results):
            return step_text(self.run.results)
        if self.pairs is None:
            return "\n\n".join(filter(None, [text(self.run.results), rates_text(self.run.rates)]))
        reached = self.outcomes()
        return target_text(self.pairs, reached, self.run.rates) if self.gpu else target_table(reached)


def of_cases(cases: Sequence[Case], options: Options, setting: Setting, say: Say) -> BenchmarkSession:
    """A run that measures cases. Raises InputError for an invalid case, before any measurement."""
    for case in cases:
        case.check()
    run, options, setting = setting.ready(options, always=False)
    planned = [replace(case, costs=setting.planned, tune=setting.tune) for case in cases]
    results = (result for _, result in results_of([(options, case) for case in planned], setting, run.rate, say))
    return BenchmarkSession(run, results, setting)


def of_targets(targets: Sequence[BenchmarkTarget], setting: Setting, say: Say, gpu: bool) -> BenchmarkSession:
    """A run that measures targets; for a `gpu` it also measures rates. Raises InputError as `of_cases` does."""
    for target in targets:
        cases_of(target, setting)
    names = dict.fromkeys(name for target in targets for name in target.against if name not in OURS)
    passes = dict.fromkeys(kind for target in targets for kind in target.passes)
    options = Options(tuple(names), setting.backends, tuple(passes))
    run, options, ready = setting.ready(options, always=gpu)
    alone = replace(options, against=(), backends=ready.backends[:1], passes=(TRAINING,))
    work, owners = list[Work](), list[BenchmarkTarget]()
    for target in targets:
        case, *half = cases_of(target, ready)
        work += [(options_of(target, options, ready), case), *((alone, half_case) for half_case in half)]
        owners += [target] * (1 + len(half))
    pairs: list[tuple[BenchmarkTarget, PassResult]] = []

    def results() -> Iterator[PassResult]:
        """Yields all results, and adds them to `pairs`."""
        for index, result in results_of(work, ready, run.rate, say):
            pairs.append((owners[index], result))
            yield result

    return BenchmarkSession(run, results(), ready, pairs, gpu)


def results_of(
    work: Sequence[Work], setting: Setting, rates: Rates | None, say: Say
) -> Iterator[tuple[int, PassResult]]:
    """Yields each result with the index of its case. With several `jobs`, other processes prepare the cases."""
    if setting.jobs > 1:
        yield from in_batches(work, setting.jobs, rates, say)
        return
    for index, (options, case) in enumerate(work):
        yield from ((index, result) for result in Bench(options, say, rates).results([case]))
