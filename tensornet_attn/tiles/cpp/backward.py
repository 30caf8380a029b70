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
from tensornet_attn.tiles.cpp.lines import Lines, indented, nested
from tensornet_attn.tiles.cpp.places import Env, Places, Where
from tensornet_attn.tiles.cpp.region import RegionText
from tensornet_attn.tiles.cpp.totals import Target, add, add_between, add_entries, add_pairs
from tensornet_attn.tiles.derive import Gradients, one_map
from tensornet_attn.tiles.model import Node, Unfit, below

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


def backward(region: RegionText, made: Gradients) -> str:
    """The function that adds the gradients of operands to zeros, given the result, its statistics and its gradient."""
    leaves = made.leaves
    region.turned, region.restores = {}, True
    text, sums = region.open(False), Sums()
    totals(region, made, text, leaves, sums)
    for number, (leaf, d) in enumerate(leaves):
        if leaf.op == "entry":
            entries(region, text, number, leaf, d, sums)
        elif leaf.op == "between":
            lookups(region, text, number, leaf, d, sums)
        elif leaf.axes == region.program.pair:
            pairs(region, text, leaf, d)
    before = known_rows(region)
    known = bool(before) or not made.maps
    if before and (one := fading(region.program)):
        text.fading = region.program.divided(one)
    passes = in_turn(region, text) if known else in_turn(region, rows_before(region, made), text)
    for leaf, d in leaves:
        if leaf.op == "load" and leaf.axes != region.program.pair:
            flush(region, text, leaf, d, sums)
    stored = [f"{region.operands[number]}_grad" for number in dict.fromkeys(leaf.data[0] for leaf, _ in leaves)]
    maps = f"real* sums = arena.take({max(region.maps, 1)} * QUERIES);"
    fill = [f"fill(sums, {region.maps} * QUERIES, 0);"] if made.maps else []
    lines = [
        *region.opening(["out", "lse", *region.optional, "gradient"], stored),
        *gradient_steps(region, [leaf.data[0] for leaf, _ in leaves]),
        "#pragma omp parallel num_threads(threads)",
        "{",
        *indented(region.arena([maps, *(line for one in passes for line in one.buffers), *sums.buffers])),
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
        *indented(indented(indented([*sums.zero_rows, *fill, *before]))),
        *indented(indented(indented([*(line for one in passes for line in one.loop), *sums.add_rows]))),
        "    }",
        *indented(indented(sums.add_keys)),
        "  }",
        "}",
    ]
    return region.function("backward", lines)


def totals(region: RegionText, made: Gradients, text: Lines, leaves: Leaves, sums: Sums) -> None:
    """The sums over blocks that gradients of operands need."""
    program, places = region.program, region.places
    query, key = program.pair
    used = {node.data[0] for node in below([d for _, d in leaves]) if node.op == "sum_over_blocks"}
    for total, part in made.totals:
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
        add(text, part, Target(partial(total_at, places, total, f"{length}{width}", f"{begin}{width}"), ld_of(total)))


def total_at(places: Places, total: Node, size: str, begin: str, env: Env) -> str:
    """Where a block adds to a sum; `size`: of a tile of the sum, `begin`: of the block in it."""
    number, index = total.data
    return f"total_{number} + {places.flat(index, env)} * {size}" + ("" if begin[0] == "0" else f" + {begin}")


def ld_of(node: Node) -> str:
    """How far apart the rows of a tile are that ends with a width."""
    return f"{node.axes[-1]}_size" if len(node.axes) > 1 else "1"


def entries(region: RegionText, text: Lines, number: int, leaf: Node, d: Node, sums: Sums) -> None:
    """The gradient of a table that is read at distances."""
    place, index, reach = leaf.data
    operand, name, many = region.program.operands[place], f"entries_{number}", 2 * reach + 1
    of_rows = len(operand.axes) > 1
    count, tile = region.program.tiles(index), f"QUERIES * {many}" if of_rows else str(many)
    sums.buffers.append(f"real* {name} = arena.take({count} * {tile});")
    (sums.zero_rows if of_rows else sums.zero_keys).append(f"fill({name}, {count} * {tile}, 0);")
    tile_at = f"{name} + {region.places.flat(index, {})} * {tile}"
    add_entries(text, leaf, d, tile_at)
    to = gradient_at(region, leaf)
    at, row, rows = "c", "", ""
    if of_rows:
        row, rows = (
            "for (long i = 0; i < rows; ++i) ",
            f" + (first + i) * {region.operands[place]}_grad_step[{1 + len(index)}]",
        )
        at = f"i * {many} + c"
    last = f"{region.operands[place]}_grad_step[{len(operand.heads) + len(operand.axes)}]"
    body = f"{row}for (long c = 0; c < {many}; ++c) ({to}{rows})[c * {last}] += ({tile_at})[{at}];"
    found = nested([variable for variable in index if variable], region.program.nodes.sizes, [body])
    (sums.add_rows if of_rows else sums.add_keys).extend(found)


