"""Emits primitive contractions: matmuls where possible, two-operand einsums, and sums of aligned tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from string import ascii_letters

from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.diagram import producer_of
from tensornet_attn.graph.graph import Step, Term
from tensornet_attn.ir.arithmetic import ONE, Negative
from tensornet_attn.ir.steps import within, without
from tensornet_attn.ir.values import ATOM, MATMUL, PRODUCT, SUM, Legs, TensorText, flattened


def emit_contraction(writer: Writer, step: Step) -> None:
    """Emits a primitive contraction."""
    terms = step.terms
    if step.name in writer.overwrites:
        writer.named(step.name, _overwrite(writer, step, writer.overwrites[step.name]), step.legs)
        return
    if len(terms) > 1 or not terms[0].factors:
        value = _sum(writer, step, terms)
    else:
        (term,) = terms
        value = writer.scaled(term.coefficient, _product(writer, step, term))
    writer.bind(step.name, value.text, value.legs, value.level)


def _overwrite(writer: Writer, step: Step, old: str) -> str:
    """A state in the memory of the old one: `S_past.mul_(fall[:, None]).addcmul_(K[..., None], V[..., None, :])`."""
    expression = state = writer.local[old]
    for name, computed in writer.values.items():
        if name in writer.graph.step and re.search(rf"\b{state}\b", computed.text):  # computed before it is overwritten
            writer.line(f"{writer.local[name]} = {computed.text}", computed)
            writer.values[name] = replace(computed, text=writer.local[name], level=ATOM)
    first, *terms = step.terms
    if fall := tuple(use for use in first.factors if use.name != old):
        expression += f".mul_({_folded(writer, replace(first, factors=fall), step.legs).aligned(step.legs).text})"
    for term in terms:
        number = "" if term.coefficient == ONE and term.factors else writer.number(term.coefficient)
        sides = sorted(term.factors, key=lambda use: len(use.legs))
        products = [replace(term, factors=tuple(uses)) for uses in (sides[:-1], sides[-1:]) if uses]
        factors = [_folded(writer, product, step.legs).aligned(step.legs).text for product in products]
        method, option = (".addcmul_", ", value=") if len(factors) > 1 else (".add_", ", alpha=")
        expression += f"{method}({', '.join(factors) + (option + number if number else '') if factors else number})"
    return expression


def _row(left: TensorText, right: TensorText, layout: Legs) -> str:
    """`(q[..., None, :] @ S).squeeze(-2)`, a row times a matrix per entry of the first legs; otherwise empty."""
    *heads, width = left.legs or ("",)
    matrix = (*heads, width, *layout[-1:])
    if layout[:-1] != (*heads,) or {*right.legs} != {*matrix} or not (left.batched and right.batched):
        return ""
    return f"({left.atom}[..., None, :] @ {right.arranged(matrix).atom}).squeeze(-2)"


def _product(writer: Writer, step: Step, term: Term) -> TensorText:
    """The product of factors, in its natural layout; of more than two, none is summed."""
    layout = writer.wanted(step)
    if len(term.factors) != 2:
        return summed(_folded(writer, term, layout), layout)
    left, right = (writer.packed(use) for use in term.factors)
    if writer.widened:
        return _wide_product(writer, left.unpacked, right.unpacked, layout)
    return product(writer, left, right, layout)


def _folded(writer: Writer, term: Term, layout: Legs) -> TensorText:
    """The product of the factors of a term, all of whose legs the layout has, or its only factor."""
    value, *others = map(writer.value, term.factors)
    for factor in others:
        value = product(writer, value, factor, within(layout, {*value.legs, *factor.legs}))
    return value


def _wide_product(writer: Writer, left: TensorText, right: TensorText, layout: Legs) -> TensorText:
    """The product of few rows and the keys, which a CPU converts to at least float32 where it lays them out."""

    def wide(operand: TensorText) -> TensorText:
        return TensorText(writer.call("to_wide_on_cpu", operand.text), operand.legs, operand.batched)

    if sides := _ordered(writer, left, right, layout) or _ordered(writer, right, left, layout):
        rows, columns = map(wide, sides)
        return TensorText(f"{rows.text} @ {columns.text}.contiguous().mT", layout, True, MATMUL)
    return product(writer, wide(left), wide(right), layout)


def product(writer: Writer, left: TensorText, right: TensorText, layout: Legs) -> TensorText:
    """The product of two values, summed over the legs that are not wanted."""
    for x, weight in ((left, right), (right, left)):
        operands = x.unpacked, weight.unpacked, layout
        candidate = _matmul(writer, x, *operands[1:]) or _mixing(writer, *operands) or _by_each(writer, *operands)
        if candidate is not None:
            return candidate
    left, right = left.unpacked, right.unpacked
    either_way = (left, right), (right, left)
    matmuls = [_matmul(writer, x, _summed_first(x, weight), layout) for x, weight in either_way]
    if any(matmuls):
        return min(
            (matmul for matmul in matmuls if matmul), key=lambda matmul: matmul.legs != layout
        )  # as wanted, if one is
    if set(left.legs) | set(right.legs) == set(layout):
        expression = f"{left.aligned(layout).atom} * {right.aligned(layout).atom}"
        return TensorText(expression, layout, left.batched or right.batched, PRODUCT)
    for big, small in either_way:
        if expression := _turned(big, small, layout, writer.narrow):
            return TensorText(expression, layout, True)
    if expression := _batched(left, right, layout):
        return TensorText(expression, layout, True, MATMUL)
    for x, weight in either_way:
        if (candidate := _weighted(writer, x, weight, layout)) is not None:
            return candidate
    if sides := _ordered(writer, left, right, layout) or _ordered(writer, right, left, layout):
        rows, columns = sides
        return TensorText(f"{rows.atom} @ {columns.atom}.mT", layout, True, MATMUL)
    for big, small in either_way:
        if (candidate := _uncopied(writer, big, small, layout)) is not None:
            return candidate
    expression = _inner(left, right, layout)
    if writer.of_one:  # where a call counts
        expression = expression or _row(left, right, layout) or _row(right, left, layout)
    expression = expression or einsum_text(left, right, layout)
    return TensorText(expression, layout, left.batched or right.batched)


def _inner(left: TensorText, right: TensorText, layout: Legs) -> str:
    """`(a * b).sum(-1)` if both have the same legs, because a matmul per entry would be slow; otherwise empty."""
    if set(left.legs) != set(right.legs):
        return ""
    summed_legs = without(left.legs, *layout)
    summed_last = layout + summed_legs
    dims = f"{tuple(range(-len(summed_legs), 0))}" if len(summed_legs) > 1 else "-1"
    if left == right:
        return f"{left.arranged(summed_last).atom}.square().sum({dims})"
    return f"({left.arranged(summed_last).atom} * {right.arranged(summed_last).atom}).sum({dims})"


def _turned(big: TensorText, small: TensorText, layout: Legs, narrow: set[str]) -> str:
    """`(K.mT @ P.mT).mT`: a product with few columns as one with few rows; empty if it has many, or other legs."""
    *lead, row, column = layout if len(layout) > 1 else ("", "")
    shared = within(without(big.legs, *layout), small.legs)
    if column not in narrow or row in narrow or not shared or not (big.batched and small.batched):
        return ""
    free = {*big.legs} - {*shared}, {*small.legs} - {*shared}
    if free[0] & {row, column} != {row} or free[1] & {row, column} != {column} or free[0] | free[1] != {*layout}:
        return ""
    sides = []
    for operand, ends in ((small, ((column,), shared)), (big, (shared, (row,)))):
        heads = within(lead, operand.legs)
        end_names = tuple(" ".join(group) for group in ends)
        expression = operand.grouped((*((leg,) for leg in heads), *ends))
        sides.append(TensorText(expression, heads + end_names, True).aligned((*lead, *end_names)).text)
    return f"({sides[0]} @ {sides[1]}).mT"


def _batched(left: TensorText, right: TensorText, layout: Legs) -> str:
    """`Q @ K.mT`, a matrix product per entry of the first legs; otherwise empty. A small einsum takes twice as long."""
    heads = layout[:-2]
    if len(layout) < 2 or not (left.batched and right.batched) or left.legs[:-2] != heads or right.legs[:-2] != heads:
        return ""
    ends = left.legs[-2:], right.legs[-2:]
    shared = [leg for leg in ends[0] if leg in ends[1]]
    if len(ends[0]) != 2 or len(ends[1]) != 2 or len(shared) != 1:
        return ""
    if layout[-2] in ends[1]:  # the rows of the result are on the right
        left, right, ends = right, left, ends[::-1]
    if layout[-2:] != tuple(leg for pair in ends for leg in pair if leg not in shared):
        return ""
    rows = left.atom if ends[0][1] in shared else f"{left.atom}.mT"
    return f"{rows} @ {right.atom if ends[1][0] in shared else f'{right.atom}.mT'}"


def _ordered(writer: Writer, left: TensorText, right: TensorText, layout: Legs) -> tuple[TensorText, TensorText] | None:
    """The sides of `Q[:, None] @ K.transpose(-3, -2).mT`: scores in the wanted order, unlike those of an einsum."""
    *lead, row, column = layout if len(layout) > 2 else ("", "")
    shared = [leg for leg in left.legs if leg in right.legs and leg not in layout]
    over_pairs = {row, column} == {writer.graph.query, writer.graph.key} and left.batched and right.batched
    if not over_pairs or len(shared) != 1 or {*left.legs, *right.legs} != {*layout, *shared}:
        return None
    if row in right.legs or column in left.legs:
        return None
    heads = [leg for leg in lead if leg in left.legs and leg in right.legs]
    rows, columns = ([leg for leg in layout if leg in operand.legs and leg not in heads] for operand in (left, right))
    if (*heads, *rows, *columns) == layout:
        return None
    return left.aligned((*lead, row, *shared)), right.aligned((*lead, column, *shared))


def _uncopied(writer: Writer, big: TensorText, small: TensorText, layout: Legs) -> TensorText | None:
    """`(P.mT @ Q[:, None]).sum(-3)`: a matrix product per entry of the first legs of a tensor of queries x keys.

    An einsum would copy that tensor, to bring together the legs that it sums, in alphabetical order, or those that only
    this tensor has. None if these are side by side, or if the other factor has not exactly one leg of its own. Summed
    legs that are side by side in another order are flattened: `P.flatten(-3, -2).mT @ Q.flatten(-3, -2)`.
    """
    *lead, row, column = big.legs if len(big.legs) > 2 else ("", "")
    inner, kept = (row, column) if column in layout else (column, row)
    summed_legs = sorted(leg for leg in big.legs if leg not in layout)
    big_only = [leg for leg in layout if leg in big.legs and leg not in small.legs]
    small_only = [leg for leg in small.legs if leg not in big.legs]
    over_pairs = {row, column} == {writer.graph.query, writer.graph.key} and big.batched and small.batched
    if not over_pairs or inner not in summed_legs or kept not in big_only or not {*summed_legs} <= {*small.legs}:
        return None
    if (
        len(small_only) != 1
        or small_only[0] not in layout
        or (_side_by_side(big.legs, summed_legs) and _side_by_side(big.legs, big_only))
    ):
        return None
    summed = within(big.legs, summed_legs)
    heads = big.legs[: -1 - len(summed)]
    if big.legs == (*heads, *summed, kept):
        groups = *((leg,) for leg in heads), summed
        columns = small.aligned((*heads, *summed, *small_only)).grouped((*groups, (*small_only,)))
        expression = f"{big.grouped((*groups, (kept,)))}.mT @ {columns}"
        return TensorText(expression, (*heads, kept, *small_only), True, MATMUL)
    expression = f"{big.atom}{'' if inner == column else '.mT'} @ {small.aligned((*lead, inner, *small_only)).atom}"
    legs, dims = (
        (*lead, kept, *small_only),
        [axis - len(big.legs) for axis, leg in enumerate(lead) if leg in summed_legs],
    )
    if dims:
        expression = f"({expression}).sum({dims[0] if len(dims) == 1 else tuple(dims)})"
    return TensorText(expression, within(legs, layout), True, ATOM if dims else MATMUL)


def _side_by_side(legs: Legs, subset: Sequence[str]) -> bool:
    """Whether some legs are next to each other, in this order."""
    return any(legs[i : i + len(subset)] == (*subset,) for i in range(len(legs)))


def _matmul(writer: Writer, x: TensorText, weight: TensorText, layout: Legs) -> TensorText | None:
    """`projected(x, Wq.flatten(1)).unflatten(-1, Wq.shape[1:])`, if the weight's summed legs come first. Else None."""
    shared = within(weight.legs, x.legs)
    count, rows, columns = len(shared), without(x.legs, *shared), weight.legs[len(shared) :]
    if weight.batched or not shared or weight.legs[:count] != shared or set(shared) & set(layout):
        return None
    if set(rows + columns) != set(layout) or (x.legs[-count:] != shared and not _follows(layout, rows, columns)):
        return None
    rows = within(layout, rows) if _follows(layout, rows, columns) else rows
    left = _side(x, rows, shared)
    return _projected(writer, TensorText(left, rows + columns, x.batched), weight, count)


