"""What an evaluation of the oracle knows: the graph, the values so far, and the call they belong to, with its masks."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.graph.hidden import visible_to
from tensornet_attn.graph.model import Function, Graph, Seen, Step, Visible
from tensornet_attn.ir.arithmetic import Arith, evaluate
from tensornet_attn.ops import OPS
from tensornet_attn.ops.operation import aligned, axis_of

Tensor = torch.Tensor
Legs = tuple[str, ...]


@dataclass
class Run:
    """One evaluation: the values so far, and the call they belong to."""

    graph: Graph
    values: dict[str, Tensor]
    lengths: dict[str, int]
    training: bool
    mask: Tensor | None
    key_mask: Tensor | None

    def number(self, tree: Arith) -> int | float:
        return evaluate(tree, self.graph.values | self.lengths)

    def size(self, leg: str) -> int:
        """The size at run time: a relative leg without a reach runs from 1 - n to m - 1."""
        if self.graph.leg[leg].sequence:
            return self.lengths[leg]
        return self.graph.leg[leg].size or self.lengths[self.graph.query] + self.lengths[self.graph.key] - 1

    def sizes(self, legs: Legs) -> list[int]:
        return [self.size(leg) for leg in legs]

    def positions(self, leg: str) -> Tensor:
        """Where the entries of a leg stand: the last query stands at the last key."""
        kind, reach, first = self.graph.leg[leg].kind, self.graph.leg[leg].reach, 0
        if kind == "query":
            first = self.first_query
        elif kind == "relative":
            first = 1 - self.lengths[self.graph.query] if reach is None else -reach
        return torch.arange(first, first + self.size(leg), device=self.device)

    @property
    def first_query(self) -> int:
        """The position of the first query, m - n; 0 in a design without keys."""
        n = self.lengths.get(self.graph.query, 0)
        return self.lengths.get(self.graph.key, n) - n

    @property
    def inputs(self) -> list[Tensor]:
        return [self.values[tensor.name] for tensor in self.graph.of_role("input")]

    @property
    def device(self) -> torch.device:
        return self.inputs[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self.inputs[0].dtype

    @property
    def batch(self) -> tuple[int, ...]:
        ranks = [len(tensor.legs) for tensor in self.graph.of_role("input")]
        batches = [value.shape[: value.ndim - rank] for value, rank in zip(self.inputs, ranks, strict=True)]
        return tuple(torch.broadcast_shapes(*batches))

    # What boxes compute with

    def dropped(self, x: Tensor, probability: Arith) -> Tensor:
        return torch.nn.functional.dropout(x, self.number(probability), self.training)

    def operand(self, step: Step, role: str = "of") -> Tensor:
        """An operand with its legs in the order of the result."""
        use = step.op.operand(role)
        return aligned(self.values[use.name], use.legs, step.legs)

    def masked(self, step: Step, scale: float = 1) -> tuple[Tensor, Tensor, Legs, int]:
        """scale * operand with a float mask added, which of it is visible, its legs, and the axis of the box."""
        use = step.op.operand("of")
        value, keep = scale * self.values[use.name], visible(self, step)
        if self.mask is not None and self.graph.masked(step) and self.graph.query in use.legs:
            mask = run_time_mask(self, step)
            if mask.dtype != torch.bool:
                value = value + torch.where(mask == -math.inf, 0, mask).to(value.dtype)
        return *torch.broadcast_tensors(value, keep), use.legs, axis_of(step.op.leg, use.legs)

    def seen(self, seen: Seen, legs: Legs) -> Tensor:
        """Where any of these sees a tensor with these legs."""
        shown = [[seen_by(self, visible, legs) for visible in every] for every in seen]
        return functools.reduce(torch.logical_or, (functools.reduce(torch.logical_and, every) for every in shown))

    def visible_keys(self, leg: str) -> Tensor:
        """Where the key mask of the call allows to look."""
        return (
            torch.ones(self.size(leg), device=self.device, dtype=torch.bool)
            if self.key_mask is None
            else key_mask(self)
        )


def einsum(factors: list[tuple[Tensor, Legs]], legs: Legs) -> tuple[Tensor, Legs]:
    """The product of named tensors, summed over every leg that `legs` lacks, and the legs it has."""
    names = list(dict.fromkeys(leg for _, own in factors for leg in own))
    kept = tuple(leg for leg in legs if leg in names)
    arguments: list[object] = []
    for value, own in factors:
        arguments += [value, [..., *(names.index(leg) for leg in own)]]
    return torch.einsum(*arguments, [..., *(names.index(leg) for leg in kept)]), kept


def check_masks(run: Run) -> None:
    """Raises InputError where a mask of the call does not fit a box."""
    for step in run.graph.steps if run.mask is not None else ():
        if run.graph.masked(step) and run.graph.query in step.op.operand("of").legs:
            run_time_mask(run, step)


def visible(run: Run, step: Step) -> Tensor:
    """True where a key counts, [batch..., legs of the box] with ones: the design's masks and those of the call."""
    legs = step.op.operand("of").legs
    if not run.graph.masked(step):
        return torch.ones(run.sizes(legs), device=run.device, dtype=torch.bool)
    return seen_by(run, visible_to(run.graph, step), legs)


