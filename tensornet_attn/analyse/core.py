"""The core of an attention, and its stable rank: the effective number of heads.

The core is the part of the scores that mixes their query and key side. It is found by tracing back from the box:
S: P[g h] Q[n g d] K[m g d] -> h n m;  A: softmax of S                 P[g h] Q[n g d] K[m g d]
G: Q[n g d] K[m g d] -> g n m;  A: softmax of P[g h] G[g n m]          P[g h] Q[n g d] K[m g d]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import Any

import torch

from tensornet_attn.analyse.maps import attention_steps, compiled, evaluated
from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph.attention import MappedScores, OpaqueScores, Reduce, attentions, score_of
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph, Step, Use
from tensornet_attn.graph.pairs import batched
from tensornet_attn.nn.module import CompiledDesign, leaves

Tensor = torch.Tensor


def effective_heads(module_or_tensor: CompiledDesign | Tensor, step: str | None = None) -> float:
    """The effective number of heads of a core: its stable rank, sum(sigma ** 2) / max(sigma) ** 2 over singular values.

    Takes a core, a matrix [heads, components], or a compiled design. The core of a design mixes the components of
    queries and keys into the scores of an attention box: for `A: softmax of C[r s] Q[n s] K[m s] -> r n m` it is C. In
    general, its rows are the legs of the box except query and key, its columns the legs of the query and key side, and
    its entries the remaining product if both sides are identities. So mhsa, where each head is a block of ones, has h
    effective heads, hard_fish has the stable rank of P, and gqa has g * j. Steps between product and box are followed;
    a core of zeros has 0.

    `step`: the name of the box, required if the design has several. Raises InputError if the core is not defined:
    scores that are not one product of a query and a key side, that are mixed after a nonlinear step, or whose core is
    computed from the inputs.

    Source: Liu, Su and Huang, Tuformer (ICLR 2022), stable rank of the core. The printed formula lacks the square; with
    it, the core of mhsa, kron(eye(h), ones(d, d)), has h.

    >>> import torch
    >>> round(effective_heads(torch.kron(torch.eye(4), torch.ones(3, 3))), 9)
    4.0
    >>> import tensornet_attn as ta
    >>> effective_heads(ta.compile("mhsa"))
    8.0
    """
    if isinstance(module_or_tensor, torch.Tensor):
        if module_or_tensor.ndim != 2:
            shape = list(module_or_tensor.shape)
            raise InputError(f"a core is a matrix [heads, components], not a tensor of shape {shape}.")
        return stable_rank(module_or_tensor)
    return stable_rank(core_matrix(compiled(module_or_tensor, "effective_heads"), step))


def stable_rank(core: Tensor) -> float:
    """sum(sigma ** 2) / max(sigma) ** 2 of a matrix, 0 for zeros; cannot overflow. Raises InputError."""
    sigma = core_values(core)
    return float((sigma / sigma[0]).square().sum()) if sigma.numel() and sigma[0] > 0 else 0.0


def core_values(core: Tensor) -> Tensor:
    """The singular values of a core, descending, float64. Raises InputError if an entry is not finite."""
    core = core.detach().double()
    if not core.isfinite().all():
        raise InputError("the core has entries that are not finite, so it has no singular values.")
    return torch.linalg.svdvals(core)


@torch.no_grad()
def core_matrix(module: CompiledDesign, step: str | None = None) -> Tensor:
    """The core of an attention box, [rows, columns], float64. Raises InputError.

    Legs that only repeat rows or columns, such as the width d of a head, are omitted. The singular values equal those
    of the whole core up to a common factor.
    """
    graph = module.plan.graph
    box = _box(graph, step)
    product = _product(graph, box)
    positional = {leg.name for leg in graph.legs if leg.kind in ("query", "key", "relative")}
    core = [use for use in product.factors if not positional & {_name(leg) for leg in use.legs}]
    sides = [use for use in product.factors if use not in core]
    computed = [use.name for use in core if use.name in batched(graph)]
    if computed:
        raise _refusal(
            graph, box, f"'{computed[0]}' is computed from inputs or noise, so the core differs between calls."
        )
    values = values_without_positions(module, [use.name for use in core])
    rows = [leg for leg in box.legs if leg not in positional]
    columns = list(dict.fromkeys(leg for use in sides for leg in use.legs if _name(leg) not in positional))
    factors = [(values[use.name].double(), use.legs) for use in core]
    return _assembled(factors, rows, columns, {leg: size_of(graph, _name(leg)) or 0 for leg in (*rows, *columns)})


def _assembled(factors: list[tuple[Tensor, tuple[str, ...]]], rows: list[str], columns: list[str], size: Any) -> Tensor:
    """The product of the factors and delta(row, column) for each leg that is both: [rows, columns]."""
    within = {leg for _, legs in factors for leg in legs}
    rows = [leg for leg in rows if leg in within or leg in columns]  # other legs only repeat rows
    columns = [leg for leg in columns if leg in within or leg in rows]
    axis_numbers = {leg: axis for axis, leg in enumerate(dict.fromkeys([*within, *rows, *columns]))}
    arguments: list[Any] = [torch.ones((), dtype=torch.float64), []]
    for tensor, legs in factors:
        arguments += [tensor, [axis_numbers[leg] for leg in legs]]
    column_axes = {leg: axis_numbers[leg] for leg in columns}
    for leg in (leg for leg in columns if leg in rows):
        column_axes[leg] = len(axis_numbers) + axis_numbers[leg]
        arguments += [torch.eye(size[leg], dtype=torch.float64), [axis_numbers[leg], column_axes[leg]]]
    total = torch.einsum(*arguments, [*(axis_numbers[leg] for leg in rows), *column_axes.values()])
    return total.reshape(prod(size[leg] for leg in rows), -1)


def _box(graph: Graph, name: str | None) -> Step:
    """The requested attention box, or the only one."""
    boxes = {step.name: step for step in attention_steps(graph)}
    if not boxes:
        raise InputError(f"{graph.name}: there is no attention box (softmax, normalize or keep over the key leg).")
    if name is None and len(boxes) > 1:
        names = ", ".join(f"'{box}'" for box in boxes)
        raise InputError(f"{graph.name}: there are {len(boxes)} attention boxes, {names}; choose one with step=.")
    if name is not None and name not in boxes:
        raise InputError(f"{graph.name}: there is no attention box '{name}'; {nearest(str(name), boxes)}")
    return next(iter(boxes.values())) if name is None else boxes[name]


def _product(graph: Graph, box: Step) -> ScoreProduct:
    score_products = products(graph, attentions(graph)[box.name].of)
    if not score_products:
        raise _refusal(graph, box, "its scores are not a product of a query and a key side.")
    against = [product.against for product in score_products if product.against is not None]
    if against:
        raise _refusal(graph, box, f"{against[0]}.")
    if len(score_products) > 1:
        raise _refusal(graph, box, f"its scores add {len(score_products)} products of a query and a key side.")
    return score_products[0]


def _refusal(graph: Graph, box: Step, reason: str) -> InputError:
    return InputError(f"{graph.name}: the core of '{box.name}' is not defined: {reason}")


def values_without_positions(module: CompiledDesign, names: list[str]) -> dict[str, Tensor]:
    """Tensors and steps without sequence legs, whose values do not depend on the lengths of a call."""
    graph = module.plan.graph
    lengths = {leg.name: 1 for leg in graph.legs if leg.sequence}
    inputs = tuple(
        torch.zeros([lengths.get(leg) or size_of(graph, leg) or 1 for leg in tensor.legs], dtype=torch.float64)
        for tensor in graph.of_role("input")
    )
    tensors = {name: tensor.detach().double().cpu() for name, tensor in leaves(module, inputs, None).items()}
    return evaluated(module, names, tensors, lengths)


def _name(leg: str) -> str:
    """The leg of a name: `g.1` is a use of the leg `g`."""
    return leg.partition(".")[0]


@dataclass(frozen=True)
class ScoreProduct:
    """Factors by the leg names of the attention box; a leg that is summed in between has a number: `g.1`.

    `bent`: a nonlinear step in between, after which scores must not be mixed. `against`: why there is no core.
    """

    factors: tuple[Use, ...]
    bent: str | None = None
    against: str | None = None


def products(graph: Graph, use: Use, numbers: Iterator[int] | None = None) -> list[ScoreProduct]:
    """All products of a query and a key side behind a use; a sum may have several, or none."""
    score, numbers = score_of(graph, use), count(1) if numbers is None else numbers
    if isinstance(score, OpaqueScores):
        return []
    names = dict(zip(score.step.legs, use.legs, strict=True))
    if isinstance(score, MappedScores | Reduce):
        return _of_box(graph, score, names, numbers)
    terms = [_renamed(term.factors, names, numbers) for term in score.step.terms]
    return [product for factors in terms for product in _of_term(graph, score.step, factors, set(use.legs), numbers)]


def _renamed(factors: tuple[Use, ...], names: dict[str, str], numbers: Iterator[int]) -> tuple[Use, ...]:
    """The factors in the leg names of the reader; each leg that the result lacks gets a new name."""
    inner = dict.fromkeys(leg for use in factors for leg in use.legs if leg not in names)
    new_names = names | {leg: f"{leg}.{next(numbers)}" for leg in inner}
    return tuple(use.renamed(new_names) for use in factors)


def _of_box(
    graph: Graph, score: MappedScores | Reduce, names: dict[str, str], numbers: Iterator[int]
) -> list[ScoreProduct]:
    """The products behind a box, except those that only decide a topk; a leg that the box reduces mixes scores."""
    (inner,) = _renamed((score.of,), names, numbers)
    behind = products(graph, inner, numbers)
    if not score.linear:
        return [replace(product, bent=score.step.name) for product in behind]
    return [_mixed(product, score.step) if isinstance(score, Reduce) else product for product in behind]


def _of_term(
    graph: Graph, step: Step, factors: tuple[Use, ...], kept: set[str], numbers: Iterator[int]
) -> Iterator[ScoreProduct]:
    """The term itself, or the products behind its only factor with both sides, times the other factors."""
    two_sided = [
        (index, products(graph, use, numbers)) for index, use in enumerate(factors) if len(_sides(graph, use)) == 2
    ]
    scores = {index: behind for index, behind in two_sided if behind}
    rest = tuple(use for index, use in enumerate(factors) if index not in scores)
    rest_sides = {side for use in rest if len(_sides(graph, use)) == 1 for side in _sides(graph, use)}
    if not scores and len(rest_sides) == 2:
        yield ScoreProduct(factors)
    for index, behind in scores.items():
        for product in behind:
            product = replace(product, factors=(*product.factors, *rest))
            if rest or set(factors[index].legs) - kept:
                product = _mixed(product, step)
            if len(scores) > 1 or len(rest_sides) == 2:
                product = replace(product, against=f"'{step.name}' multiplies scores with scores")
            yield product


def _mixed(product: ScoreProduct, step: Step) -> ScoreProduct:
    if product.bent is None or product.against is not None:
        return product
    return replace(product, against=f"'{step.name}' mixes scores after '{product.bent}', which is not linear")


def _sides(graph: Graph, use: Use) -> set[str | None]:
    return {graph.query, graph.key} & set(use.legs)
