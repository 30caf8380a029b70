"""Blockwise functions of queries, recomputed in the backward: memory linear in n and m."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.operations import (
    applied,
    exports_onnx,
    gradients_at,
    one_by_one,
    operation,
    own_name,
    surely,
    wanted_places,
)
from tensornet_attn.runtime.products import autocast_dtype, autocast_kind

KEEP = 8  # a call is differentiated by torch, which keeps maps, if a block could be this many times as large
FUNCTIONS: dict = {}  # name: BlockFunction
GRADIENTS: dict = {}  # name: (gradient function, names of the operands), see `block_gradient`
CALL = (  # the schema of a call
    "bool[] present, SymInt n, SymInt m, SymInt[] batch, SymInt[] block, bool training, SymInt[] sizes, "
    "ScalarType? cast"
)


class Call(NamedTuple):
    """A call of `blockwise`: which operands are `present`, numbers of queries and keys, batch dimensions.

    `block`: see `blockwise`. `sizes`: those that no operand shows. `cast`: the dtype of autocast.
    """

    present: list[bool]
    n: int
    m: int
    batch: list[int]
    block: list[int]
    training: bool
    sizes: list[int]
    cast: torch.dtype | None

    @property
    def least(self) -> int:
        """The minimum rows of a block."""
        return self.block[0]

    @property
    def pairs(self) -> int:
        """The maximum pairs of query and key in a block."""
        return self.block[1]

    @property
    def keys_counted(self) -> int:
        """The keys that a row counts as."""
        return max(1, self.m, *self.block[2:3])

    @property
    def elements(self) -> int:
        """The length of the first batch dimension."""
        return self.batch[0] if self.batch else 1


class Piece(NamedTuple):
    """What one block computes: `elements` of the first batch dimension from `element`, and `rows` from `first`."""

    element: int
    elements: int
    first: int
    rows: int


class OperandLegs(NamedTuple):
    """The dimensions of an operand, from the end, 0 if it lacks the leg; see `block_function`."""

    rows: int
    span: int
    keys: int
    reach: tuple[int | None, int | None, int]
    own: int | None


class KeysSeen(NamedTuple):
    """The keys visible to a piece: the first `prefix` ones, and `near` ones from `begin` on."""

    prefix: int
    begin: int
    near: int


class Block(NamedTuple):
    """A piece of a call, and the keys that it sees."""

    piece: Piece
    keys: KeysSeen
    call: Call


class Slice(NamedTuple):
    """A part of a dimension."""

    dim: int
    first: int
    length: int


class BlockFunction(NamedTuple):
    """A function of a block, the legs of its operands, and the query dimension of its result."""

    function: object
    legs: tuple[OperandLegs, ...]
    out: int


class Rows:
    """The context of a function of a block, besides its operands.

    `at`: positions of its rows, [block], `count` from `first` on; `n`, `keys`: numbers of queries and keys of the whole
    call; `m`: number of keys visible to the rows: the first `prefix` keys, and the others from position `begin` on;
    `batch`: batch dimensions of the block; `sizes`: sizes that no operand shows; `random`: random number generator.
    """

    def __init__(self, block: Block, random: torch.Generator | None, device: torch.device):
        piece, keys, call = block
        self.n, self.keys, self.training, self.sizes = call.n, call.m, call.training, call.sizes
        self.prefix, self.begin = keys.prefix, keys.begin
        self.m = keys.prefix + keys.near
        self.batch = [piece.elements, *call.batch[1:]] if call.batch else []
        self.first, self.count = piece.first + call.m - call.n, piece.rows
        self._device, self.random = device, random
        self._at: Tensor | None = None

    @property
    def at(self) -> Tensor:
        """The positions of the rows, made for the functions that need them."""
        if self._at is None:
            self._at = torch.arange(self.first, self.first + self.count, device=self._device)
        return self._at


def block_function(
    rows: tuple[int, ...],
    out: int,
    spans: tuple[int, ...] = (),
    keys: tuple[int, ...] = (),
    legs: tuple[int, ...] = (),
    reach: tuple[int | None, int | None, int] = (None, 0, 0),
):
    """Registers a function of a block, f(rows: Rows, *operands), and returns the name that `blockwise` takes.

    The name contains the module, so that functions of two modules do not clash.

    Dimensions count from the end; 0 means none. `rows`: the query leg of each operand; `spans`: the leg of relative
    positions, of which b rows that see m keys have b + m - 1; `out`: the query leg of the result; `keys`: the key leg,
    given if visibility is limited. `reach`: (before, after, prefix): the largest distances at which a row sees keys,
    None for unlimited, and the number of first keys that rows may always see; a block gets no other keys. `legs`: the
    number of dimensions that are not batch dimensions, 0 for none, None for all, -1 for a mask, of which all but the
    last two may be batch dimensions. Without `legs`, a block has the whole batch.
    """

    def register(function):
        no_legs = [0] * len(rows)
        operand_legs = zip(rows, spans or no_legs, keys or no_legs, legs or no_legs, strict=True)
        name = own_name(f"{function.__module__}.{function.__name__}", FUNCTIONS)
        FUNCTIONS[name] = BlockFunction(
            function, tuple(OperandLegs(row, span, key, reach, dims) for row, span, key, dims in operand_legs), out
        )
        return name

    return register


def block_gradient(name: str):
    """Registers a function as the backward of a function of a block: f(rows: Rows, gradient, wanted, *operands).

    It returns one gradient per operand, or None. `wanted`: the names of the operands whose gradients are used.
    """

    def register(function):
        code = function.__code__
        GRADIENTS[name] = function, code.co_varnames[3 : code.co_argcount]
        return function

    return register


def blockwise(
    tile: str,
    operands: list[Tensor | None],
    n: int,
    m: int,
    batch: tuple[int, ...],
    block: tuple[int, ...],
    training: bool = False,
    random: bool = False,
    sizes: tuple[int, ...] = (),
) -> Tensor:
    """Applies the function `tile` to all n query rows, block by block; only one block is in memory at a time.

    `block`: (minimum rows, maximum pairs of query and key, keys that a row counts as at least if its temporaries are
    larger than its scores, maximum rows within a band), without the last two where they change nothing. A block has
    rows of one batch element, or of several if the rows of one are too few: larger products are faster, and gradients
    of keys and values are accumulated less often.

    The backward recomputes each block; with `random`, from the same seed. A call much smaller than a block is computed
    as plain code instead, which starts in a fraction of the time; so are a step of a decoding in traced code, and any
    call in a program for ONNX, with all keys.
    """
    tensors = [x for x in operands if x is not None]
    traced = torch.compiler.is_compiling()
    dense = traced and exports_onnx()
    seed = torch.randint(2**62, (), device="cpu") if random and not dense else None
    cast = autocast_dtype(tensors[0])
    call = Call([x is not None for x in operands], n, m, list(batch), list(block), training, list(sizes), cast)
    legs = legs_of(tile, call)
    for x, leg in zip(tensors, legs, strict=True):
        if leg.rows and 1 != x.shape[leg.rows] != n:
            name, shape = tile.split(".")[-1], list(x.shape)
            raise ValueError(
                f"'{name}': an operand has shape {shape}; it must have 1 or {n} rows in dimension {leg.rows}."
            )
    if dense or (seed is None and (is_step(call) if traced else is_small(call))):
        piece, all_keys = Piece(0, call.elements, 0, n), KeysSeen(0, 0, m)
        keys = all_keys if dense else keys_seen(legs, piece, call)
        whole = Block(piece, keys, call)
        parts = tensors if keys == all_keys else [seen(x, leg, whole) for x, leg in zip(tensors, legs, strict=True)]
        rows = Rows(whole, None, tensors[0].device)
        return FUNCTIONS[tile].function(rows, *operands_of(parts, call))
    if traced:
        return blockwise_forward(tensors, seed, tile, *call)
    return applied(Blockwise, seed, (tile, *call), *tensors)


def is_small(call: Call) -> bool:
    """Whether one block holds the whole call; with gradients, KEEP of them."""
    pairs = call.n * call.keys_counted * math.prod(call.batch)
    return pairs * (KEEP if torch.is_grad_enabled() else 1) <= call.pairs


def is_step(call: Call) -> bool:
    """Whether traced code knows that there are no more rows than in the smallest block, and needs no gradients."""
    return not torch.is_grad_enabled() and surely(call.n <= call.least)


def computed(tile: str, tensors: list[Tensor], call: Call, rows: Rows) -> Tensor:
    """Calls the function of a block under the autocast dtype of the call."""
    with torch.autocast(autocast_kind(tensors[0]), call.cast, call.cast is not None, False):
        return FUNCTIONS[tile].function(rows, *operands_of(tensors, call))


def operands_of(tensors: list[Tensor] | tuple[Tensor, ...], call: Call) -> list[Tensor | None]:
    """All operands, with None for absent ones."""
    remaining = iter(tensors)
    return [next(remaining) if is_present else None for is_present in call.present]


def blocks(tile: str, tensors: list[Tensor], seed: Tensor | None, call: Call):
    """Yields (Block, Rows, parts of the operands)."""
    legs, random = legs_of(tile, call), None if seed is None else torch.Generator(tensors[0].device)
    # operands that every block reads whole are made contiguous once
    tensors = [x if leg.rows or x.dtype == torch.bool else x.contiguous() for x, leg in zip(tensors, legs, strict=True)]
    for number, piece in enumerate(pieces_of(tensors, legs, call)):
        if random is not None and seed is not None:
            random.manual_seed(int(seed.item()) + number)
        block = Block(piece, keys_seen(legs, piece, call), call)
        parts = [seen(x, leg, block) for x, leg in zip(tensors, legs, strict=True)]
        yield block, Rows(block, random, tensors[0].device), parts


def pieces_of(tensors: list[Tensor], legs: list[OperandLegs], call: Call) -> list[Piece]:
    """The pieces of the whole call."""
    batched = any(in_batch(x, leg.own, call.batch) for x, leg in zip(tensors, legs, strict=True))
    row_pairs = call.keys_counted * max(1, math.prod(call.batch[1:] if batched else call.batch))  # pairs per row
    rows = min(max(call.least, call.pairs // row_pairs), *call.block[3:], max(1, call.n))
    elements = max(1, call.pairs // (row_pairs * rows)) if batched else call.elements
    return [
        Piece(element, min(elements, call.elements - element), first, min(rows, call.n - first))
        for element in range(0, max(1, call.elements), max(1, elements))
        for first in range(0, max(1, call.n), rows)
    ]


def legs_of(tile: str, call: Call) -> list[OperandLegs]:
    """The legs of each present operand."""
    return [legs for legs, is_present in zip(FUNCTIONS[tile].legs, call.present, strict=True) if is_present]


def in_batch(x: Tensor, dims: int | None, batch: list[int]) -> bool:
    """Whether an operand has the first batch dimension, with more than one entry."""
    batched = x.ndim > 2 if dims == -1 else dims != 0 and x.ndim == (dims or 0) + len(batch)
    return bool(batch) and batched and x.shape[0] > 1


def keys_seen(legs: list[OperandLegs], piece: Piece, call: Call) -> KeysSeen:
    """The keys visible to a piece: all keys, or those in reach of its first and last row besides the first ones."""
    left, right, prefix = next((leg.reach for leg in legs if leg.keys), (None, None, 0))
    first, m = piece.first + call.m - call.n, call.m
    end = m if right is None else min(m, max(first + piece.rows + right, 1, prefix))
    begin = 0 if left is None else max(0, min(first - left, end - 1))
    if prefix >= begin and prefix:
        return KeysSeen(0, 0, end)
    return KeysSeen(prefix if prefix < begin else 0, begin, end - begin)


def places(x: Tensor, leg: OperandLegs, block: Block) -> list[list[Slice]]:
    """The slices of an operand that a block sees; dimensions of size 1 are not sliced.

    Two lists, for the first keys and for the nearby ones, if keys between them are skipped.
    """
    piece, keys, call = block
    span = Slice(leg.span, piece.first + call.m - keys.begin - keys.near, piece.rows + keys.near - 1)
    slices = [Slice(leg.rows, piece.first, piece.rows), span]
    slices = [bounds for bounds in slices if bounds.dim and x.shape[bounds.dim] > 1]
    slices += [Slice(-x.ndim, piece.element, piece.elements)] if in_batch(x, leg.own, call.batch) else []
    if not leg.keys or x.shape[leg.keys] == 1:
        return [slices]
    near = [Slice(leg.keys, keys.begin, keys.near), *slices]
    return [[Slice(leg.keys, 0, keys.prefix), *slices], near] if keys.prefix else [near]


def seen(x: Tensor, leg: OperandLegs, block: Block) -> Tensor:
    """The part of an operand that a block sees."""
    segments = views(x, leg, block)
    return segments[0] if len(segments) == 1 else torch.cat(segments, leg.keys)


def views(x: Tensor, leg: OperandLegs, block: Block) -> list[Tensor]:
    """The same part as views of x."""
    segments = []
    for slices in places(x, leg, block):
        segments.append(x)
        for bounds in slices:
            segments[-1] = segments[-1].narrow(*bounds)
    return segments


def split_as_seen(joined: Tensor, x: Tensor, leg: OperandLegs, block: Block) -> tuple[Tensor, ...]:
    """Splits a tensor shaped like the result of `seen` into parts shaped like the `views` of x."""
    segments = places(x, leg, block)
    return joined.split([slices[0].length for slices in segments], leg.keys) if len(segments) > 1 else (joined,)


def result_part(out: Tensor, tile: str, block: Block) -> Tensor:
    """The part of the result that a block computes."""
    piece, _, call = block
    out = out.narrow(FUNCTIONS[tile].out, piece.first, piece.rows)
    return out.narrow(0, piece.element, piece.elements) if call.batch and piece.elements < call.elements else out


@torch.library.custom_op(
    operation("blockwise_forward"),
    mutates_args=(),
    schema=f"(Tensor[] given, Tensor? seed, str tile, {CALL}) -> Tensor",
)
def blockwise_forward(given, seed, tile, *call):
    """`blockwise` as a custom operation; `given`: the operands that are `present`."""
    call, out = Call(*call), None
    for block, rows, parts in blocks(tile, given, seed, call):
        block_out = computed(tile, parts, call, rows)
        out = result_like(block_out, tile, block) if out is None else out
        result_part(out, tile, block).copy_(block_out)
    return out


def result_like(block_out: Tensor, tile: str, block: Block) -> Tensor:
    """An empty tensor for all rows and the whole batch."""
    piece, _, call = block
    shape = list(block_out.shape)
    shape[FUNCTIONS[tile].out] = call.n
    if call.batch and piece.elements < call.elements:
        shape[0] = call.elements
    return block_out.new_empty(shape)


@blockwise_forward.register_fake
def blockwise_shape(given, seed, tile, *call):
    """The shape of the result, from one row on fake tensors: as many rows as keys would compare traced sizes."""
    call = Call(*call)
    block = Block(Piece(0, call.elements, 0, 1), KeysSeen(0, 0, call.m), call)
    rows = Rows(block, None, given[0].device)
    parts = [x.new_empty(shape_of_row(x, leg, call)) for x, leg in zip(given, legs_of(tile, call), strict=True)]
    with CastEinsum(call.cast):
        return result_like(computed(tile, parts, call, rows), tile, block)


def shape_of_row(x: Tensor, leg: OperandLegs, call: Call) -> list[int]:
    """The shape of what one row sees of an operand."""
    sizes = dict(enumerate(x.shape, -x.ndim))
    sizes |= {leg.span: call.m} if sizes.get(leg.span, 1) != 1 else {}
    sizes |= {leg.rows: 1} if leg.rows else {}
    return [*sizes.values()]


class CastEinsum(torch.overrides.TorchFunctionMode):
    """Casts operands of `torch.einsum` as autocast does, which does not reach its products on fake tensors."""

    def __init__(self, dtype: torch.dtype | None):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Calls the function."""
        if function is torch.einsum and self.dtype is not None:
            args = (args[0], *(x.to(self.dtype) for x in args[1:]))
        return function(*args, **(kwargs or {}))


