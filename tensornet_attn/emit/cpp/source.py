"""The C++ of a region: a function for the forward, one for the backward, of a tile program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

from tensornet_attn.emit.cpp.kernel import Env, Pass, Row, indented
from tensornet_attn.emit.triton.loops import Statement
from tensornet_attn.graph.model import Graph
from tensornet_attn.ir.arithmetic import Negative, Number, evaluate
from tensornet_attn.tiles.derive import Gradients, gradients, one_map
from tensornet_attn.tiles.model import ROWS, At, Node, Program, Unfit, below

CACHE = 768 * 1024  # bytes that the tiles of a block may take
BLOCKS = ((64, 256), (64, 128), (32, 128), (32, 64), (16, 64))


@dataclass
class Region:
    graph: Graph
    program: Program
    name: str
    tiles: int = 0
    passes: int = 0

    def __post_init__(self) -> None:
        self.made: Gradients = gradients(self.program)
        if any(node.op == "entry" for node in self.program.nodes.made.values()):
            raise Unfit("entries at distances")
        wishes = [operand.use.name.replace(".", "_") for operand in self.program.operands]
        self.operands = tuple(f"{wish}_{i}" if wish in wishes[:i] else wish for i, wish in enumerate(wishes))
        self.looped = [leg for leg in self.program.heads if leg not in self.program.whole]
        if any(self.program.heads[leg] > 1 and self.program.heads[leg] != self.size(leg) for leg in self.looped):
            raise Unfit("some tiles of a leg")
        self.programs = [leg for leg in self.looped if self.program.heads[leg] == 1]
        self.maps = self.program.first_of(len(self.program.maps))
        self.text = self.forward() + "\n" + self.backward()
        queries, keys = next(
            (b for b in BLOCKS if self.tiles * b[0] * b[1] * 4 <= CACHE), BLOCKS[-1]
        )
        self.block = queries, keys

    def size(self, leg: str) -> int:
        return self.graph.leg[leg].size or 1

    def number(self, node: Node) -> str:
        (tree,) = node.data
        return repr(float(evaluate(tree, self.graph.values)))

    # passes

    def open(self, online: bool) -> Pass:
        names = {"rows", "keys", "first", "start", "i", "j", "out", "lse", "to", "batch", "pair", "step", "size", "d"}
        names |= {*self.operands, *self.program.nodes.sizes}
        found = Pass(self.program, self.operands, self.number, names)
        found.scalars["statistic"] = lambda node, env: (
            f"lse[(pair * {self.maps} + {found.stat_at(*node.data[:2], env)}) * query_end + first + i]"
        )
        found.scalars["sums"] = lambda node, env: f"sums[{found.stat_at(*node.data[:2], env)} * QUERIES + i]"
        found.scalars["gradient_tile"] = lambda node, env: self.result_at("gradient", node.data[0], node.axes, env)
        found.scalars["gradient"] = lambda node, env: (
            f"({self.result_at('gradient', node.data[0], node.axes, env)})[i]"
        )
        if not online:
            for node in [node for node in self.program.nodes.made.values() if node.op in ROWS]:
                found.instead[node] = self.program.divided(node)
        return found

    def result_at(self, name: str, index: At, axes: tuple[str, ...], env: Env) -> str:
        """The first row of the block in a tile of the result."""
        text = ""
        for variable in filter(None, index):
            at, size = env.get(variable, variable), self.program.nodes.sizes[variable]
            text = f"({text} * {size} + {at})" if text else at
        tiles = self.program.tiles(index)
        width = "".join(f" * {axis}_size" for axis in axes[1:])
        return f"{name} + ((pair * {tiles} + {text or 0}) * query_end + first){width}"

    def strip(self, part: Node) -> Node:
        """What is added up over variables, which a sum does itself."""
        while part.op == "over" and part.data[1] == "add":
            (part,) = part.args
        return part

    def add(self, text: Pass, part: Node, to: str, ld: str, before: Iterable[str] = (), reads: Iterable[Node] = (), by: tuple[Node, ...] = ()) -> None:
        """Adds a part of a block, times numbers, to what stands at `to`: [side, width], [side] or a number."""
        part = self.strip(text.other(part))
        if part.axes != self.program.pair and part.op == "add":
            for arg in part.args:
                self.add(text, arg, to, ld, before, reads, by)
            return
        if part.axes != self.program.pair and part.op == "mul" and any(not arg.axes for arg in part.args):
            number, rest = part.args if not part.args[0].axes else part.args[::-1]
            self.add(text, rest, to, ld, before, reads, (*by, number))
            return
        program, (query, key) = self.program, self.program.pair
        axes = part.axes
        extra = tuple(reads)
        if part.op == "dot" and axes not in (self.program.pair, text.wide):
            heads = dict.fromkeys((*part.heads, *(v for node in (*extra, *by) for v in node.heads)))
            args = tuple(map(text.other, part.args))

            def product() -> list[str]:
                return [*before, *text.product(part, {}, to, ld, "1", " * ".join(text.scalar(node, {}) for node in by) or "1")]

            one = Statement(self.sorted(heads), (*args, *extra), product)
            text.ends.append(one)
            return
        inner = part
        while inner.op in ("sum", "over") and inner.axes not in (self.program.pair, text.wide):
            (inner,) = map(text.other, inner.args)
        if by or inner.axes not in (self.program.pair, text.wide):
            raise Unfit(f"a sum of a '{inner.op}' of {' '.join(inner.axes)}")
        inner = self.strip(inner)

        def rows() -> list[str]:
            if axes and axes in ((key,), program.relative):
                return [*before, *text.loop(inner, {}, "to[j] += {x};", to)]
            place = f"({to})[i]" if axes == (query,) else f"*({to})"
            return [
                *before,
                "{ real part = 0;",
                *text.loop(inner, {}, "part += {x};", before="part"),
                f"{place} += part; }}",
            ]

        text.ends.append(Row(self.sorted(dict.fromkeys((*inner.heads, *(v for node in extra for v in node.heads)))), (inner, *extra), rows))

    def sorted(self, heads: Iterable[str]) -> tuple[str, ...]:
        own = {*heads}
        return tuple(variable for variable in self.program.nodes.sizes if variable in own)


    def pass_lines(self, text: Pass) -> tuple[list[str], list[str]]:
        """(buffers, the loop over blocks of keys), in a scope of its own."""
        lines = text.lines(text.build(), {})
        buffers = [f"real* {name} = arena.take({count} * {size});" for name, (count, size) in text.tiles.items()]
        buffers += [f"real* {name} = arena.take({count} * {size});" for name, (count, size) in text.temporaries.items()]
        longest = "SPAN"
        buffers += [f"real* {name} = arena.take({longest} * {width}_size);" for name, width in text.sides.items()]
        self.tiles = max(self.tiles, sum(count * (2 if size == 'WIDE' else 1) for count, size in text.tiles.values()))
        looks = self.program.masks
        lefts, rights = [m.left for m in looks if m.left is not None], [m.right for m in looks if m.right is not None]
        shift = "(first + key_end - query_end - start)"
        edges = [f"{shift} + rows - 1 > {min(lefts)}"] if lefts else []
        edges += [f"{shift} - (keys - 1) < {-min(rights)}"] if rights else []
        begin = f"tl::maximum(0L, first + key_end - query_end - {max(lefts)}) / KEYS * KEYS" if lefts and len(lefts) == len(looks) else "0"
        end = f"tl::minimum(key_end, first + rows + key_end - query_end + {max(rights)})" if rights and len(rights) == len(looks) else "key_end"
        head = [
            f"for (long start = {begin}; start < {end}; start += KEYS) {{",
            "  const long keys = tl::minimum(KEYS, key_end - start);",
            *(["  const long span = rows + keys - 1, place = first - start - keys + key_end;"] if self.program.relative else []),
            "  const unsigned char* key_seen = key_mask ? key_mask + batch * key_mask_step[0] + start : nullptr;",
            "  auto visit = [&](auto mode) {",
            "    constexpr int MODE = decltype(mode)::value;",
            *indented(indented(lines)),
            "  };",
        ]
        edge = f"if ({' || '.join(edges)}) visit(Mode<1>{{}}); else " if edges else ""
        head.append(f"  if (masked) visit(Mode<2>{{}}); else {edge}visit(Mode<0>{{}});" if looks else "  visit(Mode<0>{});")
        self.passes += 1
        own = re.compile(rf"\b({'|'.join(map(re.escape, [*text.tiles, *text.temporaries, *text.sides])) or '-'})\b(?!_)")
        renamed = [own.sub(rf"\1_{self.passes}", line) for line in [*buffers, "", *head, "}"]]
        cut = renamed.index("")
        return renamed[:cut], renamed[cut + 1 :]

    # forward

    def forward(self) -> str:
        one, program = one_map(self.program), self.program
        exit_, query = program.exit, program.query
        if exit_.log or any(len(node.args) > 2 or (node.op == "softmax" and node.data[2]) for node in program.maps):
            raise Unfit("logs of sums, sinks, sums of softmaxes")
        online = self.open(True)
        part = self.read()
        width = "".join(f" * {axis}_size" for axis in program.axes[1:])
        ld = f"{program.axes[1]}_size" if len(program.axes) > 1 else "1"
        to = self.result_at("out", exit_.index, program.axes, {})
        parts: list[tuple[list[str], list[str]]] = []
        after: list[str] = []
        if one is not None:
            alpha = online.alpha(one)
            at = f"alpha + {online.stat_at(one.data[0], one.data[1], {})} * QUERIES"
            rescale = [f"rescale({to}, {at}, rows, {ld});"] if one.op == "softmax" else []
            self.add(online, part, to, ld, rescale, [alpha] if one.op == "softmax" else [])
            for node in program.maps:
                if node is not one:
                    online.ends.append(Row(node.heads, (node,), list))
            parts.append(self.pass_lines(online))
            heads = [v for v in exit_.index if v]
            eps = self.number(Node("number", data=(one.data[2],))) if one.op == "normalize" else ""
            own = f"l_i + {online.stat_at(one.data[0], one.data[1], {})} * QUERIES"
            body = [f"divide({to}, {own}, rows, {ld}{', ' + eps if eps else ''});"]
            after += nested(heads, program.nodes.sizes, body)
        else:
            for node in program.maps:
                online.ends.append(Row(node.heads, (node,), list))
            parts.append(self.pass_lines(online))
            second = self.open(False)
            self.add(second, part, to, ld)
            parts.append(self.pass_lines(second))
        first_pass, *more = parts
        stats = []
        for number, node in enumerate(program.maps):
            at, till = program.first_of(number), program.first_of(number) + program.tiles(node.heads)
            value = "log_of_sum(m_i[at * QUERIES + i], l_i[at * QUERIES + i])"
            if node.op == "normalize":
                value = f"inverse_of(l_i[at * QUERIES + i], {self.number(Node('number', data=(node.data[2],)))})"
            loops = f"for (long at = {at}; at < {till}; ++at) for (long i = 0; i < rows; ++i)"
            stats += [f"{loops} lse[(pair * {self.maps} + at) * query_end + first + i] = {value};"]
        tiles = program.tiles(exit_.index)
        zero = [f"for (long at = 0; at < {tiles}; ++at) fill(out + ((pair * {tiles} + at) * query_end + first){width}, rows{width}, 0);"]
        lines = [
            *self.opening(["out", "lse"]),
            "const long tasks = groups * blocks;",
            "#pragma omp parallel num_threads(threads)",
            "{",
            "  Arena arena;",
            *indented([f"real* {name} = arena.take({self.maps} * QUERIES);" for name in ("m_i", "l_i", "alpha")]),
            *indented([line for buffers, _ in parts for line in buffers]),
            "  #pragma omp for schedule(dynamic)",
            "  for (long task = 0; task < tasks; ++task) {",
            *indented(indented([
                "const long pair = task / blocks, first = (blocks - 1 - task % blocks) * QUERIES;",
                "const long rows = tl::minimum(QUERIES, query_end - first);",
                *self.bases(),
                *zero,
                f"fill(m_i, {self.maps} * QUERIES, -INFINITY); fill(l_i, {self.maps} * QUERIES, 0);",
                *first_pass[1], *stats, *(line for _, own in more for line in own), *after,
            ])),
            "  }",
            "}",
        ]
        return function(f"{self.name}_forward", lines)

    def read(self) -> Node:
        nodes, axes, exit_ = self.program.nodes, self.program.axes, self.program.exit
        maps, values = exit_.maps, exit_.values
        found = nodes.total(maps, axes, "read") if values is None else nodes.product(maps, values, axes, "read")
        for variable in exit_.summed:
            found = nodes.over(found, variable, "add", "read")
        return found

    def opening(self, special: list[str]) -> list[str]:
        lines = ["const long query_end = size[0], key_end = size[1], batches = size[2], place_end = query_end + key_end - 1;"]
        lines += [f"const long {leg}_programs = {self.size(leg)};" for leg in self.programs]
        for axis, legs in self.program.widths.items():
            lines.append(f"constexpr int {axis}_size = {prod(self.size(leg) for leg in legs)};")
        place = 0
        for number, (name, operand) in enumerate(zip(self.operands, self.program.operands, strict=True)):
            lines.append(f"const real* {name} = (const real*)pointer[{number}]; const long* {name}_step = step + {place};")
            place += 1 + len(operand.heads) + len(operand.axes)
        self.steps = place
        lines.append(f"const long* mask_step = step + {place};")
        place += 2 + len(self.program.others)
        lines.append(f"const long* key_mask_step = step + {place};")
        place += 1
        self.steps = place
        many = len(self.operands)
        lines.append(f"const unsigned char* mask_seen = (const unsigned char*)pointer[{many}];")
        lines.append(f"const real* mask_bias = (const real*)pointer[{many + 1}];")
        lines.append(f"const unsigned char* key_mask = (const unsigned char*)pointer[{many + 2}];")
        lines.append("const bool masked = mask_seen || mask_bias || key_mask;")
        for number, name in enumerate(special, len(self.operands) + 3):
            const = "" if name in ("out",) or (name == "lse" and "out" in special and "gradient" not in special) or name.endswith("_grad") else "const "
            lines.append(f"{const}real* {name} = ({const}real*)pointer[{number}];")
        lines += [
            "const long blocks = (query_end + QUERIES - 1) / QUERIES;",
            f"const long groups = batches{''.join(f' * {leg}_programs' for leg in self.programs)};",
        ]
        return lines

    def bases(self) -> list[str]:
        lines = ["long rest = pair;"]
        for leg in reversed(self.programs):
            lines.append(f"const long {leg}_at = rest % {leg}_programs; rest /= {leg}_programs;")
        lines.append("const long batch = rest;")
        for name, operand in zip(self.operands, self.program.operands, strict=True):
            text = f"{name} + batch * {name}_step[0]"
            for k, leg in enumerate(operand.heads, 1):
                if leg in self.programs:
                    text += f" + {leg}_at * {name}_step[{k}]"
            lines.append(f"const real* {name}_base = {text};")
        return lines

    # backward

    def backward(self) -> str:
        program, made = self.program, self.made
        query, key = program.pair
        sizes = program.nodes.sizes
        text = self.open(False)
        parts: list[tuple[list[str], list[str]]] = []
        before: list[str] = []
        reads = self.reads()
        if made.maps and reads is None:
            sums = self.open(False)
            for one, part in made.maps:
                self.add(sums, part, f"sums + {sums.stat_at(*one.data[:2], {})} * QUERIES", "1")
            parts.append(self.pass_lines(sums))
        elif reads is not None:
            before += reads
        leaves = [(leaf, d) for leaf, d in made.leaves if leaf.op == "load"]
        used = {node.data[0] for node in below([d for _, d in leaves]) if node.op == "sum_over_blocks"}
        totals = [(total, part) for total, part in made.totals if total.data[0] in used]
        buffers: list[str] = []
        zero: dict[str, list[str]] = {"query": [], "key": []}
        names: dict[int, Node] = {}
        for total, part in totals:
            number, index = total.data
            names[number] = total
            count, width = program.tiles(index), "".join(f" * {axis}_size" for axis in total.axes if axis in program.widths)
            side = "query" if query in total.axes else "key"
            length = self.length(total)
            buffers.append(f"real* total_{number} = arena.take({count} * {length}{width});")
            zero[side].append(f"fill(total_{number}, {count} * {length}{width}, 0);")
            ld = f"{total.axes[-1]}_size" if len(total.axes) > 1 else "1"
            to = f"total_{number} + ({self.flat(index, {})}) * {length}{width}"
            if key in total.axes:
                to += f" + start{width}"
            elif {*program.relative} & {*total.axes}:
                to += f" + place{width}"
            self.add(text, part, to, ld)
        parts.append(self.pass_lines(text))
        after: dict[str, list[str]] = {"query": [], "key": []}
        for leaf, d in leaves:
            after["query" if query in leaf.axes or any(query in node.axes for node in below([d])) else "key"] += self.flush(text, leaf, d)
        stored = list(dict.fromkeys(f"{self.operands[leaf.data[0]]}_grad" for leaf, _ in leaves))
        self.gradients = [leaf.data[0] for leaf, _ in leaves]
        lines = [
            *self.opening(["out", "lse", "gradient", *stored]),
            *[f"const long* {name}_step = step + {self.grad_place(name)};" for name in stored],
            *[f"const long {name}_private = step[{self.grad_place(name) - 1}];" for name in stored],
            "#pragma omp parallel num_threads(threads)",
            "{",
            "  Arena arena;",
            f"  real* sums = arena.take({self.maps} * QUERIES);",
            *indented([line for own, _ in parts for line in own]),
            *indented(buffers),
            "  const long worker = omp_get_thread_num(), workers = omp_get_num_threads(), tasks = groups * blocks;",
            "  const bool whole = groups >= threads;",
            "  long task = whole ? groups * worker / workers * blocks : tasks * worker / workers;",
            "  const long end = whole ? groups * (worker + 1) / workers * blocks : tasks * (worker + 1) / workers;",
            "  while (task < end) {",
            *indented(indented([
                "const long pair = task / blocks;",
                *self.bases(),
                *zero["key"],
                "for (const long last = tl::minimum(end, (pair + 1) * blocks); task < last; ++task) {",
                *indented([
                    "const long first = (task % blocks) * QUERIES;",
                    "const long rows = tl::minimum(QUERIES, query_end - first);",
                    *zero["query"],
                    *(["fill(sums, " + str(self.maps) + " * QUERIES, 0);"] if made.maps else []),
                    *before,
                    *(line for _, own in parts for line in own),
                    *after["query"],
                ]),
                "}",
                *after["key"],
            ])),
            "  }",
            "}",
        ]
        return function(f"{self.name}_backward", lines)

    def grad_place(self, name: str) -> int:
        """Where the steps of a gradient begin: behind how far apart those of two threads are."""
        place = self.steps
        for number in dict.fromkeys(self.gradients):
            operand = self.program.operands[number]
            place += 1
            if f"{self.operands[number]}_grad" == name:
                return place
            place += 1 + len(operand.heads) + len(operand.axes)
        raise KeyError(name)

    def length(self, total: Node) -> str:
        """How many entries a sum has along its side."""
        query, key = self.program.pair
        if query in total.axes:
            return "QUERIES"
        return "key_end" if key in total.axes else "place_end" if {*self.program.relative} & {*total.axes} else "1"

    def flat(self, index: Iterable[str], env: Env) -> str:
        text = ""
        for variable in filter(None, index):
            at, size = env.get(variable, variable), self.program.nodes.sizes[variable]
            text = f"({text} * {size} + {at})" if text else at
        return text or "0"

    def reads(self) -> list[str] | None:
        """The rows of A dA, where they are those of the result times its gradient."""
        program = self.program
        one = None if program.exit.log else one_map(program)
        if one is None or len(program.maps) != 1:
            return None
        index, axes = program.exit.index, program.axes
        at = f"sums + {self.open(False).stat_at(one.data[0], one.data[1], {})} * QUERIES"
        if not {*one.data[1]} <= {*index}:
            return None
        width = "".join(f" * {axis}_size" for axis in axes[1:]).removeprefix(" * ") or "1"
        body = [f"add_products({at}, {self.result_at('out', index, axes, {})}, {self.result_at('gradient', index, axes, {})}, rows, {width});"]
        return nested([v for v in index if v], program.nodes.sizes, body)

    def flush(self, text: Pass, leaf: Node, d: Node) -> list[str]:
        """Adds the gradient of a leaf to that of its operand."""
        number, index = leaf.data[:2]
        operand, name = self.program.operands[number], f"{self.operands[number]}_grad"
        query, key = self.program.pair
        d, summed = self.summed(d)
        base = f"{name} + worker * {name}_private + batch * {name}_step[0]"
        for k, (leg, variable) in enumerate(zip(operand.heads, index, strict=True), 1):
            if variable:
                base += f" + {variable} * {name}_step[{k}]"
            elif leg in self.programs:
                base += f" + {leg}_at * {name}_step[{k}]"
        places, loops = "", []
        for axis in (*operand.axes, *summed):
            variable, end = {query: ("i", "rows"), key: ("j", "key_end"), **dict.fromkeys(self.program.relative, ("q", "place_end"))}.get(axis, (f"c_{axis}", f"{axis}_size"))
            loops.append(f"for (long {variable} = 0; {variable} < {end}; ++{variable})")
        for k, axis in enumerate(operand.axes, 1 + len(operand.heads)):
            variable = {query: "i", key: "j", **dict.fromkeys(self.program.relative, "q")}.get(axis, f"c_{axis}")
            places += f" + ({'first + ' if axis == query else ''}{variable}) * {name}_step[{k}]"
        value = self.plain(text, d, {})
        body = [f"{' '.join(loops)} *({base}{places}) += {value};"]
        return nested([v for v in index if v], self.program.nodes.sizes, body)

    def summed(self, d: Node) -> tuple[Node, list[str]]:
        """A gradient without its sums along sides, and these sides: what is added up need not be summed before."""
        if d.op == "sum":
            inner, axes = self.summed(d.args[0])
            return inner, [*axes, d.data[0]]
        if d.op == "dot":
            (a, more), (b, others) = map(self.summed, d.args)
            return self.program.nodes.mul(a, b), [*more, *others, d.data[0]]
        if d.op == "mul":
            (a, more), (b, others) = map(self.summed, d.args)
            if more and others:
                raise Unfit("a product of sums")
            return (self.program.nodes.node("mul", (a, b), (*a.axes, *b.axes)) if more or others else d), [*more, *others]
        if d.op == "over" and d.data[1] == "add":
            inner, axes = self.summed(d.args[0])
            return (self.program.nodes.over(inner, d.data[0]) if axes else d), axes
        return d, []

    def plain(self, text: Pass, node: Node, env: Env) -> str:
        """An expression of entry i of queries, j of keys, c of a width."""
        query, key = self.program.pair
        if node.op == "sum_over_blocks":
            number, index = node.data
            length = self.length(node)
            wide = [axis for axis in node.axes if axis in self.program.widths]
            width = "".join(f" * {axis}_size" for axis in wide)
            place = f"total_{number}[({self.flat(index, env)}) * {length}{width}"
            row = {query: "i", key: "j", **dict.fromkeys(self.program.relative, "q")}
            for axis in node.axes:
                place += f" + {row[axis]}{width}" if axis in row else f" + c_{axis}"
            return place + "]"
        if node.op == "number":
            return f"real({self.number(node)})"
        if node.op == "load":
            number, index = node.data[:2]
            name, operand = self.operands[number], self.program.operands[number]
            at = f"{name}_base"
            for k, variable in enumerate(index, 1):
                at += f" + {env.get(variable, variable)} * {name}_step[{k}]" if variable else ""
            for k, axis in enumerate(operand.axes, 1 + len(operand.heads)):
                at += f" + ({ {query: 'first + i', key: 'j', **dict.fromkeys(self.program.relative, 'q')}.get(axis, f'c_{axis}')}) * {name}_step[{k}]"
            return f"*({at})"
        if node.op in ("mul", "add"):
            sign = " * " if node.op == "mul" else " + "
            return f"({sign.join(self.plain(text, arg, env) for arg in node.args)})"
        if node.op == "spread":
            return self.plain(text, node.args[0], env)
        if node.op == "gradient":
            return f"({self.result_at('gradient', node.data[0], node.axes, env)})[i * {node.axes[1]}_size + c_{node.axes[1]}]"
        if node.op in ("map", "slope"):
            from tensornet_attn.emit.cpp.kernel import mapped

            return mapped(node, [self.plain(text, arg, env) for arg in node.args])
        if node.op == "over" and node.data[1] == "add":
            variable = node.data[0]
            parts = [self.plain(text, node.args[0], {**env, variable: str(v)}) for v in range(self.program.nodes.sizes[variable])]
            return f"({' + '.join(parts)})"
        raise Unfit(f"a gradient with '{node.op}'")


def nested(variables: Iterable[str], sizes: Mapping[str, int], body: list[str]) -> list[str]:
    for variable in reversed([*variables]):
        body = [f"for (int {variable} = 0; {variable} < {sizes[variable]}; ++{variable}) {{", *indented(body), "}"]
    return body


def function(name: str, lines: list[str]) -> str:
    head = f'extern "C" void {name}(const long* size, void* const* pointer, const long* step, int threads, unsigned long seed, bool training) {{'
    return "\n".join([head, *indented(lines), "}"])


HEADER = r"""
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <omp.h>
#include <type_traits>
#include <vector>
#include <initializer_list>

