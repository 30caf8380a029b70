"""Linear attention: maps without softmax whose scores are products of query and key features sum the keys first.

So does a softmax whose scores depend on keys only: a mean of values weighted by exponentials of these scores.

# A.of = Q K;  A = normalize over m of A.of;  y = A V Wo     ->     A.o = linear(Q, K, V);  y = A.o Wo

MACs of a term, with F the features (legs that q and k share and the scores lack) and V the values' own legs and those
that a core mixes:

    k v and q (k v)              m heads F V and n heads F V
    row sums                     n heads F, or with a core n heads and the core's legs
    with decay, chunks of C      n C heads, or n C heads F if features decay (scores inside a chunk)
    causal, chunks of C          n C heads F (scores inside a chunk) and n C heads V (scores times values)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import log2, prod
from typing import NamedTuple

from tensornet_attn.constants import SLOW_MAPS
from tensornet_attn.cost.blocks import CHUNKS, LEAST
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.work import KernelWork
from tensornet_attn.emit.layout import columns
from tensornet_attn.emit.sides import (
    eps_text,
    feature_of_side,
    laid,
    mask_options,
    matrix,
    sides_maps,
    small_legs,
    term_text,
)
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.attention import (
    Attention,
    MapReader,
    ScoreTerm,
    SoftmaxOfScores,
    UnnormalizedScores,
    attentions,
)
from tensornet_attn.graph.diagram import producer_of, size_of
from tensornet_attn.graph.distance import with_places
from tensornet_attn.graph.graph import Contraction, Function, Graph, Step, Tensor, Term, Use
from tensornet_attn.graph.recurrence import Recurrence, linear, recurrence_of, sums, unmasked
from tensornet_attn.ir.arithmetic import ONE, Number
from tensornet_attn.ir.steps import legs_in, within, without
from tensornet_attn.ir.values import Legs
from tensornet_attn.kernels.apart import TIE, compared
from tensornet_attn.kernels.decay import decay_alone, decay_sides
from tensornet_attn.kernels.implementation import Context, FormCost, Lowered, OfBoxes, kernel, leg_sizes
from tensornet_attn.kernels.powers import written_out
from tensornet_attn.rewrite.change import fresh, with_steps, without_dead
from tensornet_attn.tiles.cpp.linear import linear_source

DENSE = "with a run-time mask, the scores are computed"
FEW = 1.3  # how many times less time than scores of few queries, which read all keys anyway and absorb weights
SEVERAL_KERNELS = 5  # the same of a decay in Triton: the kernel of scores is one, those of chunks are several
PLAIN = (("scale", ONE), ("dropout", Number(0)))


@dataclass(frozen=True)
class ExpandedMap:
    """A map over the keys, with polynomial scores expanded. `recurrence`: its recurrence, or why there is none.

    `before`: the graph without these changes.
    """

    before: Graph
    opened: Graph
    box: str
    recurrence: Recurrence | str

    @cached_property
    def recurrent_graph(self) -> Graph:
        """The graph with the map, its scores and its product with the values as one kernel."""
        assert not isinstance(self.recurrence, str)
        return reassociated(attentions(self.opened)[self.box], self.recurrence)


class RecurrenceWork(KernelWork):
    """The work of a recurrence. Features, and values that a core mixes, may be head legs."""

    @property
    def recurrence(self) -> Recurrence:
        return recurrence_of(self.step)

    @property
    def head_legs(self) -> set[str]:
        return {*self.recurrence.heads, *(self.recurrence.mixed if self.recurrence.mixes else ())}


class LinearWork(RecurrenceWork):
    """Sums of keys that queries read, at once or in chunks."""

    @property
    def chunk(self) -> int:
        """Keys per chunk of a kernel; 0 if it is not causal."""
        graph = self.scene.graph
        return chunk_of(graph, self.recurrence, self.scene.sizes) if self.recurrence.causal(graph) else 0

    @property
    def monomials(self) -> dict[Legs, int]:
        """MACs of one batch element, by the legs they run over (a leg in two roles occurs twice)."""
        recurrence, macs = self.recurrence, Counter[Legs]()
        chunk, key = self.chunk, self.scene.key
        query = key if chunk else self.scene.query  # a scan pads queries to the number of keys
        for term in recurrence.terms:
            stored, read, scored = heads_of(recurrence, term)
            macs[(key, *stored, *term.features, *recurrence.result)] += 1
            macs[(query, *read, *term.features, *recurrence.result)] += 1
            if _normalized(recurrence):
                macs[(query, *read, *(term.groups + recurrence.mixed if term.core else term.features))] += 1
            if chunk:
                macs[(query, *scored, *term.features)] += chunk
                macs[(query, *read, *recurrence.result)] += chunk
                if term.decays:
                    macs[(query, *read, *term.decayed)] += chunk
                if term.core:
                    macs[(query, *read, *term.groups, *recurrence.mixed)] += chunk
        return macs

    def decay_factors(self) -> list[int]:
        """The decay factors inside the chunks of a causal kernel, by term: one exponential each."""
        rows = self.batch * self.scene.keys * self.chunk  # a scan pads queries to the number of keys
        return [
            rows * self.scene.size((*heads_of(self.recurrence, term).read, *term.decayed)) if term.decays else 0
            for term in self.recurrence.terms
        ]

    @property
    def exponentials(self) -> list[tuple[Legs, int]]:
        factors = sum(self.decay_factors())
        return [*super().exponentials, (self.step.legs, factors)] if factors else super().exponentials

    @property
    def kept(self) -> dict[str, int]:
        return sides_kept(self.scene, self.step, self.chunk)

    @property
    def stored(self) -> dict[str, int]:
        """Floats saved for backward besides operands and result: states, sums of keys, and scores inside the chunks.

        The states start before the first chunk. A core maps states, whose mixed ones are saved too.
        """
        scene, step = self.scene, self.step
        recurrence, floats = self.recurrence, dict[str, int]()
        batch, chunk = self.batch, self.chunk
        chunks, query = -(-scene.keys // chunk) if chunk else 1, scene.query
        for i, (term, factors) in enumerate(zip(recurrence.terms, self.decay_factors(), strict=True)):
            stored, read, scored = heads_of(recurrence, term)
            learned = any(use.name in scene.learned for decay in term.decays for use in decay)
            features, state_count = scene.size((*stored, *term.features)), batch * (max(chunks, 2) if chunk else 1)
            floats[f"{step.name}: states {i}"] = state_count * features * scene.size(recurrence.result)
            floats[f"{step.name}: sums {i}"] = state_count * features * _normalized(recurrence)
            mixed = scene.size(recurrence.mixed)
            if chunk:
                scores = scene.size((*(scored if learned else read), *(term.groups or recurrence.mixed)))
                scores += scene.size((*read, *recurrence.mixed)) if term.core else 0
                floats[f"{step.name}: scores {i}"] = batch * chunks * chunk**2 * scores
            elif term.core:
                floats[f"{step.name}: mixed {i}"] = batch * features * scene.size(recurrence.result)
                alone = scene.size(term.features) == scene.size(term.groups)
                rows = features * mixed if alone else scene.size((*read, *term.groups, query))
                floats[f"{step.name}: groups {i}"] = batch * rows
            if factors:  # also of scores, and of queries and keys: of results and values if these have the decays
                of_values = scored != read and not (recurrence.result or term.decayed or _normalized(recurrence))
                sides = [(*heads, *(() if of_values else term.features)) for heads in (stored, read)]
                floats[f"{step.name}: decay {i}"] = 2 * factors * learned
                floats[f"{step.name}: decayed {i}"] = batch * scene.keys * sum(map(scene.size, sides))
        if _normalized(recurrence):
            floats[f"{step.name}: row sums"] = (
                batch * scene.sizes[query] * scene.size((*recurrence.heads, *recurrence.mixed))
            )
        return floats


class LinearAttention(OfBoxes[ExpandedMap]):
    """Normalize and keep boxes over keys that need fewer MACs if the keys are summed first.

    Also softmaxes whose scores depend on keys only, and sums over keys of decaying scores.
    """

    name, kind, alone, pairs, work = "linear attention", "linear", True, False, LinearWork

    def places(self, graph: Graph) -> list[str]:
        boxes = [name for name, attention in attentions(graph).items() if attention.compares]
        boxes.sort(key=lambda name: not isinstance(attentions(graph)[name].weighting, SoftmaxOfScores))
        return [*boxes, *(step.name for step in sums(graph))]

    def form(self, graph: Graph, place: str) -> ExpandedMap | None:
        attention = attentions(graph).get(place)
        if place not in graph.step:  # a diagonal, now part of a kernel
            return None
        if attention is None:
            summed = replace(_summed(*_as_map(graph, graph.step[place])), before=graph)
            recurrence = summed.recurrence
            return summed if isinstance(recurrence, Recurrence) and (recurrence.decays or recurrence.shifted) else None
        if isinstance(attention.weighting, SoftmaxOfScores):
            alone = linear(attention)
            return None if isinstance(alone, str) else ExpandedMap(graph, graph, place, alone)
        return _summed(graph, place) if attention.compares else None

    def unsupported(self, form: ExpandedMap, context: Context) -> tuple[str, ...]:
        return (form.recurrence,) if isinstance(form.recurrence, str) else ()

    def cost(self, form: ExpandedMap, context: Context) -> FormCost:
        """The seconds if the keys are summed first, and of the scores."""
        graph = form.recurrent_graph
        recurrence, few = recurrence_of(graph.step[f"{form.box}.o"]), context.sizes[graph.query] < LEAST
        decays = any(term.decays for term in recurrence.terms) and not recurrence.by_features
        worth = 1 / SEVERAL_KERNELS if decays and context.backend == "triton" else 1 / FEW if few else TIE
        return compared(graph, form.before, context, "summing over the keys first would take", worth)

    def lower(self, form: ExpandedMap, context: Context) -> Lowered:
        recurrence, opened, graph = form.recurrence, form.opened, form.recurrent_graph
        assert not isinstance(recurrence, str)
        name = f"{form.box}.o"
        kernel_form = recurrence_of(graph.step[name])
        how = f", in chunks of {chunk_of(graph, kernel_form, context.sizes)}" if kernel_form.causal(graph) else ""
        how += ", shifted by one" * kernel_form.shifted
        how += ", powers of scores expanded" if opened.legs != form.before.legs else ""
        some_unmasked = any(map(unmasked, opened.steps))
        decay = "".join(f", decayed by '{decay.box.name}'" for decay in recurrence.decays if not recurrence.alone)
        decay += ", weighted by scores of the keys only" if recurrence.alone else ""
        description = f"{self.name}: the keys are summed first{how}{decay}" + ("" if some_unmasked else f"; {DENSE}")
        return Lowered(graph, {name: description})

    def on_triton(self, form: object) -> bool:
        return isinstance(form, Recurrence)

    def in_cpp(self, graph: Graph, step: Step) -> bool:
        form = recurrence_of(step)
        if not form.one_product or form.causal(graph):
            return False
        sides = (form.terms[0].query, form.terms[0].key, () if form.value is None else (form.value,))
        return all(side and {*form.heads} <= {*side[0].legs} for side in sides)

    def emit(self, writer: Writer, step: Step) -> None:
        """Emits one call."""
        recurrence, query, key = recurrence_of(step), writer.graph.query, str(writer.graph.key)
        assert recurrence.value is not None
        box = recurrence.box.name
        writer.line(
            f"# {box} and {box} {recurrence.value.name}: sums over {key} first; no {query} by {key} tensor is formed"
        )
        small = small_legs(writer, [step])
        terms = ", ".join(term_text(writer, recurrence, term, small) for term in recurrence.terms)
        values = laid(writer, "v", matrix(writer.value(recurrence.value), recurrence.heads, (key,), recurrence.result))
        call = "decay_attention" if recurrence.decaying else "linear_attention"
        expression = writer.call(
            call,
            f"[{terms}]",
            values,
            *_options(writer, recurrence),
            *_maps(writer, recurrence, small),
            *cpp_option(writer, step, [step]),
        )
        expression += columns([*map(writer.size, recurrence.result)])
        writer.named(step.name, expression, (*recurrence.heads, query, *recurrence.result))


LINEAR = LinearAttention()


def _summed(graph: Graph, box: str) -> ExpandedMap:
    """A map whose scores may be polynomials and may decay."""
    opened = with_own_scores(graph, attentions(graph)[box].of)
    return ExpandedMap(graph, opened, box, linear(attentions(opened)[box]))


def with_own_scores(graph: Graph, of: Use) -> Graph:
    """The graph with scores as a sum of products of queries and keys, if they are one, with decays of its own."""
    return decay_alone(written_out(graph, of), of.name)


def _as_map(graph: Graph, box: Step) -> tuple[Graph, str]:
    """A sum of scores over the keys as a map applied to ones: sum over m of S -> A = keep over m of S; A ones[m]."""
    assert box.box is not None
    of, key = box.box.of, str(graph.key)
    ones = Tensor(fresh(graph, f"{box.name}.{key}"), "constant", (key,), Function("ones"))
    keep = Step(fresh(graph, f"{box.name}.kept"), replace(box.box, kind="keep", numbers=()), of.legs)
    read = replace(box, op=Contraction.of(keep.use, ones.use))
    return with_steps(with_places(graph, (ones,)), {box.name: [keep, read]}), keep.name


def reassociated(attention: Attention, recurrence: Recurrence) -> Graph:
    """The graph with the box, its scores and its product with the values as one kernel."""
    graph, box, before = attention.graph, recurrence.box, list[Step]()
    reader, (name, legs) = attention.reader(), (f"{box.name}.o", attention.of.legs)
    assert isinstance(reader, MapReader)
    assert box.box is not None
    assert recurrence.value is not None
    terms = canonical(graph, recurrence, box.legs, before)
    places = {tensor.name: tensor for decay in recurrence.decays for tensor in decay.places}
    graph = with_places(graph, tuple(places.values()))
    sides = [decay_sides(graph, decay, f"{box.name}.{decay.box.name}", before) for decay in recurrence.decays]
    if recurrence.alone:
        ((*body, _),) = sides
        scores, map_box = body[-1], replace(box.box, numbers=PLAIN)
        a, b, *diagonal_uses = (use for use in scores.uses if use.name not in {step.name for step in body})
        terms = (replace(terms[0], decays=((a, b),), at_own_position=tuple(diagonal_uses)),)
    else:
        scores = written(attention.of.name if attention.terms else f"{box.name}.f", terms, legs)
        body, map_box = [*chain(*sides), scores], box.box
        pairs = {exp.name: _pair(difference) for difference, exp in sides}
        terms = tuple(replace(term, decays=tuple(pairs[use.name] for use in term.pairwise)) for term in terms)
    box = replace(box, op=replace(map_box, operands=(("of", Use(scores.name, legs)),)))
    legs = without(box.legs, graph.key) + recurrence.value_legs
    body += [box, Step(name, Contraction.of(box.use, recurrence.value), legs)]
    form = replace(recurrence, box=box, terms=tuple(featured(recurrence, term) for term in terms), decays=())
    before.append(Step(name, kernel("linear", graph, before, body, form), legs))
    new_reader = _reading(reader, Use(name, legs), before)
    gone = {scores.name, box.name, *(step.name for decay in recurrence.decays for step in (decay.of, decay.box))}
    graph = with_steps(graph, dict.fromkeys(gone, ()) | {reader.step.name: [*before, new_reader]})
    return without_dead(graph, (use.name for decay in recurrence.decays for use in decay.of.uses)) or graph


def _pair(difference: Step) -> tuple[Use, Use]:
    a, b = difference.uses
    return a, b


def _reading(reader: MapReader, replacement: Use, before: list[Step]) -> Step:
    """The reader of the map, reading the result instead; a step in `before` sums legs that only the reader sums."""
    needed = {*reader.step.legs, *(leg for use in reader.others for leg in use.legs)}
    legs = within(replacement.legs, needed)
    if legs != replacement.legs:
        before.append(Step(f"{reader.use.name}.s", Contraction.of(replacement), legs))
        replacement = Use(f"{reader.use.name}.s", legs)
    return reader.reading(replacement)


def canonical(graph: Graph, recurrence: Recurrence, legs: Legs, before: list[Step]) -> tuple[ScoreTerm, ...]:
    """The terms with at most one query factor and one key factor, and one core if cores mix heads.

    `legs`: of the scores. Products that this needs are added to `before`. Cores that mix no heads and free factors
    become part of the query side.
    """
    terms, mixed = [], {*recurrence.mixed}
    for i, term in enumerate(recurrence.terms):
        number = "" if len(recurrence.terms) == 1 else str(i + 1)
        query, core, sides = term.query, term.core, list[tuple[Use, ...]]()
        if query and not any(mixed & {*use.legs} for use in core):
            query, core = query + core, ()
        for letter, uses in zip("qkc", (query, term.key, core), strict=True):
            needed = {leg for use in term.factors if use not in uses for leg in use.legs} | {*legs}
            name = fresh(graph, f"{recurrence.box.name}.{letter}{number}")  # absorption uses this name for its queries
            sides.append((_joined(name, uses, needed, recurrence.mixed, before),) if uses else ())
        terms.append(replace(term, query=sides[0], key=sides[1], core=sides[2]))
    return tuple(terms)


def written(name: str, terms: Sequence[ScoreTerm], legs: Legs) -> Step:
    """The step that computes scores as the sum of these terms."""
    return Step(name, Contraction(tuple(Term(term.coefficient, term.factors) for term in terms)), legs)


def featured(recurrence: Recurrence, term: ScoreTerm) -> ScoreTerm:
    """A canonical term with its feature legs; a core that mixes no heads becomes the query side."""
    if term.core and not {*recurrence.mixed} & {*term.core[0].legs}:
        term = replace(term, query=term.query or term.core, core=())
    uses = zip(term.query, term.key, strict=False)
    shared = [leg for query, key in uses for leg in query.legs if leg in key.legs]
    shared = [leg for leg in shared if leg not in (*recurrence.heads, *recurrence.mixed)]
    groups = tuple(leg for leg in shared if any(leg in core.legs for core in term.core))
    return replace(term, groups=groups, width=without(shared, *groups))


def _joined(name: str, uses: Sequence[Use], needed: set[str], last: Legs, before: list[Step]) -> Use:
    """The product of several uses on the needed legs, as a step in `before`; a single such use is returned as it is."""
    legs = tuple(dict.fromkeys(leg for use in uses for leg in use.legs if leg in needed))
    if len(uses) == 1 and legs == uses[0].legs:
        return uses[0]
    legs = tuple(sorted(legs, key=lambda leg: leg in last))
    before.append(Step(name, Contraction.of(*uses), legs))
    return Use(name, legs)


def chunk_of(graph: Graph, recurrence: Recurrence, sizes: Mapping[str, int] | None = None) -> int:
    """Keys per chunk of a causal scan: a power of two near the square root of features times values of a head.

    With this size, scores inside chunks and states between chunks have similar size and cost. If each feature decays
    separately, the scores inside a chunk are computed feature by feature, so chunks are short.
    """
    if any(term.decayed for term in recurrence.terms):
        return CHUNKS[0]
    all_sizes = leg_sizes(graph, sizes)
    features = max(prod(all_sizes[leg] for leg in term.features) for term in recurrence.terms)
    root: int = 2 ** round(log2(features * prod(all_sizes[leg] for leg in recurrence.value_legs)) / 2)
    return min(max(root, CHUNKS[0]), CHUNKS[1])


class TermHeads(NamedTuple):
    """The heads for which keys and values are summed, those for which queries read the sums, and those of scores
    before they decay.
    """

    stored: Legs
    read: Legs
    scored: Legs


def heads_of(recurrence: Recurrence, term: ScoreTerm) -> TermHeads:
    values = () if recurrence.value is None else (recurrence.value,)
    stored = (*term.key, *term.core, *values, *(b for _, b in term.decays))
    sides = stored, (*stored, *term.query, *(a for a, _ in term.decays)), (*term.query, *term.key)
    legs = [legs_in(uses) for uses in sides]
    return TermHeads(*(within(recurrence.heads, of_side) for of_side in legs))


def sides_kept(scene: SizedGraph, step: Step, chunk: int) -> dict[str, int]:
    """Operands saved for backward, before maps that the kernel computes; whole chunks are copies.

    A result that was divided by its row sums is saved before that.
    """
    graph, recurrence, floats = scene.graph, recurrence_of(step), dict[str, int]()
    if scene.stepwise:
        return scene.kept(step.uses) | {step.name: scene.stored[step.name]}
    uses, pair = [use for use in step.uses if use != recurrence.added], {graph.query, graph.key}
    divided = {f"{step.name}: undivided": scene.stored[step.name]} if _normalized(recurrence) else {}
    if chunk:
        rows = -(-scene.sizes[str(graph.key)] // chunk) * chunk
        for use in uses:
            copied = without(use.legs, *pair)
            copies = {f"{step.name}: {use.name} in chunks": rows * scene.elements(replace(use, legs=copied))}
            floats |= copies if pair & {*use.legs} else scene.kept((use,))
        return floats | divided
    scaled = {use for term in recurrence.terms if scene.number(term.coefficient) != 1 for use in term.query}
    for use in uses:
        producer = producer_of(graph, use)
        mapped = producer is not None and producer.name in scene.in_tiles
        if producer and mapped:
            floats |= scene.kept(producer.uses)
        elif use not in scaled:
            floats |= scene.kept((use,))
        if use in scaled or (
            producer and mapped and producer.box and producer.box.function and producer.box.function.name in SLOW_MAPS
        ):
            floats[f"{step.name}: {use.name}"] = scene.elements(use)
    return floats if recurrence.one_product or recurrence.mixes else floats | divided


def _normalized(recurrence: Recurrence) -> bool:
    return not isinstance(recurrence.weighting, UnnormalizedScores)


def _options(writer: Writer, recurrence: Recurrence) -> list[str]:
    """The further arguments of the call."""
    options, eps = mask_options(writer, recurrence), eps_text(writer, recurrence)
    if eps == "None":
        options.append("normalize=False")
    elif recurrence.alone:
        options.append("softmax=True")
    elif eps not in ("0", "0.0"):
        options.append(f"eps={eps}")
    if recurrence.causal(writer.graph):
        options.append(f"causal=True, chunk={chunk_of(writer.graph, recurrence)}")
    if recurrence.shifted:
        options.append("shift=1")
    return options


def _maps(writer: Writer, recurrence: Recurrence, small: Legs) -> list[str]:
    """The argument with the maps of the query side and the key side, if the kernel applies them."""
    if recurrence.decaying or len(recurrence.terms) > 1:
        return []
    sides = sides_maps(writer, recurrence, small)
    if sides == ["None", "None"]:
        return []
    none = '""' if "linear_attention" in writer.instead else "None"
    return [f"maps=({', '.join(none if side == 'None' else side for side in sides)})"]


def cpp_option(writer: Writer, step: Step, kernels: Sequence[Step]) -> list[str]:
    """The argument with the C++ of the kernels of a call, a constant beside the class; nothing without C++."""
    if not all(step.kernel is not None and step.kernel.cpp for step in kernels):
        return []
    recurrence_terms = [(recurrence, recurrence.terms[0]) for recurrence in map(recurrence_of, kernels)]
    sides = [
        (feature_of_side(writer, recurrence, term.query[0]), feature_of_side(writer, recurrence, term.key[0]))
        for recurrence, term in recurrence_terms
    ]
    source, name = linear_source(sides).strip(), writer.names.fresh(f"{writer.local[step.name]}_cpp")
    small = tuple(size_of(writer.graph, leg) for leg in small_legs(writer, kernels))
    writer.native.append(source)
    writer.functions |= {f'{name} = LinearCpp(r"""\n{source}\n"""{f", {small}" if small else ""})'}
    return [f"cpp={name}"]
