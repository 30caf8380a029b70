"""Matches patterns against a graph, and yields the bindings of their names in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations

from tensornet_attn.graph.diagram import producer_of
from tensornet_attn.graph.graph import Graph, Step, Term, Use
from tensornet_attn.graph.pairs import batched
from tensornet_attn.ir.arithmetic import ONE, Arith
from tensornet_attn.ir.steps import legs_in
from tensornet_attn.rewrite.change import is_map, read_once
from tensornet_attn.rewrite.notation import BoxOf, PatternItem, PatternProduct, PatternSum, Side

Places = tuple[int, ...]


@dataclass(frozen=True)
class ProductLocation:
    """The location of a product of a pattern: its term, and the places of each item's factors in it."""

    term: int
    factors: Mapping[str, Places]


class PatternName(str):
    """A name such as `A.of`, whose root is `A`."""

    @property
    def root(self) -> str:
        return self.partition(".")[0]


@dataclass(frozen=True)
class Match:
    """The bindings of a pattern's names; `spots`: the locations of products by step; `label`: of the choice made."""

    graph: Graph
    steps: Mapping[str, Step] = field(default_factory=dict)
    uses: Mapping[str, tuple[Use, ...]] = field(default_factory=dict)
    numbers: Mapping[str, tuple[Arith, ...]] = field(default_factory=dict)
    spots: Mapping[str, tuple[ProductLocation, ...]] = field(default_factory=dict)
    label: str = ""
    cache: dict[str, frozenset[str]] = field(default_factory=dict)  # cached values

    def but(
        self,
        steps: Mapping[str, Step] | None = None,
        uses: Mapping[str, tuple[Use, ...]] | None = None,
        numbers: Mapping[str, tuple[Arith, ...]] | None = None,
        spots: Mapping[str, tuple[ProductLocation, ...]] | None = None,
        label: str = "",
    ) -> Match:
        """The match with further bindings."""
        return Match(
            self.graph,
            {**self.steps, **steps} if steps else self.steps,
            {**self.uses, **uses} if uses else self.uses,
            {**self.numbers, **numbers} if numbers else self.numbers,
            {**self.spots, **spots} if spots else self.spots,
            label or self.label,
            self.cache,
        )

    @property
    def names(self) -> dict[str, PatternName]:
        """The bindings as text."""
        use_names = {key: PatternName(" ".join(use.name for use in uses)) for key, uses in self.uses.items()}
        return (
            {"label": PatternName(self.label)}
            | use_names
            | {key: PatternName(step.name) for key, step in self.steps.items()}
        )

    def first_use(self, name: str) -> Use:
        return self.uses[name][0]

    def legs(self, *names: str) -> set[str]:
        """The legs of the named factors and steps."""
        leg_sets = (legs_in(self.uses[name]) if name in self.uses else {*self.steps[name].legs} for name in names)
        return set[str]().union(*leg_sets)

    @property
    def keys(self) -> frozenset[str]:
        """The key leg, and a further leg that the softmax runs over."""
        if "keys" not in self.cache:
            boxes = [step.box for step in self.steps.values()]
            others = [box.other for box in boxes if box is not None and box.other is not None]
            self.cache["keys"] = frozenset({str(self.graph.key), *others})
        return self.cache["keys"]

    @property
    def batched(self) -> frozenset[str]:
        if "batched" not in self.cache:
            self.cache["batched"] = frozenset(batched(self.graph))
        return self.cache["batched"]


WORDS: dict[str, Callable[[Match, Use], bool]] = {
    "n": lambda match, use: match.graph.query in use.legs,
    "m": lambda match, use: match.graph.key in use.legs,
    "keys": lambda match, use: bool(match.keys & {*use.legs}),
    "held": lambda match, use: use.name not in match.batched,
    "map": lambda match, use: is_map(match.graph, producer_of(match.graph, use)),
    "constant": lambda match, use: use.name in match.graph.tensor and match.graph.tensor[use.name].role == "constant",
}
Choices = Iterator[tuple[str, Places]]
Choose = Callable[[Match, Step, int], Choices]


