"""Whether sequences may be padded: whether rows after the last one, or before the first, change other rows.

Padding is exact if no value depends on the length, no result mixes rows along the query leg, and each sum over keys
excludes masked keys or all keys after the query. Rows after a sequence preserve positions; rows before it preserve only
distances.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tensornet_attn.graph.attention import behind
from tensornet_attn.graph.causal import leak_of_hidden, looks_back
from tensornet_attn.graph.diagram import operation_of, size_of
from tensornet_attn.graph.graph import Box, Function, Graph, Step, Term, Use, cached
from tensornet_attn.graph.visibility import by_distance, lookahead
from tensornet_attn.ir.arithmetic import names
from tensornet_attn.ir.steps import legs_in
from tensornet_attn.ops import OPS
from tensornet_attn.ops.conv import convolves, hides_rows, left_of

_PLACED = ("position", "sinusoid")  # constants that depend on absolute positions
_PAIRED = (*_PLACED, "distance")
_ANYWHERE = ("ones", "zeros", "full", *_PAIRED)  # constants whose entries do not depend on the length
Rotation = tuple[str, object]  # the leg along which rows are rotated by their position, and how


@dataclass(frozen=True)
class Padding:
    """Why each kind of padding is not exact, as a clause for messages; None if it is exact.

    `behind`: rows after a sequence. `before`: rows before it. `between`: rows inside it, or before some of its queries.
    `apart`: different numbers of rows after the queries and after the keys. `key_mask`: whether a key mask must hide
    the rows, because a query sees later keys or because sums over keys could overflow. `alone`: whether each row of the
    result depends only on its own row of the inputs, at any position.
    """

    behind: str | None
    before: str | None
    between: str | None
    apart: str | None
    key_mask: bool
    alone: bool


def padding_of(graph: Graph, wanted: Collection[str]) -> Padding:
    """The effect of padding on the steps `wanted` of a graph."""
    needed = behind(graph, wanted)
    tensors = tuple(tensor for tensor in graph.tensors if tensor.name in needed)
    steps = tuple(step for step in graph.steps if step.name in needed)
    subgraph = replace(graph, steps=steps, tensors=tensors, losses=())
    looks_behind = _looks_back(subgraph)
    length = _counts_length(subgraph) or (None if looks_behind else _sums_all(subgraph))
    placed = next(filter(None, (_asks_place(subgraph, step) for step in steps)), None)
    by_position = placed or _unmet_rotation(subgraph) or _placed_tensor(subgraph)
    paired = _paired_tensor(subgraph)
    apart = next(filter(None, (_asks_distance(subgraph, step, False) for step in steps)), None) or paired
    between = next(filter(None, (_asks_distance(subgraph, step, True) for step in steps)), None) or paired
    used_legs = {leg for step in steps for legs in (step.legs, *(use.legs for use in step.uses)) for leg in legs}
    alone = (
        length is None
        and by_position is None
        and graph.key not in used_legs
        and not any(convolves(step.box) for step in steps)
    )
    before = length or by_position
    hides = not looks_behind or any(_sums(subgraph, step) or _later_taps(subgraph, step.box) for step in steps)
    apart = length if graph.key is None else length or apart  # without keys, there are only queries
    return Padding(length, before, before or between, apart, hides, alone)


def _looks_back(graph: Graph) -> bool:
    """Whether no query sees a later key, so that rows after a sequence cannot reach it."""
    boxes = [step for step in graph.steps if graph.masked(step) and graph.query in step.uses[0].legs]
    return all(lookahead(graph, step) <= 0 for step in boxes) and looks_back(replace(graph, causal=True))


def _sums(graph: Graph, step: Step) -> bool:
    """Whether a step sums keys without the weights of a softmax, so that a much longer sum may overflow."""
    op = operation_of(step)
    return op.recurrent or (graph.masked(step) and op.ignores_zeros == "always")


def _sums_all(graph: Graph) -> str | None:
    leak = leak_of_hidden(graph)
    if leak is None:
        return None
    what = "key" if leak.leg == graph.key else "query"
    return f"'{leak.step}' {leak.verb} the {what} leg '{leak.leg}', and no mask excludes padded rows"


def _counts_length(graph: Graph) -> str | None:
    """Why a value depends on the length, other than through sums; None if none does."""
    unbounded = {leg.name for leg in graph.legs if leg.kind == "relative" and leg.size is None}
    for step in graph.steps:
        if step.box is not None and operation_of(step).by_length(step.box):
            return f"'{step.name}' rotates by angles that depend on the length"
        if _reads_padding(graph, step.box) and _later_taps(graph, step.box):
            return f"'{step.name}' reads later positions"
        lengths = {name.name for number in step.arithmetic for name in names(number)} & {graph.query, graph.key}
        if lengths:
            return f"'{step.name}' has the length '{min(map(str, lengths))}' in a number"
        summed = legs_in(step.uses) - {*step.legs} if step.box is None else set()
        along = {step.box.leg} if step.box is not None and operation_of(step).runs_along else set()
        if combined := (summed | along) & unbounded:
            return f"'{step.name}' combines all distances on leg '{min(map(str, combined))}'"
    for tensor in graph.tensors:
        fixed = tensor.init is None or tensor.role != "constant" or tensor.init.name in _ANYWHERE
        if not fixed and any(_of_length(graph, leg) for leg in tensor.legs):
            return f"the constant '{tensor.name}' depends on the length"
        if tensor.init is not None and tensor.init.name == "sinusoid" and _of_length(graph, tensor.legs[1]):
            return f"the constant '{tensor.name}' has the length of the sequence as its width"
    return None


def _reads_padding(graph: Graph, box: Box | None) -> bool:
    """Whether a step is a convolution along queries that no key mask hides, because the keys are another sequence."""
    return box is not None and convolves(box) and box.leg == graph.query and not hides_rows(graph, box)


def _later_taps(graph: Graph, box: Box | None) -> bool:
    """Whether a convolution reads later positions, other than masked scores."""
    if box is None or not convolves(box):
        return False
    legs, width = box.of.legs, int(size_of(graph, str(box.other)) or 1)
    scores = box.leg == graph.key and graph.query in legs
    return not scores and left_of(graph, box, width) < width - 1


def _of_length(graph: Graph, leg: str) -> bool:
    return graph.leg[leg].sequence or size_of(graph, leg) is None


def _asks_place(graph: Graph, step: Step) -> str | None:
    """Why a step depends on absolute positions, not only on distances; None if it does not."""
    masks = graph.masks(step)
    if not by_distance(masks):
        return f"a mask of '{step.name}' depends on absolute positions"
    if _reads_padding(graph, step.box):
        return f"'{step.name}' reads earlier positions"
    return None


def rotated(graph: Graph, box: Box) -> bool:
    """Whether a box transforms each entry of a sequence leg by its position, as rotary embedding does."""
    sequence = box.leg is not None and box.leg in (graph.query, graph.key) and OPS[box.kind].counts_positions(box)
    return sequence and box.other is not None and OPS[box.kind].legs_mixed(box) == {box.other}


@cached
def _rotations(graph: Graph) -> dict[str, Rotation]:
    """The rotation of each step whose rows are rotated, or are products of rotated rows that keep the rotated leg."""
    rotations: dict[str, Rotation] = {}
    for step in graph.steps:
        if step.contraction is not None:
            of_terms = {_kept_rotation(rotations, graph, step, term) for term in step.terms}
            if len(of_terms) == 1 and (rotation := of_terms.pop()) is not None:
                rotations[step.name] = rotation
        elif step.box is not None and rotated(graph, step.box):
            rotations[step.name] = str(step.box.other), (step.box.kind, step.box.numbers, step.box.mode)
    return rotations


def _kept_rotation(rotations: dict[str, Rotation], graph: Graph, step: Step, term: Term) -> Rotation | None:
    """The rotation of the only rotated factor of a product, if the product neither sums nor scales its entries."""
    of_factors = [rotation for use in term.factors if (rotation := _rotation_of(rotations, graph, use)) is not None]
    if len(of_factors) != 1 or of_factors[0][0] not in step.legs:
        return None
    return of_factors[0] if sum(of_factors[0][0] in use.legs for use in term.factors) == 1 else None


def _rotation_of(rotations: dict[str, Rotation], graph: Graph, use: Use) -> Rotation | None:
    """The rotation of the rows of a use, with its leg as the use names it. Returns None if they are not rotated."""
    if use.name not in rotations:
        return None
    leg, turn = rotations[use.name]
    return use.legs[graph.legs_of(use.name).index(leg)], turn


def _unmet_rotation(graph: Graph) -> str | None:
    """Why rotated rows depend on absolute positions: a reader is no product of a query and a key of one rotation."""
    rotations, met = _rotations(graph), dict[str, bool]()
    for step in reversed([step for step in graph.steps if step.name in rotations]):
        readers = graph.readers.get(step.name, ())
        meets = all(met.get(reader.name) or _meets_its_like(graph, reader, use) for reader, use in readers)
        met[step.name] = meets and bool(readers) and step.name != graph.output
    name = next((step.name for step in graph.steps if step.box is not None and not met.get(step.name, True)), None)
    reason = f"'{name}' is rotated by its position, and is not used in a product of a query and a key"
    return None if name is None else reason


def _meets_its_like(graph: Graph, reader: Step, use: Use) -> bool:
    """Whether a step uses rotated rows only in products with rows of the same rotation.

    A product of two rotated vectors, summed over the rotated leg, depends only on their distance.
    """
    terms = [term for term in reader.terms if use in term.factors]
    for term in terms:
        rotation = _rotation_of(_rotations(graph), graph, use)
        rotated_factors = [factor for factor in term.factors if rotation is not None and rotation[0] in factor.legs]
        ends = [_rotation_of(_rotations(graph), graph, factor) for factor in rotated_factors]
        legs = {leg for factor in rotated_factors for leg in factor.legs}
        summed = rotation is not None and rotation[0] not in reader.legs
        if not (summed and ends == [rotation, rotation] and {graph.query, graph.key} <= legs):
            return False
    return bool(terms)


def _placed_tensor(graph: Graph) -> str | None:
    for tensor in graph.tensors:
        sequence = [leg for leg in tensor.legs if graph.leg[leg].sequence]
        if sequence and tensor.role in ("weight", "state"):
            return f"the {tensor.role} '{tensor.name}' has a row for each position of leg '{sequence[0]}'"
        if sequence and tensor.init is not None and tensor.init.name in _PLACED and tensor.role == "constant":
            return f"the constant '{tensor.name}' depends on absolute positions"
    return None


def _asks_distance(graph: Graph, step: Step, order: bool) -> str | None:
    """Why a step depends on the distance of query and key; with `order`, on more than their order. Else None."""
    box = step.box
    if [mask for mask in graph.masks(step) if not (order and mask == Function("causal"))]:
        return f"a mask of '{step.name}' compares the positions of queries and keys"
    if box is None:
        return None
    relative = box.leg is not None and graph.leg[box.leg].kind == "relative"
    if (OPS[box.kind].recurrent and not order) or relative or convolves(box) or rotated(graph, box):
        return f"'{step.name}' compares the positions of queries and keys"
    return None


def _paired_tensor(graph: Graph) -> str | None:
    for tensor in graph.tensors:
        asks = tensor.role == "constant" and tensor.init is not None and tensor.init.name in _PAIRED
        if asks and any(_of_length(graph, leg) for leg in tensor.legs):
            return f"the constant '{tensor.name}' depends on absolute positions"
    return None
