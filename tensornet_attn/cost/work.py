"""Arithmetic of a primitive step: multiply-adds as monomials in legs, elementwise operations counted apart.

Multiply-adds (MACs; FLOPs = 2 MACs), each the product of the sizes of a set of legs, times the batch:

    product that sums a leg      all legs of the pair
    fused attention              legs of query and key; legs of scores and value. Masks do not reduce the count
    a kernel within bands        of keys those that a block of queries meets
    delta rule                   with S the legs of value and key without m: twice m S (S k, and the outer product that
                                 updates), once n S (S q): as it is defined, a key at a time; chunks of C keys take
                                 m C (2.5 d + 1.5 e) + m (d d + 3 d e) + m / C d d e at n = m

Elementwise operations, one for each number of the result unless a line says otherwise:

    product that sums no leg     1
    coefficient other than 1     1 for each number it multiplies
    linear combination           1 for each term after the first
    boxes                        `PER_ELEMENT` for each number of `of`; 1 more for each of mask, scale and dropout
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from tensornet_attn.cost.band import keys_met
from tensornet_attn.cost.kernels import ELEMENTWISE, WORK, inside
from tensornet_attn.cost.scene import Scene
from tensornet_attn.graph.model import Attention, Box, Contraction, Kernel, Step
from tensornet_attn.graph.pairs import summed
from tensornet_attn.spec.arithmetic import Arith

Monomials = Counter[tuple[str, ...]]  # legs, in the order of the design's legs: how often

PER_ELEMENT = {
    "softmax": 5,  # largest, subtract, exp, sum, divide
    "normalize": 2,  # sum, divide
    "keep": 0,  # its mask alone
    "map": 1,  # every map counts as one operation
    "logsumexp": 4,  # largest, subtract, exp, sum
    "max": 1,
    "sum": 1,
    "mean": 1,
    "topk": 2,  # compare, keep
    "rmsnorm": 3,  # square, sum, scale
    "layernorm": 5,  # sum, subtract, square, sum, scale
    "l1norm": 3,  # absolute value, sum, divide
    "l2norm": 3,
    "rope": 3,  # two products and a sum, of the fraction that turns
    "rel_shift": 0,  # moves numbers
    "dropout": 1,  # as while training
}
# Delta rule, for each number of query, key, result. read: z.q, z + k, divide. both: z'.k and k / (z'.k + eps) as well.
NORMALIZE = {"none": (0, 0, 0), "read": (2, 1, 1), "both": (2, 4, 1)}


def products(scene: Scene, step: Step) -> Monomials:
    """The multiply-adds of a step for one batch element, by the legs they run over."""
    found: Monomials = Counter()
    op = step.op
    if isinstance(op, Kernel):
        if op.kind in WORK:
            return Counter(WORK[op.kind](scene, step))
        inner, held = inside(scene, step)
        met = keys_met(scene, step)
        for legs, count in sum((products(inner, part) for part in held), Counter()).items():
            if met is not None and _pairs(scene) <= {*legs}:
                found[tuple(leg for leg in legs if leg != scene.graph.key)] += met * count
            else:
                found[legs] += count
        return found
    if isinstance(op, Attention):
        found[_ordered(scene, (*op.query.legs, *op.key.legs))] += 1
        found[_ordered(scene, (*op.scores, *op.value.legs))] += 1
    elif isinstance(op, Box) and op.kind == "delta_rule":
        memory = (set(op.operand("value").legs) | set(op.operand("key").legs)) - {op.leg}
        found[_ordered(scene, {*memory, op.leg or ""})] += 2
        found[_ordered(scene, {*memory, *op.operand("query").legs})] += 1
    elif isinstance(op, Contraction) and len(op.uses) == 2 and len(op.terms) == 1 and summed(step):
        found[_ordered(scene, (leg for use in op.uses for leg in use.legs))] += 1
    return found


def macs(scene: Scene, step: Step) -> int:
    """Multiply-adds of a step over the whole batch."""
    batch = scene.batch if step.name in scene.batched else 1
    return batch * sum(count * scene.size(legs) for legs, count in products(scene, step).items())


def elementwise(scene: Scene, step: Step) -> int:
    """Elementwise operations of a step over the whole batch."""
    op = step.op
    if isinstance(op, Kernel) and op.kind in ELEMENTWISE:
        return ELEMENTWISE[op.kind](scene, step)
    if isinstance(op, Kernel):
        inner, held = inside(scene, step)
        met = keys_met(scene, step)
        few = inner if met is None else replace(inner, sizes={**inner.sizes, str(scene.graph.key): met})
        return sum(elementwise(few if _pairs(scene) <= {*part.legs} else inner, part) for part in held)
    if isinstance(op, Contraction):
        return _contraction(scene, step, op)
    if isinstance(op, Attention):
        scores = scene.size(op.scores) * (scene.batch if step.name in scene.batched else 1)
        return scores * (
            PER_ELEMENT["softmax"] + bool(op.masks) + _acts(scene, op.scale, 1) + _acts(scene, op.dropout, 0)
        )
    if op.kind == "delta_rule":
        query, key, result = NORMALIZE[op.mode or "none"]
        parts = ((2, "value"), (query, "query"), (key, "key"))  # rate * (value - S k)
        operands = sum(count * scene.elements(op.operand(role)) for count, role in parts)
        return operands + result * scene.elements(step)
    return _box(scene, step, op)


def _pairs(scene: Scene) -> set[str]:
    """The legs that scores have."""
    return {leg for leg in (scene.graph.query, scene.graph.key) if leg}


def _contraction(scene: Scene, step: Step, op: Contraction) -> int:
    if scene.view(step):
        return 0
    result = scene.elements(step)
    count = (len(op.terms) - 1) * result
    for term in op.terms:
        if len(op.terms) == 1 and not term.factors:
            return result
        multiplied = result if len(op.terms) == 1 else sum(scene.elements(use) for use in term.factors)
        count += multiplied * (abs(scene.number(term.coefficient)) != 1)
    if len(op.uses) == 2 and len(op.terms) == 1 and not summed(step):
        count += result
    if len(op.uses) == 1 and len(op.terms) == 1 and summed(step):
        count += scene.elements(op.uses[0])
    return count


def _box(scene: Scene, step: Step, box: Box) -> int:
    numbers = dict(box.numbers)
    each = PER_ELEMENT[box.kind] + bool(scene.graph.masks(step))
    if box.kind == "dropout":
        each = _acts(scene, numbers["dropout"], 0) if "dropout" in numbers else each
    else:
        each += _acts(scene, numbers.get("scale"), 1) + _acts(scene, numbers.get("dropout"), 0)
    turned = scene.number(numbers["fraction"]) if "fraction" in numbers else 1
    return int(each * scene.elements(box.operand("of")) * turned)


def _acts(scene: Scene, value: Arith | None, neutral: int) -> int:
    return int(value is not None and scene.number(value) != neutral)


def _ordered(scene: Scene, legs: Iterable[str]) -> tuple[str, ...]:
    wanted = set(legs)
    return tuple(leg.name for leg in scene.graph.legs if leg.name in wanted)


def polynomial(monomials: Monomials) -> str:
    """The sum as text, in order of first appearance; legs stand in the order in which the design declares them.

    >>> polynomial(Counter({("n", "d"): 2, ("m",): 1}))
    '2 n d + m'
    """
    terms = [" ".join([str(count)] * (count != 1) + list(legs)) or "1" for legs, count in monomials.items()]
    return " + ".join(terms) or "0"
