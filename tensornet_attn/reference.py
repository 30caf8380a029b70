"""The reference: evaluates a diagram literally, step by step, dense, in any dtype; slow, plain and differentiable.

In half precision, each step is computed in single precision and rounded; decays, their sums and constants are not.

Every value has shape [batch..., legs]; weights, constants and states have no batch. `ops/` evaluates the boxes.
Compiled modules share no code with this module.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Box, Function, Graph, Seen, Step, Term, Visible
from tensornet_attn.graph.hidden import visible_to
from tensornet_attn.graph.precision import kept_wide
from tensornet_attn.graph.visibility import numbers, parts_of, written_numbers
from tensornet_attn.ir import steps
from tensornet_attn.ir.arithmetic import Arith
from tensornet_attn.ir.arithmetic import evaluate as number_of
from tensornet_attn.ir.steps import LOGIC
from tensornet_attn.nn.executable import Arguments, Result
from tensornet_attn.nn.initial import filled
from tensornet_attn.nn.module import CompiledDesign, leaves
from tensornet_attn.ops import MASKS, OPS
from tensornet_attn.ops.operation import aligned, axis_of
from tensornet_attn.rewrite.hidden import hiding

Tensor = torch.Tensor
Legs = tuple[str, ...]


@dataclass
class ReferenceRun:
    """One evaluation: the values computed so far, and the lengths and masks of the call."""

    graph: Graph
    values: dict[str, Tensor]
    lengths: dict[str, int]
    training: bool
    mask: Tensor | None
    key_mask: Tensor | None

    def number(self, tree: Arith) -> int | float:
        return number_of(tree, self.graph.values | {leg: max(length, 1) for leg, length in self.lengths.items()})

    def size(self, leg: str) -> int:
        """The size at run time. A relative leg without a maximum distance runs from 1 - n to m - 1."""
        if self.graph.leg[leg].sequence:
            return self.lengths[leg]
        return size_of(self.graph, leg) or max(sum(self.lengths[side] for side in self.pair) - 1, 0)

    def sizes(self, legs: Legs) -> list[int]:
        return [self.size(leg) for leg in legs]

    def positions(self, leg: str) -> Tensor:
        """The position of each entry of a leg; the last query is at the position of the last key."""
        kind, reach, first, (query, key) = self.graph.leg[leg].kind, self.graph.leg[leg].reach, 0, self.pair
        if kind == "query":
            n = self.lengths[query]
            first = self.lengths.get(key, n) - n  # 0 in a design without keys
        elif kind == "relative":
            first = 1 - self.lengths[query] if reach is None else -reach
        return torch.arange(first, first + self.size(leg), device=self.device)

    @property
    def pair(self) -> tuple[str, str]:
        """The legs of query and key; "None" for the key if the design has none."""
        return self.graph.query, str(self.graph.key)

    @property
    def inputs(self) -> list[Tensor]:
        return [self.values[tensor.name] for tensor in self.graph.of_role("input")]

    @property
    def device(self) -> torch.device:
        return self.inputs[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the layer; inputs that a cache keeps wide may have another one."""
        narrow = [tensor.name for tensor in self.graph.of_role("input") if not tensor.wide]
        narrow += [tensor.name for tensor in self.graph.of_role("weight")]
        return self.values[narrow[0]].dtype if narrow else self.inputs[0].dtype

    @property
    def batch(self) -> tuple[int, ...]:
        ranks = [len(tensor.legs) for tensor in self.graph.of_role("input")]
        batches = {tuple(value.shape[: value.ndim - rank]) for value, rank in zip(self.inputs, ranks, strict=True)}
        return batches.pop() if len(batches) == 1 else tuple(torch.broadcast_shapes(*batches))

    @property
    def half(self) -> bool:
        """Whether steps are computed in single precision and rounded."""
        return self.dtype.itemsize < 4

    @functools.cached_property
    def wide(self) -> frozenset[str]:
        """Tensors and steps that stay in single precision beside half-precision ones, see `graph/precision.py`."""
        return kept_wide(self.graph) if self.half else frozenset()

    def in_single(self, step: Step) -> ReferenceRun:
        """The run with the inputs and the operands of a step in single precision."""
        names = {tensor.name for tensor in self.graph.of_role("input")} | step.reads
        values = {name: self.values[name] for name in names}
        return replace(self, values={name: x.float() if x.is_floating_point() else x for name, x in values.items()})

    # Methods that the boxes in ops/ call

    def dropped(self, x: Tensor, probability: Arith) -> Tensor:
        return torch.nn.functional.dropout(x, self.number(probability), self.training)

    def operand(self, step: Step, role: str = "of") -> Tensor:
        """An operand with its legs in the order of the result, [batch..., legs]."""
        use = box_of(step).operand(role)
        return aligned(self.values[use.name], use.legs, step.legs)

    def masked(self, step: Step, scale: float = 1) -> tuple[Tensor, Tensor, Legs, int]:
        """scale * operand plus the float mask, its visible entries (boolean), its legs, and the axis of the box."""
        use = box_of(step).of
        value, keep = scale * self.values[use.name], visible(self, step)
        if self.mask is not None and self.graph.masked(step) and self.graph.query in use.legs:
            mask = run_time_mask(self, self.mask, step)
            if mask.dtype != torch.bool:
                value = value + torch.where(mask == -math.inf, 0, mask).to(value.dtype)
        return *torch.broadcast_tensors(value, keep), use.legs, axis_of(box_of(step).leg, use.legs)

    def seen(self, seen: Seen, legs: Legs) -> Tensor:
        """Which entries of a tensor with these legs at least one of the readers sees: boolean, [batch..., legs]."""
        shown = [[seen_by(self, visible, legs) for visible in conditions] for conditions in seen]
        return functools.reduce(torch.logical_or, (functools.reduce(torch.logical_and, masks) for masks in shown))

    def visible_keys(self, leg: str) -> Tensor:
        """The keys that the key mask of the call leaves visible: boolean, [batch..., m] or [m]."""
        if self.key_mask is not None:
            return boolean(self.key_mask)
        return torch.ones(self.size(leg), device=self.device, dtype=torch.bool)


