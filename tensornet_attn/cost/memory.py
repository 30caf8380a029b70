"""Memory of a primitive graph: what each step moves, what lives while it runs, what backward keeps, and the peak.

Moved: each distinct operand is read once and the result written once; a view moves nothing. Noise and masks that are
made on the way are not counted.

Live (forward, evaluation): the tensors of the module and the inputs throughout, each result from its step to its last
reader, the output to the end; noise only where it is drawn in evaluation too. Scratch space of a step is not counted.

Saved: the distinct tensors, weights, constants and states left out, that backward needs when inputs and trainable
weights get gradients, as plain PyTorch keeps them:

    product of two               each factor, where the other one gets a gradient; a coefficient is no tensor
    linear combination           nothing
    fused attention              query, key, value, result, one log-sum-exp for each row of scores
    other fused operations       operands and result, and what their kind adds
    boxes                        what `ops` say: operands, the result, a number for each row, k positions for each row
    softmax with dropout         also its result before dropout

Boolean masks, also those of dropout, are no floats and are left out.

Peak, as a plan is priced, forward: tensors of the module and inputs, results from their step to their last reader, what
the backward keeps, scratch space of the running step. Backward: the same that is still kept, and the gradient of
everything that stood while the step ran forward; gradients of weights stay to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensornet_attn.cost.kernels import SAVED_BY_KERNELS
from tensornet_attn.cost.scene import HELD, Scene
from tensornet_attn.graph.model import Box, Step, Use
from tensornet_attn.ops import OPS

Saved = dict[str, int]  # what is kept, by the name of its memory: numbers
Scratch = Callable[[Scene, Step], tuple[int, int]]  # numbers beside operands and result: forward, backward


def moved(scene: Scene, step: Step) -> int:
    """Numbers read and written by a step."""
    if scene.view(step):
        return 0
    return scene.elements(step) + sum(scene.elements(use) for use in scene.distinct(step.op.uses))


def live(scene: Scene) -> dict[str, int]:
    """Numbers that stand in memory while each step runs, by step."""
    held = {scene.storage[t.name] for t in scene.graph.tensors if t.role != "noise" or t.always}
    fixed = sum(scene.stored[name] for name in held)
    last, found, standing = _last(scene), {}, set()
    for i, step in enumerate(scene.graph.steps):
        if scene.storage[step.name] == step.name:
            standing.add(step.name)
        found[step.name] = fixed + sum(scene.stored[name] for name in standing)
        standing = {name for name in standing if last.get(name, i) > i}
    return found


def _last(scene: Scene) -> dict[str, int]:
    """The place of the last reader of each memory."""
    last = {scene.storage[use.name]: i for i, step in enumerate(scene.graph.steps) for use in step.op.uses}
    ends = (scene.graph.output, *scene.graph.also)
    return last | {scene.storage[name]: len(scene.graph.steps) for name in ends}


@dataclass(frozen=True)
class Peak:
    """The most numbers that live at once, and the step that runs then."""

    numbers: int
    step: str


def peak(scene: Scene, backward: bool, scratch: Scratch) -> Peak:
    """The peak of a scene whose graph is primitive, forward alone or with its backward."""
    storage, stored, last = scene.storage, scene.stored, _last(scene)
    held = {tensor.name for tensor in scene.graph.tensors if tensor.role in HELD}
    weights = sum(stored[name] for name in held)
    trained = sum(stored[t.name] for t in scene.graph.of_role("weight") if not t.frozen)  # and so their gradients
    drawn = {t.name for t in scene.graph.of_role("noise") if t.name in last and (backward or t.always)}
    inputs = {storage[tensor.name] for tensor in scene.graph.of_role("input")}
    kept: Saved = {}
    found, standing = [Peak(weights, "the weights")], (inputs | drawn) - held
    for i, step in enumerate(scene.graph.steps):
        standing |= {storage[step.name]} - held
        own, own_backward = scratch(scene, step)
        if backward:
            kept |= saved(scene, step)
        alive = kept | {name: stored[name] for name in standing}
        found.append(Peak(weights + sum(alive.values()) + own, step.name))
        if backward:
            gradients = sum(stored[name] for name in standing if name in scene.learned)
            found.append(Peak(weights + trained + sum(kept.values()) + gradients + own_backward, step.name))
        standing = {name for name in standing if last.get(name, i) > i or name in inputs}
    return max(found, key=lambda one: one.numbers)


def saved(scene: Scene, step: Step) -> Saved:
    """What the backward of a step needs; the same memory has the same name in every step."""
    if step.name not in scene.learned:
        return {}
    if step.contraction is not None:
        if len(step.contraction.terms) != 1 or len(step.contraction.uses) != 2:
            return {}
        left, right = step.contraction.uses
        return _kept(scene, [a for a, b in ((left, right), (right, left)) if b.name in scene.learned])
    if step.box is not None:
        return _box(scene, step, step.box)
    if step.kernel is not None:
        kind = step.kernel.kind
        own = SAVED_BY_KERNELS[kind](scene, step) if kind in SAVED_BY_KERNELS else {}
        return _kept(scene, step.kernel.uses) | {step.name: scene.stored[step.name]} | own
    attention = step.attention
    assert attention is not None
    batch = scene.batch if step.name in scene.batched else 1
    rows = batch * scene.size(leg for leg in attention.scores if leg not in (attention.leg, *attention.beside))
    return _kept(scene, attention.uses) | {step.name: scene.stored[step.name], f"{step.name}: log-sum-exp": rows}


def _box(scene: Scene, step: Step, box: Box) -> Saved:
    of = dict(box.operands).get("of")
    if of is not None and of.name not in scene.learned:
        return {}
    found: Saved = {}
    for i, kind in enumerate(OPS[box.kind].saved(box)):
        if kind == "result":
            dropout = dict(box.numbers).get("dropout")
            inside = dropout is not None and scene.number(dropout) != 0  # then the result before it is another tensor
            found[f"{step.name}: before dropout" if inside else step.name] = scene.stored[step.name]
        elif kind in ("row", "chosen"):
            each = int(scene.number(box.number("k"))) if kind == "chosen" else 1
            found[f"{step.name}: {kind} {i}"] = scene.elements(box.operand("of"), without=box.leg) * each
        else:
            found |= _kept(scene, (box.operand(kind),))
    return found | OPS[box.kind].also_saved(scene, step, box)


def _kept(scene: Scene, uses: tuple[Use, ...] | list[Use]) -> Saved:
    held = {tensor.name for tensor in scene.graph.tensors if tensor.role in HELD}
    names = (scene.storage[use.name] for use in uses)
    return {name: scene.stored[name] for name in names if name not in held}
