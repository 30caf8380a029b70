"""Memory of a primitive graph: live tensors, tensors saved for backward, and the peak.

Live (forward, evaluation): tensors of the module and inputs at all times, each result from its step to its last
reader, the output to the end; noise only if it is drawn in evaluation too. Scratch memory of a step is not counted.

Peak, for the price of a plan. Forward: tensors of the module and inputs, results from their step to their last reader,
saved tensors, scratch memory of the running step. Backward: tensors that are still saved, and the gradients of all
tensors that were live when the step ran forward; gradients of weights live to the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.scene import SizedGraph, held
from tensornet_attn.cost.work import Saved, saved, work_of


def live(scene: SizedGraph) -> dict[str, int]:
    """Elements in memory while each step runs, by step."""
    fixed_names = {scene.storage[t.name] for t in scene.graph.tensors if t.role != "noise" or t.always}
    fixed = sum(scene.stored[name] for name in fixed_names)
    last_reader, elements, standing = _last(scene), {}, set()
    for index, step in enumerate(scene.graph.steps):
        if scene.storage[step.name] == step.name:
            standing.add(step.name)
        elements[step.name] = fixed + sum(scene.stored[name] for name in standing)
        standing = {name for name in standing if last_reader.get(name, index) > index}
    return elements


def _last(scene: SizedGraph) -> dict[str, int]:
    """The index of the last reader of each memory."""
    last = {scene.storage[use.name]: index for index, step in enumerate(scene.graph.steps) for use in step.uses}
    ends = (scene.graph.output, *scene.graph.also)
    return last | {scene.storage[name]: len(scene.graph.steps) for name in ends}


@dataclass(frozen=True)
class Peak:
    """The maximum number of live elements, and the step that runs at that time."""

    numbers: int
    step: str


def peak(scene: SizedGraph, backward: bool, device: Device) -> Peak:
    """The peak of a scene with a primitive graph, for forward alone or with backward."""
    storage, stored, last_reader = scene.storage, scene.stored, _last(scene)
    module_tensors = held(scene.graph)
    weights = sum(stored[name] for name in module_tensors)
    trained = sum(stored[t.name] for t in scene.graph.of_role("weight") if not t.frozen)  # size of their gradients
    drawn = {t.name for t in scene.graph.of_role("noise") if t.name in last_reader and (backward or t.always)}
    inputs = {storage[tensor.name] for tensor in scene.graph.of_role("input")}
    keeps: Saved = {}
    peaks, standing = [Peak(weights, "the weights")], (inputs | drawn) - module_tensors
    for index, step in enumerate(scene.graph.steps):
        standing |= {storage[step.name]} - module_tensors
        scratch_forward, scratch_backward = work_of(scene, step).scratch(device)
        if backward:
            keeps |= saved(scene, step)
        alive = keeps | {name: stored[name] for name in standing}
        peaks.append(Peak(weights + sum(alive.values()) + scratch_forward, step.name))
        if backward:
            gradients = sum(stored[name] for name in standing if name in scene.learned)
            peaks.append(Peak(weights + trained + sum(keeps.values()) + gradients + scratch_backward, step.name))
        standing = {name for name in standing if last_reader.get(name, index) > index or name in inputs}
    return max(peaks, key=lambda candidate: candidate.numbers)
