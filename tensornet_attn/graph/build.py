"""Builds a checked Graph from a Design. All problems are reported together."""

from __future__ import annotations

from typing import Any

from tensornet_attn import limits
from tensornet_attn.errors import DesignError, InputError, Problem
from tensornet_attn.graph.causal import causal_leaks
from tensornet_attn.graph.doubts import rotated_alone, unnormalized_scores
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.reach import (
    check_lengths,
    check_output,
    check_unused,
    check_updates,
    declare_losses,
    without_gradient,
)
from tensornet_attn.graph.recurrence import erases
from tensornet_attn.graph.scope import Scope
from tensornet_attn.graph.signs import doubtful_normalizers, growing_decays, growing_exponentials
from tensornet_attn.graph.steps import declare_steps
from tensornet_attn.graph.tensors import declare_tensors
from tensornet_attn.ir.steps import legs_in
from tensornet_attn.ops import OPS
from tensornet_attn.ops.schema import BOXES, kinds_of
from tensornet_attn.spec.design import SECTIONS, Design
from tensornet_attn.spec.names import identifier_problem
from tensornet_attn.spec.places import Path
from tensornet_attn.spec.read import ReadDesign
from tensornet_attn.spec.report import Reporter
from tensornet_attn.spec.sizes import Sizes


def build(design: Design, causal: bool | None = None) -> Graph:
    """Builds and checks the graph of a design; `causal` overrides the design's own flag.

    Raises DesignError with all errors if the design is invalid. `tensornet_attn.check` also returns warnings.
    """
    if causal not in (None, True, False):
        raise InputError(f"{design.name}: causal is {causal!r}; give True, False, or None for the design's own.")
    reporter = Reporter(design.document)
    graph = examine(ReadDesign(design, reporter), causal)
    problems = reporter.problems()
    if graph is None or any(problem.severity == "error" for problem in problems):
        raise DesignError(problem for problem in problems if problem.severity == "error")
    return graph


def problems_of(reading: ReadDesign) -> list[Problem]:
    """Checks a reading and returns all its problems, including warnings."""
    examine(reading)
    return reading.reporter.problems()


def examine(reading: ReadDesign, causal: bool | None = None) -> Graph | None:
    """Checks a reading and reports its problems. Returns the graph, or None if there is an error."""
    design, reporter = reading.design, reading.reporter
    if design is None:
        return None
    heads = {str(path[0]) for path in reading.broken if len(path) == 1}
    _check_name(design, reporter, reading.broken)
    if heads & {"legs", "inputs", "diagram"}:
        return None
    if _too_many(design, reporter):
        return None
    scope = _scope(design, reporter, reading.broken, heads)
    if "output" not in heads:
        check_output(scope)
    else:  # no step counts as unused
        scope.used |= set(design.diagram)
    check_updates(scope)
    losses = declare_losses(scope)
    complete = not (scope.open or reporter.failed)
    for path in reporter.cut:
        scope.mentions(reporter.document.value(path))
    if not heads & {*SECTIONS} and not _hollow(reading):
        check_unused(scope)
    check_lengths(scope)
    if not complete:
        return None
    graph = Graph(
        name=design.name,
        legs=tuple(scope.sizes.legs.values()),
        settings=tuple(scope.sizes.settings.items()),
        tensors=tuple(scope.tensors.values()),
        steps=tuple(scope.steps.values()),
        output=design.output,
        causal=bool(design.causal) if causal is None else causal,
        losses=losses,
    )
    _check_causal(graph, scope, causal)
    _check_decays(graph, scope)
    _warn(graph, scope)
    return None if reporter.failed else graph


def _check_decays(graph: Graph, scope: Scope) -> None:
    for step, role in growing_decays(graph):
        message = f"'{role}' of '{step}' is never negative, so the state grows at each key."
        hint = "use logarithms of numbers below 1, e.g. '-1 * speed[h] step[m h] -> m h' or 'map: log'."
        scope.reporter.error("growing-decay", message, (*scope.paths[step], role), hint=hint)


def _warn(graph: Graph, scope: Scope) -> None:
    for step in doubtful_normalizers(graph):
        message = f"'{step}' normalizes values that may be negative, so it may divide by a sum near zero."
        hint = "apply a map such as relu, elu1 or exp, which is not negative; 'eps' helps a little."
        scope.reporter.warning("negative-normalize", message, (*scope.paths[step], "normalize"), key=True, hint=hint)
    for step in growing_exponentials(graph):
        message = f"'{step}' is the exp of a cumulative sum, and overflows in float32 after some tens of keys."
        hint = (
            "compute exp(c[n] - c[m]) for a query and a key in one map inside 'keep', or use the logarithms as 'decay' "
            "of a delta_rule or a scan."
        )
        scope.reporter.warning("growing-exp", message, scope.paths[step], hint=hint)
    for step in unnormalized_scores(graph) if not scope.reporter.failed else ():  # a causal leak says it already
        box = graph.step[step].box
        assert box is not None
        message = (
            f"'{step}' is a {box.kind} over '{box.leg}', and nothing normalizes its scores over the keys '{graph.key}'."
        )
        hint = f"write '{box.kind}: {graph.key}', or normalize the result over '{graph.key}' in another box."
        scope.reporter.warning("softmax-leg", message, (*scope.paths[step], box.kind), hint=hint)
    for rotated, unrotated in rotated_alone(graph):
        message = f"'{rotated}' is rotated and '{unrotated}' is not, so their product depends on absolute positions."
        hint = f"rotate '{unrotated}' too, or neither of them."
        scope.reporter.warning("rotated-alone", message, scope.paths[rotated], hint=hint)
    for name in without_gradient(graph):
        message = f"loss '{name}' depends on no input and no trainable weight, so it has no gradient."
        hint = "make it depend on an input or a trainable weight, or remove it."
        scope.reporter.warning("no-gradient", message, ("losses", name), key=True, hint=hint)


