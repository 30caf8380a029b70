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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any, NamedTuple
from unittest.mock import patch
from weakref import ref

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import tensornet_attn as ta
from tensornet_attn.cost.kernels import KERNELS, cost_of, inside
from tensornet_attn.cost.memory import moved, saved
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.sizes import sizes_at
from tensornet_attn.cost.work import gradient_macs, macs
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.pairs import split_products, summed
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.runtime import blockwise, maps, operations, products, tiled_linear
from tensornet_attn.tiles.derive import gradients
from tensornet_attn.tiles.program import Node, Program, below

BATCH = 2
IN_BLOCKS = ("blockwise", "native", "tiles")  # kernels of steps that a backward computes again
WIDTH = 4  # bytes of a float32
EMITTED = "<tensornet"  # how names of files of emitted modules begin
aten = torch.ops.aten


class Work(NamedTuple):
    """Multiply-adds, bytes read and written, numbers saved for the backward, and its multiply-adds."""

    macs: int = 0
    bytes: int = 0
    saved: int = 0
    backward: int = 0

    def __add__(self, other: object) -> Work:
        assert isinstance(other, Work)
        return Work(*map(sum, zip(self, other, strict=True)))


def layer(name: str) -> CompiledDesign:
    """The shipped design with its torch plan, in training."""
    return ta.compile(name, backend="torch").train()


def lengths_of(graph: Graph, n: int, m: int) -> dict[str, int]:
    """The lengths of the sequence legs, none above its maximum."""
    lengths = {str(graph.query): n} | ({graph.key: n if graph.tied else m} if graph.key else {})
    return {leg: min(length, graph.leg[leg].maximum or length) for leg, length in lengths.items()}


def predicted(schedule: Graph, lengths: Mapping[str, int]) -> dict[str, Work]:
    """The work of each step of a plan; memory that several steps save counts for the first."""
    scene = scene_at(schedule, lengths)
    work, known = dict[str, Work](), set[str]()
    for step in scene.graph.steps:
        floats = {name: count for name, count in saved(scene, step).items() if name not in known}
        known |= floats.keys()
        backward = gradient_macs(scene, step) + again(scene, step)
        work[step.name] = Work(macs(scene, step), WIDTH * moved(scene, step), sum(floats.values()), backward)
    return work


def scene_at(schedule: Graph, lengths: Mapping[str, int]) -> SizedGraph:
    """A plan in primitive steps and kernels, at these lengths."""
    graph = split_products(schedule)
    return SizedGraph(graph, sizes_at(graph, lengths), BATCH)


