"""Fast weights: S += rate (v - S k) k^T, read by the query; gates decay S and separate erasing from writing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from pydantic import Field

from tensornet_attn.ir.steps import Box, Step, Use, within, without
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.ops.given import Checker, ForwardEmitter, ReferenceEvaluation, Scene, Tensor
from tensornet_attn.ops.operation import Operation, aligned, check_key_leg, over
from tensornet_attn.ops.schema import Arithmetic, BoxModel, LegName, Operand

ROLES = ("query", "key", "value", "rate")
GATES = ("decay", "erase", "erase_undecayed", "write")  # absent from a plain rule
# Operands of a decoding cache: S; the sum of the keys, for `read` and `both`; the number of keys, for `both`.
PAST = ("state", "sum", "count")
# Operations for each element of query, key, result. read: z.q, z + k, divide. both: also z'.k and k / (z'.k + eps).
NORMALIZE = {"none": (0, 0, 0), "read": (2, 1, 1), "both": (2, 4, 1)}
# Saved tensors by normalization: sums of keys at the queries, reads and their divisors; `both` adds the sums before
# each key, the divided keys, and for each key its product with the sums, this plus eps, and the rate times this.
REMEMBERED: dict[str, tuple[str, ...]] = {
    "none": (),
    "read": ("query", "result", "row"),
    "both": ("query", "result", "row", "key", "key", "rate", "rate", "rate"),
}


class DeltaRule(BoxModel):
    """Fast weights: S += rate (v - S k) k^T, read by the query (Schlag et al. 2021)."""

    operands = (*ROLES, *GATES)
    optional = frozenset((*GATES, "steps"))
    second = "steps"
    numbers = ("eps",)
    delta_rule: LegName
    query: Operand
    key_: Operand = Field(alias="key")
    value: Operand
    rate: Operand
    decay: Operand | None = None
    erase: Operand | None = None
    erase_undecayed: Operand | None = None
    write: Operand | None = None
    steps: LegName | None = None
    normalize: Literal["none", "read", "both"] = "none"
    eps: Arithmetic = 0


class DeltaRuleOperation(Operation):
    kind = "delta_rule"
    model: type[BoxModel] | None = DeltaRule
    leg_on_operand = False  # its first operand, the query, lacks the key leg
    modes = ("none", "read", "both")
    recurrent = looks_back = True
    copies, on_triton = 4, True
    logarithms = ("decay",)
    between = " by "
    saves: tuple[str, ...] = ROLES  # the backward recomputes S from these

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        """The value's legs with the key leg replaced by the query leg."""
        query = box.query or ""
        check_key_leg(box, "delta_rule", leg)
        for role, use in box.operands.items():
            wanted, unwanted = (query, leg) if role == "query" else (leg, query)
            if (wanted not in use.legs or unwanted in use.legs) and not box.broken(*use.legs):
                box.written(role)
                message = f"'{role}' has legs {' '.join(use.legs) or 'none'}; it needs '{wanted}' and not '{unwanted}'."
                raise Refusal("box-leg", message, f"give 'query' the leg '{query}', and the others '{leg}'.")
        check_gates(box)
        check_steps(box, other)
        legs = {role: set(use.legs) - {query, leg, other} for role, use in box.operands.items()}
        q, k, v = (legs[role] for role in ("query", "key", "value"))
        unmatched = {"query": q - k - v, "key": k - q - v, "rate": legs["rate"] - v}
        unmatched |= {role: legs[role] - k - v for role in GATES if role in legs}
        for role, unmatched_legs in unmatched.items():
            if unmatched_legs:
                box.written(role)
                names = ", ".join(f"'{name}'" for name in sorted(unmatched_legs))
                hint = "use a leg that query and key share, or a leg of the value."
                hint = "use legs of the value in the rate." if role == "rate" else hint
                hint = f"use legs of the key and the value in '{role}'." if role in GATES else hint
                raise Refusal("dangling", f"leg {names} of '{role}' is on no matching operand.", hint)
        return tuple(query if name == leg else name for name in box.operands["value"].legs if name != other)

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        heads, _, own_legs = legs_of(box)
        return written(run, box)[0], (*heads, *own_legs, run.graph.query)

    def saved(self, box: Box) -> tuple[str, ...]:
        return tuple(role for role, _ in box.operands if role not in PAST)

    def products(self, scene: Scene, step: Step, box: Box) -> dict[Legs, int]:
        """With |S| the product of the legs of value and key without m: 2 m |S| for S k and the update, n |S| for S q.

        A decay, and a separate key for writing, each add m |S|.
        """
        state = {*box.operand("value").legs, *box.operand("key").legs} - {box.leg, box.other}
        met, read = (scene.ordered(state.union(legs)) for legs in (sequence_of(box), box.operand("query").legs))
        return {met: updates(box), read: 1}

    def operations(self, scene: Scene, step: Step, box: Box) -> int:
        query, key, result = NORMALIZE[box.mode or "none"]
        role_counts = ((2, "value"), (query, "query"), (key, "key"))  # rate * (value - S k)
        operands = sum(count * scene.elements(box.operand(role)) for count, role in role_counts)
        operands += sum(scene.elements(use) for role, use in box.operands if role == "decay")  # exp
        return operands + result * scene.elements(step)

    def also_saved(self, scene: Scene, step: Step, box: Box) -> dict[str, int]:
        batch = scene.batch_of(step)
        sizes = {role: scene.elements(box.operand(role)) for role in ("query", "key", "rate")}
        rows = batch * scene.size({*step.legs} & {*box.operand("query").legs})
        sizes |= {"result": scene.elements(step), "row": rows}
        saved = {
            f"{step.name}: {kind} {number}": sizes[kind] for number, kind in enumerate(REMEMBERED[box.mode or "none"])
        }
        decays = [scene.elements(use) for role, use in box.operands if role == "decay"]
        return saved | {f"{step.name}: decay used": count for count in decays}  # clamped

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        """Operands are [heads..., sequence, width]; the width is the contracted legs, or the value's own legs."""
        heads, _, own_legs = legs_of(box)
        past = past_text(lines, box)
        past_arguments = [f"past={past}"] if past else []
        if gates := gate_texts(lines, box):
            expression = lines.call("gated_delta_rule", *operand_texts(lines, box), *gates, *past_arguments)
        else:
            arguments = [*operand_texts(lines, box), key_mask_of(heads), *normalized(lines, box)]
            expression = lines.call("delta_rule", *arguments, *past_arguments)
        if len(own_legs) != 1:
            expression += (
                f".unflatten(-1, ({', '.join(lines.size(leg) for leg in own_legs)}))" if own_legs else "[..., 0]"
            )
        lines.bind(step.name, expression, (*heads, lines.graph.query, *own_legs))


