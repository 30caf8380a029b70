"""Measures the table of rates of this machine's CPU, in about 20 seconds: see `cost/rates.py`.

First what every computation is made of. Then, for each implementation, the time of designs that use it, over the
predicted time: designs at other sizes, and other designs, are predicted from these. C++ kernels are measured if they
are in the cache, `tensornet-attn warm hard_fish talking_heads mgk linear linear3 --legs f=64`; otherwise those of the
shipped table count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from time import perf_counter, process_time

import torch
import torch.nn.functional as F

from tensornet_attn import compiler
from tensornet_attn.bench.case import FORWARD, TRAINING, Case, runner
from tensornet_attn.bench.machine import EXPONENTIALS, tidy
from tensornet_attn.bench.measure import Call
from tensornet_attn.bench.rates import Best, copy_rate, exponential_rate, map_rates, product_rates, projected_rate
from tensornet_attn.cost.rates import CALIBRATE, KEPT, Efficiency, Pair, RateTable, completed, machine
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.seconds import (
    LINEAR_IN_CPP,
    MODULE,
    OF_MAPS,
    PAGES,
    parts_of,
)
from tensornet_attn.cost.sizes import sizes_at
from tensornet_attn.cost.target import Target
from tensornet_attn.graph import Graph, build
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.kernels.attention import CAUSAL_ATTENTION, MASKED_ATTENTION
from tensornet_attn.kernels.native import NATIVE
from tensornet_attn.plan.make import candidates, make_plan
from tensornet_attn.plan.plan import Plan
from tensornet_attn.plan.ways import BLOCKS, DENSE
from tensornet_attn.spec import Design

SECONDS = 20.0  # of the measurement, without long calls
SHARE = 0.0004  # of this time, for each rate and each call, in each of two rounds
LEAST = 2  # minimum number of samples
LONG = 0.01  # seconds of a call that needs no warm-up
SAMPLE = 0.002  # minimum seconds of a sample
CYCLE = 2**23  # bytes: more than the inner caches hold
COPIED = 2**26  # bytes: more than the caches hold
PASSES = (2**12, 2**16, 2**20, 2**22, KEPT)  # bytes of a result
NEW, PAGED = 2**25, 2**26  # bytes of a result with new pages; measured at twice the size, which fits no free memory
WIDTHS = (8, 16, 32, 64, 128, 256)  # of a head
CHAIN = 64  # operations
EXPERTS, LINEAR = "grouped experts forced", "linear attention forced"
SHORT, BOTH = (256,), (256, 1024)
# Designs whose plans use the implementations, the way to plan them (empty for the default), and their lengths. Each
# kind of part that matters takes much of the time of some call.
PROBES = (
    ("mhsa", "", (16, 256, 1024)),
    ("mhsa", DENSE, BOTH),
    ("mhsa", BLOCKS, BOTH),
    ("llama", "", BOTH),
    ("llama", BLOCKS, BOTH),
    ("mistral", "", BOTH),
    ("mgk", "", SHORT),
    ("mgk", BLOCKS, (128, 512)),
    ("talking_heads", "", (256, 512)),
    ("hard_fish", "", (64, 1024)),
    ("hard_fish", DENSE, SHORT),
    ("gfish", "", (128, 256)),
    ("linear", "", (16, 256, 1024)),
    ("linear", DENSE, (128, 512)),
    ("retnet", "", BOTH),
    ("based", LINEAR, (64, 512)),
    ("band", "", BOTH),
    ("gemma3_local", "", (2048,)),
    ("epa", EXPERTS, BOTH),
    ("moa", EXPERTS, BOTH),
    ("fast_weight1", "", (64, 512)),
    ("gated_deltanet", "", SHORT),
    ("fox", "", SHORT),
    ("hard_lfish", "", (64, 512)),
    ("hgrn", "", BOTH),
    ("mamba1", "", (64, 256)),
    ("hard_fish", NATIVE.name, (32, 128, 512)),
    ("talking_heads", NATIVE.name, (64, 256)),
    ("mgk", NATIVE.name, (64, 256)),
    ("linear", LINEAR_IN_CPP, BOTH),
    ("linear3", LINEAR_IN_CPP, BOTH),
    ("lfish", LINEAR_IN_CPP, BOTH),
)
LEGS = {"f": 256}
LEGS_OF_CPP = {"f": 64}  # their calls take most of the time of some probes
PAIRED, PAIRS = (32, 256, 1024), 2**18  # queries; queries times keys, of four or more heads
# Of the logarithms of efficiencies, beside relative errors of times; of what was measured at several sizes.
RIDGE, RIDGE_OF_CALLS, RIDGE_OF_SIZES = 0.15, 0.3, 2.0
SIZED = ("product", PAGES, OF_MAPS, "attention", CAUSAL_ATTENTION, MASKED_ATTENTION)
FACTORS = (0.05, 20.0)  # of efficiencies
STEPS = 30  # of the fit
MODULE_CALL = 1e-4  # seconds of a call of a module, before its efficiency
Probed = Sequence[tuple[str, str, tuple[int, ...]]]
Clock = Callable[[], float]


class Timing:
    """The shortest seconds of calls: other processes can only slow them down. One thread counts its own time only."""

    def __init__(self, seconds: float, clock: Clock | None = None):
        self.seconds = seconds
        self.clock = clock or (process_time if torch.get_num_threads() == 1 else perf_counter)

    def best(self, call: Call, earlier: float | None = None) -> float:
        """The shortest sample within the time for a rate. The first call is a warm-up; of long calls, it is a sample.

        `earlier`: the shortest of earlier samples, to which one at least is added.
        """
        times = [earlier] if earlier is not None else [self._once(call), self._once(call)]
        last = times[-1]
        calls = 1 if last <= 0 else min(1000, max(1, round(SAMPLE / last)))
        if earlier is None and last < LONG:
            times = []
        end = self.clock() + self.seconds * (last < LONG)
        while len(times) < LEAST or self.clock() < end:
            start = self.clock()
            for _ in range(calls):
                call()
            times.append((self.clock() - start) / calls)
        return max(min(times), 1e-9)

    def _once(self, call: Call) -> float:
        start = self.clock()
        call()
        return self.clock() - start


def calibrate(seconds: float = SECONDS, clock: Clock | None = None, probes: Probed = PROBES) -> RateTable:
    """The table of this CPU in float32, with torch's number of threads."""
    timing, first = Timing(SHARE * seconds, clock), list[float]()
    tidy("cpu")

    def begin(call: Call) -> float:
        first.append(timing.best(call))
        return first[-1]

    primitives(begin)
    earlier = iter(first)
    return _fitted(primitives(lambda call: timing.best(call, next(earlier))), timing, probes)


