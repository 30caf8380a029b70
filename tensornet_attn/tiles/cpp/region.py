"""What the forward and the backward of a region have in common: its operands, its programs and its passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from math import inf, prod

from tensornet_attn.graph.graph import Graph
from tensornet_attn.ir.areas import EVERYWHERE, Area, Areas, distances, union
from tensornet_attn.ops import MAPS
from tensornet_attn.tiles.cpp.lines import Chain, PassPrinter, indented, nested
from tensornet_attn.tiles.cpp.passes import Buffer
from tensornet_attn.tiles.cpp.places import Addresses, Where
from tensornet_attn.tiles.program import ROWS, At, Node, Program, below, vanishes


@dataclass
class Printed:
    """The lines of a pass: the loop over blocks of keys, and what it keeps."""

    text: PassPrinter
    loop: list[str]

    @property
    def buffers(self) -> Iterable[str]:
        """Room for tiles, for rows, and for stored tiles of all blocks."""
        for name, buffer in self.text.buffers.items():
            if buffer.stored:
                yield f"real* {name}_all = arena.take({buffer.count} * {buffer.size} * key_blocks);"
            else:
                yield f"real* {name} = arena.take({buffer.count} * {buffer.size});"
        for name, width in self.text.sides.items():
            yield f"real* {name} = arena.take(SPAN * {width}_size);"
        for node, name in self.text.carries.items():
            yield f"real* {name} = arena.take({self.text.program.tiles(node.heads)} * QUERIES);"


@dataclass
class RegionText:
    """A region as it is printed. `tiles`: how many tiles a block holds at once; `drawn`: rows that helpers fill.

    `biased`: all calls have a float mask.
    """

    graph: Graph
    program: Program
    name: str
    biased: bool = False
    operands: tuple[str, ...] = field(init=False)
    places: Addresses = field(init=False)
    tiles: int = 0
    stored: int = 0  # tiles of all blocks of keys that a worker stores in the function being printed
    held: int = 0  # numbers of each key, or relative position, that it holds besides
    drawn: int = 1
    looks: int = 1
    turned: dict[int, Node] = field(default_factory=dict)  # operands that the function being printed transposes
    taken: set[str] = field(default_factory=set)  # names of buffers
    saved: dict[Node, int] = field(default_factory=dict)  # products that may be saved: tiles before each
    restores: bool = False  # the function being printed reads them, otherwise saves them

    def __post_init__(self) -> None:
        names = (operand.use.name.replace(".", "_") for operand in self.program.operands)
        self.operands = tuple(f"in{number}_{name}" for number, name in enumerate(names))
        self.places = Addresses(self.graph, self.program, self.operands)

    def size(self, leg: str) -> int:
        return self.places.leg_size(leg)

    def width(self, axes: Iterable[str]) -> int:
        """The numbers of a row with these sides, as far as they have a size."""
        return prod(self.size(leg) for axis in axes for leg in self.program.widths.get(axis, ()))

    @property
    def programs(self) -> list[str]:
        """The legs whose tiles belong to several programs."""
        return self.places.programs

    @property
    def maps(self) -> int:
        """The statistics of a row."""
        return self.places.maps

    @property
    def random(self) -> bool:
        return any(node.op in ("noise", "drop") for node in self.program.nodes.interned.values())

    @property
    def optional(self) -> list[str]:
        """The name of the memory for saved products, if there are some."""
        return ["saved"] if self.saved else []

    # passes

    def open(self, online: bool) -> PassPrinter:
        """A pass; `online`: over maps before the division by the sums of their rows, which are otherwise known."""
        reverses = [node.data[0] for node in below([self.program.exit.maps]) if node.op == "running"]
        chain = Chain(bool(reverses and reverses[0]))
        key_pass = PassPrinter(
            self.graph, self.program, self.operands, saved=self.saved, restores=self.restores, chain=chain
        )
        if not online:
            for node in self.program_maps():
                key_pass.instead[node] = self.program.divided(node)
        for node in [*self.program.nodes.interned.values()]:
            if node.op == "slope":
                key_pass.instead[node] = self.with_what_is_read(node)
        return key_pass

    def with_what_is_read(self, node: Node) -> Node:
        """A slope that has its argument in place of its result, or the other way, if its text lacks one of them."""
        x, y, *rest = node.args
        slope = MAPS[node.data[0]].slope
        args = (x if "{x}" in slope else y, y if "{y}" in slope else x, *rest)
        return self.program.nodes.node(node.op, args, node.axes, node.name, node.data)

    def program_maps(self) -> list[Node]:
        """The maps, read with whichever index variables."""
        return [node for node in self.program.nodes.interned.values() if node.op in ROWS]

    def print(self, key_pass: PassPrinter) -> Printed:
        """The loop over the blocks of keys of a pass."""
        key_pass.names |= self.taken
        lines = key_pass.block()
        self.taken |= {*key_pass.buffers, *key_pass.sides}
        self.count(key_pass.buffers.values())
        self.drawn, self.looks = max(self.drawn, key_pass.drops), max(self.looks, len(key_pass.looks))
        self.turned |= key_pass.turned
        stored_before = {
            name: (self.program.tiles(node.heads), key_pass.unit(node))
            for node, name in key_pass.from_earlier_pass.items()
        }
        stored_tiles = stored_before | {
            name: (buffer.count, buffer.size) for name, buffer in key_pass.buffers.items() if buffer.stored
        }
        stored = [
            f"real* {name} = {name}_all + start / KEYS * ({count} * {size});"
            for name, (count, size) in stored_tiles.items()
        ]
        zeros = [
            f"fill({name}, {self.program.tiles(node.heads)} * QUERIES, 0);" for node, name in key_pass.carries.items()
        ]
        near_first = key_pass.fading is not None and not key_pass.carries
        reverse = any(node.data[0] for node in key_pass.carries)
        return Printed(key_pass, [*zeros, *self.over_keys([*stored, *lines], reverse, near_first)])

    def count(self, buffers: Iterable[Buffer]) -> None:
        counts = {"TILE": 1, "WIDE": 2, "stored_tile": 1, "stored_wide": 2}
        tiles = [(buffer.count * counts.get(buffer.size, 0), buffer.stored) for buffer in buffers]
        self.tiles = max(self.tiles, sum(count for count, _ in tiles))
        self.stored += sum(count for count, stored in tiles if stored)

    def over_keys(self, lines: list[str], reverse: bool, near_first: bool) -> list[str]:
        """Lines for each block of keys that some mask shows, in a variant that masks hide nothing of.

        `reverse`: from the last block to the first; `near_first`: from the queries' own block to the first, and then
        those behind.
        """
        program, areas = self.program, self.areas()
        near, far = distances(areas) or (1, 0)
        shift = "(first + key_end - query_end)"
        begin = f"tl::maximum(0L, {shift} - {int(far)}) / KEYS * KEYS" if far < inf else "0"
        end = f"tl::minimum(key_end, {shift} + rows + {int(-near)})" if near > -inf else "key_end"
        conditions = [] if all(area.by_distance for area in areas) else [meets(area) for area in areas]
        loop = f"long start = {begin}; start < {end}; start += KEYS"
        if near_first:  # the largest scores soon: then those of far keys weigh nothing
            bounds = f"begin = {begin}, last = last_block({end})"
            middle = f"middle = tl::minimum(last, tl::maximum(begin, last_block({shift} + rows)))"
            start = "start = begin > last ? last + 1 : middle"
            loop = f"long {bounds}, {middle}, {start}; start <= last; start = next_block(start, begin, middle)"
        elif reverse:
            loop = f"long start = last_block({end}); start >= {begin}; start -= KEYS"
        loop_lines = [
            f"for ({loop}) {{",
            "  const long keys = tl::minimum(KEYS, key_end - start);",
            *([f"  if (!({' || '.join(conditions)})) continue;"] if conditions else []),
        ]
        if program.relative:
            loop_lines.append("  const long span = rows + keys - 1, place = first - start - keys + key_end;")
        if program.masks:
            loop_lines.append(
                "  const unsigned char* key_seen = key_mask ? key_mask + batch * key_mask_step[0] + start : nullptr;"
            )
            loop_lines += self.unseen()
        loop_lines += ["  auto visit = [&](auto mode) {", "    constexpr int MODE = decltype(mode)::value;"]
        loop_lines += [*indented(indented(lines)), "  };"]
        if self.biased:
            return [*loop_lines, "  visit(Mode<2>{});", "}"]
        edge = f"if ({' || '.join(self.edges())}) visit(Mode<1>{{}}); else " if self.edges() else ""
        masked = "if (masked) visit(Mode<2>{}); else " if program.masks else ""
        return [*loop_lines, f"  {masked}{edge}visit(Mode<0>{{}});", "}"]

    def unseen(self) -> list[str]:
        """Leaves out blocks of keys that the call's masks hide."""
        program = self.program
        if not vanishes(program.exit.maps):
            return []
        lines = ["  if (key_seen && none_of(key_seen, 1, 0, keys)) continue;"]
        if all(leg in self.programs and program.heads[leg] == 1 for leg in program.others):
            mask_row = self.places.mask_at(At("" for _ in program.others), {}).replace("(first + i)", "first")
            step = f"mask_step[{1 + len(program.others)}]"
            lines.append(f"  if (mask_seen && none_of(mask_seen + {mask_row}, rows, {step}, keys)) continue;")
        return lines

    def areas(self) -> Areas:
        """The areas outside which no part of the result reads anything."""
        if not vanishes(self.program.exit.maps) or not self.program.masks:
            return EVERYWHERE
        return reduce(union, (look.areas for look in self.program.masks), ())

    def edges(self) -> list[str]:
        """Where a mask may hide a pair of a block."""
        shift, looks = "(first + key_end - query_end - start)", self.program.masks
        lefts = [look.left for look in looks if look.left is not None]
        rights = [look.right for look in looks if look.right is not None]
        conditions = [f"{shift} + rows - 1 > {min(lefts)}"] if lefts else []
        conditions += [f"{shift} - (keys - 1) < {-min(rights)}"] if rights else []
        return conditions + [meets(area) for area in dict.fromkeys(area for look in looks for area in look.hidden)]

    # functions

    def opening(self, read: list[str], written: list[str]) -> list[str]:
        """The first lines of a function: lengths, operands, masks, and what it reads and makes besides."""
        lines = ["const long query_end = size[0], key_end = size[1], batches = size[2], height = size[3];"]
        lines += ["const long place_end = query_end + key_end - 1;"] if self.program.relative else []
        lines += [f"const long {leg}_programs = {self.places.programs_of(leg)};" for leg in self.programs]
        for axis, legs in self.program.widths.items():
            lines.append(f"constexpr int {axis}_size = {prod(self.size(leg) for leg in legs)};")
        step_number = 0
        for number, (name, operand) in enumerate(zip(self.operands, self.program.operands, strict=True)):
            steps = f"const long* {name}_step = step + {step_number};"
            lines.append(f"const real* {name} = (const real*)pointer[{number}]; {steps}")
            step_number += 1 + len(operand.heads) + len(operand.axes)
        operand_count = len(self.operands)
        lines += [
            f"const long* mask_step = step + {step_number};",
            f"const long* key_mask_step = step + {step_number + 2 + len(self.program.others)};",
            f"const unsigned char* mask_seen = (const unsigned char*)pointer[{operand_count}];",
            f"const real* mask_bias = (const real*)pointer[{operand_count + 1}];",
            f"const unsigned char* key_mask = (const unsigned char*)pointer[{operand_count + 2}];",
            "const bool masked = mask_seen || mask_bias || key_mask;",
        ]
        for number, name in enumerate([*read, *written], operand_count + 3):
            const = "" if name in written else "const "
            lines.append(f"{const}real* {name} = ({const}real*)pointer[{number}];")
        lines.append("const long blocks = (query_end + height - 1) / height, key_blocks = (key_end + KEYS - 1) / KEYS;")
        lines.append("const long stored_tile = height * KEYS, stored_wide = height * SPAN;")
        lines.append("bool enough = true;")
        lines.append("const long key_room = room(key_end);")
        lines += ["const long place_room = room(place_end);"] if self.program.relative else []
        lines.append("const bool turns = query_end >= TURNED;")
        lines.append(f"const long groups = batches{''.join(f' * {leg}_programs' for leg in self.programs)};")
        return lines

    def arena(self, buffers: Iterable[str]) -> list[str]:
        """The buffers of a worker; without memory for those of all workers, there are no tasks."""
        wanting = ["if (!arena.enough) {", "  #pragma omp atomic write", "  enough = false;", "}"]
        return ["Arena arena;", *buffers, *self.turned_buffers(), *wanting, "#pragma omp barrier"]

    @property
    def steps(self) -> int:
        """How many steps operands and masks have."""
        operand_steps = sum(1 + len(operand.heads) + len(operand.axes) for operand in self.program.operands)
        return operand_steps + 3 + len(self.program.others)

    def turned_buffers(self) -> list[str]:
        """Room for the transposes of operands that have keys or relative positions as rows."""
        lines = []
        for number, node in self.turned.items():
            count, room = self.program.tiles(node.data[1]), self.room_of(node)
            lines.append(f"long turned{number}_part = -1;")
            lines.append(f"real* turned{number} = arena.take({count} * {node.axes[1]}_size * {room});")
            self.held += count * self.width(node.axes[1:])
        return lines

    def room_of(self, node: Node) -> str:
        return "key_room" if node.axes[0] == self.program.key else "place_room"

    def turn(self) -> list[str]:
        """Transposes operands, once for the programs side by side that share one."""
        lines = list[str]()
        for number, node in self.turned.items():
            width, index = f"{node.axes[1]}_size", [variable for variable in node.data[1] if variable]
            destination = f"turned{number} + {self.places.flat(index, {})} * {width} * {self.room_of(node)}"
            length = "key_end" if node.axes[0] == self.program.key else "place_end"
            origin = self.places.address(node, {}, Where({}, {}))
            line = f"turn({destination}, {origin}, {self.places.rows_step(node)}, {length}, {width});"
            part_number = "batch"
            for leg in self.programs:
                part_number = (
                    f"({part_number} * {leg}_programs + {leg}_at)"
                    if leg in self.program.operands[number].heads
                    else part_number
                )
            done = f"turned{number}_part"
            lines += [f"if (turns && {done} != {part_number}) {{", f"  {done} = {part_number};"]
            lines += [*indented(nested(index, self.program.sizes, [line])), "}"]
        return lines

    def bases(self) -> list[str]:
        """Where the operands of a program begin."""
        legs = self.programs[::-1]
        lines = ["long rest = pair;"]
        lines += [f"const long {leg}_at = rest % {leg}_programs; rest /= {leg}_programs;" for leg in legs]
        lines.append("const long batch = rest;")
        return lines + [
            f"const real* {name}_base = {self.places.base(number)};" for number, name in enumerate(self.operands)
        ]

    def function(self, kind: str, lines: list[str]) -> str:
        arguments = (
            "const long* size, void* const* pointer, const long* step, int threads, unsigned long seed, bool training"
        )
        return "\n".join(
            [f'extern "C" bool {self.name}_{kind}({arguments}) {{', *indented(lines), "  return enough;", "}"]
        )


def meets(area: Area) -> str:
    """Whether a block of queries and keys meets an area."""
    (near, far), (low, high) = area.distance, area.key
    query, shift = "(first + key_end - query_end)", "(first + key_end - query_end - start)"
    conditions = [f"{shift} + rows - 1 >= {int(near)}"] if near > -inf else []
    conditions += [f"{shift} - (keys - 1) <= {int(far)}"] if far < inf else []
    conditions += [f"{query} + rows - 1 >= {int(area.query[0])}"] if area.query[0] > -inf else []
    conditions += [f"{query} <= {int(area.query[1])}"] if area.query[1] < inf else []
    conditions += [f"start + keys - 1 >= {int(low)}"] if low > 0 else []
    conditions += [f"start <= {int(high)}"] if high < inf else []
    return f"({' && '.join(conditions) or 'true'})"
