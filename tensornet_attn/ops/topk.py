"""`of` at the k entries along the leg where `by` is largest, 0 elsewhere; optionally only within the best groups.

Over the key leg, masks apply: hidden keys are not chosen, and if fewer than k are visible, all of them are.
"""

from __future__ import annotations

from math import inf

from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.ops.given import Checker, ForwardEmitter, Graph, ReferenceEvaluation, Tensor
from tensornet_attn.ops.operation import Operation, aligned, axis_of, dim_of
from tensornet_attn.ops.schema import Arithmetic, BoxModel, Fill, LegNames, Masks, Operand

OF_GROUPS = ("groups", "k_groups", "k_in_group")


class TopK(BoxModel):
    """`of` at the k entries along the leg where `by` is largest, `fill` elsewhere.

    `groups` divides the leg into groups of neighbouring entries. Only the best `k_groups` groups count, ranked by the
    sum of their `k_in_group` largest entries.
    """

    numbers = ("k", *OF_GROUPS, "fill")
    operands = ("of", "by")
    optional = frozenset({*OF_GROUPS, "fill"})
    topk: LegNames
    k: Arithmetic
    groups: Arithmetic | None = None
    k_groups: Arithmetic | None = None
    k_in_group: Arithmetic | None = None
    fill: Fill = None
    mask: Masks = ()
    by: Operand | None = None
    of: Operand


