"""What a module does when it runs, to compare with what `cost/` predicts: every operation that torch dispatches.

A module with the torch plan runs in training, at small sizes, without masks, as long calls run: shortcuts of short
calls, and products by oneDNN, are off. Custom operations are entered: their implementation is counted.

    multiply-adds   matrix products by the shapes of their operands; products that are added up, by `sum` or by rows;
                    torch's fused attention and convolution by formula
    backward        multiply-adds of the backward, without scores that torch's fused attention computes again
    bytes           tensors read and written by operations that make no view; of a custom operation, its operands and
                    results, because its blocks stay in the cache
    saved           numbers in distinct memories that autograd keeps, those that Functions save included, without
                    weights, buffers, and constants, which depend on no input, weight or random number

Kernels in C++ and Triton do not run: each node of their tile programs, forward and backward, counts once for each
program.

`python -m tests.cost.oracle NAME N M` prints both sides, by steps and by lines of the module.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from traceback import walk_stack
from typing import Any, NamedTuple
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import tensornet_attn as ta
from tensornet_attn.cost.blocks import BlockedSteps
from tensornet_attn.cost.kernels import traits_of
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.sizes import sizes_at
from tensornet_attn.cost.work import saved, work_of
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.kernels.tiles import TilePrograms
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.runtime import blockwise, decay, maps, operations, products, tiled_linear
from tensornet_attn.tiles.derive import gradients
from tensornet_attn.tiles.program import Node, Program, below

BATCH = 2
WIDTH = 4  # bytes of a float32
EMITTED = "<tensornet"  # how names of files of emitted modules begin
aten = torch.ops.aten


class Counts(NamedTuple):
    """Multiply-adds, bytes read and written, numbers saved for the backward, and its multiply-adds."""

    macs: int = 0
    bytes: int = 0
    saved: int = 0
    backward: int = 0

    def __add__(self, other: object) -> Counts:
        assert isinstance(other, Counts)
        return Counts(*map(sum, zip(self, other, strict=True)))


def layer(name: str) -> CompiledDesign:
    """The shipped design with its torch plan, in training."""
    return ta.compile(name, backend="torch").train()


def scene_at(schedule: Graph, n: int, m: int) -> SizedGraph:
    """A plan in primitive steps and kernels, at these lengths of the sequence legs, none above its maximum."""
    graph = split_products(schedule)
    lengths = {graph.query: n, graph.key: n if graph.tied else m}
    most = {leg: min(length, graph.leg[leg].maximum or length) for leg, length in lengths.items() if leg}
    return SizedGraph(graph, sizes_at(graph, most), BATCH)


def predicted(scene: SizedGraph) -> dict[str, Counts]:
    """The work of each step of a plan; memory that several steps save counts for the first."""
    work, known = dict[str, Counts](), set[str]()
    for step in scene.graph.steps:
        floats, of_step = saved(scene, step), work_of(scene, step)
        new = sum(floats[name] for name in floats.keys() - known)
        known |= floats.keys()
        work[step.name] = Counts(of_step.macs, WIDTH * of_step.moved, new, of_step.gradient_macs + again(scene, step))
    return work


def of_nodes(scene: SizedGraph) -> dict[str, Counts]:
    """The multiply-adds of each kernel in C++ or Triton, by the nodes of its tile programs, each node once."""
    work = dict[str, Counts]()
    for step in scene.graph.steps:
        if isinstance(kernel := traits_of(step), TilePrograms):
            program, few = kernel.fit(scene.graph, step), with_keys_met(scene, step)
            grads = gradients(program)
            leaves = [(load, gradient) for load, gradient in grads.leaves if load.name in few.learned]
            ends = [gradient for _, gradient in (*grads.totals, *leaves, *grads.maps)]
            programs = BATCH * prod(scene.sizes[leg] // tiles for leg, tiles in program.heads.items())
            forward, backward = (
                programs * sum(multiplied(few, program, node) for node in below(nodes))
                for nodes in ([*program.maps, program.read()], ends)
            )
            work[step.name] = Counts(forward, backward=backward * (step.name in scene.learned))
    return work


def multiplied(scene: SizedGraph, program: Program, node: Node) -> int:
    """The multiply-adds of a node in one program: a product, or a sum of products of elements."""
    axes = (*node.axes, *node.data) if node.op == "dot" else ()
    if node.op == "sum" or node.data[1:] == ("add",):
        product = node.args[0].name == node.name  # not of values that others read too
        (node,) = node.args
        axes = node.axes if product and node.op == "mul" and node.args[0].op != "number" else ()
    legs = [leg for axis in axes for leg in program.widths.get(axis, (axis,))]
    return scene.size(legs) * program.tiles(node.heads) if axes else 0


def with_keys_met(scene: SizedGraph, step: Step) -> SizedGraph:
    """The scene with the keys that the queries of a kernel meet."""
    return scene.at({scene.key: work_of(scene, step).keys_met or scene.keys})


def again(scene: SizedGraph, step: Step) -> int:
    """Multiply-adds of blocks of queries and tiles that their backward computes again: all but the last product."""
    if not isinstance(step.form, BlockedSteps) or step.name not in scene.learned:
        return 0
    return work_of(scene, step).macs - work_of(with_keys_met(scene, step), step.form.exit).macs


def measured(module: CompiledDesign, scene: SizedGraph) -> dict[int, Counts]:
    """The work of a forward, and of its backward, by the lines of the module that call it; 0 for those of autograd."""
    inputs = inputs_of(scene)
    with torch.no_grad():
        module(*inputs)  # makes what is made once
    counter = Counter(module, inputs)
    with as_long_calls(), counter:
        with saved_tensors_hooks(counter.pack, lambda kept: kept.tensor):
            result = module(*inputs)
        counter.count_saved()
        counter.backward = True
        result.backward(torch.ones_like(result))
    return counter.lines


def inputs_of(scene: SizedGraph) -> list[Tensor | None]:
    """Random inputs; None for one whose default has the same lengths."""
    inputs, draw = scene.graph.of_role("input"), torch.Generator().manual_seed(0)
    shapes = {tensor.name: (BATCH, *(scene.sizes[leg] for leg in tensor.legs)) for tensor in inputs}
    return [
        None
        if shapes.get(str(tensor.default)) == shapes[tensor.name]
        else torch.randn(shapes[tensor.name], generator=draw, requires_grad=True)
        for tensor in inputs
    ]


@contextmanager
def as_long_calls() -> Iterator[None]:
    """Runs what long calls run, whatever the processor, although the counter watches them."""
    plain = operations.is_plain

    def unwatched(tensors: Any) -> bool:
        with patch.object(torch._C, "_len_torch_dispatch_stack", lambda: 0):
            return plain(tensors)

    patches = [
        (module, "is_plain", unwatched)
        for name, module in sys.modules.items()
        if name.startswith("tensornet_attn.runtime.") and getattr(module, "is_plain", None) is plain
    ]
    with ExitStack() as stack:
        for target in (
            *patches,
            (products, "onednn_from", lambda: products.NEVER),
            (products, "SMALL_CALL", 0),
            (maps, "SMALL_CALL", 0),
            (tiled_linear, "LINEAR_LEAST", 0),
            (decay, "boundary", lambda *decays: None),  # nor mild decays, which are factors of both sides
            (blockwise, "is_small", lambda call: False),
            # no mode can watch it: of a map of elements, whose gradient multiplies none
            (torch.func, "vjp", lambda function, x: (function(x), lambda gradient: [torch.empty_like(x)])),
        ):
            stack.enter_context(patch.object(*target))
        yield


class Kept:
    """A tensor that autograd keeps as long as the operation that needs it is part of the graph."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


