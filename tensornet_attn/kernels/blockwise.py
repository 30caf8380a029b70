"""Blocks of queries: steps with values of queries x keys run as a function of some rows, called block by block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, prod
from textwrap import wrap

from tensornet_attn.cost.blocks import BUDGET, IN_BAND, LEAST, BlockedSteps, bounded, reach_in, reach_in_both
from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.kernels import Parts, traits_of
from tensornet_attn.cost.order import split_best
from tensornet_attn.cost.price import scene_of, time_of_step
from tensornet_attn.cost.products import Matmul
from tensornet_attn.cost.rates import RateTable
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.seconds import CALLS, CALLS_OF_CPP, NATIVE, OF_MAPS, drawn_and_dropped, parts_inside
from tensornet_attn.cost.sizes import human
from tensornet_attn.cost.target import Target
from tensornet_attn.cost.work import KernelWork, work_of
from tensornet_attn.emit.freed import freed
from tensornet_attn.emit.functions import names as function_names
from tensornet_attn.emit.leaves import filled_text
from tensornet_attn.emit.masks import name_biases, takes_key_mask, takes_mask
from tensornet_attn.emit.names import Names
from tensornet_attn.emit.rows import BlockWriter, RowsPrinter, mask_gradient
from tensornet_attn.emit.wrap import INDENT, WIDTH, indented, tuple_text, wrapped
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.causal import areas_seen
from tensornet_attn.graph.graph import Box, Graph, Kernel, Step, Tensor, Use, body_graph
from tensornet_attn.ir.arithmetic import Number
from tensornet_attn.ir.steps import with_uses, without
from tensornet_attn.ir.values import Legs, TensorText, permuted
from tensornet_attn.kernels.blocks import (
    StepGroup,
    block_of,
    drops,
    groups_of,
    keys_of,
    rows_in_band,
    rows_of,
    with_kernels,
)
from tensornet_attn.kernels.implementation import Context, FormCost, Implementation, Lowered
from tensornet_attn.ops import OPS
from tensornet_attn.rewrite.change import leaf
from tensornet_attn.rewrite.hidden import hiding
from tensornet_attn.tiles.legs import made_inside, unbounded
from tensornet_attn.tiles.program import Node, below
from tensornet_attn.tiles.rows import RowsProgram, rows_gradients, rows_program


@dataclass(frozen=True)
class BlockOperand:
    """An argument of the function of a block: name and legs inside, expression outside, and its use."""

    name: str
    legs: Legs
    text: str
    optional: bool = False
    batched: bool = True
    use: Use | None = None

    @property
    def inner_dimensions(self) -> int | None:
        """The number of dimensions that are not batch dimensions.

        0 if the operand has no batch, -1 for a mask that may have one, None if all dimensions are batch dimensions.
        """
        if not self.batched:
            return 0
        return -1 if self.name == "mask" else len(self.legs) or None

    def place(self, leg: str | None) -> int:
        """The dimension of a leg, from the end; 0 if the operand lacks the leg."""
        return self.legs.index(leg) - len(self.legs) if leg is not None and leg in self.legs else 0


class BlockWork(KernelWork):
    """The steps inside, for one block of queries at a time."""

    @property
    def keys_met(self) -> int | None:
        graph, tiled = body_graph(self.scene.graph, self.step), block_form(self.step).tiled
        met = bounded(areas_seen(graph)) if tiled else reach_in_both(graph)
        return None if met is None else min(met.span if tiled else met.keys, self.scene.keys)

    @property
    def matmuls(self) -> list[Matmul]:
        """The products of one block of queries, and their multiply-adds in all blocks."""
        block, steps = self.block_of()
        return [
            matmul._replace(macs=runs * matmul.macs)
            for inner_step, runs in steps
            for matmul in work_of(block, inner_step).matmuls
        ]

    @property
    def gradient_macs(self) -> int:
        inner = self.inner if self.keys_met is None else self.inner.at({self.scene.key: self.keys_met})
        works = [work_of(inner, step) for step in self.inner_steps]
        return self.learned * sum(self.programs_alike(work.step.legs) * work.gradient_macs for work in works)

    def seconds(self, table: RateTable, backward: bool) -> Parts:
        """The steps inside for each block; with a backward, again, and their gradients."""
        by_kind: defaultdict[str, float] = defaultdict(float)
        learned = backward and self.learned
        (block, steps), graph = self.block_of(), self.scene.graph
        table = replace(table, maps=()) if traits_of(self.step).native else table
        seen, call = self._seen(block), table.call[learned]
        wide = {leg.name for leg in graph.legs if leg.name == graph.key or leg.kind == "relative"}
        for inner_step, runs in steps:
            all_legs = (inner_step.legs, *(use.legs for use in inner_step.uses))
            inner = seen if any(graph.query in legs and wide & {*legs} for legs in all_legs) else block
            for again in (False, True) if learned else (False,):  # a backward computes a block again
                for kind, seconds in parts_inside(inner, inner_step, table, again).items():
                    by_kind[self._kind(kind)] += runs * seconds
                by_kind[OF_MAPS] += runs * drawn_and_dropped(inner, inner_step, table, backward)
        if traits_of(self.step).native:
            del by_kind["call"], by_kind[OF_MAPS]
            by_kind[f"{NATIVE} calls"] += CALLS_OF_CPP * call
            return by_kind
        blocks = max((runs for _, runs in steps), default=1.0)
        by_kind["blockwise calls"] += CALLS * call * blocks
        return by_kind

    def scratch(self, device: Device) -> tuple[int, int]:
        """All values of a block with a query leg, unless it is computed in tiles."""
        scene, step = self.scene, self.step
        form = block_form(step)
        if form.tiled:
            return super().scratch(device)
        query, keys, batch = scene.query, scene.keys, self.batch
        rows = min(rows_of(scene.graph, step, keys * batch, device), scene.sizes[query])
        values = sum(scene.size(leg for leg in inner_step.legs if leg != query) for inner_step in form.inside)
        return (batch * rows * values,) * 2

    def _kind(self, kind: str) -> str:
        """The kind of a part that is computed in blocks."""
        if traits_of(self.step).native:
            return {"product": NATIVE, "call": "call"}.get(kind, f"{NATIVE} passes")
        return "blockwise" if kind in ("product", "call") else kind

    def block_of(self) -> tuple[SizedGraph, list[tuple[Step, float]]]:
        """The scene of one block of queries, and the steps inside with the number of times they run."""
        scene, step = self.scene, self.step
        form, inner, steps = block_form(step), self.inner, self.inner_steps
        query, key = scene.query, scene.key
        met = self.keys_met
        keys = scene.sizes[key] if met is None else met
        pairs = [inner_step.legs for inner_step in form.inside if {query, key} <= {*inner_step.legs}]
        widest = max((scene.size({*legs} - {query, key}) for legs in pairs), default=1)
        rows = max(LEAST, BUDGET // max(1, 4 * widest * keys * self.batch))
        rows = rows if form.tiled or met is None else min(rows, IN_BAND)
        rows = max(1, min(scene.sizes[query], rows))
        calls = scene.sizes[query] / rows
        block = _that_sees(inner.at({query: rows}), keys)
        runs = []
        for inner_step in steps:
            legs = (*inner_step.legs, *(leg for use in inner_step.uses for leg in use.legs))
            runs.append(self.programs_alike(legs) * (calls if query in legs else 1.0))
        return block, [*zip(steps, runs, strict=True)]

    def _seen(self, block: SizedGraph) -> SizedGraph:
        """A block with the keys that its blocks read on average: if it is causal, none after the last query."""
        scene, step = self.scene, self.step
        query, key = scene.query, scene.key
        n, m = scene.sizes[query], scene.sizes[key]
        after = reach_in(body_graph(scene.graph, step))[1]
        if n != m or after is None or after > 0:
            return block
        met = self.keys_met or m
        share = min(1.0, (m - met + (met + block.sizes[query]) / 2) / m)
        return _that_sees(block, max(1, round(share * block.sizes[key])))


class InBlocks(Implementation[StepGroup]):
    """An implementation that computes steps for one block of queries at a time."""

    work = BlockWork


class BlockwiseQueries(InBlocks):
    """Groups of steps with query and key legs that no earlier row computes, if blocks save enough memory."""

    name, kind, opaque, stepwise = "blocks of queries", "blockwise", True, True

    def unsupported(self, form: StepGroup, context: Context) -> tuple[str, ...]:
        reason = form.reason or (None if self.name in context.forced else too_small(form, context))
        return () if reason is None else (reason,)

    def cost(self, form: StepGroup, context: Context) -> FormCost:
        """The time of blocks, with recomputation in the backward, and that of the separate steps."""
        scene, target = scene_of(form.graph, context.sizes, context.target), context.target
        steps = dict.fromkeys(step for body in form.bodies for step in body)
        apart = sum(time_of_step(scene, step, target) for step in steps)
        in_blocks = sum(time_of_step(scene, step, target) for step in form.kernels)
        pairs = {leg for leg in (form.graph.query, form.graph.key) if leg}
        stored = sum(target.bytes * scene.elements(step) for step in steps if pairs <= {*step.legs})
        but = "with recomputation in the backward, they would take"
        why = f"which saves {human(stored)}B of {form.graph.query} x {form.graph.key} elements"
        return FormCost(in_blocks, apart, but, accepted_slowdown(stored, target), why)

    def emit(self, writer: Writer, step: Step) -> None:
        emit_blockwise(writer, step)

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        split, _ = split_best(graph, context.sizes, context.device)
        chosen, refused, costs, removed = dict[str, str](), dict[str, tuple[str, ...]](), dict[str, str](), set[str]()
        kernels: dict[str, Step] = {}
        for group in groups_of(split, context.sizes):
            reasons, cost = self.judged(group, context)
            if reasons:
                refused |= {name: reasons for name in group.steps if not split.step[name].nested}
                continue
            removed |= group.steps | group.spread
            kernels |= {step.name: step for step in group.kernels}
            for step in group.kernels:
                query, keys = (context.sizes[str(leg)] for leg in (graph.query, graph.key))
                count = min(rows_of(split, step, keys, context.device), query)
                rows = f"blockwise: {count} queries at a time, recomputed in the backward"
                chosen[step.name] = f"{rows}, without a tensor of {graph.query} x {graph.key} elements"
                costs |= {} if cost is None else {step.name: str(cost)}
        return Lowered(with_kernels(graph, split, kernels, removed), chosen, refused, costs)


BLOCKWISE = BlockwiseQueries()


def too_small(group: StepGroup, context: Context) -> str | None:
    """Why blocks do not pay off: they save no more elements than their operands have. None if they do."""
    sizes = {leg.name: leg.size or context.sizes[leg.name] for leg in group.graph.legs}
    steps = dict.fromkeys(step for body in group.bodies for step in body[:-1])
    spared = sum(prod(sizes[leg] for leg in step.legs) for step in steps)
    kept = sum(prod(sizes[leg] for leg in use.legs) for use in {use for step in group.kernels for use in step.uses})
    return None if spared > kept else f"blocks would save {spared:,} elements, no more than the {kept:,} of operands"


def accepted_slowdown(stored: float, target: Target) -> float:
    """How many times as long blocks may take as steps that store tensors of queries x keys of so many bytes.

    These bytes grow with the square of the length, and a call for which there is no memory fails; time is only lost. So
    without a limit of memory, more than 4 GiB are never stored. Measured rates store none either in a layer without a
    length of its own, which is called with longer sequences too; at a length that was asked for, they store up to 64
    MiB if that is faster. Otherwise blocks may take up to 1.25 times as long; on a GPU, where products take most of the
    time, 1.34 times: computing the forward again in the backward is 4 / 3 of the FLOPs.
    """
    measured, asked = target.device.measured, target.n is not None
    if target.memory is None and (stored > 2**32 or (measured and not asked)):
        return inf
    if measured and asked and stored <= 2**26:
        return 1.0
    return 1.34 if target.device.gpu else 1.25


def block_form(step: Step) -> BlockedSteps:
    """The steps of a kernel that is computed in blocks."""
    assert isinstance(step.form, BlockedSteps)
    return step.form


def _that_sees(block: SizedGraph, keys: int) -> SizedGraph:
    """A block of queries that sees so many keys, at as few relative positions."""
    relative = [leg.name for leg in block.graph.legs if leg.kind == "relative" and leg.size is None]
    return block.at({block.key: keys, **dict.fromkeys(relative, block.sizes[block.query] + keys - 1)})


def emit_blockwise(
    writer: Writer, step: Step, cpp: Callable[[str, list[BlockOperand], Legs], str] | None = None
) -> None:
    """Emits the call; the functions of a block, forward and backward, are added beside the class.

    `cpp`: registers C++ for the same function, operands and result, and returns its name.
    """
    op = step.kernel
    assert op is not None
    reach = reach_in(body_graph(writer.graph, step))
    nearby = reach[0] is not None
    inner, operands = _inside(writer, step, op, nearby)
    program = rows_program(inner.graph)
    result_legs = _forward(inner, program, step)
    local, block = writer.local[step.name], _block(writer, step)
    tile = writer.names.fresh(f"{local}_rows")
    functions = []
    if not writer.plain:  # autograd differentiates plain code
        backward, _ = _inside(writer, step, op, nearby, inner.sizes)
        functions.append(_gradient(tile, backward, operands, _backward(backward, program, operands, result_legs)))
        writer.functions |= backward.functions
    functions.insert(0, _function(tile, inner, operands, op, result_legs, reach))
    writer.functions |= inner.functions | {"\n\n\n".join(functions)}
    arguments = _arguments(writer, inner, operands, tile, block)
    function, how = "blockwise", "blockwise"
    if cpp is not None:
        function, how = "blockwise_in_cpp", "C++ kernels"
        arguments.insert(0, cpp(tile, operands, result_legs))
    writer.about(f"{', '.join(op.steps)}: {how}, recomputed in the backward")
    writer.named(step.name, writer.call(function, *arguments), result_legs)


def _forward(inner: BlockWriter, program: RowsProgram, step: Step) -> Legs:
    """Writes the lines of the forward and returns the legs of the result."""
    printer = RowsPrinter(inner, program, [program.result], {})
    printer.print(program.result)
    inner.values[step.name] = printer.value(program.result)
    legs = inner.values[step.name].legs
    inner.output(step.name, legs)
    name_biases(inner)
    return legs


def _backward(inner: BlockWriter, program: RowsProgram, operands: list[BlockOperand], result_legs: Legs) -> list[str]:
    """Writes the lines of the backward and returns the gradient of each operand as an expression."""
    grads: dict[str, list[tuple[Node, Node]]] = {}
    for node, grad in rows_gradients(program):
        grads.setdefault("mask" if node.op == "bias" else inner.local[node.name], []).append((node, grad))
    legs = {operand.name: operand.legs for operand in operands if operand.name != "mask"}
    wanted = {grad: (name, legs[name]) for name, ((_, grad), *others) in grads.items() if not others and name in legs}
    ends = [grad for operand in operands for _, grad in grads.get(operand.name, ())]
    # earlier gradients first, to free memory
    ends = [*program.drawn, *sorted(ends, key=lambda grad: len(below([grad])))]
    printer = RowsPrinter(inner, program, ends, wanted)
    gradient = next(node for node in program.nodes.interned.values() if node.op == "gradient")
    printer.values[gradient] = TensorText(inner.names.fresh("gradient"), result_legs, True)
    masks = {grad: mask for mask, grad in grads.pop("mask", ())}
    mask_gradients, expressions = list[str](), list[str]()
    for end in ends:
        printer.print(end)
        if end in masks and not mask_gradients:
            mask_gradients = [mask_gradient(inner, mask.data[0], printer.value(grad)) for grad, mask in masks.items()]
            inner.line(f'd_mask = {" + ".join(mask_gradients)} if "mask" in wanted else None')
    for operand in operands:
        terms = [printer.value(grad).aligned(operand.legs, whole=True).text for _, grad in grads.get(operand.name, ())]
        expressions.append(" + ".join(terms) or ("d_mask" if operand.name == "mask" and mask_gradients else "None"))
    name_biases(inner)
    inner.groups = freed(inner.groups[:1], {*program.nodes.order}, ", ".join(expressions))
    return expressions


def _block(writer: Writer, step: Step) -> tuple[int, ...]:
    graph, device = writer.graph, writer.target.device
    keys, (least, pairs), rows = keys_of(graph, step), block_of(graph, step, device), rows_in_band(graph, step, device)
    if rows:
        return rows, pairs, keys, rows
    return (least, pairs, keys) if keys > 1 else (least, pairs)


def _inside(
    writer: Writer, step: Step, op: Kernel, nearby: bool, sizes: list[str] | None = None
) -> tuple[BlockWriter, list[BlockOperand]]:
    """The writer of a function, with its leaves bound, and the operands.

    `nearby`: a block may lack the first keys; `sizes`: legs whose sizes are arguments of the call.
    """
    graph, taken = writer.graph, set(writer.local.values())
    leaves: dict[Use, Tensor] = {}
    for use in dict.fromkeys(
        leaf(graph, use) for inner_step in op.body for use in inner_step.uses if use.name not in op.steps
    ):
        name = writer.local[use.name]
        while name in {tensor.name for tensor in leaves.values()}:
            name = f"{name}_"
        leaves[use] = _leaf(writer, use, name, taken)

    def on_leaves(use: Use) -> Use:
        return use if use.name in op.steps else Use(leaves[leaf(graph, use)].name, use.legs)

    steps = [primitive for inner_step in op.body for primitive in _parts(graph, with_uses(inner_step, on_leaves))]
    inner_graph = hiding(replace(graph, tensors=tuple(leaves.values()), steps=tuple(steps), output=step.name))
    inner = BlockWriter(
        inner_graph, Names(function_names() | {"rows", "wanted"}), [[]], sizes=[] if sizes is None else sizes
    )
    inner.nearby, inner.cancelling, inner.plain = nearby, writer.cancelling, writer.plain
    inner.lengths = {leg.name: f"rows.{'n' if leg.kind == 'query' else 'keys'}" for leg in graph.legs if leg.sequence}
    return inner, _operands(writer, inner, leaves)


def _leaf(writer: Writer, use: Use, name: str, taken: set[str]) -> Tensor:
    """A value from outside as a tensor of the inner graph."""
    if made_inside(writer.graph, use):
        return replace(writer.graph.tensor[use.name], name=name)
    return Tensor(name, "input" if writer.value(use).batched else "weight", use.legs)


def _parts(graph: Graph, step: Step) -> list[Step]:
    """Splits a box with dropout into the box and the dropout."""
    box = step.box
    if box is None or OPS[box.kind].scales or not drops(graph, step):
        return [step]
    before = Step(f"{step.name}.whole", box, step.legs)
    numbers = tuple((name, Number(0) if name == "dropout" else number) for name, number in box.numbers)
    before = replace(before, op=replace(box, numbers=numbers))
    dropout = Box("dropout", None, (("of", Use(before.name, step.legs)),), (("dropout", box.number("dropout")),))
    return [before, replace(step, op=dropout)]


def _operands(writer: Writer, inner: BlockWriter, leaves: dict[Use, Tensor]) -> list[BlockOperand]:
    """The operands, masks last; binds the values of the leaves."""
    operands, later = [], []
    for use, tensor in leaves.items():
        local = inner.local[tensor.name]
        if tensor.role in ("input", "weight"):
            legs = _layout(inner.graph, tensor)
            expression, batched = writer.value(use).arranged(legs).text, tensor.role == "input"
            operands.append(BlockOperand(local, legs, expression, batched=batched, use=use))
            inner.values[tensor.name] = TensorText(local, legs, batched)
        elif tensor.role == "noise":
            later.append(
                BlockOperand(local, use.legs, f'None if noise is None else noise.get("{use.name}")', True, use=use)
            )
    if not operands:  # tensors created inside need a template for dtype and device
        inner.spare = inner.names.diagram_name("like")
        operands.append(BlockOperand(inner.spare, (), writer.like.text, batched=False))
    for tensor in leaves.values():
        if tensor.role == "noise":
            _noise(inner, tensor)
        elif tensor.role == "constant":
            _constant(inner, tensor)
    pair = (inner.graph.query, str(inner.graph.key))
    if takes_mask(inner.graph):
        later.append(BlockOperand("mask", pair, "mask" if takes_mask(writer.graph) else "None", True))
    if takes_key_mask(inner.graph):
        later.append(BlockOperand("key_mask", pair[1:], "key_mask", True))
    return operands + later


def _layout(graph: Graph, tensor: Tensor) -> Legs:
    """Heads, then the sequence leg, then the width: the first product of the tensor needs no permutation."""
    long = tuple(leg for leg in tensor.legs if graph.leg[leg].sequence or unbounded(graph, leg))
    step, use = next((step, use) for step in graph.steps for use in step.uses if use.name == tensor.name)
    others = {leg for factor in step.uses if factor is not use for leg in factor.legs}
    if len(long) != 1 or step.contraction is None or not others or use.legs != tensor.legs:
        return tensor.legs
    heads = tuple(leg for leg in tensor.legs if leg in step.legs and leg in others and leg not in long)
    return heads + long + without(tensor.legs, *heads + long)


def _noise(inner: BlockWriter, tensor: Tensor) -> None:
    local, like = inner.local[tensor.name], inner.like.text
    shape = ", ".join([inner.batch_shape, *map(inner.block_size, tensor.legs)])
    draw = "True" if tensor.always else "rows.training"
    expression = inner.call("noise_rows", local, f"({shape})", inner.number(tensor.std), draw, "rows", like)
    inner.values[tensor.name] = TensorText(local, tensor.legs, True)
    inner.line(f"{local} = {expression}", inner.values[tensor.name])


def _constant(inner: BlockWriter, tensor: Tensor) -> None:
    assert tensor.init is not None
    local, like, graph = inner.local[tensor.name], inner.like.text, inner.graph
    if tensor.init.name == "distance":
        expression = inner.call("distance_rows", "rows") + f".to({like}.dtype)"
        expression = permuted(expression, (graph.query, str(graph.key)), tensor.legs)
    else:
        options = f"device={like}.device, dtype={like}.dtype"
        expression = filled_text(inner, tensor.init, list(map(inner.block_size, tensor.legs)), options)
    inner.values[tensor.name] = TensorText(local, tensor.legs, False)
    inner.line(f"{local} = {expression}", inner.values[tensor.name])


def _arguments(
    writer: Writer, inner: BlockWriter, operands: list[BlockOperand], tile: str, block: tuple[int, ...]
) -> list[str]:
    """The arguments of the call of `blockwise`."""
    expressions = [operand.text for operand in operands]
    arguments = [tile, f"[{', '.join(expressions)}]", *writer.lengths_of_pair, f"({writer.batch_shape},)", str(block)]
    always = any(tensor.role == "noise" and tensor.always for tensor in inner.graph.tensors)
    if "drawn_rows" in inner.functions or "noise_rows" in inner.functions:
        arguments += ["self.training", "True" if always else "self.training"]
    if inner.sizes:
        arguments.append(f"sizes={tuple_text(map(writer.size, inner.sizes))}")
    return arguments


def _function(
    tile: str,
    inner: BlockWriter,
    operands: list[BlockOperand],
    op: Kernel,
    result_legs: Legs,
    reach: tuple[int | None, ...],
) -> str:
    """The source of the function of a block."""
    graph = inner.graph
    rows = [operand.place(graph.query) for operand in operands]
    relative = next((leg.name for leg in graph.legs if unbounded(graph, leg.name)), None)
    spans = [operand.place(relative) for operand in operands]
    options = [f"rows={tuple_text(rows)}", f"out={result_legs.index(graph.query) - len(result_legs)}"]
    options += [f"spans={tuple_text(spans)}"] if any(spans) else []
    keys = [operand.place(graph.key) for operand in operands]
    limited = any(keys) and reach != (None, None, 0)
    options += [f"keys={tuple_text(keys)}"] if limited else []
    options += [f"reach={reach}"] if limited and reach != (None, 0, 0) else []
    options += [f"legs={tuple_text(operand.inner_dimensions for operand in operands)}"]
    parameters = [f"{operand.name}: Tensor{' | None' if operand.optional else ''}" for operand in operands]
    shapes = [f"{operand.name} [{' '.join(operand.legs)}]" for operand in operands if not operand.optional]
    about = f"{', '.join(op.steps)} for a block of rows: {', '.join(shapes)} -> [{' '.join(result_legs)}]."
    head = wrapped(f"def {tile}({', '.join(['rows: Rows', *parameters])}) -> Tensor:", 0)
    decorator = wrapped(f"@block_function({', '.join(options)})", 0)
    return "\n".join([*decorator, *head, *_body(inner, about, inner.groups[0])])


def _gradient(tile: str, inner: BlockWriter, operands: list[BlockOperand], gradients: list[str]) -> str:
    """The source of its backward."""
    names = ["rows", "gradient", "wanted", *(operand.name for operand in operands)]
    head = wrapped(f"def {tile}_backward({', '.join(names)}):", 0)
    lines = [*inner.groups[0], f"return {tuple_text(gradients)[1:-1]}"]
    about = f"Gradients of the `wanted` operands, given the `gradient` of `{tile}`."
    return "\n".join([f"@block_gradient({tile})", *head, *_body(inner, about, lines)])


def _body(inner: BlockWriter, about: str, lines: list[str]) -> list[str]:
    """The body of a function of a block, indented."""
    names = [inner.size_names.get(leg, "_") for leg in inner.sizes]
    sizes = [f"{tuple_text(names)} = rows.sizes"] if inner.size_names else []
    docstring = wrap(f'"""{about}"""', WIDTH - len(INDENT))
    return indented([*docstring, *(row for statement in [*sizes, *lines] for row in wrapped(statement, len(INDENT)))])
