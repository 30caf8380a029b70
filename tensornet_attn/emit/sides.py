"""The operands of recurrences as text: sides laid out as [heads, sequence, features], their maps, masks."""

from __future__ import annotations

from collections.abc import Sequence

from tensornet_attn.emit.layout import dimensions
from tensornet_attn.emit.masks import takes_mask
from tensornet_attn.emit.wrap import indented, tuple_text, wrapped
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.attention import NormalizedScores, ScoreTerm, UnnormalizedScores
from tensornet_attn.graph.graph import Step, Use
from tensornet_attn.graph.recurrence import Recurrence, recurrence_of
from tensornet_attn.ir.steps import within, without
from tensornet_attn.ir.values import ATOM, PRODUCT, SUM, Legs, TensorText
from tensornet_attn.ops.map import row
from tensornet_attn.ops.maps import MAPS, ElementwiseMap
from tensornet_attn.tiles.features import Feature, feature_of
from tensornet_attn.tiles.program import Node


def unmapped(writer: Writer, use: Use) -> tuple[TensorText, str]:
    """The value of a use and the map that the kernel applies to it; `None` if there is none."""
    if use.name in writer.values:
        return writer.value(use), "None"
    step = writer.inside[use.name]
    assert step.box is not None
    of, elementwise = step.box.of, row(step.box)
    operand = writer.value(of).renamed(of.legs, step.legs).renamed(step.legs, use.legs)
    code = elementwise.torch.format(x="x", atom="x") if elementwise.torch else writer.call(elementwise.name, "x")
    code = code.removesuffix("(x)") if code.endswith("(x)") and code.count("(") == 1 else f"lambda x: {code}"
    return operand, map_of_tiles(writer, elementwise, code) if "linear_attention" in writer.instead else code


def map_of_tiles(writer: Writer, elementwise: ElementwiseMap, torch_function: str) -> str:
    """The name of a map that Triton kernels apply to tiles; its functions are added beside the class."""
    if elementwise.name not in writer.tile_maps:
        name = writer.tile_maps[elementwise.name] = writer.names.fresh(f"{elementwise.name}_map")
        tile, slope = elementwise.triton.format(x="x"), elementwise.slope.format(x="x", y="y", d="d")
        definitions = (
            f'@triton.jit\ndef {name}_tile(x):\n    """{elementwise.name} of a tile."""\n{_indented(f"return {tile}")}',
            f"@triton.jit\ndef {name}_slope(x, y, d):\n"
            f'    """The gradient of x, from that of y = {elementwise.name}(x)."""\n' + _indented(f"return {slope}"),
            f'{name} = tile_map(f"{{__name__}}.{name}", {torch_function}, {name}_tile, {name}_slope)',
        )
        writer.functions |= {"tile_map", "\n\n\n".join(definitions)}
    return writer.tile_maps[elementwise.name]


def _indented(line: str) -> str:
    return "\n".join(indented(wrapped(line, 4)))


def sides_maps(writer: Writer, recurrence: Recurrence, small: Legs = ()) -> list[str]:
    """The maps of the query side and the key side of the only term."""
    return [
        _map_of_side(writer, recurrence, side, small) for side in (recurrence.terms[0].query, recurrence.terms[0].key)
    ]


def _map_of_side(writer: Writer, recurrence: Recurrence, side: tuple[Use, ...], small: Legs) -> str:
    if not side or _is_map(writer, side[0]):
        return unmapped(writer, side[0])[1] if side else "None"
    feature = feature_of_side(writer, recurrence, side[0])
    names = ["x"] if feature.alone else [f"x[{number}]" for number in range(len(feature.operands))]
    mapped = _in_torch(writer, feature.result, names, small)
    if feature.alone:
        return f"lambda x: {mapped.text}"
    return f"lambda *x: {f'{mapped.atom}.flatten({-1 - len(small)})' if small else mapped.text}"


def _is_map(writer: Writer, use: Use) -> bool:
    """Whether a side is an operand, or one map of it."""
    box = None if use.name in writer.values else writer.inside[use.name].box
    return use.name in writer.values or (box is not None and box.of.name in writer.values)


