"""The text of products with chosen experts: the choice, the rows, the calls."""

from __future__ import annotations

from tensornet_attn.cost.experts import ExpertProduct, chosen_of
from tensornet_attn.emit.layout import split
from tensornet_attn.emit.sides import unmapped
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.graph import Step
from tensornet_attn.ir.steps import within, without
from tensornet_attn.ir.values import ATOM, SUM, Legs, TensorText
from tensornet_attn.ops.topk import ranks


def choose(writer: Writer, topk: Step) -> None:
    """Writes gates and indices of the chosen experts, [..., k], with the leg of the box last; once per topk."""
    if name_of_chosen(topk) in writer.values:
        return
    leg, count = chosen_of(topk)
    legs, k = (*without(topk.legs, leg), leg), writer.integer(count)
    of, by = map(writer.value, topk.uses)
    assert topk.box is not None
    call = writer.call("top_chosen", of.arranged(legs).text, ranks(writer, topk.box, by.aligned(legs).text, "-1"), k)
    gates = writer.local[topk.name]
    if writer.graph.step[topk.name].box is not None:  # the dense tensor has this name
        gates = writer.names.fresh(f"{gates}_gates")
    chosen = writer.names.fresh(f"{gates}_chosen")
    batched = of.batched or by.batched
    writer.line(f"{gates}, {chosen} = {call}  # {'... ' if batched else ''}{' '.join((*legs[:-1], k))}")
    writer.values[_gates(topk)] = TensorText(gates, legs, batched)
    writer.values[name_of_chosen(topk)] = TensorText(chosen, legs, batched)


def _gates(topk: Step) -> str:
    return f"{topk.name}: gates"


def name_of_chosen(topk: Step) -> str:
    return f"{topk.name}: chosen"


def product_text(writer: Writer, product: ExpertProduct, topk: Step) -> TensorText:
    """One product for the chosen experts, with its coefficient."""
    weight = writer.value(product.weight).grouped(
        (*_heads(product.heads), (product.expert,), product.summed, product.out)
    )
    total = product.total and product.heads
    if product.at_once:
        rows = writer.value(product.x).grouped(
            _groups(product, product.summed) if total else (*((leg,) for leg in product.tokens), product.summed)
        )
        of, gate = unmapped(writer, topk.uses[0])
        scores, k = of.renamed(topk.legs, product.gate.legs), writer.integer(chosen_of(topk)[1])
        options = [str(bool(total)), *([] if gate == "None" else [gate])]
        call = writer.call(
            "gated_expert_sums", rows, weight, scores.grouped(_groups(product, (product.expert,))), k, *options
        )
    else:
        gates, chosen = (
            writer.values[name].renamed(topk.legs, product.gate.legs).grouped(_groups(product, (product.expert,)))
            for name in (_gates(topk), name_of_chosen(topk))
        )
        rows = _rows(product, writer.value(product.x))
        if product.gated:
            call = writer.call("expert_sums", rows, weight, gates, chosen, *(["True"] if total else []))
        else:
            call = writer.call("expert_rows", rows, weight, chosen)
    return writer.scaled(product.step.op.terms[0].coefficient, _apart(writer, call, product))  # type: ignore[union-attr]


def add_biases(writer: Writer, step: Step, product: ExpertProduct, topk: Step) -> None:
    """A step between two products that adds the biases of the chosen experts."""
    legs = (*product.tokens, product.expert, *product.out)
    chosen = (
        writer.values[name_of_chosen(topk)]
        .renamed(topk.legs, product.gate.legs)
        .arranged(legs[: 1 + len(product.tokens)])
    )
    addends = []
    for use in step.uses:
        addend = writer.value(use)
        if use.legs and use.name in writer.graph.tensor and product.expert in use.legs:
            addend = addend.arranged((product.expert, *within(product.out, use.legs)))
            addend = TensorText(f"{addend.atom}[{chosen.text}]", (*chosen.legs, *addend.legs[1:]), True)
        addends.append(addend.aligned(legs).text)
    writer.bind(step.name, " + ".join(addends), legs, SUM)


def _groups(product: ExpertProduct, *last: Legs) -> tuple[Legs, ...]:
    return (*((leg,) for leg in product.tokens), *_heads(product.heads), *last)


def _heads(legs: Legs) -> tuple[Legs, ...]:
    """All heads as one dimension, or no dimension if there are none."""
    return (legs,) if legs else ()


def _rows(product: ExpertProduct, x: TensorText) -> str:
    """x with a dimension for the heads, if the weight has any, and one for the chosen experts; 1 if x lacks them."""
    slots = (product.expert,) if product.slots else ()
    if slots or set(product.heads) & set(x.legs):
        return x.grouped(_groups(product, slots, product.summed))
    rows = x.grouped((*((leg,) for leg in product.tokens), product.summed))
    return f"{rows}[..., {'None, ' if product.heads else ''}None, :]"


def _apart(writer: Writer, expression: str, product: ExpertProduct) -> TensorText:
    """Unflattens the result into one dimension per leg."""
    slots = () if product.gated else (product.expert,)
    heads = product.heads if slots or not product.total else ()
    expression += split(-1, [*map(writer.size, product.out)])
    if heads:
        expression += split(-1 - len(product.out) - len(slots), [*map(writer.size, heads)])
    return TensorText(expression, (*product.tokens, *heads, *slots, *product.out), True, ATOM)
