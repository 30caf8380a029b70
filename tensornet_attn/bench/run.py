"""The benchmark: every contestant of every case, compared with the reference, timed in turns, then its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from tensornet_attn.bench.case import PASSES, Case, runner
from tensornet_attn.bench.compare import Oracle, WrongError, oracle, values_of
from tensornet_attn.bench.contestants import AGAINST, OURS, Contestant, SkippedError, contestant
from tensornet_attn.bench.machine import Rates, tidy
from tensornet_attn.bench.measure import WARM, clock_of, interleaved, is_gpu, sample_of
from tensornet_attn.bench.memory import peak_bytes
from tensornet_attn.bench.model import model_of
from tensornet_attn.bench.results import FAILED, SKIPPED, WRONG, Entry, Result, ratio, spread
from tensornet_attn.errors import InputError, nearest

GIB = 2**30
COMPILED = {"inductor", "compile", "flex", "fla"}


@dataclass(frozen=True)
class Options:
    """How to measure. `seconds`: of timing for each pass of each case; `memory`: GiB of tensors over pairs."""

    against: Sequence[str] = ("eager", "compile", "sdpa")
    backends: Sequence[str] = ("torch",)
    passes: Sequence[str] = PASSES
    repeats: int = 20
    seconds: float = 10.0
    memory: float = 8.0

    def __post_init__(self) -> None:
        for word, names, known in (("contestant", self.against, AGAINST), ("backend to measure", self.backends, OURS)):
            for name in names:
                if name not in known:
                    raise InputError(f"there is no {word} '{name}': {nearest(name, known)}")
        if not self.backends:
            raise InputError("name a backend to measure, e.g. torch.")

    @property
    def names(self) -> list[str]:
        """Every contestant once, ours first."""
        return list(dict.fromkeys((*self.backends, *self.against)))


@dataclass
class Bench:
    """Measures cases; what the reference computes is kept while a case and its passes last.

    `rates` of the machine, over which the floor of each result stands; None: it has none.
    """

    options: Options
    say: Callable[[str], None] = lambda text: None
    rates: Rates | None = None
    oracles: dict[object, Oracle] = field(default_factory=dict)

    def results(self, cases: Sequence[Case]) -> Iterator[Result]:
        """A result for each pass of each case, as it is made. Raises InputError before the first, see `Case.check`."""
        for case in cases:
            case.check()
        for case in cases:
            self.oracles.clear()
            tidy(case.device)
            if COMPILED & set(self.options.names):
                torch.compiler.reset()  # or a second length would be compiled as a length that varies
            for kind in self.options.passes:
                yield self.measured(case, kind)

    def measured(self, case: Case, kind: str) -> Result:
        self.say(f"{case.design.name}, n {case.n}, {kind}: comparing with the reference ...")
        result, ready = blank(case, kind, self.options.backends[0]), dict[str, Contestant]()
        result.model = model_of(case, kind, result.ours, self.rates)
        for name in self.options.names:
            entry, found = self.checked(name, case, kind)
            result.entries.append(entry)
            if found is not None:
                ready[name] = found
        self.say(f"{case.design.name}, n {case.n}, {kind}: timing {', '.join(ready)} ...")
        self.time(result, ready, kind)
        return result

    def checked(self, name: str, case: Case, kind: str) -> tuple[Entry, Contestant | None]:
        """The contestant where its numbers are right, else an entry that says what is the matter."""
        entry = Entry(name)
        try:
            found = contestant(name, case, kind, self.options.memory * GIB)
            entry.note, wanted = found.note, self.oracle(found.case)
            entry.checked_n = wanted.n
            entry.error = wanted.error(values_of(found.module, found.case.at(wanted.n), kind))
        except SkippedError as reason:
            entry.status, entry.reason = SKIPPED, str(reason)
        except WrongError as reason:
            entry.status, entry.reason = WRONG, f"{reason}.{hint(case)}"
        except Exception as error:  # a contestant that breaks is a finding, not the end
            entry.status, entry.reason = FAILED, sentence(error)
        return entry, found if not entry.reason else None

    def oracle(self, case: Case) -> Oracle:
        if case.key not in self.oracles:
            self.oracles[case.key] = oracle(case, self.options.memory * GIB)
        return self.oracles[case.key]

    def time(self, result: Result, ready: dict[str, Contestant], kind: str) -> None:
        """Times and peaks of memory, into the entries."""
        calls = {name: runner(c.module, c.case, c.case.inputs(), kind) for name, c in ready.items()}
        warm = WARM if is_gpu(result.device) else 0.0
        timed = interleaved(
            calls,
            self.options.repeats,
            self.options.seconds,
            clock_of(result.device),
            sample_of(result.device),
            warm,
        )
        for name, call in calls.items():
            entry, found = result.entry(name), timed[name]
            try:
                if found.failed is not None:
                    raise found.failed
                entry.peak_bytes = peak_bytes(call, result.device)
            except Exception as error:
                entry.status, entry.reason = FAILED, sentence(error)
                continue
            entry.seconds, entry.rounds, entry.calls = spread(found.seconds), len(found.seconds), found.calls
        for entry in result.entries:
            both = entry.seconds is not None and result.entry(result.ours).seconds is not None
            if both and entry.name != result.ours:
                entry.ratio = ratio(timed[entry.name].seconds, timed[result.ours].seconds)


def hint(case: Case) -> str:
    """What else may explain other numbers than the reference's."""
    if any(step.box is not None and step.box.kind == "topk" for step in case.graph.steps):
        return " A topk may choose otherwise where gates are nearly equal: try another --seed."
    return ""


def blank(case: Case, kind: str, ours: str) -> Result:
    lengths = {leg: case.lengths.get(leg, size) for leg, size in case.design.legs.items()}
    legs = {leg: size for leg, size in lengths.items() if size is not None}
    settings = {name: case.graph.values[name] for name in case.design.settings}
    how = (case.n, case.batch, case.dtype, case.device, case.graph.causal)
    return Result(case.design.name, kind, *how, legs, settings, ours)


def sentence(error: Exception) -> str:
    """What went wrong, in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return f"out of memory: {lines[0][:200]}"
    return f"{type(error).__name__}: {lines[0][:200]}"
