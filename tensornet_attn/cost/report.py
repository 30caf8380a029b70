"""The cost of a design: work, memory traffic and memory of each step and in total, as written and as planned.

Units: MACs (multiply-adds of products that sum a leg), FLOPs = 2 MACs, elementwise operations (counted separately),
bytes, floats. `work.py` and `memory.py` define how each is counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass
from itertools import product

from tensornet_attn.cost.kernels import steps_of
from tensornet_attn.cost.memory import live
from tensornet_attn.cost.routing import Routing, routed_products
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.sizes import columns, human, lengths_of, sizes_at, whole
from tensornet_attn.cost.sizes import dtype_bytes as bytes_of
from tensornet_attn.cost.work import Monomials, polynomial, saved, work_of
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.ir.steps import without
from tensornet_attn.rewrite.duplicate import beside_output
from tensornet_attn.rewrite.features import Joined

HEAD = ("MACs", "FLOPs", "elementwise", "moved", "live", "saved")
UNITS = (
    "FLOPs = 2 MACs, elementwise operations not included; moved: read and written; live: in memory while the step runs",
    "(total: the peak); saved: floats stored for backward, each counted once; k, M, G, T are powers of 1000.",
)


@dataclass(frozen=True)
class StepCost:
    """The cost of one step of the diagram, including all products it is split into. `fused`: steps fused with it.

    `saved_floats`: floats saved for backward that no earlier step has saved. `live_bytes`: bytes in memory while it
    runs. `routed_macs`: the MACs if only the entries that a topk has chosen are computed (`routing.py`). `training`:
    only states or losses need the step, so evaluation skips it.
    """

    step: str
    macs: int = 0
    elementwise: int = 0
    bytes: int = 0
    live_bytes: int = 0
    saved_floats: int = 0
    fused: tuple[str, ...] = ()
    routed_macs: int = 0
    training: bool = False

    @property
    def flops(self) -> int:
        """FLOPs of the multiply-adds: 2 MACs."""
        return 2 * self.macs

    def __add__(self, other: StepCost) -> StepCost:
        return StepCost(
            self.step,
            self.macs + other.macs,
            self.elementwise + other.elementwise,
            self.bytes + other.bytes,
            max(self.live_bytes, other.live_bytes),
            self.saved_floats + other.saved_floats,
            (*self.fused, *other.fused),
            self.routed_macs + other.routed_macs,
            self.training and other.training,
        )

    def as_dict(self) -> dict[str, object]:
        return {"step": self.step, "macs": self.macs, "flops": self.flops} | asdict(self)


@dataclass(frozen=True)
class Cost:
    """The cost of one way to compute a design. `formula`: the MACs of one batch element as a polynomial in legs.

    `routed_formula`: `formula` if only chosen entries are computed; settings replace the legs that they reduce.
    `total`: the cost of a forward in training, with all losses; `evaluation`: that of a forward in evaluation.
    `total.live_bytes` is the peak. `parameters` are the trainable ones; `frozen` counts frozen ones; neither includes
    states.
    """

    steps: tuple[StepCost, ...]
    formula: str
    parameters: int
    frozen: int
    routed_formula: str = ""

    @property
    def total(self) -> StepCost:
        return sum(self.steps, StepCost("total"))

    @property
    def evaluation(self) -> StepCost:
        """The total without the steps that only states or losses need."""
        return sum((step for step in self.steps if not step.training), StepCost("in evaluation"))

    @property
    def macs(self) -> int:
        return self.total.macs

    @property
    def flops(self) -> int:
        return self.total.flops

    def as_dict(self) -> dict[str, object]:
        return {
            "formula": self.formula,
            "routed_formula": self.routed_formula,
            "parameters": self.parameters,
            "frozen_parameters": self.frozen,
            "total": _counts(self.total),
            "evaluation": _counts(self.evaluation),
            "steps": [step.as_dict() for step in self.steps],
        }


def _counts(total: StepCost) -> dict[str, object]:
    return {key: value for key, value in total.as_dict().items() if key not in ("step", "fused", "training")}


@dataclass(frozen=True)
class Report:
    """A design's cost as written (products multiplied left to right, every box dense) and as planned.

    `decoding_state`: floats in the decoding cache of one sequence of as many tokens as there are keys; None if the
    design has no decoding cache. `decodes`: False if the cache needs `causal=True`.
    """

    name: str
    lengths: tuple[tuple[str, int], ...]
    batch: int
    dtype: str
    written: Cost
    planned: Cost | None = None
    decoding_state: int | None = 0
    decodes: bool = True

    @property
    def best(self) -> Cost:
        """The cost as planned if there is a plan, otherwise as written."""
        return self.planned or self.written

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        return self.written.parameters

    @property
    def formula(self) -> str:
        """MACs of one batch element as a polynomial in leg names, as written."""
        return self.written.formula

    @property
    def macs(self) -> int:
        """MACs, as planned."""
        return self.best.macs

    @property
    def flops(self) -> int:
        """FLOPs = 2 MACs, as planned."""
        return self.best.flops

    def as_dict(self) -> dict[str, object]:
        return {
            "design": self.name,
            "lengths": dict(self.lengths),
            "batch": self.batch,
            "dtype": self.dtype,
            "written": self.written.as_dict(),
            "planned": self.planned and self.planned.as_dict(),
            "decoding_state": self.decoding_state,
        }

    def to_text(self) -> str:
        """The cost as a table for humans; the totals as written and as planned are aligned."""
        lengths = (f"{leg} = {length}" for leg, length in self.lengths)
        versions = (("as written", self.written), ("as planned", self.planned))
        tables = [(cost, _table(word, cost)) for word, cost in versions if cost]
        width = max(len(row[0]) for _, table in tables for row in table)
        lines = [f"{self.name}: {', '.join([*lengths, f'batch {self.batch}', self.dtype])}", ""]
        for cost, table in tables:
            lines += columns([(label.ljust(width), *cells) for label, *cells in table])
            lines.append(f"  MACs of one batch element: {cost.formula}")
            if cost.routed_formula not in ("", cost.formula):
                routed = f"{human(cost.total.routed_macs)} MACs: {cost.routed_formula}"
                lines.append(f"  if only the entries chosen by topk are computed: {routed}")
            lines.append("")
        frozen = f", and {human(self.written.frozen)} frozen" if self.written.frozen else ""
        lines.append(f"parameters: {human(self.parameters)}{frozen}")
        if self.decoding_state is None:
            lines.append("no decoding cache: 'explain --causal --decoding' gives the reason")
        elif self.decoding_state:
            tokens = self.lengths[-1][1]
            label = "decoding cache" if self.decodes else "decoding cache, if compiled causal"
            lines.append(f"{label}: {self.decoding_state:,} floats for {tokens:,} tokens of one sequence")
        return "\n".join([*lines, *UNITS])


def cost(
    graph: Graph,
    lengths: Mapping[str, int],
    batch: int = 1,
    dtype_bytes: int = 4,
    as_written: bool = True,
    declared: Container[str] | None = None,
) -> Cost:
    """The cost of a graph at these lengths of its sequence legs; products of several factors go left to right.

    `declared`: the legs in which formulas are written, by default those of the graph. Raises InputError if a length or
    the batch is not a positive integer, or a length exceeds a leg's maximum.
    """
    scene = SizedGraph(split_products(graph), sizes_at(graph, lengths), whole("batch", batch), stepwise=as_written)
    live_at, before, monomials, chosen = live(scene), set[str](), Monomials(), Monomials()
    routing, beside = Routing.of(scene.graph), beside_output(scene.graph)
    rows: dict[str, StepCost] = {}
    for step in scene.graph.steps:
        work = work_of(scene, step)
        kept = {name: floats for name, floats in saved(scene, step).items() if name not in before}
        before |= kept.keys()
        monomials.update(work.products)
        routed, routed_macs = routed_products(scene, step, routing)
        chosen.update(routed)
        name = _row(step)
        rows[name] = rows.get(name, StepCost(name, training=True)) + StepCost(
            name,
            work.macs,
            work.elementwise,
            dtype_bytes * work.moved,
            dtype_bytes * live_at[step.name],
            sum(kept.values()),
            _fused(step, name),
            routed_macs,
            step.name in beside,
        )
    weights = [(scene.stored[tensor.name], tensor.frozen) for tensor in graph.of_role("weight")]
    trainable = sum(size for size, frozen in weights if not frozen)
    frozen = sum(size for size, frozen in weights if frozen)
    formula, routed_formula = (polynomial(_in_declared(scene, of, declared)) for of in (monomials, chosen))
    return Cost(tuple(rows.values()), formula, trainable, frozen, routed_formula)


def _in_declared(scene: SizedGraph, monomials: Monomials, declared: Container[str] | None) -> Monomials:
    """The monomials in declared legs, where a plan has others.

    A leg of features side by side is the sum of theirs, a copy `d_` of a leg `d` is that leg, another one its size.
    """
    spelled: dict[str, list[tuple[str, ...]]] = {}
    for step in scene.graph.steps:
        if step.kernel is not None and isinstance(step.form, Joined):
            features = [without(factor.legs, *step.legs) for factor in step.kernel.body]
            spelled.setdefault(step.form.leg, features)
    spelling: Monomials = Counter()
    for legs, count in monomials.items():
        written: Monomials = Counter({(): count})
        for leg in legs:
            internal = declared is not None and leg in scene.graph.leg and leg not in declared
            if internal and leg not in spelled and leg.rstrip("_") == leg:
                written = Counter({before: times * scene.sizes[leg] for before, times in written.items()})
                continue
            widths, before = spelled.get(leg, [(leg.rstrip("_") if internal else leg,)]), written
            written = Counter()
            for (spelt, times), width in product(before.items(), widths):
                written[(*spelt, *width)] += times
        spelling.update(written)
    return spelling


def cost_of(
    written: Graph,
    planned: Graph | None,
    n: int | None = None,
    m: int | None = None,
    batch: int = 1,
    dtype: object = "float32",
) -> Report:
    """The report of a design at query length n and key length m; `lengths_of` defines the defaults.

    m is ignored if a design has no key leg. Raises InputError as `cost` does.
    """
    lengths, width = lengths_of(written, n, m), bytes_of(dtype)
    as_written, name = cost(written, lengths, batch, width), str(dtype).removeprefix("torch.")
    as_planned = cost(planned, lengths, batch, width, as_written=False, declared=written.leg) if planned else None
    return Report(written.name, tuple(lengths.items()), batch, name, as_written, as_planned)


def _fused(step: Step, row: str) -> tuple[str, ...]:
    """The other steps that a kernel computes: the scores, and the product with the values."""
    if step.kernel is None:
        return ()
    names, last = steps_of(step), step.kernel.body[-1]
    unnamed = () if last.name in names else (" ".join(use.name for use in last.uses),)
    return (*(name for name in names if name != row), *unnamed)


def _row(step: Step) -> str:
    """The step of the diagram that an operation belongs to: `y` for `y.p1`, `A` for fused attention around it."""
    return re.sub(r"\.p\d+$", "", steps_of(step)[-1])


def _table(word: str, cost: Cost) -> list[tuple[str, ...]]:
    """The rows of the steps and the total, and the total in evaluation if it differs."""
    totals = [cost.total, cost.evaluation] if any(step.training for step in cost.steps) else [cost.total]
    labels = [*map(_label, cost.steps), *(row.step for row in totals)]
    rows: list[tuple[str, ...]] = [(word, *HEAD)]
    for label, row in zip(labels, (*cost.steps, *totals), strict=True):
        counts = map(human, (row.macs, row.flops, row.elementwise))
        rows.append((f"  {label}", *counts, _bytes(row.bytes), _bytes(row.live_bytes), human(row.saved_floats)))
    return rows


def _label(row: StepCost) -> str:
    notes = ([f"with {', '.join(row.fused)}"] if row.fused else []) + ["in training"] * row.training
    return f"{row.step} ({'; '.join(notes)})" if notes else row.step


def _bytes(number: int) -> str:
    return f"{human(number)}{' ' * (number < 1000)}B"
