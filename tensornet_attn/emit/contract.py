"""Emits primitive contractions: matmuls where possible, two-operand einsums, and sums of aligned tensors."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters

from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Step, Term
from tensornet_attn.ir.arithmetic import ONE, Arith, Negative
from tensornet_attn.ir.values import ATOM, MATMUL, PRODUCT, SUM, Legs, Value, flattened


def emit_contraction(writer: Writer, step: Step) -> None:
    """Emits a primitive contraction."""
    assert step.contraction is not None
    terms = step.contraction.terms
    if len(terms) > 1 or not terms[0].factors:
        value = _sum(writer, step, terms)
    else:
        (term,) = terms
        value = scaled(writer, term.coefficient, _product(writer, step, term))
    writer.bind(step.name, value.text, value.legs, value.level)


def scaled(writer: Writer, coefficient: Arith, value: Value) -> Value:
    """coefficient * value; a coefficient of 1 is left out."""
    return writer.scaled(coefficient, value)


def _product(writer: Writer, step: Step, term: Term) -> Value:
    """The product of one or two factors, in its natural layout."""
    want = writer.wanted(step)
    if len(term.factors) == 1:
        return summed(writer.value(term.factors[0]), want)
    left, right = (writer.packed(use) for use in term.factors)
    if writer.widened:
        return _wide_product(writer, left.unpacked, right.unpacked, want)
    return product(writer, left, right, want)


def _wide_product(writer: Writer, left: Value, right: Value, want: Legs) -> Value:
    """The product of few rows and the keys, which a CPU converts to at least float32 where it lays them out."""

    def wide(value: Value) -> Value:
        return Value(writer.call("to_wide_on_cpu", value.text), value.legs, value.batched)

    if sides := _ordered(writer, left, right, want) or _ordered(writer, right, left, want):
        rows, columns = map(wide, sides)
        return Value(f"{rows.text} @ {columns.text}.contiguous().mT", want, True, MATMUL)
    return product(writer, wide(left), wide(right), want)


def product(writer: Writer, left: Value, right: Value, want: Legs) -> Value:
    """The product of two values, summed over the legs that are not wanted."""
    for x, weight in ((left, right), (right, left)):
        found = _matmul(writer, x, weight.unpacked, want) or _mixing(writer, x.unpacked, weight.unpacked, want)
        if found is not None:
            return found
    left, right = left.unpacked, right.unpacked
    turned = [_matmul(writer, x, _summed_first(x, weight), want) for x, weight in ((left, right), (right, left))]
    if any(turned):
        return min((found for found in turned if found), key=lambda found: found.legs != want)  # as wanted, if one is
    if set(left.legs) | set(right.legs) == set(want):
        text = f"{left.aligned(want).atom} * {right.aligned(want).atom}"
        return Value(text, want, left.batched or right.batched, PRODUCT)
    for big, small in ((left, right), (right, left)):
        if text := _turned(big, small, want, writer.narrow):
            return Value(text, want, True)
    if text := _batched(left, right, want):
        return Value(text, want, True, MATMUL)
    for x, weight in ((left, right), (right, left)):
        if (found := _weighted(writer, x, weight, want)) is not None:
            return found
    if sides := _ordered(writer, left, right, want) or _ordered(writer, right, left, want):
        rows, columns = sides
        return Value(f"{rows.atom} @ {columns.atom}.mT", want, True, MATMUL)
    for big, small in ((left, right), (right, left)):
        if (found := _uncopied(writer, big, small, want)) is not None:
            return found
    text = _inner(left, right, want) or einsum_text(left, right, want)
    return Value(text, want, left.batched or right.batched)


def _inner(left: Value, right: Value, want: Legs) -> str:
    """`(a * b).sum(-1)` if both have the same legs, because a matmul per entry would be slow; otherwise empty."""
    if set(left.legs) != set(right.legs):
        return ""
    summed = tuple(leg for leg in left.legs if leg not in want)
    layout = want + summed
    dims = f"{tuple(range(-len(summed), 0))}" if len(summed) > 1 else "-1"
    if left == right:
        return f"{left.arranged(layout).atom}.square().sum({dims})"
    return f"({left.arranged(layout).atom} * {right.arranged(layout).atom}).sum({dims})"


def _turned(big: Value, small: Value, want: Legs, narrow: set[str]) -> str:
    """`(K.mT @ P.mT).mT`: a product with few columns as one with few rows; empty if it has many, or other legs."""
    *lead, row, column = want if len(want) > 1 else ("", "")
    shared = tuple(leg for leg in big.legs if leg in small.legs and leg not in want)
    if column not in narrow or row in narrow or not shared or not (big.batched and small.batched):
        return ""
    own = {*big.legs} - {*shared}, {*small.legs} - {*shared}
    if own[0] & {row, column} != {row} or own[1] & {row, column} != {column} or own[0] | own[1] != {*want}:
        return ""
    sides = []
    for x, ends in ((small, ((column,), shared)), (big, (shared, (row,)))):
        have = tuple(leg for leg in lead if leg in x.legs)
        ended = tuple(" ".join(one) for one in ends)
        text = x.grouped((*((leg,) for leg in have), *ends))
        sides.append(Value(text, have + ended, True).aligned((*lead, *ended)).text)
    return f"({sides[0]} @ {sides[1]}).mT"


def _batched(left: Value, right: Value, want: Legs) -> str:
    """`Q @ K.mT`, a matrix product per entry of the first legs; otherwise empty. A small einsum takes twice as long."""
    heads = want[:-2]
    if len(want) < 2 or not (left.batched and right.batched) or left.legs[:-2] != heads or right.legs[:-2] != heads:
        return ""
    ends = left.legs[-2:], right.legs[-2:]
    shared = [leg for leg in ends[0] if leg in ends[1]]
    if len(ends[0]) != 2 or len(ends[1]) != 2 or len(shared) != 1:
        return ""
    if want[-2] in ends[1]:  # the rows of the result are on the right
        left, right, ends = right, left, ends[::-1]
    if want[-2:] != tuple(leg for own in ends for leg in own if leg not in shared):
        return ""
    first = left.atom if ends[0][1] in shared else f"{left.atom}.mT"
    return f"{first} @ {right.atom if ends[1][0] in shared else f'{right.atom}.mT'}"


def _ordered(writer: Writer, left: Value, right: Value, want: Legs) -> tuple[Value, Value] | None:
    """The sides of `Q[:, None] @ K.transpose(-3, -2).mT`: scores in the wanted order, unlike those of an einsum."""
    *lead, row, column = want if len(want) > 2 else ("", "")
    shared = [leg for leg in left.legs if leg in right.legs and leg not in want]
    alone = {row, column} == {writer.graph.query, writer.graph.key} and left.batched and right.batched
    if not alone or len(shared) != 1 or {*left.legs, *right.legs} != {*want, *shared}:
        return None
    if row in right.legs or column in left.legs:
        return None
    both = [leg for leg in lead if leg in left.legs and leg in right.legs]
    rows, columns = ([leg for leg in want if leg in x.legs and leg not in both] for x in (left, right))
    if (*both, *rows, *columns) == want:
        return None
    return left.aligned((*lead, row, *shared)), right.aligned((*lead, column, *shared))


def _uncopied(writer: Writer, big: Value, small: Value, want: Legs) -> Value | None:
    """`(P.mT @ Q[:, None]).sum(-3)`: a matrix product per entry of the first legs of a tensor of queries x keys.

    An einsum would copy that tensor, to bring together the legs that it sums or those that only this tensor has. None
    if these are side by side, or if the other factor has not exactly one leg of its own.
    """
    *lead, row, column = big.legs if len(big.legs) > 2 else ("", "")
    inner, kept = (row, column) if column in want else (column, row)
    summed = sorted(leg for leg in big.legs if leg not in want)
    alone = [leg for leg in want if leg in big.legs and leg not in small.legs]
    own = [leg for leg in small.legs if leg not in big.legs]
    pairs = {row, column} == {writer.graph.query, writer.graph.key} and big.batched and small.batched
    if not pairs or inner not in summed or kept not in alone or not {*summed} <= {*small.legs}:
        return None
    if len(own) != 1 or own[0] not in want or (_side_by_side(big.legs, summed) and _side_by_side(big.legs, alone)):
        return None
    text = f"{big.atom}{'' if inner == column else '.mT'} @ {small.aligned((*lead, inner, *own)).atom}"
    legs, dims = (*lead, kept, *own), [i - len(big.legs) for i, leg in enumerate(lead) if leg in summed]
    if dims:
        text = f"({text}).sum({dims[0] if len(dims) == 1 else tuple(dims)})"
    return Value(text, tuple(leg for leg in legs if leg in want), True, ATOM if dims else MATMUL)


def _side_by_side(legs: Legs, some: Sequence[str]) -> bool:
    """Whether some legs are next to each other, in this order."""
    return any(legs[i : i + len(some)] == (*some,) for i in range(len(legs)))


def _matmul(writer: Writer, x: Value, weight: Value, want: Legs) -> Value | None:
    """`projected(x, Wq.flatten(1)).unflatten(-1, Wq.shape[1:])`, if the weight's summed legs come first. Else None."""
    shared = tuple(leg for leg in weight.legs if leg in x.legs)
    count, rest, own = len(shared), tuple(leg for leg in x.legs if leg not in shared), weight.legs[len(shared) :]
    if weight.batched or not shared or weight.legs[:count] != shared or set(shared) & set(want):
        return None
    if set(rest + own) != set(want) or (x.legs[-count:] != shared and not _follows(want, rest, own)):
        return None
    rest = tuple(leg for leg in want if leg in rest) if _follows(want, rest, own) else rest
    left = _side(x, rest, shared)
    return _projected(writer, Value(left, rest + own, x.batched), weight, count)