using real = @REAL@;
constexpr long QUERIES = @QUERIES@, KEYS = @KEYS@, TILE = QUERIES * KEYS, SPAN = QUERIES + KEYS, WIDE = QUERIES * SPAN;
template <int mode> using Mode = std::integral_constant<int, mode>;

extern "C" void @GEMM@(const char*, const char*, const int*, const int*, const int*, const real*, const real*,
                       const int*, const real*, const int*, const real*, real*, const int*);

namespace tl {
template <class A, class B> inline auto maximum(A a, B b) { using C = decltype(a + b); return C(a) > C(b) ? C(a) : C(b); }
template <class A, class B> inline auto minimum(A a, B b) { using C = decltype(a + b); return C(a) < C(b) ? C(a) : C(b); }
template <class A, class B> inline auto where(bool c, A a, B b) { using C = decltype(a + b); return c ? C(a) : C(b); }
inline real abs(real x) { return std::fabs(x); }
inline real sqrt(real x) { return std::sqrt(x); }
inline real log(real x) { return std::log(x); }
inline real sin(real x) { return std::sin(x); }
inline real cos(real x) { return std::cos(x); }
}

struct Arena {
  std::vector<void*> taken;
  unsigned char seen[@MASKS@ * KEYS];
  real rows[4][KEYS];
  real* row(int place) { return rows[place]; }
  real* take(long count) {
    void* found = std::aligned_alloc(64, ((count * sizeof(real) + 63) / 64 + 1) * 64);
    taken.push_back(found);
    return (real*)found;
  }
  ~Arena() { for (void* one : taken) std::free(one); }
};

