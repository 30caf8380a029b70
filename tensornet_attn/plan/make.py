"""Plans a graph: rewritings of the whole diagram, then implementations in the order of the table, then product orders.

The first rewritings give maps implementations of their own. Queries move through maps and weights are absorbed if this
reduces the time of the complete plan. The first implementation that accepts a form computes it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensornet_attn import limits
from tensornet_attn.cost.kernels import steps_of
from tensornet_attn.cost.order import split_best
from tensornet_attn.cost.target import TRAINING, Target
from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.pairs import BATCH
from tensornet_attn.graph.recurrence import Recurrence
from tensornet_attn.kernels import KERNELS
from tensornet_attn.kernels.implementation import Context, Lowered, Rewriting
from tensornet_attn.plan.absorb import ABSORBED, absorbed
from tensornet_attn.plan.cache import LruCache
from tensornet_attn.plan.demands import backend_of, strictly
from tensornet_attn.plan.implementations import BESIDE_FUSED, CPP, TORCH, TRITON_ALONE, ImplementationTable
from tensornet_attn.plan.plan import Lowering, Plan, Region
from tensornet_attn.plan.through import THROUGH
from tensornet_attn.plan.ways import AS_PRICED, WAYS, Way, alternatives, chosen
from tensornet_attn.rewrite.whole import gone, simplified
from tensornet_attn.tiles.legs import quadratic

BACKENDS = ("auto", "reference", "torch", "inductor", "cpp", "triton")
LONGER = 1.2  # times the time of torch that cached C++ kernels may be predicted to take: predictions err by as much
PLANS: LruCache[Plan] = LruCache(most=256)  # by the text of the graph, which includes its names; backend; target


def plan_of(graph: Graph, backend: str = "auto", target: Target = TRAINING) -> Plan:
    """The plan of a graph on a backend, cached by content. Raises InputError, also for an unknown backend."""
    if backend not in BACKENDS:
        raise InputError(f"there is no backend '{backend}'; {nearest(str(backend), BACKENDS)}")
    backend = "torch" if backend == "auto" else backend
    return PLANS.get((graph.to_text(), backend, target), lambda: make_plan(graph, backend, target))


def make_plan(graph: Graph, backend: str = "torch", target: Target = TRAINING, fused: bool = False) -> Plan:
    """The plan of a graph on a backend for a target; a pure function of its arguments.

    `reference` keeps the diagram as written. The other backends fuse steps and split products. `fused`: Triton
    computes only what torch's fused attention cannot. Raises InputError if no plan meets the target: the message gives
    the smallest possible peak, or the region that violates the requirement and the reason.
    """
    if backend == "reference":
        plans = {AS_PRICED: _as_written(graph, target)}
    else:
        table = {"triton": BESIDE_FUSED if fused else TRITON_ALONE, "cpp": CPP}.get(backend, TORCH)
        plans = _in_ways(graph, backend, target, table, WAYS if target.demanding else WAYS[:1])
    plan = chosen(plans) if target.demanding else plans[AS_PRICED]
    if target.strict:
        strictly(graph.name, plan.regions, backend)
    return plan


def candidates(graph: Graph, target: Target = TRAINING, only: Container[str] | None = None) -> dict[str, Plan]:
    """torch's plan of a graph and all plans that it was preferred to, each schedule once, by the first way to get it.

    `only`: names of the ways to plan.
    """
    names = (
        *(row.name for row in TORCH.rewritings),
        *(row.name for row in TORCH.rows if not row.of_recurrences),
        ABSORBED,
    )
    ways = [way for way in alternatives(names) if only is None or way.name in only]
    plans = _in_ways(graph, "torch", target, TORCH, ways)
    first_names = {plan.schedule.to_text(): name for name, plan in reversed(plans.items())}
    return {name: plan for name, plan in plans.items() if name in first_names.values()}


def _in_ways(
    graph: Graph, backend: str, target: Target, table: ImplementationTable, ways: Iterable[Way]
) -> dict[str, Plan]:
    """The plan of a graph in each way: the cheapest of those with and without the rows that pay off only sometimes."""
    context = Context(target.sizes(graph), target, backend, table.rows)
    start, left_out = _simpler(graph, backend)
    plans = dict[Way, tuple[Plan, set[str]]]()

    def planned(way: Way) -> Plan:
        """The plan without the rows that a way skips; an earlier one, if they changed nothing in it."""
        for earlier, (plan, used) in plans.items():
            skipped = {*way.without}
            if earlier.forced == way.forced and {*earlier.without} <= skipped and not used & skipped:
                return plan
        plans[way] = _planned(graph, start, table, context, way, left_out)
        return plans[way][0]

    def best(way: Way) -> Plan:
        return cheapest([planned(way), planned(way.skipping(THROUGH.name))])

    skipped = table.skipped[-1:] if target.strict else table.skipped
    of_last = LONGER if target.device.measured else 1.0  # the last one is of kernels alone
    return {way.name: cheapest([best(way.skipping(*rows)) for rows in skipped], of_last) for way in ways}


def _as_written(graph: Graph, target: Target) -> Plan:
    regions = (Region(s.name, (s.name,), "reference", "as written, dense") for s in graph.steps if not s.nested)
    return Plan(graph, graph, tuple(regions), "reference", _lengths(target.sizes(graph)), target)


def _simpler(graph: Graph, backend: str) -> tuple[Graph, tuple[Region, ...]]:
    """The graph after the rewrites that never increase cost, and a region for each step that they removed."""
    simpler, trace = simplified(graph)
    regions = (
        Region(name, (name,), backend, f"removed: {rule}", removed=True) for name, rule in gone(graph, trace).items()
    )
    return simpler, tuple(region for region in regions if "." not in region.name)


def _planned(
    written: Graph, start: Graph, table: ImplementationTable, context: Context, way: Way, left_out: tuple[Region, ...]
) -> tuple[Plan, set[str]]:
    """The plan of the diagram `written` without the rows that a way skips, and the names of the rows that changed it.

    `start`: the diagram after the first rewrites.
    """
    torch_context = replace(context, backend="torch", rows=TORCH.rows)  # Triton fuses all maps that torch fuses
    rows = tuple(row for row in context.rows if row.name not in way.without)
    context = replace(context, rows=rows, forced=way.forced)
    notes, graph, used = _Notes(), start, set[str]()
    planned = dict[Graph, tuple[Graph, dict[str, Lowered]]]()

    def schedule_of(graph: Graph) -> Graph:
        if graph not in planned:
            planned[graph] = _implemented(graph, context)
        return planned[graph][0]

    absorbing = Rewriting(ABSORBED, lambda graph, _: absorbed(graph, context, schedule_of))
    for rewriting in (*table.rewritings, absorbing):
        if rewriting.name not in way.without:
            rewritten = rewriting.apply(graph, torch_context)
            used |= {rewriting.name} if rewritten.graph != graph else set()
            graph = notes.taken(rewriting.name, rewritten)
    schedule, implementations = schedule_of(graph), planned[graph][1]
    lowerings = (lowering for _, tried in planned.values() for lowering in tried.items())
    used |= {name for name, lowered in lowerings if lowered.chosen or lowered.more}
    for name, implemented in implementations.items():
        notes.taken(name, implemented)
    lowered = [*implementations.values()][-1].graph
    replaced = [name for name in notes.chosen if name in start.step and name not in lowered.step and "." not in name]
    regions = left_out + tuple(Region(name, (name,), context.backend, notes.chosen[name]) for name in replaced)
    regions += tuple(_regions(lowered, context.backend, notes))
    return Plan(written, schedule, regions, context.backend, _lengths(context.sizes), context.target), used


def cheapest(plans: Sequence[Plan], of_last: float = 1.0) -> Plan:
    """The plan with the least predicted time, the first of equals; the last one may take `of_last` times as long."""
    if all(plan is plans[0] for plan in plans):
        return plans[0]
    seconds = [plan.price.seconds for plan in plans]
    seconds[-1] /= of_last
    return plans[seconds.index(min(seconds))]


def _implemented(graph: Graph, context: Context) -> tuple[Graph, dict[str, Lowered]]:
    """The schedule of a graph, and the result of each implementation, by name."""
    implementations = dict[str, Lowered]()
    for row in context.rows:
        if row.of_recurrences and not any(isinstance(step.form, Recurrence) for step in graph.steps):
            continue
        lowered = row.lowered(graph, context)
        graph = row.marked(lowered.graph) if context.backend == "cpp" else lowered.graph
        implementations[row.name] = replace(lowered, graph=graph)
    return split_best(graph, context.sizes, context.device, context.device.width)[0], implementations


def _lengths(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((leg, size) for leg, size in sizes.items() if leg != BATCH)


@dataclass(frozen=True)
class _Notes:
    """The chosen lowerings by the step that they create, and the rejected ones by the step that they would replace."""

    chosen: dict[str, str] = field(default_factory=dict)
    refused: dict[str, list[Lowering]] = field(default_factory=dict)
    costs: dict[str, str] = field(default_factory=dict)

    def taken(self, name: str, lowered: Lowered) -> Graph:
        """The graph of a result of the rewriting or implementation `name`, whose choices are recorded."""
        self.chosen.update(lowered.chosen | {step: self.chosen[step] + words for step, words in lowered.more.items()})
        self.costs.update(lowered.costs)
        for step, reasons in lowered.refused.items():
            self.refused.setdefault(step, []).append(Lowering(name, reasons))
        return lowered.graph


def _regions(lowered: Graph, backend: str, notes: _Notes) -> Iterator[Region]:
    """A region for each kernel and for each other step, in execution order."""
    for step in lowered.steps:
        if step.kernel and KERNELS[step.kernel.kind].in_reader:
            continue
        steps = steps_of(step)
        against = dict.fromkeys(low for name in steps for low in notes.refused.get(name, []) if low.against)
        how = notes.chosen[step.name] if step.kernel else _chosen(step)
        cost = next((notes.costs[name] for name in (step.name, *steps) if name in notes.costs), "")
        plain = _plain(lowered, step)
        yield Region(steps[-1], steps, backend_of(step, backend), how, tuple(against), plain, cost)


def _plain(graph: Graph, step: Step) -> bool:
    """Whether a step is a product, a box, or a kernel in place of one, without values of queries x keys."""
    alone = step.kernel is None or KERNELS[step.kernel.kind].plain(step)
    return alone and not quadratic(graph, step.legs)


def _chosen(step: Step) -> str:
    if step.box is not None:
        return f"dense {step.box.kind}"
    factors = max((len(term.factors) for term in step.terms), default=0)
    if factors > limits.ORDER_FACTORS:
        return f"pairwise products in a greedy order: {factors} tensors are too many for an exact search"
    return ("one pass", "one pass", "one product", "pairwise products in the cheapest order")[min(factors, 3)]
