"""Regions of queries x keys as custom operations with gradients; the kernels are generated for each region."""

import math

import torch
from torch import Tensor

from tensornet_attn.runtime.operations import asks_gradients, for_each_gradient, is_plain, one_by_one, operation
from tensornet_attn.runtime.products import autocast_dtype
from tensornet_attn.runtime.softmax import laid_out
from tensornet_attn.runtime.triton.kernels.linear_chunks import row_products_of
from tensornet_attn.runtime.triton.kernels.region_launch import REGIONS, Launch, RegionKernels, launch_of
from tensornet_attn.runtime.triton.kernels.region_parts import join, join_rows
from tensornet_attn.runtime.triton.kernels.region_store import (
    Stored,
    by_programs,
    from_programs,
    gradient_layout,
    result_layout,
    stored_gradient,
    stored_result,
)


def tiled(
    name: str,
    operands: list[Tensor | None],
    n: int,
    m: int,
    batch: tuple[int, ...],
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    numbers: list[float] | tuple[float, ...] = (),
    training: bool = False,
) -> Tensor:
    """The result of region `name`: [batch..., heads..., n, width...]; no tensor of n x m elements is created."""
    present = [x is not None for x in operands]
    tensors = [x for x in operands if x is not None]
    if mask is not None and mask.dtype != torch.bool:
        name = REGIONS[name].biased or name
    seed = torch.randint(2**62, (1,), device=tensors[0].device) if REGIONS[name].random and training else None
    call = (name, present, n, m, list(batch), list(map(float, numbers)), training, autocast_dtype(tensors[0]))
    if is_plain((*tensors, mask, key_mask)):
        if asks_gradients(*tensors, mask):
            return PlainRegion.apply(call, seed, mask, key_mask, *tensors)[0]
        return results_of(tensors, mask, key_mask, seed, *call)[0]
    if torch.compiler.is_compiling():
        return tiles_forward(tensors, mask, key_mask, seed, *call)[0]
    return TiledRegion.apply(call, seed, mask, key_mask, *tensors)[0]


def given_noise(noise: dict[str, Tensor] | None, name: str, order: tuple[int, ...]) -> Tensor | None:
    """The noise given under `name`, with its legs in this order. Returns None if it is not given."""
    x = None if noise is None else noise.get(name)
    return None if x is None else x.movedim([i - len(order) for i in order], list(range(-len(order), 0)))


REGION = (  # the schema of its operands and call
    "Tensor[] operands, Tensor? mask, Tensor? key_mask, Tensor? seed, str name, bool[] present, SymInt n, SymInt m, "
    "SymInt[] batch, float[] numbers, bool training, ScalarType? cast"
)


def results_of(operands, mask, key_mask, seed, *call) -> list[Tensor]:
    """The result of a region, [batch..., legs], and the statistics of the rows of maps."""
    run = launch_of(operands, mask, key_mask, seed, *call)
    region = run.region
    with torch.cuda.device_of(run.like):
        store, length = stored_result(run), run.lengths[region.sides[0]]
        lse = torch.empty(run.pairs, region.statistics, length, device=run.like.device, dtype=run.sums)
        return [forward_of(run, store, lse), lse]


