"""Measures cases: compares each contestant with the reference, times all of them interleaved, measures peak memory.

Several cases can be prepared at once, each in a process of its own: compilation and the comparison take most of a
benchmark. Times are taken while no other process of the run works: all processes of a batch are ready before that.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import torch
from torch import nn

from tensornet_attn.bench.case import PASSES, Case, runner
from tensornet_attn.bench.compare import Oracle, WrongError, oracle, values_of
from tensornet_attn.bench.contestants import AGAINST, OURS, Contestant, SkippedError, contestant
from tensornet_attn.bench.floor import model_of
from tensornet_attn.bench.machine import Rates, select, start_worker, tidy
from tensornet_attn.bench.measure import (
    WARM,
    Call,
    Timed,
    captured,
    clock_of,
    interleaved,
    is_gpu,
    peak_bytes,
    sample_of,
)
from tensornet_attn.bench.own import HOOK, check_output, maker_named
from tensornet_attn.bench.results import FAILED, SKIPPED, WRONG, Entry, PassResult, ratio, spread
from tensornet_attn.errors import InputError, TensornetError, nearest
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.named import name_of

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

Say = Callable[[str], None]
GIB = 2**30
COMPILED = {"inductor", "compile", "flex", "fla"}


@dataclass(frozen=True)
class Options:
    """Options of a benchmark.

    `against`: names, `module:name` of your own layers, or their classes. `seconds`: time limit for each pass of each
    case. `memory`: limit in GiB of tensors over pairs of positions. `graphs`: time CUDA graphs of the calls, on a GPU.
    `uncompared`: measure your own layers also if their weights are not those of the design.
    """

    against: Sequence[str | Callable[..., nn.Module]] = ("eager", "compile", "sdpa")
    backends: Sequence[str] = ("torch",)
    passes: Sequence[str] = PASSES
    repeats: int = 20
    seconds: float = 10.0
    memory: float = 8.0
    graphs: bool = False
    uncompared: bool = False

    def __post_init__(self) -> None:
        against = tuple(name if isinstance(name, str) else name_of(name, "contestant") for name in self.against)
        object.__setattr__(self, "against", against)
        for word, names, choices in (("contestant", against, AGAINST), ("backend to measure", self.backends, OURS)):
            for name in names:
                if ":" in name and names is against:
                    maker_named(name)
                elif name not in choices:
                    raise InputError(f"there is no {word} '{name}': {nearest(name, choices)}")
        if not self.backends:
            raise InputError("name a backend to measure, e.g. torch.")

    @property
    def names(self) -> list[str]:
        """All contestants without duplicates, ours first."""
        return list(dict.fromkeys((*self.backends, *map(str, self.against))))


Work = tuple[Options, Case]


@dataclass
class Prepared:
    """A case whose contestants are compared and compiled, but not timed. `ready`: those to time."""

    case: Case
    result: PassResult
    ready: dict[str, Contestant] = field(default_factory=dict)


@dataclass
class Bench:
    """Measures cases. Results of the reference are cached for all passes of a case.

    `rates`: measured rates of the machine, for the floor of each result. If they are None, results have no floor.
    """

    options: Options
    say: Say = lambda message: None
    rates: Rates | None = None
    oracles: dict[object, Oracle] = field(default_factory=dict)

    def results(self, cases: Sequence[Case]) -> Iterator[PassResult]:
        """Yields a result for each pass of each case. Raises InputError before the first, see `Case.check`."""
        for case in cases:
            case.check()
        for case in cases:
            self.oracles.clear()
            tidy(case.device)
            if any(name in COMPILED or ":" in name for name in self.options.names):
                torch.compiler.reset()  # otherwise, torch compiles a second length as dynamic
            for kind in self.options.passes:
                prepared = self.prepared(case, kind)
                self.time(prepared)
                yield prepared.result

    def prepared(self, case: Case, kind: str) -> Prepared:
        """A result without times, and the contestants whose results are correct."""
        self.say(f"{case.design.name}, n {case.n}, {kind}: comparing with the reference ...")
        prepared = Prepared(case, blank(case, kind, self.options.backends[0]))
        prepared.result.model = model_of(case, kind, prepared.result.ours, self.rates)
        for name in self.options.names:
            prepared.result.entries.append(self.added(name, prepared))
        return prepared

    def added(self, name: str, prepared: Prepared) -> Entry:
        """The entry of a contestant, which is ready to be timed if its results are correct."""
        case, result = prepared.case, prepared.result
        entry, compared = self.checked(name, case, result.kind)
        entry.floor = self.floor(result, case, compared, result.kind)
        if compared is not None:
            prepared.ready[name] = compared
        return entry

    def warm(self, prepared: Prepared) -> None:
        """Compiles what was compared at another length than that of the case."""
        for name, compared in prepared.ready.items():
            if prepared.result.entry(name).checked_n != prepared.case.n:
                with suppress(Exception):  # it fails again when it is timed, and is reported then
                    runner(compared.module, compared.case, compared.case.inputs(), prepared.result.kind)()

    def again(self, prepared: Prepared) -> None:
        """Compares again what failed, perhaps for the memory that other processes used at that time."""
        for index, entry in enumerate(prepared.result.entries):
            if entry.status == FAILED:
                prepared.result.entries[index] = self.added(entry.name, prepared)

    def floor(self, result: PassResult, case: Case, compared: Contestant | None, kind: str) -> float | None:
        """The floor of a contestant: that of the result, unless it computes another function; None if not compared."""
        if compared is not None and compared.layer is not None and compared.layer.unlike:
            return None
        if compared is None or compared.case.design is case.design:
            return None if result.model is None else result.model.floor
        return model_of(compared.case, kind, result.ours, self.rates).floor

    def checked(self, name: str, case: Case, kind: str) -> tuple[Entry, Contestant | None]:
        """The entry of a contestant, and the contestant if its results are correct. The entry has the reason if not."""
        entry, compared = Entry(name), None
        with reported(entry, hint(case)):
            compared = contestant(name, case, kind, self.options.memory * GIB)
            layer = compared.layer
            if layer is not None and layer.unlike:
                self.uncompared(entry, layer.unlike)
                check_output(name, compared.module, case)
                return entry, compared
            entry.note, reference = compared.note, self.oracle(compared.case)
            entry.checked_n, short = reference.n, compared.case.at(reference.n)
            if layer is not None:
                check_output(name, compared.module, short)
            values = values_of(compared.module, short, kind)
            entry.error = reference.error(values if layer is None else layer.ours(values))
        return entry, compared if not entry.reason else None

    def uncompared(self, entry: Entry, unlike: str) -> None:
        """Notes that a layer of the user is not compared. Raises SkippedError unless this is allowed."""
        if not self.options.uncompared:
            hint = f"add the method '{HOOK}' to it, or measure it without a comparison: --uncompared"
            raise SkippedError(f"{unlike}, so its results cannot be compared; {hint}.")
        entry.note = f"not compared: {unlike}"

    def oracle(self, case: Case) -> Oracle:
        if case.key not in self.oracles:
            self.oracles[case.key] = oracle(case, self.options.memory * GIB)
        return self.oracles[case.key]

    def time(self, prepared: Prepared) -> None:
        """Measures times and peak memory, and sets them in the entries."""
        result, ready = prepared.result, prepared.ready
        self.say(f"{result.design}, n {result.n}, {result.kind}: timing {', '.join(ready)} ...")
        calls: dict[str, Callable[[], object]] = {
            name: runner(compared.module, compared.case, compared.case.inputs(), result.kind)
            for name, compared in ready.items()
        }
        graphs = self.graphs(result, calls) if self.options.graphs else calls
        warm = WARM if is_gpu(result.device) else 0.0
        timed = interleaved(
            graphs, self.options.repeats, self.options.seconds, clock_of(result.device), sample_of(result.device), warm
        )
        for name in graphs:
            fill(result.entry(name), timed[name], calls[name], result.device)
        for entry in result.entries:
            comparable = entry.seconds is not None and result.entry(result.ours).seconds is not None
            if comparable and entry.name != result.ours:
                entry.ratio = ratio(timed[entry.name].seconds, timed[result.ours].seconds)

    def graphs(self, result: PassResult, calls: dict[str, Call]) -> dict[str, Call]:
        """CUDA graphs of the calls; an entry whose call cannot be captured fails."""
        graphs, pool = {}, torch.cuda.graph_pool_handle() if is_gpu(result.device) else None
        for name, call in calls.items():
            try:
                graphs[name] = captured(call, pool)
            except Exception as error:
                entry = result.entry(name)
                entry.status, entry.reason = FAILED, f"a CUDA graph cannot capture it: {sentence(error)}"
        return graphs


@contextmanager
def reported(entry: Entry, hint: str = "") -> Iterator[None]:
    """Puts into the entry why its contestant is skipped, wrong or failed, so that the others continue."""
    try:
        yield
    except SkippedError as reason:
        entry.status, entry.reason = SKIPPED, str(reason)
    except WrongError as reason:
        entry.status, entry.reason = WRONG, f"{reason}.{hint}"
    except Exception as error:
        entry.status, entry.reason = FAILED, sentence(error)


def fill(entry: Entry, timed: Timed, call: Call, device: str) -> None:
    """Sets the times of an entry and its peak memory."""
    with reported(entry):
        if timed.failed is not None:
            raise timed.failed
        entry.peak_bytes = peak_bytes(call, device)
        entry.seconds, entry.rounds, entry.calls = spread(timed.seconds), len(timed.seconds), timed.calls


def hint(case: Case) -> str:
    """Another possible reason for differences from the reference."""
    if any(operation_of(step).selects for step in case.graph.steps):
        return " A topk may select differently if gates are nearly equal; try another --seed."
    return ""


def blank(case: Case, kind: str, ours: str) -> PassResult:
    lengths = {leg: case.lengths.get(leg, size) for leg, size in case.design.legs.items()}
    legs = {leg: size for leg, size in lengths.items() if size is not None}
    settings = {name: case.graph.values[name] for name in case.design.settings}
    how = (case.n, case.batch, case.dtype, case.device, case.graph.causal)
    return PassResult(case.design.name, kind, *how, legs, settings, ours)


def sentence(error: Exception) -> str:
    """An error in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return f"out of memory: {lines[0][:200]}"
    return lines[0] if isinstance(error, TensornetError) else f"{type(error).__name__}: {lines[0][:200]}"