def evaluate(
    graph: Graph,
    tensors: Mapping[str, Tensor],
    *,
    lengths: Mapping[str, int],
    training: bool = False,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    until: str | None = None,
    shown: Collection[str] = (),
) -> dict[str, Tensor]:
    """All tensors and steps by name, [batch..., legs]; stops after the step `until`.

    `tensors`: inputs, weights, states and, unless drawn here, noise. `lengths`: the sizes of the sequence legs.
    `mask`: [n, m], [batch..., n, m] or [batch..., other legs of the box, n, m], boolean (true = visible) or a float
    that is added; `key_mask`: boolean, [batch..., m]. Raises InputError if a tensor is missing or a mask does not fit.

    Entries of a step that masks hide from all its readers are unspecified, except in `until` and the steps in `shown`.
    """
    wanted = {name for name in (until, *shown) if name in graph.step}
    run = ReferenceRun(
        hiding(graph, wanted, everywhere=True, keys=True), dict(tensors), dict(lengths), training, mask, key_mask
    )
    add_leaves(run)
    check_masks(run)
    for step in run.graph.steps if until not in graph.tensor else ():
        within = run.in_single(step) if run.half else run
        value = contraction(within, step) if step.box is None else box(within, step)
        run.values[step.name] = value.to(run.dtype) if run.half and step.name not in run.wide else value
        if step.name == until:
            break
    return run.values


def add_leaves(run: ReferenceRun) -> None:
    """Adds the tensors that the caller did not pass; cuts weights and states to the lengths of their sequence legs."""
    for tensor in sorted(run.graph.tensors, key=lambda tensor: tensor.role != "input"):
        if tensor.name not in run.values:
            run.values[tensor.name] = leaf(run, tensor)
        elif tensor.role in ("weight", "state"):
            run.values[tensor.name] = cut(run, tensor)