class DeltaStateOperation(DeltaRuleOperation):
    """The state of a delta rule after the last key, [heads..., contracted legs, the value's own legs]."""

    kind = "delta_state"
    model = None
    saves: tuple[str, ...] = ()

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        heads, contracted, own_legs = legs_of(box)
        return written(run, box)[1], (*heads, *own_legs, *contracted)

    def saved(self, box: Box) -> tuple[str, ...]:
        return ()

    def products(self, scene: Scene, step: Step, box: Box) -> dict[Legs, int]:
        return {(*sequence_of(box), *step.legs): updates(box)}

    def operations(self, scene: Scene, step: Step, box: Box) -> int:
        return 2 * scene.elements(box.operand("value")) + NORMALIZE[box.mode or "none"][1] * scene.elements(step)

    def also_saved(self, scene: Scene, step: Step, box: Box) -> dict[str, int]:
        return {}

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        heads, contracted, own_legs = legs_of(box)
        arguments = [*operand_texts(lines, box), past_text(lines, box)]
        if gates := gate_texts(lines, box):
            expression = lines.call("gated_delta_state", *arguments, *gates)
        else:
            expression = lines.call("delta_state", *arguments, key_mask_of(heads), *normalized(lines, box))
        if not contracted and not own_legs:
            expression += "[..., 0, 0]"
        elif (len(contracted), len(own_legs)) != (1, 1):
            expression += f".flatten(-2).unflatten(-1, ({', '.join(map(lines.size, contracted + own_legs))},))"
        lines.bind(step.name, expression, heads + contracted + own_legs)


