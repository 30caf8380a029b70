"""The boxes of the oracle, one plain function each: value and legs of a step from what has been computed before it.

Rows that see nothing are replaced before exp and log, and again after: zero times an infinite gradient would be NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from tensornet_attn.errors import InputError
from tensornet_attn.graph.hidden import visible_to
from tensornet_attn.graph.model import Function, Step, Visible
from tensornet_attn.reference_run import Legs, Run

Tensor = torch.Tensor


def aligned(value: Tensor, have: Legs, want: Legs) -> Tensor:
    """`value` [batch..., have] with its legs in the order of `want`; legs it lacks have size 1."""
    batch = value.ndim - len(have)
    value = value.permute([*range(batch), *(batch + have.index(leg) for leg in want if leg in have)])
    return value[(..., *(slice(None) if leg in have else None for leg in want))]


def axis_of(leg: str | None, legs: Legs) -> int:
    """The dimension of a leg counted from the end, so that it holds with and without a batch."""
    return [*legs].index(leg) - len(legs)  # type: ignore[arg-type]


def without(legs: Legs, leg: str | None) -> Legs:
    return tuple(other for other in legs if other != leg)


def einsum(factors: list[tuple[Tensor, Legs]], legs: Legs) -> tuple[Tensor, Legs]:
    """The product of named tensors, summed over every leg that `legs` lacks, and the legs it has."""
    names = list(dict.fromkeys(leg for _, own in factors for leg in own))
    kept = tuple(leg for leg in legs if leg in names)
    arguments: list[object] = []
    for value, own in factors:
        arguments += [value, [..., *(names.index(leg) for leg in own)]]
    return torch.einsum(*arguments, [..., *(names.index(leg) for leg in kept)]), kept


def over(value: Tensor, divisor: Tensor) -> Tensor:
    """value / divisor; a zero divisor gives zeros, and gradients of zero."""
    zero = divisor == 0
    return torch.where(zero, 0, value / torch.where(zero, 1, divisor))


# Masks


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
    return seen(run, visible_to(run.graph, step), legs)


def seen(run: Run, visible: Visible, legs: Legs) -> Tensor:
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
    if mask.dtype != torch.bool and step.op.kind in ("normalize", "keep"):
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


def masked(run: Run, step: Step, scale: float = 1) -> tuple[Tensor, Tensor, Legs, int]:
    """scale * operand with a float mask added, which of it is visible, its legs, and the axis of the box."""
    use = step.op.operand("of")
    value, keep = scale * run.values[use.name], visible(run, step)
    if run.mask is not None and run.graph.masked(step) and run.graph.query in use.legs:
        mask = run_time_mask(run, step)
        if mask.dtype != torch.bool:
            value = value + torch.where(mask == -math.inf, 0, mask).to(value.dtype)
    return *torch.broadcast_tensors(value, keep), use.legs, axis_of(step.op.leg, use.legs)


# Boxes that masks act in


def softmax(run: Run, step: Step) -> tuple[Tensor, Legs]:
    scores, keep, legs, axis = masked(run, step, run.number(step.op.number("scale")))
    scores = torch.where(keep, scores, -math.inf)
    scores = torch.where(keep.any(axis, keepdim=True), scores, 0)
    weights = torch.where(keep, torch.softmax(scores, axis), 0)
    return F.dropout(weights, run.number(step.op.number("dropout")), run.training), legs


def normalize(run: Run, step: Step) -> tuple[Tensor, Legs]:
    scores, keep, legs, axis = masked(run, step)
    scores = torch.where(keep, scores, 0)
    return over(scores, scores.sum(axis, keepdim=True) + run.number(step.op.number("eps"))), legs


def keep_(run: Run, step: Step) -> tuple[Tensor, Legs]:
    value, keep, legs, _ = masked(run, step)
    return torch.where(keep, value, 0), legs


def reduction(run: Run, step: Step) -> tuple[Tensor, Legs]:
    value, keep, legs, axis = masked(run, step)
    return REDUCTIONS[step.op.kind](value, keep, axis), without(legs, step.op.leg)


def sum_(value: Tensor, keep: Tensor, axis: int) -> Tensor:
    return torch.where(keep, value, 0).sum(axis)


def mean(value: Tensor, keep: Tensor, axis: int) -> Tensor:
    return over(sum_(value, keep, axis), keep.sum(axis).to(value.dtype))


def max_(value: Tensor, keep: Tensor, axis: int) -> Tensor:
    """The gradient is shared evenly among equal largest entries."""
    return torch.where(keep.any(axis), torch.where(keep, value, -math.inf).amax(axis), 0)


def logsumexp(value: Tensor, keep: Tensor, axis: int) -> Tensor:
    some = keep.any(axis, keepdim=True)
    value = torch.where(some, torch.where(keep, value, -math.inf), 0)
    return torch.where(some.squeeze(axis), value.logsumexp(axis), 0)


REDUCTIONS = {"sum": sum_, "mean": mean, "max": max_, "logsumexp": logsumexp}


# Boxes that masks do not act in


def operand(run: Run, step: Step, role: str = "of") -> Tensor:
    """An operand with its legs in the order of the result."""
    use = step.op.operand(role)
    return aligned(run.values[use.name], use.legs, step.legs)


def map_(run: Run, step: Step) -> tuple[Tensor, Legs]:
    arguments = [run.number(argument) for argument in step.op.function.arguments]
    return MAPS[step.op.function.name](operand(run, step), *arguments), step.legs


MAPS: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "elu": F.elu,
    "elu1": lambda x: F.elu(x) + 1,
    "elu1_neg": lambda x: F.elu(-x) + 1,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "log": torch.log,
    "square": torch.square,
    "sqrt": torch.sqrt,
    "abs": torch.abs,
    "softplus": F.softplus,
    "reciprocal": lambda x: over(torch.ones_like(x), x),
    "softcap": lambda x, c: c * torch.tanh(x / c),
    "power": lambda x, p: x**p,
    "clamp": lambda x, a, b: x.clamp(a, b),
}


def hide(run: Run, step: Step) -> tuple[Tensor, Legs]:
    """What readers see; a number elsewhere, whatever stands there: masks act before maps and products, not after."""
    use = step.op.operand("of")
    shown = [[seen(run, visible, use.legs) for visible in every] for every in step.op.seen]
    keep = functools.reduce(torch.logical_or, (functools.reduce(torch.logical_and, every) for every in shown))
    return torch.where(keep, run.values[use.name], step.op.number("fill").value), use.legs


def topk(run: Run, step: Step) -> tuple[Tensor, Legs]:
    """A stable sort keeps equal entries in order: the smaller index wins."""
    axis, role = axis_of(step.op.leg, step.legs), "by" if "by" in dict(step.op.operands) else "of"
    of, by = torch.broadcast_tensors(operand(run, step), operand(run, step, role))
    order = by.sort(dim=axis, descending=True, stable=True).indices
    none = torch.zeros_like(by, dtype=torch.bool)
    chosen = none.scatter(axis, order.narrow(axis, 0, int(run.number(step.op.number("k")))), True)
    zeros = torch.where(none, by, 0)  # so that what `by` is made of gets gradients of zero
    return torch.where(chosen, of, zeros), step.legs


def norm(run: Run, step: Step) -> tuple[Tensor, Legs]:
    axis, eps = axis_of(step.op.leg, step.legs), run.number(step.op.number("eps"))
    return NORMS[step.op.kind](operand(run, step), axis, eps), step.legs


def rmsnorm(x: Tensor, axis: int, eps: float) -> Tensor:
    return x / (x.square().mean(axis, keepdim=True) + eps).sqrt()


def layernorm(x: Tensor, axis: int, eps: float) -> Tensor:
    return rmsnorm(x - x.mean(axis, keepdim=True), axis, eps)


def l1norm(x: Tensor, axis: int, eps: float) -> Tensor:
    return over(x, x.abs().sum(axis, keepdim=True) + eps)


def l2norm(x: Tensor, axis: int, eps: float) -> Tensor:
    return over(x, torch.linalg.vector_norm(x, dim=axis, keepdim=True) + eps)


NORMS = {"rmsnorm": rmsnorm, "layernorm": layernorm, "l1norm": l1norm, "l2norm": l2norm}


def rope(run: Run, step: Step) -> tuple[Tensor, Legs]:
    """(a cos - b sin, b cos + a sin) on the first and second half of the rotated entries, block by block."""
    legs = (*without(without(step.legs, step.op.leg), step.op.other), step.op.leg, step.op.other)
    blocks = aligned(operand(run, step), step.legs, legs).chunk(run.number(step.op.number("blocks")), -1)
    return torch.cat([rotated(run, step, block) for block in blocks], -1), legs


def rotated(run: Run, step: Step, x: Tensor) -> Tensor:
    """One block, [batch..., legs..., n, d]."""
    width = round(run.number(step.op.number("fraction")) * x.shape[-1])
    pairs = torch.arange(width // 2, device=run.device, dtype=torch.float64)
    angles = run.positions(step.op.leg)[:, None] * run.number(step.op.number("base")) ** (-2 * pairs / width)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)  # n pairs
    a, b, rest = x.split([width // 2, width // 2, x.shape[-1] - 2 * (width // 2)], -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def rel_shift(run: Run, step: Step) -> tuple[Tensor, Legs]:
    """result[n, m] = of[n, p] at p = position(n) - position(m); distances beyond a reach count as its ends."""
    use, query, along, places = step.op.operand("of"), run.graph.query, step.op.leg, run.positions(step.op.leg)
    others = without(without(use.legs, query), along)
    distance = run.positions(query)[:, None] - run.positions(step.op.other)
    index = distance.clamp(places[0], places[-1]) - places[0]  # n m
    value = aligned(run.values[use.name], use.legs, (*others, query, along))
    rest = value.shape[:-2]
    value = value.expand(*rest, len(index), len(places)).gather(-1, index.expand(*rest, *index.shape))
    return value, (*others, query, step.op.other)


def delta_rule(run: Run, step: Step) -> tuple[Tensor, Legs]:
    """Fast weights with legs (those of the value, then those contracted with the query)."""
    query, key, value_legs = run.graph.query, step.op.leg, without(step.op.operand("value").legs, step.op.leg)
    contracted = tuple(leg for leg in step.op.operand("key").legs if leg not in (*value_legs, key))
    legs = value_legs + contracted
    operands = []
    for role in ("query", "key", "value", "rate"):
        use, along = step.op.operand(role), query if role == "query" else key
        value = aligned(run.values[use.name], use.legs, (along, *legs))
        operands.append(value.movedim(-len(legs) - 1, 0).expand(run.size(along), *[-1] * (value.ndim - 1)))
    keep = torch.ones(run.size(key), device=run.device, dtype=torch.bool) if run.key_mask is None else key_mask(run)
    keep = aligned(keep, (key,), (key, *legs)).movedim(-len(legs) - 1, 0)
    reads = fast_weights(*operands, keep, len(contracted), step.op.mode or "none", run.number(step.op.number("eps")))
    return reads, (*value_legs, query)


def fast_weights(
    q: Tensor, k: Tensor, v: Tensor, rate: Tensor, keep: Tensor, contracted: int, mode: str, eps: float
) -> Tensor:
    """S += rate (v - S k) k^T key by key, read by the query that stands there.

    Operands are [sequence, batch..., legs of the value, contracted legs]; reads [batch..., legs of the value, n].
    """

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(tuple(range(-contracted, 0)), keepdim=True) if contracted else a * b

    S, z, reads = torch.zeros_like(k[0] * v[0]), torch.zeros_like(k[0]), []
    seen = torch.zeros_like(keep[0])
    first_query = len(k) - len(q)
    for place in range(min(0, first_query), len(k)):
        if place >= 0:
            scale = torch.where(seen, dot(z, k[place]), 1) if mode == "both" else 1
            key = over(k[place], scale + eps) if mode == "both" else k[place]
            S = torch.where(keep[place], S + rate[place] * scale * (v[place] - dot(S, key)) * key, S)
            z = torch.where(keep[place], z + k[place], z)
            seen = seen | keep[place]
        if place >= first_query:
            read = dot(S, q[place - first_query])
            reads.append(read if mode == "none" else over(read, dot(z, q[place - first_query]) + eps))
    stacked = torch.stack(torch.broadcast_tensors(*reads), -1)
    return stacked.flatten(stacked.ndim - 1 - contracted)  # the contracted legs are ones here


def dropout(run: Run, step: Step) -> tuple[Tensor, Legs]:
    return F.dropout(operand(run, step), run.number(step.op.number("dropout")), run.training), step.legs


BOXES: dict[str, Callable[[Run, Step], tuple[Tensor, Legs]]] = {
    "softmax": softmax,
    "normalize": normalize,
    "keep": keep_,
    **dict.fromkeys(REDUCTIONS, reduction),
    "map": map_,
    "hide": hide,
    "topk": topk,
    **dict.fromkeys(NORMS, norm),
    "rope": rope,
    "rel_shift": rel_shift,
    "delta_rule": delta_rule,
    "dropout": dropout,
}
