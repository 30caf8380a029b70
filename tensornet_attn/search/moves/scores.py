"""Moves on score heads: mixtures of global heads, grouped keys and values, mixed maps, and cores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensornet_attn.graph.attention import SoftmaxOfScores, weighting_of
from tensornet_attn.graph.graph import Use
from tensornet_attn.ir.arithmetic import ONE, Arith, parse
from tensornet_attn.ir.steps import within
from tensornet_attn.ops import OPS
from tensornet_attn.search.roles import AttentionMap, ValueProduct, only, reader
from tensornet_attn.search.sketch import Legs, Sketch, SlotWire, mapped, need, product, relabel, slot_of, swapped, wire

FORMS = ("full", "left", "right", "low_rank")


@dataclass(frozen=True)
class Side:
    """A leg of the product of the scores, and its wire through queries and keys."""

    leg: str
    wire: SlotWire


def side(sketch: Sketch, at: AttentionMap, leg: str) -> Side:
    """The wire of a leg from the product of the scores upwards. Raises Nowhere if it reaches the map another way."""
    cut = frozenset((at.scores, use.name) for use in sketch.step[at.scores].uses)
    above = wire(sketch, [slot_of(use, leg) for use in (at.query, at.key)], cut)
    need(not {at.scores, at.box} & above.owners and sketch.free(above))
    return Side(leg, above)


def head_legs(sketch: Sketch, at: AttentionMap) -> list[str]:
    """The common legs of query, key and scores: the score heads."""
    return [leg for leg in at.shared if leg in sketch.step[at.scores].legs]


def summed_legs(sketch: Sketch, at: AttentionMap) -> list[str]:
    """The legs that the product of query and key sums."""
    return [leg for leg in at.shared if leg not in sketch.step[at.scores].legs]


def plain_product(sketch: Sketch, at: AttentionMap) -> bool:
    """Whether the operand of the box is a single product of query and key."""
    term = only(sketch.step[at.scores].terms)
    direct = sketch.step[at.box].uses[0].name == at.scores
    return direct and term is not None and len(term.factors) == 2 and term.coefficient == ONE


def set_scale(sketch: Sketch, box: str, scale: Arith) -> None:
    """Sets the scale of a softmax; does nothing for other boxes."""
    old = sketch.box_of(box)
    if "scale" in dict(old.numbers):
        sketch.rebox(box, numbers=tuple((name, scale if name == "scale" else number) for name, number in old.numbers))


def share(sketch: Sketch, at: AttentionMap, g: int) -> None:
    """Q[n h d] K[m h d] -> h n m  becomes  P[g h] Q[n g d] K[m g d] -> h n m, with g heads of queries and keys.

    With a kernel's normaliser, the mixture is softplus(P), which keeps the sum of each row positive.
    """
    _mix_scores(sketch, at, side(sketch, at, need(only(head_legs(sketch, at)))), f"head {g}", "P")


def _mix_scores(sketch: Sketch, at: AttentionMap, head: Side, size: str, name: str, init: str | None = None) -> None:
    """Replaces the scores of `head.leg` by mixtures of global heads, a new leg of size `size`, with a new weight.

    Terms without a global head, such as a prior of each local head, do not change.
    """
    new = sketch.leg("g", size)
    relabel(sketch, (head.wire, (new,)))
    weight = sketch.weight(name, (new, head.leg), init)
    if OPS[sketch.box_of(at.box).kind].divides_by_sum:
        weight = sketch.put("mixture", weight.legs, at.scores, mapped("softplus")(weight))

    def mixed(factors: Sequence[Use]) -> Iterable[Use]:
        return (weight, *factors) if any(new in use.legs for use in factors) else factors

    sketch.refactor(at.scores, mixed)


def mix(sketch: Sketch, at: AttentionMap, e: int) -> None:
    """A[h n m] V[m h d]  becomes  U[e n m] V[m e d] with U = A[h n m] Pw[h e] -> e n m."""
    map_reader = need(reader(sketch, at.box))
    leg = need(only(leg for leg in map_reader.map.legs if leg in map_reader.value.legs and leg != sketch.key))
    need(leg in (*sketch.step[at.box].legs, *head_legs(sketch, at)))
    below = wire(sketch, [slot_of(map_reader.value, leg)], frozenset({(map_reader.step, map_reader.map.name)}))
    need(not {map_reader.map.name, at.box} & below.owners and sketch.free(below))
    new = sketch.leg("e", f"head {e}")
    relabel(sketch, (below, (new,)))
    legs = (new if map_leg == leg else map_leg for map_leg in map_reader.map.legs)
    mixed = sketch.put("U", legs, map_reader.step, product(map_reader.map, sketch.weight("Pw", (leg, new))))
    sketch.refactor(map_reader.step, swapped(map_reader.map, mixed))


def group(sketch: Sketch, at: AttentionMap, g: int) -> None:
    """Q[n h d] K[m h d] V[m h d]  becomes  Q[n g j d] K[m g d] V[m g d]; with g = 1, Q[n h d] K[m d] V[m d]."""
    leg, map_reader = need(only(head_legs(sketch, at))), need(reader(sketch, at.box))
    size = sketch.size(leg)
    need(leg in map_reader.value.legs and leg in map_reader.map.legs and g < size and size % g == 0)
    cut = frozenset({(at.scores, at.key.name), (map_reader.step, map_reader.value.name)})
    above = wire(sketch, [slot_of(use, leg) for use in (at.key, map_reader.value)], cut)
    below = wire(sketch, [(at.scores, sketch.step[at.scores].legs.index(leg))], cut)
    need(not above.slots & below.slots and sketch.free(above, below))
    if g == 1:
        relabel(sketch, (above, ()))
        return
    tensors = (sketch.tensors[name] for name in below.owners & sketch.tensors.keys())
    need(all(declared.role == "weights" for declared in tensors))  # constants and noise need a single head leg
    groups = sketch.leg("g", f"head {g}")
    each = sketch.leg("j", f"head {leg} / {groups}")
    relabel(sketch, (above, (groups,)), (below, (groups, each)))


def core(sketch: Sketch, at: AttentionMap, form: str, c: int) -> None:
    """Q[n h d] K[m h d] -> h n m  becomes, with r and s of size h d each, or e of size d, or g of size h:

    full      C[r s] Q[n s] K[m s] -> r n m               values V[m r]
    low_rank  C2[c r] C3[c s] Q[n s] K[m s] -> r n m      values V[m r]
    left      C2[c d] C3[c e] Q[n h e] K[m h e] -> h d n m, d being the values' components
    right     C1[h g] Q[n g d] K[m g d] -> h n m

    The scale becomes (number of rows) ** -0.5, and cores start with scores of variance 1; `c` is the rank, of left and
    low_rank.
    """
    weighting = weighting_of(sketch.step[at.box], sketch.key)
    need(isinstance(weighting, SoftmaxOfScores) and weighting.sink is None)
    head = side(sketch, at, need(only(head_legs(sketch, at))))
    inner = side(sketch, at, need(only(summed_legs(sketch, at))))
    need(plain_product(sketch, at) and {*sketch.step[at.scores].legs} == {head.leg, sketch.query, sketch.key})
    rows = f"({head.leg} * {inner.leg})"
    if form == "right":
        _mix_scores(sketch, at, head, f"head {head.leg}", "C", "normal(1)")
    elif form == "left":
        _left(sketch, at, head, inner, c)
    else:
        rows = _merged(sketch, at, head, inner, c if form == "low_rank" else 0)
    set_scale(sketch, at.box, parse(f"{rows} ** -0.5"))


def _left(sketch: Sketch, at: AttentionMap, head: Side, inner: Side, c: int) -> None:
    """Gives the map a row for each component of the values, and the components of the scores a separate leg."""
    map_reader = need(reader(sketch, at.box))
    need(map_reader.map.name == at.box and map_reader.map.legs[:1] == (head.leg,))  # the map is read directly
    values = _component(sketch, map_reader)
    score_leg = sketch.leg("e", f"head {inner.leg}")
    relabel(sketch, (inner.wire, (score_leg,)))
    if not sketch.is_head(values):
        sketch.declared[values] = f"head {sketch.declared[values]}"
    _with_core(sketch, at, c, values, score_leg, (head.leg, values), f"normal({head.leg} ** 0.5)")
    inside = sketch.step[at.scores]
    sketch.rebox(at.box, inside.legs, operands=(("of", inside.use),))

    def more_rows(use: Use) -> Use:
        return Use(use.name, (use.legs[0], values, *use.legs[1:])) if use.name == at.box else use

    sketch.refactor(map_reader.step, lambda factors: map(more_rows, factors))


def _component(sketch: Sketch, map_reader: ValueProduct) -> str:
    """The only leg of the values that the map lacks."""
    return need(only(leg for leg in map_reader.value.legs if leg not in (*map_reader.map.legs, sketch.key)))


def _merged(sketch: Sketch, at: AttentionMap, head: Side, inner: Side, c: int) -> str:
    """Merges heads and components to a leg s above the scores and a leg r below, joined by a core; returns r."""
    map_reader = need(reader(sketch, at.box))
    component = _component(sketch, map_reader)
    cut = frozenset((at.scores, use.name) for use in sketch.step[at.scores].uses)
    heads = wire(sketch, [(at.scores, sketch.step[at.scores].legs.index(head.leg))], cut)
    values = wire(sketch, [slot_of(map_reader.value, component)])
    need(not heads.slots & head.wire.slots and not values.slots & inner.wire.slots)
    need(values.owners <= heads.owners and inner.wire.owners == head.wire.owners)  # the same tensors have both legs
    need(sketch.free(heads, values) and sketch.size(component) == sketch.size(inner.leg))
    size = f"head {head.leg} * {inner.leg}"
    rows, columns = sketch.leg("r", size), sketch.leg("s", size)
    relabel(sketch, (head.wire, (columns,)), (inner.wire, ()), (heads, (rows,)), (values, ()))
    _with_core(sketch, at, c, rows, columns, (rows,), "normal(1)")
    return rows


def _with_core(sketch: Sketch, at: AttentionMap, c: int, left: str, right: str, rows: Legs, init: str) -> None:
    """Adds a core of rank c (0: full) between two legs to the product of the scores, whose result has `rows`."""
    if c:
        rank = sketch.leg("c", c)
        weights = [
            sketch.weight("C2", (rank, left), f"normal({rank} ** -0.5)"),
            sketch.weight("C3", (rank, right), init),
        ]
    else:
        weights = [sketch.weight("C", (left, right), init)]
    sequences = within(sketch.step[at.scores].legs, (sketch.query, sketch.key))
    sketch.refactor(at.scores, lambda factors: (*weights, *factors), legs=(*rows, *sequences))
