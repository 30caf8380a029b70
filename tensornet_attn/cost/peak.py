"""The predicted peak of memory while a primitive graph runs, forward alone or with its backward.

Forward: tensors of the module and inputs, results from their step to their last reader, what the backward keeps (see
`memory.py`), scratch space of the running step. Backward: the same that is still kept, and the gradient of everything
that stood while the step ran forward; gradients of weights stay to the end. Scratch space is what the caller says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensornet_attn.cost.memory import Saved, saved
from tensornet_attn.cost.scene import HELD, Scene
from tensornet_attn.graph.model import Step

Scratch = Callable[[Scene, Step], tuple[int, int]]  # numbers beside operands and result: forward, backward


@dataclass(frozen=True)
class Peak:
    """The most numbers that live at once, and the step that runs then."""

    numbers: int
    step: str


def peak(scene: Scene, backward: bool, scratch: Scratch) -> Peak:
    """The peak of a scene whose graph is primitive."""
    held = {tensor.name for tensor in scene.graph.tensors if tensor.role in HELD}
    weights = sum(scene.stored[name] for name in held)
    kept: Saved = {}
    trained = sum(scene.stored[t.name] for t in scene.graph.of_role("weight") if not t.frozen)  # and so their gradients
    found = [Peak(weights, "the weights")]
    for step, standing in _standing(scene, held, backward):
        own, own_backward = scratch(scene, step)
        if backward:
            kept = kept | saved(scene, step)
        alive = kept | {name: scene.stored[name] for name in standing}
        found.append(Peak(weights + sum(alive.values()) + own, step.name))
        if backward:
            gradients = sum(scene.stored[name] for name in standing if name in scene.learned)
            found.append(Peak(weights + trained + sum(kept.values()) + gradients + own_backward, step.name))
    return max(found, key=lambda one: one.numbers)


def _standing(scene: Scene, held: set[str], training: bool) -> list[tuple[Step, set[str]]]:
    """Each step with the memory that inputs, noise and results stand in while it runs forward."""
    steps, storage = scene.graph.steps, scene.storage
    last = {storage[use.name]: i for i, step in enumerate(steps) for use in step.op.uses}
    last[storage[scene.graph.output]] = len(steps)
    drawn = {t.name for t in scene.graph.of_role("noise") if t.name in last and (training or t.always)}
    inputs = {storage[tensor.name] for tensor in scene.graph.of_role("input")}
    found, standing = [], (inputs | drawn) - held
    for i, step in enumerate(steps):
        if storage[step.name] not in held:
            standing = standing | {storage[step.name]}
        found.append((step, standing))
        standing = {name for name in standing if last.get(name, i) > i or name in inputs}
    return found
