"""Writes a diagram as text: its declarations, then one line per step, without loss of information."""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.draw.core import core_words
from tensornet_attn.draw.kept import NOTHING, Marks, kept_lines
from tensornet_attn.draw.words import box_words, call_words, factor_words, is_one, plain, scale_words, signed, use_words
from tensornet_attn.graph.diagram import operation_of, producer_of
from tensornet_attn.graph.graph import Box, Contraction, Graph, Leg, Step, Tensor, Term, Use
from tensornet_attn.ir.arithmetic import to_text as arithmetic
from tensornet_attn.ops import OPS

WIDTH = 110  # leaves room for a comment prefix
_ROLES = (("input", "inputs"), ("weight", "weights"), ("constant", "constants"), ("noise", "noise"), ("state", "state"))
_INDENT = 10


def diagram_text(graph: Graph, title: str | None = None, about: str | None = None, kept: Marks = NOTHING) -> str:
    """The diagram as text: title, legs, tensors by role, steps and output; `kept` has the marks of steps."""
    head = f"{plain(title or graph.name)}" + (f": {plain(about)}" if about else "")
    blocks = [[head], declaration_lines(graph), step_lines(graph), [*_end_lines(graph), *kept_lines(kept)]]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def declaration_lines(graph: Graph) -> list[str]:
    """Legs and tensors with their sizes, initial values and roles, wrapped."""
    rows = [("legs", [_leg(leg) for leg in graph.legs])]
    if graph.settings:
        rows.append(("settings", [f"{name} = {value!r}" for name, value in graph.settings]))
    rows += [(title, [_tensor(tensor) for tensor in graph.of_role(role)]) for role, title in _ROLES]
    rows.append(("core", core_words(graph)))
    return [line for title, declarations in rows if declarations for line in _wrap(title, declarations)]


def step_lines(graph: Graph) -> list[str]:
    """One line per step, with aligned `=`. If the line is too long, nested steps have their own lines before it."""
    rows = []
    separate: set[str] = set()
    for step in reversed(graph.steps):
        operation = _operation(graph, step, fold=True, legs_known=True)
        if len(_left(step)) + 3 + len(operation) > WIDTH:
            operation = _operation(graph, step, fold=False, legs_known=True)
            separate |= {use.name for use in step.uses if _folds(graph, use)} if step.box is not None else set()
        if not step.nested or step.name in separate:
            rows.append((_left(step), operation))
    width = max((len(left) for left, _ in rows), default=0)
    return [f"{left:<{width}} = {right}" for left, right in reversed(rows)]


def _end_lines(graph: Graph) -> list[str]:
    kept = "averaged over the batch, after each training call"
    lines = [f"{state} becomes {step}, {kept}" for state, step in graph.updates]
    for loss in graph.losses:
        name = loss.name if loss.name == loss.step else f"{loss.name}, which is {loss.step},"
        lines.append(f"loss {name} averaged over the batch, times {arithmetic(loss.weight)} in training")
    return [*lines, f"output {graph.output}{'; causal' * graph.causal}"]


def _wrap(title: str, declarations: Iterable[str]) -> list[str]:
    lines, indent = [f"{title:<{_INDENT}}"], " " * _INDENT
    for index, declaration in enumerate(declarations):
        piece = f", {declaration}" if index else declaration
        if len(lines[-1]) + len(piece) > WIDTH and lines[-1].strip() != title:
            lines[-1] += ","
            lines.append(indent + declaration)
        else:
            lines[-1] += piece
    return lines


def _leg(leg: Leg) -> str:
    kind = "" if leg.kind == "size" else f" {leg.kind}"
    bound = leg.maximum if leg.maximum is not None else leg.reach
    if bound is not None:
        return f"{leg.name}{kind} {bound}"
    if leg.text is None:
        return f"{leg.name}{kind}"
    written = arithmetic(leg.text)
    size = "" if leg.size is None or written == str(leg.size) else f" = {leg.size}"
    return f"{leg.name}{kind} = {written}{size}"


