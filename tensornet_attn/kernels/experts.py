"""Grouped experts: products with expert weights are computed only for the experts that a topk chose.

# G = topk along e;  y = G x W             ->    y = sum of the k chosen G x W, rows sorted by expert
# G = topk along e;  y = G map(x W1) W2    ->    the same, and x W1 for the chosen experts only
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tensornet_attn.cost.experts import (
    Experts,
    Product,
    before_product,
    chooses,
    chosen_of,
    chosen_time,
    held,
    in_one_product,
    read_product,
    topk_of,
)
from tensornet_attn.cost.figures import duration
from tensornet_attn.cost.kernels import Parts, steps_of
from tensornet_attn.cost.memory import kept, saved
from tensornet_attn.cost.order import order
from tensornet_attn.cost.price import scene_of, time_of_step
from tensornet_attn.cost.products import Matmul, Shape
from tensornet_attn.cost.rates import ELEMENTWISE, Table
from tensornet_attn.cost.routing import Routing, chosen_behind
from tensornet_attn.cost.scene import Scene, word
from tensornet_attn.cost.seconds import (
    CALLS,
    OF_MAPS,
    accessed,
    multiplied,
    of_exponentials,
    passes_of,
    projected,
    takes_projected,
)
from tensornet_attn.cost.shapes import matmuls
from tensornet_attn.emit.boxes import emit_box
from tensornet_attn.emit.experts import add_biases, choose, name_of_chosen, product_text
from tensornet_attn.emit.layout import split
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Contraction, Graph, Kernel, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE, evaluate
from tensornet_attn.ir.values import Legs
from tensornet_attn.kernels.apart import seconds_apart
from tensornet_attn.kernels.attention import FUSED, attention_of, attention_seconds, kind_of, operands_of, options_of
from tensornet_attn.kernels.implementation import AtPlaces, Context, Cost, Lowered, kernel
from tensornet_attn.ops.map import arguments, row
from tensornet_attn.rewrite.change import fresh, with_steps, with_uses
from tensornet_attn.rewrite.change import product as product_of
from tensornet_attn.rewrite.fused import FusedAttention

Hidden = tuple[tuple[Step, Product | None], ...]  # the steps before the last product; a Product for each that is one
CALLS_OF_EXPERT = 12


@dataclass(frozen=True)
class Gated:
    """A step that reads a topk, as a product with the weights of the chosen experts, or why it is not such a product.

    `joined`: the steps that compute the product. `hidden`: the steps that compute its rows.
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
        """The number of chosen experts."""
        return int(evaluate(chosen_of(self.topk)[1], self.graph.values))

    @cached_property
    def joined(self) -> list[Step]:
        assert self.step.contraction is not None
        return _joined(self.graph, self.step, self.step.contraction.terms[0], self.gate, self.expert)

    @cached_property
    def product(self) -> Product | str:
        if self.step.contraction is None:
            return f"'{self.step.name}' is not a product with the gates"
        return read_product(self.joined[-1], self.gate, self.expert, held(self.graph))

    @cached_property
    def hidden(self) -> Hidden | str:
        product = self.product
        return _hidden(self.graph, product) if isinstance(product, Product) and product.slots else ()


