"""The role of each leg in the kernels of a region: split over programs, tiled within a program, or a side of a tile.

    A.of[h n m] = P[g h] Q[n g d] K[m g d];  A = softmax of A.of;  y.p1[n h e] = A[h n m] V[m h e]

g is summed over tiles: a program has all tiles of g. A program has some tiles of h, which share the tiles of g; the
other tiles of h belong to other programs. d and e are sides of tiles, since no value of queries x keys has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from tensornet_attn.graph.diagram import operation_of, size_of
from tensornet_attn.graph.graph import Graph, Kernel, Step, Use
from tensornet_attn.ir.steps import without
from tensornet_attn.tiles.program import Unfit

MOST, DRAWN = 2, 4  # result tiles of a program that share other tiles, or noise: so many leave room for large blocks
SHARED = 8  # from as many shared tiles on, blocks are small anyway: a program has up to as many result tiles
ALL = 48  # maximum tiles of one value per program, unless `most` is more: 64 take minutes to compile and 30 kB of stack
IN_BLOCK = ("distance", "zeros", "ones", "full")  # constants that are computed per block
RESERVED = frozenset(  # names that kernels use for other things than legs
    "blocks block block_of pair first start distance in_bounds visible own lead batch seed mask key_mask mask_step "
    "key_mask_step mask_grad gradient gradient_step sums out out_step lse range float tl triton MASK KEYS TRAIN PARTS "
    "DOT SUMS load_1d load_2d store_1d store_2d place scalar tile_1d tile_2d pair_2d store_tile_1d store_tile_2d "
    "dot_of exp_of where_visible edge online powers scaled higher power log_sum inverse_of softened parts_of in_parts "
    "power_of log_add allowed bias_2d uniform gaussian_2d random_words key_of noise_2d dropped at_keys at_places "
    "entries store_entries visited prefix last_key nearby skipped with_sink sum_with_sink part begin end SPLIT "
    "out_part lse_part share_of sums_of_part own_sink result_of_part in_sight exp_in unit_of largest_of sink_share "
    "largest_with_sink maximum_of minimum_of".split()
)


def quadratic(graph: Graph, legs: Iterable[str]) -> bool:
    """Whether two of the legs grow with the lengths: query and key, or query and relative positions."""
    kinds = {graph.leg[leg].kind for leg in legs if graph.leg[leg].sequence or unbounded(graph, leg)}
    return "query" in kinds and len(kinds) > 1


def unbounded(graph: Graph, leg: str) -> bool:
    return graph.leg[leg].kind == "relative" and size_of(graph, leg) is None


def made_inside(graph: Graph, use: Use) -> bool:
    """Whether a leaf with n x m elements is computed per block: noise, and constants with a formula."""
    tensor = graph.tensor.get(use.name)
    if tensor is None or not quadratic(graph, use.legs):
        return False
    formula = tensor.role == "constant" and tensor.init is not None and tensor.init.name in IN_BLOCK
    return tensor.role == "noise" or (formula and use.legs == tensor.legs)


def sides_of(
    graph: Graph, op: Kernel, most: int = MOST
) -> tuple[dict[str, int], frozenset[str], dict[str, tuple[str, ...]]]:
    """(tiles per program of each leg, the legs with all tiles in a program, the legs of each width side).

    Legs that occur together in one tensor and separately in another become tiles. Raises Unfit.
    """
    separate = frozenset[str]()
    while True:
        heads, whole = _heads(graph, op, separate, most)
        widths = _widths(graph, op, heads)
        long = {graph.query, str(graph.key), *relative(graph, op)}
        if taken := RESERVED & {*long, *("_".join(legs) for legs in widths.values())}:
            raise Unfit(f"the name '{min(taken)}' of a leg is reserved in kernels")
        overlaps = [
            width ^ other_width
            for width in widths
            for other_width in widths
            if width != other_width and width & other_width
        ]
        if not overlaps:
            return heads, whole, {"_".join(legs): legs for legs in widths.values()}
        separate |= overlaps[0]


def relative(graph: Graph, op: Kernel) -> tuple[str, ...]:
    """The leg of relative positions in a body, if there is one; it is a side of tiles too. Raises Unfit."""
    legs = (leg for step in op.body for step_legs in (step.legs, *(use.legs for use in step.uses)) for leg in step_legs)
    relative_legs = tuple(dict.fromkeys(leg for leg in legs if unbounded(graph, leg)))
    if len(relative_legs) > 1:
        raise Unfit(f"'{relative_legs[0]}' and '{relative_legs[1]}' are both relative positions")
    return relative_legs


def tables(graph: Graph, op: Kernel) -> dict[str, str]:
    """For each tensor that is read by the distance of query and key: its name, and its relative leg of fixed size."""
    shifts = (step.box for step in op.body if step.box is not None and operation_of(step).makes_leg)
    return {box.uses[0].name: str(box.leg) for box in shifts if not unbounded(graph, str(box.leg))}


def _heads(graph: Graph, op: Kernel, separate: frozenset[str], most: int) -> tuple[dict[str, int], frozenset[str]]:
    """(tiles per program of each leg of values of queries x keys, the legs with all tiles in a program)."""
    wide = [*_wide(graph, op), tuple(sorted(separate))]
    legs = dict.fromkeys(leg for value_legs in wide for leg in value_legs)
    whole = separate | {leg for step in op.body for leg in (*_mixed(step), *_renamed(op, step)) if leg in legs}
    wide.pop()
    tiles = {leg: _size(graph, leg) if leg in whole else 1 for leg in legs}
    mixes_many = (
        max((prod(tiles[leg] for leg in value_legs if leg in whole) for value_legs in wide), default=1) >= SHARED
    )
    drawn = any(use.name in graph.tensor and graph.tensor[use.name].role == "noise" for use in _uses(op))
    room = max(most, DRAWN * drawn, SHARED * mixes_many)
    shared = [step.legs for step in op.body if _scores(graph, step, legs)]
    for leg in legs:
        if leg not in whole and any(leg not in value_legs for value_legs in shared):
            tiles[leg] = max(divisor for divisor in range(1, room + 1) if _size(graph, leg) % divisor == 0)
            room //= tiles[leg]
    for value_legs in [*wide, tuple(separate)]:
        if (count := prod(tiles[leg] for leg in value_legs)) > (limit := max(ALL, most)):
            mixed = ", ".join(f"'{leg}'" for leg in value_legs if leg in whole)
            raise Unfit(f"mixing over {mixed} takes {count:,} tiles per program, but the maximum is {limit}")
    return tiles, whole


def _wide(graph: Graph, op: Kernel) -> Iterator[tuple[str, ...]]:
    """The other legs of each value of queries x keys, or of queries x relative positions."""
    pair = (graph.query, graph.key)
    for step in op.body:
        for legs in (step.legs, *(use.legs for use in step.uses)):
            if quadratic(graph, legs):
                yield tuple(leg for leg in legs if leg not in pair and not unbounded(graph, leg))


def _scores(graph: Graph, step: Step, heads: Iterable[str]) -> bool:
    """Whether a step computes values of queries x keys by a product that sums a width; sharing these saves work."""
    if step.contraction is None or not quadratic(graph, step.legs):
        return False
    return any(leg not in heads and leg not in step.legs for use in step.uses for leg in use.legs)


def _mixed(step: Step) -> Iterator[str]:
    """The legs that a step sums, or along which it combines values."""
    if step.contraction is not None:
        yield from (leg for use in step.uses for leg in use.legs if leg not in step.legs)
    elif step.box is not None and step.box.leg is not None:
        yield from (step.box.leg, *step.box.parts)


def _renamed(op: Kernel, step: Step) -> Iterator[str]:
    """The legs that a step reads under another name, with both names: such reads are tile by tile."""
    body_legs = {body_step.name: body_step.legs for body_step in op.body}
    for use in step.uses:
        for pair in zip(body_legs.get(use.name, use.legs), use.legs, strict=True):
            yield from pair if pair[0] != pair[1] else ()


def _widths(graph: Graph, op: Kernel, heads: Iterable[str]) -> dict[frozenset[str], tuple[str, ...]]:
    """The legs that occur together in tensors without both query and key side."""
    outside = {*heads, graph.query, graph.key, *relative(graph, op), *tables(graph, op).values()}
    widths: dict[frozenset[str], tuple[str, ...]] = {}
    for step in op.body:
        for legs in (step.legs, *(use.legs for use in step.uses)):
            width = without(legs, *outside)
            if width:
                widths.setdefault(frozenset(width), width)
    return widths


def _uses(op: Kernel) -> Iterator[Use]:
    yield from (use for step in op.body for use in step.uses)


def _size(graph: Graph, leg: str) -> int:
    size = size_of(graph, leg)
    if size is None:
        raise Unfit(f"values of queries x keys have the leg '{leg}', whose size is known only at run time")
    return size