class Counter(TorchDispatchMode):
    """Counts the work of all operations, by the line of the module's source that calls them."""

    def __init__(self, module: CompiledDesign, inputs: list[Tensor | None]):
        super().__init__()
        self.backward = False
        self.lines = defaultdict[int, Counts](Counts)
        self.entered = 0
        self.held = {*map(storage, (*module.parameters(), *module.buffers()))}
        self.varying = {*map(storage, tensors(inputs))}
        self.kept = WeakKeyDictionary[Kept, int]()
        self.multiplied = dict[StorageWeakRef, str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        custom = OPDEFS.get(function._schema.name)
        if custom is None and function._can_decompose():
            with self:
                return function.decompose(*args, **kwargs)
        if custom is None:
            result = function(*args, **kwargs)
        else:
            self.entered += 1
            with self:
                result = custom._init_fn(*args, **kwargs)
            self.entered -= 1
        operands, results = tensors((args, kwargs)), tensors(result)
        count = 0 if custom else self.multiply_adds(function, args, kwargs, result)
        work = Counts(backward=count) if self.backward else Counts(count)
        if not (self.entered or self.backward):
            work += Counts(bytes=passed(function, operands, results))
            self.follow(function, operands, results)
        self.lines[self.line()] += work
        return result

    def multiply_adds(self, function: Any, args: Any, kwargs: Any, result: Any) -> int:
        """Those of a matrix product, or of a sum of products of elements."""
        packet, factors = function._overloadpacket, tensors(args)
        name = packet.__name__.rstrip("_")
        if (name == "mul" and len(factors) == 2) or (
            name == "pow" and len(factors) == 1 and factors[0] is args[0] and args[1] == 2
        ):
            self.multiplied[storage(result)] = name
        if name == "addcmul" and factors[1].ndim != factors[2].ndim:  # weights, not gates of scans
            return result.numel() * (1 + bool(self.multiplied.pop(storage(factors[0]), None)))
        if name == "sum" and (of := self.multiplied.get(storage(factors[0]))):
            divides = any(args[2:])  # the squares that a map makes, of which sums are no product
            return 0 if of == "pow" and divides else factors[0].numel()
        if name in PRODUCTS:
            left, right = factors[-2:]
            several = left.shape[-1] > 1  # a sum over one entry is no product
            return several * left.numel() * (right.shape[-1] if right.ndim > 1 else 1)
        return FORMULAS[packet](*args, **kwargs, out_val=result) // 2 if packet in FORMULAS else 0

    def follow(self, function: Any, operands: list[Tensor], results: list[Tensor]) -> None:
        """Notes results that are no constants."""
        name = function._overloadpacket.__name__
        shaped = name.startswith("new_") or name.endswith("_like")  # of the shape of an operand alone
        varying = not shaped and any(x.requires_grad or storage(x) in self.varying for x in operands)
        if varying or torch.Tag.nondeterministic_seeded in function.tags:
            self.varying.update(map(storage, results))

    def pack(self, tensor: Tensor) -> Kept:
        """What autograd keeps in place of a tensor that it saves."""
        kept = Kept(tensor)
        if tensor.is_floating_point() or (tensor.dtype != torch.bool and tensor.ndim):  # no mask, and no seed
            self.kept[kept] = self.line()
        return kept

    def count_saved(self) -> None:
        """Counts what autograd still keeps."""
        for kept, line in self.kept.items():
            memory = storage(kept.tensor)
            if memory in self.varying - self.held:
                self.held.add(memory)
                self.lines[line] += Counts(saved=kept.tensor.untyped_storage().nbytes() // kept.tensor.itemsize)

    def line(self) -> int:
        """The line of the module that runs, 0 if none does."""
        running = walk_stack(sys._getframe())
        return next((line for frame, line in running if frame.f_code.co_filename.startswith(EMITTED)), 0)


PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot"}
FORMULAS: dict[Any, Callable[..., int]] = flop_registry | {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda *operands, **_: attention(*operands),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda _, *operands, **__: 2 * attention(*operands),
    **dict.fromkeys(
        (aten._embedding_bag, aten._embedding_bag_forward_only),
        lambda rows, places, _offsets, _scaled, _mode, _sparse, weights=None, *_, **__: (
            0 if weights is None else 2 * places.numel() * rows.shape[-1]
        ),
    ),
}  # two for each multiply-add


def attention(query: Tensor, key: Tensor, value: Tensor, *_: object) -> int:
    """Operations of torch's fused attention; its backward has twice as many, without the scores again."""
    return 2 * query[..., 0].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def storage(tensor: Tensor) -> StorageWeakRef:
    """The memory of a tensor; while it is referred to, no other memory equals it."""
    return StorageWeakRef(tensor.untyped_storage())


def passed(function: Any, operands: list[Tensor], results: list[Tensor]) -> int:
    """Bytes that an operation reads and writes."""
    memories = {*map(storage, operands)}
    view = not function._schema.is_mutable and memories.issuperset(map(storage, results))
    if view or "empty" in function._overloadpacket.__name__:
        return 0
    distinct = {(x.data_ptr(), x.shape, x.stride()): x for x in operands}
    return sum(map(touched, (*distinct.values(), *results)))


def touched(tensor: Tensor) -> int:
    """Bytes of the distinct elements."""
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.itemsize * prod(size for size, stride in sides if stride or not size)


def main(name: str, n: str = "64", m: str = "64") -> None:
    """Prints what is predicted by step, and measured by line."""
    module = layer(name)
    scene, source = scene_at(module.plan.schedule, int(n), int(m)), ["by autograd", *module.source.splitlines()]
    lines = {f"{at} {source[at].strip()}": work for at, work in sorted(measured(module, scene).items())}
    for title, rows in (("predicted", predicted(scene)), ("measured", lines)):
        print(f"{title}: {sum(rows.values(), Counts())}")
        for row, work in rows.items():
            if any(work):
                print(*(f"{count:14,}" for count in work), f" {row[:130]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
