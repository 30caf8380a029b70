"""Regions of queries x keys as custom operations with gradients; the kernels are generated for each region."""

import torch
from torch import Tensor

from tensornet_attn.runtime.operations import one_by_one, operation
from tensornet_attn.runtime.products import autocast_dtype
from tensornet_attn.runtime.triton.kernels.linear_chunks import row_sums_gradient
from tensornet_attn.runtime.triton.kernels.region_launch import REGIONS, Launch, Region, one_width, with_batch
from tensornet_attn.runtime.triton.kernels.region_parts import join, join_rows


def tiled(
    name: str,
    operands: list[Tensor | None],
    n: int,
    m: int,
    batch: tuple[int, ...],
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    numbers: list[float] = (),
    training: bool = False,
) -> Tensor:
    """The result of region `name`: [batch..., heads..., n, width...]; no tensor of n x m elements is created."""
    present = [x is not None for x in operands]
    operands = [x for x in operands if x is not None]
    seed = torch.randint(2**62, (1,), device=operands[0].device) if REGIONS[name].random and training else None
    call = (name, present, n, m, list(batch), list(map(float, numbers)), training, autocast_dtype(operands[0]))
    if torch.compiler.is_compiling():
        return tiles_forward(operands, mask, key_mask, seed, *call)[0]
    return TiledRegion.apply(call, seed, mask, key_mask, *operands)[0]


def given_noise(noise: dict[str, Tensor] | None, name: str, order: tuple[int, ...]) -> Tensor | None:
    """The noise given under `name`, with its legs in this order. Returns None if it is not given."""
    x = None if noise is None else noise.get(name)
    return None if x is None else x.movedim([i - len(order) for i in order], list(range(-len(order), 0)))


@torch.library.custom_op(operation("tiles_forward"), mutates_args=())
def tiles_forward(
    operands: list[Tensor],
    mask: Tensor | None,
    key_mask: Tensor | None,
    seed: Tensor | None,
    name: str,
    present: list[bool],
    n: int,
    m: int,
    batch: list[int],
    numbers: list[float],
    training: bool,
    cast: torch.dtype | None,
) -> list[Tensor]:
    """The result of a region, [batch..., legs], and per map row the log-sum-exp, or 1 / (sum + eps)."""
    run = Launch(operands, mask, key_mask, seed, name, present, n, m, batch, numbers, training, cast)
    region = run.region
    legs = region.result.split()
    with torch.cuda.device_of(run.like):
        out = run.room(legs, run.dtype)
        lse = torch.empty(run.pairs, len(region.reads), n, device=out.device, dtype=run.sums)
        forward_of(run, out, lse)
        return [run.joined(out, legs).view(*run.batch, *run.whole(legs)), lse]


def forward_of(run: Launch, out: Tensor, lse: Tensor) -> None:
    """`tiles_forward` for a launch. If there are few programs, several share the keys of a block of queries."""
    region, query, rows = run.region, run.region.sides[0], lse
    if "statistics" in region.kernels:
        if (parts := run.parts("statistics")) > 1:
            rows = lse.new_empty(parts, *lse.shape)
        run.launch("statistics", query, parts, lse=rows)
        join_rows(lse, rows, region.normalized)
    if (parts := run.parts("forward")) == 1:
        run.launch("forward", query, out=out, lse=lse)
        return
    values = lse.new_empty(parts, *out.shape)
    if "statistics" in region.kernels or not region.reads:
        run.launch("forward", query, parts, out=values, lse=lse)
        out.copy_(values.sum(0))
        return
    rows = lse.new_empty(parts, *lse.shape)
    run.launch("forward", query, parts, out=values, lse=rows)
    if region.log:
        join_rows(lse, rows, ())
        join_rows(out, values, ())
    else:
        join(out, lse, values, rows, region.reads, region.normalized)


@tiles_forward.register_fake
def tiles_shape(operands, mask, key_mask, seed, name, present, n, m, batch, numbers, training, cast):
    """The shapes of the results."""
    run = Launch(operands, mask, key_mask, seed, name, present, n, m, batch, numbers, training, cast)
    legs = run.region.result.split()
    out = operands[0].new_empty([*run.batch, *run.whole(legs)], dtype=run.dtype)
    return [out, operands[0].new_empty([run.pairs, len(run.region.reads), n], dtype=run.sums)]


