"""Compares predicted with measured times of plans, and each choice with the best of its candidates.

The candidates of a design at a length are all plans that the planner can make: in each way to plan, and without or with
each rewriting and implementation. They are measured interleaved in one process, a new one for each design, length and
pass: memory that earlier ones freed would change times. A time is the shortest of its rounds, because other load only
adds time. With one thread, only the time of the process counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tensornet_attn import compiler
from tensornet_attn.bench.case import Case, runner
from tensornet_attn.bench.machine import select, start_worker, tidy
from tensornet_attn.bench.measure import Clock, by_clock, calls_for, is_gpu, turns
from tensornet_attn.cost.target import Target, target_from
from tensornet_attn.errors import InputError
from tensornet_attn.kernels.native import NATIVE
from tensornet_attn.plan.auto import faster_on_cpu
from tensornet_attn.plan.make import candidates
from tensornet_attn.plan.plan import Plan
from tensornet_attn.report.words import aligned

WITHIN = 0.10  # of the best candidate
ROUNDS, LEAST = 7, 3
FAR = 4.0  # a candidate is not measured if its predicted time is this many times that of the chosen one
SLOW = 3.0  # a candidate is not measured again if its first call takes this many times the fastest one's
SPARE = 3.0  # seconds of planning and compiling a case, for the estimate
SAMPLED = 20  # cases of which the time is predicted, for the estimate of a run
FEW = 5  # candidates of a case, for the estimate


@dataclass(frozen=True)
class Candidate:
    """A plan: the way to get it, its predicted seconds, and the measured ones; None if it was too large or slow."""

    way: str
    predicted: float
    seconds: float | None


@dataclass(frozen=True)
class Decision:
    """The candidates of a design at one length in one pass, the chosen one first. `sizes`: legs and settings."""

    design: str
    sizes: Mapping[str, Any]
    n: int
    batch: int
    kind: str
    device: str
    threads: int
    candidates: tuple[Candidate, ...]

    @property
    def error(self) -> float | None:
        """The predicted time of the choice over the measured one, minus 1, without sign."""
        chosen = self.candidates[0]
        return None if chosen.seconds is None else abs(chosen.predicted / chosen.seconds - 1)

    @property
    def measured(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.seconds is not None]

    @property
    def best(self) -> Candidate:
        return min(self.measured, key=lambda candidate: candidate.seconds or 0.0)

    @property
    def regret(self) -> float | None:
        """The time of the choice over that of the best candidate, minus 1; None if there was no choice."""
        chosen = self.candidates[0].seconds
        if chosen is None or len(self.measured) < 2:
            return None
        return chosen / (self.best.seconds or chosen) - 1

    def as_dict(self) -> dict[str, Any]:
        fields = {("pass" if name == "kind" else name): value for name, value in asdict(self).items()}
        return fields | {"error": self.error, "regret": self.regret}


def decision_of(row: Mapping[str, Any]) -> Decision:
    """The decision of a row of a results file. Raises KeyError, TypeError or AttributeError if it is none."""
    tried = tuple(Candidate(**fields) for fields in row["candidates"])
    return Decision(
        row["design"], dict(row["sizes"]), row["n"], row["batch"], row["pass"], row["device"], row["threads"], tried
    )


@dataclass
class Regret:
    """A comparison over cases. `path`: the file to which decisions are appended, and from which a run resumes.

    `clock`: to measure in this process by it.
    """

    cases: Sequence[tuple[Case, str]]
    path: Path | None = None
    say: Callable[[str], None] = lambda message: None
    memory: float = 2.0**31
    clock: Clock | None = None

    def decisions(self) -> Iterator[Decision]:
        """Yields a decision for each case: those in the file first. Raises InputError for a damaged file."""
        saved = {_key(decision): decision for decision in read(self.path)} if self.path is not None else {}
        keys = {_key(blank(case, kind)): (case, kind) for case, kind in self.cases}
        yield from (saved[key] for key in keys if key in saved)
        waiting = [case for key, case in keys.items() if key not in saved]
        self.say(
            f"{len(keys) - len(waiting)} decisions are in the file, {len(waiting)} to measure in {estimate(waiting)}"
        )
        start = time.perf_counter()
        for count, (case, kind) in enumerate(waiting, 1):
            decision = decided(case, kind, self.memory, self.clock) if self.clock else self.apart(case, kind)
            left = (time.perf_counter() - start) / count * (len(waiting) - count)
            words = f"{len(decision.candidates)} candidates" if decision else "its process ended before it was measured"
            self.say(f"{case.design.name}, n {case.n}, {kind}: {words}; {_long(left)} left")
            if decision is None:
                continue
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(decision.as_dict()) + "\n")
            yield decision

    def apart(self, case: Case, kind: str) -> Decision | None:
        """The decision of a case in a process of its own. Returns None if the process died, perhaps out of memory."""
        context = get_context("forkserver")
        context.set_forkserver_preload([__name__])
        threads = torch.get_num_threads()
        with ProcessPoolExecutor(1, context, start_worker, (threads,)) as pool, suppress(BrokenProcessPool):
            return pool.submit(decided, case, kind, self.memory).result()
        return None


def decided(case: Case, kind: str, memory: float, clock: Clock | None = None) -> Decision:
    """Measures the candidates of a case that fit into memory and are not predicted to be far slower."""
    select(case.device)
    plans = candidates_of(case, kind)
    prices = {name: plan.price for name, plan in plans}
    limit = FAR * prices[plans[0][0]].seconds
    small = {name for name, price in prices.items() if price.bytes <= memory and price.seconds <= limit}
    times = _times(case, kind, [(name, plan) for name, plan in plans if name in small], clock)
    measured = (Candidate(name, prices[name].seconds, times.get(name)) for name, _ in plans)
    return replace(blank(case, kind), candidates=tuple(measured))


def _times(case: Case, kind: str, plans: Iterable[tuple[str, Plan]], clock: Clock | None) -> dict[str, float]:
    """The shortest seconds of each plan, interleaved; plans much slower than the fastest one are called once."""
    single_thread = torch.get_num_threads() == 1
    sample, best = by_clock(clock or (time.process_time if single_thread else time.perf_counter)), dict[str, float]()
    calls = {}
    for name, plan in plans:
        tidy(case.device)
        module = case.loaded(compiler.module_of(case.design, plan))
        calls[name] = runner(module, case, case.inputs(), kind)
        sample(calls[name], 1)  # the first call allocates
        best[name] = sample(calls[name], 1)
    limit = SLOW * min(best.values(), default=0.0)
    again = [name for name, seconds in best.items() if seconds <= limit]
    for number in range(ROUNDS if len(again) > 1 else LEAST):
        for name in turns(again, number):
            best[name] = min(best[name], sample(calls[name], calls_for(best[name])))
    return best


def candidates_of(case: Case, kind: str) -> list[tuple[str, Plan]]:
    """The plans of a case by the way to get them, the chosen one first; also that of cached C++ kernels."""
    target = target_of(case, kind)
    plans = candidates(case.graph, target)
    cpp = None if is_gpu(case.device) else compiler.cached_cpp(case.graph, target, case.dtype)
    if cpp:
        taken = faster_on_cpu(cpp, lambda: next(iter(plans.values()))).backend == cpp.backend
        plans = {NATIVE.name: cpp} | plans if taken else plans | {NATIVE.name: cpp}
    return [*plans.items()]


def target_of(case: Case, kind: str) -> Target:
    return target_from(**case.wanted(kind))


def blank(case: Case, kind: str) -> Decision:
    """The decision of a case before its candidates are known."""
    costs = "" if case.costs is None else case.costs.name
    return Decision(case.design.name, case.sizes, case.n, case.batch, kind, costs, torch.get_num_threads(), ())


def estimate(cases: Sequence[tuple[Case, str]]) -> str:
    """About how long measuring takes, from the predicted time of some cases."""
    some = cases[:: max(1, len(cases) // SAMPLED)]
    total = 0.0
    for case, kind in some:
        plan = compiler.plan_of(case.graph, "torch", target_of(case, kind))
        calls = FEW * (ROUNDS + 2)
        total += SPARE + calls * plan.price.seconds
    return f"about {_long(total / len(some) * len(cases))}" if some else "no time"


def _long(seconds: float) -> str:
    """
    >>> _long(59), _long(600)
    ('59 seconds', '10 minutes')
    """
    return f"{seconds / 60:.0f} minutes" if seconds >= 100 else f"{seconds:.0f} seconds"


def _key(decision: Decision) -> tuple[object, ...]:
    """What distinguishes decisions."""
    sizes = json.dumps(dict(decision.sizes), sort_keys=True, default=str)
    return decision.design, sizes, decision.n, decision.batch, decision.kind, decision.device, decision.threads


def read(path: Path) -> list[Decision]:
    """The decisions in a file, one a line; a last line that a killed run did not finish is dropped.

    Raises InputError for another line that is no decision.
    """
    if not path.exists():
        return []
    lines, decisions = path.read_text(encoding="utf-8").splitlines(keepends=True), list[Decision]()
    for index, line in enumerate(lines):
        try:
            decisions.append(decision_of(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError):
            if index < len(lines) - 1 or line.endswith("\n"):
                raise InputError(f"{path}: line {index + 1} is no result of --regret; name another file.") from None
            path.write_text("".join(lines[:-1]), encoding="utf-8")
    return decisions


def summary(decisions: Sequence[Decision]) -> dict[str, Any]:
    """The median error, and the share of choices within a tenth of the best candidate."""
    errors = [decision.error for decision in decisions if decision.error is not None]
    regrets = [decision.regret for decision in decisions if decision.regret is not None]
    return {
        "decisions": len(decisions),
        "median_error": median(errors) if errors else None,
        "choices": len(regrets),
        "within": WITHIN,
        "share_within": sum(regret <= WITHIN for regret in regrets) / len(regrets) if regrets else None,
    }


def text(decisions: Sequence[Decision]) -> str:
    """A line for each decision, and the summary."""
    rows = [("design", "n", "pass", "predicted", "measured", "error", "candidates", "regret", "best")]
    for decision in decisions:
        chosen = decision.candidates[0]
        timed = chosen.seconds is not None
        rows.append(
            (
                decision.design,
                f"{decision.n:,}",
                decision.kind,
                f"{1e3 * chosen.predicted:.3g} ms",
                f"{1e3 * chosen.seconds:.3g} ms" if chosen.seconds is not None else "-",
                f"{decision.error:.0%}" if decision.error is not None else "-",
                f"{len(decision.measured)} of {len(decision.candidates)}",
                f"{decision.regret:.0%}" if decision.regret is not None else "-",
                decision.best.way if timed and decision.best is not chosen else "",
            )
        )
    figures = summary(decisions)
    lines = ["\n".join(line.rstrip() for line in aligned(rows))]
    if figures["median_error"] is not None:
        lines.append(f"median error of the predicted time: {figures['median_error']:.1%}")
    if figures["share_within"] is not None:
        lines.append(
            f"choices within {WITHIN:.0%} of the best candidate: {figures['share_within']:.1%} of {figures['choices']}"
        )
    return "\n".join(lines)