def lookups(region: RegionText, text: Lines, number: int, leaf: Node, d: Node, sums: Sums) -> None:
    """The gradient of a table between whose entries rows are."""
    place, index, at, size = leaf.data
    name, outer = f"table_{number}", [variable for variable in index if variable]
    many = f"{region.program.tiles(outer)} * QUERIES * {size}"
    first = f"{name} + {region.places.flat(outer, {})} * QUERIES * {size}"
    sums.buffers.append(f"real* {name} = arena.take({many});")
    sums.zero_rows.append(f"fill({name}, {many}, 0);")
    add_between(text, leaf, d, f"{first} + i * {size}")
    step = f"{region.operands[place]}_grad_step"
    to = f"{gradient_at(region, leaf)} + (first + i) * {step}[{1 + len(index)}] + c * {step}[{1 + at}]"
    loops = f"for (long i = 0; i < rows; ++i) for (long c = 0; c < {size}; ++c)"
    sums.add_rows.extend(nested(outer, region.program.nodes.sizes, [f"{loops} *({to}) += ({first})[i * {size} + c];"]))


def pairs(region: RegionText, text: Lines, leaf: Node, d: Node) -> None:
    """The gradient of an operand of queries x keys, block by block."""
    number = leaf.data[0]
    operand, name = region.program.operands[number], f"{region.operands[number]}_grad"
    to = f"{gradient_at(region, leaf)} + (first + i) * {name}_step[{1 + len(operand.heads)}] + start"
    add_pairs(text, leaf, d, to)


def known_rows(region: RegionText) -> list[str]:
    """The rows of A dA, where they are those of the result times its gradient."""
    program, places = region.program, region.places
    one = None if program.exit.log else one_map(program)
    if one is None or len(program.maps) != 1 or not {*one.data[1]} <= {*program.exit.index}:
        return []
    index, axes = program.exit.index, program.axes
    at = sums_at(places, one, {})
    width = " * ".join(f"{axis}_size" for axis in axes[1:]) or "1"
    a, b = (places.result_at(name, index, axes, {}) for name in ("out", "gradient"))
    body = [f"add_products({at}, {a}, {b}, rows, {width});"]
    return nested([variable for variable in index if variable], program.nodes.sizes, body)


def rows_before(region: RegionText, made: Gradients) -> Lines:
    """The passes that find the rows of A dA; those behind read their stored tiles."""
    text = region.open(False)
    for one, part in made.maps:
        add(text, part, Target(partial(sums_at, text, one)))
    return text


def sums_at(places: Places, one: Node, env: Env) -> str:
    """The rows of A dA of a map."""
    return f"sums + {places.stat_at(one.data, env)} * QUERIES"


def gradient_steps(region: RegionText, numbers: list[int]) -> list[str]:
    """The steps of each gradient; before them, how far apart the gradients of two workers are."""
    lines, place = [], region.steps
    for number in dict.fromkeys(numbers):
        name, operand = f"{region.operands[number]}_grad", region.program.operands[number]
        lines.append(f"const long {name}_private = step[{place}], *{name}_step = step + {place + 1};")
        place += 2 + len(operand.heads) + len(operand.axes)
    return lines


def gradient_at(region: RegionText, leaf: Node) -> str:
    """Where the gradient of a loaded tile begins."""
    number, index = leaf.data[:2]
    operand, name = region.program.operands[number], f"{region.operands[number]}_grad"
    text = f"{name} + worker * {name}_private + batch * {name}_step[0]"
    for k, (leg, variable) in enumerate(zip(operand.heads, index, strict=True), 1):
        at = region.places.coordinate(leg, variable, {})
        text += "" if at == "0" else f" + {at} * {name}_step[{k}]"
    return text


def flush(region: RegionText, text: Lines, leaf: Node, d: Node, sums: Sums) -> None:
    """Adds the gradient of a leaf to that of its operand."""
    query, key = region.program.pair
    number, index = leaf.data[:2]
    operand, name = region.program.operands[number], f"{region.operands[number]}_grad"
    of_rows = query in leaf.axes or any(query in node.axes for node in below([d]))
    d, summed = without_sides(region, d)
    long = {query: ("i", "rows"), key: ("j", "key_end"), **dict.fromkeys(region.program.relative, ("q", "place_end"))}
    at, loops, to = {}, "", gradient_at(region, leaf)
    for axis in (*operand.axes, *summed):
        at[axis], end = long.get(axis, (f"c_{axis}", f"{axis}_size"))
        loops += f"for (long {at[axis]} = 0; {at[axis]} < {end}; ++{at[axis]}) "
    for k, axis in enumerate(operand.axes, 1 + len(operand.heads)):
        to += f" + ({'first + ' if axis == query else ''}{at[axis]}) * {name}_step[{k}]"
    value = text.value(d, {}, Where(at, {query: "first"}))
    body = [f"{loops}*({to}) += {value};"]
    found = nested([variable for variable in index if variable], region.program.nodes.sizes, body)
    (sums.add_rows if of_rows else sums.add_keys).extend(found)


def without_sides(region: RegionText, d: Node) -> tuple[Node, list[str]]:
    """A gradient without its sums along sides, and these sides: what is added up need not be summed before."""
    nodes = region.program.nodes
    if d.op == "sum":
        inner, axes = without_sides(region, d.args[0])
        return inner, [*axes, d.data[0]]
    if d.op == "dot":
        (a, more), (b, others) = (without_sides(region, arg) for arg in d.args)
        return nodes.mul(a, b), [*more, *others, d.data[0]]
    if d.op == "mul":
        (a, more), (b, others) = (without_sides(region, arg) for arg in d.args)
        if more and others:
            raise Unfit("a product of sums")
        found = nodes.node("mul", (a, b), (*a.axes, *b.axes)) if more or others else d
        return found, [*more, *others]
    if d.op == "over" and d.data[1] == "add":
        inner, axes = without_sides(region, d.args[0])
        return (nodes.over(inner, d.data[0]) if axes else d), axes
    return d, []
