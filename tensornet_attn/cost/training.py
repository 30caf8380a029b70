"""Multiply-adds of a training step: forward, and backward for what gets a gradient.

A product of two costs one product of the same size for each factor that gets a gradient: 3 times its forward where both
do. So do fused operations, whose operands all get one. What a kernel computes again in the backward is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensornet_attn.cost.scene import Scene
from tensornet_attn.cost.sizes import sizes_at, whole
from tensornet_attn.cost.work import macs
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.graph.pairs import split_products


def training_macs(graph: Graph, lengths: Mapping[str, int], batch: int = 1) -> int:
    """MACs of forward and backward at these lengths of the sequence legs, of all inputs and trainable weights.

    Raises InputError where a length or the batch is no positive whole number, or a length is above a leg's maximum.
    """
    scene = Scene(split_products(graph), sizes_at(graph, lengths), whole("batch", batch))
    return sum(macs(scene, step) * (1 + _gradients(scene, step)) for step in scene.graph.steps)


def _gradients(scene: Scene, step: Step) -> int:
    """How many products of the step's size its backward takes."""
    if step.name not in scene.learned:
        return 0
    if step.contraction is None:
        return 2
    return sum(use.name in scene.learned for use in step.op.uses)