def _summed_first(x: Value, weight: Value) -> Value:
    """A weight with the summed legs first, for `_matmul`; an einsum would also permute the others, for its result."""
    shared = tuple(leg for leg in x.legs if leg in weight.legs)
    return weight.arranged(shared + tuple(leg for leg in weight.legs if leg not in shared))


def _mixing(writer: Writer, x: Value, weight: Value, want: Legs) -> Value | None:
    """`mixed(P.mT, S, 2)`: mixes the heads of maps in place, where an einsum would permute the maps.

    Requires that the summed legs of x are directly before two or more legs that stay last.
    """
    shared = tuple(leg for leg in x.legs if leg in weight.legs)
    own = tuple(leg for leg in weight.legs if leg not in shared)
    if weight.batched or not shared or set(shared) & set(want) or len(own) != 1:
        return None
    first = x.legs.index(shared[0])
    lead, trail = x.legs[:first], x.legs[first + len(shared) :]
    if x.legs[first : first + len(shared)] != shared or len(trail) < 2 or set(lead + own + trail) != set(want):
        return None
    maps = flattened(x.atom, -len(shared) - len(trail), -len(trail) - 1)
    text = writer.call("mixed", weight.grouped((own, shared)), maps, str(len(trail)))
    return Value(text, lead + own + trail, x.batched, ATOM)


