"""Values of boxes in a call: attention maps and scores, and the experts that each position chose.

Steps are computed as written, as in evaluation, for the whole batch at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.graph.attention import attentions, behind, readers_of
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Contraction, Graph, Step, Term, Use
from tensornet_attn.graph.recurrence import sums
from tensornet_attn.ir import arithmetic
from tensornet_attn.ir.steps import without
from tensornet_attn.nn.module import CompiledDesign, leaves
from tensornet_attn.ops.operation import aligned
from tensornet_attn.ops.topk import groups_of
from tensornet_attn.rewrite.reads import read_of
from tensornet_attn.runtime.maps import in_best_groups

Tensor = torch.Tensor


def attention_steps(graph: Graph) -> tuple[Step, ...]:
    """The boxes whose values are attention maps: softmax, normalize or keep over the key leg, with the query leg."""
    return tuple(attention.box for attention in attentions(graph).values() if attention.compares)


def sums_of_maps(graph: Graph) -> tuple[Step, ...]:
    """The products and sums of attention maps, such as `A: w1[h] near[h n m] + w2[h] far[h n m] -> h n m`."""
    boxes, pair = {step.name for step in attention_steps(graph)}, {graph.query, graph.key}
    sums = (step for step in graph.steps if step.contraction is not None and pair <= {*step.legs})
    return tuple(step for step in sums if boxes & behind(graph, [step.name]))


def blended_steps(graph: Graph) -> tuple[Step, ...]:
    """The products and sums of attention maps that weight values."""
    readers = {step: readers_of(graph, step.name) for step in sums_of_maps(graph)}
    return tuple(
        step
        for step, step_readers in readers.items()
        if any(reader.term is not None and reader.values for reader in step_readers)
    )


def with_implied(graph: Graph) -> tuple[Graph, dict[str, Step]]:
    """The graph with the maps that states imply, by the sum over keys that makes the states: `KV` of hard_lfish.

    The result of a query is linear in the values that the keys wrote; the map has these weights, which the design does
    not compute: the product of queries, keys, mixing weights and divisors of rows, at visible keys.
    """
    implied: dict[str, Step] = {}
    for box in sums(graph):
        read = read_of(graph, box)
        if read is None or not read.value or box.box is None:
            continue
        divisors = tuple(use for use in read.rest if graph.query in use.legs)
        factors = (*read.query, *read.key, *read.mix, *divisors)
        all_legs = dict.fromkeys(leg for use in factors for leg in use.legs)
        legs = without(all_legs, *read.features)
        scores, name = Use(f"{box.name}.map.of", legs), f"{box.name}.map"
        keep = replace(box.box, kind="keep", numbers=(), operands=(("of", scores),))
        implied[box.name] = Step(name, keep, legs)
        added = (Step(scores.name, Contraction((Term(read.coefficient, factors),)), legs), implied[box.name])
        graph = replace(graph, steps=(*graph.steps, *added))
    return graph, implied


def topk_steps(graph: Graph) -> tuple[Step, ...]:
    """The topk boxes, with any values in the entries that they do not choose."""
    return tuple(step for step in graph.steps if operation_of(step).selects)


def analysed(graph: Graph) -> bool:
    """Whether there is anything to analyse: an attention map or a topk."""
    return bool(attention_steps(graph) or topk_steps(graph) or with_implied(graph)[1])


def compiled(module: Any, what: str) -> CompiledDesign:
    """The module, if it is a compiled design. Raises InputError."""
    if not isinstance(module, CompiledDesign):
        raise InputError(f"{what} takes a compiled design, as ta.compile returns it, not a {type(module).__name__}.")
    return module


@torch.no_grad()
def values_of(
    module: CompiledDesign,
    names: Iterable[str],
    inputs: tuple[Any, ...],
    named: Mapping[str, Tensor],
    graph: Graph | None = None,
    **see: Any,
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Values by name, [batch..., legs as written], and the lengths of the call. Raises InputError.

    Always computed as in evaluation, so that dropout and noise do not affect the maps.
    """
    arguments = module._signature.ordered(inputs, named)
    lengths = module._signature.check(arguments, see.get("mask"), see.get("key_mask"), None)
    return evaluated(module, names, leaves(module, arguments, None), lengths, graph, **see), lengths


