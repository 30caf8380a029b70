"""Splits products of many tensors into products of two, so that each step is one primitive operation.

Primitive steps are a product (one term of at most two factors), a linear combination (terms of at most one factor),
a box, or fused attention.

    y: a[..] b[..] c[..] -> ..            y.p1: a b -> ..;  y: y.p1 c -> ..
    y: 2 * a[..] b[..] + c[..] -> ..      y.p1: a b -> ..;  y: 2 * y.p1 + c -> ..
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Contraction, Graph, Step, Tensor, Term, Use, cached
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.ir.steps import within

BATCH = "..."  # the batch dimensions as a leg: inputs, noise and all results of them have it

Legs = tuple[str, ...]
Path = Sequence[tuple[int, int]]
PathOf = Callable[[Sequence[Legs], Legs, Mapping[str, int]], Path]


def left_to_right(factors: Sequence[Legs], product_legs: Legs, sizes: Mapping[str, int]) -> Path:
    """The path that multiplies in the order written, in opt_einsum's format: pairs are popped, products appended.

    >>> left_to_right([("n",), ("n",), ("n",), ("n",)], ("n",), {})
    [(0, 1), (0, 2), (0, 1)]
    """
    others = len(factors) - 1
    return [(0, 1 if i == 0 else others - i) for i in range(others)]


def split_products(graph: Graph, path_of: PathOf = left_to_right, sizes: Mapping[str, int] | None = None) -> Graph:
    """The same design in primitive steps. A second run changes nothing.

    `path_of(legs of the factors, legs of the product, sizes)` gives the path of each term with more than two factors;
    factors with batch dimensions also have the leg `BATCH`. `sizes` adds sizes of legs that are sized at run time, and
    of `BATCH` (default 1). New steps are `<step>.p1`, `<step>.p2`, ...; the step keeps its name, its legs and their
    order. A pair sums the legs that neither a remaining factor nor the product has. Steps of `overwrites` stay whole.
    """
    whole = overwrites(graph)
    if all(primitive(step) or step.name in whole for step in graph.steps):
        return graph
    all_sizes = {BATCH: 1} | {leg.name: leg.size for leg in graph.legs if leg.size is not None} | dict(sizes or {})

    def path(term: Term, legs: Legs) -> Path:
        if len(term.factors) == 2:
            return [(0, 1)]
        with_batch = [use.name in batched(graph) for use in term.factors]
        factors = [use.legs + (BATCH,) * has_batch for use, has_batch in zip(term.factors, with_batch, strict=True)]
        product_legs = legs + (BATCH,) * any(with_batch)
        return path_of(factors, product_legs, all_sizes)

    split = ([step] if step.name in whole else _split(step, path, graph.step) for step in graph.steps)
    return replace(graph, steps=tuple(primitive_step for steps in split for primitive_step in steps))


def overwrites(graph: Graph) -> dict[str, str]:
    """The steps that can take the memory of an input, the old state: {step: input}.

    They add to the old state, or to a decayed one, after all others have read it, and nothing is a view of either.
    """
    overwritten, places = dict[str, str](), {step.name: place for place, step in enumerate(graph.steps)}
    for tensor in graph.of_role("input"):
        step, old = graph.step.get(str(tensor.update)), tensor.use
        adds = step is not None and step.legs == old.legs and step.terms and old in step.terms[0].factors
        if step is None or not adds or summed(step) or [use.name for use in step.uses].count(old.name) > 1:
            continue
        before = [reader for reader, _ in graph.readers[old.name] if reader != step]
        last = all(places[reader.name] < places[step.name] for reader in before)
        readers = [*before, *(reader for reader, _ in graph.readers.get(step.name, ()))]
        computed = all(len(reader.uses) > 1 or (reader.box and reader.box.function) for reader in readers)
        if last and computed and step.name != graph.output and step.terms[0].coefficient == ONE:
            overwritten[step.name] = old.name
    return overwritten


def primitive(step: Step) -> bool:
    """Whether a step is one operation: a product of at most two tensors, a sum of tensors, a box or a kernel."""
    terms = step.terms
    return all(len(term.factors) <= (2 if len(terms) == 1 else 1) for term in terms)


@cached
def batched(graph: Graph) -> frozenset[str]:
    """The names of the tensors and steps with batch dimensions: inputs, noise and all results of them."""
    return frozenset(name for name, origins in batches(graph).items() if origins)


def batches(graph: Graph) -> dict[str, frozenset[str]]:
    """Maps each tensor and step to the inputs that define its batch dimensions; noise has those of all, and itself."""
    inputs = frozenset(tensor.name for tensor in graph.of_role("input"))
    role_origins = {"input": frozenset[str](), "noise": inputs}
    origins = {
        tensor.name: role_origins[tensor.role] | {tensor.name} if tensor.role in role_origins else frozenset[str]()
        for tensor in graph.tensors
    }
    for step in graph.steps:
        origins[step.name] = frozenset[str]().union(*(origins.get(use.name, ()) for use in step.uses))
    return origins


def summed(step: Step) -> frozenset[str]:
    """The legs that a primitive contraction sums, which its factors have and its result lacks."""
    return frozenset(leg for use in step.uses for leg in use.legs) - frozenset(step.legs)


def summed_dims(graph: Graph, weight: Tensor) -> tuple[int, ...]:
    """The dimensions of a weight that its first product sums, the fan-in of the default initialiser."""
    dims = {weight.name: tuple(range(len(weight.legs)))}  # also of steps that split its legs
    for step in graph.steps:
        for use in step.uses:
            if use.name in dims and step.contraction is not None:
                leg_dims = zip(use.legs, dims[use.name], strict=True)
                return tuple(dict.fromkeys(dim for leg, dim in leg_dims if leg not in step.legs))
            if use.name in dims and step.box is not None and operation_of(step).splits:
                dim_of = dict(zip(use.legs, dims[use.name], strict=True))
                dims[step.name] = tuple(dim_of[leg if leg in dim_of else str(step.box.leg)] for leg in step.legs)
    return ()


def _split(step: Step, path: Callable[[Term, Legs], Path], taken: Container[str]) -> list[Step]:
    op = step.contraction
    if op is None or primitive(step):
        return [step]
    names = (name for i in count(1) if (name := f"{step.name}.p{i}") not in taken)
    if len(op.terms) == 1:
        (term,) = op.terms
        *inner, last = _products(term, step.legs, path(term, step.legs), names)
        product = Contraction((Term(term.coefficient, last.uses),))
        return [*inner, Step(step.name, product, step.legs)]
    steps: list[Step] = []
    terms = []
    for term in op.terms:
        if len(term.factors) > 1:
            legs = tuple(leg for leg in step.legs if any(leg in use.legs for use in term.factors))
            steps += _products(term, legs, path(term, legs), names)
            term = Term(term.coefficient, (Use(steps[-1].name, legs),))
        terms.append(term)
    return [*steps, Step(step.name, Contraction(tuple(terms)), step.legs)]


def _products(term: Term, product_legs: Legs, path: Path, names: Iterator[str]) -> list[Step]:
    """One step for each pair of the path; factors keep their order."""
    waiting = list(enumerate(term.factors))
    steps: list[Step] = []
    for pair in path:
        (index, left), (_, right) = sorted(
            (waiting.pop(i) for i in sorted(pair, reverse=True)), key=lambda indexed: indexed[0]
        )
        needed = {leg for _, use in waiting for leg in use.legs} | set(product_legs)
        kept = within(dict.fromkeys(left.legs + right.legs), needed)
        step = Step(next(names), Contraction.of(left, right), kept if waiting else product_legs)
        steps.append(step)
        waiting.append((index, step.use))
    if len(waiting) != 1:
        raise ValueError(f"the path {list(path)} leaves {len(waiting)} factors of {len(term.factors)}, not one.")
    return steps
