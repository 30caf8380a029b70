"""The predicted seconds of a step at the measured rates of a table, in parts by what is measured together.

    product                      multiply-adds at the rate of their shape, and the result written; with a backward, also
                                 the product of each gradient
    large product with a weight  the same, at the rate of oneDNN, in parts too; the gradient of the weight if it is wide
    attention                    measured seconds of a query and a key of this width, times pairs of all heads
    band                         the attention of blocks of queries with the keys of their span; copies
    grouped experts              products of the rows of each expert; attention of the chosen heads; some calls for each
    elementwise, other boxes     passes: bytes read and written; exponentials
    maps, noise, sinusoids       measured seconds per number, besides passes; dropout too
    scans                        passes; calls for each position of long rows, and otherwise in parts
    scans that are read once     of long rows: passes over blocks that stay in a cache; calls for each position
    products of elements         passes, if they are added up where nothing is left for a product of matrices
    mask                         two passes over weights that hide keys, with a backward one more
    blocks of queries            the steps inside for each block; with a backward, again, and their gradients
    C++ kernels                  the same, but the calls of one kernel, products apart from what lies between them
    linear attention in C++      with the features that its kernels compute, in a backward again; the calls of a kernel
    other kernels                their products, exponentials, a pass over operands and result, and one over what they
                                 store for chunks; some calls
    pages                        memory that the system provides for each large result, and for its gradients
    module                       a call of a module besides its operations

Each part is multiplied by its measured efficiency, the number of times that it takes longer than at these rates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, permutations
from math import ceil, isqrt

from tensornet_attn.constants import (
    LONG_ROW,
    NARROW,
    NARROW_PARTS,
    ONEDNN_LONGEST,
    ONEDNN_PART,
    PROJECTED_ZEN5,
    STRETCH,
)
from tensornet_attn.cost.kernels import Parts, deep_inside, traits_of
from tensornet_attn.cost.products import Shape
from tensornet_attn.cost.rates import DROPOUT, ELEMENTWISE, NOISE, SINUSOID, RateTable
from tensornet_attn.cost.scene import SizedGraph, held
from tensornet_attn.cost.work import work_of
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Graph, Step, Use, cached
from tensornet_attn.graph.signs import doubtful_normalizers
from tensornet_attn.ir.arithmetic import Number, to_text

WIDTH = 4  # bytes of an element: tables are in float32
MASKS, MASK = 2, "mask"  # passes that replace hidden scores before weighting, and their weights after it
GRADIENTS = 2  # passes of a backward, in those of its forward: gradients are read and written
CALLS = 30  # operations of a kernel that computes more than one product, or of one attention in it
SCANNED = 20  # reads and writes of a state in a scan: exponentials, padding, two operations in parts, their ends
CALLS_OF_SCAN = 7  # of a position in its parts, of which there are as many: two operations, views
CALLS_OF_CPP = 60  # of a C++ kernel: operands, pointers and steps
MODULE, PAGES, OF_MAPS = "module", "pages", "maps"
NATIVE, LINEAR_IN_CPP = "native", "native linear"  # the kinds of C++ kernels


def module_seconds(table: RateTable, backward: bool) -> float:
    """The predicted seconds of a call of a module besides its steps."""
    return efficient({MODULE: table.module[backward]}, table, backward)


def passes_of(learned: bool) -> int:
    """The passes of a step over its operands, in those of its forward."""
    return 1 + GRADIENTS if learned else 1


def efficient(parts: Parts, table: RateTable, backward: bool) -> float:
    """The sum of parts, each by its efficiency."""
    return sum(table.efficiency_of(kind, backward) * seconds for kind, seconds in parts.items())


def parts_of(scene: SizedGraph, step: Step, table: RateTable, backward: bool, in_cpp: bool = False) -> Parts:
    """The seconds of a primitive step or kernel at the rates of the table, by kind.

    `backward`: with the backward, if it has gradients. `in_cpp`: a kernel in C++ computes it inside.
    """
    traits = traits_of(step)
    cpp = (in_cpp or (step.kernel is not None and step.kernel.cpp and not traits.native)) and not traits.by_steps
    table = replace(table, maps=()) if cpp else table  # C++ has its own
    parts = parts_inside(scene, step, table, backward)
    if not cpp:
        drawn = drawn_and_dropped(scene, step, table, backward)
        return parts | {OF_MAPS: parts.get(OF_MAPS, 0.0) + drawn} if drawn else parts
    learned = backward and step.name in scene.learned
    recomputed = learned * sum(of_exponentials(scene, step, table))
    cpp_parts = {
        LINEAR_IN_CPP: recomputed
        + sum(seconds for kind, seconds in parts.items() if kind != PAGES and "call" not in kind)
    }
    if step.kernel is not None:
        cpp_parts |= {PAGES: parts[PAGES], f"{NATIVE} calls": CALLS_OF_CPP * table.call[learned]}
    return cpp_parts


def parts_inside(scene: SizedGraph, step: Step, table: RateTable, backward: bool) -> Parts:
    """The seconds of a step by operations of torch, or of blocks in C++, without what a call draws."""
    work = work_of(scene, step).of_one_row
    scene = work.scene
    of_kernel = work.seconds(table, backward)
    if of_kernel is not None:
        return of_kernel
    parts: defaultdict[str, float] = defaultdict(float)
    learned = backward and step.name in scene.learned
    call, pass_count, matmuls = table.call[learned], passes_of(learned), work.matmuls
    if step.contraction is not None and scene.view(step):
        pass
    elif step.contraction is not None and matmuls and _sums_products(scene.graph, step):  # written, then read
        operands, output = [scene.elements(use) for use in step.uses], scene.elements(step)
        passes = (sum(operands) + max(operands), max(operands)), (max(operands) + output, output)
        parts[ELEMENTWISE] = pass_count * sum(
            WIDTH * count / table.pass_rate(WIDTH * written) for count, written in passes
        )
    elif step.contraction is not None and matmuls:
        parts["product"] = _product(scene, step, matmuls[0].shape, table, learned)
        parts[PAGES] = _pages((step, *step.uses) if learned else (step,), scene, table)
    else:
        products = sum(2 * macs / table.product_rate(shape) for shape, _, macs in matmuls)
        pass_seconds = WIDTH * work.moved / table.pass_rate(WIDTH * scene.elements(step))
        if operation_of(step).by_position:  # in strides
            positions, row = scene.sizes[scene.query], scene.elements(step, scene.graph.query)
            pass_seconds = WIDTH * SCANNED * positions * row / table.bandwidth
            calls = positions if row >= LONG_ROW else CALLS_OF_SCAN * isqrt(positions)
            parts["call"] = pass_count * calls * table.call[False]
        chunked = work.between
        if chunked:  # operands are copied into chunks; scores are masked and states summed up
            pass_seconds = 2 * pass_seconds + sum(
                4 * kept / min(kept, STRETCH) * accessed(min(kept, STRETCH), table) for kept in chunked
            )
        kind = kind_of(step) + " in chunks" * bool(chunked)
        exps, maps = of_exponentials(scene, step, table, learned)
        parts[kind] = pass_count * (products + pass_seconds) + exps
        parts[OF_MAPS] = maps
        parts[PAGES] = pass_count * _pages((step,), scene, table)
        if operation_of(step).runs_along and scene.graph.masks(step):
            parts[MASK] = (MASKS + learned) * 2 * accessed(scene.elements(step), table)
        if products:
            parts[f"{kind} calls"] = CALLS * call
    parts["call"] += call
    return parts


def of_exponentials(scene: SizedGraph, step: Step, table: RateTable, learned: bool = False) -> tuple[float, float]:
    """The exponentials of softmaxes and kernels, and what a map takes besides its passes."""
    if step.box is not None and step.box.function is not None:
        return 0.0, scene.elements(step) * table.of_map(step.box.function.to_text(to_text), learned)
    return sum(count for _, count in work_of(scene, step).exponentials) / table.exponentials, 0.0


def drawn_and_dropped(scene: SizedGraph, step: Step, table: RateTable, training: bool) -> float:
    """Numbers of a call: noise and sines of positions that a step reads, and its dropout."""
    tensors = [tensor for use in step.uses if (tensor := scene.graph.tensor.get(use.name))]
    noise = sum(scene.stored[leaf.name] for leaf in tensors if leaf.role == "noise" and (training or leaf.always))
    sinusoids = sum(scene.stored[leaf.name] for leaf in tensors if leaf.init is not None and leaf.init.name == SINUSOID)
    drops = training and step.box is not None and scene.number(dict(step.box.numbers).get("dropout", Number(0))) != 0
    counts = {NOISE: noise, DROPOUT: drops * scene.elements(step), SINUSOID: sinusoids}
    return sum(table.of_map(name, False) * count for name, count in counts.items())


def kind_of(step: Step) -> str:
    """The part to which a step that is neither a product nor attention counts: elementwise if it mixes nothing."""
    if step.kernel is not None:
        return step.kernel.kind
    mixes = operation_of(step).runs_along or operation_of(step).recurrent
    return step.box.kind if mixes and step.box is not None else ELEMENTWISE


def _sums_products(graph: Graph, step: Step) -> bool:
    """Whether a block multiplies the elements of two tensors and adds up the products: no leg is left for a product of
    matrices."""
    legs, pair = [{*use.legs} for use in step.uses], {graph.query, graph.key}
    return any(
        left <= right and pair <= right and graph.key in left & {*step.legs} for left, right in permutations(legs)
    )


def _product(scene: SizedGraph, step: Step, shape: Shape, table: RateTable, learned: bool) -> float:
    """A product of two tensors of this shape, and the products of their gradients."""
    if _projects(scene, step, shape, table):
        seconds, *backward = projected(shape, table, _cancelling(scene.graph))
    else:
        seconds, *backward = (multiplied(product_shape, table) for product_shape in (shape, *gradients(shape)))
    learned_factors = sum(use.name in scene.learned for use in step.uses) if learned else 0
    return seconds + sum(sorted(backward)[:learned_factors])


def projected(shape: Shape, table: RateTable, exact: bool) -> tuple[float, float, float]:
    """A product with a weight by oneDNN, that of the gradient of the rows, and that of the weight's, if it is wide."""
    of_rows, of_weight = gradients(shape)
    wide = min(shape.columns, shape.summed) >= NARROW_PARTS * table.machine.threads
    wide = wide and table.projected[0] <= PROJECTED_ZEN5  # then oneDNN is faster than MKL even in parts
    last = _by_onednn(of_weight, table, True) if wide else multiplied(of_weight, table)
    return _by_onednn(shape, table, exact), _by_onednn(of_rows, table, exact), last