SAID, READY, DONE = "said", "ready", "done"


def in_batches(work: Sequence[Work], jobs: int, rates: Rates | None, say: Say) -> Iterator[tuple[int, PassResult]]:
    """Yields the results of each case with its index. A process measures all passes of a case; `jobs` work at once."""
    for start in range(0, len(work), jobs):
        batch = list[_Worker]()
        try:
            for case_work in work[start : start + jobs]:
                batch.append(_Worker(case_work, rates, say))
            for worker in batch:
                worker.wait(READY)
            for index, worker in enumerate(batch, start):
                yield from ((index, result) for result in worker.timed())
        finally:
            for worker in batch:
                worker.process.kill()


class _Worker:
    """A process that prepares a case, waits for its turn, and times it."""

    def __init__(self, work: Work, rates: Rates | None, say: Say):
        self.work, self.say = work, say
        context = multiprocessing.get_context("spawn")  # a fork could not use the GPU
        self.link, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_measure, args=(*work, rates, torch.get_num_threads(), theirs), daemon=True
        )
        self.process.start()
        theirs.close()  # otherwise the end of the process would not close the pipe

    def wait(self, wanted: str) -> list[PassResult]:
        """Repeats what the process says until it is ready, or done with these results. Results say why if it died."""
        try:
            while True:
                kind, payload = self.link.recv()
                if kind == wanted:
                    return payload
                self.say(payload)
        except (EOFError, OSError):
            return self.died()

    def timed(self) -> list[PassResult]:
        try:
            self.link.send(None)
        except OSError:  # it died while it was prepared
            return self.died()
        return self.wait(DONE)

    def died(self) -> list[PassResult]:
        self.process.join()
        reason = f"its process ended with exit code {self.process.exitcode}."
        options, case = self.work
        results = [blank(case, kind, options.backends[0]) for kind in options.passes]
        for result in results:
            result.entries = [Entry(name, FAILED, reason) for name in options.names]
        return results


def _measure(options: Options, case: Case, rates: Rates | None, threads: int, link: Connection) -> None:
    start_worker(threads)
    select(case.device)
    bench = Bench(options, lambda message: link.send((SAID, message)), rates)
    prepared = [bench.prepared(case, kind) for kind in options.passes]
    for case_pass in prepared:
        bench.warm(case_pass)
    tidy(case.device)
    link.send((READY, []))
    try:
        link.recv()
    except EOFError:  # the run has ended
        return
    for case_pass in prepared:
        bench.again(case_pass)
        bench.time(case_pass)
    link.send((DONE, [case_pass.result for case_pass in prepared]))