@torch.library.custom_op(
    operation("blockwise_backward"),
    mutates_args=(),
    schema=f"(Tensor gradient, SymInt[] wanted, Tensor[] given, Tensor? seed, str tile, {CALL}) -> Tensor[]",
)
def blockwise_backward(gradient, wanted, given, seed, tile, *call):
    """The gradients of the operands with indices `wanted`, accumulated in at least float32."""
    call = Call(*call)
    legs = legs_of(tile, call)
    dtypes = [torch.promote_types(given[i].dtype, torch.float32) for i in wanted]
    totals = [
        torch.zeros(given[i].shape, dtype=dtype, device=gradient.device)
        for i, dtype in zip(wanted, dtypes, strict=True)
    ]
    gradient = gradient.contiguous()  # derived blocks inherit its layout
    for block, rows, parts in blocks(tile, given, seed, call):
        out_gradient = result_part(gradient, tile, block)
        add_gradients(
            totals, backward_of_block(out_gradient, parts, wanted, tile, call, rows), [legs[i] for i in wanted], block
        )
    return [total.to(given[i].dtype) for i, total in zip(wanted, totals, strict=True)]


def add_gradients(totals: list[Tensor], gradients: tuple, legs: list[OperandLegs], block: Block) -> None:
    """Adds the gradients of a block. A function of its own: none of them is kept while the next block is computed."""
    for total, leg, gradient in zip(totals, legs, gradients, strict=True):
        shares = split_as_seen(gradient, total, leg, block)
        for segment, share in zip(views(total, leg, block), shares, strict=True):
            segment.add_(share)