def forward_of(run: Launch, store: Stored, lse: Tensor) -> Tensor:
    """The result of a launch. If there are few programs, several share the keys of a block of queries."""
    region, query, rows, mask = run.region, run.region.sides[0], lse, run.constants["MASK"]
    if "statistics" in region.kernels:
        if (parts := run.parts("statistics")) > 1:
            rows = lse.new_empty(parts, *lse.shape)
        run.launch("statistics", query, parts, lse=rows)
        join_rows(lse, rows, region.normalized, mask)
    step = {"out_step": store.step}
    if (parts := run.parts("forward")) == 1:
        out = store.room(run.like)
        run.launch("forward", query, steps=step, out=out, lse=lse)
        return store.added(out)
    values = store.room(run.like, parts, dtype=lse.dtype)
    if "statistics" in region.kernels or not region.reads:
        run.launch("forward", query, parts, step, out=values, lse=lse)
        return store.added(torch.sum(values, 0, out=store.room(run.like, dtype=lse.dtype)).to(store.dtype))
    rows = lse.new_empty(parts, *lse.shape)
    run.launch("forward", query, parts, step, out=values, lse=rows)
    values = from_programs(run, values, 1, store.parts)
    if region.log:
        join_rows(lse, rows, (), mask)
        joined_values = values.logsumexp(0)
        joined_values = joined_values.where(joined_values != -math.inf, -1e15)
    else:
        joined_values = torch.empty(values.shape[1:], device=values.device, dtype=run.out_dtype)
        join(joined_values, lse, values, rows, region.reads, region.normalized, mask)
    out = torch.empty_strided(store.shape, store.strides, device=values.device, dtype=run.out_dtype)
    return out.copy_(run.joined(joined_values, region.result.split()).view(store.shape))


tiles_forward = torch.library.custom_op(
    operation("tiles_forward"), results_of, mutates_args=(), schema=f"({REGION}) -> Tensor[]"
)


@tiles_forward.register_fake
def tiles_shape(operands, mask, *others):
    """The shapes of the results."""
    run = Launch(operands, mask, *others)
    if mask is not None:
        run.mask_shape(mask)  # refuses wrong dimensions
    out = torch.empty_strided(*result_layout(run), dtype=run.out_dtype, device=operands[0].device)
    return [
        out,
        operands[0].new_empty([run.pairs, run.region.statistics, run.lengths[run.region.sides[0]]], dtype=run.sums),
    ]


def gradients_by(gradient, out, lse, wanted, operands, mask, key_mask, seed, *call) -> list[Tensor]:
    """The gradients of the `wanted` operands, and of the mask last."""
    run = launch_of(operands, mask, key_mask, seed, *call)
    with torch.cuda.device_of(run.like):
        return backward_of(run, gradient, out, lse, wanted, mask)


tiles_backward = torch.library.custom_op(
    operation("tiles_backward"),
    gradients_by,
    mutates_args=(),
    schema=f"(Tensor gradient, Tensor out, Tensor lse, bool[] wanted, {REGION}) -> Tensor[]",
)


def backward_of(
    run: Launch, gradient: Tensor, out: Tensor, lse: Tensor, wanted: list[bool], mask: Tensor | None
) -> list[Tensor]:
    """`tiles_backward` for a launch."""
    region, (query, key) = run.region, run.region.sides
    gradient, step = run.gradient(gradient)
    sums = lse.new_empty(len(lse), len(region.reads), lse.shape[-1])
    if region.reads and "sums" not in region.kernels:
        product = row_dots(run, gradient, out)
        single_tiles = [[i] for i in range(product.shape[1])]
        sums = (
            product
            if region.reads == single_tiles
            else torch.stack([product[:, tiles].sum(1) for tiles in region.reads], 1)
        )
    tensors = {
        **{name: x for name, x in run.operands.items() if x is not None},
        **({"mask": mask} if wanted[-1] else {}),
    }
    wanted_names = [name for name, is_wanted in zip(tensors, wanted, strict=False) if is_wanted]
    rooms, stores = {}, {}
    for kind, kernel in region.kernels.items():
        written = [name for name in (*region.operands, "mask") if f"{name}_grad" in kernel.arg_names]
        if kind != "sums" and not {*written} & {*wanted_names}:
            continue
        steps = step.copy()
        outputs: dict = dict.fromkeys(f"{name}_grad" for name in written)
        for name in written:
            strided = f"{name}_grad_step" in kernel.arg_names
            if name not in wanted_names:
                steps |= {f"{name}_grad_step": ()} if strided else {}
                continue
            if strided:
                store = stores[name] = stored_gradient(run, kind, name, tensors[name])
                steps[f"{name}_grad_step"], rooms[name] = store.step, store.room(run.like)
            else:
                rooms[name] = run.room_of_gradient(name, kind, tensors[name])
            outputs[f"{name}_grad"] = rooms[name]
        side = {"keys": key, "places": region.relative}.get(kind, query)
        run.launch(kind, side, steps=steps, lse=lse, gradient=gradient, sums=sums, **outputs)
    return [
        like_operand(stores[name], rooms[name], tensors[name])
        if name in stores
        else gathered(run, name, rooms[name], tensors[name], mask)
        if name in rooms
        else torch.zeros_like(tensors[name])
        for name in wanted_names
    ]


