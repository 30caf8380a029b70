"""Derives which entries of each step are visible: those that reach the output through a mask that shows them.

# D = exp(E); A = keep over m of D, causal    ->    entries of D and E at keys after the query are not visible

An entry is not visible to a step if the readers of the step do not see its result, or if another factor of a product is
zero there, as the result of a masked box is. A product that sums the keys does not see those that the key mask hides.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

from tensornet_attn import limits
from tensornet_attn.graph.graph import Box, Function, Graph, Seen, Step, Term, Use, Visible, cached
from tensornet_attn.ir.steps import with_uses
from tensornet_attn.ops import OPS

KEYS = Visible()
EVERYTHING: Seen = frozenset({frozenset[Visible]()})
BY_KEY: Seen = frozenset({frozenset({KEYS})})
_NOTHING: Seen = frozenset()
_NOWHERE = frozenset[Visible]()
_EXP = Function("exp")

_LegsOf = Mapping[str, tuple[str, ...]]  # legs by the name of a tensor or step
_Zeros = Mapping[str, frozenset[Visible]]  # a step is zero at entries that are not visible to all of these


def looks(graph: Graph, shown: Iterable[str] = ()) -> dict[str, tuple[Seen, ...]]:
    """Maps each step to what it sees of each of its uses, in the legs of the use.

    `shown` names steps that are wholly visible, like the output, updates of states, and losses.
    """
    return (_seen(graph, shown) if shown else _all_seen(graph))[0]


def seen_by_readers(graph: Graph) -> dict[str, Seen]:
    """Maps each tensor and step to what its readers see of it, in its own legs; other entries are unspecified."""
    return _all_seen(graph)[1]


@cached
def _all_seen(graph: Graph) -> tuple[dict[str, tuple[Seen, ...]], dict[str, Seen]]:
    return _seen(graph, ())


def _seen(graph: Graph, shown: Iterable[str]) -> tuple[dict[str, tuple[Seen, ...]], dict[str, Seen]]:
    steps = flat_steps(graph)
    legs = _legs_of(graph, steps)
    zeros = _zeros(graph, steps, legs)
    seen = dict.fromkeys((*graph.results, *shown), EVERYTHING)
    use_looks: dict[str, tuple[Seen, ...]] = {}
    for step in reversed(steps):
        step_seen = seen.get(step.name, EVERYTHING)
        use_looks[step.name] = tuple(_looks(graph, step, step_seen, zeros, legs))
        for use, look in zip(step.uses, use_looks[step.name], strict=True):
            names = dict(zip(use.legs, legs[use.name], strict=True))
            seen[use.name] = _simplest(seen.get(use.name, _NOTHING) | _translated(graph, look, names))
    return use_looks, seen


def visible_to(graph: Graph, step: Step) -> Visible:
    """What is visible to a masked box, in its own legs."""
    assert step.box is not None
    legs = step.box.of.legs
    if graph.query not in legs:
        return KEYS
    others = tuple((leg, leg) for leg in legs if leg not in (graph.query, graph.key))
    return Visible(tuple(sorted({*graph.masks(step)}, key=str)), others)


def _legs_of(graph: Graph, steps: Iterable[Step]) -> _LegsOf:
    return {tensor.name: tensor.legs for tensor in graph.tensors} | {step.name: step.legs for step in steps}


def flat_steps(graph: Graph) -> list[Step]:
    """The steps of a graph, with those inside kernels in place of the kernels."""
    return [inner for step in graph.steps for inner in flattened(step)]


def flattened(step: Step) -> Iterator[Step]:
    """The steps inside a kernel under unique names; another step, and a kernel of parts that are joined, itself."""
    body = [inner for nested in (step.kernel.body if step.kernel is not None else ()) for inner in flattened(nested)]
    if not body or body[-1].name != step.name:
        yield step
        return
    unique_names = {inner.name: f"{step.name} {inner.name}" for inner in body[:-1]}
    for inner in body:
        renamed = with_uses(inner, lambda use: replace(use, name=unique_names.get(use.name, use.name)))
        yield replace(renamed, name=unique_names.get(inner.name, inner.name))


# Visible entries in the legs of another tensor; `names` maps legs to that tensor's legs


def _translated(graph: Graph, seen: Seen, names: Mapping[str, str]) -> Seen:
    """Translates visible entries. Along a leg that the other tensor lacks, an entry visible anywhere is visible."""
    return seen if seen == EVERYTHING else _simplest(_all_translated(graph, alternative, names) for alternative in seen)


def _all_translated(graph: Graph, alternative: Iterable[Visible], names: Mapping[str, str]) -> frozenset[Visible]:
    """Translates each part; parts that hide nothing of the other tensor are dropped."""
    if graph.key is None or names.get(graph.key) != graph.key:
        return frozenset()
    pair = names.get(graph.query) == graph.query
    return frozenset(_translated_one(visible, names) if pair else KEYS for visible in alternative)


def _translated_one(visible: Visible, names: Mapping[str, str]) -> Visible:
    if visible.legs is None:
        return visible
    return replace(visible, legs=tuple((mask_leg, names.get(leg) if leg else None) for mask_leg, leg in visible.legs))


def _own(legs: Iterable[str]) -> dict[str, str]:
    return {leg: leg for leg in legs}


def _simplest(seen: Iterable[frozenset[Visible]]) -> Seen:
    """The alternatives without those that see no more than another."""
    alternatives = {alternative - {KEYS} or alternative for alternative in seen}  # all others exclude masked keys too
    if len(alternatives) > limits.SEEN or frozenset() in alternatives:
        return EVERYTHING
    if frozenset({KEYS}) in alternatives:
        return BY_KEY
    return frozenset(
        alternative for alternative in alternatives if not any(narrower < alternative for narrower in alternatives)
    )


def _both(left: Seen, right: Seen) -> Seen:
    return _simplest(a | b for a in left for b in right)


# Zeros of steps


def zero_outside(graph: Graph, batched: Container[str]) -> dict[str, frozenset[Visible]]:
    """Maps the step of each box to a set of visible entries; its operands are zero at all other entries.

    Only boxes `hide` in `batched` count; others contain entries that are visible in any element of a batch. Products do
    not count: another factor may be infinite or NaN there.
    """
    steps = flat_steps(graph)
    legs = _legs_of(graph, steps)
    zeros = _zeros(graph, steps, legs, batched)
    return {step.name: _zero(graph, step.uses, zeros, legs) for step in steps if step.box is not None}


def _zeros(graph: Graph, steps: Iterable[Step], legs: _LegsOf, batched: Container[str] | None = None) -> _Zeros:
    zeros: dict[str, frozenset[Visible]] = {}
    powers: dict[str, frozenset[Visible]] = {}  # the same for minus infinity, whose exp is zero
    for step in steps:
        box = step.box
        if step.contraction is not None:
            products = [term.factors for term in step.terms]
            counted = [factors if batched is None or len(factors) == 1 else () for factors in products]
            terms = [_zero(graph, factors, zeros, legs) for factors in counted]
            shared = frozenset.intersection(*terms) or (frozenset({KEYS}) if all(terms) else _NOWHERE)
            zeros[step.name] = _all_translated(graph, shared, _own(step.legs))
        elif box is None:
            continue
        elif graph.masked(step) and OPS[box.kind].zero_at_hidden(box):
            zeros[step.name] = frozenset({visible_to(graph, step)})
        elif OPS[box.kind].scales:
            zeros[step.name] = _zero(graph, box.uses, zeros, legs)
        elif len(box.seen) == 1 and step.name in (batched or ()):
            filled = {0: zeros, -inf: powers}.get(box.number("fill").value)  # type: ignore[union-attr]
            if filled is not None:
                (filled[step.name],) = box.seen
        elif box.function == _EXP:
            zeros[step.name] = _zero(graph, box.uses, powers, legs)
    return zeros


def _zero(graph: Graph, factors: Iterable[Use], zeros: _Zeros, legs: _LegsOf) -> frozenset[Visible]:
    """A set of visible entries, in the legs of the uses; the product is zero at all other entries."""
    visible = frozenset[Visible]()
    for use in factors:
        names = dict(zip(legs[use.name], use.legs, strict=True))
        visible |= _all_translated(graph, zeros.get(use.name, ()), names)
    return visible


@cached
def zero_at_pairs(graph: Graph) -> frozenset[str]:
    """The steps that are zero at pairs of queries and keys that a mask hides."""
    steps = flat_steps(graph)
    zeros = _zeros(graph, steps, _legs_of(graph, steps))
    return frozenset(name for name, visible in zeros.items() if visible - {KEYS})


def omits_hidden_keys(graph: Graph) -> bool:
    """Whether a product sums the key leg, so that a key mask hides keys from it."""
    return any(_sums(graph, step, term) for step in flat_steps(graph) for term in step.terms)


@cached
def counting(graph: Graph) -> Mapping[str, tuple[Term, ...]]:
    """Maps each step to its products that sum the key leg and in which no factor is zero at hidden keys.

    The steps inside of a kernel have the names that `flattened` gives them.
    """
    steps = flat_steps(graph)
    sums = {step.name: [term for term in step.terms if _sums(graph, step, term)] for step in steps}
    if not any(sums.values()):
        return {}
    legs = _legs_of(graph, steps)
    zeros = _zeros(graph, steps, legs)
    counted = {name: tuple(term for term in sums[name] if not _zero(graph, term.factors, zeros, legs)) for name in sums}
    return {name: terms for name, terms in counted.items() if terms}


def _sums(graph: Graph, step: Step, term: Term) -> bool:
    return graph.key not in step.legs and any(graph.key in use.legs for use in term.factors)


@cached
def left_out(graph: Graph) -> frozenset[str]:
    """The steps that may be minus infinity for each key of a row, where a choice of keys leaves them out."""
    names = set[str]()
    for step in graph.steps:
        box = step.box
        chooses = box is not None and graph.masked(step) and OPS[box.kind].nothing_elsewhere(box)
        passes = graph.key in step.legs and (box is None or OPS[box.kind].elementwise)
        if chooses or (passes and step.reads & names):
            names.add(step.name)
    return frozenset(names)


def hider(graph: Graph, steps: Iterable[Step], term: Term, seen: Mapping[str, tuple[Seen, ...]]) -> Use | None:
    """A factor from outside of these steps, read on keys alone, that can be zero at hidden keys. None if none.

    `seen`: the `looks` of the graph. A step that sees hidden keys, as a norm over keys does, needs its operand whole.
    """
    inside = {step.name for step in steps}
    reads = [pair for step in steps for pair in zip(step.uses, seen[step.name], strict=True)]
    others = {use.name for use, look in reads if look == EVERYTHING or not _on_keys(graph, use)}
    keys = [use for use in term.factors if _on_keys(graph, use)]
    return next((use for use in keys if use.name not in inside | others), None)


def _on_keys(graph: Graph, use: Use) -> bool:
    return graph.key in use.legs and graph.query not in use.legs


# Visibility of operands


def _looks(graph: Graph, step: Step, step_seen: Seen, zeros: _Zeros, legs: _LegsOf) -> Iterator[Seen]:
    """What a step sees of each use; `step_seen` is what is visible of the step itself."""
    if step.contraction is not None:
        for term in step.terms:
            for index, use in enumerate(term.factors):
                others = (*term.factors[:index], *term.factors[index + 1 :])
                zero = _zero(graph, others, zeros, legs)
                zero = zero - {KEYS} if graph.query in use.legs else zero
                zero = zero or (frozenset({KEYS}) if _sums(graph, step, term) else zero)
                seen = _both(step_seen, frozenset({zero}))
                yield _translated(graph, seen, _own(use.legs))
    elif step.box is not None:
        for role, use in step.box.operands:
            yield _translated(graph, _through(graph, step, step.box, role, step_seen), _own(use.legs))
    else:
        yield from (_translated(graph, step_seen, _own(use.legs)) for use in step.uses)


def _through(graph: Graph, step: Step, box: Box, role: str, step_seen: Seen) -> Seen:
    """What a box sees of an operand. Entries that the box mixes along a leg are visible together."""
    if graph.masked(step):
        seen = frozenset({frozenset({visible_to(graph, step)})})
        return seen if OPS[box.kind].runs_along else _both(seen, step_seen)
    if OPS[box.kind].recurrent:
        return EVERYTHING if role == "query" else BY_KEY
    along = OPS[box.kind].legs_mixed(box)
    return _translated(graph, step_seen, _own(leg for leg in step.legs if leg not in along))
