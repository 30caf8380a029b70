"""The operands of recurrences as text: sides laid out as [heads, sequence, features], their maps, masks."""

from __future__ import annotations

from collections.abc import Sequence

from tensornet_attn.emit.contract import scaled
from tensornet_attn.emit.masks import takes_mask
from tensornet_attn.emit.wrap import wrapped
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.attention import Masked, Normalize, ScoreTerm
from tensornet_attn.graph.model import Step, Use
from tensornet_attn.graph.recurrence import Recurrence, recurrence_of
from tensornet_attn.ir.values import ATOM, PRODUCT, SUM, Legs, Value
from tensornet_attn.ops.map import row
from tensornet_attn.ops.maps import MAPS, Map
from tensornet_attn.tiles.features import Feature, feature_of
from tensornet_attn.tiles.model import Node


def unmapped(writer: Writer, use: Use) -> tuple[Value, str]:
    """The value of a use and the map that the kernel applies to it; `None` if there is none."""
    if use.name in writer.values:
        return writer.value(use), "None"
    step = writer.inside.get(use.name) or writer.graph.step[use.name]
    assert step.box is not None
    of, own = step.box.operand("of"), row(step.box)
    value = writer.value(of).renamed(of.legs, step.legs).renamed(step.legs, use.legs)
    text = own.torch.format(x="x", atom="x") if own.torch else writer.call(own.name, "x")
    text = text.removesuffix("(x)") if text.endswith("(x)") and text.count("(") == 1 else f"lambda x: {text}"
    return value, map_of_tiles(writer, own, text) if "linear_attention" in writer.instead else text


def map_of_tiles(writer: Writer, own: Map, whole: str) -> str:
    """The name of a map that Triton kernels apply to tiles; its functions are added beside the class."""
    if own.name not in writer.tile_maps:
        name = writer.tile_maps[own.name] = writer.names.fresh(f"{own.name}_map")
        tile, slope = own.triton.format(x="x"), own.slope.format(x="x", y="y", d="d")
        parts = (
            f'@triton.jit\ndef {name}_tile(x):\n    """{own.name} of a tile."""\n{_indented(f"return {tile}")}',
            f'@triton.jit\ndef {name}_slope(x, y, d):\n    """The gradient of x, from that of y = {own.name}(x)."""\n'
            + _indented(f"return {slope}"),
            f'{name} = tile_map(f"{{__name__}}.{name}", {whole}, {name}_tile, {name}_slope)',
        )
        writer.functions |= {"tile_map", "\n\n\n".join(parts)}
    return writer.tile_maps[own.name]


def _indented(line: str) -> str:
    return "\n".join(f"    {part}" for part in wrapped(line, 4))


def sides_maps(writer: Writer, parts: Recurrence, small: Legs = ()) -> list[str]:
    """The maps of the query side and the key side of the only term."""
    return [_map_of_side(writer, parts, side, small) for side in (parts.terms[0].query, parts.terms[0].key)]


def _map_of_side(writer: Writer, parts: Recurrence, side: tuple[Use, ...], small: Legs) -> str:
    if not side or _is_map(writer, side[0]):
        return unmapped(writer, side[0])[1] if side else "None"
    feature = feature_of_side(writer, parts, side[0])
    names = ["x"] if feature.alone else [f"x[{i}]" for i in range(len(feature.operands))]
    found = _in_torch(writer, feature.result, names, small)
    if feature.alone:
        return f"lambda x: {found.text}"
    return f"lambda *x: {f'{found.atom}.flatten({-1 - len(small)})' if small else found.text}"


def _is_map(writer: Writer, use: Use) -> bool:
    """Whether a side is an operand, or one map of it."""
    box = None if use.name in writer.values else writer.inside[use.name].box
    return use.name in writer.values or (box is not None and box.operand("of").name in writer.values)


def feature_of_side(writer: Writer, parts: Recurrence, use: Use) -> Feature:
    """What a kernel computes of a side."""
    graph = writer.graph
    row = str(graph.query if graph.query in use.legs else graph.key)
    return feature_of(graph, use, writer.inside, row, {*parts.heads, *parts.mixed}, parts.terms[0].features)


def small_legs(writer: Writer, kernels: Sequence[Step]) -> Legs:
    """The legs that features of kernels sum over."""
    found = {
        leg
        for parts in map(recurrence_of, kernels)
        for term in parts.terms
        for use in (*term.query, *term.key)
        if not _is_map(writer, use)
        for leg in feature_of_side(writer, parts, use).sizes
    }
    return tuple(leg for leg in writer.graph.leg if leg in found)


def _in_torch(writer: Writer, node: Node, names: Sequence[str], small: Legs) -> Value:
    """A node of a feature as an expression of the operands, which have small legs behind."""
    if node.op == "load":
        return Value(names[node.data[0]], (), False)
    if node.op == "number":
        text, level = writer.numbered(node.data[0])
        return Value(text, (), False, level)
    parts = [_in_torch(writer, arg, names, small) for arg in node.args]
    if node.op == "map":
        own, (x,) = MAPS[node.data[0]], parts
        if not own.torch:
            return Value(writer.call(own.name, x.text), (), False)
        return Value(own.torch.format(x=x.text, atom=x.atom), (), False, own.level)
    if node.op == "over":
        place = small.index(node.data[0]) - len(small)
        return Value(f"{parts[0].atom}.sum({place}, keepdim=True)", (), False)
    if node.op == "add":
        return Value(" + ".join(part.text for part in parts), (), False, SUM)
    return Value(" * ".join(part.text if part.level == PRODUCT else part.atom for part in parts), (), False, PRODUCT)