def row_dots(run: Launch, gradient: Tensor, out: Tensor) -> Tensor:
    """Inner products of the rows of two results, in the dtype of sums: [pairs, tiles, n]."""
    legs, n = run.region.result.split(), run.lengths[run.region.sides[0]]
    if legs[-1] == run.region.sides[0]:  # rows of one entry
        a, b = (from_programs(run, x) for x in (gradient, out))
        return a.to(run.sums) * b
    dots = torch.empty(run.pairs, run.tiles(legs), n, device=out.device, dtype=run.sums)
    if not dots.numel():
        return dots
    key, tensors = ("row_products", gradient.stride(), gradient.dtype, out.stride(), out.dtype), (gradient, out)
    launch = run.kept.get(key)
    if launch is None:
        a, b = (laid_out(y.reshape(run.count, -1, *y.shape[-2:])) for y in (by_programs(run, x) for x in tensors))
        launch = row_products_of(a, b, dots)
        if a.data_ptr() == gradient.data_ptr() and b.data_ptr() == out.data_ptr():
            run.kept[key] = launch
        tensors = a, b
    launch({"a": tensors[0], "b": tensors[1], "factor": None, "out": dots})
    return dots


def kernel_for(region: RegionKernels, name: str) -> str:
    """The kernel that computes the gradient of an operand, or of the mask."""
    return next((kind for kind, kernel in region.kernels.items() if f"{name}_grad" in kernel.arg_names), "rows")


def like_operand(store: Stored, room: Tensor, x: Tensor) -> Tensor:
    """The gradient of an operand from what programs store: in its shape, dtype and, if no sum changes it, layout."""
    gradient = store.added(room)
    if gradient.shape != x.shape:
        gradient = gradient.sum_to_size(x.shape).contiguous()
    return gradient.to(x.dtype)


