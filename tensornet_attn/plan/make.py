"""Plans a graph: rewritings of the whole diagram, then implementations in the order of the table, then product orders.

The first rewritings give maps implementations of their own. Queries move through maps and weights are absorbed if this
reduces the time of the complete plan. The first implementation that accepts a form computes it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tensornet_attn import limits
from tensornet_attn.cost.kernels import steps_of
from tensornet_attn.cost.order import split_best
from tensornet_attn.cost.target import TRAINING, Target
from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.recurrence import Recurrence
from tensornet_attn.kernels import KERNELS
from tensornet_attn.kernels.implementation import Context, Lowered, Rewriting
from tensornet_attn.plan.absorb import ABSORBED, absorbed
from tensornet_attn.plan.cache import LruCache
from tensornet_attn.plan.demands import backend_of, strictly
from tensornet_attn.plan.implementations import BESIDE_FUSED, CPP, TORCH, TRITON_ALONE, ImplementationTable
from tensornet_attn.plan.plan import Lowering, Plan, Region
from tensornet_attn.plan.through import THROUGH
from tensornet_attn.plan.ways import AS_PRICED, WAYS, Way, chosen
from tensornet_attn.rewrite.hidden import hiding
from tensornet_attn.rewrite.whole import gone, simplified
from tensornet_attn.tiles.cpp.step import PositionSteps, position_steps
from tensornet_attn.tiles.legs import quadratic

BACKENDS = ("auto", "reference", "torch", "inductor", "cpp", "triton")
LONGER = 1.2  # times as long as another plan one of C++ kernels may be predicted to take: predictions err by as much
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
    limited = target.memory is not None or target.linear_memory  # which can rule out the cheapest plan
    if backend == "reference":
        regions = (Region(s.name, (s.name,), backend, "as written, dense") for s in graph.steps if not s.nested)
        plans = {AS_PRICED: Plan(graph, graph, tuple(regions), backend, target)}
    else:
        table = {"triton": BESIDE_FUSED if fused else TRITON_ALONE, "cpp": CPP}.get(backend, TORCH)
        plans = _in_ways(graph, backend, target, table, WAYS if limited else WAYS[:1])
    plan = chosen(plans) if limited else plans[AS_PRICED]
    if target.strict:
        strictly(graph.name, plan.regions, backend)
    return plan


def candidates(graph: Graph, target: Target = TRAINING, only: Container[str] | None = None) -> dict[str, Plan]:
    """torch's plan of a graph and all plans that it was preferred to, each schedule once, by the first way to get it.

    They are those of all ways, and without or with each rewriting and implementation. `only`: names of ways to plan.
    """
    names = (
        *(row.name for row in TORCH.rewritings),
        *(row.name for row in TORCH.rows if not row.of_recurrences),
        ABSORBED,
    )
    ways = [*WAYS, *(Way(f"without {name}", (name,)) for name in names)]
    ways += [Way(f"{name} forced", forced=(name,)) for name in names]
    plans = _in_ways(graph, "torch", target, TORCH, [way for way in ways if only is None or way.name in only])
    first_names = {plan.schedule.to_text(): name for name, plan in reversed(plans.items())}
    return {name: plan for name, plan in plans.items() if name in first_names.values()}


def _in_ways(
    graph: Graph, backend: str, target: Target, table: ImplementationTable, ways: Iterable[Way]
) -> dict[str, Plan]:
    """The plan of a graph in each way: the cheapest of those with and without the rows that pay off only sometimes."""
    context = Context(target.sizes(graph), target, backend, table.rows)
    simpler, trace = simplified(graph)
    left_out = [  # a region for each step that was removed
        Region(name, (name,), backend, f"removed: {rule}", removed=True)
        for name, rule in gone(graph, trace).items()
        if "." not in name
    ]
    plans = dict[tuple[tuple[str, ...], frozenset[str]], tuple[Plan, set[str]]]()

    def planned(way: Way, *rows: str) -> Plan:
        """The plan without these rows either; an earlier one, which also says why it does not use them, if it skips no
        others and none of them changed it."""
        skipped = frozenset((*way.without, *rows)).difference(way.forced)
        for (forced, fewer), (plan, used) in plans.items():
            if forced == way.forced and fewer <= skipped and not used & skipped:
                return plan
        forcing = replace(context, forced=way.forced)
        plans[way.forced, skipped] = plan, _ = _planned(graph, simpler, table, forcing, skipped, left_out)
        return plan

    skipped = table.skipped[-1:] if target.strict else table.skipped
    of_last = LONGER if target.device.measured else 1.0  # the last one is of kernels alone
    return {
        way.name: cheapest(
            [cheapest([planned(way, *rows), planned(way, *rows, THROUGH.name)]) for rows in skipped], of_last
        )
        for way in ways
    }


def _planned(
    written: Graph,
    start: Graph,
    table: ImplementationTable,
    context: Context,
    skipped: Container[str],
    left_out: Sequence[Region],
) -> tuple[Plan, set[str]]:
    """The plan of the diagram `written` without the `skipped` rows, and the names of the rows that changed it.

    `start`: the diagram after the rewrites that never increase cost.
    """
    torch_context = replace(context, backend="torch", rows=TORCH.rows, forced=())  # Triton fuses what torch fuses
    context = replace(context, rows=tuple(row for row in context.rows if row.name not in skipped))
    notes, graph, used = _Notes(), start, set[str]()
    planned = dict[Graph, tuple[Graph, dict[str, Lowered]]]()

    def schedule_of(graph: Graph) -> Graph:
        if graph not in planned:
            planned[graph] = _, lowerings = _implemented(graph, context)
            used.update(name for name, lowered in lowerings.items() if lowered.chosen or lowered.more)
        return planned[graph][0]

    absorbing = Rewriting(ABSORBED, lambda graph, _: absorbed(graph, context, schedule_of))
    for rewriting in (*table.rewritings, absorbing):
        if rewriting.name not in skipped:
            rewritten = rewriting.apply(graph, torch_context)
            if rewritten.graph != graph:
                used.add(rewriting.name)
            graph = notes.taken(rewriting.name, rewritten)
    schedule, implementations = schedule_of(graph), planned[graph][1]
    for name, implemented in implementations.items():
        notes.taken(name, implemented)
    lowered = [*implementations.values()][-1].graph
    replaced = [name for name in notes.chosen if name in start.step and name not in lowered.step and "." not in name]
    regions = [*left_out, *(Region(name, (name,), context.backend, notes.chosen[name]) for name in replaced)]
    regions += _regions(lowered, context.backend, notes)
    in_cpp = context.backend == "cpp" and context.target.workload == "decoding"
    position = position_steps(hiding(schedule, keys=True)) if in_cpp else None
    regions = [*_with_call(regions, position)] if position else regions
    return Plan(written, schedule, tuple(regions), context.backend, context.target, position=position), used


def cheapest(plans: Sequence[Plan], of_last: float = 1.0, seconds: Iterable[float] = ()) -> Plan:
    """The plan with the least predicted time, the first of equals; the last one may take `of_last` times as long.

    `seconds`: of each plan, if not its price.
    """
    if all(plan is plans[0] for plan in plans):
        return plans[0]
    by_plan = [*seconds] or [plan.price.seconds for plan in plans]
    by_plan[-1] /= of_last
    return plans[by_plan.index(min(by_plan))]


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
        alone = step.kernel is None or KERNELS[step.kernel.kind].plain(step)
        plain = alone and not quadratic(lowered, step.legs)
        yield Region(steps[-1], steps, backend_of(step, backend), how, tuple(against), plain, cost)


def _with_call(regions: Sequence[Region], position: PositionSteps) -> Iterator[Region]:
    """The regions, with one for the call in place of those of its steps."""
    inside = tuple(step.name for step in position.inside)
    replaced = [region for region in regions if {*region.steps} <= {*inside}]
    for region in regions:
        if region == replaced[-1]:
            yield Region(position.results[0].name, inside, "cpp", f"C++ of one position: {position.words}")
        elif region not in replaced:
            yield region


def _chosen(step: Step) -> str:
    if step.box is not None:
        return f"dense {step.box.kind}"
    factors = max((len(term.factors) for term in step.terms), default=0)
    if factors > limits.ORDER_FACTORS:
        return f"pairwise products in a greedy order: {factors} tensors are too many for an exact search"
    return ("one pass", "one pass", "one product", "pairwise products in the cheapest order")[min(factors, 3)]
