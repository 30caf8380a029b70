"""All rules by group: those that apply to every diagram, and those that are choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from tensornet_attn.graph.attention import SoftmaxOfScores, attentions
from tensornet_attn.graph.graph import Graph
from tensornet_attn.rewrite import duplicate, products, relu, scores, shift, simplify, structure, whole
from tensornet_attn.rewrite.engine import Firing, Rule, Trace, everywhere, rewritten


@dataclass(frozen=True)
class RuleGroup:
    """Rules that are applied together to a simplified diagram; `about` says when they are applied."""

    name: str
    about: str
    rules: tuple[Rule, ...]


SIMPLE = RuleGroup(
    "simpler", "applied to every diagram", (*simplify.RULES, whole.OWN_NAMES, relu.RELU, *structure.SPLITS)
)
CHOICES = (
    RuleGroup("weights first", "chosen by the search for the order of a product", (products.WEIGHTS,)),
    RuleGroup(
        "values side by side", "chosen by the search for the order of a product", (products.MIXED, products.BESIDE)
    ),
    RuleGroup("distribution", "applied if each map of a blend can then be lowered", (products.DISTRIBUTE,)),
    RuleGroup("common factor", "applied around a softmax if the result is fused attention", (products.FACTOR,)),
    RuleGroup("states apart", "applied if fused attention then computes the output", (duplicate.STATE_APART,)),
    RuleGroup(
        "scores of their own", "applied to each map that can then be lowered separately", (duplicate.SCORES_APART,)
    ),
    RuleGroup("shift after the product", "applied if it takes less time", (shift.SHIFT,)),
    RuleGroup("absorbed weights", "applied if the whole plan is then cheaper, as in decoding", products.ABSORPTIONS),
)
SCORES = RuleGroup("scores", "applied if fused attention of the new scores is cheaper", scores.RULES)
GROUPS = (SIMPLE, *CHOICES, SCORES)
RULES = {rule.name: rule for group in GROUPS for rule in group.rules}


def steps_of(graph: Graph) -> Iterator[tuple[RuleGroup, Graph, Trace]]:
    """(group, graph before, firings) for each group by itself."""
    simple, trace = whole.simplified(graph)
    yield SIMPLE, graph, trace
    for group in CHOICES:
        yield group, simple, everywhere(simple, group.rules)[1]
    for name, attention in attentions(simple).items():
        if isinstance(attention.weighting, SoftmaxOfScores):
            yield SCORES, simple, rewritten(simple, name, SCORES.rules)[1]


@dataclass(frozen=True)
class Shown:
    """One firing for display: the bindings of its pattern's names, and the removed and added lines."""

    group: RuleGroup
    firing: Firing
    names: dict[str, str]
    removed: tuple[str, ...]
    added: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        rule = self.firing.rule
        return {
            "group": self.group.name,
            "about": self.group.about,
            "step": self.firing.step_name,
            "rule": rule.name,
            "algebra": rule.algebra,
            "names": self.names,
            "removed": list(self.removed),
            "added": list(self.added),
        }


def firings(graph: Graph) -> Iterator[Shown]:
    """The rewrites that apply to a diagram, in the order in which they fire; simplifications first."""
    for group, before, trace in steps_of(graph):
        for firing in trace:
            lines_before, lines_after, rule = _lines(before), _lines(firing.graph), firing.rule
            names = dict(rule.names(before, firing.step_name)) if rule.names is not None else {}
            removed = tuple(line for line in lines_before if line not in lines_after)
            yield Shown(group, firing, names, removed, tuple(line for line in lines_after if line not in lines_before))
            before = firing.graph


def shown(graph: Graph) -> str:
    """The rewrites that apply to a diagram, as text: rules, bindings of names, steps before (-) and after (+)."""
    lines: list[str] = []
    for (name, about), fired in groupby(firings(graph), lambda display: (display.group.name, display.group.about)):
        lines.append(f"{name}: {about}")
        for display in fired:
            lines.append(f"  {display.firing.step_name}: {display.firing.rule.name}: {display.firing.rule.algebra}")
            lines += (
                [f"    {', '.join(f'{key} = {binding}' for key, binding in display.names.items())}"]
                if display.names
                else []
            )
            lines += [f"    - {line}" for line in display.removed]
            lines += [f"    + {line}" for line in display.added]
    return "\n".join(lines) or f"{graph.name}: no rewrite applies."


def _lines(graph: Graph) -> list[str]:
    """Lines of tensors, with their legs only, and of steps."""
    tensors = [f"{tensor.role} {tensor.name}[{' '.join(tensor.legs)}]" for tensor in graph.tensors]
    return [*tensors, *(line for line in graph.to_text().splitlines() if "] = " in line)]