class TopKOperation(Operation):
    kind = "topk"
    model = TopK
    masked = runs_along = keeps_sign = selects = True
    takes_float_mask = False  # the box that weights the chosen keys adds it
    ignores_zeros = "nonnegative"
    per_element = 2  # compare, select
    saves = ("chosen",)
    without_gradient = ("by",)

    def check(self, box: Checker, name: str, value: int | float, leg: str, other: str) -> None:
        size = box.declared[leg].size
        if name == "fill":
            return
        if size is None and name == "groups" and not box.broken(leg):
            hint = "use a leg with a size."
            raise Refusal("run-time-leg", f"leg '{leg}' is sized at run time and cannot be divided into groups.", hint)
        if size is None or box.broken(leg):
            return
        groups = box.number("groups") if box.is_set("groups") else None
        group_size = size // int(groups) if groups else size
        if name == "k" and value > size:
            raise Refusal("k-too-large", f"'k' is {value}, but leg '{leg}' has size {size}.", f"use at most {size}.")
        if name == "groups" and size % value:
            message = f"'groups' is {value}, which does not divide the size {size} of '{leg}'."
            raise Refusal("number", message, f"set 'groups' to a divisor of {size}.")
        if name == "k_groups" and groups and value > groups:
            raise Refusal(
                "k-too-large", f"'k_groups' is {value}, but there are {groups} groups.", f"use at most {groups}."
            )
        if name == "k_in_group" and groups and value > group_size:
            raise Refusal(
                "k-too-large",
                f"'k_in_group' is {value}, but a group has {group_size} entries.",
                f"use at most {group_size}.",
            )
        k = box.number("k")
        if name == "k_groups" and groups and k is not None and k > value * group_size:
            message = f"'k' is {k}, but {value} groups have {value * group_size} entries of '{leg}' together."
            raise Refusal("k-too-large", message, f"use at most {value * group_size}.")

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        legs, by = box.legs or (), box.operands["by"].legs
        if leg not in by or set(by) - set(legs):
            box.written("by")
            has = f"'by' has legs {' '.join(by) or 'none'}; 'of' has {' '.join(legs)}"
            raise Refusal("box-leg", f"{has}.", f"give 'by' the leg '{leg}', and only legs of 'of'.")
        for name, needs in (("groups", "k_groups"), ("k_groups", "groups"), ("k_in_group", "groups")):
            if box.is_set(name) and not box.is_set(needs):
                message = f"'{name}' needs '{needs}'."
                hint = "e.g. 'groups: 8, k_groups: 4' for the best 4 of 8 groups of neighbouring entries."
                raise Refusal("missing-key", message, hint)
        return legs

    def finite(self, graph: Graph, box: Box) -> bool:
        return self.zeros_elsewhere(box)

    def zero_at_zero(self, graph: Graph, box: Box) -> bool:
        return self.zeros_elsewhere(box)

    def lower_bound(self, graph: Graph, box: Box, below: float) -> float:
        return super().lower_bound(graph, box, below) if self.zeros_elsewhere(box) else -inf

    def zero_at_hidden(self, box: Box) -> bool:
        return self.zeros_elsewhere(box)

    def zeros_elsewhere(self, box: Box) -> bool:
        return "fill" not in dict(box.numbers)

    def nothing_elsewhere(self, box: Box) -> bool:
        return not self.zeros_elsewhere(box)

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        """A stable sort keeps equal entries in order, so that the smaller index wins."""
        import torch

        axis, role = axis_of(box.leg, step.legs), "by" if "by" in dict(box.operands) else "of"
        _, keep, legs, _ = run.masked(step)
        of, by, keep = torch.broadcast_tensors(
            run.operand(step), run.operand(step, role), aligned(keep, legs, step.legs)
        )
        no_entries = torch.zeros_like(by, dtype=torch.bool)

        def chosen(scores: Tensor, k: int, axis: int) -> Tensor:
            order = scores.sort(dim=axis, descending=True, stable=True).indices.narrow(axis, 0, k)
            return torch.zeros_like(scores, dtype=torch.bool).scatter(axis, order, True)

        scores, numbers = by, {name: int(evaluate(box.number(name), run.graph.values)) for name in groups_of(box)}
        if numbers:
            grouped = by.movedim(axis, -1).unflatten(-1, (numbers["groups"], -1))
            best = grouped.sort(dim=-1, descending=True).values[..., : numbers.get("k_in_group", 1)].sum(-1)
            inside = (
                chosen(best, numbers["k_groups"], -1)[..., None].expand(grouped.shape).flatten(-2).movedim(-1, axis)
            )
            scores = torch.where(inside, by, -inf)
        scores = torch.where(keep, scores.clamp(min=torch.finfo(scores.dtype).min), -inf)  # hidden entries are last
        selected = keep & chosen(scores, min(int(run.number(box.number("k"))), scores.shape[axis]), axis)
        elsewhere = torch.where(no_entries, by, 0 if self.zeros_elsewhere(box) else -inf)  # `by` gets zero gradients
        return torch.where(selected, of, elsewhere), step.legs

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        self._emit(lines, step, box, lines.value(box.of), [])

    def emit_masked(
        self, lines: ForwardEmitter, step: Step, box: Box, operand: TensorText, keep: str, bias: str
    ) -> None:
        self._emit(lines, step, box, operand, [f"keep={keep}", "few=True"])

    def _emit(self, lines: ForwardEmitter, step: Step, box: Box, of: TensorText, masks: list[str]) -> None:
        by, k, dim = lines.value(box.operand("by")), lines.integer(box.number("k")), str(dim_of(of, box.leg))
        fill = [] if self.zeros_elsewhere(box) else ['float("-inf")']
        ranked = ranks(lines, box, by.aligned(of.legs).text, dim)
        lines.bind(step.name, lines.call("top_entries", of.text, ranked, k, dim, *fill, *masks), of.legs)


def groups_of(box: Box) -> tuple[str, ...]:
    """The names of the numbers about groups that the box has."""
    return tuple(name for name, _ in box.numbers if name in OF_GROUPS)


def ranks(lines: ForwardEmitter, box: Box, by: str, dim: str) -> str:
    """The text of the scores that rank entries; minus infinity outside the best groups."""
    numbers = {name: lines.integer(box.number(name)) for name in groups_of(box)}
    if not numbers:
        return by
    best_of = [numbers["k_in_group"]] if "k_in_group" in numbers else []
    return lines.call("in_best_groups", by, numbers["groups"], numbers["k_groups"], dim, *best_of)
