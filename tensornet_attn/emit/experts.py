"""Emits grouped experts: the gates of the chosen experts, then one call per product."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import replace

from tensornet_attn.cost.experts import Experts, Product, chooses, chosen_of, experts_of
from tensornet_attn.emit.attention import options_of
from tensornet_attn.emit.boxes import emit_box
from tensornet_attn.emit.contract import scaled
from tensornet_attn.emit.layout import split
from tensornet_attn.emit.linear import unmapped
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Kernel, Step
from tensornet_attn.ir.values import ATOM, SUM, Legs, Value
from tensornet_attn.ops.map import arguments, row
from tensornet_attn.ops.topk import ranks


def emit_experts(writer: Writer, step: Step) -> None:
    """Emits one kernel: the choice of experts, or the computation of the experts that a topk chose."""
    assert step.kernel is not None
    form = experts_of(step)
    topk, products = form.topk, {product.step.name: product for product in form.products}
    if chosen_inside(writer, step):
        return  # part of the calls that read it
    if not (products and form.products[-1].at_once):
        _choose(writer, topk)
    inside = _inside(writer, step.kernel)
    if len(step.kernel.body) > 1:
        names, k = ", ".join(step.kernel.steps[:-1]), writer.integer(chosen_of(topk)[1])
        writer.line(f"# {names}: leg {products[step.name].expert} has the {k} chosen entries only")
    for part in step.kernel.body:
        if part.name in products:
            value = _product(inside, products[part.name], topk)
            inside.bind(part.name, value.text, value.legs, value.level)
        elif part.attention is not None:
            _attention(inside, part, form, topk, _of_products(step.kernel.body, products))
        elif part.contraction is not None and len(part.contraction.terms) > 1:
            _add_biases(inside, part, next(iter(products.values())), topk)
        elif products and part.contraction is not None:  # a renamed value
            inside.values[part.name] = inside.value(part.contraction.uses[0])
        elif products:
            emit_box(inside, part)


def chosen_inside(writer: Writer, step: Step) -> bool:
    """Whether a step is a choice that all its readers make: kernels that compute all experts in one product."""
    readers = writer.readers[step.name]
    if experts_of(step).products or not readers or step.name in writer.graph.results:
        return False
    return all(chooses(reader) for reader, _ in readers)


def gates_inside(writer: Writer, step: Step) -> bool:
    """Whether kernels compute a map themselves: all its readers are choices that kernels make."""
    box, readers = step.box, writer.readers[step.name]
    if box is None or box.function is None or arguments(box) or not readers or step.name in writer.graph.results:
        return False
    choices = all(isinstance(one.form, Experts) and chosen_inside(writer, one) for one, _ in readers)
    return choices and bool(row(box).triton and row(box).slope)


def _inside(writer: Writer, kernel: Kernel) -> Writer:
    """A copy of the writer that knows the steps inside a kernel; they hold rows of the chosen experts."""
    inside = copy(writer)
    steps = (part for step in writer.graph.steps for part in (kernel.body if step.op is kernel else (step,)))
    inside.graph = replace(writer.graph, steps=tuple(dict.fromkeys(steps)))
    new = {part.name: writer.names.fresh(part.name.replace(".", "_")) for part in kernel.body[:-1]}
    inside.local = writer.local | new
    inside.batched = writer.batched | set(new)
    return inside


def _choose(writer: Writer, topk: Step) -> None:
    """Writes gates and indices of the chosen experts, [..., k], with the leg of the box last; once per topk."""
    if _chosen(topk) in writer.values:
        return
    leg, count = chosen_of(topk)
    legs, k = (*(one for one in topk.legs if one != leg), leg), writer.integer(count)
    of, by = map(writer.value, topk.op.uses)
    assert topk.box is not None
    text = writer.call("top_chosen", of.arranged(legs).text, ranks(writer, topk.box, by.aligned(legs).text, "-1"), k)
    gates = writer.local[topk.name]
    if writer.graph.step[topk.name].box is not None:  # the dense tensor has this name
        gates = writer.names.fresh(f"{gates}_gates")
    chosen = writer.names.fresh(f"{gates}_chosen")
    batched = of.batched or by.batched
    writer.line(f"{gates}, {chosen} = {text}  # {'... ' if batched else ''}{' '.join((*legs[:-1], k))}")
    writer.values[_gates(topk)] = Value(gates, legs, batched)
    writer.values[_chosen(topk)] = Value(chosen, legs, batched)


def _gates(topk: Step) -> str:
    return f"{topk.name}: gates"


def _chosen(topk: Step) -> str:
    return f"{topk.name}: chosen"


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
    op, last, chosen = step.attention, form.products[-1], _chosen(topk)
    assert op is not None
    tokens = (last.tokens, (last.expert,))
    q, k, v = (writer.value(use) for use in op.uses)
    contracted = tuple(leg for leg in q.legs if leg in k.legs and leg not in op.scores)
    own = tuple(leg for leg in v.legs if leg not in op.scores)
    places = writer.values[chosen].renamed(topk.legs, last.gate.legs).grouped(tokens)
    rows = q.grouped((*tokens, contracted))
    if op.query.name not in chosen_only:
        rows = writer.call("chosen_rows", rows, places)
    sides = [
        x.grouped(((last.expert,) if last.expert in x.legs else (), (op.leg,), width))
        for x, width in ((k, contracted), (v, own))
    ]
    text = writer.call(
        "attend_chosen", rows, *sides, places, writer.size(last.expert), *options_of(writer, op, (last.expert,))
    )
    writer.bind(step.name, text + split(-1, [*map(writer.size, own)]), (*last.tokens, last.expert, *own))


def _product(writer: Writer, product: Product, topk: Step) -> Value:
    """One product for the chosen experts, with its coefficient."""
    weight = writer.value(product.weight).grouped(
        (*_heads(product.heads), (product.expert,), product.summed, product.own)
    )
    total = product.total and product.heads
    if product.at_once:
        rows = writer.value(product.x).grouped(
            _groups(product, product.summed) if total else (*((leg,) for leg in product.tokens), product.summed)
        )
        of, gate = unmapped(writer, topk.op.uses[0])
        scores, k = of.renamed(topk.legs, product.gate.legs), writer.integer(chosen_of(topk)[1])
        options = [str(bool(total)), *([] if gate == "None" else [gate])]
        text = writer.call(
            "gated_expert_sums", rows, weight, scores.grouped(_groups(product, (product.expert,))), k, *options
        )
        return scaled(writer, product.step.op.terms[0].coefficient, _apart(writer, text, product))  # type: ignore[union-attr]
    gates, chosen = (
        writer.values[name].renamed(topk.legs, product.gate.legs).grouped(_groups(product, (product.expert,)))
        for name in (_gates(topk), _chosen(topk))
    )
    rows = _rows(product, writer.value(product.x))
    if product.gated:
        text = writer.call("expert_sums", rows, weight, gates, chosen, *(["True"] if total else []))
    else:
        text = writer.call("expert_rows", rows, weight, chosen)
    value = _apart(writer, text, product)
    return scaled(writer, product.step.op.terms[0].coefficient, value)  # type: ignore[union-attr]


def _add_biases(writer: Writer, step: Step, product: Product, topk: Step) -> None:
    """A step between two products that adds the biases of the chosen experts."""
    assert step.contraction is not None
    legs = (*product.tokens, product.expert, *product.own)
    chosen = (
        writer.values[_chosen(topk)].renamed(topk.legs, product.gate.legs).arranged(legs[: 1 + len(product.tokens)])
    )
    texts = []
    for use in step.op.uses:
        value = writer.value(use)
        if use.legs and use.name in writer.graph.tensor and product.expert in use.legs:
            value = value.arranged((product.expert, *(leg for leg in product.own if leg in use.legs)))
            value = Value(f"{value.atom}[{chosen.text}]", (*chosen.legs, *value.legs[1:]), True)
        texts.append(value.aligned(legs).text)
    writer.bind(step.name, " + ".join(texts), legs, SUM)


def _groups(product: Product, *last: Legs) -> tuple[Legs, ...]:
    return (*((leg,) for leg in product.tokens), *_heads(product.heads), *last)


def _heads(legs: Legs) -> tuple[Legs, ...]:
    """All heads as one dimension, or no dimension if there are none."""
    return (legs,) if legs else ()


def _rows(product: Product, x: Value) -> str:
    """x with a dimension for the heads, if the weight has any, and one for the chosen experts; 1 if x lacks them."""
    slots = (product.expert,) if product.slots else ()
    if slots or set(product.heads) & set(x.legs):
        return x.grouped(_groups(product, slots, product.summed))
    text = x.grouped((*((leg,) for leg in product.tokens), product.summed))
    return f"{text}[..., {'None, ' * bool(product.heads)}None, :]"


def _apart(writer: Writer, text: str, product: Product) -> Value:
    """Unflattens the result into one dimension per leg."""
    slots = () if product.gated else (product.expert,)
    heads = product.heads if slots or not product.total else ()
    text += split(-1, [*map(writer.size, product.own)])
    if heads:
        text += split(-1 - len(product.own) - len(slots), [*map(writer.size, heads)])
    return Value(text, (*product.tokens, *heads, *slots, *product.own), True, ATOM)
