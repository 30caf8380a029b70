"""Values and gradients of a graph by the reference, those of weights side by side and their parts as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tensornet_attn.graph.graph import Box, Contraction, Graph, Kernel, Step, Use
from tensornet_attn.reference import ReferenceRun, add_leaves, aligned, box, contraction


def values(
    graph: Graph, leaves: Mapping[str, Tensor], lengths: Mapping[str, int], **masks: Tensor
) -> dict[str, Tensor]:
    """Every tensor and step by name; weights are given as they are stored."""
    run = ReferenceRun(graph, dict(leaves), dict(lengths), False, masks.get("mask"), masks.get("key_mask"))
    add_leaves(run)
    for step in graph.steps:
        run.values[step.name] = _value(run, step)
    return run.values


def _value(run: ReferenceRun, step: Step) -> Tensor:
    if isinstance(step.op, Kernel):
        return _joined(run, step)
    if isinstance(step.op, Box) and step.op.kind == "softmax" and step.op.other is not None:
        return _joint(run, step, step.op)
    return contraction(run, step) if isinstance(step.op, Contraction) else box(run, step)


def _joint(run: ReferenceRun, step: Step, op: Box) -> Tensor:
    """A softmax over two legs: over the keys of the logsumexp over the other, times the share of each entry in that."""
    use = op.operand("of")
    legs = tuple(leg for leg in use.legs if leg != op.other)
    total = box(run, Step("total", Box("logsumexp", op.other, (("of", use),)), legs))
    run.values["total"] = total
    outer = replace(op, other=None, operands=(("of", Use("total", legs)),))
    shares = aligned(run.values[use.name], use.legs, step.legs) - aligned(total, legs, step.legs)
    return shares.exp() * aligned(box(run, Step(step.name, outer, legs)), legs, step.legs)


def _joined(run: ReferenceRun, step: Step) -> Tensor:
    """The parts, each spread over the legs that all share, its own legs as one, along the last leg."""
    assert isinstance(step.op, Kernel)
    shared, found = step.legs[:-1], []
    for part in step.op.body:
        own = tuple(leg for leg in part.legs if leg not in shared)
        value = aligned(contraction(run, part), part.legs, (*shared, *own))
        batch = value.shape[: value.dim() - len(shared) - len(own)]
        found.append(value.expand(*batch, *run.sizes((*shared, *own))).reshape(*batch, *run.sizes(shared), -1))
    most = torch.broadcast_shapes(*(value.shape[:-1] for value in found))
    return torch.cat([value.expand(*most, -1) for value in found], -1)


def results(
    graph: Graph,
    leaves: Mapping[str, Tensor],
    lengths: Mapping[str, int],
    states: Mapping[str, Tensor] | None = None,
    **masks: Any,
) -> list[Tensor]:
    """The output, what states become, and the gradients of a random projection of the output to every leaf."""
    found = values(graph, {**leaves, **(states or {})}, lengths, **masks)
    y = found[graph.output]
    weight = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(5))
    return [
        y,
        *(found[step] for _, step in graph.updates),
        *torch.autograd.grad((y * weight).sum(), list(leaves.values())),
    ]