def legs_of(box: Box) -> tuple[Legs, Legs, Legs]:
    """(legs of the heads, legs that query and key contract, legs that only the value has)."""
    key_legs, value_legs = box.operand("key").legs, without(box.operand("value").legs, box.leg, box.other)
    contracted = without(key_legs, box.leg, box.other, *value_legs)
    shared = {leg for role, use in box.operands if role != "value" and role not in PAST for leg in use.legs}
    heads = within(value_legs, shared)
    return heads, contracted, without(value_legs, *heads)


def check_gates(box: Checker) -> None:
    """Rejects combinations of gates and normalization that are undefined."""
    gates = [role for role in GATES if role in box.operands]
    mode = box.written("normalize")
    if gates and mode != "none":
        message = f"'normalize: {mode}' divides by sums of keys, which are undefined with '{gates[0]}'."
        raise Refusal("wrong-value", message, f"remove 'normalize' or '{gates[0]}'.")
    if "erase" in gates and "erase_undecayed" in gates:
        box.written("erase_undecayed")
        hint = "use one of them: 'erase' reads the state after the decay, 'erase_undecayed' before it."
        raise Refusal("wrong-value", "'erase' and 'erase_undecayed' both set the erasing key.", hint)


def check_steps(box: Checker, steps: str) -> None:
    """Rejects operands that lack the leg of the steps, and a query or decay that has it."""
    for role, use in box.operands.items() if steps and not box.broken(steps) else ():
        once = role in ("query", "decay")
        if once == (steps in use.legs):
            box.written(role)
            needs = (
                f"it is the same for all steps and cannot have '{steps}'"
                if once
                else f"it needs '{steps}', with an entry for each step"
            )
            hint = f"give '{steps}' to all operands except 'query' and 'decay'."
            raise Refusal("box-leg", f"'{role}' has legs {' '.join(use.legs)}; {needs}.", hint)


def sequence_of(box: Box) -> Legs:
    """The key leg and, if there is one, the leg of the steps at each key."""
    return tuple(leg for leg in (box.leg, box.other) if leg is not None)


def updates(box: Box) -> int:
    """The passes over S for each key: read and update, plus one for a decay and one for a separate writing key."""
    roles = {role for role, _ in box.operands}
    return 2 + ("decay" in roles) + ("write" in roles)


def gate_texts(lines: ForwardEmitter, box: Box) -> list[str]:
    """The arguments of a gated rule, decay as [heads..., sequence, 1 or d], and the key mask; none for a plain rule."""
    heads, contracted, _ = legs_of(box)
    arguments = [] if box.other is None else [f"steps={lines.size(box.other)}"]
    for role, use in box.operands:
        if role in GATES:
            name = "erase" if role == "erase_undecayed" else role
            along = sequence_of(box) if role != "decay" else (str(box.leg),)
            has_width = role != "decay" or {*use.legs} & {*contracted}
            gate = widened(lines, lines.value(use), (*heads, *along), contracted) if has_width else lines.value(use)
            arguments.append(f"{name}={matrix(gate, heads, along, contracted if has_width else ())}")
            arguments += ["undecayed=True"] if role == "erase_undecayed" else []
    return [*arguments, f"key_mask={key_mask_of(heads)}"] if arguments else []


