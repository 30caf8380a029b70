"""Grouped experts: products with the weight of experts that a topk chose compute the chosen ones alone.

# G = topk along e;  y = G x W             ->    y = sum of the k chosen G x W, rows sorted by expert
# G = topk along e;  y = G map(x W1) W2    ->    the same, and x W1 at the chosen ones alone
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tensornet_attn.cost.experts import Experts, Product, chosen_of, chosen_time, held, read_product, topk_of
from tensornet_attn.cost.routing import Routing, chosen_behind
from tensornet_attn.graph.model import Contraction, Graph, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE, evaluate
from tensornet_attn.plan.figures import duration
from tensornet_attn.plan.implementation import AtPlaces, Context, Cost, Lowered, kernel
from tensornet_attn.plan.order import order
from tensornet_attn.rewrite.change import fresh, with_steps, with_uses

Hidden = tuple[tuple[Step, Product | None], ...]  # steps before the last product, each that is one read as such


@dataclass(frozen=True)
class Gated:
    """A step that reads a topk: as a product with the weights of the chosen experts, or why it is none.

    `joined`: the steps that the product is made of. `hidden`: those that make its rows.
    """

    graph: Graph
    step: Step
    gate: Use

    @property
    def topk(self) -> Step:
        return self.graph.step[self.gate.name]

    @property
    def expert(self) -> str:
        return self.gate.legs[self.topk.legs.index(chosen_of(self.topk)[0])]

    @property
    def chosen(self) -> int:
        """How many experts are chosen."""
        return int(evaluate(chosen_of(self.topk)[1], self.graph.values))

    @cached_property
    def joined(self) -> list[Step]:
        assert self.step.contraction is not None
        return _joined(self.graph, self.step, self.step.contraction.terms[0], self.gate, self.expert)

    @cached_property
    def product(self) -> Product | str:
        if self.step.contraction is None:
            return f"'{self.step.name}' is no product with the gates"
        if len(self.step.contraction.terms) > 1:
            return f"'{self.step.name}' sums {len(self.step.contraction.terms)} products"
        return read_product(self.joined[-1], self.gate, self.expert, held(self.graph))

    @cached_property
    def hidden(self) -> Hidden | str:
        product = self.product
        return _hidden(self.graph, product) if isinstance(product, Product) and product.slots else ()


class GroupedExperts(AtPlaces[tuple[str, Use], Gated]):
    """Every product with a topk as a factor for which that is possible and cheaper."""

    name, kind, opaque = "grouped experts", "experts", True

    def places(self, graph: Graph) -> list[tuple[str, Use]]:
        return [(step.name, use) for step, use in graph.uses() if topk_of(graph, use.name) is not None]

    def form(self, graph: Graph, place: tuple[str, Use]) -> Gated | None:
        name, gate = place
        return None if graph.step[name].kernel else Gated(graph, graph.step[name], gate)

    def named(self, place: tuple[str, Use]) -> str:
        return place[1].name

    def unsupported(self, form: Gated, context: Context) -> tuple[str, ...]:
        if isinstance(form.product, str):
            return (form.product,)
        if form.chosen == _sizes(form, context)[form.expert]:
            return (f"all {form.chosen} experts are chosen",)
        return (form.hidden,) if isinstance(form.hidden, str) else ()

    def cost(self, form: Gated, context: Context) -> Cost:
        """Times of the products and of the maps between them, of the chosen experts alone, and of all."""
        last, hidden, device, sizes, k = form.product, form.hidden, context.device, _sizes(form, context), form.chosen
        assert isinstance(last, Product)
        assert not isinstance(hidden, str)
        dense = ours = 0
        for step, product in (*hidden, (last.step, last)):
            if product is None:
                rows = 2 * device.width * prod(sizes[leg] for leg in step.legs)
                dense, ours = dense + device.time(0, rows), ours + device.time(0, rows * k // sizes[last.expert])
            else:
                dense += order([use.legs for use in step.op.uses], step.legs, sizes, device, device.width).time
                ours += chosen_time(product, k, sizes, device, context.backend == "triton")
        but = f"with the chosen experts alone, '{last.step.name}' would take"
        worth = 1 - 1e-12  # less, or it is not worth the sorting
        return Cost(ours, dense, lambda time, digits: duration(device.seconds(int(time)), digits), but, worth)

    def lower(self, form: Gated, context: Context) -> Lowered:
        graph, step, hidden, joined, product = form.graph, form.step, form.hidden, form.joined, form.product
        assert isinstance(product, Product)
        assert not isinstance(hidden, str)
        body = (*(step for step, _ in hidden), product.step)
        experts = Experts(form.topk, tuple(one for _, one in (*hidden, (step, product)) if one is not None))
        made = replace(step, op=kernel(self.kind, graph, joined, body, experts))
        inside = f"; '{hidden[-1][0].name}' too" if hidden else ""
        how = f"rows sorted by expert, the {form.chosen} chosen of {_sizes(form, context)[form.expert]} computed"
        return Lowered(with_steps(graph, {step.name: [*joined[:-1], made]}), {step.name: f"{self.name}: {how}{inside}"})

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        made, again = super().lowered(graph, context), _chosen_again(graph)
        other = made if again is graph else super().lowered(again, context)
        made = other if len(other.chosen) > len(made.chosen) else made
        grouped, choices = _choices(_without_unread(made.graph))
        return replace(made, graph=grouped, chosen=made.chosen | choices)

    def on_triton(self, form: object) -> bool:
        return isinstance(form, Experts) and bool(form.products)  # the choice alone is a topk of torch's


EXPERTS = GroupedExperts()


def _chosen_again(graph: Graph) -> Graph:
    """The graph in which gates that boxes make of chosen ones, such as their shares, are chosen once more.

    # G = l1norm of topk(s by c);  y = G x W     ->     G' = topk(G by c), which is G;  y = G' x W
    """
    for step in graph.steps:
        root = chosen_behind(graph, step.name)
        if root is None or root.box is None or root.name == step.name or step.name in graph.results:
            continue
        expert = step.legs.index(chosen_of(root)[0])
        uses = [(reader, use) for reader, use in graph.readers.get(step.name, ()) if reader.contraction is not None]
        readers = {reader.name for reader, use in uses if _weighs(graph, reader, use.legs[expert])}
        if not readers:
            continue
        name = fresh(graph, f"{step.name}.chosen")
        operands = (("of", Use(step.name, step.legs)), ("by", root.box.operand("by")))
        new = {reader: [_reading(graph.step[reader], step.name, name)] for reader in readers}
        new[step.name] = [step, Step(name, replace(root.box, operands=operands), step.legs)]
        graph = with_steps(graph, new)
    return graph


def _reading(step: Step, old: str, new: str) -> Step:
    return with_uses(step, lambda use: Use(new, use.legs) if use.name == old else use)


def _weighs(graph: Graph, reader: Step, expert: str) -> bool:
    """Whether a product has a weight of the experts."""
    return any(expert in use.legs and use.name in held(graph) for use in reader.op.uses)


def _sizes(form: Gated, context: Context) -> dict[str, int]:
    return {leg.name: leg.size for leg in form.graph.legs if leg.size is not None} | dict(context.sizes)


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


def _without_unread(graph: Graph) -> Graph:
    """The graph without the steps of kernels that nothing else reads."""
    parts = {name for step in graph.steps if step.kernel and _grouped(step) for name in step.kernel.steps[:-1]}
    for step in reversed(graph.steps if parts else ()):
        if step.name in parts and step.name not in graph.readers and step.name not in graph.results:
            graph = with_steps(graph, {step.name: []})
    return graph
