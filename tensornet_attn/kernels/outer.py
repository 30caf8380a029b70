"""Sums over keys of products of two key parts that all queries read alike: one product of matrices.

# KV.k[m g d e] = K[m g d] V[m g e];  KV[n g d e] = sum over m of each[n] KV.k     ->     KV[1 g d e] = K^T V
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.cost.kernels import Parts, body_of
from tensornet_attn.cost.products import Matmul
from tensornet_attn.cost.rates import RateTable
from tensornet_attn.cost.seconds import parts_inside
from tensornet_attn.cost.work import KernelWork, work_of
from tensornet_attn.emit.precision import sums_wide
from tensornet_attn.emit.sides import laid, mask_options, matrix
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.alike import is_ones, narrow_after
from tensornet_attn.graph.diagram import producer_of
from tensornet_attn.graph.graph import Contraction, Graph, Step, Use
from tensornet_attn.graph.precision import kept_wide
from tensornet_attn.graph.recurrence import Recurrence, recurrence_of
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.ir.steps import without
from tensornet_attn.ir.values import Legs
from tensornet_attn.kernels.blocks import with_kernels
from tensornet_attn.kernels.implementation import Context, Implementation, Lowered, kernel


class OuterWork(KernelWork):
    """One product of both sides."""

    @property
    def monomials(self) -> dict[Legs, int]:
        return {(self.scene.key, *recurrence_of(self.step).heads): 1}

    @property
    def elementwise(self) -> int:
        return 0

    @property
    def kept(self) -> dict[str, int]:
        return self.scene.kept(_sides(self.step))

    @property
    def matmuls(self) -> list[Matmul]:
        return work_of(self.scene, _as_product(self.step)).matmuls

    def seconds(self, table: RateTable, backward: bool) -> Parts:
        return parts_inside(self.scene, _as_product(self.step), table, backward)


class OuterSums(Implementation[Recurrence]):
    """Sums with one row whose key side is a product of two operands, each with the heads and one leg of its own."""

    name, kind, pairs, work = "sum of outer products", "outer", False, OuterWork
    of_recurrences = True

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        split = context.split(graph)
        kernels, products, wide = dict[str, Step](), set[str](), kept_wide(split)
        for step in split.steps:
            product = None if sums_wide(split, wide, step.name) else _outer_product(split, step)
            if product is not None:
                products.add(product.name)
                op = kernel(self.kind, split, (), (product, step), step.form)
                kernels[step.name] = replace(step, op=op)
        chosen = "a sum over the keys, once for all queries, as one product"
        return Lowered(with_kernels(graph, split, kernels, products), dict.fromkeys(kernels, chosen))

    def plain(self, step: Step) -> bool:
        return True

    def emit(self, writer: Writer, step: Step) -> None:
        recurrence, query, key = recurrence_of(step), writer.graph.query, str(writer.graph.key)
        writer.line(f"# {recurrence.box.name}: sums over {key}; no {query} by {key} tensor is formed")
        *shared, first, second = recurrence.heads
        sides = [
            laid(writer, "k", matrix(writer.value(use), (*shared,), (key,), (leg,)))
            for use, leg in zip(_sides(step), (first, second), strict=True)
        ]
        ones = writer.value(recurrence.terms[0].query[0]).text
        expression = writer.call("outer_sums", ones, *sides, *mask_options(writer, recurrence))
        writer.named(step.name, expression, (*recurrence.heads, query))


OUTER = OuterSums()


def _outer_product(graph: Graph, step: Step) -> Step | None:
    """The product of two operands of the keys that a sum with one row reads, if nothing else does; else None.

    The heads of the sum are the legs that the operands share, then one leg of each.
    """
    recurrence, key = step.form, str(graph.key)
    if not isinstance(recurrence, Recurrence) or not narrow_after(graph, step) or len(recurrence.terms) != 1:
        return None
    (term,) = recurrence.terms
    product = producer_of(graph, term.key[0]) if term.key else None
    if product is None or product.contraction is None or not all(is_ones(graph, use.name) for use in term.query):
        return None
    product_term, alone = product.terms[0], len(graph.readers[product.name]) == 1 and product.nested
    unscaled = term.coefficient == ONE and product_term.coefficient == ONE and len(product.terms) == 1
    uses = product_term.factors
    if not unscaled or not alone or len(uses) != 2 or term.key[0].legs != product.legs:
        return None
    shared = {*uses[0].legs} & {*uses[1].legs}
    legs = [without(use.legs, *shared) for use in uses]
    legs_match = key in shared and {*recurrence.heads[:-2]} == shared - {key} and sorted(map(len, legs)) == [1, 1]
    return product if legs_match and {*recurrence.heads[-2:]} == {*legs[0], *legs[1]} else None


def _sides(step: Step) -> tuple[Use, ...]:
    """The two operands, in the order of the last legs of the result."""
    product, legs = body_of(step)[0], recurrence_of(step).heads[-2:]
    return tuple(next(use for use in product.uses if leg in use.legs) for leg in legs)


def _as_product(step: Step) -> Step:
    return replace(step, op=Contraction.of(*_sides(step)))
