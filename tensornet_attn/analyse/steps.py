"""Which steps of a design the analyses look at, and their values: computed as written, in evaluation, all at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from tensornet_attn.cost.experts import topk_of
from tensornet_attn.errors import InputError
from tensornet_attn.graph.attention import attentions, behind
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.nn.module import CompiledDesign, leaves

Tensor = torch.Tensor


def attention_steps(graph: Graph) -> tuple[Step, ...]:
    """The boxes whose values are attention maps: softmax, normalize or keep over the key leg, with the query leg."""
    return tuple(found.box for found in attentions(graph).values() if found.compares)


def topk_steps(graph: Graph) -> tuple[Step, ...]:
    return tuple(step for step in graph.steps if topk_of(graph, step.name) is not None)


def compiled(value: Any, what: str) -> CompiledDesign:
    """The module, where it is a compiled design. Raises InputError."""
    if not isinstance(value, CompiledDesign):
        raise InputError(f"{what} takes a compiled design, as ta.compile makes it, not a {type(value).__name__}.")
    return value


@torch.no_grad()
def values_of(
    module: CompiledDesign,
    names: Iterable[str],
    inputs: tuple[Any, ...],
    named: Mapping[str, Tensor] | None = None,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    noise: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Values by name, [batch..., legs as written], and the lengths of the call. Raises InputError.

    As in evaluation whatever the module's mode, so that dropout and noise leave the maps alone.
    """
    given = module._signature.ordered(inputs, named or {})
    lengths = module._signature.check(given, mask, key_mask, noise)
    tensors = leaves(module, given, noise)
    return evaluated(module, names, tensors, lengths, mask=mask, key_mask=key_mask), lengths


def evaluated(
    module: CompiledDesign, names: Iterable[str], tensors: Mapping[str, Tensor], lengths: Mapping[str, int], **see: Any
) -> dict[str, Tensor]:
    """The steps named and what they are made of, evaluated by the reference."""
    names = tuple(names)
    graph = needed(module.plan.graph, names)
    return module._evaluate(graph, tensors, lengths=lengths, training=False, shown=names, **see)


def needed(graph: Graph, names: Iterable[str]) -> Graph:
    """The part of a graph that some steps depend on; all inputs stay, because they say what the batch is."""
    wanted = behind(graph, names)
    tensors = tuple(tensor for tensor in graph.tensors if tensor.role == "input" or tensor.name in wanted)
    steps = tuple(step for step in graph.steps if step.name in wanted)
    return replace(graph, tensors=tensors, steps=steps, losses=())
