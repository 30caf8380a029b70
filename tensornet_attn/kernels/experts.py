"""Grouped experts: products with expert weights are computed only for the experts that a topk chose.

# G = topk along e;  y = G x W             ->    y = sum of the k chosen G x W, rows sorted by expert
# G = topk along e;  y = G map(x W1) W2    ->    the same, and x W1 for the chosen experts only
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

from tensornet_attn.cost.experts import (
    ExpertProduct,
    Experts,
    before_product,
    chooses,
    chosen_of,
    in_one_product,
    read_product,
    topk_of,
)
from tensornet_attn.cost.kernels import Parts, body_of, steps_of
from tensornet_attn.cost.products import Matmul, Shape
from tensornet_attn.cost.rates import ELEMENTWISE, RateTable
from tensornet_attn.cost.routing import Routing, chosen_behind
from tensornet_attn.cost.scene import SizedGraph, held, word
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
from tensornet_attn.cost.work import KernelWork, saved, work_of
from tensornet_attn.emit.boxes import emit_box
from tensornet_attn.emit.experts import add_biases, choose, name_of_chosen, product_text
from tensornet_attn.emit.layout import split
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.attention import ahead
from tensornet_attn.graph.diagram import operation_of, producer_of
from tensornet_attn.graph.graph import Contraction, Graph, Kernel, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE, evaluate
from tensornet_attn.ir.steps import legs_in, plus, with_terms
from tensornet_attn.ir.values import Legs
from tensornet_attn.kernels.apart import compared
from tensornet_attn.kernels.attention import attention_of, attention_seconds, kind_of, operands_of, options_of
from tensornet_attn.kernels.implementation import (
    AtPlaces,
    Context,
    FormCost,
    Lowered,
    has_slope,
    is_map,
    kernel,
    leg_sizes,
)
from tensornet_attn.rewrite.change import fresh, with_steps, with_uses
from tensornet_attn.rewrite.change import product as product_of
from tensornet_attn.rewrite.fused import FusedAttention

Hidden = tuple[tuple[Step, ExpertProduct | None], ...]  # the steps before the last product; what is one, as a product
SORTED = 0.998  # of the time of all experts, which pays for the sorting: without measured rates, calls have no price
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
        return _joined(self.graph, self.step, self.step.terms[0], self.gate, self.expert)

    @cached_property
    def product(self) -> ExpertProduct | str:
        if self.step.contraction is None:
            return f"'{self.step.name}' is not a product with the gates"
        return read_product(self.joined[-1], self.gate, self.expert, held(self.graph))

    @cached_property
    def hidden(self) -> Hidden | str:
        product = self.product
        return _hidden(self.graph, product) if isinstance(product, ExpertProduct) and product.slots else ()


class ExpertsWork(KernelWork):
    """Products of the chosen experts."""

    @property
    def monomials(self) -> dict[Legs, int]:
        """MACs of the chosen experts, with k in place of their leg, unless one product has all experts."""
        form, macs = experts_of(self.step), Counter[Legs]()
        k = word(chosen_of(form.topk)[1])
        for product in form.products:
            result_legs = (*product.tokens, *product.heads, product.expert, *product.out)
            for legs in ((*result_legs, *product.summed), *([result_legs] if product.gated else [])):
                count = product.expert if product.at_once else k
                macs[tuple(count if leg == product.expert else leg for leg in self.scene.ordered(legs))] += 1
        for inner_step in body_of(self.step):
            if inner_step.kernel is not None:  # attention of the chosen heads
                for legs, times in work_of(self.scene, inner_step).products.items():
                    macs[tuple(k if leg == form.products[-1].expert else leg for leg in legs)] += times
        return dict(macs)

    @property
    def kept(self) -> dict[str, int]:
        """The order of all experts, chosen gates, rows of operands, what boxes between products save.

        Attention of chosen heads keeps its order twice, and a copy of its result. Kernels that choose themselves keep
        operands, result, and the rows of all experts before their product, or the chosen ones after it.
        """
        scene, step = self.scene, self.step
        form, floats = experts_of(step), dict[str, int]()
        if not form.products:
            return {f"{step.name}: order": scene.elements(step)}
        inner, body = self.inner, body_of(step)
        if (last := form.products[-1]).at_once:
            width, out_width = scene.size(last.summed), scene.size(last.out)
            experts, row_size = int(scene.number(chosen_of(form.topk)[1])), out_width
            if before_product(last, scene.size(last.heads), width, out_width):
                experts, row_size = scene.size((last.expert,)), width
            rows = inner.elements(form.topk, without=chosen_of(form.topk)[0])
            choice_floats = {f"{step.name}: choice": rows, f"{step.name}: rows of experts": rows * experts * row_size}
            return scene.kept(step.uses) | {step.name: scene.stored[step.name]} | choice_floats
        for product in form.products:
            row_floats = inner.kept((product.x,))
            attended = any(inner_step.name == product.x.name and inner_step.kernel for inner_step in body)
            floats |= {f"{step.name}: {name}": count for name, count in row_floats.items()} if attended else row_floats
            if product.gated:
                floats[f"{form.topk.name}: gates"] = inner.elements(product.gate)
        for inner_step in body:
            if inner_step.contraction is None:
                floats |= saved(inner, inner_step)
            if inner_step.kernel is not None:
                op = attention_of(inner_step)
                order_size = inner.elements(inner_step) // inner.size({*op.value.legs} - {*op.scores})
                floats[f"{inner_step.name}: order"] = 2 * order_size
        return floats | {name: count for name, count in scene.kept(step.uses).items() if name in floats}

    @cached_property
    def inner(self) -> SizedGraph:
        """The scene inside a kernel, which has only the chosen experts, or all of them at once."""
        form, inner = experts_of(self.step), super().inner
        chosen_sizes = {
            product.expert: int(self.scene.number(chosen_of(form.topk)[1]))
            for product in form.products
            if not product.at_once
        }
        return inner.at(chosen_sizes)

    @property
    def matmuls(self) -> list[Matmul]:
        """The products of the rows that a chosen expert has on average; attention of chosen heads."""
        chosen_scene, row_matmuls = self.inner, list[Matmul]()
        for product in experts_of(self.step).products:
            legs = (*product.tokens, *product.heads, product.expert, *product.out)
            experts, summed, width = map(
                self.scene.size, ((*product.heads, product.expert), product.summed, product.out)
            )
            rows = self.batch * chosen_scene.size(legs) // width
            shape = Shape(1, max(1, rows // experts), width, summed)
            row_matmuls.append(Matmul(shape, (*legs, *product.summed), float(rows * width * (summed + product.gated))))
        attended = [work_of(chosen_scene, inner_step) for inner_step in body_of(self.step) if inner_step.kernel]
        return row_matmuls + [matmul for work in attended for matmul in work.matmuls]

    @property
    def passes(self) -> tuple[int, int]:
        """Rows of all experts, before their product or after it; rows that are gathered, and those of products, written
        and read again, without gates that are not chosen."""
        form, beside, copied = experts_of(self.step), 0, 0
        k = int(self.scene.number(chosen_of(form.topk)[1]))
        for product in form.products:
            width, out_width, rows, experts = map(
                self.scene.size, (product.summed, product.out, (*product.tokens, *product.heads), (product.expert,))
            )
            if product.at_once:
                first = before_product(product, self.scene.size(product.heads), width, out_width)
                beside += 2 * rows * experts * (width if first else out_width)
            else:
                copied += rows * (2 * k * (out_width + width * form.gathers) - (experts - k) * product.gated)
        return self.moved + beside * self.batch, copied * self.batch

    def seconds(self, table: RateTable, backward: bool) -> Parts:
        """Products with the chosen experts, maps between them, and attention of the chosen heads.

        The rows of one expert are gathered in a cache; their products are read for each head, put back and added.
        """
        scene, step = self.scene, self.step
        learned, chosen_scene = backward and self.learned, self.inner
        passes, calls, batch = passes_of(learned), CALLS, self.batch
        seconds: defaultdict[str, float] = defaultdict(float)
        for product, (shape, _, macs) in zip(experts_of(step).products, self.matmuls, strict=False):
            calls += CALLS_OF_EXPERT * scene.size((product.expert, *product.heads))
            large = shape.rows * shape.summed >= table.projected[0] and takes_projected(shape, table, False)
            pass_seconds = projected(shape, table, False) if large else 3 * (multiplied(shape, table),)
            seconds["product"] += macs / shape.macs * sum(pass_seconds[:passes])
            put_seconds = accessed(batch * chosen_scene.size((*product.tokens, product.expert, *product.out)), table)
            put_seconds += 2 * accessed(batch * chosen_scene.size((*product.tokens, *product.out)), table)
            seconds[ELEMENTWISE] += passes * chosen_scene.size(product.heads) * put_seconds
        for inner_step in body_of(step):
            if inner_step.kernel is not None:
                op, kind = attention_of(inner_step), kind_of(scene, inner_step)
                calls += CALLS * scene.size({*op.scores} - {scene.graph.query, op.leg})
                seconds[kind] += attention_seconds(chosen_scene, inner_step, op, table, learned, kind)
            elif inner_step.box is not None:
                exp_seconds, map_seconds = of_exponentials(chosen_scene, inner_step, table, learned)
                seconds[ELEMENTWISE] += passes * 2 * accessed(chosen_scene.elements(inner_step), table) + exp_seconds
                seconds[OF_MAPS] += map_seconds
        seconds["call"] += (calls + 1) * table.call[learned]
        return seconds


class GroupedExperts(AtPlaces[tuple[str, Use], Gated]):
    """Products with a topk as a factor, for which computing only the chosen experts is possible and cheaper."""

    name, kind, opaque, pairs, again = "grouped experts", "experts", True, False, False
    work = ExpertsWork

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
        if form.chosen == leg_sizes(form.graph, context.sizes)[form.expert]:
            return (f"all {form.chosen} experts are chosen",)
        return (form.hidden,) if isinstance(form.hidden, str) else ()

    def cost(self, form: Gated, context: Context) -> FormCost:
        """The seconds of the steps for the chosen experts, and for all experts."""
        but = f"'{form.step.name}' for the chosen experts only would take"
        grouped, own_prices = _without_unread(self.lower(form, context).graph), not context.device.measured
        worth = SORTED if own_prices and not _last(form, context).at_once else 1
        return compared(grouped, form.graph, context, but, worth, once=own_prices)

    def lower(self, form: Gated, context: Context) -> Lowered:
        graph, step, hidden, joined, last = form.graph, form.step, form.hidden, form.joined, _last(form, context)
        assert not isinstance(hidden, str)
        body = (*(row_step for row_step, _ in hidden), *([form.topk] if last.at_once else []), last.step)
        products = tuple(product for _, product in (*hidden, (step, last)) if product is not None)
        experts = Experts(form.topk, products, gathers=context.backend != "triton")
        routed = replace(step, op=kernel(self.kind, graph, joined, body, experts))
        attended = next((steps_of(row_step)[-1] for row_step, _ in hidden if row_step.kernel is not None), None)
        also = f", also in '{attended or hidden[-1][0].name}'" if hidden else ""
        also += (
            " for the queries that chose each head (for all queries on a GPU and under torch.compile)"
            if attended
            else ""
        )
        count = leg_sizes(form.graph, context.sizes)[form.expert]
        how = f"rows sorted by expert, only the {form.chosen} chosen of {count} computed"
        if last.at_once:
            how = f"one product for all {count}, kernels choose {form.chosen} and multiply by their gates"
        return Lowered(with_steps(graph, {step.name: [*joined[:-1], routed]}), {step.name: f"{self.name}: {how}{also}"})

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        if not any(operation_of(step).selects for step in graph.steps):
            return Lowered(graph)
        lowered, rewritten = super().lowered(graph, context), _chosen_again(_biases_apart(graph))
        lowered_rewritten = lowered if rewritten is graph else super().lowered(rewritten, context)
        lowered = lowered_rewritten if len(lowered_rewritten.chosen) > len(lowered.chosen) else lowered
        grouped, choices = _choices(_maps_inside(_without_unread(lowered.graph)))
        for step in filter(chooses, grouped.steps):
            lowered.chosen[step.name] += f"; inside: {', '.join(steps_of(step)[:-1])}"
        return replace(lowered, graph=grouped, chosen=lowered.chosen | choices)

    def on_triton(self, form: object) -> bool:
        return isinstance(form, Experts)

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
        for inner_step in body:
            if inner_step.name in products:
                rows = product_text(inside, products[inner_step.name], topk)
                inside.bind(inner_step.name, rows.text, rows.legs, rows.level)
            elif inner_step.kernel is not None:
                _attention(inside, inner_step, form, topk, ahead(step.kernel.body, products))
            elif len(inner_step.terms) > 1:
                add_biases(inside, inner_step, next(iter(products.values())), topk)
            elif products and inner_step.contraction is not None:  # a renamed value
                inside.values[inner_step.name] = inside.value(inner_step.uses[0])
            elif products:
                emit_box(inside, inner_step)


EXPERTS = GroupedExperts()


def _last(form: Gated, context: Context) -> ExpertProduct:
    """The product with the gates, as the backend computes it."""
    assert isinstance(form.product, ExpertProduct)
    sizes = leg_sizes(form.graph, context.sizes)
    at_once = context.backend == "triton" and in_one_product(form.product, form.topk, form.chosen, sizes)
    return replace(form.product, at_once=at_once)


def _by_itself(graph: Graph, step: Step, gate: Use) -> tuple[Graph, Step]:
    """Makes the product with the gates a step of its own; returns the graph and that step.

    # y = a[n] G O Wo + b S Ws     ->     y.routed = G O Wo;  y = a[n] y.routed + b S Ws
    """
    terms = step.terms
    gated = [term for term in terms if gate in term.factors]
    if len(gated) != 1:
        return graph, step
    (term,) = gated
    weight = [use for use in term.factors if use.name in held(graph) and {*use.legs} & {*gate.legs}]
    outer = [
        use for use in term.factors if use != gate and use not in weight and {*use.legs} <= {*gate.legs} & {*step.legs}
    ]
    routed_factors = tuple(use for use in term.factors if use not in outer)
    if (len(terms) == 1 and not outer) or len(routed_factors) < 3:
        return graph, step
    legs = tuple(leg for leg in step.legs if any(leg in use.legs for use in routed_factors))
    name = fresh(graph, f"{step.name}.routed")
    routed = Step(name, Contraction.of(*routed_factors), legs)
    outer_term = replace(term, factors=(*outer, Use(name, legs)))
    sums = with_terms(step, (outer_term if summand is term else summand for summand in terms))
    return with_steps(graph, {step.name: [routed, sums]}), routed


def _biased(graph: Graph, step: Step, last: ExpertProduct) -> Use | str:
    """The product to which a step adds the biases of experts, or why there is none."""
    terms = [term.factors[0] for term in step.terms if len(term.factors) == 1 and term.coefficient == ONE]
    rows = [use for use in terms if use.name not in held(graph)]
    sums = len(terms) == len(step.terms) and len(rows) == 1 and {*rows[0].legs} == {*step.legs}
    if not sums or last.heads or any({*last.tokens} & {*use.legs} for use in terms if use not in rows):
        return f"'{step.name}' is not a product with experts plus their biases"
    return rows[0]


def _biases_apart(graph: Graph) -> Graph:
    """The graph in which products with expert weights are steps of their own instead of terms of sums with biases.

    # H = x W1 + b1;  y = G H W2 + G b2     ->     H' = x W1;  H = H' + b1;  y' = G H W2;  y = y' + G b2
    """
    experts = {chosen_of(step)[0] for step in graph.steps if topk_of(graph, step.name) is not None}
    experts |= {chosen_of(root)[0] for step in graph.steps if (root := chosen_behind(graph, step.name)) is not None}
    replaced = dict[str, list[Step]]()
    for step in graph.steps:
        terms = step.terms
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
        summands = tuple(plus(Use(name, legs)) if summand is term else summand for summand in terms)
        replaced[step.name] = [Step(name, Contraction((term,)), legs), with_terms(step, summands)]
    return with_steps(graph, replaced) if replaced else graph


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
        readers = {
            reader.name
            for reader, use in uses
            if any(use.legs[expert] in weight.legs and weight.name in held(graph) for weight in reader.uses)
        }
        if not readers:
            continue
        name = fresh(graph, f"{step.name}.chosen")
        operands = (("of", step.use), ("by", root.box.operand("by")))
        replaced = {reader: [_reading(graph.step[reader], step.name, name)] for reader in readers}
        replaced[step.name] = [step, Step(name, replace(root.box, operands=operands), step.legs)]
        graph = with_steps(graph, replaced)
    return graph


def _reading(step: Step, old: str, new: str) -> Step:
    return with_uses(step, lambda use: Use(new, use.legs) if use.name == old else use)


def _maps_inside(graph: Graph) -> Graph:
    """Lets kernels that choose by the values of a map compute the map, if nothing else reads it."""
    replaced = dict[str, list[Step]]()
    for step in graph.steps:
        readers = [reader for reader, _ in graph.readers.get(step.name, ())]
        if step.box is None or not is_map(step) or not readers or step.name in graph.results:
            continue
        alone = all(chooses(reader) and experts_of(reader).products[-1].x.name != step.name for reader in readers)
        if alone and has_slope(step.box):
            replaced[step.name] = []
            for form in map(experts_of, readers):
                last = form.products[-1].step
                replaced[last.name] = [replace(last, op=kernel("experts", graph, (), (step, form.topk, last), form))]
    return with_steps(graph, replaced)


def _choices(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """Lets each topk that only grouped experts read return the chosen experts instead of a dense tensor of gates."""
    replaced = dict[str, list[Step]]()
    for step in graph.steps:
        grouped = all(isinstance(reader.form, Experts) for reader, _ in graph.readers.get(step.name, ()))
        if grouped and topk_of(graph, step.name) is not None and step.name not in graph.results:
            replaced[step.name] = [replace(step, op=kernel("experts", graph, (), (step,), Experts(step)))]
    return with_steps(graph, replaced), dict.fromkeys(replaced, "gates and indices of the chosen experts only")


def _joined(graph: Graph, step: Step, term: Term, gate: Use, expert: str) -> list[Step]:
    """Multiplies all factors except gate and weight first, if there are several: that product, then the rest."""
    gated = [use for use in term.factors if use == gate or (expert in use.legs and use.name in held(graph))]
    others = [use for use in term.factors if use not in gated]
    if len(others) < 2:
        return [step]
    kept = legs_in(gated) | set(step.legs)
    legs = tuple(dict.fromkeys(leg for use in others for leg in use.legs if leg in kept))
    name = fresh(graph, f"{step.name}.p2")  # p1 is the kernel's own
    first = Step(name, Contraction.of(*others), legs)
    factors = (*(use for use in gated if use == gate), Use(name, legs), *(use for use in gated if use != gate))
    return [first, with_terms(step, (Term(term.coefficient, factors),))]


def _hidden(graph: Graph, last: ExpertProduct) -> Hidden | str:
    """The product with experts, and its maps, that compute the rows of `last`; or why they need all experts."""
    by = frozenset(last.gate.legs) - {last.expert}
    needed, use_counts = Routing.of(graph).needed, Counter(use.name for _, use in graph.uses())
    hidden: list[tuple[Step, ExpertProduct | None]] = []
    use, attended = last.x, False
    while (step := producer_of(graph, use)) is not None:
        choices = {(choice.leg, choice.by) for choice in needed.get(step.name, ())}
        if (last.expert, by) not in choices or use_counts[step.name] > 1 or use.legs != step.legs:
            if attended:
                break
            return f"'{step.name}' is needed for every '{last.expert}', chosen or not"
        if (operand := _view(step)) is not None:
            hidden.insert(0, (step, None))
            use = operand
            continue
        if len(step.terms) == 1:
            product = read_product(step, last.gate, last.expert, held(graph))
            if not isinstance(product, str) and product.slots:  # rows that nothing here makes of the chosen ones alone
                product = f"'{product.x.name}' has rows of every '{last.expert}', chosen or not"
            if isinstance(product, str):
                return tuple(hidden) if attended else product
            return ((step, product), *hidden)
        if isinstance(step.form, FusedAttention) and not attended:
            if reason := _not_by_head(graph, step, last):
                return reason
            hidden.insert(0, (step, None))
            use, attended = step.form.query, True
            continue
        if step.contraction is not None:
            biased = _biased(graph, step, last)
            if isinstance(biased, str):
                return tuple(hidden) if attended else biased
            hidden.insert(0, (step, None))
            use = biased
            continue
        if step.box is None or step.box.function is None:
            break
        hidden.insert(0, (step, None))
        use = step.box.of
    if attended:
        return tuple(hidden)  # rows of queries without a leg of experts
    return f"'{use.name}' on leg '{last.expert}' is neither a product with experts nor a map of such a product"


def _view(step: Step) -> Use | None:
    """The operand of a step that only renames or permutes its legs; None for other steps."""
    term = product_of(step)
    if term is None or len(term.factors) != 1 or term.coefficient != ONE:
        return None
    (use,) = term.factors
    return use if {*use.legs} == {*step.legs} else None


def _not_by_head(graph: Graph, step: Step, last: ExpertProduct) -> str:
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
    kernels = [step for step in graph.steps if isinstance(step.form, Experts)]
    inner_names = {inner_step.name for step in kernels for inner_step in body_of(step)[:-1]}
    for step in reversed(graph.steps):
        if step.name in inner_names and step.name not in graph.readers and step.name not in graph.results:
            graph = with_steps(graph, {step.name: []})
    return graph


def experts_of(step: Step) -> Experts:
    """The choice and the products of a kernel 'experts'."""
    assert isinstance(step.form, Experts)
    return step.form


def _inside(writer: Writer, kernel: Kernel) -> Writer:
    """A copy of the writer that knows the steps inside a kernel; they hold rows of the chosen experts."""
    inside = copy(writer)
    steps = (inner for step in writer.graph.steps for inner in (kernel.body if step.op is kernel else (step,)))
    inside.graph = replace(writer.graph, steps=tuple(dict.fromkeys(steps)))
    names = {inner.name: writer.names.fresh(inner.name.replace(".", "_")) for inner in kernel.body[:-1]}
    inside.local = writer.local | names
    inside.batched = writer.batched | set(names)
    return inside


def _attention(writer: Writer, step: Step, form: Experts, topk: Step, chosen_only: Collection[str]) -> None:
    """Attention of the queries that chose each head; the leg of the heads counts the chosen ones.

    `chosen_only`: the steps whose rows are those of the chosen heads.
    """
    op, last, name = attention_of(step), form.products[-1], name_of_chosen(topk)
    row_groups = (last.tokens, (last.expert,))
    qkv = operands_of(writer, op)
    chosen_heads = writer.values[name].renamed(topk.legs, last.gate.legs).grouped(row_groups)
    rows = qkv.query.grouped((*row_groups, qkv.width))
    if op.query.name not in chosen_only:
        rows = writer.call("chosen_rows", rows, chosen_heads)
    sides = [
        operand.grouped(((last.expert,) if last.expert in operand.legs else (), (op.leg,), width))
        for operand, width in ((qkv.key, qkv.width), (qkv.value, qkv.columns))
    ]
    call = writer.call(
        "attend_chosen", rows, *sides, chosen_heads, writer.size(last.expert), *options_of(writer, op, (last.expert,))
    )
    writer.bind(
        step.name, call + split(-1, [*map(writer.size, qkv.columns)]), (*last.tokens, last.expert, *qkv.columns)
    )
