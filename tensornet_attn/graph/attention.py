"""The structure of attention in a diagram: scores, their weighting by a box, masks, and the readers of the map.

It is a view, derived once and cached on the graph. A `Score` is a sum of products (`Terms`), a map of another score
(`MappedScores`), or a score reduced along a leg (`Reduce`). A `ScoreTerm` divides its factors into those of queries, of
keys, of neither, and of both.

    A: {softmax: m, scale: d ** -0.5, of: "C[h g] Q[n g d] K[m g d] + bias[n m h] -> h n m"}
    y: A[h n m] V[m h d] -> n d

    attentions(graph)["A"].weighting     SoftmaxOfScores(("m",), d ** -0.5, 0)
    attentions(graph)["A"].terms         query Q, key K, core C; pairwise bias
    attentions(graph)["A"].readers       y, with the values V
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tensornet_attn.graph.diagram import on_pairs, producer_of
from tensornet_attn.graph.graph import Box, Function, Graph, Step, Term, Use, cached
from tensornet_attn.ir.arithmetic import Arith
from tensornet_attn.ir.steps import with_terms
from tensornet_attn.ops.softmax import sink_of

Legs = tuple[str, ...]
LINEAR = frozenset({"dropout", "keep", "sum", "mean"})  # boxes that commute with linear mixing
SIDES = ((True, False), (False, True), (False, False), (True, True))  # (has the query leg, has the key leg)


@dataclass(frozen=True)
class SoftmaxOfScores:
    """The exponentials of the scores, divided by their sum over `legs`: the key leg and optional components of a key.

    `sink` is an optional score that enters the sum but weights no value.
    """

    legs: Legs
    scale: Arith
    dropout: Arith
    sink: Use | None = None


@dataclass(frozen=True)
class NormalizedScores:
    """The scores, divided by their sum over the keys plus `eps`."""

    eps: Arith


@dataclass(frozen=True)
class UnnormalizedScores:
    """The scores at visible pairs, without normalisation."""


Weighting = SoftmaxOfScores | NormalizedScores | UnnormalizedScores


@dataclass(frozen=True)
class ScoreTerm:
    """A product in scores, its factors divided by their legs: the query leg, the key leg, neither (`core`), or both.

    `decays` has (a, b) for each factor exp(a - b), with a of the queries and b of the keys; `pairwise` then lacks it.
    Features are legs that queries and keys share and scores lack: `groups` those of the core, `width` the others.
    `at_own_position` is added to the exponent of the key at the query's own position.
    """

    coefficient: Arith
    query: tuple[Use, ...] = ()
    key: tuple[Use, ...] = ()
    core: tuple[Use, ...] = ()
    pairwise: tuple[Use, ...] = ()
    decays: tuple[tuple[Use, Use], ...] = ()
    groups: Legs = ()
    width: Legs = ()
    at_own_position: tuple[Use, ...] = ()

    @property
    def factors(self) -> tuple[Use, ...]:
        return (*self.query, *self.key, *self.core, *self.pairwise)

    @property
    def features(self) -> Legs:
        return self.groups + self.width

    @property
    def decayed(self) -> Legs:
        """The features with individual decays."""
        return self.features if any({*self.features} & {*use.legs} for pair in self.decays for use in pair) else ()


@dataclass(frozen=True)
class Terms:
    """Scores: a sum of products."""

    step: Step
    terms: tuple[ScoreTerm, ...]


@dataclass(frozen=True)
class MappedScores:
    """Scores that a box computes from other scores, elementwise or along a leg; `linear`: a mask or a dropout."""

    step: Step
    of: Use
    linear: bool
    function: Function | None


@dataclass(frozen=True)
class Reduce:
    """Scores that a box computes from other scores by reducing `leg`; `linear`: by a sum or a mean."""

    step: Step
    of: Use
    linear: bool
    leg: str


@dataclass(frozen=True)
class OpaqueScores:
    """Scores without structure: a tensor, or a box of several operands."""

    use: Use


Score = Terms | MappedScores | Reduce | OpaqueScores


@dataclass(frozen=True)
class MapReader:
    """A use of a map: in a product with `values`, which have the key leg, and `others`; or in a box (`term` None)."""

    step: Step
    use: Use
    term: int | None
    values: tuple[Use, ...] = ()
    others: tuple[Use, ...] = ()

    @property
    def product(self) -> Term:
        """The product that contains the map."""
        assert self.term is not None
        return self.step.terms[self.term]

    def with_terms(self, terms: Iterable[Term]) -> Step:
        """The reader with that product replaced by other terms."""
        assert self.term is not None
        all_terms = list(self.step.terms)
        all_terms[self.term : self.term + 1] = terms
        return with_terms(self.step, all_terms)

    def reading(self, replacement: Use) -> Step:
        """The reader with the map and its values replaced by a result."""
        kept = (use for use in self.product.factors if use not in self.values)
        factors = tuple(replacement if use.name == self.use.name else use for use in kept)
        return self.with_terms([replace(self.product, factors=factors)])


@dataclass(frozen=True)
class Attention:
    """A softmax, normalize or keep over the keys, with its scores and the readers of the map.

    `masks` are all masks that apply; `written` are those of the box.
    """

    graph: Graph = field(repr=False, compare=False)
    box: Step
    of: Use
    weighting: Weighting
    written: tuple[Function, ...]

    @cached_property
    def masks(self) -> tuple[Function, ...]:
        return self.graph.masks(self.box)

    @cached_property
    def score(self) -> Score:
        return score_of(self.graph, self.of)

    @property
    def terms(self) -> tuple[ScoreTerm, ...]:
        """The products of scores that are a sum of products under their own leg names; otherwise empty."""
        return self.score.terms if isinstance(self.score, Terms) and self.of.legs == self.score.step.legs else ()

    @property
    def scores(self) -> Step | None:
        """The step that computes the scores, None if they are a tensor."""
        return producer_of(self.graph, self.of)

    @property
    def origin(self) -> str:
        """The origin of scores that are not a sum of products, as words for messages."""
        if self.scores is None:
            return "given"
        if self.scores.name.startswith(f"{self.box.name.removesuffix('.keys')}.level"):  # of `graph/several.py`
            return "the logsumexp of a softmax over several legs"
        return f"a '{self.scores.op.kind}' box" if isinstance(self.scores.op, Box) else "transposed"

    @property
    def compares(self) -> bool:
        """Whether the map has a row for each query."""
        return self.graph.query in self.of.legs

    @property
    def shared(self) -> bool:
        """Whether the scores have other readers, or the scores or the map are results of the graph."""
        return len(self.graph.readers[self.of.name]) > 1 or bool({self.of.name, self.box.name} & self.graph.results)

    @cached_property
    def readers(self) -> tuple[MapReader, ...]:
        return readers_of(self.graph, self.box.name)

    @property
    def unread(self) -> str:
        """Why the map is not read by exactly one product; empty if it is."""
        if len(self.readers) != 1:
            return f"the attention map is used {len(self.readers)} times"
        return "a box is between the attention map and the values" if self.readers[0].term is None else ""

    def reader(self, none: str = "0 tensors") -> MapReader | str:
        """The product of the map and its values, or why there is none; `none` is the text for "no values"."""
        if self.unread:
            return self.unread
        (reader,) = self.readers
        if reader.use.legs != self.box.legs:
            return "the attention map is used under other leg names"
        if self.graph.key in reader.step.legs:
            return "the product with the attention map keeps the key leg"
        if len(reader.values) != 1:
            values_text = f"{len(reader.values)} tensors" if reader.values else none
            return f"the attention map is multiplied by {values_text} along the key leg"
        return "the values depend on the query" if self.graph.query in reader.values[0].legs else reader


@cached
def attentions(graph: Graph) -> Mapping[str, Attention]:
    """The attentions of a graph by the name of their box, in the order of the steps."""
    by_name = {}
    for step in graph.steps:
        weighting = weighting_of(step, graph.key)
        if step.box is not None and weighting is not None:
            by_name[step.name] = Attention(graph, step, step.box.of, weighting, step.box.masks)
    return by_name


def weighting_of(step: Step, key: str | None) -> Weighting | None:
    """The weighting of scores by a box over the keys. Returns None if the step is not an attention map."""
    box = step.box
    if box is None or box.leg is None or box.leg != key:
        return None
    if box.kind == "softmax":
        components = () if box.other is None else (box.other,)
        return SoftmaxOfScores((str(box.leg), *components), box.number("scale"), box.number("dropout"), sink_of(box))
    if box.kind == "normalize":
        return NormalizedScores(box.number("eps"))
    return UnnormalizedScores() if box.kind == "keep" else None


def score_of(graph: Graph, use: Use) -> Score:
    """The structure of scores. To get the structure of its operands, call this function with their uses."""
    step = producer_of(graph, use)
    if step is not None and step.contraction is not None:
        return Terms(step, tuple(split(graph, term) for term in step.terms))
    of = None if step is None or step.box is None else dict(step.box.operands).get("of")
    if step is None or step.box is None or of is None:
        return OpaqueScores(use)
    linear, reduced = step.box.kind in LINEAR, next((leg for leg in of.legs if leg not in step.legs), None)
    return MappedScores(step, of, linear, step.box.function) if reduced is None else Reduce(step, of, linear, reduced)


def split(graph: Graph, term: Term) -> ScoreTerm:
    """A product with its factors divided by their sequence legs."""
    sides: dict[tuple[bool, bool], list[Use]] = {}
    for use in term.factors:
        sides.setdefault((graph.query in use.legs, graph.key in use.legs), []).append(use)
    query, key, core, pairwise = (tuple(sides.get(side, ())) for side in SIDES)
    return ScoreTerm(term.coefficient, query, key, core, pairwise)


def readers_of(graph: Graph, name: str) -> tuple[MapReader, ...]:
    """The uses of a map, or of a result computed from maps."""
    steps = {step.name: step for step, _ in graph.readers.get(name, ())}
    return tuple(reader for step in steps.values() for reader in _readers(graph, step, name))


def _readers(graph: Graph, step: Step, name: str) -> Iterator[MapReader]:
    if step.contraction is None:
        yield from (MapReader(step, use, None) for use in step.uses if use.name == name)
        return
    for number, term in enumerate(step.terms):
        for index, use in enumerate(term.factors):
            if use.name == name:
                others = (*term.factors[:index], *term.factors[index + 1 :])
                values = tuple(factor for factor in others if graph.key in factor.legs)
                yield MapReader(step, use, number, values, tuple(factor for factor in others if factor not in values))


def behind(graph: Graph, names: Iterable[str]) -> set[str]:
    """The names, with all tensors and steps that they depend on."""
    needed = {*names}
    for step in reversed(graph.steps):
        if step.name in needed:
            needed |= step.reads
    return needed


def ahead(steps: Iterable[Step], names: Iterable[str]) -> set[str]:
    """The names, with those of the steps that depend on them."""
    reached = {*names}
    for step in steps:
        if step.reads & reached:
            reached.add(step.name)
    return reached


def map_of(graph: Graph) -> MapReader | None:
    """The attention map in its product with the values. Returns None if the output also sums keys elsewhere."""
    readers = [
        reader
        for step in graph.steps
        if on_pairs(graph, step.legs)
        for reader in readers_of(graph, step.name)
        if reader.term is not None and reader.values and graph.key not in reader.step.legs
    ]
    alone = len({reader.use.name for reader in readers}) == 1 and summing(graph) == {readers[0].step.name}
    return readers[0] if alone else None


def summing(graph: Graph) -> set[str]:
    """The steps that the output depends on and that reduce the key leg."""
    used = behind(graph, [graph.output])
    takes = {step.name for step in graph.steps if any(graph.key in use.legs for use in step.uses)}
    return {step.name for step in graph.steps if step.name in used & takes and graph.key not in step.legs}