def _weighted(writer: Writer, x: Value, weight: Value, want: Legs) -> Value | None:
    """`weighted_sum(x, pi.mT[:, :, None], -3)`: a sum of rows of x, each times an entry of a weight.

    An einsum would permute x. Requires one summed leg, before legs that only x has.
    """
    summed = [leg for leg in x.legs if leg not in want]
    rest = tuple(leg for leg in x.legs if leg in want)
    alone = weight.batched or len(summed) != 1 or not x.batched or {*rest} != {*want} or not {*weight.legs} <= {*x.legs}
    if alone or summed[0] not in weight.legs or x.legs[-1] in weight.legs:
        return None
    dim = x.legs.index(summed[0]) - len(x.legs)
    text = writer.call("weighted_sum", x.text, weight.aligned(x.legs).text, str(dim))
    return Value(text, rest, True, ATOM)


def _follows(want: Legs, rest: Legs, own: Legs) -> bool:
    """Whether a matmul gives the wanted layout: the legs of x in any order, then those of the weight."""
    return want[len(rest) :] == own and set(want[: len(rest)]) == set(rest)


def _side(x: Value, rest: Legs, shared: Legs) -> str:
    """The left side of a matmul: the legs of x, then one summed dimension."""
    heads = x.legs[: x.packed]
    place = shared.index(heads[0]) if x.unpack and heads[0] in shared else -1
    if place < 0 or shared[place : place + x.packed] != heads:
        return x.unpacked.grouped((*((leg,) for leg in rest), shared))
    joint = " ".join(heads)
    packed = Value(x.text, (joint, *x.legs[x.packed :]), x.batched)
    return packed.grouped((*((leg,) for leg in rest), (*shared[:place], joint, *shared[place + x.packed :])))


def _projected(writer: Writer, left: Value, weight: Value, count: int) -> Value:
    """A matmul of `left`, with the legs of the result. A weight times a weight, or a vector, is small.

    Where rows are divided by sums that may be near zero, it must not be rounded more than a plain product.
    """
    own = len(weight.legs) - count
    matrix = weight.atom if own < 2 else f"{weight.atom}.flatten({count})"
    if count > 1:
        matrix += f".flatten(0, {count - 1})" if own else ".flatten()"
    large, exact = left.batched and own and not writer.plain, ["exact=True"] if writer.cancelling else []
    text = writer.call("projected", left.text, matrix, *exact) if large else f"{left.text} @ {matrix}"
    if own > 1:
        text = f"{text if large else f'({text})'}.unflatten(-1, {weight.atom}.shape[{count}:])"
    return Value(text, left.legs, left.batched, ATOM if large or own > 1 else MATMUL)