def _check_name(design: Design, reporter: Reporter, broken: list[Path]) -> None:
    problem = identifier_problem(design.name)
    if problem is None and design.name != design.name.lower():
        problem = f"'{design.name}' has capital letters.", "use small letters, digits and _."
    if problem and ("name",) not in broken:
        reporter.error("name", problem[0], ("name",), hint=problem[1])


def _too_many(design: Design, reporter: Reporter) -> bool:
    """Whether sections exceed the limits; reports them."""
    tensors = sum(len(getattr(design, section)) for section in SECTIONS if section not in ("legs", "settings"))
    counts = [("legs", "legs", len(design.declared_legs), limits.LEGS)]
    counts += [("settings", "settings", len(design.settings), limits.TENSORS)]
    counts += [("diagram", "tensors and steps", tensors, limits.TENSORS)]
    for section, noun, count, limit in counts:
        if count > limit:
            message = f"this design declares {count} {noun}."
            reporter.error("too-large", message, (section,), key=True, hint=f"declare at most {limit}.")
    return any(count > limit for _, _, count, limit in counts)


def _hollow(reading: ReadDesign) -> bool:
    """Whether a broken step lacks a key, so that the names it uses are unknown."""
    paths = (*reading.broken, *reading.reporter.cut)
    definitions = (reading.reporter.document.value(path[:2]) for path in paths if path[:1] == ("diagram",))
    return not all(_has_content(definition) for definition in definitions)


def _has_content(definition: Any) -> bool:
    if not isinstance(definition, dict):
        return isinstance(definition, (str, list))
    model = BOXES[(*kinds_of(definition), "map")[0]]  # an unknown box needs its operand, as a map does
    needed = {field.alias or name for name, field in model.model_fields.items() if field.is_required()} - {"map"}
    roles = needed.intersection(model.operands)
    return needed <= definition.keys() and all(_has_content(definition[role]) for role in roles)


def _scope(design: Design, reporter: Reporter, broken: list[Path], heads: set[str]) -> Scope:
    """The sizes, tensors and steps of a design, without the broken ones."""
    lost = {str(path[1]) for path in broken if len(path) == 2 and path[0] in ("legs", "settings")}
    sizes = Sizes.of(design.declared_legs, design.settings, reporter, lost, blind="settings" in heads)
    scope = Scope(design, reporter, sizes, blind=bool(heads & {"weights", "constants", "noise", "state"}))
    for path in broken:
        if len(path) == 2 and path[0] not in ("legs", "settings"):
            names = scope.used if path[0] == "losses" else scope.open
            names.add(str(path[1]))
            scope.mentions(reporter.document.value(path))
    declare_tensors(scope)
    declare_steps(scope)
    return scope


def _check_causal(graph: Graph, scope: Scope, causal: bool | None) -> None:
    fast_weights = [step.name for step in graph.steps if erases(step)]
    if fast_weights and (causal is False or (causal is None and scope.design.causal is False)):
        message = f"'{fast_weights[0]}' is a delta rule, which is always causal."
        path: Path = ("causal",) if causal is None else scope.paths[fast_weights[0]]
        hint = "remove 'causal: false'." if causal is None else "remove 'causal=False'."
        scope.reporter.error("causal-by-nature", message, path, hint=hint)
    if not graph.causal:
        return
    for step, message in causal_leaks(graph):
        box, read = graph.step[step].box, legs_in(graph.step[step].uses)
        remedy = "put a softmax, normalize or keep box around the scores"
        if box is not None and box.leg == graph.query:
            scores = graph.key in box.of.legs
            remedy = f"run it along the key leg '{graph.key}'" if scores else "run a 'cumsum' box over the keys instead"
            if not (scores or OPS[box.kind].linear):  # no sum that a cumsum could replace
                remedy = f"run it along a leg without positions, or along the keys '{graph.key}' of scores"
        if graph.query not in read:
            remedy = (
                f"give its operand the query leg '{graph.query}', so that each query has its own under a causal mask"
            )
        hint = f"{remedy}, or leave the design non-causal."
        scope.reporter.error("causal-leak", message, scope.paths[step], hint=hint)
