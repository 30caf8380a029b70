"""The cheapest order of a product of many tensors: an exact search over subsets, for legs on any number of tensors.

A pair costs max(FLOPs / rate, bytes / bandwidth) on a `Device`. A leg is summed as soon as neither a remaining factor
nor the result has it. Outer products are searched too. Sizes and rates are integers, so costs compare exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import combinations
from math import prod
from operator import or_

from tensornet_attn import limits
from tensornet_attn.cost.devices import GENERIC, Device
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.pairs import BATCH, Legs, Path, left_to_right, split_products


@dataclass(frozen=True)
class ContractionOrder:
    """A contraction path and its cost. `method`: `exact`, `greedy` or `random greedy` (too many factors), or `given`.

    `path` is in opt_einsum's format. `flops`: 2 per multiply-add of a pair that sums a leg, 1 per product of a pair
    that sums none. `bytes`: operands read and results written. `biggest`: elements of the largest product.
    """

    path: tuple[tuple[int, int], ...]
    method: str
    time: int  # in the device's units: see `Device.time`
    flops: int
    bytes: int
    biggest: int

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.time, self.flops, self.biggest


def order(
    factors: Sequence[Legs], result: Legs, sizes: Mapping[str, int], device: Device = GENERIC, dtype_bytes: int = 4
) -> ContractionOrder:
    """The best order: least time; ties by FLOPs, then by the largest product, then left to right.

    Exact up to `limits.ORDER_FACTORS` factors; above, the best of a greedy path and opt_einsum's random greedy ones.

    >>> order([("n", "m"), ("m", "d"), ("d", "f")], ("n", "f"), {"n": 1024, "m": 1024, "d": 64, "f": 8}).path
    ((1, 2), (0, 1))
    """
    network = _Network.read(factors, result, sizes, device, dtype_bytes)
    if len(factors) > limits.ORDER_FACTORS:
        return min(
            network.priced(_greedy(network), "greedy"),
            network.priced(_random_greedy(network), "random greedy"),
            key=lambda candidate: candidate.rank,
        )
    return network.priced(_exact(network), "exact")


def price(
    path: Path,
    factors: Sequence[Legs],
    result: Legs,
    sizes: Mapping[str, int],
    device: Device = GENERIC,
    dtype_bytes: int = 4,
) -> ContractionOrder:
    """The cost of a given path; its method is `given`."""
    return _Network.read(factors, result, sizes, device, dtype_bytes).priced(path, "given")


def path_text(graph: Graph, sizes: Mapping[str, int], device: Device = GENERIC) -> str:
    """opt_einsum's `PathInfo` of each product of more than two tensors, in the planned order, with its legs."""
    from opt_einsum import contract_path, get_symbol  # imports slowly

    texts: list[str] = []

    def path_of(factors: Sequence[Legs], result: Legs, leg_sizes: Mapping[str, int]) -> Path:
        chosen = order(factors, result, leg_sizes, device)
        legs = dict.fromkeys(leg for factor in (*factors, result) for leg in factor)
        signs = {leg: get_symbol(index) for index, leg in enumerate(legs)}
        equation, shown = (
            ",".join("".join(signs[leg] for leg in legs) for legs in side) for side in (factors, [result])
        )
        shapes = [tuple(leg_sizes[leg] for leg in factor) for factor in factors]
        _, info = contract_path(f"{equation}->{shown}", *shapes, shapes=True, optimize=[*chosen.path])
        names = ", ".join(f"{sign} = {leg}" for leg, sign in signs.items())
        product = f"{' , '.join(map(' '.join, factors))} -> {' '.join(result)}, {chosen.method}; {names}"
        texts.append(f"{product.replace(BATCH, 'batch')}\n{info}")
        return chosen.path

    split_products(graph, path_of, sizes)
    return "\n\n".join(texts) or "no product has more than two tensors."


def split_best(
    graph: Graph, sizes: Mapping[str, int], device: Device = GENERIC, dtype_bytes: int = 4
) -> tuple[Graph, tuple[ContractionOrder, ...]]:
    """The graph in primitive steps in the best orders, and the order of each term of more than two factors.

    `sizes`: the legs that are known at run time only. The orders are in the order of the terms in the diagram.
    """
    orders: list[ContractionOrder] = []

    def path_of(factors: Sequence[Legs], result: Legs, leg_sizes: Mapping[str, int]) -> Path:
        orders.append(order(factors, result, leg_sizes, device, dtype_bytes))
        return orders[-1].path

    return split_products(graph, path_of, sizes), tuple(orders)


