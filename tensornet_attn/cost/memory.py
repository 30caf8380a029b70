"""Memory of a primitive graph: data moved by each step, live tensors, tensors saved for backward, and the peak.

Moved: each distinct operand is read once and the result written once; a view moves nothing. Noise and masks that are
created in a step are not counted.

Live (forward, evaluation): tensors of the module and inputs at all times, each result from its step to its last
reader, the output to the end; noise only if it is drawn in evaluation too. Scratch memory of a step is not counted.

Saved: the distinct tensors, except weights, constants and states, that backward needs if inputs and trainable weights
get gradients, as in plain PyTorch:

    product of two               each factor, if the other one gets a gradient; coefficients are not tensors
    linear combination           nothing
    fused attention              query, key, value, result at one width, one log-sum-exp per row of scores
    attention within a band      the same of its blocks, with copies of keys and values
    features side by side        what the products of their parts save
    grouped experts              the order of all experts, chosen gates, rows of operands, what boxes between them save
    linear attention             operands, before maps that its tiles compute, and states; chunks copy the operands
    other fused operations       operands and result, and additions by kind
    boxes                        by `ops`: operands, the result, one number per row, k positions per row
    scans in blocks              operands, and the states before each block; no tensor has the other states
    softmax with dropout         also its result before dropout

Boolean masks, including those of dropout, are not floats and are not counted.

Peak, for the price of a plan. Forward: tensors of the module and inputs, results from their step to their last reader,
saved tensors, scratch memory of the running step. Backward: tensors that are still saved, and the gradients of all
tensors that were live when the step ran forward; gradients of weights live to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensornet_attn.cost.experts import held
from tensornet_attn.cost.kernels import cost_of
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.graph.graph import Box, Step, Use
from tensornet_attn.ops import OPS

Saved = dict[str, int]  # elements, by the name of the memory
Scratch = Callable[[SizedGraph, Step], tuple[int, int]]  # elements besides operands and result: forward, backward


def moved(scene: SizedGraph, step: Step) -> int:
    """Elements read and written by a step."""
    if scene.view(step):
        return 0
    return scene.elements(step) + sum(scene.elements(use) for use in scene.distinct(step.uses))


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


def peak(scene: SizedGraph, backward: bool, scratch: Scratch) -> Peak:
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
        scratch_forward, scratch_backward = scratch(scene, step)
        if backward:
            keeps |= saved(scene, step)
        alive = keeps | {name: stored[name] for name in standing}
        peaks.append(Peak(weights + sum(alive.values()) + scratch_forward, step.name))
        if backward:
            gradients = sum(stored[name] for name in standing if name in scene.learned)
            peaks.append(Peak(weights + trained + sum(keeps.values()) + gradients + scratch_backward, step.name))
        standing = {name for name in standing if last_reader.get(name, index) > index or name in inputs}
    return max(peaks, key=lambda candidate: candidate.numbers)


def saved(scene: SizedGraph, step: Step) -> Saved:
    """The tensors that the backward of a step needs; the same memory has the same name in every step."""
    if step.name not in scene.learned or step.name in scene.in_tiles:
        return {}
    if step.contraction is not None:
        if len(step.terms) != 1 or len(step.uses) != 2:
            return {}
        left, right = step.uses
        return kept(scene, [a for a, b in ((left, right), (right, left)) if b.name in scene.learned])
    if step.box is not None:
        return _box(scene, step, step.box)
    operands = cost_of(step).kept(scene, step)
    operands = kept(scene, step.uses) | {step.name: scene.stored[step.name]} if operands is None else operands
    return operands | cost_of(step).saved(scene, step)


def _box(scene: SizedGraph, step: Step, box: Box) -> Saved:
    of = dict(box.operands).get("of")
    if of is not None and of.name not in scene.learned:
        return {}
    memories: Saved = {}
    for number, kind in enumerate(OPS[box.kind].saved(box)):
        if kind == "result":
            dropout = dict(box.numbers).get("dropout")
            drops = dropout is not None and scene.number(dropout) != 0  # the result before dropout is another tensor
            memories[f"{step.name}: before dropout" if drops else step.name] = scene.stored[step.name]
        elif kind == "inner":
            memories[f"{step.name}: inner"] = scene.stored[step.name]
        elif kind in ("row", "chosen"):
            count = int(scene.number(box.number("k"))) if kind == "chosen" else 1
            memories[f"{step.name}: {kind} {number}"] = scene.elements(box.of, without=box.leg) * count
        else:
            memories |= kept(scene, (box.operand(kind),))
    return memories | OPS[box.kind].also_saved(scene, step, box)


def kept(scene: SizedGraph, uses: tuple[Use, ...] | list[Use]) -> Saved:
    """The memories of these uses, without those of the module."""
    module_tensors = held(scene.graph)
    names = (scene.storage[use.name] for use in uses)
    return {name: scene.stored[name] for name in names if name not in module_tensors}
