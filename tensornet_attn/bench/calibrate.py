"""Measures the table of rates of this machine's CPU, in about half a minute: see `cost/rates.py`.

First what every computation is made of. Then, for each implementation, the time of designs that use it, over the
predicted time: designs at other sizes, and other designs, are predicted from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from time import perf_counter, process_time

import torch
import torch.nn.functional as F

from tensornet_attn import compiler
from tensornet_attn.bench.rates import copy_rate, exponential_rate, product_rates
from tensornet_attn.cost.rates import CALIBRATE, Efficiency, Pair, Table, machine
from tensornet_attn.cost.scene import Scene
from tensornet_attn.cost.seconds import MODULE, parts_of
from tensornet_attn.cost.sizes import sizes_at
from tensornet_attn.graph import build
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.plan.make import candidates, make_plan
from tensornet_attn.plan.target import Target
from tensornet_attn.plan.ways import BLOCKS, DENSE
from tensornet_attn.spec import Design

SECONDS = 20.0  # of the measurement, without long calls
SHARE = 0.002  # of this time, for each rate
LEAST = 2  # minimum number of samples
LONG = 0.04  # seconds of a call that needs no warm-up
SAMPLE = 0.002  # minimum seconds of a sample
CYCLE = 2**23  # bytes: more than the inner caches hold
COPIED = 2**26  # bytes: more than the caches hold
EXPONENTIALS = 2**17  # elements, which stay in a cache
PASSES = (2**12, 2**16, 2**20, 2**22, 2**24, 2**25, 2**26)  # bytes of a result
WIDTHS = (8, 16, 32, 64, 128, 256)  # of a head
CHAIN = 64  # operations
EXPERTS, LINEAR = "grouped experts forced", "linear attention forced"
# Designs whose plans use the implementations, and the way to plan them: empty for the default.
PROBES = (
    ("mhsa", ""),
    ("mhsa", DENSE),
    ("mhsa", BLOCKS),
    ("llama", ""),
    ("mistral", ""),
    ("mgk", ""),
    ("talking_heads", ""),
    ("hard_fish", ""),
    ("gfish", ""),
    ("hard_fish", DENSE),
    ("mgk", BLOCKS),
    ("linear", ""),
    ("linear", DENSE),
    ("retnet", ""),
    ("based", LINEAR),
    ("band", ""),
    ("epa", EXPERTS),
    ("moa", EXPERTS),
    ("fast_weight1", ""),
    ("fox", ""),
    ("hard_glfish", ""),
    ("hgrn", ""),
)
LENGTHS, LEGS = (256, 1024), {"f": 256}
PAIRED, HEADS = (256, 1024), 4
RIDGE, FACTORS = 0.3, (0.2, 20.0)  # of efficiencies
MODULE_CALL = 1e-4  # seconds of a call of a module, before its efficiency
Clock = Callable[[], float]


class Timing:
    """The shortest seconds of calls: other processes can only slow them down. One thread counts its own time only."""

    def __init__(self, seconds: float, clock: Clock | None = None):
        self.seconds = seconds
        self.clock = clock or (process_time if torch.get_num_threads() == 1 else perf_counter)

    def best(self, call: Callable[[], object]) -> float:
        """The shortest sample within the time for a rate, of at least two. The first call is a warm-up, unless long."""
        first, second = self._once(call), self._once(call)
        calls = 1 if second <= 0 else min(1000, max(1, round(SAMPLE / second)))
        end, times = self.clock() + self.seconds, [first, second] if second >= LONG else []
        while len(times) < LEAST or self.clock() < end:
            start = self.clock()
            for _ in range(calls):
                call()
            times.append((self.clock() - start) / calls)
        return max(min(times), 1e-9)

    def _once(self, call: Callable[[], object]) -> float:
        start = self.clock()
        call()
        return self.clock() - start


def calibrate(
    seconds: float = SECONDS, clock: Clock | None = None, probes: Sequence[tuple[str, str]] = PROBES
) -> Table:
    """The table of this CPU in float32, with torch's number of threads."""
    timing = Timing(SHARE * seconds, clock)
    return _fitted(primitives(timing), timing, probes)


def primitives(timing: Timing) -> Table:
    """The table without efficiencies."""
    best, kind = timing.best, torch.float32
    return Table(
        machine(torch.get_num_threads()),
        date.today().isoformat(),
        CALIBRATE,
        product_rates(best, "cpu", kind),
        tuple((size, _pass_rate(best, size)) for size in PASSES),
        copy_rate(best, "cpu", COPIED),
        exponential_rate(best, "cpu", kind, EXPONENTIALS),
        _call(best),
        (MODULE_CALL, MODULE_CALL),
        tuple(_pair(best, n, width) for n in PAIRED for width in WIDTHS),
        (),
    )