def multiplied(shape: Shape, table: RateTable) -> float:
    """A product, and its result written."""
    return 2 * shape.macs / table.product_rate(shape) + accessed(shape.batch * shape.rows * shape.columns, table)


def _by_onednn(shape: Shape, table: RateTable, exact: bool) -> float:
    """The same by oneDNN; of an exact product or a long sum, parts are copied, and their products added."""
    written = accessed(shape.batch * shape.rows * shape.columns, table)
    seconds = 2 * shape.macs / table.projected[1] + written
    if exact or shape.summed > ONEDNN_LONGEST:
        copied = shape.batch * max(shape.rows, shape.columns) * shape.summed
        seconds += 3 * (ceil(shape.summed / ONEDNN_PART) - 1) * written + 2 * accessed(copied, table)
    return seconds


def accessed(elements: int, table: RateTable) -> float:
    """A tensor read or written once."""
    return WIDTH * elements / table.pass_rate(WIDTH * elements)


def _projects(scene: SizedGraph, step: Step, shape: Shape, table: RateTable) -> bool:
    """Whether `runtime/products.py` takes oneDNN for a product with a weight: of many rows, perhaps in parts.

    Products of queries x keys, in blocks of queries, do not call it.
    """
    weights, pair = held(scene.graph), {scene.graph.query, scene.graph.key}
    rows = [use for use in step.uses if use.name not in weights]
    large = len(rows) == 1 and scene.elements(rows[0]) >= table.projected[0] and not pair <= {*rows[0].legs}
    return large and takes_projected(shape, table, _cancelling(scene.graph))


