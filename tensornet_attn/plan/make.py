"""Plans a graph: fused attention where nothing speaks against it, every product in the best order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import inf

from tensornet_attn import limits
from tensornet_attn.cost.experts import Experts
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.graph.pairs import BATCH
from tensornet_attn.graph.recurrence import Recurrence
from tensornet_attn.plan.absorb import ABSORBED, lower_absorbed
from tensornet_attn.plan.band import lower_band
from tensornet_attn.plan.blockwise import lower_blockwise
from tensornet_attn.plan.cumsum import CUMSUM, lower_cumsum
from tensornet_attn.plan.demands import backend_of, strictly
from tensornet_attn.plan.distribute import lower_distribution
from tensornet_attn.plan.duplicate import DUPLICATES, lower_duplicates
from tensornet_attn.plan.experts import EXPERTS, lower_experts
from tensornet_attn.plan.fuse import FUSED, lower_attention
from tensornet_attn.plan.hoist import HOISTS, lower_hoists
from tensornet_attn.plan.linear import LINEAR, lower_linear
from tensornet_attn.plan.lowering import Lower
from tensornet_attn.plan.model import Lowering, Plan, Region
from tensornet_attn.plan.normalized import NORMALIZED, lower_normalized
from tensornet_attn.plan.order import split_best
from tensornet_attn.plan.states import STATES, lower_states
from tensornet_attn.plan.target import TRAINING, Target
from tensornet_attn.plan.triton import TRITON, lower_triton
from tensornet_attn.plan.ways import AS_PRICED, BAND, DISTRIBUTION, ROWS, WAYS, Way, chosen, rows_for
from tensornet_attn.rewrite.whole import gone, simplified
from tensornet_attn.tiles.legs import quadratic

BESIDE_KERNELS = 16  # times fewer multiply-adds, for which torch computes on a GPU what a kernel could

LOWERINGS: dict[str, Lower] = {  # in the order in which they are tried
    NORMALIZED: lower_normalized,
    HOISTS: lower_hoists,
    DUPLICATES: lower_duplicates,
    DISTRIBUTION: lower_distribution,
    ABSORBED: lower_absorbed,
    BAND: lower_band,
    STATES: lower_states,
    LINEAR: lower_linear,
    CUMSUM: lower_cumsum,
    TRITON: lower_triton,  # on this backend alone
    FUSED: lower_attention,
    EXPERTS: lower_experts,
    ROWS: lower_blockwise,
}


def make_plan(graph: Graph, backend: str = "torch", target: Target = TRAINING, fused: bool = False) -> Plan:
    """The plan of a graph on a backend for a target: a pure function of its arguments.

    `reference` keeps the diagram as written; the others fuse and split it. `fused`: Triton takes what cannot be fused
    attention alone. Raises InputError where no plan meets the target, with the least possible figure, or with the
    region and what stands against it.
    """
    sizes = target.sizes(graph)
    if backend == "reference":
        plans = {AS_PRICED: _as_written(graph, target, sizes)}
    else:
        ways = WAYS if target.demanding else WAYS[:1]
        start, left_out = _simpler(graph, backend)
        plans = {way.name: _planned(graph, start, backend, target, sizes, way, left_out, fused) for way in ways}
    plan = chosen(plans, sizes) if target.demanding else plans[AS_PRICED]
    if target.strict:
        strictly(graph.name, plan.regions, backend)
    return plan


def _as_written(graph: Graph, target: Target, sizes: Mapping[str, int]) -> Plan:
    regions = (Region(s.name, (s.name,), "reference", "as written, dense") for s in graph.steps if not s.nested)
    return Plan(graph, graph, tuple(regions), "reference", _lengths(sizes), target)


def _simpler(graph: Graph, backend: str) -> tuple[Graph, tuple[Region, ...]]:
    """The graph after the rewrites that cost nothing, and a region for each step of the diagram that they left out."""
    made, trace = simplified(graph)
    regions = (Region(name, (name,), backend, f"left out: {rule}") for name, rule in gone(graph, trace).items())
    return made, tuple(region for region in regions if "." not in region.name)


def _planned(
    written: Graph,
    graph: Graph,
    backend: str,
    target: Target,
    sizes: Mapping[str, int],
    way: Way,
    left_out: tuple[Region, ...] = (),
    fused: bool = False,
) -> Plan:
    """The plan of a graph, which computes what is `written`, in one way to plan."""
    lowered, taken, refused = graph, dict[str, str](), dict[str, list[Lowering]]()
    for name, lower in _lowerings(way, target, backend, fused).items():
        made = lower(lowered, sizes, target.device)
        lowered, taken = made.graph, taken | made.chosen
        for step, reasons in made.refused.items():
            refused.setdefault(step, []).append(Lowering(name, reasons))
    schedule, _ = split_best(lowered, sizes, target.device, target.device.width)
    apart = [name for name in taken if name in graph.step and name not in lowered.step and "." not in name]
    regions = left_out + tuple(Region(name, (name,), backend, taken[name]) for name in apart)
    regions += tuple(_regions(lowered, backend, taken, refused))
    return Plan(written, schedule, regions, backend, _lengths(sizes), target)


def _lowerings(way: Way, target: Target, backend: str, fused: bool = False) -> dict[str, Lower]:
    """The lowerings of a way for a target, in order; weights are absorbed in view of what comes after."""
    decay = 1 if backend != "triton" else inf if target.strict else BESIDE_KERNELS
    each = backend != "triton" and not {BAND, LINEAR, FUSED} & {*way.without}  # a kernel reads all values of one map
    names = list(LOWERINGS)
    if backend == "triton":  # kernels leave out what is beyond a band: torch has what they do not take
        names.remove(BAND)
        names.insert(names.index(TRITON) + 1, BAND)
    if fused:
        names.remove(FUSED)
        names.insert(names.index(TRITON), FUSED)
    found: dict[str, Lower] = {
        **{name: LOWERINGS[name] for name in names},
        HOISTS: partial(lower_hoists, apart=each),
        DUPLICATES: partial(lower_duplicates, fused=backend != "triton", decay=decay),
        LINEAR: partial(lower_linear, decay=decay),
        ROWS: rows_for(way, target),
        EXPERTS: partial(lower_experts, fused=backend == "triton"),
    }
    without = way.without if backend == "triton" else (*way.without, TRITON)
    if {BAND, LINEAR} & {*without}:
        without = (*without, NORMALIZED)
    found = {name: lower for name, lower in found.items() if name not in without}
    if ABSORBED in found:
        later = list(found)[list(found).index(ABSORBED) + 1 :]
        found[ABSORBED] = partial(lower_absorbed, target=target, then=[found[name] for name in later])
    return found


def _lengths(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((leg, size) for leg, size in sizes.items() if leg != BATCH)


def _regions(
    lowered: Graph, backend: str, chosen: dict[str, str], refused: dict[str, list[Lowering]]
) -> Iterator[Region]:
    """A region for each operation and each step of the diagram that is computed by itself, in the order they run."""
    for step in lowered.steps:
        if step.kernel and step.kernel.kind == "join":
            continue  # part of the attention that reads it
        steps = step.fused.steps if step.fused else (step.name,)
        against = dict.fromkeys(low for name in steps for low in refused.get(name, []) if low.against)
        if step.fused or not step.nested:
            told = chosen[step.name] if step.fused else _chosen(step)
            yield Region(
                region_name(step), steps, backend_of(step, backend), told, tuple(against), _plain(lowered, step)
            )


def _plain(graph: Graph, step: Step) -> bool:
    """Whether a step is no more than products or a box of its own: a choice of experts, a sum, states among them."""
    form = step.form
    small = isinstance(form, Recurrence) and (form.mixes or form.value is None)
    small |= isinstance(form, Experts) and not form.products
    return (step.fused is None or small) and not quadratic(graph, step.legs)


def region_name(step: Step) -> str:
    """The step of the diagram that an operation is known by: the box of an attention, the result of another kernel."""
    return step.fused.steps[-1] if step.fused else step.name


def _chosen(step: Step) -> str:
    if step.box is not None:
        return f"dense {step.box.kind}"
    factors = max(len(term.factors) for term in step.contraction.terms) if step.contraction else 0
    if factors > limits.ORDER_FACTORS:
        return f"two operands a step, in a greedy order: {factors} tensors are too many to search"
    return ("one pass", "one pass", "one product", "two operands a step, in the cheapest order")[min(factors, 3)]