def gathered(run: Launch, name: str, room: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
    """The gradient of an operand, from the outputs of the programs."""
    legs = run.legs_of_gradient(name)
    programs = run.apart(kernel_for(run.region, name), legs)
    if not {*run.region.sides} & {*legs}:
        room, programs = overlapping(run, room) if run.region.relative in legs else room.sum(1), run.programs
    gradient = run.joined(room, legs, programs)
    gradient = gradient.view(*run.batch, *gradient.shape[1:]) if run.batch else gradient[0]
    if name in run.region.tables and legs != run.region.operands[name].split():
        gradient = gradient.sum(-2)  # sum over the rows of all queries
    shape = run.mask_shape(x) if x is mask else x.shape
    return gradient.sum_to_size(shape).reshape(x.shape).to(x.dtype).contiguous()


def overlapping(run: Launch, room: Tensor) -> Tensor:
    """[pairs, blocks, tiles, positions, ...] as one row of positions; second halves overlap with the next block."""
    size, keys = room.shape[3] // 2, run.lengths[run.region.sides[1]]
    summed = room.new_zeros(len(room), room.shape[1] + 1, room.shape[2], size, *room.shape[4:])
    summed[:, :-1] += room[:, :, :, :size]
    summed[:, 1:] += room[:, :, :, size:]
    return summed.movedim(1, 2).flatten(2, 3).narrow(2, -keys % size, run.lengths[run.region.relative])


@tiles_backward.register_fake
def tiles_gradients(gradient, out, lse, wanted, operands, mask, *rest):
    """The shapes and strides of the gradients."""
    run, gradients = Launch(operands, mask, *rest), []
    tensors = [*((name, x) for name, x in run.operands.items() if x is not None), *[("mask", mask)] * wanted[-1]]
    for (name, x), is_wanted in zip(tensors, wanted, strict=False):
        if is_wanted and f"{name}_grad_step" in run.region.kernels[kernel_for(run.region, name)].arg_names:
            shape, strides = gradient_layout(run, name, x)
            same_shape = tuple(x.shape) == tuple(shape)
            gradients.append(x.new_empty_strided(x.shape, strides) if same_shape else x.new_empty(x.shape))
        elif is_wanted:
            gradients.append(x.new_empty(x.shape))
    return gradients


def tiles_save(ctx, inputs, output):
    """Saves the operands, the result, and one number per map row."""
    operands, mask, key_mask, seed, *ctx.call = inputs
    kept_for_backward(ctx, operands, (mask, key_mask, seed), output)


def kept_for_backward(ctx, operands, masks_and_seed, output):
    """Saves tensors, some of which may be None."""
    ctx.save_for_backward(*operands, *output, *masks_and_seed)
    ctx.mark_non_differentiable(output[1])


def saved_backward(ctx, gradient, wanted, backward):
    """The gradients of the operands, and of the mask last; None unless `wanted`."""
    *operands, out, lse, mask, key_mask, seed = ctx.saved_tensors
    gradients = list(backward(ctx.call, wanted, (seed, key_mask), gradient, out, lse, mask, *operands))
    return [gradients.pop(0) if is_wanted else None for is_wanted in wanted]


def tiles_autograd(ctx, gradients):
    """The gradients of the operands that require one."""
    wanted = [*ctx.needs_input_grad[0], ctx.needs_input_grad[1]]
    *tensors, mask = saved_backward(ctx, gradients[0], wanted, gradients_of)
    # [] could be a list of tensors
    return tensors, mask, None, None, *([] if field == [] else None for field in ctx.call)


tiles_forward.register_autograd(tiles_autograd, setup_context=tiles_save)


def gradients_of(call, wanted, others, gradient, out, lse, mask, *operands):
    """`tiles_backward`; `others`: tensors that need no gradient."""
    seed, key_mask = others
    return tuple(tiles_backward(gradient, out, lse, wanted, list(operands), mask, key_mask, seed, *call))


def gradients_now(call, wanted, others, *tensors):
    """`gradients_of`, without the dispatch of operations on plain tensors."""
    if torch._C._functorch.is_legacy_batchedtensor(tensors[0]):
        return for_each_gradient(
            lambda out_gradient: gradients_now(call, wanted, others, out_gradient, *tensors[1:]), tensors[0]
        )
    if torch.is_grad_enabled() or not is_plain((*tensors, *others)):
        return TiledGradient.apply(call, wanted, others, *tensors)
    (gradient, out, lse, mask, *operands), (seed, key_mask) = tensors, others
    return gradients_by(gradient, out, lse, wanted, operands, mask, key_mask, seed, *call)


tiles_forward.register_vmap(one_by_one(tiles_forward))
tiles_backward.register_vmap(one_by_one(tiles_backward))


class PlainRegion(torch.autograd.Function):
    """`tiles_forward` on plain tensors, without the dispatch of operations."""

    @staticmethod
    def forward(ctx, call, seed, mask, key_mask, *operands):
        ctx.call, output = call, tuple(results_of(operands, mask, key_mask, seed, *call))
        kept_for_backward(ctx, operands, (mask, key_mask, seed), output)
        return output

    @staticmethod
    def backward(ctx, gradient, _):
        wanted = [*ctx.needs_input_grad[4:], ctx.needs_input_grad[2]]
        *tensors, mask = saved_backward(ctx, gradient, wanted, gradients_now)
        return None, None, mask, None, *tensors


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