@dataclass(frozen=True)
class _Network:
    """The product as sets of legs, each a bit mask, so that union and test are one operation each."""

    factors: tuple[int, ...]
    result_legs: int
    sizes: tuple[int, ...]
    device: Device
    dtype_bytes: int

    @staticmethod
    def read(
        factors: Sequence[Legs], result: Legs, sizes: Mapping[str, int], device: Device, dtype_bytes: int
    ) -> _Network:
        legs = list(dict.fromkeys(leg for factor in (*factors, result) for leg in factor))
        bit = {leg: 1 << i for i, leg in enumerate(legs)}
        masks = [reduce(or_, (bit[leg] for leg in factor), 0) for factor in (*factors, result)]
        return _Network(tuple(masks[:-1]), masks[-1], tuple(sizes[leg] for leg in legs), device, dtype_bytes)

    def elements(self, legs: int) -> int:
        return prod(size for i, size in enumerate(self.sizes) if legs >> i & 1)

    def joiner(self) -> Callable[[int, int, int], tuple[int, int, int]]:
        """A function (legs of left factor, right factor, product) -> (time, FLOPs, elements of the product)."""
        size = cache(self.elements)

        def join(left: int, right: int, product: int) -> tuple[int, int, int]:
            union = left | right
            flops = size(union) * (1 if union == product else 2)
            moved = self.dtype_bytes * (size(left) + size(right) + size(product))
            return self.device.time(flops, moved), flops, size(product)

        return join

    def priced(self, path: Path, method: str) -> ContractionOrder:
        waiting, join = list(self.factors), self.joiner()
        time = flops = moved = biggest = 0
        for i, j in path:
            left, right = waiting[i], waiting[j]
            waiting = [legs for k, legs in enumerate(waiting) if k not in (i, j)]
            waiting.append((left | right) & reduce(or_, waiting, self.result_legs))
            join_cost = join(left, right, waiting[-1])
            time, flops, biggest = time + join_cost[0], flops + join_cost[1], max(biggest, join_cost[2])
            moved += self.dtype_bytes * sum(map(self.elements, (left, right, waiting[-1])))
        return ContractionOrder(tuple((i, j) for i, j in path), method, time, flops, moved, biggest)


def _exact(network: _Network) -> Path:
    """Dynamic programming over subsets: the best order of a subset is its best split into two subsets.

    Factor i is bit count - 1 - i. The last factors alone are tried first, and only a better split replaces an earlier
    one, so left to right wins ties. Partial orders that take longer than left to right are pruned.
    """
    count = len(network.factors)
    legs, join = _subset_legs(network), network.joiner()
    bound = network.priced(left_to_right([()] * count, (), {}), "given").time
    best: dict[int, tuple[int, int, int]] = {1 << i: (0, 0, 0) for i in range(count)}
    chosen: dict[int, int] = {}
    for subset in range(1, 1 << count):
        limit = bound
        for right in _splits(subset):
            a, b = best.get(subset ^ right), best.get(right)
            if a is None or b is None or a[0] + b[0] > limit:
                continue
            time, flops, written = join(legs[subset ^ right], legs[right], legs[subset])
            rank = (a[0] + b[0] + time, a[1] + b[1] + flops, max(a[2], b[2], written))
            if rank[0] <= limit and (subset not in best or rank < best[subset]):
                best[subset], chosen[subset], limit = rank, right, rank[0]
    return _path(chosen, count)


def _splits(subset: int) -> Iterator[int]:
    """The parts of a subset without its first factor, ascending: each split into two parts occurs once."""
    rest = subset & ~(1 << subset.bit_length() - 1)
    right = rest & -rest
    while right:
        yield right
        right = (right - rest) & rest


def _subset_legs(network: _Network) -> list[int]:
    """For each subset of factors, the legs of its product: those that other factors or the result need."""
    count = len(network.factors)
    union = [0] * (1 << count)
    for subset in range(1, 1 << count):
        low = subset & -subset
        union[subset] = union[subset ^ low] | network.factors[count - low.bit_length()]
    everything = (1 << count) - 1
    needed = [union[subset] & (union[everything ^ subset] | network.result_legs) for subset in range(1 << count)]
    for i, factor in enumerate(network.factors):
        needed[1 << count - 1 - i] = factor  # a leg of this factor only is summed in its first product
    return needed


def _path(chosen: Mapping[int, int], count: int) -> Path:
    """The tree of splits in opt_einsum's format: positions in a list from which pairs are removed."""
    waiting = [1 << count - 1 - i for i in range(count)]
    path: list[tuple[int, int]] = []

    def build(subset: int) -> None:
        if subset not in chosen:
            return
        right = chosen[subset]
        build(subset ^ right)
        build(right)
        i, j = sorted((waiting.index(subset ^ right), waiting.index(right)))
        path.append((i, j))
        del waiting[j], waiting[i]
        waiting.append(subset)

    build((1 << count) - 1)
    return path


def _greedy(network: _Network) -> Path:
    """Picks the pair whose product is smallest relative to its operands, then the cheapest, then the first."""
    waiting = list(network.factors)
    path: list[tuple[int, int]] = []
    size = cache(network.elements)
    while len(waiting) > 1:
        ranked = []
        for i, j in combinations(range(len(waiting)), 2):
            others = reduce(or_, (legs for k, legs in enumerate(waiting) if k not in (i, j)), network.result_legs)
            union = waiting[i] | waiting[j]
            growth = size(union & others) - size(waiting[i]) - size(waiting[j])
            ranked.append((growth, size(union), i, j, union & others))
        _, _, i, j, product = min(ranked)
        path.append((i, j))
        waiting = [legs for k, legs in enumerate(waiting) if k not in (i, j)] + [product]
    return path


def _random_greedy(network: _Network) -> Path:
    """The path of the fewest FLOPs of opt_einsum's random greedy search, whose trials have the seeds 0, 1, 2, ..."""
    from opt_einsum.path_random import RandomGreedy  # imports slowly

    legs = [frozenset(i for i in range(len(network.sizes)) if mask >> i & 1) for mask in network.factors]
    result = frozenset(i for i in range(len(network.sizes)) if network.result_legs >> i & 1)
    state = random.getstate()  # the trials seed Python's generator, which belongs to the caller
    try:
        path = RandomGreedy(max_repeats=limits.ORDER_TRIALS)(legs, result, dict(enumerate(network.sizes)))
    finally:
        random.setstate(state)
    return [(i, j) for i, j in path]
