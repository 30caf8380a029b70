"""An elementwise recurrence along the keys, h = exp(decay) h + x, read at each query's own position."""

from __future__ import annotations

from tensornet_attn.ir.steps import Box, Step, Use, without
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs
from tensornet_attn.ops.given import Checker, ForwardEmitter, ReferenceEvaluation, Scene, Tensor
from tensornet_attn.ops.operation import Operation, aligned, check_key_leg
from tensornet_attn.ops.schema import BoxModel, LegName, Operand


class Scan(BoxModel):
    """h = exp(decay) h + of, key by key; a query reads h at its own position."""

    operands = ("of", "decay")
    scan: LegName
    decay: Operand
    of: Operand


class ScanOperation(Operation):
    kind = "scan"
    model: type[BoxModel] | None = Scan
    recurrent = looks_back = by_position = True
    logarithms = ("decay",)
    saves: tuple[str, ...] = ("decay", "result")

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        """The legs of `of`, with the key leg replaced by the query leg."""
        query, operand_legs = box.query, box.operands["of"].legs
        check_key_leg(box, "scan", leg)
        if query is None:
            box.written("scan")
            raise Refusal(
                "box-leg", "this design has no query leg to read a scan.", "declare a query leg, e.g. 'n: query'."
            )
        for role, use in box.operands.items():
            if (leg not in use.legs or query in use.legs) and not box.broken(*use.legs):
                box.written(role)
                message = f"'{role}' has legs {' '.join(use.legs) or 'none'}; it needs '{leg}' and not '{query}'."
                raise Refusal(
                    "box-leg", message, f"use an operand on the leg '{leg}'; a scan has a result for each query."
                )
        if unmatched := [name for name in box.operands["decay"].legs if name not in operand_legs]:
            box.written("decay")
            message = f"leg '{unmatched[0]}' of 'decay' is not on 'of'."
            raise Refusal("dangling", message, "use legs of 'of' in 'decay', or sum this leg before.")
        return tuple(query if name == leg else name for name in operand_legs)

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        return scanned(run, box)[0], (*without(box.of.legs, box.leg), run.graph.query)

    def operations(self, scene: Scene, step: Step, box: Box) -> int:
        """The exp of the decay, a product and a sum."""
        return scene.elements(box.operand("decay")) + 2 * scene.elements(box.of)

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        key, query = str(box.leg), lines.graph.query
        legs = without(box.of.legs, key)
        lines.bind(step.name, lines.call("scan_sums", *scan_texts(lines, box), lines.length(query)), (query, *legs))


class ScanStateOperation(ScanOperation):
    """The state of a scan after the last key."""

    kind = "scan_state"
    model = None
    saves = ()

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        return scanned(run, box)[1], without(box.of.legs, box.leg)

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        lines.bind(step.name, lines.call("scan_state", *scan_texts(lines, box)), without(box.of.legs, box.leg))


def past_of(box: Box) -> Use | None:
    """The state before the first key: an operand of a decoding cache. Returns None without a cache."""
    return dict(box.operands).get("state")


def scanned(run: ReferenceEvaluation, box: Box) -> tuple[Tensor, Tensor]:
    """h at each query's position, [batch..., legs without the key leg, n], and h after the last key."""
    import torch

    key, m, n = str(box.leg), run.size(str(box.leg)), run.size(run.graph.query)
    legs = without(box.of.legs, key)
    operands = [(run.values[use.name], use.legs) for use in (box.of, box.operand("decay"))]
    operands.append((run.visible_keys(key), (key,)))
    x, decay, keep = torch.broadcast_tensors(*(aligned(tensor, have, (*legs, key)) for tensor, have in operands))
    past, reads = past_of(box), []
    h = torch.zeros_like(x[..., :1].sum(-1)) if past is None else aligned(run.values[past.name], past.legs, legs)
    for position in range(min(0, m - n), m):
        if position >= 0:
            seen = keep[..., position]
            h = torch.where(seen, torch.where(seen, decay[..., position], 0).exp() * h + x[..., position], h)
        if position >= m - n:
            reads.append(h)
    return torch.stack([*reads, h], -1)[..., :-1], h


def scan_texts(lines: ForwardEmitter, box: Box) -> list[str]:
    """`of` and `decay` as [..., m, legs...], the number of these legs, the state before, the key mask."""
    key = str(box.leg)
    legs = without(box.of.legs, key)
    x = lines.value(box.of).arranged((key, *legs)).text
    decay = lines.value(box.operand("decay")).aligned((key, *legs)).text
    past = past_of(box)
    initial_state = "None" if past is None else lines.value(past).aligned(legs, whole=True).text
    return [x, decay, str(len(legs)), initial_state, "key_mask"]
