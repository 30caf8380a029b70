"""The facts about a diagram that packed calls need, and the cost of padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tensornet_attn.cost.devices import DEVICES
from tensornet_attn.cost.report import cost_of
from tensornet_attn.graph.attention import behind
from tensornet_attn.graph.model import Graph
from tensornet_attn.graph.padding import Padding, padding_of
from tensornet_attn.nn.documents import Work

CALL = 3e-4  # seconds per call, independent of its work
LENGTH = 256  # work is counted at this length and at twice this length


@dataclass(frozen=True)
class Packing:
    """A diagram as seen by packed calls, as plain data that torch.compile can read.

    `inputs`: legs of each input. `axis`: that of the query leg in the output, without batch. `pairs`: whether the
    output has both sequence legs. `read`: whether the output depends on inputs. `keyed`: whether keys are positions of
    the documents. `evaluation`: what padding changes in the output; `everything`: in losses and states too.
    """

    design: str
    query: str
    key: str | None
    inputs: tuple[tuple[str, ...], ...]
    output: str
    axis: int
    pairs: bool
    read: bool
    keyed: bool
    tied: bool
    states: tuple[str, ...]
    evaluation: Padding
    everything: Padding

    @staticmethod
    def of(graph: Graph) -> Packing:
        legs, query = graph.legs_of(graph.output), str(graph.query)
        inputs = tuple(tensor.legs for tensor in graph.of_role("input"))
        read = any(tensor.name in behind(graph, (graph.output,)) for tensor in graph.of_role("input"))
        keyed = graph.tied or any(graph.key in own for own in inputs)
        states = tuple(state for state, _ in graph.updates)
        evaluation, everything = padding_of(graph, (graph.output,)), padding_of(graph, graph.results)
        return Packing(
            graph.name, query, graph.key, inputs, graph.output, legs.index(query), graph.key in legs, read, keyed,
            graph.tied, states, evaluation, everything,
        )  # fmt: skip


def work_of(module: Any, device: torch.device) -> Work:
    """Returns length -> work of a sequence, in units of an empty call: a quadratic polynomial fitted to FLOPs."""
    known = module.__dict__.setdefault("_works", {})
    if device.type not in known:
        target, schedule = module.plan.target, module.plan.schedule
        rate = DEVICES["cpu"].rate if device.type == "cpu" else target.device.rate
        most = min((leg.maximum for leg in schedule.legs if leg.sequence and leg.maximum), default=2 * LENGTH)
        half = max(1, min(LENGTH, most // 2))
        one, two = (
            cost_of(module.plan.graph, schedule, n, n).best.evaluation.flops / rate / CALL for n in (half, 2 * half)
        )
        square = max(0.0, two - 2 * one) / (2 * half**2)
        known[device.type] = (one - square * half**2) / half, square
    each, square = known[device.type]
    return lambda length: each * length + square * length**2
