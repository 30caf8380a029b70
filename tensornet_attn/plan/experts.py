"""Grouped experts: products with the weight of experts that a topk chose compute the chosen ones alone.

# G = topk along e;  y = G x W             ->    y = sum of the k chosen G x W, rows sorted by expert
# G = topk along e;  y = G map(x W1) W2    ->    the same, and x W1 at the chosen ones alone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.experts import Experts, Product, chosen_of, chosen_time, held, read_product, topk_of
from tensornet_attn.cost.routing import Routing
from tensornet_attn.graph.model import Contraction, Graph, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE, evaluate
from tensornet_attn.plan.figures import duration, instead
from tensornet_attn.plan.lowering import Lowered, kernel
from tensornet_attn.plan.order import order
from tensornet_attn.rewrite.change import with_steps

Hidden = tuple[tuple[Step, Product | None], ...]  # steps before the last product, each that is one read as such
EXPERTS = "grouped experts"
CHOSEN = "grouped experts: rows sorted by expert, the {k} chosen of {e} computed"


def lower_experts(graph: Graph, sizes: Mapping[str, int], device: Device, fused: bool = False) -> Lowered:
    """Every product with a topk as a factor for which that is possible and cheaper; `fused`: by a Triton kernel."""
    known = {leg.name: leg.size for leg in graph.legs if leg.size is not None} | dict(sizes)
    lowered, chosen, refused = graph, dict[str, str](), dict[str, tuple[str, ...]]()
    for step, gate in _gates(graph):
        made = _lowered(lowered, step, gate, known, device, fused)
        if isinstance(made, str):
            refused[gate.name] = (*refused.get(gate.name, ()), made)
        else:
            lowered, chosen[step.name] = made
    lowered, choices = _choices(_without_unread(lowered))
    return Lowered(lowered, chosen | choices, refused)


def _gates(graph: Graph) -> Iterator[tuple[Step, Use]]:
    """The uses of every topk, with the step each stands in."""
    for step, use in graph.uses():
        if topk_of(graph, use.name) is not None:
            yield step, use


def _choices(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The graph where each topk that grouped experts alone read finds the chosen ones and makes nothing of all."""
    grouped = {step.name for step in graph.steps if _grouped(step)}
    new, chosen = dict[str, list[Step]](), dict[str, str]()
    for step in graph.steps:
        if topk_of(graph, step.name) is None or step.name in graph.results:
            continue
        if all(reader.name in grouped for reader, _ in graph.readers.get(step.name, ())):
            new[step.name] = [replace(step, op=kernel("experts", graph, (), (step,), Experts(step)))]
            chosen[step.name] = "gates and numbers of the chosen experts, nothing for the others"
    return with_steps(graph, new) if new else graph, chosen


def _grouped(step: Step) -> bool:
    return isinstance(step.form, Experts)


def _lowered(
    graph: Graph, step: Step, gate: Use, sizes: Mapping[str, int], device: Device, fused: bool
) -> tuple[Graph, str] | str:
    """The graph with one product as a kernel, and what to tell of it; or why not."""
    topk = graph.step[gate.name]
    along, count = chosen_of(topk)
    expert, k = gate.legs[topk.legs.index(along)], int(evaluate(count, graph.values))
    if step.contraction is None:
        return f"'{step.name}' is no product with the gates"
    if len(step.contraction.terms) > 1:
        return f"'{step.name}' sums {len(step.contraction.terms)} products"
    joined = _joined(graph, step, step.contraction.terms[0], gate, expert)
    product = read_product(joined[-1], gate, expert, held(graph))
    if isinstance(product, str):
        return product
    if k == sizes[expert]:
        return f"all {k} experts are chosen"
    hidden = _hidden(graph, product) if product.slots else ()
    if isinstance(hidden, str):
        return hidden
    if against := _not_profitable(product, hidden, k, sizes, device, fused):
        return against
    body = (*(step for step, _ in hidden), product.step)
    form = Experts(topk, tuple(one for _, one in (*hidden, (step, product)) if one is not None))
    made = replace(step, op=kernel("experts", graph, joined, body, form))
    inside = f"; '{hidden[-1][0].name}' too" if hidden else ""
    steps = tuple(part for s in graph.steps for part in ((*joined[:-1], made) if s.name == step.name else (s,)))
    return replace(graph, steps=steps), CHOSEN.format(k=k, e=sizes[expert]) + inside


def _joined(graph: Graph, step: Step, term: Term, gate: Use, expert: str) -> list[Step]:
    """The step with all but gate and weight multiplied first, where these are several: that product, and the rest."""
    apart = [use for use in term.factors if use == gate or (expert in use.legs and use.name in held(graph))]
    others = [use for use in term.factors if use not in apart]
    if len(others) < 2:
        return [step]
    kept = {leg for use in apart for leg in use.legs} | set(step.legs)
    legs = tuple(dict.fromkeys(leg for use in others for leg in use.legs if leg in kept))
    first = Step(f"{step.name}.p2", Contraction((Term(ONE, tuple(others)),)), legs)  # p1 is the kernel's own
    rest = (*(use for use in apart if use == gate), Use(first.name, legs), *(use for use in apart if use != gate))
    return [first, replace(step, op=Contraction((Term(term.coefficient, rest),)))]


def _hidden(graph: Graph, last: Product) -> Hidden | str:
    """The product with experts, and the maps of it, that give the rows of `last`; or why not the chosen ones alone."""
    by = frozenset(last.gate.legs) - {last.expert}
    needed, read = Routing.of(graph).needed, Counter(use.name for _, use in graph.uses())
    found: list[tuple[Step, Product | None]] = []
    use = last.x
    while (step := graph.step.get(use.name)) is not None:
        choices = {(one.leg, one.by) for one in needed.get(step.name, ())}
        if (last.expert, by) not in choices or read[step.name] > 1 or use.legs != step.legs:
            return f"'{step.name}' is needed for every '{last.expert}', chosen or not"
        if step.contraction is not None and len(step.contraction.terms) == 1:
            first = read_product(step, last.gate, last.expert, held(graph))
            return first if isinstance(first, str) else ((step, first), *found)
        if step.box is None or step.box.function is None:
            break
        found.insert(0, (step, None))
        use = step.box.operand("of")
    return f"'{use.name}' on leg '{last.expert}' is neither a product with experts nor a map of one"


def _not_profitable(
    last: Product, hidden: Hidden, k: int, sizes: Mapping[str, int], device: Device, fused: bool
) -> str:
    """Why choosing does not pay; empty where it does."""
    dense = ours = 0
    for step, product in (*hidden, (last.step, last)):
        if product is None:
            rows = 2 * device.width * prod(sizes[leg] for leg in step.legs)
            dense, ours = dense + device.time(0, rows), ours + device.time(0, rows * k // sizes[last.expert])
        else:
            dense += order([use.legs for use in step.op.uses], step.legs, sizes, device, device.width).time
            ours += chosen_time(product, k, sizes, device, fused)
    if ours < dense:
        return ""
    times = instead(device.seconds(ours), device.seconds(dense), duration)
    return f"with the chosen experts alone, '{last.step.name}' would take {times}"


def _without_unread(graph: Graph) -> Graph:
    """The graph without the steps of kernels that nothing else reads."""
    parts = {name for step in graph.steps if step.kernel and _grouped(step) for name in step.kernel.steps[:-1]}
    for step in reversed(graph.steps if parts else ()):
        if step.name in parts and step.name not in graph.readers and step.name not in graph.results:
            graph = with_steps(graph, {step.name: []})
    return graph