def _by_each(writer: Writer, x: TensorText, weight: TensorText, layout: Legs) -> TensorText | None:
    """`projected_by_each(x, Wg)`: f of weights [e f l] is summed, and `_summed_first` would copy them. Else None."""
    legs = x.legs[:-1] + weight.legs[::2]
    if weight.batched or x.legs[-1:] != weight.legs[1:-1] or len(x.legs) < 2 or sorted(legs) != sorted(layout):
        return None
    return TensorText(writer.call("projected_by_each", x.text, weight.text), legs, x.batched)


def _summed_first(x: TensorText, weight: TensorText) -> TensorText:
    """A weight with the summed legs first, for `_matmul`; an einsum would also permute the others, for its result."""
    shared = within(x.legs, weight.legs)
    return weight.arranged(shared + without(weight.legs, *shared))


def _mixing(writer: Writer, x: TensorText, weight: TensorText, layout: Legs) -> TensorText | None:
    """`mixed(P.mT, S, 2)`: mixes the heads of maps in place, where an einsum would permute the maps.

    Requires that the summed legs of x are directly before two or more legs that stay last.
    """
    shared = within(x.legs, weight.legs)
    heads = without(weight.legs, *shared)
    if weight.batched or not shared or set(shared) & set(layout) or len(heads) != 1:
        return None
    first = x.legs.index(shared[0])
    lead, trail = x.legs[:first], x.legs[first + len(shared) :]
    if x.legs[first : first + len(shared)] != shared or len(trail) < 2 or set(lead + heads + trail) != set(layout):
        return None
    maps = flattened(x.atom, -len(shared) - len(trail), -len(trail) - 1)
    expression = writer.call("mixed", weight.grouped((heads, shared)), maps, str(len(trail)))
    return TensorText(expression, lead + heads + trail, x.batched, ATOM)