def evaluated(
    module: CompiledDesign,
    names: Iterable[str],
    tensors: Mapping[str, Tensor],
    lengths: Mapping[str, int],
    graph: Graph | None = None,
    **see: Any,
) -> dict[str, Tensor]:
    """The named steps of the module's graph, or of `graph`, and their dependencies, evaluated by the reference."""
    names = tuple(names)
    graph = needed(module.plan.graph if graph is None else graph, names)
    return module._evaluate(graph, tensors, lengths=lengths, training=False, shown=names, **see)


def needed(graph: Graph, names: Iterable[str]) -> Graph:
    """The part of a graph that some steps depend on; all inputs are included, because they define the batch."""
    names_behind = behind(graph, names)
    tensors = tuple(tensor for tensor in graph.tensors if tensor.role == "input" or tensor.name in names_behind)
    steps = tuple(step for step in graph.steps if step.name in names_behind)
    return replace(graph, tensors=tensors, steps=steps, losses=())


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps of one step: `values` [batch..., legs]; the legs are those of heads, then the query and the key leg.

    >>> import torch
    >>> Maps("A", torch.ones(2, 3, 5, 5) / 5, ("h", "n", "m"))
    Maps of 'A': batch [2], h 3, n 5, m 5
    """

    step: str
    values: Tensor
    legs: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.legs) < 2 or self.values.ndim < len(self.legs):
            shape = f"[batch..., {', '.join(self.legs)}]"
            raise InputError(
                f"maps have shape [batch..., heads..., query, key]; {list(self.values.shape)} is not of shape {shape}."
            )

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(self.values.shape[: self.values.ndim - len(self.legs)])

    @property
    def heads(self) -> tuple[int, ...]:
        """The sizes of the head legs."""
        return tuple(self.values.shape[len(self.batch) : -2])

    @property
    def by_head(self) -> Tensor:
        """The values as [batch, heads, query, key]: batch dimensions are merged into one, head legs into another."""
        batch, heads = torch.Size(self.batch).numel(), torch.Size(self.heads).numel()
        return self.values.reshape(batch, heads, *self.values.shape[-2:])

    @property
    def labels(self) -> list[str]:
        """The name of each head, such as `h 0` or `g 1, j 3`, in the order of `by_head`."""
        places = product(*(range(size) for size in self.heads))
        return [
            ", ".join(f"{leg} {index}" for leg, index in zip(self.legs, indices, strict=False)) for indices in places
        ]

    def __repr__(self) -> str:
        sizes = zip(self.legs, self.values.shape[len(self.batch) :], strict=True)
        return f"Maps of '{self.step}': batch {list(self.batch)}, " + ", ".join(f"{leg} {size}" for leg, size in sizes)


def attention_maps(
    module: CompiledDesign, *inputs: Tensor, mask: Tensor | None = None, key_mask: Tensor | None = None, **named: Tensor
) -> dict[str, Maps]:
    """The attention maps of a call, by step: of all softmax, normalize and keep boxes over the key leg, and blends.

    A blend is a product or sum of such maps that weights values, such as step A of fmm1. A sum over keys that queries
    read as a state, such as KV of hard_lfish, has the map that it implies: the weight of each key's value.
    Inputs, `mask` and `key_mask` as in a call of the module. The diagram is evaluated once, as written, with the
    module's weights and as in evaluation: without dropout and noise. The result is empty for a design without
    attention. Raises InputError.

    >>> import torch, tensornet_attn as ta
    >>> layer = ta.compile(ta.load("gqa", legs={"f": 16}))
    >>> attention_maps(layer, torch.randn(3, 5, 16))
    {'A': Maps of 'A': batch [3], g 2, j 4, n 5, m 5}
    """
    compiled(module, "attention_maps")
    return maps_and_scores(module, inputs, named, mask=mask, key_mask=key_mask)[0]


def attention_scores(
    module: CompiledDesign, *inputs: Tensor, mask: Tensor | None = None, key_mask: Tensor | None = None, **named: Tensor
) -> dict[str, Maps]:
    """The operands of all attention boxes, by step, as Maps: the scores before softmax, scale and mask.

    For mhsa these are Q K^T of each head, including hidden keys. For a normalize or keep box they are its operand, such
    as phi(Q) phi(K)^T. Inputs and masks as in `attention_maps`. Raises InputError.

    >>> import torch, tensornet_attn as ta
    >>> layer = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}))
    >>> x = torch.randn(3, 5, 16)
    >>> scores = attention_scores(layer, x)["A"]
    >>> maps = (scores.values * 8**-0.5).softmax(-1)
    >>> torch.allclose(maps, attention_maps(layer, x)["A"].values)
    True
    """
    compiled(module, "attention_scores")
    return maps_and_scores(module, inputs, named, mask=mask, key_mask=key_mask)[1]


def maps_and_scores(
    module: CompiledDesign, inputs: tuple[Tensor, ...], named: Mapping[str, Tensor], **see: Any
) -> tuple[dict[str, Maps], dict[str, Maps]]:
    """The maps and the scores of one call, each by step; others than boxes have no scores. Raises InputError."""
    graph, implied = with_implied(module.plan.graph)
    operands = {name: attention.of for name, attention in attentions(module.plan.graph).items() if attention.compares}
    steps = {
        step.name: step for step in (*attention_steps(module.plan.graph), *blended_steps(module.plan.graph))
    } | implied
    names = [*(step.name for step in steps.values()), *(use.name for use in operands.values())]
    values, _ = values_of(module, names, inputs, named, graph, **see)
    maps = {name: _maps(graph, name, step.legs, values[step.name]) for name, step in steps.items()}
    return maps, {step: _maps(graph, step, use.legs, values[use.name]) for step, use in operands.items()}


def _maps(graph: Graph, step: str, written: tuple[str, ...], tensor: Tensor) -> Maps:
    heads = without(written, graph.query, graph.key)
    legs = (*heads, graph.query, str(graph.key))
    batch = tensor.ndim - len(legs)
    return Maps(step, tensor.permute([*range(batch), *(batch + written.index(leg) for leg in legs)]), legs)


def as_maps(maps: Any) -> Maps:
    """Converts a tensor [batch..., heads, query, key] to Maps; returns Maps unchanged. Raises InputError."""
    if isinstance(maps, Maps):
        return maps
    if isinstance(maps, torch.Tensor) and maps.ndim >= 2:
        return Maps("maps", maps, ("h", "n", "m")[-min(maps.ndim, 3) :])
    if isinstance(maps, dict):
        raise InputError(f"give the maps of one step, not of {len(maps)}: maps['{next(iter(maps), 'A')}'].")
    of = f"one of shape {list(maps.shape)}" if isinstance(maps, torch.Tensor) else f"a {type(maps).__name__}"
    raise InputError(f"give maps from ta.attention_maps, or a tensor [batch..., heads, query, key], not {of}.")


def mean_maps(maps: Maps | Tensor) -> Tensor:
    """The mean over the batch of each head's map: [heads..., query, key].

    >>> import torch
    >>> mean_maps(torch.stack([torch.eye(2), torch.ones(2, 2)])[:, None]).tolist()
    [[[1.0, 0.5], [0.5, 1.0]]]
    """
    maps = as_maps(maps)
    if not all(maps.batch):
        raise InputError("the batch is empty, so there is no mean map.")
    return maps.by_head.mean(0).reshape(*maps.heads, *maps.values.shape[-2:])


def max_maps(maps: Maps | Tensor) -> Tensor:
    """The elementwise maximum over all heads of one layer, for each sequence: [batch..., query, key].

    Source: after Csordas et al., Few Heads Are Enough (EPA; later SwitchHead), figs. 2, 3 and 4.

    >>> import torch
    >>> max_maps(torch.stack([torch.eye(2), torch.eye(2).flip(0) / 2])).tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """
    maps = as_maps(maps)
    if not maps.by_head.shape[1]:
        raise InputError(f"'{maps.step}' has no heads, so there is no maximum.")
    return maps.by_head.amax(1).reshape(*maps.batch, *maps.values.shape[-2:])


@dataclass(frozen=True, eq=False)
class Selections:
    """The entries that a topk box chose along its leg, largest first; ties in order of index.

    `indices` and `gates`: [batch..., legs, k], with the legs of the step except `leg`, then the k chosen entries of
    `leg`, which has `size` entries. `position`: the sequence leg in `legs`, or None.
    """

    step: str
    leg: str
    size: int
    legs: tuple[str, ...]
    position: str | None
    indices: Tensor
    gates: Tensor

    @property
    def dense(self) -> Tensor:
        """The gates in place, zeros elsewhere: [batch..., legs, leg]."""
        zeros = self.gates.new_zeros(*self.gates.shape[:-1], self.size)
        return zeros.scatter(-1, self.indices, self.gates)

    @property
    def chosen(self) -> Tensor:
        """True for the chosen entries: [batch..., legs, leg]."""
        none = torch.zeros(*self.indices.shape[:-1], self.size, device=self.indices.device, dtype=torch.bool)
        return none.scatter(-1, self.indices, True)

    @property
    def usage(self) -> Tensor:
        """The fraction of batch and positions that chose each expert: [other legs..., leg]; a row sums to k."""
        chosen = self.chosen.float()
        batch = range(chosen.ndim - 1 - len(self.legs))
        over = [*batch, *(len(batch) + i for i, leg in enumerate(self.legs) if leg == self.position)]
        return chosen.mean(over) if over else chosen

    def __repr__(self) -> str:
        words = ", ".join(f"{leg} {size}" for leg, size in zip(self.legs, self.sizes, strict=True))
        return f"Selections of '{self.step}': {self.indices.shape[-1]} of {self.leg} {self.size}, by {words}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of `legs`."""
        return tuple(self.indices.shape[self.indices.ndim - 1 - len(self.legs) : -1])