inline float exp_of(float x) {
  x = x < -87.3f ? -87.3f : (x > 88.7f ? 88.7f : x);
  const float t = x * 1.44269504088896341f, r = std::nearbyint(t), f = t - r;
  float p = 1.535336188319500e-4f;
  p = p * f + 1.339887440266574e-3f;
  p = p * f + 9.618437357674640e-3f;
  p = p * f + 5.550332471162809e-2f;
  p = p * f + 2.402264791363012e-1f;
  p = p * f + 6.931472028550421e-1f;
  p = p * f + 1.f;
  union { int i; float f; } power;
  power.i = ((int)r + 127) << 23;
  return p * power.f;
}
inline double exp_of(double x) { return std::exp(x); }
template <class A> inline auto log_add(A a, A b) {
  const A most = tl::maximum(a, b);
  return most == -INFINITY ? most : most + std::log(exp_of(a - most) + exp_of(b - most));
}
template <int n> inline real log_sum(const real (&x)[n]) {
  real most = x[0], sum = 0;
  for (int i = 1; i < n; ++i) most = x[i] > most ? x[i] : most;
  for (int i = 0; i < n; ++i) sum += exp_of(x[i] - most);
  return most + std::log(sum);
}
template <class A> inline const A* row_of(const A* mask, long at) { return mask ? mask + at : nullptr; }
template <int mode> inline real biased(real x, const real* bias, long j) {
  if constexpr (mode == 2) return bias ? x + bias[j] : x;
  else return x;
}
template <int mode> inline bool seen(bool inside, const unsigned char* row, long j) {
  if constexpr (mode == 2) return inside & (row[j] != 0);
  else return inside;
}
inline const unsigned char* see(Arena& arena, const unsigned char* mask, const unsigned char* keys_seen, long keys, int place) {
  if (!keys_seen && mask) return mask;
  if (!mask && keys_seen) return keys_seen;
  unsigned char* row = arena.seen + place * KEYS;
  if (!mask) std::memset(row, 1, keys);
  else for (long j = 0; j < keys; ++j) row[j] = mask[j] & keys_seen[j];
  return row;
}
template <int mode, class A, class B> inline real where_seen(bool seen, A x, B other) {
  if constexpr (mode == 0) return x;
  else return seen ? real(x) : real(other);
}