def leaf(run: ReferenceRun, tensor: steps.Tensor) -> Tensor:
    """A tensor that the caller did not pass: the default of an input, a constant at its run-time size, noise."""
    if tensor.role == "input" and tensor.default is not None:
        return run.values[tensor.default]
    if tensor.role == "constant":
        dtype = torch.float32 if tensor.name in run.wide else run.dtype
        return constant(run, tensor).to(device=run.device, dtype=dtype)
    if tensor.role != "noise":
        raise InputError(f"'{run.graph.name}': the {tensor.role} '{tensor.name}' is missing; pass it in 'tensors'.")
    zeros = torch.zeros([*run.batch, *run.sizes(tensor.legs)], device=run.device, dtype=run.dtype)
    return torch.randn_like(zeros) * run.number(tensor.std) if run.training or tensor.always else zeros


def cut(run: ReferenceRun, tensor: steps.Tensor) -> Tensor:
    """A weight or state with its split legs restored and, on each sequence leg, its first `length` entries."""
    value = run.values[tensor.name]
    if tensor.stored:
        value = value.reshape([run.graph.leg[leg].stored or 1 for leg in tensor.legs])
    for axis, leg in enumerate(tensor.legs):
        if not run.graph.leg[leg].sequence:
            continue
        if run.lengths[leg] > value.shape[axis]:
            entries = value.shape[axis]
            limit = f"'{tensor.name}' has {entries} entries there"
            raise InputError(f"leg '{leg}' has length {run.lengths[leg]}, but {limit}; use at most {entries}.")
        value = value.narrow(axis, 0, run.lengths[leg])
    return value


