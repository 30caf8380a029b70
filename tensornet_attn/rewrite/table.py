"""All rules by group: what every diagram goes through, and what is a choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from tensornet_attn.graph.attention import Softmax, attentions
from tensornet_attn.graph.model import Graph
from tensornet_attn.rewrite import duplicate, products, projection, relu, scores, simplify, sink, structure, whole
from tensornet_attn.rewrite.engine import Firing, Rule, Trace, everywhere, rewritten


@dataclass(frozen=True)
class Group:
    """Rules that are tried together on a diagram in its simple form; `about` says when they pay."""

    name: str
    about: str
    rules: tuple[Rule, ...]


SIMPLE = Group(
    "simpler", "done to every diagram", (*simplify.RULES, whole.OWN_NAMES, relu.RELU, sink.SINK, *structure.SPLITS)
)
CHOICES = (
    Group("weights first", "chosen by the search for the order of a product", (products.WEIGHTS,)),
    Group("values side by side", "chosen by the search for the order of a product", (products.MIXED, products.BESIDE)),
    Group("distribution", "taken where each map of a blend can then be lowered", (products.DISTRIBUTE,)),
    Group("common factor", "taken around a softmax, where it makes fused attention", (products.FACTOR,)),
    Group("states apart", "taken where fused attention then makes what the output needs", (duplicate.STATE_APART,)),
    Group("scores of their own", "taken for each map that can then be lowered by itself", (duplicate.SCORES_APART,)),
    Group("one projection", projection.WHY_NOT, (projection.PROJECTION,)),
    Group("absorbed weights", "taken where the whole plan is then cheaper, as at decoding", products.ABSORPTIONS),
)
SCORES = Group("scores", "taken where fused attention of the new scores is cheaper", scores.RULES)
GROUPS = (SIMPLE, *CHOICES, SCORES)
RULES = {rule.name: rule for group in GROUPS for rule in group.rules}


def steps_of(graph: Graph) -> Iterator[tuple[Group, Graph, Trace]]:
    """What each group does to a diagram by itself: the graph that it begins with, and the firings."""
    simple, trace = whole.simplified(graph)
    yield SIMPLE, graph, trace
    for group in CHOICES:
        yield group, simple, everywhere(simple, group.rules)[1]
    for name, found in attentions(simple).items():
        if isinstance(found.weighting, Softmax):
            yield SCORES, simple, rewritten(simple, name, SCORES.rules)[1]


@dataclass(frozen=True)
class Shown:
    """One firing for people: what the names of its pattern stand for, and the lines that it takes out and puts in."""

    group: Group
    firing: Firing
    names: dict[str, str]
    removed: tuple[str, ...]
    added: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        rule = self.firing.rule
        return {
            "group": self.group.name,
            "about": self.group.about,
            "step": self.firing.place,
            "rule": rule.name,
            "algebra": rule.algebra,
            "names": self.names,
            "removed": list(self.removed),
            "added": list(self.added),
        }


def firings(graph: Graph) -> Iterator[Shown]:
    """The rewrites that fit a diagram, in the order in which they fire; those of the whole diagram first."""
    for group, before, trace in steps_of(graph):
        for firing in trace:
            known, now, rule = _lines(before), _lines(firing.graph), firing.rule
            names = dict(rule.names(before, firing.place)) if rule.names is not None else {}
            removed = tuple(line for line in known if line not in now)
            yield Shown(group, firing, names, removed, tuple(line for line in now if line not in known))
            before = firing.graph


def shown(graph: Graph) -> str:
    """The rewrites that fit a diagram, as text: rules, what their names stand for, steps before (-) and after (+)."""
    lines: list[str] = []
    for (name, about), fired in groupby(firings(graph), lambda one: (one.group.name, one.group.about)):
        lines.append(f"{name}: {about}")
        for one in fired:
            lines.append(f"  {one.firing.place}: {one.firing.rule.name}: {one.firing.rule.algebra}")
            lines += [f"    {', '.join(f'{key} = {value}' for key, value in one.names.items())}"] if one.names else []
            lines += [f"    - {line}" for line in one.removed]
            lines += [f"    + {line}" for line in one.added]
    return "\n".join(lines) or f"{graph.name}: no rewrite fits."


def _lines(graph: Graph) -> list[str]:
    """Tensors and steps; of tensors the legs, since nothing else of them changes."""
    tensors = [f"{tensor.role} {tensor.name}[{' '.join(tensor.legs)}]" for tensor in graph.tensors]
    return [*tensors, *(line for line in graph.to_text().splitlines() if "] = " in line)]