def written(run: ReferenceEvaluation, box: Box) -> tuple[Tensor | None, Tensor]:
    """The results of the queries, None without queries, and the last S [batch..., heads, own legs, contracted legs]."""
    key, (heads, contracted, own_legs) = str(box.leg), legs_of(box)
    legs, operands = (*heads, *own_legs, *contracted), dict[str, Tensor]()
    for role, use in [(role, use) for role, use in box.operands if role not in PAST]:
        along = run.graph.query if role == "query" else key
        step_leg = (str(box.other),) if box.other in use.legs else ()
        operand = aligned(run.values[use.name], use.legs, (along, *step_leg, *legs))
        operand = operand.movedim(-len(legs) - 1 - len(step_leg), 0)
        operand = operand.expand(run.size(along), *[-1] * (operand.ndim - 1))
        operands[role] = operand.movedim(-len(legs) - 1, 1).flatten(0, 1) if step_leg else operand
    q, k, v, rate = map(operands.get, ROLES)
    gates = {role: operands[role] for role in GATES if role in operands}
    keep = aligned(run.visible_keys(key), (key,), (key, *legs)).movedim(-len(legs) - 1, 0)
    past = [aligned(run.values[use.name], use.legs, legs) for use in past_of(box)]
    steps = 1 if box.other is None else run.size(box.other)
    if gates or box.other is not None:
        return gated_weights(q, k, v, rate, keep, len(contracted), past, steps, **gates)
    return fast_weights(q, k, v, rate, keep, len(contracted), box.mode or "none", run.number(box.number("eps")), past)


def operand_texts(lines: ForwardEmitter, box: Box) -> list[str]:
    """The query if there is one, keys and values as matrices, and the rates [heads..., sequence]."""
    heads, contracted, own_legs = legs_of(box)
    operands = []
    for role, use in box.operands:
        if role in ("query", "key", "value"):
            along = (lines.graph.query,) if role == "query" else sequence_of(box)
            operands.append(matrix(lines.value(use), heads, along, own_legs if role == "value" else contracted))
    rate = lines.value(box.operand("rate")).aligned((*heads, *sequence_of(box)), whole=True)
    return [*operands, rate.text if box.other is None else rate.grouped((*((leg,) for leg in heads), sequence_of(box)))]


def past_of(box: Box) -> list[Use]:
    """The state before the first key: the operands of a decoding cache, if any."""
    return [use for role, use in box.operands if role in PAST]


def past_text(lines: ForwardEmitter, box: Box) -> str:
    """The state before the first key: a list of S [heads..., d, e], [heads..., d] and [heads...]. Empty without it."""
    heads, contracted, own_legs = legs_of(box)
    groups = ((contracted, own_legs), (contracted,), ())
    states = []
    for use, widths in zip(past_of(box), groups, strict=False):
        state = lines.value(use).aligned((*heads, *(leg for width in widths for leg in width)), whole=True)
        states.append(state.grouped((*((leg,) for leg in heads), *widths)))
    return f"[{', '.join(states)}]" if states else ""


def key_mask_of(heads: Legs) -> str:
    """The key mask of the call, broadcast over these heads."""
    masked = f"key_mask[{', '.join(['...', *['None'] * len(heads), ':'])}]" if heads else "key_mask"
    return f"{masked} if key_mask is not None else None" if heads else masked


def normalized(lines: ForwardEmitter, box: Box) -> list[str]:
    """The arguments for the normalization."""
    mode = box.mode or "none"
    return [] if mode == "none" else [f'"{mode}"', *lines.eps(box.number("eps"))]


def fast_weights(
    q: Tensor | None,
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    keep: Tensor,
    contracted: int,
    mode: str,
    eps: float,
    past: Sequence[Tensor] = (),
) -> tuple[Tensor | None, Tensor]:
    """S += rate (v - S k) k^T key by key. Returns the reads of the queries at their positions, and the last S.

    Operands are [sequence, batch..., legs of the value, contracted legs]; reads are [batch..., legs of the value, n].
    """
    import torch

    dot = partial(dot_along, contracted)
    S, z = k.new_zeros(torch.broadcast_shapes(k.shape[1:], v.shape[1:])), k.new_zeros(k.shape[1:])
    seen, reads = keep.new_zeros(keep.shape[1:]), []
    if past:
        S = S + past[0]
    if len(past) > 1:
        z = z + past[1]
    if len(past) > 2:
        seen = seen | (past[2] > 0)
    first_query = len(k) - len(q) if q is not None else len(k)
    for position in range(min(0, first_query), len(k)):
        if position >= 0:
            scale = torch.where(seen, dot(z, k[position]), 1) if mode == "both" else 1
            key = over(k[position], scale + eps) if mode == "both" else k[position]
            S = torch.where(keep[position], S + rate[position] * scale * (v[position] - dot(S, key)) * key, S)
            z = torch.where(keep[position], z + k[position], z)
            seen = seen | keep[position]
        if q is not None and position >= first_query:
            read = dot(S, q[position - first_query])
            reads.append(read if mode == "none" else over(read, dot(z, q[position - first_query]) + eps))
    if q is None:
        return None, S
    return stacked_reads(reads, dot(S, q.new_zeros(q.shape[1:])), contracted), S


