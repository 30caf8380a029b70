"""The backward of a region: for each block of queries, gradients of scores, and what they add to those of operands.

Workers share out batch elements and tiles of programs; those of keys are summed over blocks of queries in memory of
their own. The rows of A dA are those of the result times its gradient where each tile of the result reads one map;
otherwise a pass before finds them, whose tiles are stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from tensornet_attn.tiles.cpp.chain import in_turn
from tensornet_attn.tiles.cpp.faded import fading
from tensornet_attn.tiles.cpp.lines import PassPrinter, indented, nested
from tensornet_attn.tiles.cpp.places import Addresses, Env, Where
from tensornet_attn.tiles.cpp.region import RegionText
from tensornet_attn.tiles.cpp.totals import SumStorage, add, add_between, add_entries, add_pairs
from tensornet_attn.tiles.derive import Gradients, one_map
from tensornet_attn.tiles.program import Node, Unfit, below

Leaves = tuple[tuple[Node, Node], ...]


@dataclass
class Sums:
    """Sums over blocks: their buffers, the lines that set them to zero, and those that add them to gradients.

    `rows`: for those of queries, `keys`: for the others, which last for all blocks of queries of a program.
    """

    buffers: list[str] = field(default_factory=list)
    zero_rows: list[str] = field(default_factory=list)
    zero_keys: list[str] = field(default_factory=list)
    add_rows: list[str] = field(default_factory=list)
    add_keys: list[str] = field(default_factory=list)


def backward(region: RegionText, gradients: Gradients) -> str:
    """The function that adds the gradients of operands to zeros, given the result, its statistics and its gradient."""
    leaves = gradients.leaves
    region.turned, region.restores = {}, True
    key_pass, sums = region.open(False), Sums()
    totals(region, gradients, key_pass, leaves, sums)
    for number, (leaf, gradient) in enumerate(leaves):
        if leaf.op == "entry":
            entries(region, key_pass, number, leaf, gradient, sums)
        elif leaf.op == "between":
            lookups(region, key_pass, number, leaf, gradient, sums)
        elif leaf.axes == region.program.pair:
            pairs(region, key_pass, leaf, gradient)
    row_sums = known_rows(region)
    rows_known = bool(row_sums) or not gradients.maps
    if row_sums and (attention_map := fading(region.program)):
        key_pass.fading = region.program.divided(attention_map)
    passes = in_turn(region, key_pass) if rows_known else in_turn(region, rows_before(region, gradients), key_pass)
    for leaf, gradient in leaves:
        if leaf.op == "load" and leaf.axes != region.program.pair:
            flush(region, key_pass, leaf, gradient, sums)
    stored = [f"{region.operands[number]}_grad" for number in dict.fromkeys(leaf.data[0] for leaf, _ in leaves)]
    maps = f"real* sums = arena.take({max(region.maps, 1)} * QUERIES);"
    fill = [f"fill(sums, {region.maps} * QUERIES, 0);"] if gradients.maps else []
    lines = [
        *region.opening(["out", "lse", *region.optional, "gradient"], stored),
        *gradient_steps(region, [leaf.data[0] for leaf, _ in leaves]),
        "#pragma omp parallel num_threads(threads)",
        "{",
        *indented(region.arena([maps, *(line for printed in passes for line in printed.buffers), *sums.buffers])),
        "  const long worker = omp_get_thread_num(), workers = omp_get_num_threads(), tasks = groups * blocks;",
        "  const bool whole = groups >= threads;",
        "  long task = whole ? groups * worker / workers * blocks : tasks * worker / workers;",
        "  const long last_task = whole ? groups * (worker + 1) / workers * blocks : tasks * (worker + 1) / workers;",
        "  const long end = enough ? last_task : 0;",
        "  while (task < end) {",
        "    const long pair = task / blocks;",
        *indented(indented([*region.bases(), *region.turn(), *sums.zero_keys])),
        "    for (const long last = tl::minimum(end, (pair + 1) * blocks); task < last; ++task) {",
        "      const long first = (task % blocks) * height;",
        "      const long rows = tl::minimum(height, query_end - first);",
        *indented(indented(indented([*sums.zero_rows, *fill, *row_sums]))),
        *indented(indented(indented([*(line for printed in passes for line in printed.loop), *sums.add_rows]))),
        "    }",
        *indented(indented(sums.add_keys)),
        "  }",
        "}",
    ]
    return region.function("backward", lines)


def totals(region: RegionText, gradients: Gradients, key_pass: PassPrinter, leaves: Leaves, sums: Sums) -> None:
    """The sums over blocks that gradients of operands need."""
    program, places = region.program, region.places
    query, key = program.pair
    used = {node.data[0] for node in below([gradient for _, gradient in leaves]) if node.op == "sum_over_blocks"}
    for total, summand in gradients.totals:
        number, index = total.data
        if number not in used:
            continue
        count, length = program.tiles(index), places.length(total.axes)
        width = "".join(f" * {axis}_size" for axis in total.axes if axis in program.widths)
        sums.buffers.append(f"real* total_{number} = arena.take({count} * {length}{width});")
        zero = sums.zero_rows if query in total.axes else sums.zero_keys
        zero.append(f"fill(total_{number}, {count} * {length}{width}, 0);")
        if query not in total.axes:
            region.held += count * region.width(total.axes)
        begin = "start" if key in total.axes else "place" if {*program.relative} & {*total.axes} else "0"
        add(
            key_pass,
            summand,
            SumStorage(partial(total_at, places, total, f"{length}{width}", f"{begin}{width}"), ld_of(total)),
        )


def total_at(places: Addresses, total: Node, size: str, begin: str, env: Env) -> str:
    """Where a block adds to a sum; `size`: of a tile of the sum, `begin`: of the block in it."""
    number, index = total.data
    return f"total_{number} + {places.flat(index, env)} * {size}" + ("" if begin[0] == "0" else f" + {begin}")


def ld_of(node: Node) -> str:
    """How far apart the rows of a tile are that ends with a width."""
    return f"{node.axes[-1]}_size" if len(node.axes) > 1 else "1"


def entries(region: RegionText, key_pass: PassPrinter, number: int, leaf: Node, gradient: Node, sums: Sums) -> None:
    """The gradient of a table that is read at distances."""
    operand_number, index, reach = leaf.data
    operand, name, entry_count = region.program.operands[operand_number], f"entries_{number}", 2 * reach + 1
    of_rows = len(operand.axes) > 1
    count, tile = region.program.tiles(index), f"QUERIES * {entry_count}" if of_rows else str(entry_count)
    sums.buffers.append(f"real* {name} = arena.take({count} * {tile});")
    (sums.zero_rows if of_rows else sums.zero_keys).append(f"fill({name}, {count} * {tile}, 0);")
    tile_at = f"{name} + {region.places.flat(index, {})} * {tile}"
    add_entries(key_pass, leaf, gradient, tile_at)
    to = gradient_at(region, leaf)
    at, row, rows = "c", "", ""
    if of_rows:
        row, rows = (
            "for (long i = 0; i < rows; ++i) ",
            f" + (first + i) * {region.operands[operand_number]}_grad_step[{1 + len(index)}]",
        )
        at = f"i * {entry_count} + c"
    entry_step = f"{region.operands[operand_number]}_grad_step[{len(operand.heads) + len(operand.axes)}]"
    body = f"{row}for (long c = 0; c < {entry_count}; ++c) ({to}{rows})[c * {entry_step}] += ({tile_at})[{at}];"
    lines = nested([variable for variable in index if variable], region.program.sizes, [body])
    (sums.add_rows if of_rows else sums.add_keys).extend(lines)


def lookups(region: RegionText, key_pass: PassPrinter, number: int, leaf: Node, gradient: Node, sums: Sums) -> None:
    """The gradient of a table between whose entries rows are."""
    operand_number, index, table_axis, size = leaf.data
    name, outer = f"table_{number}", [variable for variable in index if variable]
    floats = f"{region.program.tiles(outer)} * QUERIES * {size}"
    table_at = f"{name} + {region.places.flat(outer, {})} * QUERIES * {size}"
    sums.buffers.append(f"real* {name} = arena.take({floats});")
    sums.zero_rows.append(f"fill({name}, {floats}, 0);")
    add_between(key_pass, leaf, gradient, f"{table_at} + i * {size}")
    step = f"{region.operands[operand_number]}_grad_step"
    to = f"{gradient_at(region, leaf)} + (first + i) * {step}[{1 + len(index)}] + c * {step}[{1 + table_axis}]"
    loops = f"for (long i = 0; i < rows; ++i) for (long c = 0; c < {size}; ++c)"
    sums.add_rows.extend(nested(outer, region.program.sizes, [f"{loops} *({to}) += ({table_at})[i * {size} + c];"]))


def pairs(region: RegionText, key_pass: PassPrinter, leaf: Node, gradient: Node) -> None:
    """The gradient of an operand of queries x keys, block by block."""
    number = leaf.data[0]
    operand, name = region.program.operands[number], f"{region.operands[number]}_grad"
    to = f"{gradient_at(region, leaf)} + (first + i) * {name}_step[{1 + len(operand.heads)}] + start"
    add_pairs(key_pass, leaf, gradient, to)


def known_rows(region: RegionText) -> list[str]:
    """The rows of A dA, where they are those of the result times its gradient."""
    program, places = region.program, region.places
    attention_map = None if program.exit.log else one_map(program)
    if attention_map is None or len(program.maps) != 1 or not {*attention_map.data[1]} <= {*program.exit.index}:
        return []
    index, axes = program.exit.index, program.axes
    sums_row = sums_at(places, attention_map, {})
    width = " * ".join(f"{axis}_size" for axis in axes[1:]) or "1"
    out, gradient = (places.result_at(name, index, axes, {}) for name in ("out", "gradient"))
    body = [f"add_products({sums_row}, {out}, {gradient}, rows, {width});"]
    return nested([variable for variable in index if variable], program.sizes, body)


def rows_before(region: RegionText, gradients: Gradients) -> PassPrinter:
    """The passes that find the rows of A dA; those behind read their stored tiles."""
    key_pass = region.open(False)
    for attention_map, summand in gradients.maps:
        add(key_pass, summand, SumStorage(partial(sums_at, key_pass, attention_map)))
    return key_pass


def sums_at(places: Addresses, attention_map: Node, env: Env) -> str:
    """The rows of A dA of a map."""
    return f"sums + {places.stat_at(attention_map.data, env)} * QUERIES"


def gradient_steps(region: RegionText, numbers: list[int]) -> list[str]:
    """The steps of each gradient; before them, how far apart the gradients of two workers are."""
    lines, step_number = [], region.steps
    for number in dict.fromkeys(numbers):
        name, operand = f"{region.operands[number]}_grad", region.program.operands[number]
        lines.append(f"const long {name}_private = step[{step_number}], *{name}_step = step + {step_number + 1};")
        step_number += 2 + len(operand.heads) + len(operand.axes)
    return lines


def gradient_at(region: RegionText, leaf: Node) -> str:
    """Where the gradient of a loaded tile begins."""
    number, index = leaf.data[:2]
    operand, name = region.program.operands[number], f"{region.operands[number]}_grad"
    address = f"{name} + worker * {name}_private + batch * {name}_step[0]"
    for dimension, (leg, variable) in enumerate(zip(operand.heads, index, strict=True), 1):
        coordinate = region.places.coordinate(leg, variable, {})
        address += "" if coordinate == "0" else f" + {coordinate} * {name}_step[{dimension}]"
    return address


def flush(region: RegionText, key_pass: PassPrinter, leaf: Node, gradient: Node, sums: Sums) -> None:
    """Adds the gradient of a leaf to that of its operand."""
    query, key = region.program.pair
    number, index = leaf.data[:2]
    operand, name = region.program.operands[number], f"{region.operands[number]}_grad"
    of_rows = query in leaf.axes or any(query in node.axes for node in below([gradient]))
    gradient, summed = without_sides(region, gradient)
    long = {query: ("i", "rows"), key: ("j", "key_end"), **dict.fromkeys(region.program.relative, ("q", "place_end"))}
    loop_index, loops, to = {}, "", gradient_at(region, leaf)
    for axis in (*operand.axes, *summed):
        loop_index[axis], end = long.get(axis, (f"c_{axis}", f"{axis}_size"))
        loops += f"for (long {loop_index[axis]} = 0; {loop_index[axis]} < {end}; ++{loop_index[axis]}) "
    for dimension, axis in enumerate(operand.axes, 1 + len(operand.heads)):
        to += f" + ({'first + ' if axis == query else ''}{loop_index[axis]}) * {name}_step[{dimension}]"
    entry = key_pass.value(gradient, {}, Where(loop_index, {query: "first"}))
    body = [f"{loops}*({to}) += {entry};"]
    lines = nested([variable for variable in index if variable], region.program.sizes, body)
    (sums.add_rows if of_rows else sums.add_keys).extend(lines)


def without_sides(region: RegionText, gradient: Node) -> tuple[Node, list[str]]:
    """A gradient without its sums along sides, and these sides: what is added up need not be summed before."""
    nodes = region.program.nodes
    if gradient.op == "sum":
        inner, axes = without_sides(region, gradient.args[0])
        return inner, [*axes, gradient.data[0]]
    if gradient.op == "dot":
        (left, left_axes), (right, right_axes) = (without_sides(region, arg) for arg in gradient.args)
        return nodes.mul(left, right), [*left_axes, *right_axes, gradient.data[0]]
    if gradient.op == "mul":
        (left, left_axes), (right, right_axes) = (without_sides(region, arg) for arg in gradient.args)
        if left_axes and right_axes:
            raise Unfit("a product of sums")
        product = nodes.node("mul", (left, right), (*left.axes, *right.axes)) if left_axes or right_axes else gradient
        return product, [*left_axes, *right_axes]
    if gradient.op == "over" and gradient.data[1] == "add":
        inner, axes = without_sides(region, gradient.args[0])
        return (nodes.over(inner, gradient.data[0]) if axes else gradient), axes
    return gradient, []