def _tensor(tensor: Tensor) -> str:
    notes = [call_words(tensor.init)] if tensor.init is not None and tensor.role != "weight" else []
    if tensor.role == "weight" and tensor.init is not None and call_words(tensor.init) != "xavier":
        notes.append(call_words(tensor.init))
    notes += ["frozen"] if tensor.frozen else []
    notes += [f"default {tensor.default}"] if tensor.default is not None else []
    notes += [f"std {arithmetic(tensor.std)}"] if tensor.role == "noise" and not is_one(tensor.std) else []
    notes += ["always"] if tensor.always else []
    return f"{tensor.name}[{' '.join(tensor.legs)}]" + (f" ({', '.join(notes)})" if notes else "")


def _left(step: Step) -> str:
    return f"{step.name}[{' '.join(step.legs)}]"


def _folds(graph: Graph, use: Use) -> bool:
    """Whether an operand is a nested step that is written inline: its use has the legs of the step."""
    return use.name in graph.step and graph.step[use.name].nested and graph.step[use.name].legs == use.legs


def _operation(graph: Graph, step: Step, fold: bool, legs_known: bool) -> str:
    """An operation as text; `legs_known` if the context determines the legs of its result."""
    if step.contraction is not None:
        return _sum(step.contraction) if legs_known else f"{_sum(step.contraction)} -> {' '.join(step.legs)}"
    if step.kernel is not None:
        return f"{step.kernel.kind} of {', '.join(map(use_words, step.kernel.uses))}"
    assert step.box is not None
    return _box(graph, step, step.box, fold, legs_known)


def _sum(contraction: Contraction) -> str:
    first, *others = contraction.terms
    sign, product = _term(first)
    return ("-" if sign == "-" else "") + product + "".join(f" {s} {t}" for s, t in map(_term, others))


def _term(term: Term) -> tuple[str, str]:
    sign, coefficient = signed(term.coefficient)
    product = " ".join(use_words(use) for use in term.factors)
    if not product:
        return sign, factor_words(coefficient)
    return sign, product if is_one(coefficient) else f"{factor_words(coefficient)} * {product}"


def _box(graph: Graph, step: Step, box: Box, fold: bool, legs_known: bool) -> str:
    head = ", ".join(box_words(graph, step, scale=False))
    operands = [(role, use) for role, use in box.operands if role != "by" or use != box.of]
    if len(operands) > 1:
        operand_texts = {role: _operand(graph, use, fold) for role, use in operands}
        scale = dict(box.numbers).get("scale")
        operand_texts |= (
            {} if scale is None or is_one(scale) else {"of": f"{scale_words(scale)} * {operand_texts['of']}"}
        )
        return f"{head}, " + ", ".join(f"{role} {operand}" for role, operand in operand_texts.items())
    of = box.of
    legs_known = legs_known and not OPS[box.kind].makes_leg  # then operand and result have different legs
    operand, atom = _inner(graph, of, fold, legs_known)
    numbers = dict(box.numbers)
    if "scale" in numbers and not is_one(numbers["scale"]):
        operand, atom = f"{scale_words(numbers['scale'])} * {operand if atom else f'({operand})'}", False
    if OPS[box.kind].has_map:
        return f"{head}({operand})"
    return f"{head} of ({operand})" if not atom and not legs_known else f"{head} of {operand}"


def _inner(graph: Graph, use: Use, fold: bool, legs_known: bool) -> tuple[str, bool]:
    """The text of an operand, and whether a scale can precede it without parentheses."""
    if not (fold and _folds(graph, use)):
        return use_words(use), True
    step = graph.step[use.name]
    operation = _operation(graph, step, fold, legs_known)
    sum_ = step.contraction
    single = sum_ is not None and len(sum_.terms) == 1 and legs_known and signed(sum_.terms[0].coefficient)[0] == "+"
    return operation, single or operation_of(step).has_map


def _operand(graph: Graph, use: Use, fold: bool) -> str:
    step = producer_of(graph, use)
    number = step is not None and not (step.uses or step.legs)
    operand, atom = _inner(graph, use, fold, legs_known=number)
    return operand if atom or number else f"({operand})"
