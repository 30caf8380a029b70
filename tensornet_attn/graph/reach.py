"""Checks outputs, states and auxiliary losses, and reports everything that reaches none of them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

from tensornet_attn.graph.attention import ahead
from tensornet_attn.graph.graph import Graph, Loss, Step
from tensornet_attn.graph.scope import Scope
from tensornet_attn.ir.arithmetic import Arith
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.spec.design import Loss as Declared
from tensornet_attn.spec.names import identifier_problem
from tensornet_attn.spec.places import Path
from tensornet_attn.spec.report import meant

_NOUNS = {"inputs": "input", "weights": "weight", "constants": "constant", "noise": "noise tensor"}
_REMEDY = "use it or remove it."


def check_output(scope: Scope) -> None:
    """Checks that the output is a step with the query leg. If it is not, no step counts as unused."""
    output, diagram = scope.design.output, scope.design.diagram
    scope.used.add(output)
    problem = _output_problem(scope, output)
    if problem:
        scope.reporter.error(problem[0], problem[1], ("output",), hint=problem[2])
        scope.used |= {meant(problem[2])} if meant(problem[2]) else set(diagram)  # type: ignore[arg-type]


def _output_problem(scope: Scope, output: str) -> tuple[str, str, str] | None:
    if output in scope.open:
        return None
    if output not in scope.design.diagram:
        if output in scope.tensors:
            return "output", f"'{output}' is not a step of the diagram.", "name a step of the diagram."
        hint = scope.reporter.nearest(output, scope.design.diagram)
        return "unknown-name", f"there is no step '{output}'.", hint
    if scope.query is None and not scope.sizes.broken:
        return "output", "this design has no query leg for its output.", "declare a query leg, e.g. 'n: query'."
    if scope.query and scope.query not in scope.steps[output].legs:
        legs = " ".join(scope.steps[output].legs) or "none"
        message = f"the output '{output}' has no query leg; its legs are {legs}."
        return "output", message, f"give the output the leg '{scope.query}': it has a row for each query."
    return None


def check_updates(scope: Scope) -> None:
    """Checks that each state names a step with the same legs as its update."""
    for state in [tensor for tensor in scope.tensors.values() if tensor.role == "state"]:
        path, update = ("state", state.name, "update"), state.update or ""
        scope.used.add(update)
        if update in scope.open:
            continue
        if update not in scope.design.diagram:
            hint = scope.reporter.nearest(update, scope.design.diagram)
            scope.used.add(meant(hint) or "")
            scope.reporter.error("unknown-name", f"there is no step '{update}'.", path, hint=hint)
        elif set(scope.steps[update].legs) != set(state.legs):
            legs = " ".join(scope.steps[update].legs) or "none"
            message = f"'{update}' has legs {legs}, but the state has {' '.join(state.legs) or 'none'}."
            scope.reporter.error("size", message, path, hint="update the state with a step that has its legs.")


def check_unused(scope: Scope) -> None:
    """Reports unused steps, tensors, settings and legs, except those that only unused steps use."""
    mentioned = scope.used | scope.open
    steps = [name for name in scope.design.diagram if name not in mentioned]
    tensors = [
        (section, name) for section in _NOUNS for name in getattr(scope.design, section) if name not in mentioned
    ]
    explained = _explained(scope, [*steps, *(name for _, name in tensors)])
    for name in steps:
        if name not in explained:
            message = f"step '{name}' reaches no output."
            scope.reporter.error("unused", message, ("diagram", name), key=True, hint=_REMEDY)
    for section, name in tensors:
        if name not in explained:
            message = f"{_NOUNS[section]} '{name}' reaches no output."
            scope.reporter.error("unused", message, (section, name), key=True, hint=_REMEDY)
    _check_unused_legs(scope)


def _explained(scope: Scope, unused: list[str]) -> set[str]:
    """The unused names that unknown names explain: for each unknown name, the most similar unused tensor that fits.

    If none fits, a step is missing, and all unused steps are explained.
    """
    explained: set[str] = set()
    for use in scope.strange[:100]:
        fitting = [name for name in unused if name not in explained and scope.could_be(use, name)]
        if fitting:
            explained.add(_most_similar(use.name, fitting))
        else:
            explained |= set(unused) & scope.design.diagram.keys()
    return explained


def _check_unused_legs(scope: Scope) -> None:
    mentioned = scope.used_legs | scope.sizes.used | scope.sizes.broken
    unused = {name: ("legs", "leg") for name in scope.design.declared_legs if name not in mentioned}
    unused |= {name: ("settings", "setting") for name in scope.design.settings if name not in mentioned}
    for strange in sorted(scope.sizes.strange)[:100]:  # probably a misspelling of one of these
        unused.pop(_most_similar(strange, unused), None)
    for name, (section, noun) in unused.items():
        scope.reporter.error("unused", f"{noun} '{name}' is never used.", (section, name), key=True, hint=_REMEDY)


def _most_similar(name: str, candidates: Iterable[str]) -> str:
    return max(candidates, key=lambda candidate: SequenceMatcher(None, name, candidate).ratio(), default="")


def check_lengths(scope: Scope) -> None:
    """Checks that each sequence leg has a length: from an input, from the other one (self-attention), or a maximum."""
    declared = scope.tensors | scope.steps
    uses = [use for step in scope.steps.values() for use in step.uses if use.name in declared]
    inputs = {name for name, tensor in scope.tensors.items() if tensor.role == "input"}
    lengths = {leg for name in inputs for leg in scope.tensors[name].legs}
    lengths.update(leg for use in uses if use.name in inputs for leg in use.legs)
    glued = {
        (declared_leg, leg)
        for use in uses
        for declared_leg, leg in zip(declared[use.name].legs, use.legs, strict=True)
        if declared_leg != leg and scope.sizes.legs[declared_leg].sequence and scope.sizes.legs[leg].sequence
    }
    if any(declared_leg in lengths or leg in lengths for declared_leg, leg in glued):
        lengths.update(leg for pair in glued for leg in pair)
    for leg in scope.sizes.legs.values():
        sized = leg.name in lengths or leg.maximum is not None or leg.name not in scope.used_legs
        if leg.sequence and not sized and not scope.open:
            message = f"no input has the leg '{leg.name}', so its length is unknown."
            hint = f"use an input with this leg, or give it a maximum: '{leg.name}: {leg.kind} 256'."
            scope.reporter.error("run-time-leg", message, ("legs", leg.name), hint=hint)


def declare_losses(scope: Scope) -> tuple[Loss, ...]:
    """The valid losses of a design, whose steps are declared. Reports the problems of the others."""
    losses = [_loss(scope, name, declared) for name, declared in scope.design.losses.items()]
    if scope.design.losses and "losses" in scope.design.inputs:
        message = "input 'losses' has the name of the argument that requests losses."
        scope.reporter.error("name-taken", message, ("inputs", "losses"), key=True, hint="rename the input.")
    return tuple(loss for loss in losses if loss is not None)


def without_gradient(graph: Graph) -> list[str]:
    """The losses that depend on no input and no trainable weight."""
    learned = {t.name for t in graph.tensors if t.role == "input" or (t.role == "weight" and not t.frozen)}
    return [loss.name for loss in graph.losses if loss.step not in ahead(graph.steps, learned)]


def _loss(scope: Scope, name: str, declared: Declared) -> Loss | None:
    problem = identifier_problem(name)
    if problem:
        scope.reporter.error("name", problem[0], ("losses", name), key=True, hint=problem[1])
    step = name if declared.step is None else declared.step
    valid = _check_step(scope, name, step, declared)
    weight = _weight(scope, name, declared)
    return Loss(name, step, weight) if valid and weight is not None else None


def _check_step(scope: Scope, name: str, step: str, declared: Declared) -> bool:
    """Whether a loss names a step without legs; reports it otherwise."""
    key = declared.step is None
    path: Path = ("losses", name) if key else ("losses", name, "step")
    scope.used.add(step)
    if step in scope.open:
        return False
    if step not in scope.design.diagram:
        if step in scope.tensors:
            message, hint = f"'{step}' is not a step of the diagram.", "name a step of the diagram."
            scope.reporter.error("loss", message, path, key=key, hint=hint)
        else:
            hint = _nearest(scope, name, step, declared)
            scope.reporter.error("unknown-name", f"there is no step '{step}'.", path, key=key, hint=hint)
        scope.used |= (
            {str(meant(hint))} if meant(hint) else set(scope.design.diagram)
        )  # without a step, no step counts as unused
        return False
    loss_step = scope.steps[step]
    if loss_step.legs:
        legs = f"leg{'s' * (len(loss_step.legs) > 1)} {' '.join(loss_step.legs)}"
        message = f"'{step}' has the {legs}; a loss is a scalar."
        scope.reporter.error(
            "loss", message, path, key=key, hint=f"name a step without legs, e.g. {_averaged(loss_step)}."
        )
    return not loss_step.legs


def _nearest(scope: Scope, name: str, step: str, declared: Declared) -> str:
    """The hint for an unknown step: the most similar one or, if the loss names no step, how to name one."""
    hint = scope.reporter.nearest(step, scope.design.diagram)
    if declared.step is None and meant(hint) is None:
        return f"name a step, e.g. '{name}: {{step: ..., weight: {declared.weight}}}'."
    return hint


def _averaged(step: Step) -> str:
    """`{mean: n, of: {mean: e, of: H}}`."""
    expression = step.name
    for leg in reversed(step.legs):
        expression = f"{{mean: {leg}, of: {expression}}}"
    return f"'{expression}'"


def _weight(scope: Scope, name: str, declared: Declared) -> Arith | None:
    written = scope.reporter.document.value(("losses", name))
    path: Path = ("losses", name, "weight") if isinstance(written, dict) else ("losses", name)
    try:
        return scope.number(declared.weight, "the weight of a loss")[0]
    except Refusal as refusal:
        scope.reporter.syntax(refusal, path)
        return None
