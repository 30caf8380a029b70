"""What packed calls of a design need to know of its diagram, and what padding costs them."""

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

CALL = 3e-4  # seconds that a call takes whatever its work
LENGTH = 256  # at twice this, and at this, work is counted


@dataclass(frozen=True)
class Packing:
    """A diagram as packed calls see it: plain data, which torch.compile can read.

    `inputs`: the legs of each. `axis`: of the query leg in the output, without a batch dimension. `pairs`: whether the
    output has both sequence legs. `read`: whether it is made of inputs. `keyed`: whether keys are positions of the
    documents, not rows of their own. `evaluation`: what padding changes of the output; `everything`: of losses and
    states too.
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
    """What a sequence of a length takes, in calls that do nothing: a polynomial of degree two through counted FLOPs."""
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
