"""The work of a step: what costs, peaks of memory and prices add up over a schedule.

MACs (FLOPs = 2 MACs), each the product of the sizes of a set of legs, times the batch:

    product that sums a leg      all legs of the pair, unless the leg always has one entry
    fused attention              legs of query and key; legs of scores and value, both at the wider of their widths.
                                 Masks do not reduce the count
    a sum that all queries read  without the query leg
    a kernel within bands        only the keys that a block of queries meets
    delta rule                   by its definition, one key at a time; chunks of C keys take m C (2.5 d + 1.5 e) +
                                 m (d d + 3 d e) + m / C d d e at n = m. m d e more if the state decays, and if values
                                 are written by separate keys

Matrix products by shape, `batch` products of [rows, summed] times [summed, columns], rows >= columns:

    product that sums a leg      batch: legs of both factors and the result; rows, columns: legs of one factor
    fused attention              for each head, queries x keys of the width, and queries x width of the keys
    blocks of queries            the products inside, for one block
    pairs in chunks of a kernel  batch: heads and chunks; a chunk of positions, summed over a chunk, for the other legs
    other kernels, boxes         batch: heads; rows: positions; columns, summed: the larger and the smaller of the rest

Elementwise operations, one per element of the result unless stated otherwise:

    product that sums no leg     1
    coefficient other than 1     1 per element that it multiplies
    linear combination           1 per term after the first
    boxes                        by `ops`: a number per element of `of`; 1 more for each of mask, scale and dropout

Gradients: the MACs of a product of two for each factor whose gradient sums a leg, or the batch; of blocks of queries,
those of the steps inside; twice the forward of all other kernels and boxes.

Saved: the distinct tensors, except weights, constants and states, that backward needs if inputs and trainable weights
get gradients, as in plain PyTorch:

    product of two               each factor, if the other one gets a gradient; coefficients are not tensors
    linear combination           nothing
    fused attention              query, key, value, result at one width, one log-sum-exp per row of scores
    attention within a band      the same of its blocks, with copies of keys and values
    features side by side        what the products of their parts save
    grouped experts              the order of all experts, chosen gates, rows of operands, what boxes between them save
    linear attention             operands, before maps that its tiles compute, and states; chunks copy the operands
    other fused operations       operands and result, and additions by kind
    boxes                        by `ops`: operands, the result, one number per row, k positions per row
    scans in blocks              operands, and the states before each block; no tensor has the other states
    softmax with dropout         also its result before dropout

Boolean masks, including those of dropout, are not floats and are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tensornet_attn.constants import STRETCH
from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.kernels import KERNELS, Parts, inside, traits_of
from tensornet_attn.cost.products import Matmul, Shape
from tensornet_attn.cost.rates import RateTable
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.sizes import sizes_at, whole
from tensornet_attn.graph.alike import one_row
from tensornet_attn.graph.diagram import on_pairs, operation_of
from tensornet_attn.graph.graph import Box, Graph, Step, Use
from tensornet_attn.graph.pairs import split_products, summed
from tensornet_attn.ir.steps import without
from tensornet_attn.ir.values import Legs

Monomials = Counter[Legs]  # legs, in the order of the design's legs: number of occurrences
Saved = dict[str, int]  # elements, by the name of the memory


@dataclass(eq=False)
class Work:
    """The work of a product or a linear combination at the sizes of a scene; that of boxes and kernels is derived.

    Figures are of the forward and the whole batch unless stated otherwise.
    """

    scene: SizedGraph
    step: Step

    @property
    def batch(self) -> int:
        """The batch elements for which the step is computed."""
        return self.scene.batch_of(self.step)

    @property
    def learned(self) -> bool:
        """Whether the result gets a gradient."""
        return self.step.name in self.scene.learned

    @property
    def of_one_row(self) -> Work:
        """This work, or that of one row if all queries read the step alike: what runs, where no mask hides keys."""
        alike = self.step.name in one_row(self.scene.graph)
        return work_of(self.scene.at({self.scene.query: 1}), self.step) if alike else self

    @cached_property
    def products(self) -> Monomials:
        """MACs of one batch element, by the legs they run over, without that of queries where all read one row."""
        alike = [self.scene.query] if self.step.name in one_row(self.scene.graph) else []
        return Counter({without(legs, *alike): count for legs, count in self.monomials.items()})

    @property
    def monomials(self) -> Mapping[Legs, int]:
        """The same with the leg of queries too: what each kind of step says."""
        step, legs = self.step, self.scene.graph.leg
        sums = len(step.uses) == 2 and len(step.terms) == 1 and any(legs[leg].size != 1 for leg in summed(step))
        return {self.scene.ordered(leg for use in step.uses for leg in use.legs): 1} if sums else {}

    @cached_property
    def macs(self) -> int:
        """MACs over the whole batch."""
        return self.batch * sum(count * self.scene.size(legs) for legs, count in self.products.items())

    @property
    def gradient_macs(self) -> int:
        """MACs of the gradients of the operands: those that sum over a leg, or over the batch, of a product of two."""
        scene, uses = self.scene, self.step.uses
        if len(uses) != 2 or len(self.step.terms) != 1 or not self.learned:
            return 0
        legs = {leg for leg in set().union(*map(self._own_legs, uses)) if scene.graph.leg[leg].size != 1}
        learned = [use for use in uses if use.name in scene.learned]
        sums = [legs - self._own_legs(use) or scene.batch_of(use) < self.batch for use in learned]
        return self.batch * scene.size(legs) * sum(map(bool, sums))

    def _own_legs(self, use: Use) -> set[str]:
        """The legs of an operand; that of queries not, where they all read one row."""
        alike = use.name in one_row(self.scene.graph)
        return {*use.legs} - ({self.scene.query} if alike else set())

    @property
    def matmuls(self) -> list[Matmul]:
        """The matrix products by shape, also of sums over one entry, which are no multiply-adds."""
        scene, step = self.scene, self.step
        if len(step.uses) != 2 or len(step.terms) != 1 or not summed(step):
            return []
        kept, (left, right) = {*step.legs}, map(self._own_legs, step.uses)
        both = left & right
        sides = [scene.size((legs - both) & kept) for legs in (left, right)]
        batch, inner = scene.size(both & kept), scene.size((left | right) - kept)
        batches = [scene.batch_of(use) for use in step.uses]
        if batches[0] == batches[1]:
            batch *= batches[0]
        else:
            sides[batches.index(scene.batch)] *= scene.batch
        shape = Shape(batch, max(sides), min(sides), inner)
        return [Matmul(shape, tuple(left | right), float(shape.macs if self.monomials else 0))]

    @property
    def elementwise(self) -> int:
        """Elementwise operations."""
        scene, step = self.scene, self.step
        if scene.view(step):
            return 0
        elements, one_term = scene.elements(step), len(step.terms) == 1
        count = (len(step.terms) - 1) * elements
        for term in step.terms:
            if one_term and not term.factors:
                return elements
            multiplied = elements if one_term else sum(scene.elements(use) for use in term.factors)
            count += multiplied * (abs(scene.number(term.coefficient)) != 1)
        if one_term and len(step.uses) == 2 and not self.monomials:
            count += elements
        if one_term and len(step.uses) == 1 and summed(step):
            count += scene.elements(step.uses[0])
        return count

    @property
    def exponentials(self) -> list[tuple[Legs, int]]:
        """The exponentials, and similar functions, by the legs of what they are taken of."""
        return []

    @property
    def moved(self) -> int:
        """Elements read and written: each distinct operand once, and the result; a view moves nothing.

        Noise and masks that are created in a step are not counted.
        """
        scene, step = self.scene, self.step
        if scene.view(step):
            return 0
        return scene.elements(step) + sum(scene.elements(use) for use in scene.distinct(step.uses))

    @property
    def saved(self) -> Saved:
        """The tensors that the backward needs; the same memory has the same name in every step."""
        if len(self.step.terms) != 1 or len(self.step.uses) != 2:
            return {}
        left, right = self.step.uses
        return self.scene.kept([a for a, b in ((left, right), (right, left)) if b.name in self.scene.learned])

    @property
    def between(self) -> list[int]:
        """Elements of tensors that chunks write and read again: states, and scores inside the chunks."""
        return []

    def scratch(self, device: Device) -> tuple[int, int]:
        """Elements of temporary memory, forward and backward: as measured on a CPU, usually one copy of the largest
        operand in another layout. Linear attention in chunks copies all operands, and computes a stretch of chunks at
        a time.
        """
        if self.scene.view(self.step):
            return 0, 0
        read = [self.scene.stored[use.name] for use in self.step.uses]
        chunked, largest = sum(min(elements, STRETCH) for elements in self.between), max(read, default=0)
        return sum(read) + chunked if chunked else largest, largest

    def seconds(self, table: RateTable, backward: bool) -> Parts | None:
        """Its own price at the rates of a table, by kind of part; None: that of its products, passes and calls."""
        return None

    @property
    def keys_met(self) -> int | None:
        """The keys that each query meets, if blocks beyond its bands are skipped; None if it meets all keys."""
        return None

    @property
    def operations(self) -> int:
        """FLOPs and elementwise operations, those of rows that fill blocks too."""
        return 2 * self.macs + self.elementwise

    @property
    def passes(self) -> tuple[int, int]:
        """Elements moved while it computes, those of operands that it pads too, and in passes before and after."""
        return self.moved, 0


class OfRoles(Work):
    """Work of which only the legs of products are known: their roles give the shapes."""

    @property
    def gradient_macs(self) -> int:
        return 2 * self.macs * self.learned

    @property
    def chunk(self) -> int:
        """Keys in a chunk; 0 if it is not computed in chunks."""
        return 0

    @property
    def head_legs(self) -> set[str]:
        """The legs that count separate products."""
        return {leg.name for leg in self.scene.graph.legs if leg.kind == "head"}

    @property
    def matmuls(self) -> list[Matmul]:
        return [
            Matmul(self._shape(legs, count >= self.chunk > 0), legs, float(count * self.batch * self.scene.size(legs)))
            for legs, count in self.products.items()
        ]

    def _shape(self, legs: Sequence[str], in_chunks: bool) -> Shape:
        """The shape of a product. `in_chunks`: it runs over pairs of positions in chunks."""
        scene, head_legs = self.scene, self.head_legs
        heads = self.batch * scene.size(leg for leg in legs if leg in head_legs)
        long = [leg for leg in legs if leg in scene.graph.leg and scene.graph.leg[leg].sequence]
        rest = sorted(scene.size((leg,)) for leg in legs if leg not in head_legs and leg not in long)
        rows = scene.size(long)
        if not rest:
            return Shape(heads, rows, 1, 1)
        if in_chunks:
            return Shape(heads * -(-rows // self.chunk), self.chunk, prod(rest), self.chunk)
        return Shape(heads, rows, rest[-1], prod(rest[:-1]))


@dataclass(eq=False)
class BoxWork(OfRoles):
    """The work of a box, by its operation."""

    box: Box

    @property
    def monomials(self) -> Mapping[Legs, int]:
        return operation_of(self.step).products(self.scene, self.step, self.box)

    @property
    def elementwise(self) -> int:
        return operation_of(self.step).operations(self.scene, self.step, self.box)

    @property
    def exponentials(self) -> list[tuple[Legs, int]]:
        each = operation_of(self.step).exponentials(self.box)
        return [(of.legs, each * self.scene.elements(of)) for role, of in self.box.operands if each and role == "of"]

    @property
    def saved(self) -> Saved:
        box, scene, name = self.box, self.scene, self.step.name
        of = dict(box.operands).get("of")
        if of is not None and of.name not in scene.learned:
            return {}
        memories: Saved = {}
        for number, kind in enumerate(operation_of(self.step).saved(box)):
            if kind == "result":
                dropout = dict(box.numbers).get("dropout")
                drops = dropout is not None and scene.number(dropout) != 0  # what is dropped is another tensor
                memories[f"{name}: before dropout" if drops else name] = scene.stored[name]
            elif kind == "inner":
                memories[f"{name}: inner"] = scene.stored[name]
            elif kind in ("row", "chosen"):
                count = int(scene.number(box.number("k"))) if kind == "chosen" else 1
                memories[f"{name}: {kind} {number}"] = scene.elements(box.of, without=box.leg) * count
            else:
                memories |= scene.kept((box.operand(kind),))
        return memories | operation_of(self.step).also_saved(scene, self.step, box)

    def scratch(self, device: Device) -> tuple[int, int]:
        copies = operation_of(self.step).copies * sum(self.scene.elements(use) for use in self.step.uses)
        return (copies, 2 * copies) if copies else super().scratch(device)


class KernelWork(OfRoles):
    """The work of a kernel, which the planner makes of several steps: by default that of the steps inside, stored as
    one. Each kind of kernel has a file in `kernels/`, whose class says what differs."""

    @cached_property
    def inner(self) -> SizedGraph:
        """The scene of the steps inside, in primitive steps."""
        return inside(self.scene, self.step)[0]

    @property
    def inner_steps(self) -> list[Step]:
        """The primitive steps inside that it computes: without values of queries x keys if it has none."""
        steps, pairs = inside(self.scene, self.step)[1], traits_of(self.step).pairs
        return [step for step in steps if pairs or not on_pairs(self.scene.graph, step.legs)]

    @property
    def works(self) -> Iterator[Work]:
        """The work of each of the steps inside."""
        return (work_of(self.inner, step) for step in self.inner_steps)

    def programs_alike(self, legs: Legs) -> int:
        """How many programs compute the same: one for each entry of the legs that they split and these legs lack."""
        return 1

    @property
    def monomials(self) -> Mapping[Legs, int]:
        monomials, met = Monomials(), self.keys_met
        for legs, count in sum((work_of(self.inner, step).products for step in self.inner_steps), Monomials()).items():
            count *= self.programs_alike(legs)
            if met is not None and on_pairs(self.scene.graph, legs):
                monomials[without(legs, self.scene.key)] += met * count
            else:
                monomials[legs] += count
        return monomials

    @property
    def elementwise(self) -> int:
        inner, met = self.inner, self.keys_met
        few = inner if met is None else inner.at({self.scene.key: met})
        scenes = [(few if on_pairs(self.scene.graph, step.legs) else inner, step) for step in self.inner_steps]
        return sum(work_of(scene, step).elementwise for scene, step in scenes)

    @property
    def exponentials(self) -> list[tuple[Legs, int]]:
        inner = self.inner if self.keys_met is None else self.inner.at({self.scene.key: self.keys_met})
        return [count for step in self.inner_steps for count in work_of(inner, step).exponentials]

    @property
    def saved(self) -> Saved:
        return self.kept | self.stored

    @property
    def kept(self) -> Saved:
        """Operands and result saved for backward."""
        return self.scene.kept(self.step.uses) | {self.step.name: self.scene.stored[self.step.name]}

    @property
    def stored(self) -> Saved:
        """Elements saved for backward besides operands and result."""
        return {}

    @property
    def saved_inside(self) -> Saved:
        """What the steps inside save, each by itself."""
        return {name: count for step in self.inner_steps for name, count in saved(self.inner, step).items()}

    @property
    def between(self) -> list[int]:
        return [count for count in self.stored.values() if count] if self.chunk else []


def work_of(scene: SizedGraph, step: Step) -> Work:
    """The work of a primitive step or kernel."""
    if step.kernel is not None:
        work: Work = KERNELS[step.kernel.kind].work(scene, step)
        return work
    return Work(scene, step) if step.box is None else BoxWork(scene, step, step.box)


def saved(scene: SizedGraph, step: Step) -> Saved:
    """The tensors that the backward of a step needs, if it has one."""
    return work_of(scene, step).saved if step.name in scene.learned and step.name not in scene.in_tiles else {}


def training_macs(graph: Graph, lengths: Mapping[str, int], batch: int = 1) -> int:
    """MACs of forward and backward at these lengths, with gradients of all inputs and trainable weights.

    A product of two costs one more of the same size for each factor whose gradient sums a leg, or the batch: 3 times
    its forward if both do. Blocks of queries cost what the steps inside do; other kernels and boxes 3 times their
    forward. Recomputation in the backward is not counted. Raises InputError if a length or the batch is not a positive
    integer, or a length exceeds a leg's maximum.
    """
    scene = SizedGraph(split_products(graph), sizes_at(graph, lengths), whole("batch", batch))
    works = [work_of(scene, step) for step in scene.graph.steps]
    return sum(work.macs + work.gradient_macs for work in works)


def polynomial(monomials: Monomials) -> str:
    """The sum as text, in order of first appearance, with legs in the order of their declaration.

    >>> polynomial(Counter({("n", "d"): 2, ("m",): 1}))
    '2 n d + m'
    """
    terms = [" ".join([str(count)] * (count != 1) + list(legs)) or "1" for legs, count in monomials.items()]
    return " + ".join(terms) or "0"
