"""Statements in loops over index variables: which of them share a loop, and which values stay live between loops.

    S = ()
    for g in tl.static_range(4):
        S += (dot_of(Q[g], tl.trans(K), DOT, SUMS),)            S(g), a tuple for the next loop
    for k in range(8):                                          a rolled loop: no value of k stays live
        L = tl.zeros((n_block, m_block), SUMS)
        for g in tl.static_range(4):
            L += tl.maximum(P[g] * S[g], 0.0)                   L(k), the sum over g, is read immediately

A sum over a variable is known after its loop. Readers of the sum that depend on the variable themselves are in the next
loop over it. For a variable whose loop is not unrolled, values that the next loop reads are recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tensornet_attn.tiles.program import Node, Unfit

Group = tuple[str | int, ...]  # a variable, and the number of sums over it, and over outer variables, below
Key = tuple[Node, int]  # a node, and the index of the loop over the `ranged` variable that computes it


@dataclass(eq=False)
class Accumulator:
    """A sum or maximum that is carried from block to block; `dims`: variables for whose values it has entries."""

    name: str
    dims: tuple[str, ...] = ()


@dataclass(eq=False)
class Statement:
    """Lines inside loops over `heads` that read nodes and make others.

    `over`: the variable over which the node it makes is reduced, by `how`. `carried`: accumulators it updates.
    `in_parts`: these are scalars in parts. `levels`: for each variable, the number of sums over it below what it reads.
    """

    heads: tuple[str, ...]
    reads: tuple[Node, ...]
    lines: Callable[[], list[str]]
    makes: tuple[Node, ...] = ()
    over: str = ""
    how: str = ""
    carried: tuple[Accumulator, ...] = ()
    in_parts: bool = False
    levels: dict[str, int] = field(default_factory=dict)
    path: tuple[Loop, ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(loop.variable for loop in self.path)

    @property
    def result_loops(self) -> tuple[Loop, ...]:
        """The loops inside which the node it makes is known."""
        return self.path[: self.variables.index(self.over)] if self.over else self.path

    @property
    def inner(self) -> tuple[str, ...]:
        """The variables inside the reducing loop: there is one sum for each of their values."""
        return self.variables[len(self.result_loops) + 1 :] if self.over else ()


@dataclass(eq=False)
class Loop:
    variable: str
    items: list[Loop | Statement] = field(default_factory=list)

    def statements(self) -> Iterator[Statement]:
        for child in self.items:
            yield from [child] if isinstance(child, Statement) else child.statements()


@dataclass
class Loops:
    """The loops of a section. `order`: variables, outermost first; `key`: how a statement identifies a node."""

    order: Sequence[str]
    key: Callable[[Statement, Node], Key]

    def of(self, statements: Iterable[Statement]) -> list[Loop | Statement]:
        """The statements in loops, each after what it reads."""
        loops = self.grouped([*statements], [*self.order])
        placed(loops, ())
        return loops

    def grouped(self, statements: list[Statement], order: list[str]) -> list[Loop | Statement]:
        groups: dict[Group, list[Statement]] = {}
        for number, statement in enumerate(statements):
            outermost = next((variable for variable in order if variable in statement.heads), "")
            enclosing = order[: order.index(outermost) + 1] if outermost else []
            levels = (statement.levels.get(variable, 0) for variable in enclosing)
            groups.setdefault((outermost, *levels) if outermost else (outermost, number), []).append(statement)
        children: list[Loop | Statement] = []
        for (outer, *_), members in self.sorted(groups):
            inner = [variable for variable in order if variable != outer]
            children += [Loop(str(outer), self.grouped(members, inner))] if outer else members
        return children

    def sorted(self, groups: dict[Group, list[Statement]]) -> Iterator[tuple[Group, list[Statement]]]:
        """The groups in topological order, otherwise in the given order."""
        maker = {
            self.key(statement, node): group
            for group, statements in groups.items()
            for statement in statements
            for node in statement.makes
        }
        reads = {
            group: [self.key(statement, node) for statement in statements for node in statement.reads]
            for group, statements in groups.items()
        }
        needs = {group: {*map(maker.get, keys)} for group, keys in reads.items()}
        done: set[Group] = set()
        while len(done) < len(groups):
            group = next(
                (group for group in groups if group not in done and needs[group] <= {*done, group, None}), None
            )
            if group is None:
                raise Unfit("sums over index variables need each other in turn")
            done.add(group)
            yield group, groups[group]


def placed(items: Iterable[Loop | Statement], path: tuple[Loop, ...]) -> None:
    """Sets the loops around each statement."""
    for child in items:
        if isinstance(child, Statement):
            child.path = path
        else:
            placed(child.items, (*path, child))


def shared(path: tuple[Loop, ...], other_path: tuple[Loop, ...]) -> int:
    """How many loops two statements share."""
    pairs = (loop is other_loop for loop, other_loop in zip(path, other_path, strict=False))
    return next((number for number, same in enumerate(pairs) if not same), min(len(path), len(other_path)))
