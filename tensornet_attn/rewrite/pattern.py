"""Rules as patterns: matched at a step, filtered and completed by predicates, and built from their right side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from tensornet_attn import limits
from tensornet_attn.graph.graph import Contraction, Graph, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE, Arith, Negative
from tensornet_attn.ir.steps import legs_in, with_terms, within
from tensornet_attn.rewrite.change import (
    fresh,
    read_instead,
    read_once,
    settled,
    spread,
    times,
    with_steps,
    without_dead,
)
from tensornet_attn.rewrite.engine import Rule
from tensornet_attn.rewrite.match import Choices, Choose, Match, Matcher
from tensornet_attn.rewrite.notation import REST, BoxOf, PatternItem, PatternProduct, PatternSum, Same, Side, read_side

__all__ = ["Choices", "Match", "Pattern", "pattern"]

Where = Callable[[Match], Match | None]


@dataclass(frozen=True)
class Pattern:
    """A rule as text.

    `where`: predicates that reject a match or bind further names. `new`: for each `{..}`, the name of its step and the
    names that define the order of its legs. `first`: the rule applies at the first step, not the last. `choose`: yields
    bindings of `X[chosen]..` or `X[terms]..`. `then`: a further change after the rule.
    """

    text: str
    where: tuple[Where, ...] = ()
    new: tuple[tuple[str, str], ...] = ()
    first: bool = False
    choose: Choose | None = None
    then: Callable[[Graph, Match], Graph | None] | None = None

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        before, after = self.text.split("->")
        return read_side(before), read_side(after)

    @cached_property
    def kind(self) -> str:
        """The kind of the box at the place of the rule; empty for a sum."""
        body = list(self.sides[0].values())[0 if self.first else -1]
        return body.kind if isinstance(body, BoxOf) else ""

    @cached_property
    def matcher(self) -> Matcher:
        return Matcher(self.sides[0], self.choose)

    def apply(self, graph: Graph, step_name: str) -> Graph | None:
        """The graph after the first match that can be built, or None if there is none."""
        if self.kind == _kind(graph.step[step_name]):
            for match in self.matches(graph, step_name):
                after = self.built(match)
                if after is not None:
                    return after
        return None

    def names(self, graph: Graph, step_name: str) -> dict[str, str]:
        """The bindings of the pattern's names at its first match."""
        applicable = next(
            (match for match in self.matches(graph, step_name) if self.built(match) is not None), Match(graph)
        )
        return {
            key: name for key, name in sorted(applicable.names.items()) if name and key.isalpha() and key != "label"
        }

    def matches(self, graph: Graph, step_name: str) -> Iterator[Match]:
        names, reader = list(self.sides[0]), read_once(graph, step_name) if self.first else None
        if self.first and reader is None:
            return
        for match in self.matcher.step(Match(graph), names[0 if self.first else -1], graph.step[step_name]):
            for candidate in self.matcher.step(match, names[-1], reader) if reader is not None else [match]:
                bound: Match | None = candidate
                for where in self.where:
                    bound = where(bound) if bound is not None else None
                if bound is not None:
                    yield bound

    def built(self, match: Match) -> Graph | None:
        before, after = self.sides
        graph: Graph | None = match.graph
        for name, body in after.items():
            if graph is None or body == before.get(name):
                continue
            step = match.steps[name]
            if isinstance(body, Same):
                replacement = match.first_use(body.name)
                graph = read_instead(
                    graph, step.name, replacement.name, tuple(step.legs.index(leg) for leg in replacement.legs)
                )
            elif isinstance(body, PatternSum):
                graph = self.with_sum(graph, match, name, body)
        if graph is None:
            return None
        graph = self.then(graph, match) if self.then is not None else graph
        lost = dict.fromkeys(use.name for step in match.steps.values() for use in step.uses)
        cleaned = without_dead(graph, lost) if graph is not None else None
        return settled(match.graph, cleaned) if cleaned is not None else None

    def with_sum(self, graph: Graph, match: Match, name: str, body: PatternSum) -> Graph | None:
        """The graph with a sum of the right side. A removed step inside the sum is inlined first."""
        spots, step = match.spots.get(name, ()), match.steps[name]
        removed = [key for key in self.sides[0] if key not in self.sides[1] and spots and key in spots[0].factors]
        inner = removed[0] if removed else ""
        if inner:
            inlined = spread(graph, step.name, spots[0].term, match.first_use(inner), match.steps[inner])
            if inlined is None or any(item.out for product in body.products for item in product.items):
                return inlined
            graph = inlined
        terms = graph.step[step.name].terms
        new_steps = list[Step]()
        built_terms = [_Term(graph, match, name, inner, self.new).rewritten_term(product) for product in body.products]
        for built_term in built_terms:
            if built_term is None:
                return None
            new_steps += built_term[1]
        taken = {spot.term for spot in spots}
        first = min(taken, default=0) if body.rest == "first" else 0
        before = [term for i, term in enumerate(terms) if i < first]
        after = [term for i, term in enumerate(terms) if i >= first and i not in taken]
        new_terms = [*before, *(built_term[0] for built_term in built_terms if built_term is not None), *after]
        return with_steps(graph, {step.name: [*new_steps, with_terms(step, new_terms)]})