def constant(run: ReferenceRun, tensor: steps.Tensor) -> Tensor:
    """The value of a constant, [legs], float64."""
    assert tensor.init is not None
    name, sizes = tensor.init.name, run.sizes(tensor.legs)
    if name == "sinusoid":
        entry = torch.arange(sizes[1], device=run.device)
        angle = run.positions(tensor.legs[0])[:, None] * 10000.0 ** (-2 * (entry // 2).double() / sizes[1])
        return torch.where(entry % 2 == 0, angle.sin(), angle.cos())
    if name == "position":
        return run.positions(tensor.legs[0]).double()
    if name == "index":
        return torch.arange(sizes[0], device=run.device, dtype=torch.float64)
    if name == "alibi_slopes":
        return torch.tensor(slopes(sizes[0]), dtype=torch.float64)
    if name in ("bucket", "log_bucket"):
        numbers = [int(run.number(argument)) for argument in written_numbers(tensor.init)]
        buckets = [
            bucket(int(distance), *numbers) if name == "bucket" else log_bucket(int(distance), *numbers)
            for distance in run.positions(tensor.legs[0])
        ]
        return torch.eye(numbers[0], dtype=torch.float64)[torch.tensor(buckets, dtype=torch.long)]
    if name == "distance":
        query, key = run.pair
        return aligned(run.positions(query)[:, None] - run.positions(key), run.pair, tensor.legs).double()
    return filled(tensor.init, sizes, run.graph.values | run.lengths)


def bucket(distance: int, count: int, furthest: int, both_sides: int) -> int:
    """The bucket of a distance, query position minus key position (Raffel et al. 2020), in single precision."""
    first, count = (0, count) if not both_sides else (count // 2 if distance < 0 else 0, count // 2)
    distance, exact = abs(distance) if both_sides else max(distance, 0), count // 2
    if distance < exact:
        return first + distance
    grown = (
        torch.log(torch.tensor(distance / exact, dtype=torch.float32)) / math.log(furthest / exact) * (count - exact)
    )
    return first + min(exact + int(grown), count - 1)


def log_bucket(distance: int, count: int, furthest: int) -> int:
    """The bucket of a distance, query position minus key position (the code of DeBERTa-v2, He et al. 2021).

    In single precision.
    """
    exact, side = count // 4, 1 if distance > 0 else -1
    if abs(distance) > exact:
        far, most = torch.tensor([abs(distance) / exact, (furthest - 1) / exact], dtype=torch.float32)
        grown = torch.log(far) / torch.log(most)
        distance = side * (math.ceil(grown * (exact - 1)) + exact)
    return min(max(distance + count // 2, 0), count - 1)


def slopes(heads: int) -> list[float]:
    """The slopes of ALiBi: 2 ** (-8 i / h) for i = 1, ..., h if h is a power of two (Press et al. 2022).

    For another h, all slopes of the power of two below it, then every second slope of the power above it.
    """
    power = 2 ** (heads.bit_length() - 1)
    first = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    return first + [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * (heads - power), 2)]


def contraction(run: ReferenceRun, step: Step) -> Tensor:
    """A sum of products, [batch..., legs as written]; a term is broadcast along the result legs that it lacks."""
    total = torch.zeros(run.sizes(step.legs), device=run.device, dtype=run.dtype)
    for term in step.terms:
        total = total + product(run, term, step.legs)
    return total


def product(run: ReferenceRun, term: Term, legs: Legs) -> Tensor:
    """coefficient * product, [batch..., legs], with size 1 on the legs that the product lacks."""
    coefficient = run.number(term.coefficient)
    if not term.factors:
        return torch.full([1] * len(legs), coefficient, device=run.device, dtype=run.dtype)
    factors = [(run.values[use.name], use.legs) for use in term.factors]
    if run.key_mask is not None and run.graph.key not in legs:  # a product that sums keys omits the hidden ones
        key, keys = run.pair[1], boolean(run.key_mask)
        shown = [aligned(keys, (key,), factor_legs) if key in factor_legs else None for _, factor_legs in factors]
        pairs = zip(factors, shown, strict=True)
        factors = [
            (value if keep is None else value.where(keep, 0), factor_legs) for (value, factor_legs), keep in pairs
        ]
    value, kept = einsum(factors, legs)
    return coefficient * aligned(value, kept, legs)


def box(run: ReferenceRun, step: Step) -> Tensor:
    """The value of a box, [batch..., legs as written]."""
    value, legs = OPS[box_of(step).kind].reference(run, step, box_of(step))
    return aligned(value, legs, step.legs)


def box_of(step: Step) -> Box:
    assert step.box is not None
    return step.box


def einsum(factors: list[tuple[Tensor, Legs]], legs: Legs) -> tuple[Tensor, Legs]:
    """The product of named tensors, summed over the legs that are not in `legs`, and the legs of the result."""
    names = list(dict.fromkeys(leg for _, factor_legs in factors for leg in factor_legs))
    kept = tuple(leg for leg in legs if leg in names)
    arguments: list[object] = []
    for value, factor_legs in factors:
        arguments += [value, [..., *(names.index(leg) for leg in factor_legs)]]
    return torch.einsum(*arguments, [..., *(names.index(leg) for leg in kept)]), kept


def check_masks(run: ReferenceRun) -> None:
    """Raises InputError if the mask of the call does not fit a box."""
    for step in run.graph.steps if run.mask is not None else ():
        if run.mask is not None and run.graph.masked(step) and run.graph.query in box_of(step).of.legs:
            run_time_mask(run, run.mask, step)


def visible(run: ReferenceRun, step: Step) -> Tensor:
    """The visible entries of a box's operand, by the design's and the call's masks: boolean, [batch..., legs]."""
    legs = box_of(step).of.legs
    if not run.graph.masked(step):
        return torch.ones(run.sizes(legs), device=run.device, dtype=torch.bool)
    return seen_by(run, visible_to(run.graph, step), legs)


def seen_by(run: ReferenceRun, visible: Visible, legs: Legs) -> Tensor:
    """`visible` for any tensor with the key leg; size 1 on legs that the masks lack."""
    keep = torch.ones(run.sizes(legs), device=run.device, dtype=torch.bool)
    for mask in visible.masks:
        keep = keep & aligned(pattern(run, mask), run.pair, legs)
    if run.mask is not None and visible.legs is not None:
        keep = keep & mask_along(run, run.mask, [leg for _, leg in visible.legs], legs)
    return keep if run.key_mask is None else keep & aligned(boolean(run.key_mask), run.pair[1:], legs)


def mask_along(run: ReferenceRun, mask: Tensor, matching: list[str | None], legs: Legs) -> Tensor:
    """A mask of the call along `legs`, boolean; on legs of the box that match none, visible at any index."""
    mask = mask if mask.dtype == torch.bool else mask != -math.inf
    if mask.ndim in (2, len(run.batch) + 2):
        return aligned(mask, run.pair, legs)
    missing = [axis - len(matching) - 2 for axis, leg in enumerate(matching) if leg is None]
    mask = mask.any(missing) if missing else mask
    return aligned(mask, (*filter(None, matching), *run.pair), legs)


def pattern(run: ReferenceRun, mask: Function) -> Tensor:
    """A mask of the design: boolean, [n, m]."""
    query, key = map(run.positions, run.pair)
    if mask.name in LOGIC:
        operands = [pattern(run, operand) for operand in parts_of(mask)]
        return (
            ~operands[0]
            if mask.name == "not"
            else torch.stack(operands).any(0)
            if mask.name == "or"
            else torch.stack(operands).all(0)
        )
    arguments = numbers(mask, run.graph.values)
    return MASKS[mask.name].reference(query[:, None], key, *arguments).expand(len(query), len(key))


def run_time_mask(run: ReferenceRun, mask: Tensor, step: Step) -> Tensor:
    """The mask of the call, [batch..., legs of the box], with size 1 on the legs that it lacks."""
    legs, kind, batch, pair = box_of(step).of.legs, box_of(step).kind, len(run.batch), run.pair
    others = tuple(leg for leg in legs if leg not in pair)
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise InputError(f"mask has dtype {mask.dtype}; give a boolean mask (true = visible) or a float mask (added).")
    if mask.dtype != torch.bool and not OPS[kind].takes_float_mask:
        box = f"'{step.name}', a {kind} box"
        raise InputError(f"mask: {box}, cannot add a float mask; give a boolean mask (true = visible).")
    if mask.ndim in (2, batch + 2):
        return aligned(mask, pair, legs)
    if mask.ndim == batch + len(others) + 2:
        return aligned(mask, others + pair, legs)
    shapes = f"[{', '.join(pair)}], [batch..., {', '.join(pair)}] or [batch..., {', '.join(others + pair)}]"
    raise InputError(f"mask: {mask.ndim} dimensions do not fit '{step.name}'; give {shapes}.")


def boolean(key_mask: Tensor) -> Tensor:
    if key_mask.dtype != torch.bool:
        raise InputError(f"key_mask has dtype {key_mask.dtype}; give a boolean mask (true = visible).")
    return key_mask


def reference_run(module: CompiledDesign, arguments: Arguments) -> Result:
    """Evaluates the diagram literally. A training call then updates the states."""
    graph, training = module.plan.graph, module.training
    tensors = leaves(module, arguments.inputs, arguments.noise)
    for state, _ in graph.updates:
        tensors[state] = tensors[state].clone()  # the update below changes the buffer before the backward reads it
    lengths, mask, key_mask = arguments.lengths, arguments.mask, arguments.key_mask
    values = evaluate(graph, tensors, lengths=lengths, training=training, mask=mask, key_mask=key_mask)
    run = ReferenceRun(graph, values, lengths, training, mask, key_mask)
    if run.half and not graph.also:
        values[graph.output] = rounded(values[graph.output], run.dtype)
    if training and all(x is None or x.numel() for x in arguments.inputs):  # of nothing there is no mean
        for state, step in graph.updates:
            legs, step_legs = graph.tensor[state].legs, graph.step[step].legs
            value = values[step].movedim(
                tuple(step_legs.index(leg) - len(step_legs) for leg in legs), tuple(range(-len(legs), 0))
            )
            store(getattr(module, state), value)
    if graph.also:
        return (values[graph.output], *(values[name] for name in graph.also))
    if not arguments.losses:
        return values[graph.output]
    means = {loss.name: values[loss.step].sum() / max(1, values[loss.step].numel()) for loss in graph.losses}
    return values[graph.output], means


def rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    """An output in half precision, in which the logarithm of nothing is a number of the dtype."""
    if value.dtype == dtype:
        return value
    least = torch.finfo(dtype).min / 2
    return (value.where(value != -1e15, least) if least > -1e15 else value).to(dtype)


@torch.no_grad()
def store(state: Tensor, value: Tensor) -> None:
    """Overwrites a state, up to the run-time lengths, by the mean of [batch..., legs] over the batch."""
    batch = tuple(range(value.ndim - state.ndim))
    value = value.mean(batch) if batch else value
    state[tuple(slice(size) for size in value.shape)] = value