@dataclass(frozen=True)
class Matcher:
    """Matches the left side of a rule; `choose` yields labelled bindings of `X[chosen]..` or `X[terms]..`."""

    side: Side
    choose: Choose | None = None

    def step(self, match: Match, name: str, step: Step) -> Iterator[Match]:
        """The matches of a step with the pattern's definition of a name."""
        body = self.side[name]
        if isinstance(body, BoxOf):
            yield from self.box(match, name, body, step)
        elif isinstance(body, PatternSum) and step.contraction is not None:
            terms, count = step.terms, len(body.products)
            if len(terms) == count or (len(terms) > count and body.rest):
                yield from self.sum(match.but(steps={name: step}), name, body, terms)

    def box(self, match: Match, name: str, body: BoxOf, step: Step) -> Iterator[Match]:
        box = step.box
        if box is None or box.kind != body.kind:
            return
        use = box.of
        source = producer_of(match.graph, use)
        if body.of not in self.side:
            yield match.but({name: step}, {body.of: (use,)})
        elif source is not None and source.op is not None and read_once(match.graph, use.name) is not None:
            yield from self.step(match.but({name: step}, {body.of: (use,)}), body.of, source)

    def sum(self, match: Match, name: str, body: PatternSum, terms: tuple[Term, ...]) -> Iterator[Match]:
        """The matches of a sum; the last product varies slowest."""
        count = len(body.products)
        if self.choose and count and body.products[0].items[0].words == ("terms",):
            for _, chosen in self.choose(match, match.steps[name], 0):
                yield match.but(spots={name: tuple(ProductLocation(i, {}) for i in chosen)})
        elif count == 1:
            for term_index, term in enumerate(terms):
                yield from self.product(match, name, body.products[0], term_index, term)
        else:
            for indices in sorted(combinations(range(len(terms)), count), key=lambda indices: indices[::-1]):
                yield from self.products(match, name, body.products, [(i, terms[i]) for i in indices])

    def products(
        self, match: Match, name: str, bodies: Sequence[PatternProduct], terms: Sequence[tuple[int, Term]]
    ) -> Iterator[Match]:
        if not bodies:
            yield match
            return
        for bound in self.product(match, name, bodies[-1], *terms[-1]):
            yield from self.products(bound, name, bodies[:-1], terms[:-1])

    def product(self, match: Match, name: str, body: PatternProduct, term_index: int, term: Term) -> Iterator[Match]:
        """The matches of a term with a product of the pattern; `X..` takes the factors that single items leave."""
        left = len(term.factors) - len(body.single)
        if left < 0 or (left and not body.many) or (not body.numbers and term.coefficient != ONE):
            return
        for taken in self.singles(match, body.single, term):
            for label, factors in self.many(match, name, body, term_index, taken, term):
                uses = {key: tuple([term.factors[i] for i in indices]) for key, indices in factors.items()}
                spots = (ProductLocation(term_index, factors), *match.spots.get(name, ()))
                numbers = dict.fromkeys(body.numbers, (term.coefficient,))
                bound = match.but(uses=uses, numbers=numbers, spots={name: spots}, label=label)
                inner = next((single.name for single in body.single if single.name in self.side), None)
                if inner is not None and inner not in match.steps:
                    yield from self.step(bound, inner, match.graph.step[uses[inner][0].name])
                else:
                    yield bound

    def singles(self, match: Match, items: tuple[PatternItem, ...], term: Term) -> list[Places]:
        """The places of factors that match the single items, in order."""
        candidates = [[i for i, use in enumerate(term.factors) if self.fits(match, item, use)] for item in items]
        if len(items) < 2:
            return [(i,) for i in candidates[0]] if items else [()]
        places = permutations(range(len(term.factors)), len(items)) if all(candidates) else ()
        assignments = [
            assignment
            for assignment in places
            if all(i in fitting for i, fitting in zip(assignment, candidates, strict=True))
        ]
        return sorted(assignments, key=lambda assignment: (max(assignment), assignment))

    def fits(self, match: Match, item: PatternItem, use: Use) -> bool:
        if item.name in match.steps and match.steps[item.name].name != use.name:
            return False
        if item.name in self.side and item.name not in match.steps:
            source = producer_of(match.graph, use)
            if source is None or source.contraction is None or read_once(match.graph, use.name) is None:
                return False
        elif item.name in match.uses and match.uses[item.name] != (use,):
            return False
        return all(holds(match, word, use) for word in item.words)

    def many(
        self, match: Match, name: str, body: PatternProduct, term_index: int, taken: Places, term: Term
    ) -> Iterator[tuple[str, dict[str, Places]]]:
        """(label, places by item): each remaining factor goes to the first `X..` whose words hold, or as chosen."""
        single = {item.name: (i,) for item, i in zip(body.single, taken, strict=True)}
        left = [i for i in range(len(term.factors)) if i not in taken]
        if len(body.many) < 2 and not any(item.words for item in body.many):
            yield "", single | {item.name: tuple(left) for item in body.many}
            return
        chosen = any(item.words == ("chosen",) for item in body.many)
        for label, choice in (
            self.choose(match, match.steps[name], term_index) if chosen and self.choose else [("", ())]
        ):
            spots: dict[str, list[int]] = {item.name: [] for item in body.many}
            for i in left:
                takers = (item for item in body.many if self.takes(match, item, term.factors[i], i in choice))
                taker = next(takers, None)
                if taker is None:
                    break
                spots[taker.name].append(i)
            else:
                yield label, single | {key: tuple(indices) for key, indices in spots.items()}

    def takes(self, match: Match, item: PatternItem, use: Use, chosen: bool) -> bool:
        return chosen if item.words == ("chosen",) else all(holds(match, word, use) for word in item.words)


def holds(match: Match, word: str, use: Use) -> bool:
    return not WORDS[word[3:]](match, use) if word.startswith("no ") else WORDS[word](match, use)
