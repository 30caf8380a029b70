"""Grouped experts: how a product with the weight of gated experts reads, and what it costs for the chosen ones alone.

    y = sum over e of G[n h e] x[n h c] W[h e c o], G a topk along e    work n h k c o instead of n h e c o

Multiply-adds: k times the legs of x and W without e for each product, and k for each number of a result that sums over
the chosen. Kept for backward beside operands and result: gates and numbers of the chosen experts, and the rows between
two products. Time on a `Device`: rows are gathered, multiplied, put back; a kernel gathers while it multiplies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.scene import HELD, Scene, word
from tensornet_attn.graph.model import Graph, Step, Use
from tensornet_attn.ir.arithmetic import Arith
from tensornet_attn.ops import OPS

Legs = tuple[str, ...]


@dataclass(frozen=True)
class Product:
    """A product with the weight of experts: its operands, and its legs by what they do.

    `tokens`: rows are counted by them; `heads`: each has experts of its own; `summed`: on x and weight; `own`: on the
    weight alone. `total`: the result has no heads. `gated` False: it keeps `expert`, the leg of the experts.
    """

    step: Step
    expert: str
    gate: Use
    x: Use
    weight: Use
    tokens: Legs
    heads: Legs
    summed: Legs
    own: Legs
    total: bool
    gated: bool

    @property
    def slots(self) -> bool:
        """Whether each chosen expert has a row of x for itself."""
        return self.expert in self.x.legs


@dataclass(frozen=True)
class Experts:
    """Products with the weights of chosen experts, in their order; without any, the choice alone."""

    topk: Step
    products: tuple[Product, ...] = ()


def held(graph: Graph) -> frozenset[str]:
    """Tensors that belong to the module: what can be the weight of experts."""
    return frozenset(tensor.name for tensor in graph.tensors if tensor.role in HELD)


def read_product(step: Step, gate: Use, expert: str, weights: Container[str]) -> Product | str:
    """The product of a step with one term, or why it is none; `gate`: the topk in the leg names of this step."""
    if step.contraction is not None and len(step.contraction.terms) > 1:
        return f"'{step.name}' sums {len(step.contraction.terms)} products"
    if [*step.op.uses].count(gate) > 1:
        return f"'{step.name}' multiplies by '{gate.name}' more than once"
    factors = [use for use in step.op.uses if use != gate]
    found = [use for use in factors if expert in use.legs and use.name in weights]
    others = [use for use in factors if use not in found]
    if len(found) != 1:
        return f"'{step.name}' has {len(found) or 'no'} weight{'s'[: len(found)]} on leg '{expert}' beside the gates"
    if len(others) != 1:
        return (
            f"'{step.name}' has {len(others) or 'no'} tensor{'s'[: len(others)]} beside the gates and '{found[0].name}'"
        )
    weight, x = found[0], others[0]
    tokens = tuple(leg for leg in gate.legs if leg not in weight.legs)
    heads = tuple(leg for leg in gate.legs if leg in weight.legs and leg != expert)
    summed = tuple(leg for leg in weight.legs if leg in x.legs and leg not in gate.legs)
    own = tuple(leg for leg in weight.legs if leg not in (*x.legs, *gate.legs))
    total, gated = not set(heads) & set(step.legs), gate in step.op.uses
    product = Product(step, expert, gate, x, weight, tokens, heads, summed, own, total, gated)
    return next(_against(product), product)


def _against(product: Product) -> Iterator[str]:
    """Why the legs of a product do not fit."""
    legs, x = set(product.step.legs), set(product.x.legs)
    what, weight = f"'{product.step.name}'", f"'{product.weight.name}'"
    for leg in product.x.legs:
        if leg not in (*product.gate.legs, *product.summed):
            yield f"leg '{leg}' of '{product.x.name}' is neither on the gates nor on {weight}"
    for leg in product.tokens:
        if leg not in x or leg not in legs:
            yield f"{what} mixes the positions on leg '{leg}', at each of which experts are chosen"
    if not product.summed or set(product.summed) & legs:
        yield f"{what} is no matrix product with {weight}"
    if (product.expert in legs) == product.gated:
        yield f"{what} {'keeps' if product.gated else 'sums'} leg '{product.expert}'"
    if any(0 < len(set(product.heads) & side) < len(product.heads) for side in (x, legs)):
        yield f"{what} treats legs {', '.join(product.heads)} in different ways"


def topk_of(graph: Graph, name: str) -> Step | None:
    """The topk that a step is: a box that leaves k numbers."""
    step = graph.step.get(name)
    box = step.box if step is not None else None
    return step if box is not None and OPS[box.kind].zeros_elsewhere(box) else None


def chosen_of(topk: Step) -> tuple[str, Arith]:
    """The leg that a topk chooses along, and how many."""
    assert topk.box is not None
    return str(topk.box.leg), topk.box.number("k")


def experts_of(step: Step) -> Experts:
    """The choice and the products of a kernel 'experts'."""
    assert isinstance(step.form, Experts)
    return step.form


def experts_work(scene: Scene, step: Step) -> dict[Legs, int]:
    """Multiply-adds by legs: those of the chosen experts, with k in the place of their leg."""
    form, found = experts_of(step), Counter[Legs]()
    k = word(chosen_of(form.topk)[1])
    for product in form.products:
        result = (*product.tokens, *product.heads, product.expert, *product.own)
        for legs in ((*result, *product.summed), *([result] if product.gated else [])):
            found[tuple(k if leg == product.expert else leg for leg in _ordered(scene, legs))] += 1
    for part in step.kernel.body if step.kernel is not None else ():
        if part.attention is not None:  # of the chosen heads
            op, expert = part.attention, form.products[-1].expert
            for legs in ((*op.query.legs, *op.key.legs), (*op.scores, *op.value.legs)):
                found[tuple(k if leg == expert else leg for leg in _ordered(scene, legs))] += 1
    return dict(found)


def experts_kept(scene: Scene, step: Step) -> dict[str, int]:
    """Gates and numbers of the chosen experts; what stands between two products, for the chosen ones."""
    topk, products = experts_of(step).topk, experts_of(step).products
    along, k = chosen_of(topk)
    rows = scene.size(leg for leg in topk.legs if leg != along) * int(scene.number(k))
    rows *= scene.batch if step.name in scene.batched else 1
    if not products:
        return {f"{topk.name}: chosen": 2 * rows}
    between, counted = step.kernel.body[:-1] if step.kernel else (), {*products[-1].gate.legs}
    return {
        f"{one.name}: chosen rows": rows * scene.size(leg for leg in one.legs if leg not in counted) for one in between
    }


def _ordered(scene: Scene, legs: Iterable[str]) -> Legs:
    wanted = set(legs)
    return tuple(leg.name for leg in scene.graph.legs if leg.name in wanted)


def chosen_time(product: Product, k: int, sizes: Mapping[str, int], device: Device, fused: bool = False) -> int:
    """The time of a product for the k chosen experts, in the device's units.

    `fused`: by the Triton kernel, which reads rows where they stand and weighs them before it writes them.

    At the figures of the device 'generic' its ratio to the dense product came within a third of what a CPU measured,
    for widths from 64 on: what a CPU has more in bandwidth, it loses in small products and in sorting.
    """

    def size(legs: Iterable[str]) -> int:
        return prod(sizes[leg] for leg in legs)

    c, o, tokens, heads = (size(legs) for legs in (product.summed, product.own, product.tokens, product.heads))
    rows, weight = tokens * heads * k, heads * sizes[product.expert] * c * o
    put = tokens * heads * o * (2 if product.total and heads > 1 else 1) if product.gated else rows * o
    if fused:  # the rows that several experts read stay in the second cache
        read = c * tokens * (heads if {*product.heads} <= {*product.x.legs} else 1) * (k if product.slots else 1)
        multiply = device.time(2 * rows * c * o, device.width * (read + weight + rows * o))
        return multiply + (device.time(rows * o, device.width * (rows * o + put)) if product.gated else 0)
    gather = device.time(0, 2 * device.width * rows * c)
    multiply = device.time(2 * rows * c * o, device.width * (rows * c + weight + rows * o))
    return gather + multiply + device.time(2 * rows * o, device.width * (rows * o + put))