def summed(value: Value, want: Legs) -> Value:
    """One factor: sums the legs that the result lacks and orders the others."""
    dims = [i - len(value.legs) for i, leg in enumerate(value.legs) if leg not in want]
    kept = tuple(leg for leg in value.legs if leg in want)
    if dims:
        value = Value(f"{value.atom}.sum({dims[0] if len(dims) == 1 else tuple(dims)})", kept, value.batched)
    return value.aligned(want)


def einsum_text(left: Value, right: Value, result: Legs) -> str:
    """A two-operand einsum; one-letter legs keep their letter."""
    legs = dict.fromkeys((*left.legs, *right.legs, *result))
    letters = {leg: leg for leg in legs if len(leg) == 1}
    for leg in legs:
        if leg not in letters:
            wishes = (*(c for c in leg if c in ascii_letters), *ascii_letters)
            letters[leg] = next(c for c in wishes if c not in letters.values())
    sides = [("..." if value.batched else "") + "".join(letters[leg] for leg in value.legs) for value in (left, right)]
    out = ("..." if left.batched or right.batched else "") + "".join(letters[leg] for leg in result)
    return f'torch.einsum("{sides[0]},{sides[1]}->{out}", {left.text}, {right.text})'


def _sum(writer: Writer, step: Step, terms: tuple[Term, ...]) -> Value:
    """Terms of one factor each, aligned to the result; a term without tensors is a number."""
    want, text, many = writer.wanted(step), "", False
    if "weighted_total" in writer.instead and (found := _weighted_total(writer, terms, want)) is not None:
        return found
    for term in terms:
        coefficient, sign = term.coefficient, "+"
        if isinstance(coefficient, Negative) and text:
            coefficient, sign = coefficient.of, "-"
        if term.factors:
            value = writer.value(term.factors[0])
            many |= value.batched
            value = scaled(writer, coefficient, summed(value, want))
            part = value.atom if value.level == SUM and text else value.text
        else:
            part = writer.factor(coefficient)
        text = f"{text} {sign} {part}" if text else part
    if not any(term.factors for term in terms):
        like = writer.like.text
        text = f"torch.full((), {text}, device={like}.device, dtype={like}.dtype)"
        return Value(text, want, False)
    return Value(text, want, many, SUM)


def _weighted_total(writer: Writer, terms: tuple[Term, ...], want: Legs) -> Value | None:
    """`weighted_total([o, o_2], [blend1[:, None], None])`: one pass over tensors along the sequence.

    Requires that each term is such a tensor, and one of them times a weight inside of the sum. Else None.
    """
    pairs = [_weighted_term(writer, term, want) for term in terms]
    found = [pair for pair in pairs if pair is not None]
    if len(found) < 2 or len(found) < len(pairs) or all(weight is None for _, weight in found):
        return None
    values = ", ".join(value.aligned(want).text for value, _ in found)
    weights = ", ".join("None" if weight is None else weight.aligned(want).text for _, weight in found)
    return Value(writer.call("weighted_total", f"[{values}]", f"[{weights}]"), want, True, ATOM)


def _weighted_term(writer: Writer, term: Term, want: Legs) -> tuple[Value, Value | None] | None:
    """The tensor and the weight of a term of a weighted total, or None."""
    if term.coefficient != ONE or len(term.factors) != 1:
        return None
    (use,), sequence = term.factors, {writer.graph.query, writer.graph.key}
    value, step = writer.value(use), writer.graph.step.get(use.name)
    if value.level != PRODUCT:
        return (value, None) if value.batched and {*value.legs} == {*want} and sequence & {*want} else None
    if step is None or step.contraction is None or use.legs != step.legs:
        return None
    part, *others = step.contraction.terms
    if others or part.coefficient != ONE or len(part.factors) != 2:
        return None
    one, other = sorted(map(writer.value, part.factors), key=lambda factor: factor.batched)
    weighs = not one.batched and {*one.legs} <= {*want} - sequence and {*other.legs} == {*want} and other.batched
    return (other, one) if weighs and sequence & {*want} else None
