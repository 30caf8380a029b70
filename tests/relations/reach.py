"""What random designs reach: boxes, masks, roles of tensors, kinds of kernels, and forms that faults have hidden in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tensornet_attn.compiler import plan_of
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Function, Graph
from tensornet_attn.ops import MASKS, OPS
from tensornet_attn.spec import load
from tests.regions import kernels_of
from tests.relations.text import USE, Data, Slot, sized_legs, slots, sum_of

Reach = dict[str, Counter[str]]
FORMS = (
    "softmax over several legs",
    "several legs, one of them summed",
    "several readers of one map",
    "two maps of the same scores",
    "product over keys",
    "convolution of scores",
    "convolution of keys",
    "topk over keys",
    "topk over heads",
    "mask and sink",
    "keys of their own",
    "more than one batch of heads",
)
KERNELS = "attention band blockwise experts features join linear states sums total".split()


def reach(designs: Iterable[Data]) -> Reach:
    """How many of the designs have each thing of the language."""
    counts: Reach = {part: Counter() for part in ("boxes", "masks", "tensors", "forms", "kernels")}
    for data in designs:
        graph = build(load(data))
        boxes = [step.box for step in graph.steps if step.box is not None]
        counts["boxes"].update({box.kind for box in boxes})
        counts["masks"].update({name for step in graph.steps for mask in graph.masks(step) for name in masks_in(mask)})
        counts["tensors"].update(roles(graph))
        counts["forms"].update(forms(data, graph))
        counts["kernels"].update(kernels(graph))
    return counts


def masks_in(mask: Function) -> Iterator[str]:
    yield mask.name
    for part in mask.arguments:
        if isinstance(part, Function):
            yield from masks_in(part)


def roles(graph: Graph) -> set[str]:
    extra = {"loss"} if graph.losses else set()
    extra |= {"frozen"} if any(tensor.frozen for tensor in graph.tensors) else set()
    extra |= {"default"} if any(tensor.default for tensor in graph.tensors) else set()
    return {tensor.role for tensor in graph.tensors} | extra


def kernels(graph: Graph) -> set[str]:
    """The kinds of kernels of a plan, and of kernels inside them."""
    return {kernel.kind for kernel in kernels_of(plan_of(graph, "torch").schedule.steps)}


def forms(data: Data, graph: Graph) -> set[str]:
    """The forms of a design that faults have hidden in."""
    pair, boxes = {graph.query, graph.key}, [step for step in graph.steps if step.box is not None]
    maps = [step for step in boxes if graph.masked(step) and pair <= {*step.legs}]
    kinds = [(step.box.kind, step.box.leg, pair <= {*step.legs}) for step in boxes]  # type: ignore[union-attr]
    joint = [
        slot for slot in slots(data) if isinstance(slot.value, dict) and graph.key in list_of(slot.value, "softmax")
    ]
    rows = [
        graph.key not in step.legs
        and any(graph.key in use.legs and graph.query not in use.legs for use in step.op.uses)
        for step in graph.steps
        if step.contraction is not None and not any(pair <= {*use.legs} for use in step.op.uses)
    ]
    tests = {
        "softmax over several legs": bool(joint),
        "several legs, one of them summed": any(sums_one(data, slot) for slot in joint),
        "several readers of one map": any(len(graph.readers.get(step.name, ())) > 1 for step in maps),
        "two maps of the same scores": len({step.op.uses[0].name for step in maps}) < len(maps),
        "product over keys": any(rows),
        "convolution of scores": any(kind == "conv" and paired for kind, _, paired in kinds),
        "convolution of keys": any(kind == "conv" and leg == graph.key for kind, leg, _ in kinds),
        "topk over keys": ("topk", graph.key) in {(kind, leg) for kind, leg, _ in kinds},
        "topk over heads": any(kind == "topk" and graph.leg[str(leg)].kind == "head" for kind, leg, _ in kinds),
        "mask and sink": any("sink" in dict(step.box.operands) and graph.masks(step) for step in maps),  # type: ignore[union-attr]
        "keys of their own": graph.key is not None and not graph.tied,
        "more than one batch of heads": len([leg for leg in graph.legs if leg.kind == "head"]) > 1,
    }
    return {name for name, holds in tests.items() if holds}


def list_of(box: Data, kind: str) -> list[str]:
    """The legs of a box of this kind that runs along several."""
    return box[kind] if isinstance(box.get(kind), list) and len(box[kind]) > 1 else []


def sums_one(data: Data, slot: Slot) -> bool:
    """Whether a product that reads a joint softmax sums over one of its legs besides the keys."""
    for value in data["diagram"].values():
        if isinstance(value, str) and "->" in value and slot.step in (match[1] for match in USE.finditer(value)):
            legs = sum_of(value).legs
            if any(leg not in legs for leg in slot.value["softmax"] if leg in sized_legs(data)):
                return True
    return False


EVERYTHING: dict[str, set[str]] = {
    "boxes": {kind for kind, operation in OPS.items() if operation.model is not None},
    "masks": {*MASKS, "or", "not"},
    "tensors": {"input", "weight", "constant", "noise", "state", "loss", "frozen", "default"},
    "forms": {*FORMS},
    "kernels": {*KERNELS},
}


def to_text(counts: Reach) -> str:
    """The counts as a table, what no design has included."""
    lines = []
    for part, wanted in EVERYTHING.items():
        names = sorted(wanted | counts[part].keys(), key=lambda name: -counts[part][name])
        lines.append(f"{part}: " + ", ".join(f"{name} {counts[part][name]}" for name in names))
    return "\n".join(lines)
