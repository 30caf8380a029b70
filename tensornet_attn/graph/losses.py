"""Auxiliary losses: each names a step without legs and a weight, and may have a gradient."""

from __future__ import annotations

from tensornet_attn.graph.model import Graph, Loss, Step
from tensornet_attn.graph.scope import Scope
from tensornet_attn.ir.arithmetic import Arith
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.spec.design import Loss as Declared
from tensornet_attn.spec.names import identifier_problem
from tensornet_attn.spec.places import Path
from tensornet_attn.spec.report import meant


def declare_losses(scope: Scope) -> tuple[Loss, ...]:
    """The losses of a design whose steps are declared; what is wrong with the others is reported."""
    made = [_loss(scope, name, declared) for name, declared in scope.design.losses.items()]
    if scope.design.losses and "losses" in scope.design.inputs:
        message = "input 'losses' has the name of the argument that asks for losses."
        scope.reporter.error("name-taken", message, ("inputs", "losses"), key=True, hint="rename the input.")
    return tuple(loss for loss in made if loss is not None)


def without_gradient(graph: Graph) -> list[str]:
    """The losses on which no input and no trainable weight acts."""
    learned = {t.name for t in graph.tensors if t.role == "input" or (t.role == "weight" and not t.frozen)}
    for step in graph.steps:
        if any(use.name in learned for use in step.op.uses):
            learned.add(step.name)
    return [loss.name for loss in graph.losses if loss.step not in learned]


def _loss(scope: Scope, name: str, declared: Declared) -> Loss | None:
    problem = identifier_problem(name)
    if problem:
        scope.reporter.error("name", problem[0], ("losses", name), key=True, hint=problem[1])
    step = name if declared.step is None else declared.step
    whole = _check_step(scope, name, step, declared)
    weight = _weight(scope, name, declared)
    return Loss(name, step, weight) if whole and weight is not None else None


def _check_step(scope: Scope, name: str, step: str, declared: Declared) -> bool:
    """Whether a loss names a step without legs."""
    key = declared.step is None
    path: Path = ("losses", name) if key else ("losses", name, "step")
    scope.used.add(step)
    if step in scope.open:
        return False
    if step not in scope.design.diagram:
        if step in scope.tensors:
            message, hint = f"'{step}' is no step of the diagram.", "name a step: a loss is computed."
            scope.reporter.error("loss", message, path, key=key, hint=hint)
        else:
            hint = _nearest(scope, name, step, declared)
            scope.reporter.error("unknown-name", f"there is no step '{step}'.", path, key=key, hint=hint)
        scope.used |= {str(meant(hint))} if meant(hint) else set(scope.design.diagram)  # nobody knows what reaches it
        return False
    made = scope.steps[step]
    if made.legs:
        legs = f"leg{'s' * (len(made.legs) > 1)} {' '.join(made.legs)}"
        message = f"'{step}' has the {legs}; a loss is a scalar."
        scope.reporter.error("loss", message, path, key=key, hint=f"name a step that has none, e.g. {_averaged(made)}.")
    return not made.legs


def _nearest(scope: Scope, name: str, step: str, declared: Declared) -> str:
    """The step that was meant; where none resembles the name of the loss, how to give one."""
    hint = scope.reporter.nearest(step, scope.design.diagram)
    if declared.step is None and meant(hint) is None:
        return f"give the name of a step, e.g. '{name}: {{step: ..., weight: {declared.weight}}}'."
    return hint


def _averaged(step: Step) -> str:
    """`{mean: n, of: {mean: e, of: H}}`."""
    text = step.name
    for leg in reversed(step.legs):
        text = f"{{mean: {leg}, of: {text}}}"
    return f"'{text}'"


def _weight(scope: Scope, name: str, declared: Declared) -> Arith | None:
    place = scope.reporter.document.value(("losses", name))
    path: Path = ("losses", name, "weight") if isinstance(place, dict) else ("losses", name)
    try:
        return scope.number(declared.weight, "the weight of a loss")[0]
    except Refusal as refusal:
        scope.reporter.syntax(refusal, path)
        return None
