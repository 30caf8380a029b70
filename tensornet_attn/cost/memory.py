"""Memory of a primitive graph: bytes each step moves, bytes that live while it runs, floats kept for backward.

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
"""

from __future__ import annotations

from tensornet_attn.cost.kernels import SAVED_BY_KERNELS
from tensornet_attn.cost.scene import HELD, Scene
from tensornet_attn.graph.model import Box, Step, Use
from tensornet_attn.ops import OPS

Saved = dict[str, int]  # what is kept, by the name of its memory: numbers


def moved(scene: Scene, step: Step) -> int:
    """Numbers read and written by a step."""
    if scene.view(step):
        return 0
    return scene.elements(step) + sum(scene.elements(use) for use in scene.distinct(step.op.uses))


def live(scene: Scene) -> dict[str, int]:
    """Numbers that stand in memory while each step runs, by step."""
    held = {scene.storage[t.name] for t in scene.graph.tensors if t.role != "noise" or t.always}
    fixed = sum(scene.stored[name] for name in held)
    last = {scene.storage[use.name]: i for i, step in enumerate(scene.graph.steps) for use in step.op.uses}
    last[scene.storage[scene.graph.output]] = len(scene.graph.steps)
    found, standing = {}, set()
    for i, step in enumerate(scene.graph.steps):
        if scene.storage[step.name] == step.name:
            standing.add(step.name)
        found[step.name] = fixed + sum(scene.stored[name] for name in standing)
        standing = {name for name in standing if last.get(name, i) > i}
    return found


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