def of_nodes(schedule: Graph, lengths: Mapping[str, int]) -> dict[str, Work]:
    """The multiply-adds of each kernel in C++ or Triton, by the nodes of its tile programs, each node once."""
    scene, work = scene_at(schedule, lengths), dict[str, Work]()
    for step in scene.graph.steps:
        if step.kernel is not None and step.kernel.kind in ("native", "tiles"):
            program = KERNELS[step.kernel.kind].fit(scene.graph, step)
            grads, few = gradients(program), few_keys(scene, step)
            ends = [gradient for _, gradient in (*grads.totals, *grads.leaves, *grads.maps)]
            programs = BATCH * prod(scene.sizes[leg] // tiles for leg, tiles in program.heads.items())
            forward, backward = (
                programs * sum(multiplied(few, program, node) for node in below(nodes))
                for nodes in ([*program.maps, program.read()], ends)
            )
            work[step.name] = Work(forward, backward=backward)
    return work


def multiplied(scene: SizedGraph, program: Program, node: Node) -> int:
    """The multiply-adds of a node in one program: a product, or a sum of products of elements."""
    summed_node, axes = node, (*node.axes, *node.data) if node.op == "dot" else ()
    if node.op == "sum" or node.data[1:] == ("add",):
        (summed_node,) = node.args
        axes = summed_node.axes if summed_node.op == "mul" and summed_node.args[0].op != "number" else ()
    legs = [leg for axis in axes for leg in program.widths.get(axis, (axis,))]
    return scene.size(legs) * program.tiles(summed_node.heads) if axes else 0


def few_keys(scene: SizedGraph, step: Step) -> SizedGraph:
    """The scene of the steps inside a kernel, with the keys that its queries meet."""
    inner, met = inside(scene, step)[0], cost_of(step).keys_met(scene, step)
    return inner if met is None else inner.at({inner.key: met})


def again(scene: SizedGraph, step: Step) -> int:
    """Multiply-adds of blocks of queries and tiles that their backward computes again: all but the last product."""
    if step.kernel is None or step.name not in scene.learned or step.kernel.kind not in IN_BLOCKS:
        return 0
    few, programs = few_keys(scene, step), cost_of(step).programs(scene, step)
    earlier = [part for part in inside(scene, step)[1] if few.graph.query in part.legs and part.name != step.name]
    return sum(
        macs(few, part) * prod(count for leg, count in programs.items() if leg not in {*part.legs, *summed(part)})
        for part in earlier
    )


def measured(module: CompiledDesign, lengths: Mapping[str, int]) -> dict[int, Work]:
    """The work of a forward, and of its backward, by the lines of the module that call it; 0 for those of autograd."""
    inputs = inputs_of(module.plan.schedule, lengths)
    with torch.no_grad():
        module(*inputs)  # makes what is made once
    counter = Counter(module, [x for x in inputs if x is not None])
    with as_long_calls(), saved_tensors_hooks(counter.pack, lambda kept: kept.tensor), counter:
        result = module(*inputs)
    counter.with_saved()
    counter.backward = True
    with as_long_calls(), counter:
        result.backward(torch.ones_like(result))
    return counter.lines


def inputs_of(graph: Graph, lengths: Mapping[str, int]) -> list[Tensor | None]:
    """Random inputs; None for one whose default has the same lengths."""
    draw = torch.Generator().manual_seed(0)
    sizes, inputs, shapes = sizes_at(graph, lengths), list[Tensor | None](), dict[str, list[int]]()
    for tensor in graph.of_role("input"):
        shapes[tensor.name] = [BATCH, *(sizes[leg] for leg in tensor.legs)]
        default = shapes.get(str(tensor.default)) == shapes[tensor.name]
        inputs.append(None if default else torch.randn(shapes[tensor.name], generator=draw, requires_grad=True))
    return inputs


@contextmanager
def as_long_calls() -> Iterator[None]:
    """Runs what long calls run, whatever the processor, although the counter watches them."""
    plain = operations.is_plain

    def unwatched(tensors: Any) -> bool:
        with patch.object(torch._C, "_len_torch_dispatch_stack", lambda: 0):
            return plain(tensors)

    with ExitStack() as stack:
        for name, module in [*sys.modules.items()]:
            if name.startswith("tensornet_attn.runtime.") and getattr(module, "is_plain", None) is plain:
                stack.enter_context(patch.object(module, "is_plain", unwatched))
        for module, name, value in (
            (products, "onednn_from", lambda: products.NEVER),
            (products, "SMALL_CALL", 0),
            (maps, "SMALL_CALL", 0),
            (tiled_linear, "LINEAR_LEAST", 0),
            (blockwise, "is_small", lambda call: False),
            (torch.func, "vjp", shapes_of_vjp),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


def shapes_of_vjp(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
    """In place of `torch.func.vjp`, which no mode can watch: of a map of elements, whose gradient multiplies none."""
    return function(x), lambda gradient: [torch.empty_like(x)]


class Kept:
    """A tensor that autograd keeps as long as the operation that needs it is part of the graph."""

    def __init__(self, tensor: Tensor, line: int):
        self.tensor, self.line = tensor, line


class Counter(TorchDispatchMode):
    """Counts the work of all operations, by the line of the module's source that calls them."""

    def __init__(self, module: CompiledDesign, inputs: list[Tensor]):
        super().__init__()
        self.backward = False
        self.lines: defaultdict[int, Work] = defaultdict(Work)
        self.entered = 0
        self.held = {storage(tensor) for tensor in (*module.parameters(), *module.buffers())}
        self.varying = {storage(tensor) for tensor in inputs}
        self.kept: list[ref[Kept]] = []
        self.multiplied: dict[StorageWeakRef, str] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        custom = OPDEFS.get(function._schema.name)
        if custom is None and function._can_decompose():
            with self:
                result = function.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if custom is None:
            result = function(*args, **kwargs)
        else:
            self.entered += 1
            with self:
                result = custom._init_fn(*args, **kwargs)
            self.entered -= 1
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        multiply_adds = 0 if custom else self.multiply_adds(function, operands, args, kwargs, result)
        if self.backward:
            self.lines[self.line()] += Work(backward=multiply_adds)
            return result
        self.lines[self.line()] += Work(multiply_adds, 0 if self.entered else passed(function, operands, results))
        if not self.entered:
            self.follow(function, operands, results)
        return result

    def multiply_adds(self, function: Any, operands: list[Tensor], args: Any, kwargs: Any, result: Any) -> int:
        """Those of a matrix product, or of a sum of products of elements."""
        packet, name = function._overloadpacket, function._overloadpacket.__name__.rstrip("_")
        factors = [x for x in args if isinstance(x, Tensor)]
        if (name == "mul" and len(factors) == 2) or (
            name == "pow" and len(factors) == 1 and factors[0] is args[0] and args[1] == 2
        ):
            self.multiplied[storage(result)] = name
        if name == "addcmul" and factors[1].ndim != factors[2].ndim:  # weights, not gates of scans
            return result.numel() * (1 + (self.multiplied.pop(storage(operands[0]), None) is not None))
        if name == "sum" and (of := self.multiplied.get(storage(operands[0]))) is not None:
            divides = len(args) > 2 and args[2]  # the squares that a map makes, of which sums are no product
            return 0 if of == "pow" and divides else operands[0].numel()
        if packet in FORMULAS:
            return FORMULAS[packet](*args)
        if name in PRODUCTS:
            left, right = operands[-2 - ("out" in kwargs) :][:2]
            return left.numel() * (right.shape[-1] if right.ndim > 1 else 1)
        counted = flop_registry.get(packet)
        return 0 if counted is None else int(counted(*args, **kwargs, out_val=result)) // 2

    def follow(self, function: Any, operands: list[Tensor], results: list[Tensor]) -> None:
        """Notes results that are no constants."""
        name, drawn = function._overloadpacket.__name__, torch.Tag.nondeterministic_seeded in function.tags
        shaped = name.startswith("new_") or name.endswith("_like")  # of the shape of an operand alone
        if drawn or (not shaped and any(x.requires_grad or storage(x) in self.varying for x in operands)):
            self.varying |= {storage(x) for x in results}

    def pack(self, tensor: Tensor) -> Kept:
        """What autograd keeps in place of a tensor that it saves."""
        kept = Kept(tensor, self.line())
        if tensor.is_floating_point() or (tensor.dtype != torch.bool and tensor.ndim):  # no mask, and no seed
            self.kept.append(ref(kept))
        return kept

    def with_saved(self) -> dict[int, Work]:
        """The work by line, with what autograd still keeps."""
        known = set(self.held)
        for kept in filter(None, (one() for one in self.kept)):
            memory = kept.tensor.untyped_storage()
            if storage(kept.tensor) in self.varying and storage(kept.tensor) not in known:
                known.add(storage(kept.tensor))
                self.lines[kept.line] += Work(saved=memory.nbytes() // kept.tensor.itemsize)
        return self.lines

    def line(self) -> int:
        """The line of the module that runs, 0 if none does."""
        frame = sys._getframe()
        while not frame.f_code.co_filename.startswith(EMITTED) and frame.f_back is not None:
            frame = frame.f_back
        return frame.f_lineno


PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot"}
BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward
FORMULAS: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: lambda query, key, value, *_: (
        query[..., 0].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    ),
    BACKWARD: lambda _, query, key, value, *__: (  # without the scores again
        2 * query[..., 0].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    ),
    **dict.fromkeys(
        (aten._embedding_bag, aten._embedding_bag_forward_only),
        lambda rows, places, _offsets, _scaled, _mode, _sparse, weights=None, *_: (
            0 if weights is None else places.numel() * rows.shape[-1]
        ),
    ),
}


def storage(tensor: Tensor) -> StorageWeakRef:
    """The memory of a tensor; while it is referred to, no other memory equals it."""
    return StorageWeakRef(tensor.untyped_storage())


def passed(function: Any, operands: list[Tensor], results: list[Tensor]) -> int:
    """Bytes that an operation reads and writes."""
    known = {storage(x) for x in operands}
    view = not function._schema.is_mutable and bool(known) and all(storage(x) in known for x in results)
    if view or "empty" in function._overloadpacket.__name__:
        return 0
    distinct = {(x.data_ptr(), x.shape, x.stride()): x for x in operands}
    return sum(map(touched, distinct.values())) + sum(map(touched, results))


def touched(tensor: Tensor) -> int:
    """Bytes of the distinct elements."""
    shape = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return tensor.itemsize * torch.Size(shape).numel() if tensor.numel() else 0


def main(name: str, n: str = "64", m: str = "64") -> None:
    """Prints what is predicted by step, and measured by line."""
    module = layer(name)
    lengths, source = lengths_of(module.plan.schedule, int(n), int(m)), module.source.splitlines()
    for title, rows in (
        ("predicted", predicted(module.plan.schedule, lengths)),
        (
            "measured",
            {f"{at} {source[at - 1].strip()}": work for at, work in sorted(measured(module, lengths).items())},
        ),
    ):
        print(f"{title}: {sum(rows.values(), Work())}")
        for row, work in rows.items():
            if work != Work():
                print(f"{work.macs:14,} {work.bytes:14,} {work.saved:12,}  {row[:130]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
