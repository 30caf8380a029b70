"""Regions of queries x keys as Triton kernels: the regions, the orders of their products, and the call.

# A.of = Q K;  A = softmax over m of A.of;  y.p1 = A V;  y = y.p1 Wo     ->     y.p1 = tiles(Q, K, V);  y = y.p1 Wo
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import fsum, inf, prod

from tensornet_attn.cost.blocks import BlockedSteps
from tensornet_attn.cost.devices import DEVICES
from tensornet_attn.cost.kernels import KERNELS
from tensornet_attn.cost.order import order, split_best
from tensornet_attn.cost.price import scene_of
from tensornet_attn.cost.work import work_of
from tensornet_attn.emit.functions import names as function_names
from tensornet_attn.emit.masks import takes_mask
from tensornet_attn.emit.triton.kernels import kernels
from tensornet_attn.emit.triton.region import TritonRegion
from tensornet_attn.emit.wrap import INDENT, WIDTH, filled, indented
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.pairs import BATCH, Legs, Path, split_products
from tensornet_attn.ir.steps import within
from tensornet_attn.kernels.blocks import StepGroup, groups_of, with_kernels
from tensornet_attn.kernels.blockwise import BlockWork, InBlocks
from tensornet_attn.kernels.implementation import Context, Lowered
from tensornet_attn.tiles.build import tile_program
from tensornet_attn.tiles.derive import gradients
from tensornet_attn.tiles.legs import MOST, sides_of
from tensornet_attn.tiles.program import Program, TileOperand, Unfit, below, structure


class TileWork(BlockWork):
    """Tiles in programs, each of which computes what its tiles share."""

    def programs_alike(self, legs: Legs) -> int:
        assert self.step.kernel is not None
        heads, _, _ = sides_of(self.scene.graph, self.step.kernel, KERNELS[self.step.kernel.kind].most)
        return prod(self.scene.sizes[leg] // tiles for leg, tiles in heads.items() if leg not in legs)


class TilePrograms(InBlocks):
    """Groups of steps with values of queries x keys that a tile program can compute, on the triton backend."""

    name, kind, opaque, work = "Triton kernels", "tiles", True, TileWork
    most = MOST  # tiles of a leg in one program

    def fit(self, graph: Graph, step: Step) -> Program:
        """The program of a kernel. Raises Unfit."""
        program = tile_program(graph, step)
        if running := next((node for node in below([program.exit.maps]) if node.op == "running"), None):
            raise Unfit(f"Triton kernels have no sums that run along keys, as '{running.name}' does")
        gradients(program)
        return program

    def as_kernel(self, step: Step) -> Step:
        """A kernel of blocks of queries as one of this kind."""
        assert step.kernel is not None
        assert isinstance(step.form, BlockedSteps)
        return replace(step, op=replace(step.kernel, kind=self.kind, form=replace(step.form, tiled=True)))

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        sizes = context.sizes
        orders = [split_products(graph, partial(_weights_first, graph), sizes)]
        orders += [split_best(graph, sizes, priced)[0] for priced in (DEVICES["flops"], context.device)]
        chosen, refused, exits, removed = dict[str, str](), dict[str, tuple[str, ...]](), dict[str, Step](), set[str]()
        by_work = sorted(dict.fromkeys(orders), key=lambda split: self.operations(split, context))
        best = next(
            (split for split in by_work if all(self.fits(group) for group in groups_of(split, sizes))), orders[0]
        )
        for group in groups_of(best, sizes):
            (reasons, _), kernels = self.judged(group, context), group.kernels
            verdicts = {step.name: reasons[0] if reasons else self.reason(group, step) for step in kernels}
            against = {name: reason for name, reason in verdicts.items() if reason}
            none = len(against) == len(kernels)
            for step in kernels:
                if reason := against.get(step.name):
                    named = (*(group.steps if none else ()), step.name)
                    refused |= {
                        name: (reason,) for name in named if name not in group.steps or not best.step[name].nested
                    }
            if none:
                continue
            removed |= group.steps | group.spread
            exits |= {step.name: step if step.name in against else self.as_kernel(step) for step in group.kernels}
            chosen |= {name: f"blockwise, some queries at a time: {reason}" for name, reason in against.items()}
            accepted = [step for step in group.kernels if step.name not in against]
            chosen |= {step.name: self.describe(best, step, context) for step in accepted}
        return Lowered(with_kernels(graph, best, exits, removed), chosen, refused)

    def on_triton(self, form: object) -> bool:
        return True

    def reason(self, group: StepGroup, step: Step) -> str | None:
        """Why a kernel of a group cannot be of this kind; None if it can."""
        if group.reason:
            return group.reason
        try:
            self.fit(group.graph, step)
        except Unfit as error:
            return str(error)
        return None

    def fits(self, group: StepGroup) -> bool:
        """Whether each kernel of a group has a program."""
        try:
            return all(self.fit(group.graph, step) for step in group.kernels)
        except Unfit:
            return False

    def operations(self, graph: Graph, context: Context) -> float:
        """FLOPs and elementwise operations of the kernels; infinite if one has no tiles."""
        scene, groups = scene_of(graph, context.sizes, context.target), groups_of(graph, context.sizes)
        try:
            return fsum(work_of(scene, self.as_kernel(step)).operations for group in groups for step in group.kernels)
        except Unfit:
            return inf

    def describe(self, graph: Graph, step: Step, context: Context) -> str:
        program = self.fit(graph, step)
        beside = " x ".join(f"{tiles} {leg}" for leg, tiles in program.heads.items() if tiles > 1)
        tiles = f", {beside} tiles per program" if beside else ""
        return f"{self.name}{tiles}: no tensor of {program.query} x {program.key} elements"

    def emit(self, writer: Writer, step: Step) -> None:
        """Emits the call; the kernels are added beside the class, unless an earlier call has the same."""
        assert step.kernel is not None
        graph, program = writer.graph, tile_program(writer.graph, step)
        program_structure = structure(program)
        region = next((region for earlier, region in writer.regions if earlier == program_structure), None)
        if region is None:
            name = writer.names.fresh(f"{writer.local[step.name]}_tiles")
            region = TritonRegion(graph, program, name, ", ".join(step.kernel.steps), function_names())
            writer.regions.append((program_structure, region))
            if program.sums_powers:
                region.biased = _biased(writer, step, region)
            regions = [variant for variant in (region.biased, region) if variant is not None]
            writer.functions |= {
                "region",
                "tiled",
                "\n\n\n".join(_source(variant, kernels(variant)) for variant in regions),
            }
        writer.about(f"{', '.join(step.kernel.steps)}: Triton kernels, recomputed in the backward")
        writer.named(step.name, writer.call("tiled", *_arguments(writer, region, program)), program.legs)


TRITON = TilePrograms()


def _weights_first(graph: Graph, factors: Sequence[Legs], product_legs: Legs, sizes: Mapping[str, int]) -> Path:
    """The best order after weights have been multiplied with each other, so that a kernel reads two cores as one."""
    waiting, pairs = list(factors), list[tuple[int, int]]()
    outside = {BATCH, *(leg.name for leg in graph.legs if leg.sequence or leg.kind == "relative")}
    while len(waiting) > 2 and (pair := _sharing(waiting, outside)):
        both = [waiting.pop(i) for i in reversed(pair)]
        needed = {*product_legs, *(leg for legs in waiting for leg in legs)}
        waiting.append(within(dict.fromkeys(both[1] + both[0]), needed))
        pairs.append(pair)
    places = sorted(range(len(waiting)), key=lambda i: not outside & {*waiting[i]})  # of equal orders, weights last
    path = order([waiting[i] for i in places], product_legs, sizes, DEVICES["flops"]).path
    return [*pairs, *_permuted(path, places)]


def _permuted(path: Path, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """A path for factors in another order: factor i of the path is at places[i]."""
    in_path, in_order = [*places], [*range(len(places))]
    for number, (i, j) in enumerate(path, len(places)):
        pair = in_path[i], in_path[j]
        in_path = [factor for factor in in_path if factor not in pair] + [number]
        yield min(map(in_order.index, pair)), max(map(in_order.index, pair))
        in_order = [factor for factor in in_order if factor not in pair] + [number]


def _sharing(factors: Sequence[Legs], outside: set[str]) -> tuple[int, int] | None:
    """Two factors that share a leg and have no leg in `outside`."""
    inner = [i for i, legs in enumerate(factors) if not outside & {*legs}]
    return next(((i, j) for i, j in combinations(inner, 2) if {*factors[i]} & {*factors[j]}), None)


def _biased(writer: Writer, step: Step, region: TritonRegion) -> TritonRegion:
    """The region for calls with a float mask; coefficients are those of both."""
    program, name = tile_program(writer.graph, step, biased=True), writer.names.fresh(f"{region.name}_biased")
    kernels(region)
    return TritonRegion(
        writer.graph, program, name, f"{region.about}, with a float mask", function_names(), region.numbers
    )


def _arguments(writer: Writer, region: TritonRegion, program: Program) -> list[str]:
    graph = writer.graph
    operands = ", ".join(_operand(writer, program, operand) for operand in program.operands)
    arguments = [region.name, f"[{operands}]", *writer.lengths_of_pair, f"({writer.batch_shape},)"]
    arguments += ["mask" if program.masks and takes_mask(graph) else "None", "key_mask" if program.masks else "None"]
    numbers = [writer.number(tree, traced=False) for tree in region.numbers]
    arguments += [f"[{', '.join(numbers)}]"] if numbers else []
    if region.random:
        always = any(tensor.always for tensor in graph.of_role("noise"))
        arguments.append(f"training={'True' if always else 'self.training'}")
    return arguments


def _operand(writer: Writer, program: Program, operand: TileOperand) -> str:
    tensor = writer.graph.tensor.get(operand.use.name)
    if tensor is not None and tensor.role == "noise" and operand.axes == (program.query, program.key):
        order = tuple(operand.use.legs.index(leg) for leg in operand_legs(program, operand))
        return writer.call("given_noise", "noise", f'"{operand.use.name}"', str(order))
    return writer.value(operand.use).arranged(operand_legs(program, operand)).text


def operand_legs(program: Program, operand: TileOperand) -> tuple[str, ...]:
    """The legs of an operand in the order in which kernels read it: heads, sequence, width."""
    axis_legs = [leg for axis in operand.axes for leg in program.widths.get(axis, (axis,))]
    return (*operand.heads, *axis_legs)


def _source(region: TritonRegion, sources: dict[str, str]) -> str:
    """The kernels, and their registration for `tiled`."""
    program = region.program
    operands = dict(zip(region.operands, program.operands, strict=True))
    map_ops = [node.op for node in program.maps for _ in range(program.tiles(node.heads))]  # of each tile
    sizes = {leg: size_of(region.graph, leg) for leg in program.heads}
    left, right = region.reach()
    settings = {
        "sides": (program.query, program.key),
        "operands": {name: " ".join(operand_legs(program, operand)) for name, operand in operands.items()},
        "heads": program.heads,
        "widths": {axis: " ".join(width_legs) for axis, width_legs in program.widths.items()},
        "result": " ".join(program.legs),
        "others": " ".join(program.others),
        "sizes": sizes,
        "reads": region.reads,
        "live": region.live,
        "whole": within(program.heads, program.whole),
        "relative": "".join(program.relative),
        "tables": tuple(name for name, operand in operands.items() if operand.table),
        "normalized": tuple(i for i, op in enumerate(map_ops) if op == "normalize"),
        "log": program.exit.log,
        "random": region.random,
        "noise": tuple(region.operands[i] for i in region.noise),
        "loops": region.loops,
        "sums": {kind: count for kind, count in region.sums.items() if count},
        **{
            name: {kind: " ".join(names) for kind, names in getattr(region, name).items() if names}
            for name in ("accumulators", "resident", "streamed", "temporaries")
        },
        "band": left + right + 1 if left is not None and right is not None else 0,
    }
    arguments = [
        f'f"{{__name__}}.{region.name}"',
        *(f"{name}={setting!r}" for name, setting in settings.items() if setting),
        f"kernels={{{', '.join(f'{kind!r}: {region.name}_{kind}' for kind in sources)}}}",
    ]
    if region.biased is not None:
        arguments.append(f"biased={region.biased.name}")
    lines = indented(filled((f"{argument}," for argument in arguments), WIDTH - len(INDENT)))
    call = "\n".join([f"{region.name} = region(", *lines, ")"]).replace("'", '"')
    return "\n\n\n".join([*sources.values(), call])