@torch.library.custom_op(operation("tiles_backward"), mutates_args=())
def tiles_backward(
    gradient: Tensor,
    out: Tensor,
    lse: Tensor,
    wanted: list[bool],
    operands: list[Tensor],
    mask: Tensor | None,
    key_mask: Tensor | None,
    seed: Tensor | None,
    name: str,
    present: list[bool],
    n: int,
    m: int,
    batch: list[int],
    numbers: list[float],
    training: bool,
    cast: torch.dtype | None,
) -> list[Tensor]:
    """The gradients of the `wanted` operands, and of the mask last."""
    run = Launch(operands, mask, key_mask, seed, name, present, n, m, batch, numbers, training, cast)
    with torch.cuda.device_of(run.like):
        return backward_of(run, gradient, out, lse, wanted, mask)


def backward_of(
    run: Launch, gradient: Tensor, out: Tensor, lse: Tensor, wanted: list[bool], mask: Tensor | None
) -> list[Tensor]:
    """`tiles_backward` for a launch."""
    region, (query, key) = run.region, run.region.sides
    apart = apart_in_programs(run, gradient).contiguous()
    sums = torch.empty_like(lse)
    if region.reads and "sums" not in region.kernels:
        product = row_dots(run, apart, apart_in_programs(run, out))
        every = [[i] for i in range(product.shape[1])]
        sums = product if region.reads == every else torch.stack([product[:, own].sum(1) for own in region.reads], 1)
    rooms = {kind: {} for kind in region.kernels}
    names = [name for name, x in run.operands.items() if x is not None]
    legs = {name: region.legs_of_gradient(name) for name in region.operands}
    legs["mask"] = [*region.others.split(), query, key]
    for name, own in legs.items():
        by = kernel_for(region, name)
        blocks = None if {query, key} & {*own} else run.blocks(by, region.relative if by == "places" else query)
        asked = wanted[names.index(name)] if name in names else name == "mask" and wanted[-1]
        whole = None if blocks or name in region.tables else mask if name == "mask" else run.operands[name]
        rooms[by][name] = run.room(own, run.sums, blocks, by, whole) if asked else None
    for kind, own in rooms.items():
        arguments = region.kernels[kind].arg_names
        taken = {f"{name}_grad": room for name, room in own.items() if f"{name}_grad" in arguments}
        if kind == "sums" or any(room is not None for room in taken.values()):
            side = {"keys": key, "places": region.relative}.get(kind, query)
            run.launch(kind, side, lse=lse, gradient=apart, sums=sums, **taken)
    found = {name: room for own in rooms.values() for name, room in own.items()}
    tensors = [*((name, run.operands[name]) for name in names), *([("mask", mask)] if wanted[-1] else [])]
    return [
        gathered(run, name, found[name], legs[name], x, mask)
        for (name, x), asked in zip(tensors, wanted, strict=False)
        if asked
    ]


def row_dots(run: Launch, a: Tensor, b: Tensor) -> Tensor:
    """Inner products of the rows of [pairs, tiles, n, width...], in the dtype of sums: [pairs, tiles, n]."""
    if a.ndim == 3:
        return a.to(run.sums) * b
    a, b = (x.flatten(3).contiguous() for x in (a, b))
    return row_sums_gradient(a, b, None).to(run.sums)


def kernel_for(region: Region, name: str) -> str:
    """The kernel that computes the gradient of an operand, or of the mask."""
    return next((kind for kind, kernel in region.kernels.items() if f"{name}_grad" in kernel.arg_names), "rows")


def apart_in_programs(run: Launch, x: Tensor) -> Tensor:
    """The inverse of `joined`: [batch..., legs] of the result as [pairs, tiles, sides]."""
    region, legs = run.region, run.region.result.split()
    x = one_width(with_batch(x, run.whole(legs), run.batch), legs, region.widths)
    own = [leg for leg in region.heads if leg in legs]
    sides = x.shape[1 + len(own) :]
    split = [size for leg in own for size in (run.programs[leg], region.heads[leg])]
    x = x.reshape(run.count, *split, *sides)
    programs, tiles = [1 + 2 * i for i in range(len(own))], [2 + 2 * i for i in range(len(own))]
    x = x.permute(0, *programs, *tiles, *range(1 + 2 * len(own), x.ndim))
    for i, leg in enumerate(region.heads):
        if leg not in own:
            x = x.unsqueeze(1 + i)
    shape = [run.count, *run.programs.values(), *x.shape[1 + len(region.heads) :]]
    return x.expand(shape).reshape(run.pairs, run.tiles(legs), *sides)


