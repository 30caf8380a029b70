"""Benchmarks decoding steps: a compiled design with its cache against a handwritten step.

For each length, the step after that many positions is measured repeatedly. Before that, every contestant decodes a
short sequence, and its outputs are compared with those of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from tensornet_attn import compiler
from tensornet_attn.bench.baselines import layer_of
from tensornet_attn.bench.baselines.steps import STEPS, BaselineStep, KeysAndValues
from tensornet_attn.bench.bench import GIB, Options, Say, blank, fill, reported
from tensornet_attn.bench.case import DECODING, Case
from tensornet_attn.bench.compare import oracle
from tensornet_attn.bench.contestants import HEADS, SkippedError, need_parts, within
from tensornet_attn.bench.measure import WARM, Call, clock_of, interleaved, is_gpu, sample_of
from tensornet_attn.bench.results import Entry, PassResult, ratio
from tensornet_attn.bench.run import BenchmarkSession, Setting
from tensornet_attn.cost.sizes import dtype_bytes
from tensornet_attn.plan.decoding import decoding_of
from tensornet_attn.report.words import in_bytes

Tensor = torch.Tensor
HAND, SOFTMAX = "hand", "softmax"
CHECKED = 33  # positions to decode and compare with the reference
CHUNK = 1024  # positions per call that fills a cache
RETENTION: Mapping[str, Any] = {
    "tensornet": 1,
    "name": "retention",
    "about": "Scores without softmax that decay by distance, as in RetNet, at the rates of ALiBi.",
    "extends": "mhsa",
    "causal": True,
    "constants": {"slopes": {"legs": "h", "value": "alibi_slopes"}, "gap": {"legs": "n m", "value": "distance"}},
    "diagram": {
        "D": {"map": "exp", "of": "-1 * slopes[h] gap[n m] -> h n m"},
        "A": None,
        "R": {"keep": "m", "of": "(d ** -0.5) * Q[n h d] K[m h d] D[h n m] -> h n m"},
        "y": "R[h n m] V[m h d] Wo[h d f] -> n f",
    },
}
KEEP_POSITIONS, KEEP_STATES = ("mhsa", "gqa", "mla"), ("linear", "fast_weight1", "gated_deltanet", RETENTION)
LENGTH, LENGTHS, BATCHES = 4096, (256, 4096, 16384), (1, 16)


class Stepping(Protocol):
    """A decoder of one position at a time."""

    note: str

    def step(self, x: Tensor) -> Tensor: ...

    def fill(self, n: int) -> int: ...  # fills the cache with n positions, and returns its bytes

    def back(self, n: int) -> None: ...  # crops the cache to n positions; states stay


class Compiled:
    """A compiled design with its cache. A cache of all positions is cropped after a step; states are not restored."""

    def __init__(self, backend: str, case: Case, limit: float):
        need_parts(backend, case)
        decoding = decoding_of(case.graph)
        within(dtype_bytes(case.dtype) * case.batch * decoding.floats(case.n), limit, "cache")
        self.goes_back = all(tensor.leg is not None and tensor.reach is None for tensor in decoding.kept)
        self.case, self.layer = case, case.loaded(compiler.compile(case.design, backend, case.causal)).eval()
        self.cache, self.note = self.layer.new_cache(), ""

    def step(self, x: Tensor) -> Tensor:
        return self.layer(x, cache=self.cache)

    def fill(self, n: int) -> int:
        """Fills the cache for one sequence, and copies it for the batch."""
        self.cache = self.layer.new_cache(max_length=n + 1 if self.goes_back else None)
        for chunk in one_input(replace(self.case, n=n, batch=1)).split(CHUNK, 1):
            self.layer(chunk, cache=self.cache)
        self.cache.repeat_interleave(self.case.batch)
        return int(self.cache.nbytes)

    def back(self, n: int) -> None:
        if self.goes_back:
            self.cache.crop(n)


class ByHand:
    """A handwritten step."""

    def __init__(self, step_class: type[BaselineStep], case: Case, limit: float, note: str = ""):
        sizes = SimpleNamespace(**case.sizes)
        floats = sum(prod(shape) for shape in step_class.shapes(sizes, case.batch, case.n + 1))
        within(dtype_bytes(case.dtype) * floats, limit, "cache")
        layer = layer_of(step_class.of, case.sizes, causal=True)
        case.loaded(layer)
        self.baseline = step_class(layer, case.batch, case.n + 1)
        self.note = note or step_class.note

    def step(self, x: Tensor) -> Tensor:
        return self.baseline.step(x)

    def fill(self, n: int) -> int:
        self.baseline.fill(n)
        return sum(tensor.numel() * tensor.element_size() for tensor in self.baseline.kept)

    def back(self, n: int) -> None:
        self.baseline.seen = n


def one_input(case: Case) -> Tensor:
    """The only input of the design. Raises SkippedError if it has several."""
    inputs = case.inputs()
    if len(inputs) != 1:
        raise SkippedError(f"'{case.design.name}' has {len(inputs)} inputs, but a step has one.")
    return inputs[0].detach()


def usual_cases(
    make: Callable[[Any, int, int], Case], batches: Sequence[int], lengths: Sequence[int] = ()
) -> list[Case]:
    """The default cases. `make` returns the case of a design, a length and a batch size.

    `lengths`, if not empty, replaces the lengths of all designs.
    """
    usual = ((KEEP_POSITIONS, (LENGTH,)), (KEEP_STATES, LENGTHS))
    return [
        make(name, n, batch)
        for names, usual_lengths in usual
        for name in names
        for batch in batches
        for n in lengths or usual_lengths
    ]


def stepping(name: str, case: Case, limit: float) -> tuple[Case, Stepping]:
    """A contestant and its case. Raises SkippedError if it cannot run the case."""
    if name == HAND:
        if not (case.shipped or case.design.name == "retention") or case.design.name not in STEPS:
            raise SkippedError(f"there is no handwritten step of '{case.design.name}'.")
        return case, ByHand(STEPS[case.design.name], case, limit)
    if name == SOFTMAX:
        if case.design.name == "mhsa":
            raise SkippedError("it is the same as 'hand'.")
        width = case.sizes.get("f")
        if not isinstance(width, int) or width % HEADS:
            raise SkippedError(
                f"'{case.design.name}' has no leg 'f' that is a multiple of {HEADS}, which mhsa of its width needs."
            )
        plain = case.of_softmax(f=width, h=HEADS)
        return plain, ByHand(KeysAndValues, plain, limit, f"handwritten mhsa of f {width}, h {HEADS}: another function")
    return case, Compiled(name, case, limit)


def of_decoding(cases: Sequence[Case], backends: Sequence[str], setting: Setting, say: Say) -> BenchmarkSession:
    """A run that measures the step after `n` positions of each case. Raises InputError for invalid cases."""
    for case in cases:
        case.check()
    run, options, setting = setting.ready(Options((), backends, (DECODING,)), always=False)
    names = [*options.names, HAND, SOFTMAX]
    run.options = {**run.options, "against": [HAND, SOFTMAX]}

    def results() -> Iterator[PassResult]:
        for _, group in groupby(cases, lambda case: (case.design.name, case.batch)):
            yield from measured([*group], names, options, say)

    return BenchmarkSession(run, results(), setting)


@torch.no_grad()
def measured(cases: Sequence[Case], names: Sequence[str], options: Options, say: Say) -> list[PassResult]:
    """The results of one design and batch size at several lengths. All contestants and lengths are interleaved."""
    results, calls = list[PassResult](), dict[str, Call]()
    for case in cases:
        say(f"{case.design.name}, after {case.n:,} positions, batch {case.batch}: comparing with the reference ...")
        result = blank(case, DECODING, names[0])
        for name in names:
            entry, call = checked(name, case, options.memory * GIB)
            result.entries.append(entry)
            if call is not None:
                calls[_key(result, name)] = call
        results.append(result)
    say(f"{cases[0].design.name}, batch {cases[0].batch}: timing {', '.join(calls)} ...")
    time(results, calls, options)
    return results


def checked(name: str, case: Case, limit: float) -> tuple[Entry, Call | None]:
    """The entry of a contestant, and its step if outputs match the reference. Otherwise, the entry has the reason."""
    entry, call = Entry(name), None
    with reported(entry):
        call = ready(entry, case, limit)
    return entry, call


def ready(entry: Entry, case: Case, limit: float) -> Call:
    """The step after n positions, after a comparison of outputs. Raises SkippedError and WrongError."""
    short, trial = stepping(entry.name, replace(case, n=CHECKED, batch=1), limit)
    x = one_input(short)
    with torch.enable_grad():
        reference = oracle(short, limit)
    outputs = torch.cat([trial.step(x[:, i : i + 1]) for i in range(reference.n)], 1)
    entry.checked_n = reference.n
    entry.error = reference.error({"output": outputs.double()})
    full_case, decoder = stepping(entry.name, case, limit)
    entry.note = "; ".join(filter(None, [f"cache {in_bytes(decoder.fill(case.n))}", decoder.note]))
    position = one_input(replace(full_case, n=1))

    def call() -> object:
        decoder.back(case.n)
        return decoder.step(position)

    return call


def time(results: Sequence[PassResult], calls: Mapping[str, Call], options: Options) -> None:
    """Measures times, ratios and peak memory, and sets them in the entries."""
    device = results[0].device
    warm, budget = WARM if is_gpu(device) else 0.0, options.seconds * len(results)
    timed = interleaved(calls, options.repeats, budget, clock_of(device), sample_of(device), warm)
    for result in results:
        ours = timed.get(_key(result, result.ours))
        for entry in [entry for entry in result.entries if entry.measured]:
            theirs = timed[_key(result, entry.name)]
            fill(entry, theirs, calls[_key(result, entry.name)], device)
            if entry.measured and ours is not None and ours.failed is None and ours is not theirs:
                entry.ratio = ratio(theirs.seconds, ours.seconds)


def _key(result: PassResult, name: str) -> str:
    return f"{name} behind {result.n}"