def gated_weights(
    q: Tensor | None,
    k: Tensor,
    v: Tensor,
    rate: Tensor,
    keep: Tensor,
    contracted: int,
    past: Sequence[Tensor] = (),
    steps: int = 1,
    decay: Tensor | None = None,
    erase: Tensor | None = None,
    erase_undecayed: Tensor | None = None,
    write: Tensor | None = None,
) -> tuple[Tensor | None, Tensor]:
    """S <- D S + rate (v write - key (D S erase)), D = exp(decay), key by key; otherwise like `fast_weights`.

    Each key may have several consecutive steps; S decays at the first of them.
    """
    import torch

    dot = partial(dot_along, contracted)
    write = k if write is None else write
    S, reads = k.new_zeros(torch.broadcast_shapes(k.shape[1:], v.shape[1:])), []
    S = S + past[0] if past else S
    first_query = len(keep) - len(q) if q is not None else len(keep)
    for position in range(min(0, first_query), len(keep)):
        for step in range(position * steps, (position + 1) * steps) if position >= 0 else ():
            seen, decays = keep[position], decay is not None and step == position * steps
            decayed = S * torch.where(seen, decay[position], 0).exp() if decays else S  # type: ignore[index]
            if erase_undecayed is not None:
                erased = dot(S, erase_undecayed[step])
            else:
                erased = dot(decayed, (k if erase is None else erase)[step])
            S = torch.where(seen, decayed + rate[step] * (v[step] * write[step] - k[step] * erased), S)
        if q is not None and position >= first_query:
            reads.append(dot(S, q[position - first_query]))
    if q is None:
        return None, S
    return stacked_reads(reads, dot(S, q.new_zeros(q.shape[1:])), contracted), S


def dot_along(legs: int, a: Tensor, b: Tensor) -> Tensor:
    """a b, summed over the last legs, which keep size 1."""
    return (a * b).sum(tuple(range(-legs, 0)), keepdim=True) if legs else a * b


def stacked_reads(reads: list[Tensor], empty: Tensor, contracted: int) -> Tensor:
    """Reads [..., contracted legs of size 1] -> [..., n]; `empty` has the shape of one, for calls without queries."""
    import torch

    stacked = torch.stack(torch.broadcast_tensors(*reads, empty), -1)[..., :-1]
    return stacked.flatten(stacked.ndim - 1 - contracted)


def widened(lines: ForwardEmitter, operand: TensorText, leading: Legs, width: Legs) -> TensorText:
    """An operand broadcast to all legs of the width."""
    if {*width} <= {*operand.legs}:
        return operand
    operand = operand.aligned((*leading, *width), whole=True)
    sizes = ", ".join([*map(lines.size, width), ""]).strip()
    return TensorText(lines.call("widened", operand.text, f"({sizes})"), operand.legs, operand.batched)


def matrix(operand: TensorText, heads: Legs, sequence: Legs, width: Legs) -> str:
    """An operand as [heads..., sequence, width]."""
    if any(leg not in operand.legs for leg in (*heads, *width)):
        operand = operand.aligned((*heads, *sequence, *width), whole=True)
    return operand.grouped((*((leg,) for leg in heads), sequence, width))