def feature_of_side(writer: Writer, recurrence: Recurrence, use: Use) -> Feature:
    """What a kernel computes of a side."""
    graph = writer.graph
    row = str(graph.query if graph.query in use.legs else graph.key)
    return feature_of(
        graph, use, writer.inside, row, {*recurrence.heads, *recurrence.mixed}, recurrence.terms[0].features
    )


def small_legs(writer: Writer, kernels: Sequence[Step]) -> Legs:
    """The legs that features of kernels sum over."""
    summed_legs = {
        leg
        for recurrence in map(recurrence_of, kernels)
        for term in recurrence.terms
        for use in (*term.query, *term.key)
        if not _is_map(writer, use)
        for leg in feature_of_side(writer, recurrence, use).sizes
    }
    return within(writer.graph.leg, summed_legs)


def _in_torch(writer: Writer, node: Node, names: Sequence[str], small: Legs) -> TensorText:
    """A node of a feature as an expression of the operands, which have small legs behind."""
    if node.op == "load":
        return TensorText(names[node.data[0]], (), False)
    if node.op == "number":
        expression, level = writer.numbered(node.data[0])
        return TensorText(expression, (), False, level)
    operands = [_in_torch(writer, arg, names, small) for arg in node.args]
    if node.op == "map":
        elementwise, (operand,) = MAPS[node.data[0]], operands
        if not elementwise.torch:
            return TensorText(writer.call(elementwise.name, operand.text), (), False)
        return TensorText(elementwise.torch.format(x=operand.text, atom=operand.atom), (), False, elementwise.level)
    if node.op == "over":
        dimension = small.index(node.data[0]) - len(small)
        return TensorText(f"{operands[0].atom}.sum({dimension}, keepdim=True)", (), False)
    if node.op == "add":
        return TensorText(" + ".join(term.text for term in operands), (), False, SUM)
    return TensorText(
        " * ".join(factor.text if factor.level == PRODUCT else factor.atom for factor in operands), (), False, PRODUCT
    )


def term_text(writer: Writer, recurrence: Recurrence, term: ScoreTerm, small: Legs = (), rows: bool = True) -> str:
    """A term of a call, whose operands are on lines of their own. `rows`: see `sides_text`."""
    operands = sides_text(writer, recurrence, term, small, rows)
    if term.decays:
        pairs = zip("ab", zip(*term.decays, strict=True), strict=True)
        operands += [_decay(writer, recurrence, name, uses, term.decayed) for name, uses in pairs]
        operands += [_decay(writer, recurrence, "c", term.at_own_position, ())] if term.at_own_position else []
    elif term.core:
        core = writer.value(term.core[0])
        heads = recurrence.heads if core.batched or {*recurrence.heads} & {*core.legs} else ()
        operands.append(f"core={laid(writer, 'core', matrix(core, heads, term.groups, recurrence.mixed))}")
    return writer.call("Term", *operands)


def sides_text(
    writer: Writer, recurrence: Recurrence, term: ScoreTerm, small: Legs = (), rows: bool = True
) -> list[str]:
    """The names of query side and key side, each on a line of its own.

    `rows`: a query side without its sequence leg has a row for each position, else one for all.
    """
    query, key = writer.graph.query, str(writer.graph.key)
    return [
        _operands(writer, "q", recurrence, term.query, query, term, small, rows),
        _operands(writer, "k", recurrence, term.key, key, term, small, True),
    ]


def _operands(
    writer: Writer,
    name: str,
    recurrence: Recurrence,
    uses: tuple[Use, ...],
    row: str,
    term: ScoreTerm,
    small: Legs,
    rows: bool,
) -> str:
    """The name of a side, or of the operands of its features."""
    if not uses or _is_map(writer, uses[0]):
        return laid(writer, name, _side(writer, recurrence, uses, row, term, rows))
    feature = feature_of_side(writer, recurrence, uses[0])
    behind = () if feature.alone else small
    local_names = [
        laid(writer, name, matrix(writer.value(operand.use), recurrence.heads, (row,), term.features, behind))
        for operand in feature.operands
    ]
    return local_names[0] if feature.alone else tuple_text(local_names)


