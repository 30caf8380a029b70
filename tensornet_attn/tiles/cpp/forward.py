"""The forward of a region: one pass if every tile of the result reads one map, otherwise statistics before it."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.tiles.cpp.chain import in_turn, wanted
from tensornet_attn.tiles.cpp.faded import fading
from tensornet_attn.tiles.cpp.lines import PassPrinter, indented, nested
from tensornet_attn.tiles.cpp.places import Where
from tensornet_attn.tiles.cpp.region import Printed, RegionText
from tensornet_attn.tiles.cpp.totals import SumStorage, add
from tensornet_attn.tiles.derive import one_map
from tensornet_attn.tiles.program import Node


def forward(region: RegionText) -> str:
    """The function that computes the result `out`, and the statistics of its rows, `lse`."""
    program = region.program
    region.turned, region.restores = {}, False
    statistics = region.open(True)
    later_passes, after = list[Printed](), list[str]()
    attention_map = one_map(program)
    if program.exit.log:
        assert attention_map is not None
        wanted(statistics, program.maps)
        passes = in_turn(region, statistics)
        after = log_of_rows(region, attention_map)
    elif attention_map is not None and statistics.turn_of(attention_map) == statistics.turn_of(program.read()):
        statistics.fading = fading(program)
        online(region, statistics, attention_map)
        passes = in_turn(region, statistics)
        after = divided(region, attention_map)
    else:
        wanted(statistics, program.maps)
        passes, later_passes = twice(region, statistics)
    buffers = [f"real* {name} = arena.take({max(region.maps, 1)} * QUERIES);" for name in ("m_i", "l_i", "alpha")]
    if any(key_pass.stored for key_pass in statistics.chain.passes):
        buffers.append(f"real* most_then = arena.take({region.maps} * QUERIES * key_blocks);")
    lines = [
        *region.opening([], ["out", "lse", *region.optional]),
        "const long tasks = groups * blocks;",
        "#pragma omp parallel num_threads(threads)",
        "{",
        *indented(
            region.arena([*buffers, *(line for printed in [*passes, *later_passes] for line in printed.buffers)])
        ),
        "  const long end = enough ? tasks : 0;",
        "  #pragma omp for schedule(dynamic)",
        "  for (long task = 0; task < end; ++task) {",
        "    const long pair = task / blocks, first = (blocks - 1 - task % blocks) * height;",
        "    const long rows = tl::minimum(height, query_end - first);",
        *indented(indented([*region.bases(), *region.turn(), *zeros(region), *begin(region)])),
        *indented(indented([*(line for printed in passes for line in printed.loop), *rows_of(region)])),
        *indented(indented([*(line for printed in later_passes for line in printed.loop), *after])),
        "  }",
        "}",
    ]
    return region.function("forward", lines)


def result(region: RegionText) -> SumStorage:
    """The tile of the result."""
    axes, index, places = region.program.axes, region.program.exit.index, region.places
    return SumStorage(
        lambda env: places.result_at("out", index, axes, env), f"{axes[1]}_size" if len(axes) > 1 else "1"
    )


def online(region: RegionText, key_pass: PassPrinter, attention_map: Node) -> None:
    """Adds maps times values before the division by row sums; what was added is rescaled as the largest scores grow."""
    target = result(region)
    if attention_map.op == "normalize":
        add(key_pass, region.program.read(), target)
    else:
        rows = f"alpha + {key_pass.stat_at(attention_map.data, {})} * QUERIES"
        index = region.program.exit.index
        add(
            key_pass,
            region.program.read(),
            replace(target, factors=rows, alpha=(key_pass.alpha(attention_map),), index=index),
        )
    wanted(key_pass, tuple(node for node in region.program.maps if node is not attention_map))


def divided(region: RegionText, attention_map: Node) -> list[str]:
    """Divides the result by the sums of the rows."""
    target, places = result(region), region.places
    sums = f"l_i + {places.stat_at(attention_map.data, {})} * QUERIES"
    eps = f", {places.number(attention_map.data[2])}" if attention_map.op == "normalize" else ""
    index = [variable for variable in region.program.exit.index if variable]
    return nested(index, region.program.sizes, [f"divide({target.at({})}, {sums}, rows, {target.ld}{eps});"])


def twice(region: RegionText, statistics: PassPrinter) -> tuple[list[Printed], list[Printed]]:
    """Passes for the statistics of rows, and those that read the maps, which the first ones have stored."""
    nodes, later = region.program.nodes, region.open(False)
    for node in region.program_maps():
        number, index = node.data[:2]
        factor = nodes.node("factor" if node.op == "softmax" else "statistic", (), node.axes[:1], "", (number, index))
        powers = nodes.node("powers", (), node.axes, node.name, (number, index))
        later.instead[node] = nodes.mul(factor, powers)
    add(later, region.program.read(), result(region))
    same = {}
    for node in region.program.maps:
        same[nodes.node("powers", (), node.axes, node.name, node.data[:2])] = node
    for key_pass in statistics.chain.passes:
        key_pass.stored = {*region.program.maps}
    printed = in_turn(region, statistics, later, same=same)
    count = len([key_pass for key_pass in statistics.chain.passes if key_pass.ends])
    return printed[:count], printed[count:]


def zeros(region: RegionText) -> list[str]:
    program = region.program
    index, width = program.exit.index, "".join(f" * {axis}_size" for axis in program.axes[1:])
    return nested(filter(None, index), program.sizes, [f"fill({result(region).at({})}, rows{width}, 0);"])


def begin(region: RegionText) -> list[str]:
    """The statistics before the first key: nothing, or a sink."""
    program, places = region.program, region.places
    lines = [f"fill(m_i, {region.maps} * QUERIES, -INFINITY); fill(l_i, {region.maps} * QUERIES, 0);"]
    key_pass = region.open(True)
    for node in program.maps:
        for sink in node.args[2:]:
            sink_score = key_pass.value(sink, {}, Where({program.query: "i"}, {program.query: "first"}))
            statistic = f"{places.stat_at(node.data, {})} * QUERIES + i"
            body = [f"for (long i = 0; i < rows; ++i) begin_with({sink_score}, m_i[{statistic}], l_i[{statistic}]);"]
            lines += nested(node.heads, program.sizes, body)
    return lines


def rows_of(region: RegionText) -> list[str]:
    """Stores the statistics of rows."""
    lines, program = [], region.program
    for number, node in enumerate(program.maps):
        first, count = program.first_of(number), program.tiles(node.heads)
        row, loops = (
            "at * QUERIES + i",
            f"for (long at = {first}; at < {first + count}; ++at) for (long i = 0; i < rows; ++i)",
        )
        to = f"lse[(pair * {program.statistics} + at) * query_end + first + i]"
        eps = region.places.number(node.data[2]) if node.op == "normalize" else "0.0"
        lines.append(f"{loops} {to} = inverse_of(l_i[{row}], {eps});")
        if node.op == "softmax":
            to = to.replace("at)", f"{region.maps} + at)")
            lines.append(f"{loops} {to} = l_i[{row}] > 0 ? m_i[{row}] : real(INFINITY);")
    return lines


def log_of_rows(region: RegionText, attention_map: Node) -> list[str]:
    """The result, where it is the logarithm of the sums of rows."""
    places, index = region.places, region.program.exit.index
    rows = f"{places.stat_at(attention_map.data, {})} * QUERIES + i"
    body = f"for (long i = 0; i < rows; ++i) ({result(region).at({})})[i] = log_of_row(m_i[{rows}], l_i[{rows}]);"
    return nested([variable for variable in index if variable], region.program.sizes, [body])