def seen_by(run: Run, visible: Visible, legs: Legs) -> Tensor:
    """The same for any tensor with the key leg, [batch..., legs] with ones."""
    keep = torch.ones(run.sizes(legs), device=run.device, dtype=torch.bool)
    pair = (run.graph.query, run.graph.key)
    for mask in visible.masks:
        keep = keep & aligned(pattern(run, mask), pair, legs)
    if run.mask is not None and visible.legs is not None:
        keep = keep & mask_along(run, visible, legs)
    return keep if run.key_mask is None else keep & aligned(key_mask(run), (run.graph.key,), legs)


def mask_along(run: Run, visible: Visible, legs: Legs) -> Tensor:
    """Where the mask of the call lets a box look, anywhere along legs that are missing: [batch..., legs] with ones."""
    mask, pair = run.mask if run.mask.dtype == torch.bool else run.mask != -math.inf, (run.graph.query, run.graph.key)
    if mask.ndim in (2, len(run.batch) + 2):
        return aligned(mask, pair, legs)
    missing = [place - len(visible.legs) - 2 for place, (_, own) in enumerate(visible.legs) if own is None]
    mask = mask.any(missing) if missing else mask
    return aligned(mask, (*(own for _, own in visible.legs if own is not None), *pair), legs)


def pattern(run: Run, mask: Function) -> Tensor:
    """A mask of the design, boolean [n, m]."""
    distance = run.positions(run.graph.query)[:, None] - run.positions(run.graph.key)
    if mask.name == "causal":
        return distance >= 0
    numbers = [run.number(argument) for argument in mask.arguments]
    if mask.name == "band":
        return distance.abs() <= numbers[0]
    left, right = numbers
    return (distance <= left) & (distance >= -right)


def run_time_mask(run: Run, step: Step) -> Tensor:
    """The mask of the call, [batch..., legs of the box], with ones on legs it does not speak of."""
    legs, mask, batch = step.op.operand("of").legs, run.mask, len(run.batch)
    pair = (run.graph.query, run.graph.key)
    others = tuple(leg for leg in legs if leg not in pair)
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise InputError(f"mask: a tensor of {mask.dtype}; give a boolean (true = may look) or a float one (added).")
    if mask.dtype != torch.bool and not OPS[step.op.kind].takes_float_mask:
        box = f"'{step.name}', a {step.op.kind} box"
        raise InputError(f"mask: nothing can be added in {box}; give a boolean mask, true = may look.")
    if mask.ndim in (2, batch + 2):
        return aligned(mask, pair, legs)
    if mask.ndim == batch + len(others) + 2:
        return aligned(mask, others + pair, legs)
    shapes = f"[{', '.join(pair)}], [batch..., {', '.join(pair)}] or [batch..., {', '.join(others + pair)}]"
    raise InputError(f"mask: {mask.ndim} dimensions do not fit '{step.name}'; give {shapes}.")


def key_mask(run: Run) -> Tensor:
    if run.key_mask.dtype != torch.bool:
        raise InputError(f"key_mask: a tensor of {run.key_mask.dtype}; give a boolean one, true = may look.")
    return run.key_mask