def _decay(writer: Writer, recurrence: Recurrence, name: str, uses: Sequence[Use], decayed: Legs) -> str:
    """The name of one side of the exponents, summed if several factors of a term decay."""
    sequence = str(writer.graph.query if name == "a" else writer.graph.key)
    features = [decayed if {*decayed} & {*use.legs} else () for use in uses]
    matrices = [
        matrix(writer.value(use), recurrence.heads, (sequence,), columns)
        for use, columns in zip(uses, features, strict=True)
    ]
    return laid(
        writer,
        name,
        (" + ".join(expression for expression, _ in matrices), max((shape for _, shape in matrices), key=len)),
    )


def _side(
    writer: Writer, recurrence: Recurrence, uses: tuple[Use, ...], sequence: str, term: ScoreTerm, rows: bool
) -> tuple[str, str]:
    """One side of a term and its shape: ones if it has no factor; the query side is multiplied by the coefficient."""
    use = next(iter(uses), None)
    query = sequence == writer.graph.query
    ones = (
        ""
        if use and (not rows or sequence in use.legs)
        else f"{writer.like.text}.new_ones({writer.length(sequence)}, 1)"
    )
    if use is None:
        expression, shape = ones, f"{sequence} 1"
        side = TensorText(expression, (sequence, "1"), False)
    else:
        expression, shape = matrix(unmapped(writer, use)[0], recurrence.heads, (sequence,), term.features)
        if ones:
            expression, shape = f"{expression} * {ones}", shape.replace(" 1 ", f" {sequence} ")
        side = TensorText(expression, (), True, PRODUCT if ones else ATOM)
    return (writer.scaled(term.coefficient, side).text if query else expression), shape


def matrix(value: TensorText, heads: Legs, rows: Legs, columns: Legs, small: Legs = ()) -> tuple[str, str]:
    """A value as [heads..., rows, columns, small...], ones along missing legs, and its shape in words."""
    order = (*heads, *rows, *columns, *small)
    missing = [leg for leg in order if leg not in value.legs]
    batch = "... " if value.batched else ""
    if missing:
        value = value.aligned(order, whole=True)
    groups = (*((leg,) for leg in heads), rows, columns, *((leg,) for leg in small))
    return value.grouped(groups), batch + dimensions(*(() if {*group} <= {*missing} else group for group in groups))


def laid(writer: Writer, name: str, shaped: tuple[str, str]) -> str:
    """The name of a value, on a line of its own if it has none."""
    if shaped[0].isidentifier():
        return shaped[0]
    assignment = f" = {shaped[0]}  # {shaped[1]}"
    earlier = next((line for line in writer.groups[-1] if line.endswith(assignment)), "")
    if earlier:
        return earlier.removesuffix(assignment)
    local = writer.names.fresh(name)
    writer.line(f"{local}{assignment}")
    return local


def eps_text(writer: Writer, recurrence: Recurrence) -> str:
    """What is added to row sums; None if rows are not divided by their sums."""
    if isinstance(recurrence.weighting, UnnormalizedScores):
        return "None"
    return writer.number(recurrence.weighting.eps) if isinstance(recurrence.weighting, NormalizedScores) else "0"


def mask_options(writer: Writer, recurrence: Recurrence) -> list[str]:
    """The masks of the call, and the number of dimensions before the sequence."""
    written = without(recurrence.box.legs, writer.graph.query, writer.graph.key)
    order = tuple(written.index(leg) for leg in (*recurrence.heads, *recurrence.mixed))
    mask = "mask" if takes_mask(writer.graph) else "None"
    if mask == "mask" and (order != tuple(range(len(order))) or len(recurrence.mixed) > 1):
        mask = writer.call(
            "heads_together", mask, writer.batch_dims, f"({', '.join(map(str, order))},)", str(len(recurrence.mixed))
        )
    return [mask, "key_mask", writer.batch_dims, str(len(recurrence.heads))]
