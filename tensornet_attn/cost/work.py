"""Arithmetic of a primitive step: MACs as monomials in legs; elementwise operations are counted separately.

MACs (FLOPs = 2 MACs), each the product of the sizes of a set of legs, times the batch:

    product that sums a leg      all legs of the pair
    fused attention              legs of query and key; legs of scores and value, both at the wider of their widths.
                                 Masks do not reduce the count
    a sum that all queries read  without the query leg
    a kernel within bands        only the keys that a block of queries meets
    delta rule                   by its definition, one key at a time; chunks of C keys take m C (2.5 d + 1.5 e) +
                                 m (d d + 3 d e) + m / C d d e at n = m. m d e more if the state decays, and if values
                                 are written by separate keys

Elementwise operations, one per element of the result unless stated otherwise:

    product that sums no leg     1
    coefficient other than 1     1 per element that it multiplies
    linear combination           1 per term after the first
    boxes                        by `ops`: a number per element of `of`; 1 more for each of mask, scale and dropout
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tensornet_attn.cost.kernels import cost_of, inside
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.sizes import sizes_at, whole
from tensornet_attn.graph.alike import one_row
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Contraction, Graph, Step
from tensornet_attn.graph.pairs import split_products, summed
from tensornet_attn.ir.steps import without

Monomials = Counter[tuple[str, ...]]  # legs, in the order of the design's legs: number of occurrences


def products(scene: SizedGraph, step: Step) -> Monomials:
    """MACs of a step for one batch element, by the legs they run over; one row of what all queries read alike."""
    monomials: Monomials = Counter()
    kernel = cost_of(step)
    of_kernel = kernel.macs(scene, step)
    if of_kernel is not None:
        monomials.update(of_kernel)
    elif step.kernel is not None:
        inner_scene, inner_steps = inside(scene, step)
        keys_met = kernel.keys_met(scene, step)
        for legs, count in sum((products(inner_scene, inner) for inner in inner_steps), Counter()).items():
            count *= kernel.programs_alike(scene, step, legs)
            if keys_met is not None and _pairs(scene) <= {*legs}:
                monomials[without(legs, scene.graph.key)] += keys_met * count
            else:
                monomials[legs] += count
    elif step.box is not None:
        monomials.update(operation_of(step).products(scene, step, step.box))
    elif (op := step.contraction) is not None and len(op.uses) == 2 and len(op.terms) == 1 and summed(step):
        monomials[scene.ordered(leg for use in op.uses for leg in use.legs)] += 1
    alike = [scene.graph.query] if step.name in one_row(scene.graph) else []
    return Counter({without(legs, *alike): count for legs, count in monomials.items()})


def macs(scene: SizedGraph, step: Step) -> int:
    """MACs of a step over the whole batch."""
    batch = scene.batch_of(step)
    return batch * sum(count * scene.size(legs) for legs, count in products(scene, step).items())


def training_macs(graph: Graph, lengths: Mapping[str, int], batch: int = 1) -> int:
    """MACs of forward and backward at these lengths, with gradients of all inputs and trainable weights.

    A product of two costs one more product of the same size for each factor that gets a gradient: 3 times its forward
    if both do. Fused operations cost 3 times their forward. Recomputation in the backward is not counted. Raises
    InputError if a length or the batch is not a positive integer, or a length exceeds a leg's maximum.
    """
    scene = SizedGraph(split_products(graph), sizes_at(graph, lengths), whole("batch", batch))
    return sum(macs(scene, step) + gradient_macs(scene, step) for step in scene.graph.steps)


def gradient_macs(scene: SizedGraph, step: Step) -> int:
    """MACs of the gradients of a step's operands over the whole batch."""
    gradients = 2 if step.contraction is None else sum(use.name in scene.learned for use in step.uses)
    return macs(scene, step) * gradients * (step.name in scene.learned)


def elementwise(scene: SizedGraph, step: Step) -> int:
    """Elementwise operations of a step over the whole batch."""
    if step.kernel is not None:
        of_kernel = cost_of(step).elementwise(scene, step)
        if of_kernel is not None:
            return of_kernel
        kernel, pair, inner_scene = cost_of(step), _pairs(scene), inside(scene, step)[0]
        keys_met = kernel.keys_met(scene, step)
        few = inner_scene if keys_met is None else inner_scene.at({scene.key: keys_met})
        return sum(
            elementwise(few if pair <= {*inner.legs} else inner_scene, inner)
            for inner in kernel.primitive_steps(scene, step)
            if kernel.pairs or not pair <= {*inner.legs}
        )
    if step.contraction is not None:
        return _contraction(scene, step, step.contraction)
    assert step.box is not None
    return operation_of(step).operations(scene, step, step.box)


def _pairs(scene: SizedGraph) -> set[str]:
    """The query and key legs."""
    return {leg for leg in (scene.graph.query, scene.graph.key) if leg}


def _contraction(scene: SizedGraph, step: Step, op: Contraction) -> int:
    if scene.view(step):
        return 0
    elements = scene.elements(step)
    count = (len(op.terms) - 1) * elements
    for term in op.terms:
        if len(op.terms) == 1 and not term.factors:
            return elements
        multiplied = elements if len(op.terms) == 1 else sum(scene.elements(use) for use in term.factors)
        count += multiplied * (abs(scene.number(term.coefficient)) != 1)
    if len(op.uses) == 2 and len(op.terms) == 1 and not summed(step):
        count += elements
    if len(op.uses) == 1 and len(op.terms) == 1 and summed(step):
        count += scene.elements(op.uses[0])
    return count


def polynomial(monomials: Monomials) -> str:
    """The sum as text, in order of first appearance, with legs in the order of their declaration.

    >>> polynomial(Counter({("n", "d"): 2, ("m",): 1}))
    '2 n d + m'
    """
    terms = [" ".join([str(count)] * (count != 1) + list(legs)) or "1" for legs, count in monomials.items()]
    return " + ".join(terms) or "0"
