"""Where things are in memory: operands, masks of the call, results and statistics, as C++ addresses.

A program is one batch element and one tile of each leg that programs share out; `pair` is its number. A block begins at
query `first`, key `start` and relative position `place`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph
from tensornet_attn.ir.arithmetic import Arith, Binary, FunctionCall, Name, Negative, Number, evaluate, names
from tensornet_attn.tiles.program import At, Axes, Node, Program

Env = Mapping[str, str]  # values of index variables; others stand for themselves


def variable_at(variable: str, env: Env) -> str:
    """The value of an index variable; 0 if there is none, because a program has one tile."""
    return env.get(variable, f"at_{variable}") if variable else "0"


@dataclass(frozen=True)
class Where:
    """An entry of a tile: its index along each side, and where a block begins along the sides of loaded tiles."""

    index: Mapping[str, str]
    origin: Mapping[str, str]

    def along(self, axis: str) -> str:
        """The place of the entry along a side of an operand."""
        origin, index = self.origin.get(axis, "0"), self.index.get(axis, "0")
        return index if origin == "0" else origin if index == "0" else f"({origin} + {index})"


@dataclass
class Addresses:
    """The addresses of a program. `operands`: their names in the C++."""

    graph: Graph
    program: Program
    operands: tuple[str, ...]

    @property
    def pair(self) -> Axes:
        return self.program.pair

    @property
    def wide(self) -> Axes:
        """The sides of a tile of relative positions, which is shifted to keys; none of them if there are none."""
        return (self.program.query, *self.program.relative) if self.program.relative else ("", "")

    @property
    def maps(self) -> int:
        """The tiles of all maps in a program."""
        return self.program.first_of(len(self.program.maps))

    def leg_size(self, leg: str) -> int:
        return size_of(self.graph, leg) or 1

    def programs_of(self, leg: str) -> int:
        """How many programs share the tiles of a leg."""
        return 1 if leg in self.program.whole else self.leg_size(leg) // self.program.heads[leg]

    @property
    def programs(self) -> list[str]:
        """The legs whose tiles belong to several programs."""
        return [leg for leg in self.program.heads if self.programs_of(leg) > 1]

    @property
    def laid(self) -> list[str]:
        """The legs of the result before its rows: those that programs share out come first."""
        inside = [leg for leg in self.program.legs if leg in self.program.heads and leg not in self.programs]
        return [*self.programs, *inside]

    def number(self, tree: Arith) -> str:
        """A coefficient; the lengths of the call are known when it is computed."""
        lengths = {self.program.query: "query_end", self.program.key: "key_end"}
        if not any(name.name in lengths for name in names(tree)):
            return repr(float(evaluate(tree, self.graph.values)))
        return self.formula(tree, lengths)

    def formula(self, tree: Arith, lengths: Mapping[str, str]) -> str:
        match tree:
            case Number(value):
                return repr(float(value))
            case Name(name):
                return (
                    f"std::max(double({lengths[name]}), 1.0)"
                    if name in lengths
                    else repr(float(self.graph.values[name]))
                )
            case Negative(of):
                return f"(-{self.formula(of, lengths)})"
            case Binary(op, left, right):
                a, b = (self.formula(argument, lengths) for argument in (left, right))
                return (
                    f"std::pow({a}, {b})"
                    if op == "**"
                    else f"std::floor({a} / {b})"
                    if op == "//"
                    else f"({a} {op} {b})"
                )
            case FunctionCall(function, arguments):
                cpp_function = {"min": "std::fmin", "max": "std::fmax", "abs": "std::fabs"}.get(
                    function, f"std::{function}"
                )
                first, *rest = (self.formula(argument, lengths) for argument in arguments)
                return (
                    reduce(lambda a, b: f"{cpp_function}({a}, {b})", rest, first)
                    if rest
                    else f"{cpp_function}({first})"
                )

    def flat(self, index: Iterable[str], env: Env) -> str:
        """The number of a tile among those of some index variables."""
        number = ""
        for variable in filter(None, index):
            at, size = variable_at(variable, env), self.program.sizes[variable]
            number = f"({number} * {size} + {at})" if number else at
        return number or "0"

    def coordinate(self, leg: str, variable: str, env: Env) -> str:
        """The place of a tile along a leg, behind those of the programs before."""
        at = variable_at(variable, env)
        if leg not in self.programs:
            return at
        tiles = self.program.heads[leg]
        return f"{leg}_at" if tiles == 1 else f"({leg}_at * {tiles} + {at})"

    def base(self, number: int) -> str:
        """Where the tiles of a program begin in an operand."""
        name, operand = self.operands[number], self.program.operands[number]
        address = f"{name} + batch * {name}_step[0]"
        for dimension, leg in enumerate(operand.heads, 1):
            if leg in self.programs:
                tiles = self.program.heads[leg]
                address += f" + {leg}_at * {f'{tiles} * ' if tiles > 1 else ''}{name}_step[{dimension}]"
        return address

    def address(self, node: Node, env: Env, where: Where) -> str:
        """Where an entry of a loaded tile is; the last side of an operand has steps of 1."""
        number, index = node.data[:2]
        name, operand = self.operands[number], self.program.operands[number]
        address = f"{name}_base"
        for dimension, variable in enumerate(index, 1):
            position = variable_at(variable, env)
            address += "" if position == "0" else f" + {position} * {name}_step[{dimension}]"
        last_side = len(operand.axes) - 1
        for side, axis in enumerate(operand.axes):
            position = where.along(axis)
            step = "" if side == last_side else f" * {name}_step[{1 + len(operand.heads) + side}]"
            address += "" if position == "0" else f" + {position}{step}"
        return address

    def rows_step(self, node: Node) -> str:
        """How far apart the rows of a loaded tile are."""
        number = node.data[0]
        operand = self.program.operands[number]
        return f"int({self.operands[number]}_step[{1 + len(operand.heads)}])" if len(operand.axes) > 1 else "1"

    def mask_at(self, index: At, env: Env) -> str:
        """Where row i of the call's mask begins for a tile of a map."""
        offset = "batch * mask_step[0]"
        for dimension, (leg, variable) in enumerate(zip(self.program.others, index, strict=True), 1):
            coordinate = self.coordinate(leg, variable, env)
            offset += "" if coordinate == "0" else f" + {coordinate} * mask_step[{dimension}]"
        return f"{offset} + (first + i) * mask_step[{1 + len(self.program.others)}] + start"

    def result_at(self, name: str, index: At, axes: Axes, env: Env) -> str:
        """The first row of the block in a tile of the result."""
        width, row = "".join(f" * {axis}_size" for axis in axes[1:]), "batch"
        variables = dict(zip(self.program.legs, index, strict=False))
        for leg in self.laid:
            row = f"({row} * {self.leg_size(leg)} + {self.coordinate(leg, variables[leg], env)})"
        return f"{name} + ({row} * query_end + first){width}"

    def stat_at(self, data: tuple[Any, ...], env: Env) -> str:
        """The number of a map's tile among those of all maps; `data`: of the map, or of a node of its rows."""
        number, index = data[:2]
        tile, first = self.flat(index, env), self.program.first_of(number)
        return tile if not first else str(first) if tile == "0" else f"({first} + {tile})"

    def statistic(self, data: tuple[Any, ...], env: Env, row: str, largest: bool = False) -> str:
        """A saved number of a row of a map, or its largest score."""
        tile = f"{f'{self.maps} + ' if largest else ''}{self.stat_at(data, env)}"
        return f"lse[(pair * {self.program.statistics} + {tile}) * query_end + {row}]"

    def lead(self, heads: Iterable[str], index: At, env: Env) -> str:
        """A number of its own for each tile of these legs, the same in every pass."""
        number = "batch"
        for leg, variable in zip(heads, index, strict=True):
            size = self.programs_of(leg) * (self.program.sizes[variable] if variable else 1)
            number = f"({number} * {size} + {self.coordinate(leg, variable, env)})"
        return number

    def length(self, axes: Axes) -> str:
        """How many entries a sum over blocks has along its long side."""
        if self.program.query in axes:
            return "QUERIES"
        return "key_end" if self.program.key in axes else "place_end" if {*self.program.relative} & {*axes} else "1"

    def total_at(self, node: Node, env: Env, where: Where) -> str:
        """An entry of a sum over blocks."""
        number, index = node.data
        wide = [axis for axis in node.axes if axis in self.program.widths]
        width = "".join(f" * {axis}_size" for axis in wide)
        entry = f"total_{number}[{self.flat(index, env)} * {self.length(node.axes)}{width}"
        for axis in node.axes:
            entry += f" + {where.index[axis]}{'' if axis in wide else width}"
        return entry + "]"

    def count(self, axis: str) -> str:
        """How many entries of a side a block has."""
        counts = {self.program.query: "rows", self.program.key: "keys", **dict.fromkeys(self.program.relative, "span")}
        return counts.get(axis, f"{axis}_size")
