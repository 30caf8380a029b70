"""The product of a query and a key side that an attention box looks at, found by reading the diagram backwards.

S: P[g h] Q[n g d] K[m g d] -> h n m;  A: softmax of S                 P[g h] Q[n g d] K[m g d]
G: Q[n g d] K[m g d] -> g n m;  A: softmax of P[g h] G[g n m]          P[g h] Q[n g d] K[m g d]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from tensornet_attn.graph.attention import Given, Map, Reduce, score_of
from tensornet_attn.graph.model import Graph, Step, Use


@dataclass(frozen=True)
class Product:
    """Factors by the leg names of the box that looks; a leg summed on the way has a number: `g.1`.

    `bent`: a step on the way that is not linear, after which nothing may be mixed. `against`: why there is no core.
    """

    factors: tuple[Use, ...]
    bent: str | None = None
    against: str | None = None


def products(graph: Graph, use: Use, numbers: Iterator[int] | None = None) -> list[Product]:
    """Every product of a query and a key side under a use; a sum may hold several, or none."""
    score, numbers = score_of(graph, use), count(1) if numbers is None else numbers
    if isinstance(score, Given):
        return []
    names = dict(zip(score.step.legs, use.legs, strict=True))
    if isinstance(score, Map | Reduce):
        return _of_box(graph, score, names, numbers)
    terms = [_renamed(term.factors, names, numbers) for term in score.step.contraction.terms]  # type: ignore[union-attr]
    return [found for factors in terms for found in _of_term(graph, score.step, factors, set(use.legs), numbers)]


def _renamed(factors: tuple[Use, ...], names: dict[str, str], numbers: Iterator[int]) -> tuple[Use, ...]:
    """Factors in the names of the one who asks; each leg that the result lacks gets a name of its own."""
    inner = dict.fromkeys(leg for use in factors for leg in use.legs if leg not in names)
    own = names | {leg: f"{leg}.{next(numbers)}" for leg in inner}
    return tuple(Use(use.name, tuple(own[leg] for leg in use.legs)) for use in factors)


def _of_box(graph: Graph, score: Map | Reduce, names: dict[str, str], numbers: Iterator[int]) -> list[Product]:
    """What stands under a box, but for what decides a topk; the core sums over a leg that the box reduces away."""
    (inner,) = _renamed((score.of,), names, numbers)
    found = products(graph, inner, numbers)
    if not score.linear:
        return [replace(product, bent=score.step.name) for product in found]
    return [_mixed(product, score.step) if isinstance(score, Reduce) else product for product in found]


def _of_term(
    graph: Graph, step: Step, factors: tuple[Use, ...], kept: set[str], numbers: Iterator[int]
) -> Iterator[Product]:
    """The term itself, or the products under its one factor that has both sides, times the other factors."""
    both = [(place, products(graph, use, numbers)) for place, use in enumerate(factors) if len(_sides(graph, use)) == 2]
    scores = {place: found for place, found in both if found}
    rest = tuple(use for place, use in enumerate(factors) if place not in scores)
    own = {side for use in rest if len(_sides(graph, use)) == 1 for side in _sides(graph, use)}
    if not scores and len(own) == 2:
        yield Product(factors)
    for place, found in scores.items():
        for product in found:
            product = replace(product, factors=(*product.factors, *rest))
            if rest or set(factors[place].legs) - kept:
                product = _mixed(product, step)
            if len(scores) > 1 or len(own) == 2:
                product = replace(product, against=f"'{step.name}' multiplies scores with scores")
            yield product


def _mixed(product: Product, step: Step) -> Product:
    if product.bent is None or product.against is not None:
        return product
    return replace(product, against=f"'{step.name}' mixes scores after '{product.bent}', which is not linear")


def _sides(graph: Graph, use: Use) -> set[str | None]:
    return {graph.query, graph.key} & set(use.legs)