def _weighted(writer: Writer, x: TensorText, weight: TensorText, layout: Legs) -> TensorText | None:
    """`weighted_sum(x, pi.mT[:, :, None], -3)`: a sum of rows of x, each times an entry of a weight.

    An einsum would permute x. Requires one summed leg, before legs that only x has.
    """
    summed_legs = [leg for leg in x.legs if leg not in layout]
    kept = within(x.legs, layout)
    unfit = (
        weight.batched
        or len(summed_legs) != 1
        or not x.batched
        or {*kept} != {*layout}
        or not {*weight.legs} <= {*x.legs}
    )
    if unfit or summed_legs[0] not in weight.legs or x.legs[-1] in weight.legs:
        return None
    dim = x.legs.index(summed_legs[0]) - len(x.legs)
    expression = writer.call("weighted_sum", x.text, weight.aligned(x.legs).text, str(dim))
    return TensorText(expression, kept, True, ATOM)


def _follows(layout: Legs, rows: Legs, columns: Legs) -> bool:
    """Whether a matmul gives the wanted layout: the legs of x in any order, then those of the weight."""
    return layout[len(rows) :] == columns and set(layout[: len(rows)]) == set(rows)


def _side(x: TensorText, rows: Legs, shared: Legs) -> str:
    """The left side of a matmul: the legs of x, then one summed dimension."""
    heads = x.legs[: x.packed]
    start = shared.index(heads[0]) if x.unpack and heads[0] in shared else -1
    if start < 0 or shared[start : start + x.packed] != heads:
        return x.unpacked.grouped((*((leg,) for leg in rows), shared))
    joint = " ".join(heads)
    packed = TensorText(x.text, (joint, *x.legs[x.packed :]), x.batched)
    return packed.grouped((*((leg,) for leg in rows), (*shared[:start], joint, *shared[start + x.packed :])))