def primitives(best: Best) -> RateTable:
    """The table without efficiencies; `best` is called for the same calls in the same order each time."""
    kind = torch.float32
    return RateTable(
        machine(torch.get_num_threads()),
        date.today().isoformat(),
        CALIBRATE,
        product_rates(best, "cpu", kind),
        projected_rate(best),
        (*((size, _pass_rate(best, size)) for size in PASSES), (NEW, _pass_rate(best, PAGED))),
        copy_rate(best, "cpu", COPIED),
        exponential_rate(best, "cpu", kind, EXPONENTIALS),
        map_rates(best, EXPONENTIALS),
        _call(best),
        (MODULE_CALL, MODULE_CALL),
        tuple(_pair(best, n, width) for n in PAIRED for width in WIDTHS),
        (),
    )


def _pass_rate(best: Best, size: int) -> float:
    """Bytes per second of a sum of two tensors that are not in the inner caches, with memory for the result."""
    count = max(1, CYCLE // size)
    pairs = [(torch.ones(size // 4), torch.ones(size // 4)) for _ in range(count)]
    return 3 * size * count / best(lambda: [a + b for a, b in pairs])


def _call(best: Best) -> tuple[float, float]:
    """Seconds of an operation on few elements: forward, and with backward."""
    x = torch.ones(4, requires_grad=True)

    def chain() -> torch.Tensor:
        y = x
        for _ in range(CHAIN):
            y = y * 1.0
        return y

    forward = best(torch.no_grad()(chain))
    return forward / CHAIN, best(lambda: torch.autograd.grad(chain(), x, torch.ones(4))) / CHAIN


def _pair(best: Best, n: int, width: int) -> Pair:
    """Fused attention of heads of a width over n positions."""
    heads = max(4, PAIRS // n**2)
    q, k, v = (torch.randn(1, heads, n, width, requires_grad=True) for _ in range(3))
    start = torch.randn(1, heads, n, width)
    forward = best(torch.no_grad()(lambda: F.scaled_dot_product_attention(q, k, v)))
    training = best(lambda: torch.autograd.grad(F.scaled_dot_product_attention(q, k, v), (q, k, v), start))
    pairs = heads * n * n
    return Pair(n, width, forward / pairs, training / pairs)


def _fitted(table: RateTable, timing: Timing, probes: Probed) -> RateTable:
    """The table with the efficiency of each kind of part, from measured designs."""
    efficiencies: dict[str, list[float]] = {}
    for backward in (False, True):
        probed = [*made(probes, backward)]
        calls = [probe.call() for probe in probed]
        times = [timing.best(call) for call in calls]
        times = [timing.best(call, earlier) for call, earlier in zip(calls, times, strict=True)]  # some time after
        rows = [(probe.seconds_by_kind(table), measured) for probe, measured in zip(probed, times, strict=True)]
        for kind, factor in factors(rows).items():
            efficiencies.setdefault(kind, [1.0, 1.0])[backward] = factor
    return completed(replace(table, efficiency=tuple(Efficiency(kind, *both) for kind, both in efficiencies.items())))


def factors(rows: Sequence[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """The factor of each kind for the predicted parts of calls and their measured seconds, by Gauss-Newton steps.

    Least squares of the logarithms of predicted over measured times: a kind that takes ten times its predicted time
    weighs no more than one that takes a tenth. A ridge keeps factors near 1 if their kinds take little of all calls,
    and those of what was measured before: calls of operations and, at several sizes, products, attention and pages.
    """
    kinds = list(dict.fromkeys(kind for parts, _ in rows for kind in parts))
    shares = torch.tensor(
        [[parts.get(kind, 0.0) / seconds for kind in kinds] for parts, seconds in rows], dtype=torch.float64
    )
    ridge = torch.tensor([_ridge(kind) for kind in kinds], dtype=torch.float64)
    logs = torch.zeros_like(ridge)
    for _ in range(STEPS):
        predicted = shares * logs.exp()
        total = predicted.sum(1)
        left, right = torch.cat([predicted / total[:, None], ridge.diag()]), -torch.cat([total.log(), ridge * logs])
        logs = logs + torch.linalg.lstsq(left, right[:, None]).solution[:, 0].clamp(-1, 1)
    return dict(zip(kinds, logs.exp().clamp(*FACTORS).tolist(), strict=True))


def _ridge(kind: str) -> float:
    if kind in SIZED:
        return RIDGE_OF_SIZES
    return RIDGE_OF_CALLS if kind in ("call", MODULE) or kind.endswith(" calls") else RIDGE


def at_bounds(table: RateTable) -> list[str]:
    """The kinds whose efficiency is the smallest or largest that is accepted: their calls do not determine it."""
    return [
        efficiency.kind for efficiency in table.efficiency if {efficiency.forward, efficiency.training} & {*FACTORS}
    ]


def made(probes: Probed, backward: bool) -> Iterator[Probe]:
    """The probes; without those of C++ kernels that are not in the cache."""
    for name, way, lengths in probes:
        for n in lengths:
            design = compiler.load(name, legs=LEGS_OF_CPP if way == NATIVE.name else LEGS)
            plan = planned(build(design), way, Target("training" if backward else "prefill", n=n))
            if plan is not None:
                yield Probe(design, plan, backward, n)


def planned(graph: Graph, way: str, target: Target) -> Plan | None:
    if way in (NATIVE.name, LINEAR_IN_CPP):
        return compiler.cached_cpp(graph, target)
    plans = candidates(graph, target, (way,)) if way else {}
    return plans[way] if way in plans else make_plan(graph, "torch", target)


class Probe:
    """A design at one length, planned in one way, whose call is measured and predicted."""

    def __init__(self, design: Design, plan: Plan, backward: bool, n: int):
        self.design, self.plan, self.backward, self.n = design, plan, backward, n
        graph = split_products(self.plan.schedule)
        lengths = {leg.name: n for leg in graph.legs if leg.sequence}
        self.scene = SizedGraph(graph, sizes_at(graph, lengths))

    def seconds_by_kind(self, table: RateTable) -> dict[str, float]:
        """The predicted seconds of each kind of part."""
        parts = {MODULE: table.module[self.backward]}
        for step in self.scene.graph.steps:
            for kind, seconds in parts_of(self.scene, step, table, self.backward).items():
                parts[kind] = parts.get(kind, 0.0) + seconds
        return parts

    def call(self) -> Call:
        case = Case(self.design, self.n)
        module = compiler.module_of(self.design, self.plan)
        return runner(module, case, case.inputs(), TRAINING if self.backward else FORWARD)
