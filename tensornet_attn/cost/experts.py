"""Grouped experts: products with the weights of gated experts, and their cost for the chosen experts only.

    y = sum over e of G[n h e] x[n h c] W[h e c o], G a topk along e    work n h k c o instead of n h e c o

MACs: k times the legs of x and W except e for each product, and k per element of a result that sums over the chosen
experts. Saved for backward besides operands and result: gates and indices of the chosen experts, and the rows between
two products.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from tensornet_attn.constants import MOST_BITS
from tensornet_attn.graph.graph import Graph, Step, Use
from tensornet_attn.ir.arithmetic import Arith
from tensornet_attn.ir.steps import within, without
from tensornet_attn.ops import OPS

Legs = tuple[str, ...]
MOST_FEW = 3  # times as many experts as are chosen, for which a product with all of them is faster than sorted rows


@dataclass(frozen=True)
class ExpertProduct:
    """A product with the weight of experts: its operands, and its legs by role.

    `tokens`: legs that count rows; `heads`: legs with experts of their own; `summed`: legs of both x and weight;
    `out`: legs of the weight alone. `total`: the result sums over heads. `gated` False: the result keeps `expert`, the
    leg of the experts. `at_once`: one product has all experts, and kernels choose and multiply by the gates.
    """

    step: Step
    expert: str
    gate: Use
    x: Use
    weight: Use
    tokens: Legs
    heads: Legs
    summed: Legs
    out: Legs
    total: bool
    gated: bool
    at_once: bool = False

    @property
    def slots(self) -> bool:
        """Whether x has a row for each chosen expert."""
        return self.expert in self.x.legs


@dataclass(frozen=True)
class Experts:
    """Products with the weights of chosen experts, in order; without products, only the choice.

    `gathers`: their rows are copied; kernels of Triton read them in place.
    """

    topk: Step
    products: tuple[ExpertProduct, ...] = ()
    gathers: bool = False


def read_product(step: Step, gate: Use, expert: str, weights: Container[str]) -> ExpertProduct | str:
    """The product of a step with one term, or why it is not one; `gate`: the topk in the leg names of this step."""
    if len(step.terms) > 1:
        return f"'{step.name}' sums {len(step.terms)} products"
    if [*step.uses].count(gate) > 1:
        return f"'{step.name}' multiplies by '{gate.name}' more than once"
    factors = [use for use in step.uses if use != gate]
    uses = [use for use in factors if expert in use.legs and use.name in weights]
    others = [use for use in factors if use not in uses]
    if len(uses) != 1:
        return f"'{step.name}' has {len(uses) or 'no'} weight{'s'[: len(uses)]} on leg '{expert}' besides the gates"
    if len(others) != 1:
        return f"'{step.name}' has {len(others) or 'no'} tensor{'s'[: len(others)]} besides gates and '{uses[0].name}'"
    weight, x = uses[0], others[0]
    tokens = without(gate.legs, *weight.legs)
    heads = within(without(gate.legs, expert), weight.legs)
    summed = within(without(weight.legs, *gate.legs), x.legs)
    weight_only = without(weight.legs, *x.legs, *gate.legs)
    total, gated = not set(heads) & set(step.legs), gate in step.uses
    product = ExpertProduct(step, expert, gate, x, weight, tokens, heads, summed, weight_only, total, gated)
    return next(_against(product), product)


def _against(product: ExpertProduct) -> Iterator[str]:
    """Why the legs of a product do not fit."""
    legs, x = set(product.step.legs), set(product.x.legs)
    what, weight = f"'{product.step.name}'", f"'{product.weight.name}'"
    for leg in product.x.legs:
        if leg not in (*product.gate.legs, *product.summed):
            yield f"leg '{leg}' of '{product.x.name}' is neither on the gates nor on {weight}"
    for leg in product.tokens:
        if leg not in x or leg not in legs:
            yield f"{what} mixes the positions on leg '{leg}', but experts are chosen per position"
    if not product.summed or set(product.summed) & legs:
        yield f"{what} is not a matrix product with {weight}"
    if (product.expert in legs) == product.gated:
        yield f"{what} {'keeps' if product.gated else 'sums'} leg '{product.expert}'"
    if any(0 < len(set(product.heads) & side) < len(product.heads) for side in (x, legs)):
        yield f"{what} treats legs {', '.join(product.heads)} differently"


def topk_of(graph: Graph, name: str) -> Step | None:
    """A step if it is a topk, a box that leaves k entries; otherwise None."""
    step = graph.step.get(name)
    box = step.box if step is not None else None
    return step if box is not None and OPS[box.kind].zeros_elsewhere(box) else None


def chosen_of(topk: Step) -> tuple[str, Arith]:
    """The leg that a topk chooses along, and the number of chosen entries."""
    assert topk.box is not None
    return str(topk.box.leg), topk.box.number("k")


def in_one_product(product: ExpertProduct, topk: Step, k: int, sizes: Mapping[str, int]) -> bool:
    """Whether Triton computes all experts in one product, which has larger tiles and sorts nothing.

    Its kernels also choose, by the values themselves.
    """
    heads = {*product.heads} <= {*product.x.legs} if product.total else not {*product.heads} & {*product.x.legs}
    count = sizes[product.expert]
    return product.gated and not product.slots and heads and count <= min(MOST_FEW * k, MOST_BITS) and _by_itself(topk)


def chooses(step: Step) -> bool:
    """Whether the kernel of a step also makes the choice."""
    return isinstance(step.form, Experts) and any(product.at_once for product in step.form.products)


def before_product(product: ExpertProduct, heads: int, width: int, out_width: int) -> bool:
    """Whether kernels multiply by the gates before a product with all experts at once, instead of after it."""
    return width <= out_width if heads == 1 else product.total


def _by_itself(topk: Step) -> bool:
    """Whether a topk chooses by its own values, among all of them."""
    assert topk.box is not None
    return len({*topk.uses}) == 1 and [name for name, _ in topk.box.numbers] == ["k"]