def _projected(writer: Writer, left: TensorText, weight: TensorText, count: int) -> TensorText:
    """A matmul of `left`, with the legs of the result. A weight times a weight, or a vector, is small.

    Where rows are divided by sums that may be near zero, it must not be rounded more than a plain product.
    """
    column_count = len(weight.legs) - count
    matrix = weight.atom if column_count < 2 else f"{weight.atom}.flatten({count})"
    if count > 1:
        matrix += f".flatten(0, {count - 1})" if column_count else ".flatten()"
    large = left.batched and column_count and not (writer.plain or writer.target.workload == "decoding")
    exact = ["exact=True"] if writer.cancelling else []
    expression = writer.call("projected", left.text, matrix, *exact) if large else f"{left.text} @ {matrix}"
    if column_count > 1:
        sizes = f"{weight.atom}.shape[{count}:]"
        if writer.of_one:
            sizes = f"({', '.join(str(writer.graph.leg[leg].size) for leg in weight.legs[count:])})"
        expression = f"{expression if large else f'({expression})'}.unflatten(-1, {sizes})"
    return TensorText(expression, left.legs, left.batched, ATOM if large or column_count > 1 else MATMUL)


def summed(factor: TensorText, layout: Legs) -> TensorText:
    """One factor: sums the legs that the result lacks and orders the others."""
    dims = [axis - len(factor.legs) for axis, leg in enumerate(factor.legs) if leg not in layout]
    kept_legs = within(factor.legs, layout)
    if dims:
        factor = TensorText(
            f"{factor.atom}.sum({dims[0] if len(dims) == 1 else tuple(dims)})", kept_legs, factor.batched
        )
    return factor.aligned(layout)