def takes_projected(shape: Shape, table: RateTable, exact: bool) -> bool:
    """Whether oneDNN computes products of this shape."""
    narrow = min(shape.columns, shape.summed) < NARROW
    return not narrow and (table.projected[0] <= PROJECTED_ZEN5 or (shape.summed <= ONEDNN_LONGEST and not exact))


@cached
def _cancelling(graph: Graph) -> bool:
    """Whether rows may be divided by sums near zero, also in linear attention."""
    parts = ((step,) if traits_of(step).pairs else deep_inside(step) for step in graph.steps)
    return bool(doubtful_normalizers(replace(graph, steps=tuple(dict.fromkeys(chain(*parts))))))


def _pages(new: Iterable[Step | Use], scene: SizedGraph, table: RateTable) -> float:
    """The pages of new tensors, each as large as one of these."""
    return sum(table.of_pages(WIDTH * scene.elements(tensor)) for tensor in new)


def gradients(shape: Shape) -> tuple[Shape, Shape]:
    """The products of the gradients of both factors.

    >>> gradients(Shape(1, 4096, 64, 512))
    (Shape(batch=1, rows=4096, columns=512, summed=64), Shape(batch=1, rows=512, columns=64, summed=4096))
    """
    left = Shape(shape.batch, shape.rows, shape.summed, shape.columns)
    return left, Shape(shape.batch, shape.summed, shape.columns, shape.rows)