class GroupedExperts(AtPlaces[tuple[str, Use], Gated]):
    """Products with a topk as a factor, for which computing only the chosen experts is possible and cheaper."""

    name, kind, opaque, pairs = "grouped experts", "experts", True, False

    def places(self, graph: Graph) -> list[tuple[str, Use]]:
        return [(step.name, use) for step, use in graph.uses() if topk_of(graph, use.name) is not None]

    def form(self, graph: Graph, place: tuple[str, Use]) -> Gated | None:
        name, gate = place
        if graph.step[name].kernel:
            return None
        graph, step = _by_itself(graph, graph.step[name], gate)
        return Gated(graph, step, gate)

    def named(self, place: tuple[str, Use]) -> str:
        return place[1].name

    def unsupported(self, form: Gated, context: Context) -> tuple[str, ...]:
        if isinstance(form.product, str):
            return (form.product,)
        if form.chosen == _sizes(form, context)[form.expert]:
            return (f"all {form.chosen} experts are chosen",)
        return (form.hidden,) if isinstance(form.hidden, str) else ()

    def cost(self, form: Gated, context: Context) -> Cost:
        """Times of the products and of the maps between them: of the chosen experts, and of all experts."""
        hidden, device, sizes, k = form.hidden, context.device, _sizes(form, context), form.chosen
        last = _last(form, context)
        assert not isinstance(hidden, str)
        but = f"'{last.step.name}' for the chosen experts only would take"
        worth = 1 - 1e-12  # strictly less, to pay for the sorting
        if device.measured:
            made = _without_unread(self.lower(form, context).graph)
            own, other = seconds_apart(made, form.graph, context.sizes, context.target)
            return Cost(own, other, duration, but, worth)
        dense = ours = 0
        for step, product in (*hidden, (last.step, last)):
            if step.kernel is not None:
                time = _attention_time(form.graph, step, context)
                dense, ours = dense + time, ours + time * k // sizes[last.expert]
            elif product is None and _view(step) is None:
                rows = 2 * device.width * prod(sizes[leg] for leg in step.legs)
                dense, ours = dense + device.time(0, rows), ours + device.time(0, rows * k // sizes[last.expert])
            elif product is not None:
                dense += order([use.legs for use in step.op.uses], step.legs, sizes, device, device.width).time
                ours += chosen_time(product, k, sizes, device, context.backend == "triton")
        return Cost(ours, dense, lambda time, digits: duration(device.seconds(int(time)), digits), but, worth)

    def lower(self, form: Gated, context: Context) -> Lowered:
        graph, step, hidden, joined, last = form.graph, form.step, form.hidden, form.joined, _last(form, context)
        assert not isinstance(hidden, str)
        body = (*(step for step, _ in hidden), *([form.topk] if last.at_once else []), last.step)
        experts = Experts(form.topk, tuple(one for _, one in (*hidden, (step, last)) if one is not None))
        made = replace(step, op=kernel(self.kind, graph, joined, body, experts))
        attended = next((steps_of(one)[-1] for one, _ in hidden if one.kernel is not None), None)
        inside = f", also in '{attended or hidden[-1][0].name}'" if hidden else ""
        inside += (
            " for the queries that chose each head (for all queries on a GPU and under torch.compile)"
            if attended
            else ""
        )
        count = _sizes(form, context)[form.expert]
        how = f"rows sorted by expert, only the {form.chosen} chosen of {count} computed"
        if last.at_once:
            how = f"one product for all {count}, kernels choose {form.chosen} and multiply by their gates"
        return Lowered(with_steps(graph, {step.name: [*joined[:-1], made]}), {step.name: f"{self.name}: {how}{inside}"})

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        made, again = super().lowered(graph, context), _chosen_again(_biases_apart(graph))
        other = made if again is graph else super().lowered(again, context)
        made = other if len(other.chosen) > len(made.chosen) else made
        grouped, choices = _choices(_maps_inside(_without_unread(made.graph)))
        for step in filter(chooses, grouped.steps):
            made.chosen[step.name] += f"; inside: {', '.join(steps_of(step)[:-1])}"
        return replace(made, graph=grouped, chosen=made.chosen | choices)

    def on_triton(self, form: object) -> bool:
        return isinstance(form, Experts)

    def macs(self, scene: Scene, step: Step) -> dict[Legs, int]:
        """MACs of the chosen experts, with k in place of their leg, unless one product has all experts."""
        form, found = experts_of(step), Counter[Legs]()
        k = word(chosen_of(form.topk)[1])
        for product in form.products:
            result = (*product.tokens, *product.heads, product.expert, *product.own)
            for legs in ((*result, *product.summed), *([result] if product.gated else [])):
                count = product.expert if product.at_once else k
                found[tuple(count if leg == product.expert else leg for leg in scene.ordered(legs))] += 1
        for part in step.kernel.body if step.kernel is not None else ():
            if part.kernel is not None:  # attention of the chosen heads
                for legs, times in FUSED.macs(scene, part).items():
                    found[tuple(k if leg == form.products[-1].expert else leg for leg in legs)] += times
        return dict(found)

    def kept(self, scene: Scene, step: Step) -> dict[str, int]:
        """The order of all experts, chosen gates, rows of operands, what boxes between products save.

        Attention of chosen heads keeps its order twice, and a copy of its result. Kernels that choose themselves keep
        operands, result, and the rows of all experts before their product, or the chosen ones after it.
        """
        form, found = experts_of(step), dict[str, int]()
        if not form.products:
            return {f"{step.name}: order": scene.elements(step)}
        inner, body = self.inside(scene, step), step.kernel.body if step.kernel else ()
        if (last := form.products[-1]).at_once:
            width, out_width = scene.size(last.summed), scene.size(last.own)
            each, size = int(scene.number(chosen_of(form.topk)[1])), out_width
            if before_product(last, scene.size(last.heads), width, out_width):
                each, size = scene.size((last.expert,)), width
            rows = inner.elements(form.topk, without=chosen_of(form.topk)[0])
            made = {f"{step.name}: choice": rows, f"{step.name}: rows of experts": rows * each * size}
            return kept(scene, step.op.uses) | {step.name: scene.stored[step.name]} | made
        for product in form.products:
            own = kept(inner, (product.x,))
            attended = any(part.name == product.x.name and part.kernel for part in body)
            found |= {f"{step.name}: {name}": floats for name, floats in own.items()} if attended else own
            if product.gated:
                found[f"{form.topk.name}: gates"] = inner.elements(product.gate)
        for part in body:
            if part.contraction is None:
                found |= saved(inner, part)
            if part.kernel is not None:
                op = attention_of(part)
                order = inner.elements(part) // inner.size({*op.value.legs} - {*op.scores})
                found[f"{part.name}: order"] = 2 * order
        return found | {name: floats for name, floats in kept(scene, step.op.uses).items() if name in found}

    def inside(self, scene: Scene, step: Step) -> Scene:
        """The scene inside a kernel, which has only the chosen experts, or all of them at once."""
        form, inner = experts_of(step), super().inside(scene, step)
        few = {one.expert: int(scene.number(chosen_of(form.topk)[1])) for one in form.products if not one.at_once}
        return replace(inner, sizes={**inner.sizes, **few})

    def matmuls(self, scene: Scene, step: Step) -> list[Matmul]:
        """The products of the rows that a chosen expert has on average; attention of chosen heads."""
        few, found = self.inside(scene, step), list[Matmul]()
        batch = scene.batch if step.name in scene.batched else 1
        for product in experts_of(step).products:
            result = (*product.tokens, *product.heads, product.expert, *product.own)
            experts, summed, width = map(scene.size, ((*product.heads, product.expert), product.summed, product.own))
            rows = batch * few.size(result) // width
            shape = Shape(1, max(1, rows // experts), width, summed)
            found.append(Matmul(shape, (*result, *product.summed), float(rows * width * (summed + product.gated))))
        attended = (part for part in step.kernel.body if part.kernel) if step.kernel else ()
        return found + [matmul for part in attended for matmul in matmuls(few, part)]

    def seconds(self, scene: Scene, step: Step, table: Table, backward: bool) -> Parts:
        """Products with the chosen experts, maps between them, and attention of the chosen heads.

        The rows of one expert are gathered in a cache; their products are read for each head, put back and added.
        """
        assert step.kernel is not None
        learned, few = backward and step.name in scene.learned, self.inside(scene, step)
        times, calls, batch = passes_of(learned), CALLS, scene.batch if step.name in scene.batched else 1
        seconds: defaultdict[str, float] = defaultdict(float)
        for product, (shape, _, macs) in zip(experts_of(step).products, self.matmuls(scene, step), strict=False):
            calls += CALLS_OF_EXPERT * scene.size((product.expert, *product.heads))
            large = shape.rows * shape.summed >= table.projected[0] and takes_projected(shape, table, False)
            each = projected(shape, table, False) if large else 3 * (multiplied(shape, table),)
            seconds["product"] += macs / shape.macs * sum(each[:times])
            put = accessed(batch * few.size((*product.tokens, product.expert, *product.own)), table)
            put += 2 * accessed(batch * few.size((*product.tokens, *product.own)), table)
            seconds[ELEMENTWISE] += times * few.size(product.heads) * put
        for part in step.kernel.body:
            if part.kernel is not None:
                op, kind = attention_of(part), kind_of(scene, part)
                calls += CALLS * scene.size({*op.scores} - {scene.graph.query, op.leg})
                seconds[kind] += attention_seconds(few, part, op, table, learned, kind)
            elif part.box is not None:
                exps, maps = of_exponentials(few, part, table, learned)
                seconds[ELEMENTWISE] += times * 2 * accessed(few.elements(part), table) + exps
                seconds[OF_MAPS] += maps
        seconds["call"] += (calls + 1) * table.call[learned]
        return seconds

    def plain(self, step: Step) -> bool:
        return not experts_of(step).products

    def emit(self, writer: Writer, step: Step) -> None:
        """Emits one kernel: the choice of experts, or the computation of the experts that a topk chose."""
        assert step.kernel is not None
        form = experts_of(step)
        topk, products = form.topk, {product.step.name: product for product in form.products}
        body = step.kernel.body[-1:] if chooses(step) else step.kernel.body
        if not chooses(step):
            choose(writer, topk)
        inside = _inside(writer, step.kernel)
        if len(body) > 1:
            names, k = ", ".join(step.kernel.steps[:-1]), writer.integer(chosen_of(topk)[1])
            writer.line(f"# {names}: leg {products[step.name].expert} has the {k} chosen entries only")
        for part in body:
            if part.name in products:
                value = product_text(inside, products[part.name], topk)
                inside.bind(part.name, value.text, value.legs, value.level)
            elif part.kernel is not None:
                _attention(inside, part, form, topk, _of_products(step.kernel.body, products))
            elif part.contraction is not None and len(part.contraction.terms) > 1:
                add_biases(inside, part, next(iter(products.values())), topk)
            elif products and part.contraction is not None:  # a renamed value
                inside.values[part.name] = inside.value(part.contraction.uses[0])
            elif products:
                emit_box(inside, part)


EXPERTS = GroupedExperts()


def _last(form: Gated, context: Context) -> Product:
    """The product with the gates, as the backend computes it."""
    assert isinstance(form.product, Product)
    at_once = context.backend == "triton" and in_one_product(
        form.product, form.topk, form.chosen, _sizes(form, context)
    )
    return replace(form.product, at_once=at_once)


def _attention_time(graph: Graph, step: Step, context: Context) -> int:
    """The forward time of an attention of all heads, for batch 1."""
    forward = replace(context.target, workload="prefill", batch=1)
    return time_of_step(scene_of(graph, context.sizes, forward), step, forward)


def _by_itself(graph: Graph, step: Step, gate: Use) -> tuple[Graph, Step]:
    """Makes the product with the gates a step of its own; returns the graph and that step.

    # y = a[n] G O Wo + b S Ws     ->     y.routed = G O Wo;  y = a[n] y.routed + b S Ws
    """
    terms = step.contraction.terms if step.contraction is not None else ()
    own = [term for term in terms if gate in term.factors]
    if len(own) != 1:
        return graph, step
    (term,) = own
    weight = [use for use in term.factors if use.name in held(graph) and {*use.legs} & {*gate.legs}]
    outer = [
        use for use in term.factors if use != gate and use not in weight and {*use.legs} <= {*gate.legs} & {*step.legs}
    ]
    rest = tuple(use for use in term.factors if use not in outer)
    if (len(terms) == 1 and not outer) or len(rest) < 3:
        return graph, step
    legs = tuple(leg for leg in step.legs if any(leg in use.legs for use in rest))
    name = fresh(graph, f"{step.name}.routed")
    first = Step(name, Contraction((Term(ONE, rest),)), legs)
    new = replace(term, factors=(*outer, Use(name, legs)))
    sums = replace(step, op=Contraction(tuple(new if one is term else one for one in terms)))
    return with_steps(graph, {step.name: [first, sums]}), first


def _biased(graph: Graph, step: Step, last: Product) -> Use | str:
    """The product to which a step adds the biases of experts, or why there is none."""
    assert step.contraction is not None
    terms = [term.factors[0] for term in step.contraction.terms if len(term.factors) == 1 and term.coefficient == ONE]
    rows = [use for use in terms if use.name not in held(graph)]
    sums = len(terms) == len(step.contraction.terms) and len(rows) == 1 and {*rows[0].legs} == {*step.legs}
    if not sums or last.heads or any({*last.tokens} & {*use.legs} for use in terms if use not in rows):
        return f"'{step.name}' is not a product with experts plus their biases"
    return rows[0]


def _biases_apart(graph: Graph) -> Graph:
    """The graph in which products with expert weights are steps of their own instead of terms of sums with biases.

    # H = x W1 + b1;  y = G H W2 + G b2     ->     H' = x W1;  H = H' + b1;  y' = G H W2;  y = y' + G b2
    """
    experts = {chosen_of(step)[0] for step in graph.steps if topk_of(graph, step.name) is not None}
    experts |= {chosen_of(root)[0] for step in graph.steps if (root := chosen_behind(graph, step.name)) is not None}
    new = dict[str, list[Step]]()
    for step in graph.steps:
        terms = step.contraction.terms if step.contraction is not None else ()
        weighed = [
            term
            for term in terms
            if len(term.factors) > 1 and any(use.name in held(graph) and experts & {*use.legs} for use in term.factors)
        ]
        plain = [term for term in weighed if len([use for use in term.factors if use.name not in held(graph)]) > 1]
        chosen = plain or [term for term in weighed if experts & {*step.legs}]
        if len(terms) < 2 or len(chosen) != 1:
            continue
        (term,) = chosen
        legs = tuple(leg for leg in step.legs if any(leg in use.legs for use in term.factors))
        name = fresh(graph, f"{step.name}.product")
        rest = tuple(Term(ONE, (Use(name, legs),)) if one is term else one for one in terms)
        new[step.name] = [Step(name, Contraction((term,)), legs), replace(step, op=Contraction(rest))]
    return with_steps(graph, new) if new else graph


def _chosen_again(graph: Graph) -> Graph:
    """The graph in which gates computed from chosen ones, such as their normalised shares, are chosen again by topk.

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
    """Whether a product has a weight with a leg of experts."""
    return any(expert in use.legs and use.name in held(graph) for use in reader.op.uses)


def _sizes(form: Gated, context: Context) -> dict[str, int]:
    return {leg.name: leg.size for leg in form.graph.legs if leg.size is not None} | dict(context.sizes)


def _maps_inside(graph: Graph) -> Graph:
    """Lets kernels that choose by the values of a map compute the map, if nothing else reads it."""
    new = dict[str, list[Step]]()
    for step in graph.steps:
        box, readers = step.box, [reader for reader, _ in graph.readers.get(step.name, ())]
        if box is None or box.function is None or arguments(box) or not readers or step.name in graph.results:
            continue
        alone = all(chooses(one) and experts_of(one).products[-1].x.name != step.name for one in readers)
        if alone and row(box).triton and row(box).slope:
            new[step.name] = []
            for form in map(experts_of, readers):
                last = form.products[-1].step
                new[last.name] = [replace(last, op=kernel("experts", graph, (), (step, form.topk, last), form))]
    return with_steps(graph, new)


def _choices(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """Lets each topk that only grouped experts read return the chosen experts instead of a dense tensor of gates."""
    new = dict[str, list[Step]]()
    for step in graph.steps:
        grouped = all(_grouped(reader) for reader, _ in graph.readers.get(step.name, ()))
        if grouped and topk_of(graph, step.name) is not None and step.name not in graph.results:
            new[step.name] = [replace(step, op=kernel("experts", graph, (), (step,), Experts(step)))]
    return with_steps(graph, new), dict.fromkeys(new, "gates and indices of the chosen experts only")


def _grouped(step: Step) -> bool:
    return isinstance(step.form, Experts)


def _joined(graph: Graph, step: Step, term: Term, gate: Use, expert: str) -> list[Step]:
    """Multiplies all factors except gate and weight first, if there are several: that product, then the rest."""
    gated = [use for use in term.factors if use == gate or (expert in use.legs and use.name in held(graph))]
    others = [use for use in term.factors if use not in gated]
    if len(others) < 2:
        return [step]
    kept = {leg for use in gated for leg in use.legs} | set(step.legs)
    legs = tuple(dict.fromkeys(leg for use in others for leg in use.legs if leg in kept))
    name = fresh(graph, f"{step.name}.p2")  # p1 is the kernel's own
    first = Step(name, Contraction((Term(ONE, tuple(others)),)), legs)
    rest = (*(use for use in gated if use == gate), Use(name, legs), *(use for use in gated if use != gate))
    return [first, replace(step, op=Contraction((Term(term.coefficient, rest),)))]


def _hidden(graph: Graph, last: Product) -> Hidden | str:
    """The product with experts, and its maps, that compute the rows of `last`; or why they need all experts."""
    by = frozenset(last.gate.legs) - {last.expert}
    needed, read = Routing.of(graph).needed, Counter(use.name for _, use in graph.uses())
    found: list[tuple[Step, Product | None]] = []
    use, attended = last.x, False
    while (step := graph.step.get(use.name)) is not None:
        choices = {(one.leg, one.by) for one in needed.get(step.name, ())}
        if (last.expert, by) not in choices or read[step.name] > 1 or use.legs != step.legs:
            if attended:
                break
            return f"'{step.name}' is needed for every '{last.expert}', chosen or not"
        if (seen := _view(step)) is not None:
            found.insert(0, (step, None))
            use = seen
            continue
        if step.contraction is not None and len(step.contraction.terms) == 1:
            first = read_product(step, last.gate, last.expert, held(graph))
            if not isinstance(first, str) and first.slots:  # rows that nothing here makes of the chosen ones alone
                first = f"'{first.x.name}' has rows of every '{last.expert}', chosen or not"
            if isinstance(first, str):
                return tuple(found) if attended else first
            return ((step, first), *found)
        if isinstance(step.form, FusedAttention) and not attended:
            if reason := _not_by_head(graph, step, last):
                return reason
            found.insert(0, (step, None))
            use, attended = step.form.query, True
            continue
        if step.contraction is not None:
            biased = _biased(graph, step, last)
            if isinstance(biased, str):
                return tuple(found) if attended else biased
            found.insert(0, (step, None))
            use = biased
            continue
        if step.box is None or step.box.function is None:
            break
        found.insert(0, (step, None))
        use = step.box.operand("of")
    if attended:
        return tuple(found)  # rows of queries without a leg of experts
    return f"'{use.name}' on leg '{last.expert}' is neither a product with experts nor a map of such a product"


def _view(step: Step) -> Use | None:
    """The operand of a step that only renames or permutes its legs; None for other steps."""
    term = product_of(step)
    if term is None or len(term.factors) != 1 or term.coefficient != ONE:
        return None
    (use,) = term.factors
    return use if {*use.legs} == {*step.legs} else None


def _not_by_head(graph: Graph, step: Step, last: Product) -> str:
    """Why an attention cannot be computed for each query's chosen heads only; empty if it can."""
    op = attention_of(step)
    heads = {*op.scores} - {graph.query, op.leg}
    if heads != {last.expert} or op.beside:
        return f"'{op.steps[-1]}' has legs other than positions and '{last.expert}'"
    if op.sink is not None:
        return f"'{op.steps[-1]}' has a sink"
    if last.tokens != (graph.query,) or graph.query in (*op.key.legs, *op.value.legs):
        return f"the queries of '{op.steps[-1]}' do not choose its heads one by one"
    return ""


def _without_unread(graph: Graph) -> Graph:
    """The graph without those steps in kernels of experts that nothing else reads."""
    parts = {name for step in graph.steps if step.kernel and _grouped(step) for name in step.kernel.steps[:-1]}
    for step in reversed(graph.steps):
        if step.name in parts and step.name not in graph.readers and step.name not in graph.results:
            graph = with_steps(graph, {step.name: []})
    return graph


def experts_of(step: Step) -> Experts:
    """The choice and the products of a kernel 'experts'."""
    assert isinstance(step.form, Experts)
    return step.form


def _inside(writer: Writer, kernel: Kernel) -> Writer:
    """A copy of the writer that knows the steps inside a kernel; they hold rows of the chosen experts."""
    inside = copy(writer)
    steps = (part for step in writer.graph.steps for part in (kernel.body if step.op is kernel else (step,)))
    inside.graph = replace(writer.graph, steps=tuple(dict.fromkeys(steps)))
    new = {part.name: writer.names.fresh(part.name.replace(".", "_")) for part in kernel.body[:-1]}
    inside.local = writer.local | new
    inside.batched = writer.batched | set(new)
    return inside


def _of_products(body: Iterable[Step], products: Iterable[str]) -> set[str]:
    """The products with chosen weights, and what is computed from them: their rows are those of the chosen heads."""
    found = {*products}
    for part in body:
        found |= {part.name} if any(use.name in found for use in part.op.uses) else set()
    return found


def _attention(writer: Writer, step: Step, form: Experts, topk: Step, chosen_only: Collection[str]) -> None:
    """Attention of the queries that chose each head; the leg of the heads counts the chosen ones.

    `chosen_only`: the steps whose rows are those of the chosen heads.
    """
    op, last, chosen = attention_of(step), form.products[-1], name_of_chosen(topk)
    tokens = (last.tokens, (last.expert,))
    of = operands_of(writer, op)
    places = writer.values[chosen].renamed(topk.legs, last.gate.legs).grouped(tokens)
    rows = of.query.grouped((*tokens, of.width))
    if op.query.name not in chosen_only:
        rows = writer.call("chosen_rows", rows, places)
    sides = [
        x.grouped(((last.expert,) if last.expert in x.legs else (), (op.leg,), width))
        for x, width in ((of.key, of.width), (of.value, of.columns))
    ]
    text = writer.call(
        "attend_chosen", rows, *sides, places, writer.size(last.expert), *options_of(writer, op, (last.expert,))
    )
    writer.bind(step.name, text + split(-1, [*map(writer.size, of.columns)]), (*last.tokens, last.expert, *of.columns))