def einsum_text(left: TensorText, right: TensorText, layout: Legs) -> str:
    """A two-operand einsum; one-letter legs keep their letter."""
    legs = dict.fromkeys((*left.legs, *right.legs, *layout))
    letters = {leg: leg for leg in legs if len(leg) == 1}
    for leg in legs:
        if leg not in letters:
            preferred = (*(letter for letter in leg if letter in ascii_letters), *ascii_letters)
            letters[leg] = next(letter for letter in preferred if letter not in letters.values())
    inputs = [
        ("..." if operand.batched else "") + "".join(letters[leg] for leg in operand.legs) for operand in (left, right)
    ]
    output = ("..." if left.batched or right.batched else "") + "".join(letters[leg] for leg in layout)
    return f'torch.einsum("{inputs[0]},{inputs[1]}->{output}", {left.text}, {right.text})'


def _sum(writer: Writer, step: Step, terms: tuple[Term, ...]) -> TensorText:
    """Terms whose products sum nothing, aligned to the result; a term without tensors is a number."""
    layout, expression, batched = writer.wanted(step), "", False
    if "weighted_total" in writer.instead and (weighted_total := _weighted_total(writer, terms, layout)) is not None:
        return weighted_total
    for term in terms:
        coefficient, sign = term.coefficient, "+"
        if isinstance(coefficient, Negative) and expression:
            coefficient, sign = coefficient.of, "-"
        if term.factors:
            factor = _folded(writer, term, layout)
            batched |= factor.batched
            factor = writer.scaled(coefficient, summed(factor, layout))
            summand = factor.atom if factor.level == SUM and expression else factor.text
        else:
            summand = writer.factor(coefficient)
        expression = f"{expression} {sign} {summand}" if expression else summand
    if not any(term.factors for term in terms):
        like = writer.like.text
        expression = f"torch.full((), {expression}, device={like}.device, dtype={like}.dtype)"
        return TensorText(expression, layout, False)
    return TensorText(expression, layout, batched, SUM)


def _weighted_total(writer: Writer, terms: tuple[Term, ...], layout: Legs) -> TensorText | None:
    """`weighted_total([o, o_2], [blend1[:, None], None])`: one pass over tensors along the sequence.

    Requires that each term is such a tensor, and one of them times a weight inside of the sum. Else None.
    """
    candidates = [_weighted_term(writer, term, layout) for term in terms]
    weighted_terms = [candidate for candidate in candidates if candidate is not None]
    if (
        len(weighted_terms) < 2
        or len(weighted_terms) < len(candidates)
        or all(weight is None for _, weight in weighted_terms)
    ):
        return None
    values = ", ".join(value.aligned(layout).text for value, _ in weighted_terms)
    weights = ", ".join("None" if weight is None else weight.aligned(layout).text for _, weight in weighted_terms)
    return TensorText(writer.call("weighted_total", f"[{values}]", f"[{weights}]"), layout, True, ATOM)


def _weighted_term(writer: Writer, term: Term, layout: Legs) -> tuple[TensorText, TensorText | None] | None:
    """The tensor and the weight of a term of a weighted total, or None."""
    if term.coefficient != ONE or len(term.factors) != 1:
        return None
    (use,), sequence = term.factors, {writer.graph.query, writer.graph.key}
    operand, step = writer.value(use), producer_of(writer.graph, use)
    if operand.level != PRODUCT:
        return (operand, None) if operand.batched and {*operand.legs} == {*layout} and sequence & {*layout} else None
    if step is None or step.contraction is None or use.legs != step.legs:
        return None
    inner_term, *other_terms = step.terms
    if other_terms or inner_term.coefficient != ONE or len(inner_term.factors) != 2:
        return None
    weight, tensor = sorted(map(writer.value, inner_term.factors), key=lambda factor: factor.batched)
    weighted = (
        not weight.batched and {*weight.legs} <= {*layout} - sequence and {*tensor.legs} == {*layout} and tensor.batched
    )
    return (tensor, weight) if weighted and sequence & {*layout} else None
