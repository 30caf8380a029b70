"""Functions of queries, computed a block at a time and recomputed in the backward: memory linear in n and m."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.operations import one_by_one, operation, own_name
from tensornet_attn.runtime.products import autocast_dtype, autocast_kind

FUNCTIONS: dict = {}  # name: (function, legs of each operand, place of the result's query leg): `block_function`'s
GRADIENTS: dict = {}  # name: (its gradient, the names of the operands): `block_gradient`'s


class Rows:
    """What a function of a block of rows knows beside its operands.

    `at`: the positions of its rows, [block]; `n`, `keys`: the queries and keys of the whole call; `m`: the keys that
    the rows may see, `prefix` of them the first of all, the others from the position `begin` on; `batch`: the block's
    batch dimensions; `sizes`: sizes that no operand shows; `random`: the generator to draw from.
    """

    def __init__(
        self,
        piece: tuple,
        call: tuple,
        keys: tuple[int, int, int],
        random: torch.Generator | None,
        device: torch.device,
    ):
        _, self.n, self.keys, batch, _, self.training, self.sizes, _ = call
        _, elements, first, count = piece
        self.prefix, self.begin, near = keys
        self.m = self.prefix + near
        self.batch = [elements, *batch[1:]] if batch else []
        self.at = torch.arange(first + self.keys - self.n, first + self.keys - self.n + count, device=device)
        self.random = random


def block_function(
    rows: tuple[int, ...],
    out: int,
    spans: tuple[int, ...] = (),
    keys: tuple[int, ...] = (),
    legs: tuple[int, ...] = (),
    reach: tuple[int | None, int | None, int] = (None, 0, 0),
):
    """Makes a function of a block, f(rows: Rows, *operands), into its name, by which `blockwise` knows it.

    The name has that of the module before it: functions of two modules are never mixed up.

    `rows`: of each operand the dimension, from the end, of its query leg, 0 where it has none; `spans`: that of a leg
    of relative positions, of which a block of b rows that see m keys has b + m - 1; `out`: that of the query leg of the
    result. `keys`: that of the key leg, given where a row sees no key further before or after itself than `reach` says,
    but for so many of the first ones, by default none that is later: a block then has no others. `legs`: how many
    dimensions of each operand are not of the batch, 0 where none is, None where all are, -1 for a mask: all but its
    last two may be. Not given, a block has the whole batch.
    """

    def known(function):
        none = [0] * len(rows)
        places = zip(rows, spans or none, keys or none, legs or none, strict=True)
        name = own_name(f"{function.__module__}.{function.__name__}", FUNCTIONS)
        FUNCTIONS[name] = function, tuple((*own[:-1], reach, own[-1]) for own in places), out
        return name

    return known


def block_gradient(name: str):
    """Makes a function the backward of the function of a block, f(rows: Rows, gradient, wanted, *operands).

    It returns the gradient of each operand, None for those that have none. `wanted`: the names of those that are used.
    """

    def known(function):
        code = function.__code__
        GRADIENTS[name] = function, code.co_varnames[3 : code.co_argcount]
        return function

    return known


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
    """The function `tile` of all n query rows, a block of them at a time: the numbers of one block stand in memory.

    `block`: the least number of rows; the pairs of a query and a key; and the keys that a row counts for at least,
    where its own numbers take more room than that. A block has rows of one element of the batch, of several where all
    its rows are too few: wide products are faster, and less is added to the gradients of keys and values.

    The backward computes each block again; what is drawn, where `random`, it draws alike.
    """
    given = [x for x in operands if x is not None]
    seed = torch.randint(2**62, (), device="cpu") if random else None
    cast = autocast_dtype(given[0])
    call = ([x is not None for x in operands], n, m, list(batch), list(block), training, list(sizes), cast)
    for x, (rows, *_) in zip(given, legs_of(tile, call), strict=True):
        if rows and x.shape[rows] not in (1, n):
            own, shape = tile.split(".")[-1], list(x.shape)
            raise ValueError(f"'{own}': an operand of shape {shape} has not 1 or {n} rows on dimension {rows}.")
    if torch.compiler.is_compiling():
        return blockwise_forward(given, seed, tile, *call)
    return Blockwise.apply(seed, (tile, *call), *given)


def computed(tile: str, given: list[Tensor], call: tuple, rows: Rows) -> Tensor:
    """The function of these operands, under the autocast of the call."""
    with torch.autocast(autocast_kind(given[0]), call[-1], call[-1] is not None, False):
        return FUNCTIONS[tile][0](rows, *operands_of(given, call))


def operands_of(given: list[Tensor], call: tuple) -> list[Tensor | None]:
    """Each operand, None where it was not given."""
    some = iter(given)
    return [next(some) if is_there else None for is_there in call[0]]


def blocks(tile: str, given: list[Tensor], seed: Tensor | None, call: tuple):
    """(piece, Rows, the operands' parts) for each block; a piece is its first element, elements, first row, rows."""
    legs, random = legs_of(tile, call), None if seed is None else torch.Generator(given[0].device)
    # What each block reads whole is laid out once, so that no product has to.
    found = zip(given, legs, strict=True)
    given = [x if rows or x.dtype == torch.bool else x.contiguous() for x, (rows, *_) in found]
    for number, piece in enumerate(pieces_of(given, legs, call)):
        if random is not None:
            random.manual_seed(seed.item() + number)
        parts = [seen(x, i, legs, piece, call) for i, x in enumerate(given)]
        yield piece, Rows(piece, call, keys_seen(legs, piece, call), random, given[0].device), parts


def pieces_of(given: list[Tensor], legs: list[tuple], call: tuple) -> list[tuple[int, int, int, int]]:
    """The pieces that make up the whole call."""
    _, n, m, batch, (least, pairs, *keys), *_ = call
    every = batch[0] if batch else 1
    apart = any(in_batch(x, own, batch) for x, (*_, own) in zip(given, legs, strict=True))
    row = max(1, m, *keys) * max(1, math.prod(batch[1:] if apart else batch))  # pairs of a row
    block, elements = max(least, pairs // row), every
    if apart:
        elements = 1 if block < n else max(1, pairs // (row * max(1, n)))
    starts = [(element, min(elements, every - element)) for element in range(0, max(1, every), max(1, elements))]
    return [(*start, first, min(block, n - first)) for start in starts for first in range(0, max(1, n), block)]


def legs_of(tile: str, call: tuple) -> list[tuple]:
    """(query leg, relative leg, key leg, reach of the function, number of legs) of each operand that was given."""
    return [legs for legs, is_there in zip(FUNCTIONS[tile][1], call[0], strict=True) if is_there]


def in_batch(x: Tensor, own: int | None, batch: list[int]) -> bool:
    """Whether an operand has an entry for each element of the first dimension of the batch."""
    has = x.ndim > 2 if own == -1 else own != 0 and x.ndim == (own or 0) + len(batch)
    return bool(batch) and has and x.shape[0] > 1


def keys_seen(legs: list[tuple], piece: tuple, call: tuple) -> tuple[int, int, int]:
    """How many of the first keys a piece may see, and from which one on how many others.

    These are all, or those that its first and its last row reach.
    """
    _, n, m, *_ = call
    left, right, prefix = next((reach for _, _, keys, reach, _ in legs if keys), (None, None, 0))
    _, _, first, count = piece
    end = m if right is None else min(m, max(first + count + m - n + right, 1, prefix))
    begin = 0 if left is None else max(0, min(first + m - n - left, end - 1))
    return (prefix, begin, end - begin) if prefix < begin else (0, 0, end) if prefix else (0, begin, end - begin)


def places(x: Tensor, place: int, legs: list[tuple], piece: tuple, call: tuple) -> list[list[tuple[int, int, int]]]:
    """(dimension, first, length) of what a piece sees of the operand at a place; one entry stands for all.

    Of the first keys and those nearby apart, where keys between them are left out.
    """
    (element, elements, first, count), (rows, span, key, _, own) = piece, legs[place]
    prefix, begin, keys = keys_seen(legs, piece, call)
    found = [(rows, first, count), (span, first + call[2] - begin - keys, count + keys - 1)]
    found = [place for place in found if place[0] and x.shape[place[0]] > 1]
    found += [(-x.ndim, element, elements)] if in_batch(x, own, call[3]) else []
    if not key or x.shape[key] == 1:
        return [found]
    return [[(key, *some), *found] for some in ([(0, prefix)] if prefix else []) + [(begin, keys)]]


def seen(x: Tensor, place: int, legs: list[tuple], piece: tuple, call: tuple) -> Tensor:
    """The part of the operand at a place that a piece sees."""
    parts = views(x, place, legs, piece, call)
    return parts[0] if len(parts) == 1 else torch.cat(parts, legs[place][2])


def views(x: Tensor, place: int, legs: list[tuple], piece: tuple, call: tuple) -> list[Tensor]:
    """The same as parts of x itself."""
    found = []
    for part in places(x, place, legs, piece, call):
        found.append(x)
        for spot in part:
            found[-1] = found[-1].narrow(*spot)
    return found


def split_as_seen(
    one: Tensor, x: Tensor, place: int, legs: list[tuple], piece: tuple, call: tuple
) -> tuple[Tensor, ...]:
    """What is as large as what is `seen` of x, in parts as large as its `views`."""
    parts = places(x, place, legs, piece, call)
    return one.split([spot[0][2] for spot in parts], legs[place][2]) if len(parts) > 1 else (one,)


def result_part(whole: Tensor, tile: str, piece: tuple, call: tuple) -> Tensor:
    """The part of the result that a piece gives."""
    element, elements, first, count = piece
    whole = whole.narrow(FUNCTIONS[tile][2], first, count)
    return whole.narrow(0, element, elements) if call[3] and elements < call[3][0] else whole


@torch.library.custom_op(operation("blockwise_forward"), mutates_args=())
def blockwise_forward(
    given: list[Tensor],
    seed: Tensor | None,
    tile: str,
    present: list[bool],
    n: int,
    m: int,
    batch: list[int],
    block: list[int],
    training: bool,
    sizes: list[int],
    cast: torch.dtype | None,
) -> Tensor:
    """`blockwise` as one operation; `given`: the operands that are `present`."""
    call, whole = (present, n, m, batch, block, training, sizes, cast), None
    for piece, rows, parts in blocks(tile, given, seed, call):
        part = computed(tile, parts, call, rows)
        whole = result_like(part, tile, piece, call) if whole is None else whole
        result_part(whole, tile, piece, call).copy_(part)
    return whole


def result_like(part: Tensor, tile: str, piece: tuple, call: tuple) -> Tensor:
    """An empty tensor for all rows and the whole batch."""
    shape = list(part.shape)
    shape[FUNCTIONS[tile][2]] = call[1]
    if call[3] and piece[1] < call[3][0]:
        shape[0] = call[3][0]
    return part.new_empty(shape)


@blockwise_forward.register_fake
def blockwise_shape(given, seed, tile, *call):
    """The shape: that of all rows at once, computed without numbers."""
    piece = (0, call[3][0] if call[3] else 1, 0, call[1])
    rows = Rows(piece, call, (0, 0, call[2]), None, given[0].device)
    return result_like(computed(tile, given, call, rows), tile, piece, call)


@torch.library.custom_op(operation("blockwise_backward"), mutates_args=())
def blockwise_backward(
    gradient: Tensor,
    wanted: list[int],
    given: list[Tensor],
    seed: Tensor | None,
    tile: str,
    present: list[bool],
    n: int,
    m: int,
    batch: list[int],
    block: list[int],
    training: bool,
    sizes: list[int],
    cast: torch.dtype | None,
) -> list[Tensor]:
    """The gradients of the operands at the places `wanted`, summed in float32 at least."""
    call, legs = (present, n, m, batch, block, training, sizes, cast), legs_of(tile, (present,))
    exact = [torch.promote_types(given[i].dtype, torch.float32) for i in wanted]
    totals = [torch.zeros(given[i].shape, dtype=d, device=gradient.device) for i, d in zip(wanted, exact, strict=True)]
    gradient = gradient.contiguous()  # what is made of it takes its layout, as large as a block
    for piece, rows, parts in blocks(tile, given, seed, call):
        own = result_part(gradient, tile, piece, call)
        for i, total, one in zip(wanted, totals, backward_of_block(own, parts, wanted, tile, call, rows), strict=True):
            shares = split_as_seen(one, total, i, legs, piece, call)
            for part, share in zip(views(total, i, legs, piece, call), shares, strict=True):
                part.add_(share)
    return [total.to(given[i].dtype) for i, total in zip(wanted, totals, strict=True)]


def backward_of_block(own: Tensor, parts: list[Tensor], wanted: list[int], tile: str, call: tuple, rows: Rows) -> tuple:
    """The gradients of a block's operands at the places `wanted`; `own`: the gradient of its result."""
    function, names = GRADIENTS[tile]
    names_given = [name for name, is_there in zip(names, call[0], strict=True) if is_there]
    with torch.autocast(autocast_kind(parts[0]), call[-1], call[-1] is not None, False):
        every = function(rows, own, {names_given[i] for i in wanted}, *operands_of(parts, call))
    found = [one for one, is_there in zip(every, call[0], strict=True) if is_there]
    return tuple(torch.zeros_like(parts[i]) if found[i] is None else fitted(found[i], parts[i]) for i in wanted)


def fitted(gradient: Tensor, x: Tensor) -> Tensor:
    """A gradient in the shape of x: added up over what x has one entry for, repeated where it has one itself."""
    more = gradient.ndim - x.ndim
    if more > 0:
        gradient = gradient.sum(tuple(range(more)))
    alone = [dim for dim in range(-1, -gradient.ndim - 1, -1) if x.shape[dim] == 1 != gradient.shape[dim]]
    gradient = gradient.sum(alone, keepdim=True) if alone else gradient
    return gradient.expand(x.shape)


@blockwise_backward.register_fake
def blockwise_gradients(gradient, wanted, given, *rest):
    """The shapes of the gradients."""
    return [given[i].new_empty(given[i].shape) for i in wanted]


def blockwise_setup_context(ctx, inputs, output):
    """Keeps the operands, nothing of the size of a block."""
    given, seed, *ctx.call = inputs
    ctx.save_for_backward(*given, seed)


def blockwise_autograd(ctx, gradient):
    """The gradients of the operands that want one."""
    *given, seed = ctx.saved_tensors
    wanted = [i for i in range(len(given)) if ctx.needs_input_grad[0][i]]
    found = blockwise_backward(gradient, wanted, given, seed, *ctx.call)
    tensors = [found[wanted.index(i)] if i in wanted else None for i in range(len(given))]
    return tensors, None, *([] if one == [] else None for one in ctx.call)  # an empty list might be one of tensors


blockwise_forward.register_autograd(blockwise_autograd, setup_context=blockwise_setup_context)
blockwise_forward.register_vmap(one_by_one(blockwise_forward))
blockwise_backward.register_vmap(one_by_one(blockwise_backward))


class Blockwise(torch.autograd.Function):
    """The same for eager code, where transforms of torch.func want a Function."""

    generate_vmap_rule = True

    @staticmethod
    def forward(seed, call, *given):
        return blockwise_forward(list(given), seed, *call)

    @staticmethod
    def setup_context(ctx, inputs, output):
        seed, ctx.call, *given = inputs
        ctx.save_for_backward(*given, seed)

    @staticmethod
    def backward(ctx, gradient):
        *given, seed = ctx.saved_tensors
        wanted = [i for i in range(len(given)) if ctx.needs_input_grad[2 + i]]
        found = BlockwiseGradient.apply(gradient, wanted, seed, ctx.call, *given)
        return None, None, *(found[wanted.index(i)] if i in wanted else None for i in range(len(given)))


class BlockwiseGradient(torch.autograd.Function):
    """Its backward; what differentiates that again is plain code."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient, wanted, seed, call, *given):
        return tuple(blockwise_backward(gradient, wanted, list(given), seed, *call))

    @staticmethod
    def setup_context(ctx, inputs, output):
        gradient, ctx.wanted, seed, ctx.call, *given = inputs
        ctx.save_for_backward(gradient, *given, seed)

    @staticmethod
    def backward(ctx, *seconds):
        gradient, *given, seed = ctx.saved_tensors
        asked = [i for i in range(len(given)) if ctx.needs_input_grad[4 + i]]
        own, *found = rows_twice(seconds, gradient, ctx.wanted, asked, given, seed, *ctx.call)
        return own, None, None, None, *(found[asked.index(i)] if i in asked else None for i in range(len(given)))


def rows_twice(seconds, gradient, wanted, asked, given, seed, tile, *call) -> list[Tensor]:
    """The gradients of `blockwise_backward`: of its `gradient`, and of the operands at the places `asked`.

    `seconds`: the gradients of its results. Plain code, block by block: it has derivatives of every order.
    """
    legs, totals = legs_of(tile, call), [torch.zeros_like(given[i]) for i in asked]
    owns: dict[int, list[Tensor]] = {}
    for piece, rows, parts in blocks(tile, given, seed, call):

        def again(own, *some, parts=parts, rows=rows):
            new = dict(zip(asked, some, strict=True))
            parts = [new.get(i, part) for i, part in enumerate(parts)]
            return backward_of_block(own, parts, wanted, tile, call, rows)

        own = result_part(gradient, tile, piece, call)
        _, pull = torch.func.vjp(again, own, *(parts[i] for i in asked))
        one, *some = pull(tuple(seen(x, i, legs, piece, call) for x, i in zip(seconds, wanted, strict=True)))
        owns.setdefault(piece[0], []).append(one)
        found = zip(totals, asked, some, strict=True)
        totals = [total + among_zeros(one, given[i], i, legs, piece, call) for total, i, one in found]
    return [torch.cat([torch.cat(same, FUNCTIONS[tile][2]) for same in owns.values()]), *totals]


def among_zeros(one: Tensor, x: Tensor, place: int, legs: list[tuple], piece: tuple, call: tuple) -> Tensor:
    """What a piece gives to x, as large as x: the opposite of `seen`."""
    found = []
    parts = zip(places(x, place, legs, piece, call), split_as_seen(one, x, place, legs, piece, call), strict=True)
    for spots, part in parts:
        for dim, first, length in spots:
            part = F.pad(part, [0, 0] * (-1 - dim) + [first, x.shape[dim] - first - length])
        found.append(part)
    return sum(found[1:], found[0])