struct Random { unsigned x[4]; };
inline Random philox(unsigned a, unsigned b, unsigned c, unsigned d, unsigned long seed) {
  unsigned k = (unsigned)seed, l = (unsigned)(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const unsigned long p = 0xD2511F53ul * a, q = 0xCD9E8D57ul * c;
    const unsigned next_a = (unsigned)(q >> 32) ^ b ^ k, next_c = (unsigned)(p >> 32) ^ d ^ l;
    b = (unsigned)q; d = (unsigned)p; a = next_a; c = next_c;
    k += 0x9E3779B9u; l += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}
inline const real* keep_row(real* to, long keys, real probability, unsigned long seed, long lead, int stream, long query, long start) {
  const long part = (keys + 3) / 4;
  const real scale = probability < 1 ? 1 / (1 - probability) : 0;
  const unsigned least = (unsigned)(probability * 4294967295.0);
  real own[4][(KEYS + 3) / 4];
  #pragma omp simd
  for (long t = 0; t < part; ++t) {
    const Random drawn = philox((unsigned)(start + t), (unsigned)query, (unsigned)lead, (unsigned)stream, seed);
    for (int q = 0; q < 4; ++q) own[q][t] = drawn.x[q] >= least ? scale : real(0);
  }
  for (int q = 0; q < 4; ++q) for (long t = 0; t < part && q * part + t < keys; ++t) to[q * part + t] = own[q][t];
  return to;
}
inline real dropped(real x, const real* row, long j) { return row ? (row[j] != 0 ? x * row[j] : real(0)) : x; }
inline void noise(real* to, long keys, const real* given, bool drawn, real std, unsigned long seed, long lead, int stream, long query, long start) {
  if (given) { std::memcpy(to, given, keys * sizeof(real)); return; }
  if (!drawn) { for (long j = 0; j < keys; ++j) to[j] = 0; return; }
  const long part = (keys + 3) / 4;
  float own[4][(KEYS + 3) / 4];
  #pragma omp simd
  for (long t = 0; t < part; ++t) {
    const Random r = philox((unsigned)(start + t), (unsigned)query, (unsigned)lead, (unsigned)stream, seed);
    const float scale = 2.3283064e-10f;
    const float u = ((float)(r.x[0] >> 8) + 0.5f) * 5.9604645e-8f, v = ((float)(r.x[2] >> 8) + 0.5f) * 5.9604645e-8f;
    const float a = std::sqrt(-2 * std::log(u)), b = std::sqrt(-2 * std::log(v));
    const float s = 6.2831853f * scale * (float)r.x[1], z = 6.2831853f * scale * (float)r.x[3];
    own[0][t] = a * std::cos(s); own[1][t] = a * std::sin(s); own[2][t] = b * std::cos(z); own[3][t] = b * std::sin(z);
  }
  for (int q = 0; q < 4; ++q) for (long t = 0; t < part && q * part + t < keys; ++t) to[q * part + t] = std * own[q][t];
}
inline void multiply(bool turn_a, bool turn_b, int x, int y, int k, const real* a, int lda, const real* b, int ldb,
                     real beta, real* to, int ld, real alpha = 1) {
  @GEMM@(turn_b ? "T" : "N", turn_a ? "T" : "N", &y, &x, &k, &alpha, b, &ldb, a, &lda, &beta, to, &ld);
}
inline void fill(real* to, long count, real value) { for (long i = 0; i < count; ++i) to[i] = value; }
inline void online(real* x, long keys, real& most, real& sum, real& alpha) {
  real next = most, total = 0;
  #pragma omp simd reduction(max:next)
  for (long j = 0; j < keys; ++j) next = x[j] > next ? x[j] : next;
  if (next == -INFINITY) { alpha = 1; fill(x, keys, 0); return; }
  #pragma omp simd reduction(+:total)
  for (long j = 0; j < keys; ++j) { const real power = x[j] == -INFINITY ? real(0) : exp_of(x[j] - next); x[j] = power; total += power; }
  alpha = most == -INFINITY ? real(0) : exp_of(most - next);
  most = next;
  sum = sum * alpha + total;
}
inline void rescale(real* to, const real* alpha, long rows, int width) {
  for (long i = 0; i < rows; ++i) if (alpha[i] != 1) for (int c = 0; c < width; ++c) to[i * width + c] *= alpha[i];
}
inline void divide(real* to, const real* sum, long rows, int width) {
  for (long i = 0; i < rows; ++i) {
    const real one = sum[i] > 0 ? 1 / sum[i] : real(1);
    for (int c = 0; c < width; ++c) to[i * width + c] *= one;
  }
}
inline real inverse_of(real sum, real eps) { return sum + eps != 0 ? 1 / (sum + eps) : real(0); }
inline void divide(real* to, const real* sum, long rows, int width, real eps) {
  for (long i = 0; i < rows; ++i) {
    const real one = inverse_of(sum[i], eps);
    for (int c = 0; c < width; ++c) to[i * width + c] *= one;
  }
}
inline real log_of_sum(real most, real sum) { return sum > 0 ? most + std::log(sum) : real(INFINITY); }
inline void add_products(real* to, const real* a, const real* b, long rows, int width) {
  for (long i = 0; i < rows; ++i) {
    real part = 0;
    for (int c = 0; c < width; ++c) part += a[i * width + c] * b[i * width + c];
    to[i] += part;
  }
}
"""


def source(region: Region, kind: str = "REAL") -> str:
    queries, keys = region.block
    text = HEADER.replace("@REAL@", kind).replace("@GEMM@", {"float": "sgemm_", "double": "dgemm_", "REAL": "GEMM"}[kind])
    return text.replace("@QUERIES@", str(queries)).replace("@KEYS@", str(keys)).replace("@MASKS@", str(max(1, len(region.program.masks)))) + region.text + "\n"