def backward_of_block(
    out_gradient: Tensor, tensors: list[Tensor], wanted: list[int], tile: str, call: Call, rows: Rows
) -> tuple:
    """The gradients of a block's operands with indices `wanted`; `out_gradient`: the gradient of its result."""
    function, names = GRADIENTS[tile]
    present_names = [name for name, is_present in zip(names, call.present, strict=True) if is_present]
    with torch.autocast(autocast_kind(tensors[0]), call.cast, call.cast is not None, False):
        by_operand = function(rows, out_gradient, {present_names[i] for i in wanted}, *operands_of(tensors, call))
    gradients = [gradient for gradient, is_present in zip(by_operand, call.present, strict=True) if is_present]
    return tuple(
        torch.zeros_like(tensors[i]) if gradients[i] is None else fitted(gradients[i], tensors[i]) for i in wanted
    )


def fitted(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient in the shape of x: summed over broadcast dimensions, expanded where it has size 1."""
    extra_dims = gradient.ndim - x.ndim
    if extra_dims > 0:
        gradient = gradient.sum(tuple(range(extra_dims)))
    broadcast_dims = [dim for dim in range(-1, -gradient.ndim - 1, -1) if x.shape[dim] == 1 != gradient.shape[dim]]
    gradient = gradient.sum(broadcast_dims, keepdim=True) if broadcast_dims else gradient
    return gradient.expand(x.shape)


@blockwise_backward.register_fake
def blockwise_gradients(gradient, wanted, given, *rest):
    """The shapes of the gradients."""
    return [given[i].new_empty(given[i].shape) for i in wanted]


def blockwise_setup_context(ctx, inputs, output):
    """Saves the operands, and nothing as large as a block."""
    tensors, seed, *ctx.call = inputs  # the name of the function, and the fields of the call
    ctx.save_for_backward(*tensors, seed)


def blockwise_autograd(ctx, gradient):
    """The gradients of the operands that require one."""
    *tensors, seed = ctx.saved_tensors
    wanted = wanted_places(ctx.needs_input_grad[0])
    gradients = blockwise_backward(gradient, wanted, tensors, seed, *ctx.call)
    by_operand = gradients_at(gradients, wanted, len(tensors))
    # an empty list could be a list of tensors
    return by_operand, None, *([] if field == [] else None for field in ctx.call)


blockwise_forward.register_autograd(blockwise_autograd, setup_context=blockwise_setup_context)
blockwise_forward.register_vmap(one_by_one(blockwise_forward))
blockwise_backward.register_vmap(one_by_one(blockwise_backward))


class Blockwise(torch.autograd.Function):
    """`blockwise_forward` in eager mode: transforms of torch.func require a Function."""

    generate_vmap_rule = True

    @staticmethod
    def forward(seed, call, *tensors):
        return blockwise_forward(list(tensors), seed, *call)

    @staticmethod
    def setup_context(ctx, inputs, output):
        seed, ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors, seed)

    @staticmethod
    def backward(ctx, gradient):
        *tensors, seed = ctx.saved_tensors
        wanted = wanted_places(ctx.needs_input_grad[2:])
        gradients = applied(BlockwiseGradient, gradient, wanted, seed, ctx.call, *tensors)
        return None, None, *gradients_at(gradients, wanted, len(tensors))


class BlockwiseGradient(torch.autograd.Function):
    """Its backward; its second derivatives are plain code."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient, wanted, seed, call, *tensors):
        return tuple(blockwise_backward(gradient, wanted, list(tensors), seed, *call))

    @staticmethod
    def setup_context(ctx, inputs, output):
        gradient, ctx.wanted, seed, ctx.call, *tensors = inputs
        ctx.save_for_backward(gradient, *tensors, seed)

    @staticmethod
    def backward(ctx, *seconds):
        gradient, *tensors, seed = ctx.saved_tensors
        wanted_twice = wanted_places(ctx.needs_input_grad[4:])
        d_gradient, *d_tensors = rows_twice(seconds, gradient, ctx.wanted, wanted_twice, tensors, seed, *ctx.call)
        return d_gradient, None, None, None, *gradients_at(d_tensors, wanted_twice, len(tensors))


def rows_twice(seconds, gradient, wanted, wanted_twice, tensors, seed, tile, *call) -> list[Tensor]:
    """The gradients of `blockwise_backward`: of `gradient`, and of the operands with indices `wanted_twice`.

    `seconds`: the gradients of its results. Plain code, block by block, with derivatives of every order.
    """
    call = Call(*call)
    legs, totals = legs_of(tile, call), [torch.zeros_like(tensors[i]) for i in wanted_twice]
    by_element: dict[int, list[Tensor]] = {}
    for block, rows, parts in blocks(tile, tensors, seed, call):

        def again(out_gradient, *asked_tensors, parts=parts, rows=rows):
            replaced = dict(zip(wanted_twice, asked_tensors, strict=True))
            parts = [replaced.get(i, tensor) for i, tensor in enumerate(parts)]
            return backward_of_block(out_gradient, parts, wanted, tile, call, rows)

        pullback = torch.func.vjp(again, result_part(gradient, tile, block), *(parts[i] for i in wanted_twice))[1]
        gradient_share, *shares = pullback(tuple(seen(x, legs[i], block) for x, i in zip(seconds, wanted, strict=True)))
        by_element.setdefault(block.piece.element, []).append(gradient_share)
        contributions = zip(totals, wanted_twice, shares, strict=True)
        totals = [total + among_zeros(share, tensors[i], legs[i], block) for total, i, share in contributions]
    return [torch.cat([torch.cat(shares, FUNCTIONS[tile].out) for shares in by_element.values()]), *totals]


def among_zeros(share: Tensor, x: Tensor, leg: OperandLegs, block: Block) -> Tensor:
    """The contribution of a block to x, padded with zeros to the shape of x: the adjoint of `seen`."""
    padded = []
    segments = zip(places(x, leg, block), split_as_seen(share, x, leg, block), strict=True)
    for slices, segment in segments:
        for dim, first, length in slices:
            segment = F.pad(segment, [0, 0] * (-1 - dim) + [first, x.shape[dim] - first - length])
        padded.append(segment)
    return sum(padded[1:], padded[0])
