"""Blocks of queries: the groups of steps with values of queries x keys, their kernels, and the size of a block.

Products that expand a query over more legs, `C[r s] Q[n s] -> r s n`, are computed per block too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tensornet_attn.cost.blocks import IN_BAND, LEAST, BlockedSteps, budget_of, reach_in_both
from tensornet_attn.cost.devices import Device
from tensornet_attn.graph.diagram import operation_of, size_of
from tensornet_attn.graph.graph import Graph, Kernel, Step, Term, Use, body_graph, cached
from tensornet_attn.graph.hidden import counting, hider, looks
from tensornet_attn.ir.arithmetic import ONE, evaluate
from tensornet_attn.ir.steps import legs_in, with_terms
from tensornet_attn.rewrite.change import leaf, product
from tensornet_attn.tiles.legs import made_inside, quadratic, unbounded


@dataclass(frozen=True)
class StepGroup:
    """Connected steps, of a graph in primitive steps, that have values of queries x keys.

    `spread`: products of queries that are recomputed for each block.
    """

    graph: Graph
    steps: frozenset[str]
    spread: frozenset[str]

    @cached_property
    def kernels(self) -> tuple[Step, ...]:
        """A kernel for each step that reads values of queries x keys and has none itself."""
        return tuple(kernel(self.graph, step, self.spread) for step in exits(self.graph, self.steps))

    @property
    def bodies(self) -> list[tuple[Step, ...]]:
        """The steps of each kernel."""
        return [step.kernel.body for step in self.kernels if step.kernel]

    @cached_property
    def reason(self) -> str | None:
        """Why the group cannot be computed in blocks of queries; None if it can."""
        kept = self.graph.results & self.steps
        if kept:
            return f"'{sorted(kept)[0]}' has both legs and is a result of the diagram"
        for step in dict.fromkeys(step for body in self.bodies for step in body):
            if reason := _mixes(self.graph, step) or _renamed(self.graph, step):
                return reason
        return _drawn_twice(self.graph, self.bodies) or next(filter(None, map(self._counts, self.bodies)), None)

    def _counts(self, body: Sequence[Step]) -> str | None:
        """Why hidden keys would count in a product of a kernel; None if an operand can be zero there."""
        for step in body:
            for term in counting(self.graph).get(step.name, ()):
                if hider(self.graph, body, term, looks(self.graph)) is None:
                    return f"'{step.name}' sums keys, and reads no tensor in which the key mask could hide them"
        return None


def groups_of(graph: Graph, sizes: Mapping[str, int]) -> list[StepGroup]:
    """The groups of a graph in primitive steps."""
    return _groups_of(graph, tuple(sizes.items()))


@cached
def _groups_of(graph: Graph, sizes: tuple[tuple[str, int], ...]) -> list[StepGroup]:
    spread = ((frozenset(group), frozenset(spread_for(graph, group, dict(sizes)))) for group in groups(graph))
    return [StepGroup(graph, *steps) for steps in spread]


def with_kernels(graph: Graph, split: Graph, kernels: Mapping[str, Step], removed: set[str]) -> Graph:
    """The graph in which a step with parts in a kernel becomes the kernel and a product of its other parts."""
    if not kernels:
        return graph
    parts: dict[str, list[Step]] = {}
    for part in split.steps:
        parts.setdefault(part.name if part.name in graph.step else part.name.rpartition(".")[0], []).append(part)
    operands, steps = {use.name for step in kernels.values() for use in step.uses}, list[Step]()
    for step in graph.steps:
        remaining = [kernels.get(part.name, part) for part in parts[step.name] if part.name not in removed]
        steps += [step] if remaining == parts[step.name] else rejoined(remaining, operands)
    return replace(graph, steps=tuple(steps))


def rejoined(parts: Sequence[Step], operands: set[str]) -> list[Step]:
    """The parts of one split step; products that only another part reads, and no kernel, are merged into it."""
    read = {use.name for part in parts if part.contraction for use in part.uses} - operands
    alone = {part.name: term for part in parts if (term := product(part)) is not None and term.coefficient == ONE}
    products = {name: term for name, term in alone.items() if name in read}

    def factors(term: Term) -> Iterator[Use]:
        for use in term.factors:
            yield from factors(products[use.name]) if use.name in products else (use,)

    merged = []
    for step in parts:
        if step.name not in products:
            terms = [replace(term, factors=tuple(factors(term))) for term in step.terms]
            merged.append(with_terms(step, terms) if step.contraction else step)
    return merged


def groups(graph: Graph) -> list[set[str]]:
    """The steps with n x m values, grouped with those that they read and those that share a reader."""
    connected: list[set[str]] = []
    for step in graph.steps:
        wide = quadratic(graph, step.legs)
        read = step.reads
        met = [group for group in connected if group & read]
        if wide or len(met) > 1:
            members = {step.name} if wide else set[str]()
            connected = [group for group in connected if group not in met] + [members.union(*met)]
    return connected


def exits(graph: Graph, group: frozenset[str]) -> list[Step]:
    """The steps without n x m values that read a step of the group."""
    return [step for step in graph.steps if step.name not in group and group & step.reads]


def spread_for(graph: Graph, group: set[str], sizes: Mapping[str, int]) -> set[str]:
    """Products that sum no leg, have more elements than their factors, and are read by this group alone.

    Recomputing them for each block costs one multiplication per element and saves the memory for all rows.
    """
    size = {leg.name: leg.size or sizes[leg.name] for leg in graph.legs}
    kept, spread = graph.results, set[str]()
    for step in reversed(graph.steps):
        if step.name in group | kept or graph.query not in step.legs or step.contraction is None:
            continue
        unsummed = product(step) is not None and not legs_in(step.uses) - {*step.legs}
        grows = sum(prod(size[leg] for leg in use.legs) for use in step.uses) < prod(size[leg] for leg in step.legs)
        read = {reader.name for reader, _ in graph.readers.get(step.name, ())}
        if unsummed and grows and read and read <= group | spread:
            spread.add(step.name)
    return spread


def kernel(graph: Graph, step: Step, spread: Iterable[str] = ()) -> Step:
    """The kernel of an exit: the exit, all n x m values that it needs, and the `spread` products that these need."""
    wanted = {step.name}
    body: list[Step] = []
    for inner_step in reversed(graph.steps):
        if inner_step.name in wanted:
            body.insert(0, inner_step)
            inner = {use.name for use in inner_step.uses if use.name in graph.step}
            wanted |= {name for name in inner if name in spread or quadratic(graph, graph.legs_of(name))}
    inside = {inner_step.name for inner_step in body}
    uses = [leaf(graph, use) for inner_step in body for use in inner_step.uses if use.name not in inside]
    read = tuple(dict.fromkeys(use for use in uses if not made_inside(graph, use)))
    return Step(step.name, Kernel("blockwise", read, tuple(body), BlockedSteps(tuple(body[:-1]), body[-1])), step.legs)


def _mixes(graph: Graph, step: Step) -> str | None:
    """Why a step cannot run on one block of rows: it combines rows, or needs a whole unbounded leg. Otherwise None."""
    long = [leg.name for leg in graph.legs if leg.kind == "query" or unbounded(graph, leg.name)]
    if step.contraction is not None:
        summed = [leg for leg in long if leg not in step.legs and any(leg in use.legs for use in step.uses)]
        return f"'{step.name}' sums over '{summed[0]}'" if summed else None
    if step.box is None or operation_of(step).recurrent:
        return f"'{step.name}' needs all positions at once"
    met = [leg for leg in operation_of(step).legs_whole(graph, step.box) if leg in long]
    return f"'{step.name}' runs along '{met[0]}'" if met else None


def _renamed(graph: Graph, step: Step) -> str | None:
    """Why a step cannot read an n x m value: its long legs are renamed. Otherwise None."""
    for use in step.uses:
        if use.name in graph.step and quadratic(graph, source_legs := graph.legs_of(use.name)):
            for old, new in zip(source_legs, use.legs, strict=True):
                if old != new and any(graph.leg[leg].sequence or unbounded(graph, leg) for leg in (old, new)):
                    return f"'{step.name}' reads '{use.name}' with leg '{old}' renamed to '{new}'"
    return None


def _drawn_twice(graph: Graph, bodies: Sequence[Sequence[Step]]) -> str | None:
    """Why random values cannot be drawn in blocks: two places need the same values. Otherwise None."""
    for name in (tensor.name for tensor in graph.of_role("noise") if quadratic(graph, tensor.legs)):
        uses = [use for body in bodies for step in body for use in step.uses if use.name == name]
        if len(uses) > 1 or any(use.legs != graph.legs_of(name) for use in uses):
            return f"the noise '{name}' is used more than once, and each use would draw other values"
    drawn = [step.name for body in bodies for step in body if drops(graph, step)]
    twice = [name for name in drawn if drawn.count(name) > 1]
    return f"the dropout of '{twice[0]}' would be drawn separately for two results" if twice else None


def drops(graph: Graph, step: Step) -> bool:
    """Whether a step has a nonzero dropout."""
    dropout = dict(step.box.numbers).get("dropout") if step.box else None
    return dropout is not None and evaluate(dropout, graph.values) != 0


def rows_of(graph: Graph, step: Step, keys: int, device: Device) -> int:
    """The rows of a block, for this many keys and one batch element."""
    least, pairs = block_of(graph, step, device)
    return rows_in_band(graph, step, device) or max(least, pairs // max(keys, keys_of(graph, step)))


def rows_in_band(graph: Graph, step: Step, device: Device) -> int | None:
    """The rows of a block within a band, where larger blocks compute more hidden pairs; None if the length decides."""
    reach = None if device.gpu else reach_in_both(body_graph(graph, step))
    _, pairs = block_of(graph, step, device)
    keys = 1 if reach is None else max(reach.keys, keys_of(graph, step))
    return None if reach is None else max(LEAST, min(IN_BAND, pairs // keys))


def block_of(graph: Graph, step: Step, device: Device) -> tuple[int, int]:
    """The minimum rows of a block, and the query-key pairs with which its largest tensor takes the budget of bytes."""
    return LEAST, max(budget_of(device) // (4 * _widest(graph, step, True)), 1)


def keys_of(graph: Graph, step: Step) -> int:
    """The minimum number of keys to count per row, so that values without a key leg also stay within the budget."""
    return -(-_widest(graph, step, False) // _widest(graph, step, True))


def _widest(graph: Graph, step: Step, pairs: bool) -> int:
    """The most elements per query-key pair, or per query, among the tensors of a block."""
    block = step.form
    assert isinstance(block, BlockedSteps)
    shapes = [inner_step.legs for inner_step in block.inside if quadratic(graph, inner_step.legs) == pairs]
    return max((prod(size_of(graph, leg) or 1 for leg in legs) for legs in shapes), default=1)