def _pass_rate(best: Callable[[Callable[[], object]], float], size: int) -> float:
    """Bytes per second of a sum of two tensors that are not in the inner caches, with memory for the result."""
    count = max(1, CYCLE // size)
    pairs = [(torch.ones(size // 4), torch.ones(size // 4)) for _ in range(count)]
    return 3 * size * count / best(lambda: [a + b for a, b in pairs])


def _call(best: Callable[[Callable[[], object]], float]) -> tuple[float, float]:
    """Seconds of an operation on few elements: forward, and with backward."""
    x = torch.ones(4, requires_grad=True)

    def chain() -> torch.Tensor:
        y = x
        for _ in range(CHAIN):
            y = y * 1.0
        return y

    forward = best(torch.no_grad()(chain))
    return forward / CHAIN, best(lambda: torch.autograd.grad(chain(), x, torch.ones(4))) / CHAIN


def _pair(best: Callable[[Callable[[], object]], float], n: int, width: int) -> Pair:
    """Fused attention of heads of a width over n positions."""
    q, k, v = (torch.randn(1, HEADS, n, width, requires_grad=True) for _ in range(3))
    start = torch.randn(1, HEADS, n, width)
    forward = best(torch.no_grad()(lambda: F.scaled_dot_product_attention(q, k, v)))
    training = best(lambda: torch.autograd.grad(F.scaled_dot_product_attention(q, k, v), (q, k, v), start))
    pairs = HEADS * n * n
    return Pair(n, width, forward / pairs, training / pairs)


def _fitted(table: Table, timing: Timing, probes: Sequence[tuple[str, str]]) -> Table:
    """The table with the efficiency of each kind of part, from measured designs: least squares of relative errors.

    A ridge keeps the efficiency of a part that takes little of all designs near 1.
    """
    found: dict[str, list[float]] = {}
    for backward in (False, True):
        rows = [probe.share(table, timing) for probe in made(probes, backward)]
        kinds = list(dict.fromkeys(kind for row in rows for kind in row))
        sides = torch.tensor([[row.get(kind, 0.0) for kind in kinds] for row in rows], dtype=torch.float64)
        ridge = RIDGE * torch.eye(len(kinds), dtype=torch.float64)
        left, right = torch.cat([sides, ridge]), torch.cat([torch.ones(len(rows)), RIDGE * torch.ones(len(kinds))])
        factors = torch.linalg.lstsq(left, right.double()[:, None]).solution[:, 0].clamp(*FACTORS).tolist()
        for kind, factor in zip(kinds, factors, strict=True):
            found.setdefault(kind, [1.0, 1.0])[backward] = factor
    return replace(table, efficiency=tuple(Efficiency(kind, *both) for kind, both in found.items()))


def made(probes: Sequence[tuple[str, str]], backward: bool) -> Iterator[Probe]:
    for name, way in probes:
        for n in LENGTHS:
            yield Probe(compiler.load(name, legs=LEGS), way, backward, n)


class Probe:
    """A design at one length, planned in one way, whose call is measured and predicted."""

    def __init__(self, design: Design, way: str, backward: bool, n: int):
        self.design, self.graph, self.backward = design, build(design), backward
        target = Target("training" if backward else "prefill", n=n)
        plans = candidates(self.graph, "torch", target, (way,)) if way else {}
        self.plan = plans[way] if way in plans else make_plan(self.graph, "torch", target)
        graph = split_products(self.plan.schedule)
        lengths = {leg.name: n for leg in graph.legs if leg.sequence}
        self.scene = Scene(graph, sizes_at(graph, lengths))

    def share(self, table: Table, timing: Timing) -> dict[str, float]:
        """The predicted seconds of each kind of part, over the measured time of the call."""
        parts = {MODULE: table.module[self.backward]}
        for step in self.scene.graph.steps:
            for kind, own in parts_of(self.scene, step, table, self.backward).items():
                parts[kind] = parts.get(kind, 0.0) + own
        measured = timing.best(self.call())
        return {kind: own / measured for kind, own in parts.items()}

    def call(self) -> Callable[[], object]:
        module = compiler.module_of(self.design, self.plan)
        inputs = [self._random(t.legs) for t in self.graph.of_role("input") if t.default is None]
        module.train(self.backward)
        if not self.backward:
            return torch.no_grad()(lambda: module(*inputs))
        inputs = [x.requires_grad_() for x in inputs]
        wanted = [*inputs, *(weight for weight in module.parameters() if weight.requires_grad)]
        start = self._random(self.graph.legs_of(self.graph.output))
        return lambda: torch.autograd.grad(module(*inputs), wanted, start, allow_unused=True)

    def _random(self, legs: Sequence[str]) -> torch.Tensor:
        return torch.randn(1, *(self.scene.sizes[leg] for leg in legs))