def expert_selections(
    module: CompiledDesign, *inputs: Tensor, mask: Tensor | None = None, key_mask: Tensor | None = None, **named: Tensor
) -> dict[str, Selections]:
    """The entries that all topk boxes of a design chose in a call, by step: experts, gates, and usage.

    Inputs, `mask` and `key_mask` as in a call of the module. Evaluated as written, as in evaluation. The result is
    empty for a design without a topk box. Raises InputError.

    Source: after Csordas et al., Few Heads Are Enough (EPA; later SwitchHead), fig. 2.

    >>> import torch, tensornet_attn as ta
    >>> layer = ta.compile(ta.load("epa", legs={"f": 16, "h": 2}))
    >>> chosen = expert_selections(layer, torch.randn(3, 7, 16))
    >>> chosen["Gs"]
    Selections of 'Gs': 2 of e 5, by m 7, h 2
    >>> chosen["Gs"].indices.shape, chosen["Gs"].usage.shape
    (torch.Size([3, 7, 2, 2]), torch.Size([2, 5]))
    """
    graph = compiled(module, "expert_selections").plan.graph
    steps = topk_steps(graph)
    names = [step.name for step in steps]
    values, lengths = values_of(module, names, inputs, named, mask=mask, key_mask=key_mask)
    return {step.name: _chosen(graph, step, values, lengths) for step in steps}


def _chosen(graph: Graph, step: Step, values: dict[str, Tensor], lengths: dict[str, int]) -> Selections:
    box: Any = step.op
    operands = dict(box.operands)
    legs = without(step.legs, box.leg)
    by = operands.get("by") or box.of
    gate = aligned(values[step.name], step.legs, (*legs, box.leg))
    order, gate = torch.broadcast_tensors(aligned(values[by.name], by.legs, (*legs, box.leg)), gate)
    numbers = {name: int(arithmetic.evaluate(box.number(name), graph.values)) for name in groups_of(box)}
    if numbers:
        order = in_best_groups(order, numbers["groups"], numbers["k_groups"], -1, numbers.get("k_in_group", 1))
    count = int(arithmetic.evaluate(box.number("k"), {**graph.values, **lengths}))
    indices = order.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    position = next((leg for leg in legs if graph.leg[leg].sequence), None)
    return Selections(step.name, box.leg, gate.shape[-1], legs, position, indices, gate.gather(-1, indices))