def gathered(run: Launch, name: str, room: Tensor, legs: list[str], x: Tensor, mask: Tensor | None) -> Tensor:
    """The gradient of an operand, from the outputs of the programs."""
    programs = run.apart(kernel_for(run.region, name), legs)
    if not {*run.region.sides} & {*legs}:
        room, programs = overlapping(run, room) if run.region.relative in legs else room.sum(1), run.programs
    found = run.joined(room, legs, programs)
    found = found.view(*run.batch, *found.shape[1:]) if run.batch else found[0]
    if name in run.region.tables and legs != run.region.operands[name].split():
        found = found.sum(-2)  # sum over the rows of all queries
    shape = run.mask_shape if x is mask else x.shape
    return found.sum_to_size(shape).reshape(x.shape).to(x.dtype)


def overlapping(run: Launch, room: Tensor) -> Tensor:
    """[pairs, blocks, tiles, positions, ...] as one row of positions; second halves overlap with the next block."""
    size, keys = room.shape[3] // 2, run.lengths[run.region.sides[1]]
    found = room.new_zeros(len(room), room.shape[1] + 1, room.shape[2], size, *room.shape[4:])
    found[:, :-1] += room[:, :, :, :size]
    found[:, 1:] += room[:, :, :, size:]
    return found.movedim(1, 2).flatten(2, 3).narrow(2, -keys % size, run.lengths[run.region.relative])


@tiles_backward.register_fake
def tiles_gradients(gradient, out, lse, wanted, operands, mask, *rest):
    """The shapes of the gradients."""
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for x, asked in zip([*operands, *[mask] * wanted[-1]], wanted, strict=False)
        if asked
    ]


def tiles_save(ctx, inputs, output):
    """Saves the operands, the result, and one number per map row."""
    operands, mask, key_mask, seed, *ctx.call = inputs
    kept_for_backward(ctx, operands, (mask, key_mask, seed), output)


def kept_for_backward(ctx, operands, some, output):
    """Saves tensors, some of which may be None."""
    ctx.save_for_backward(*operands, *output, *some)
    ctx.mark_non_differentiable(output[1])


def saved_backward(ctx, gradient, wanted, backward):
    """The gradients of the operands, and of the mask last; None unless `wanted`."""
    *operands, out, lse, mask, key_mask, seed = ctx.saved_tensors
    found = list(backward(ctx.call, wanted, (seed, key_mask), gradient, out, lse, mask, *operands))
    return [found.pop(0) if asked else None for asked in wanted]


def tiles_autograd(ctx, gradients):
    """The gradients of the operands that require one."""
    wanted = [*ctx.needs_input_grad[0], ctx.needs_input_grad[1]]
    *tensors, mask = saved_backward(ctx, gradients[0], wanted, gradients_of)
    return tensors, mask, None, None, *([] if one == [] else None for one in ctx.call)  # [] could be a list of tensors


tiles_forward.register_autograd(tiles_autograd, setup_context=tiles_save)


def gradients_of(call, wanted, others, gradient, out, lse, mask, *operands):
    """`tiles_backward`; `others`: tensors that need no gradient."""
    seed, key_mask = others
    return tuple(tiles_backward(gradient, out, lse, wanted, list(operands), mask, key_mask, seed, *call))


tiles_forward.register_vmap(one_by_one(tiles_forward))
tiles_backward.register_vmap(one_by_one(tiles_backward))


class TiledRegion(torch.autograd.Function):
    """`tiles_forward` in eager mode: transforms of torch.func require a Function."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call, seed, mask, key_mask, *operands):
        return tuple(tiles_forward(list(operands), mask, key_mask, seed, *call))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.call, seed, mask, key_mask, *operands = inputs
        kept_for_backward(ctx, operands, (mask, key_mask, seed), output)

    @staticmethod
    def backward(ctx, gradient, _):
        wanted = [*ctx.needs_input_grad[4:], ctx.needs_input_grad[2]]
        *tensors, mask = saved_backward(ctx, gradient, wanted, TiledGradient.apply)
        return None, None, mask, None, *tensors


class TiledGradient(torch.autograd.Function):
    """Its backward, which is not differentiable."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call, wanted, others, *tensors):
        return gradients_of(call, wanted, others, *tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Saves nothing."""

    @staticmethod
    def backward(ctx, *seconds):
        raise RuntimeError("Triton kernels have first derivatives only; use backend='torch' for higher ones.")