def term_text(writer: Writer, parts: Recurrence, term: ScoreTerm, small: Legs = (), rows: bool = True) -> str:
    """The names of query side, key side and core, each on a line of its own.

    `rows`: a side without its sequence leg has a row for each position, else one for all.
    """
    query, key = str(writer.graph.query), str(writer.graph.key)
    q = _operands(writer, "q", parts, term.query, query, term, small, rows)
    k = _operands(writer, "k", parts, term.key, key, term, small, True)
    if term.decays:
        pairs = zip("ab", zip(*term.decays, strict=True), strict=True)
        numbers = [_decay(writer, parts, name, uses, term.decayed) for name, uses in pairs]
        numbers += [_decay(writer, parts, "c", term.own, ())] if term.own else []
        return f"({', '.join((q, k, *numbers))})"
    if not term.core:
        return f"({q}, {k})"
    value = writer.value(term.core[0])
    heads = parts.heads if value.batched or {*parts.heads} & {*value.legs} else ()
    return f"({q}, {k}, {laid(writer, 'core', matrix(value, heads, term.groups, parts.mixed))})"


def _operands(
    writer: Writer,
    name: str,
    parts: Recurrence,
    uses: tuple[Use, ...],
    row: str,
    term: ScoreTerm,
    small: Legs,
    rows: bool,
) -> str:
    """The name of a side, or of the operands of its features."""
    if not uses or _is_map(writer, uses[0]):
        return laid(writer, name, _side(writer, parts, uses, row, term, rows))
    feature = feature_of_side(writer, parts, uses[0])
    behind = () if feature.alone else small
    made = [
        laid(writer, name, matrix(writer.value(one.use), parts.heads, (row,), term.features, behind))
        for one in feature.operands
    ]
    return made[0] if feature.alone else f"({', '.join(made)}{',' * (len(made) == 1)})"


def _decay(writer: Writer, parts: Recurrence, name: str, uses: Sequence[Use], decayed: Legs) -> str:
    """The name of one side of the exponents, summed if several factors of a term decay."""
    sequence = str(writer.graph.query if name == "a" else writer.graph.key)
    features = [decayed if {*decayed} & {*use.legs} else () for use in uses]
    made = [matrix(writer.value(use), parts.heads, (sequence,), own) for use, own in zip(uses, features, strict=True)]
    return laid(writer, name, (" + ".join(text for text, _ in made), max((shape for _, shape in made), key=len)))


def _side(
    writer: Writer, parts: Recurrence, uses: tuple[Use, ...], sequence: str, term: ScoreTerm, rows: bool
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
        text, shape = ones, f"{sequence} 1"
        value = Value(text, (sequence, "1"), False)
    else:
        text, shape = matrix(unmapped(writer, use)[0], parts.heads, (sequence,), term.features)
        if ones:
            text, shape = f"{text} * {ones}", shape.replace(" 1 ", f" {sequence} ")
        value = Value(text, (), True, PRODUCT if ones else ATOM)
    return (scaled(writer, term.coefficient, value).text if query else text), shape


def matrix(value: Value, heads: Legs, rows: Legs, columns: Legs, small: Legs = ()) -> tuple[str, str]:
    """A value as [heads..., rows, columns, small...], ones along missing legs, and its shape in words."""
    order = (*heads, *rows, *columns, *small)
    missing = [leg for leg in order if leg not in value.legs]
    batch = "... " if value.batched else ""
    if missing:
        value = value.aligned(order, whole=True)
    groups = (*((leg,) for leg in heads), rows, columns, *((leg,) for leg in small))
    return value.grouped(groups), batch + " ".join(_dimension(group, missing) for group in groups)


def _dimension(group: Legs, missing: list[str]) -> str:
    return f"({' '.join(group)})" if len(group) > 1 else group[0] if group and group[0] not in missing else "1"


def laid(writer: Writer, name: str, made: tuple[str, str]) -> str:
    """The name of a value, on a line of its own if it has none."""
    if made[0].isidentifier():
        return made[0]
    before = f" = {made[0]}  # {made[1]}"
    known = next((line for line in writer.groups[-1] if line.endswith(before)), "")
    if known:
        return known.removesuffix(before)
    local = writer.names.fresh(name)
    writer.line(f"{local}{before}")
    return local


def eps_text(writer: Writer, parts: Recurrence) -> str:
    """What is added to row sums; None if rows are not divided by their sums."""
    if isinstance(parts.weighting, Masked):
        return "None"
    return writer.number(parts.weighting.eps) if isinstance(parts.weighting, Normalize) else "0"


def mask_options(writer: Writer, parts: Recurrence) -> list[str]:
    """The masks of the call, and the number of dimensions before the sequence."""
    written = tuple(leg for leg in parts.box.legs if leg not in (writer.graph.query, writer.graph.key))
    order = tuple(written.index(leg) for leg in (*parts.heads, *parts.mixed))
    mask = "mask" if takes_mask(writer.graph) else "None"
    if mask == "mask" and (order != tuple(range(len(order))) or len(parts.mixed) > 1):
        mask = writer.call(
            "heads_together", mask, writer.batch_dims, f"({', '.join(map(str, order))},)", str(len(parts.mixed))
        )
    return [mask, "key_mask", writer.batch_dims, str(len(parts.heads))]
