"""The oracle: evaluates a diagram literally, step by step, dense, in any dtype; slow, plain and differentiable.

Every value has shape [batch..., legs]; weights, constants and states have no batch. Boxes stand in ops/.
Nothing here is shared with what compiled modules compute with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.graph import model
from tensornet_attn.graph.model import Graph, Step, Term
from tensornet_attn.nn.initial import filled
from tensornet_attn.nn.made import Result
from tensornet_attn.nn.module import CompiledDesign, leaves
from tensornet_attn.ops import OPS
from tensornet_attn.ops.operation import aligned
from tensornet_attn.reference_run import Legs, Run, check_masks, einsum
from tensornet_attn.rewrite.hidden import hiding

Tensor = torch.Tensor


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
    """Every tensor and step by name, up to and with the step `until`.

    `tensors` holds inputs, weights, states and, where not to be drawn here, noise; `lengths` the sizes of the sequence
    legs. `mask` is [n, m], [batch..., n, m] or [batch..., other legs of the box, n, m], boolean (true = may look) or a
    float that is added; `key_mask` is [batch..., m]. Raises InputError.

    Entries that masks hide from all readers of a step hold anything, but for `until` and the steps that are `shown`.
    """
    wanted = {name for name in (until, *shown) if name in graph.step}
    run = Run(hiding(graph, wanted, everywhere=True), dict(tensors), dict(lengths), training, mask, key_mask)
    add_leaves(run)
    check_masks(run)
    for step in run.graph.steps if until not in graph.tensor else ():
        run.values[step.name] = contraction(run, step) if step.box is None else box(run, step)
        if step.name == until:
            break
    return run.values


def add_leaves(run: Run) -> None:
    """Makes what was not given, and cuts what stands on a sequence leg to its length."""
    for tensor in sorted(run.graph.tensors, key=lambda tensor: tensor.role != "input"):
        if tensor.name not in run.values:
            run.values[tensor.name] = leaf(run, tensor)
        elif tensor.role in ("weight", "state"):
            run.values[tensor.name] = cut(run, tensor)


def leaf(run: Run, tensor: model.Tensor) -> Tensor:
    """A tensor that was not given: the default of an input, a constant at its run-time size, noise."""
    if tensor.role == "input" and tensor.default is not None:
        return run.values[tensor.default]
    if tensor.role == "constant":
        return constant(run, tensor).to(device=run.device, dtype=run.dtype)
    if tensor.role != "noise":
        raise InputError(f"'{tensor.name}', one of the {tensor.role}s of '{run.graph.name}', is not given.")
    like = {"size": (*run.batch, *run.sizes(tensor.legs)), "device": run.device, "dtype": run.dtype}
    return torch.randn(**like) * run.number(tensor.std) if run.training or tensor.always else torch.zeros(**like)


def cut(run: Run, tensor: model.Tensor) -> Tensor:
    """A weight that stands on a sequence leg with a maximum: its first `length` entries there; split legs apart."""
    value = run.values[tensor.name]
    if tensor.stored:
        value = value.reshape([run.graph.leg[leg].stored for leg in tensor.legs])
    for axis, leg in enumerate(tensor.legs):
        if not run.graph.leg[leg].sequence:
            continue
        if run.lengths[leg] > value.shape[axis]:
            most = value.shape[axis]
            raise InputError(f"leg '{leg}' has length {run.lengths[leg]}, above the {most} of '{tensor.name}'.")
        value = value.narrow(axis, 0, run.lengths[leg])
    return value


def constant(run: Run, tensor: model.Tensor) -> Tensor:
    """The value of a constant, float64."""
    name, sizes = tensor.init.name, run.sizes(tensor.legs)
    if name == "sinusoid":
        entry = torch.arange(sizes[1], device=run.device)
        angle = run.positions(tensor.legs[0])[:, None] * 10000.0 ** (-2 * (entry // 2).double() / sizes[1])
        return torch.where(entry % 2 == 0, angle.sin(), angle.cos())
    if name == "position":
        return run.positions(tensor.legs[0]).double()
    if name == "alibi_slopes":
        return torch.tensor(slopes(sizes[0]), dtype=torch.float64)
    if name == "distance":
        pair = (run.graph.query, run.graph.key)
        return aligned(run.positions(pair[0])[:, None] - run.positions(pair[1]), pair, tensor.legs).double()
    return filled(tensor.init, sizes, run.graph.values | run.lengths)


def slopes(heads: int) -> list[float]:
    """2 ** (-8 i / h), i from 1 to h; between powers of two, filled from the next power (Press et al. 2022)."""
    power = 2 ** (heads.bit_length() - 1)
    first = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    return first + [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * (heads - power), 2)]


def contraction(run: Run, step: Step) -> Tensor:
    """A sum of products, [batch..., legs as written]; result legs that a term lacks are broadcast."""
    total = torch.zeros(run.sizes(step.legs), device=run.device, dtype=run.dtype)
    for term in step.op.terms:
        total = total + product(run, term, step.legs)
    return total


def product(run: Run, term: Term, legs: Legs) -> Tensor:
    """coefficient * product, [batch..., legs], with size 1 on the legs it lacks."""
    coefficient = run.number(term.coefficient)
    if not term.factors:
        return torch.full([1] * len(legs), coefficient, device=run.device, dtype=run.dtype)
    value, kept = einsum([(run.values[use.name], use.legs) for use in term.factors], legs)
    return coefficient * aligned(value, kept, legs)


def box(run: Run, step: Step) -> Tensor:
    """The value of a box, [batch..., legs as written]."""
    assert step.box is not None
    value, legs = OPS[step.box.kind].reference(run, step, step.box)
    return aligned(value, legs, step.legs)


def reference_run(
    module: CompiledDesign,
    inputs: tuple[Tensor, ...],
    lengths: dict[str, int],
    mask: Tensor | None,
    key_mask: Tensor | None,
    noise: Mapping[str, Tensor] | None,
    losses: bool = False,
) -> Result:
    """Evaluates the diagram literally; after a training call the states are updated."""
    graph, training = module.plan.graph, module.training
    tensors = leaves(module, inputs, noise)
    for state, _ in graph.updates:
        tensors[state] = tensors[state].clone()  # the buffer changes before the backward reads it
    values = evaluate(graph, tensors, lengths=lengths, training=training, mask=mask, key_mask=key_mask)
    if training:
        for state, step in graph.updates:
            legs, own = graph.tensor[state].legs, graph.step[step].legs
            value = values[step].movedim(tuple(own.index(leg) - len(own) for leg in legs), tuple(range(-len(legs), 0)))
            if value.numel():  # the mean of an empty batch says nothing
                store(getattr(module, state), value)
    if not losses:
        return values[graph.output]
    means = {loss.name: values[loss.step].sum() / max(1, values[loss.step].numel()) for loss in graph.losses}
    return values[graph.output], means


@torch.no_grad()
def store(state: Tensor, value: Tensor) -> None:
    """Overwrites a state, as far as the run-time lengths reach, by the mean of [batch..., legs] over the batch."""
    batch = tuple(range(value.ndim - state.ndim))
    value = value.mean(batch) if batch else value
    state[tuple(slice(size) for size in value.shape)] = value