@dataclass(frozen=True)
class _Term:
    """A term of the right side. `inner` names the step that was inlined in it."""

    graph: Graph
    match: Match
    name: str
    inner: str
    new: tuple[tuple[str, str], ...]

    def rewritten_term(self, body: PatternProduct) -> tuple[Term, list[Step]] | None:
        """(term, new steps). Returns None if legs would be lost."""
        named = {item.name for item in _flat(body.items)}
        dropped = [i for key, placed in self.places.items() if key not in named and key != ".." for i, _ in placed]
        slots: list[tuple[int, tuple[Use, ...], PatternItem]] = []
        for item in body.items:
            keys = (
                [item.name] if item.group is None else [nested.name for nested in _flat((item,)) if nested is not item]
            )
            placed = [pair for key in keys for pair in self.places.get(key, ())]
            placed = placed or [(min(dropped, default=0), use) for use in self.match.uses.get(item.name, ())]
            if item.many and REST in body.items:
                slots += [(i, (use,), item) for i, use in placed]
            elif placed:
                slots.append((min(i for i, _ in placed), tuple(use for _, use in placed), item))
        if REST in body.items:
            slots.sort(key=lambda slot: slot[0])
        slot_uses = {i: uses for i, (_, uses, _) in enumerate(slots)}
        steps, templates = list[Step](), iter(self.new)
        for item in (item for item in body.items if item.group is not None):
            template, i = next(templates), next(i for i, slot in enumerate(slots) if slot[2] is item)
            if len(slots[i][1]) > 1 or item.group.products[0].numbers:  # type: ignore[union-attr]
                step = self.group(
                    item, slots[i][1], [use for j in slot_uses if j != i for use in slots[j][1]], *template
                )
                if step is None:
                    return None
                steps.append(step)
                slot_uses[i] = (step.use,)
        return Term(_number(self.match, body), tuple(use for uses in slot_uses.values() for use in uses)), steps

    @cached_property
    def places(self) -> dict[str, list[tuple[int, Use]]]:
        """The factors of each name with their places in the term, including those of the inlined step."""
        by_name: dict[str, list[tuple[int, Use]]] = {}
        step = self.graph.step[self.match.steps[self.name].name]
        for spot in self.match.spots[self.name]:
            factors, order = step.terms[spot.term].factors, list(range(limits.FACTORS))
            if self.inner:  # its factors come first
                (out,), (source,) = spot.factors[self.inner], self.match.spots[self.inner]
                width = sum(map(len, source.factors.values()))
                by_name = {key: [(i, factors[i]) for i in indices] for key, indices in source.factors.items()}
                order = [width + i - (i > out) for i in order]
            for key, indices in spot.factors.items():
                if key != self.inner:
                    by_name.setdefault(key, [(order[i], factors[order[i]]) for i in indices])
        return by_name

    def group(self, item: PatternItem, uses: tuple[Use, ...], others: list[Use], name: str, order: str) -> Step | None:
        """The step of `{..}`, under a fresh name. Returns None if a single-factor term of a sum would sum a leg."""
        match, products = self.match, item.group.products if item.group is not None else ()
        factors = [uses] if len(products) == 1 else [_uses(match, product) for product in products]
        terms = [
            Term(_number(match, product), product_uses) for product, product_uses in zip(products, factors, strict=True)
        ]
        needed = {*match.steps[self.name].legs} | legs_in(others)
        ordered = _order(match, order) if order else [leg for use in uses for leg in use.legs]
        legs = within(dict.fromkeys(ordered), needed & legs_in(uses))
        if any(
            len(product_uses) == 1 and not {*product_uses[0].legs} <= {*legs}
            for product_uses in factors
            if len(factors) > 1
        ):
            return None
        return Step(fresh(self.graph, name.format(**match.names)), Contraction(tuple(terms)), legs)


def _kind(step: Step) -> str | None:
    """The kind of a box, empty for a sum of products, None for a fused step."""
    return step.box.kind if step.box is not None else "" if step.contraction is not None else None


def _number(match: Match, body: PatternProduct) -> Arith:
    """The coefficient of a product: the product of the bound numbers; unbound names such as 1 count as 1."""
    coefficient: Arith = ONE
    for number in (number for name in body.numbers for number in match.numbers.get(name, ())):
        coefficient = times(coefficient, number)
    if body.negative:
        return coefficient.of if isinstance(coefficient, Negative) else Negative(coefficient)
    return coefficient


def _flat(items: tuple[PatternItem, ...]) -> Iterator[PatternItem]:
    """Items, including those in braces."""
    for item in items:
        yield item
        for product in item.group.products if item.group is not None else ():
            yield from _flat(product.items)


def _uses(match: Match, body: PatternProduct) -> tuple[Use, ...]:
    return tuple(use for item in body.items for use in match.uses[item.name])


def _order(match: Match, order: str) -> list[str]:
    """The legs of an order such as `n F Z`: the query leg, the legs of F, the legs of the step Z."""
    legs_of = {"n": (match.graph.query,)} | {key: step.legs for key, step in match.steps.items()}
    legs_of |= {key: tuple(leg for use in uses for leg in use.legs) for key, uses in match.uses.items()}
    return [leg for word in order.split() for leg in legs_of[word]]


def pattern(name: str, text: str, *where: Where, **more: object) -> Rule:
    """A rule from its text."""
    rule_pattern = Pattern(text, where, **more)  # type: ignore[arg-type]
    conditions = ", ".join(predicate.__name__.replace("_", " ") for predicate in where)
    return Rule(name, f"{text} if {conditions}" if where else text, rule_pattern.apply, names=rule_pattern.names)
