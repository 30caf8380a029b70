"""The shared parts of a region's kernels: names, coefficients, parameters, loop bounds, stores, resource counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import product as every
from math import inf, prod

from tensornet_attn.emit.names import Names
from tensornet_attn.emit.triton.bounds import LoopBounds, bounds
from tensornet_attn.emit.triton.demand import arrange
from tensornet_attn.emit.triton.kernel import KernelText
from tensornet_attn.emit.triton.lines import source
from tensornet_attn.emit.triton.nodes import KernelNames
from tensornet_attn.graph.graph import Graph
from tensornet_attn.ir.areas import EVERYWHERE, Areas, distances, union
from tensornet_attn.ir.arithmetic import Arith, Negative, Number
from tensornet_attn.tiles.derive import one_map
from tensornet_attn.tiles.legs import RESERVED
from tensornet_attn.tiles.program import ROWS, At, Axes, Node, Program, vanishes

MOST_NUMBERS = 40  # maximum coefficients that a program keeps in registers, and parts of their gradients


@dataclass
class TritonRegion:
    """The kernels of a tile program; `numbers`: coefficients that the call passes, in order."""

    graph: Graph
    program: Program
    name: str
    about: str
    taken: frozenset[str]  # names of functions
    numbers: list[Arith] = field(default_factory=list)
    live: dict[str, int] = field(default_factory=dict)  # kernel: maximum live tiles of queries x keys
    sums: dict[str, int] = field(default_factory=dict)  # kernel: scalar sums
    # kernel: widths of the other accumulators
    accumulators: dict[str, list[str]] = field(default_factory=dict)
    resident: dict[str, list[str]] = field(default_factory=dict)  # kernel: widths of resident operands
    streamed: dict[str, list[str]] = field(default_factory=dict)  # kernel: widths of operands streamed per block
    temporaries: dict[str, list[str]] = field(default_factory=dict)  # kernel: widths of temporaries derived from them
    loops: dict[str, str] = field(default_factory=dict)  # kernel: the head that its programs loop over
    biased: TritonRegion | None = None  # the kernels of calls with a float mask, if these are not right for them

    def __post_init__(self) -> None:
        self.names = Names(self.taken | RESERVED)
        variables = self.program.sizes
        self.names.taken |= {
            *self.program.nodes.order,
            *variables,
            *(f"{v}_{end}" for v in variables for end in ("four", "word")),
        }
        wishes = [operand.use.name.replace(".", "_") for operand in self.program.operands]
        self.operands = tuple(self.names.fresh(wish) for wish in wishes)
        self.names.taken |= {f"{name}_{end}" for name in self.operands for end in ("step", "grad", "grad_step")}

    @property
    def online(self) -> bool:
        """Whether every tile of the result reads only one map, so that maps are summed online."""
        return one_map(self.program) is not None

    @property
    def mixed(self) -> bool:
        """Whether there are maps, but no pass over the keys both sums and reads them."""
        return bool(self.program.maps) and not self.online

    @property
    def crowded(self) -> bool:
        """Whether a program has more scalars than it keeps in registers."""
        operands = [operand for operand in self.program.operands if not operand.axes]
        return sum(prod(self.program.heads[leg] for leg in operand.heads) for operand in operands) > MOST_NUMBERS

    @property
    def reads(self) -> list[list[int]]:
        """For each tile of the maps, the tiles of the result for which rows times gradients sum to A dA."""
        program = self.program
        map_node = None if program.exit.log else one_map(program)
        tiles = [*self.indices(program.exit.index)]
        return [
            [
                i
                for i, tile in enumerate(tiles)
                if map_node is not None and map_node.data[0] == number and values.items() <= tile.items()
            ]
            for number, node in enumerate(program.maps)
            for values in self.indices(
                node.data[1] if map_node is None or map_node.data[0] != number else map_node.data[1]
            )
        ]

    def indices(self, index: At) -> Iterator[dict[str, int]]:
        """The values of index variables, last variable fastest."""
        variables = [variable for variable in index if variable]
        for values in every(*(range(self.program.sizes[variable]) for variable in variables)):
            yield dict(zip(variables, values, strict=True))

    @property
    def random(self) -> bool:
        return any(node.op in ("noise", "drop") for node in self.program.nodes.interned.values())

    def number(self, node: Node) -> str:
        """A coefficient: a literal, or the name of a parameter."""
        (tree,) = node.data
        if isinstance(tree, Number):
            return repr(tree.value)
        if isinstance(tree, Negative) and isinstance(tree.of, Number):
            return repr(-tree.of.value)
        if tree not in self.numbers:
            self.numbers.append(tree)
        return f"number_{self.numbers.index(tree)}"

    def scope(self, fixed: str) -> KernelNames:
        names = Names(self.names.functions, set(self.names.taken))
        turned = fixed == self.program.key and not self.program.relative
        return KernelNames(self.program, self.operands, self.number, names, turned=turned)

    def placed(
        self,
        scope: KernelNames,
        name: str,
        heads: tuple[str, ...],
        index: At,
        axes: Axes,
        expression: str,
        looped: str = "",
    ) -> str:
        """Stores a tile by strides: of batch, heads, the programs of each head that the tensor lacks, and sides.

        `looped`: the head whose tiles the program has added.
        """
        lacking = [leg for leg in self.program.heads if leg not in heads and leg not in self.program.whole]
        parts = [f"{leg}_{'part' if leg == looped else 'at'}" for leg in lacking]
        sides = "".join(f", {axis}, {scope.end(axis)}" for axis in axes)
        return f"store_tile_{len(axes)}d({scope.within(name, heads, index, parts)}{sides}, {expression})"

    def stored(self, name: str, tile: str, axes: tuple[str, ...], expression: str) -> str:
        """Stores a contiguous [places, sides] tile."""
        block = {axis: f"{axis}_block" for axis in self.program.relative}  # each block has its own tensor
        ends = [block.get(axis, f"{axis}_size" if axis in self.program.widths else f"{axis}_end") for axis in axes]
        base = f"{name} + {tile}{''.join(f' * {end}' for end in ends)}"
        if not axes:
            return f"tl.store({name} + {tile}, {expression})"
        steps = ["1"] if len(axes) == 1 else [ends[1], "1"]
        index = [f"tl.arange(0, {axis}_block)" if axis in block else axis for axis in axes]
        sides = ", ".join(f"{i}, {step}, {end}" for i, step, end in zip(index, steps, ends, strict=True))
        return f"store_{len(axes)}d({base}, {sides}, {expression})"

    def open(self, fixed: str, online: bool = False, looped: str | None = None, held: bool = False) -> KernelText:
        """Opens a kernel; `held`: keeps scalars in registers even if there are many."""
        kernel = KernelText(self.scope(fixed), fixed, looped, online, self.crowded and not held, self.crowded and held)
        for node in [node for node in self.program.nodes.interned.values() if node.op in ROWS]:
            if not online:
                kernel.scope.instead[node] = self.program.divided(node)
            elif node.op == "softmax" and node.data[2]:
                kernel.scope.instead[node] = self.added_online(node)
        return kernel

    def added_online(self, node: Node) -> Node:
        """A map that is a sum of exp over a variable, before the division of each row."""
        nodes, pair = self.program.nodes, self.program.pair
        scaled = nodes.node("scaled", node.args[:2], pair, f"{node.args[0].name}_visible")
        row_max = nodes.over(scaled, node.data[2], "max", f"{node.name}_most")
        rows = nodes.node("highest", (row_max,), (self.program.query,), "highest", node.data[:2])
        return nodes.over(nodes.node("power", (scaled, rows), pair, node.name), node.data[2], "add", node.name)

    def source(self, kernel: KernelText, kind: str, about: str, special: list[str], strided: Iterable[str] = ()) -> str:
        """A kernel; `special`: its own tensors, of which those `strided` are addressed by strides."""
        arrange(kernel)
        self.live[kind], self.resident[kind], self.streamed[kind] = kernel.live, kernel.resident, kernel.streamed
        self.accumulators[kind], self.sums[kind] = [*kernel.accumulators, *self.sums_of(kind)], kernel.numbers
        self.temporaries[kind] = kernel.temporaries
        head = f"{self.about}: {about}." if kind != "forward" else f"{self.about}."
        parameters, (left, right) = [*self.parameters(special, strided, kernel.looped, self.parted(kind))], self.reach()
        last = left is None and right is not None and kernel.fixed == self.program.query
        parted = self.parted(kind)
        return source(kernel, f"{self.name}_{kind}", head, parameters, self.bounds(kernel.fixed), last, parted)

    def parted(self, kind: str) -> list[str]:
        """The results of a kernel whose programs can share the keys of a block of queries."""
        if kind == "statistics":
            return ["lse"]
        return [] if kind != "forward" else ["out", "lse"] if self.online else ["out"]

    def sums_of(self, kind: str) -> list[str]:
        """The widths of the accumulators of the forward."""
        tiles = self.program.tiles(self.program.exit.index)
        return tiles * [*self.program.axes[1:]] if kind == "forward" else []

    def parameters(
        self, special: list[str], strided: Iterable[str], looped: str | None, parted: list[str]
    ) -> Iterator[str]:
        yield from (*self.operands, "mask", "key_mask", *special)
        yield from (["seed"] if self.random else [])
        for name, operand in zip(self.operands, self.program.operands, strict=True):
            yield f"{name}_step: tl.constexpr" if self.crowded and not operand.axes else f"{name}_step"
        yield from ("mask_step", "key_mask_step", *(f"{name}_step" for name in strided))
        long = (self.program.query, self.program.key, *self.program.relative)
        yield from (*(f"{leg}_end" for leg in long), "blocks")
        yield from (f"{leg}_programs" for leg in self.program.heads if leg not in self.program.whole)
        yield from (f"{looped}_{name}" for name in ("parts", "share") if looped)
        yield from (f"{name}_part" for name in parted)
        yield from (f"number_{i}: tl.constexpr" for i in range(len(self.numbers)))
        for axis in self.program.widths:
            yield from (f"{axis}_size: tl.constexpr", f"{axis}_wide: tl.constexpr")
        yield from (f"{name}: tl.constexpr" for name in ("MASK", "KEYS", "PARTS"))
        yield from (["SPLIT: tl.constexpr"] if parted else [])
        yield from (["TRAIN: tl.constexpr"] if self.random else [])
        yield from (f"{self.operands[number]}_GIVEN: tl.constexpr" for number in self.noise)
        yield from (f"{leg}_block: tl.constexpr" for leg in long)
        yield from ("DOT: tl.constexpr", "SUMS: tl.constexpr")

    @property
    def noise(self) -> list[int]:
        """The indices of operands that are noise."""
        return sorted({node.data[0] for node in self.program.nodes.interned.values() if node.op == "noise"})

    def bounds(self, fixed: str) -> LoopBounds:
        """The bounds of the loop, without blocks that every mask hides."""
        if fixed in self.program.relative:
            return LoopBounds("tl.maximum(first, 0)", self.last_of_far())
        return bounds(self.areas(), fixed, self.program.pair)

    def last_of_far(self) -> str:
        """The end of the loop over pairs at about the same distance; the loop is empty if masks hide them all."""
        n, m = self.program.pair
        left, right = self.reach()
        apart = f"first + {m}_end - {n}_end"
        conditions = [] if left is None else [f"({apart} - {m}_block < {left})"]
        conditions += [] if right is None else [f"({apart} + {n}_block > {-right})"]
        end = f"tl.minimum({n}_end, {m}_end + first)"
        return f"tl.where({' & '.join(conditions)}, {end}, 0)" if conditions else end

    def reach(self) -> tuple[int | None, int | None]:
        """The farthest distance of a visible key before and after a query, in any part of the result."""
        near, far = distances(self.areas()) or (1, 0)
        return (int(far) if far < inf else None), (int(-near) if near > -inf else None)

    def areas(self) -> Areas:
        """The areas outside which no part of the result reads anything."""
        if not vanishes(self.program.exit.maps):
            return EVERYWHERE
        return reduce(union, (look.areas for look in self.program.masks), ())
