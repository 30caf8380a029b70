"""Blockwise functions of queries whose calls C++ computes where it can; the functions of blocks compute the others."""

import torch
from torch import Tensor

from tensornet_attn.runtime.blockwise import CALL, BlockwiseGradient, Call, blockwise, operands_of
from tensornet_attn.runtime.native import (
    cpp_forward,
    cpp_gradients,
    cpp_shapes,
    for_caller,
    for_cpp,
    for_mask,
    runs_cpp,
)
from tensornet_attn.runtime.operations import asks_gradients, for_each_gradient, gradients_at, operation, wanted_places
from tensornet_attn.runtime.precision import rounded_to
from tensornet_attn.runtime.products import autocast_dtype

HALVES = (torch.bfloat16, torch.float16)  # computed in float32 by C++


def blockwise_in_cpp(
    cpp: str,
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
    """`blockwise`, by the C++ of the region `cpp` where it runs. Half precision is computed in float32."""
    tensors = [x for x in operands if x is not None]
    cast = autocast_dtype(tensors[0])
    half = next((x.dtype for x in tensors if x.dtype in HALVES), None)  # beside decays, which are wider
    if half is not None and cast is None and tensors[0].device.type == "cpu":
        wide_operands = [x.float() if x is not None and x.dtype in HALVES else x for x in operands]
        out = blockwise_in_cpp(cpp, tile, wide_operands, n, m, batch, block, training, random, sizes)
        return rounded_to(out, half)
    call = Call([x is not None for x in operands], n, m, list(batch), list(block), training, list(sizes), cast)
    cpp = for_mask(cpp, operands)
    if not runs_cpp(cpp, operands, call):
        return blockwise(tile, operands, n, m, batch, block, training, random, sizes)
    seed = torch.randint(2**62, (), device="cpu") if random else None
    if torch.compiler.is_compiling():
        return for_caller(cpp, blockwise_cpp(tensors, seed, tile, cpp, *call)[0])
    saves = asks_gradients(*tensors)
    return BlockwiseCpp.apply(seed, saves, (tile, cpp, *call), *tensors)


@torch.library.custom_op(
    operation("blockwise_cpp"),
    mutates_args=(),
    schema=f"(Tensor[] given, Tensor? seed, str tile, str cpp, {CALL}) -> (Tensor, Tensor)",
)
def blockwise_cpp(given, seed, tile, cpp, *call):
    """`blockwise` in C++: the result with its legs in the order of the C++, and the statistics of its rows."""
    call = Call(*call)
    return cpp_forward(cpp, operands_of(given, call), call, seed)[:2]


@blockwise_cpp.register_fake
def blockwise_cpp_shapes(given, seed, tile, cpp, *call):
    """The shapes of the result and the statistics."""
    call = Call(*call)
    return cpp_shapes(cpp, operands_of(given, call), call)


@torch.library.custom_op(
    operation("blockwise_cpp_backward"),
    mutates_args=(),
    schema="(Tensor gradient, Tensor out, Tensor rows, SymInt[] wanted, Tensor[] given, Tensor? seed, str cpp, "
    f"{CALL}) -> Tensor[]",
)
def blockwise_cpp_backward(gradient, out, rows, wanted, given, seed, cpp, *call):
    """The gradients of the operands with indices `wanted`; `gradient`: that of the result of `blockwise_cpp`."""
    call = Call(*call)
    by_operand = cpp_gradients(cpp, operands_of(given, call), call, out, rows, None, gradient, seed)
    indices = [index for index, is_present in enumerate(call.present) if is_present]
    gradients = [by_operand.get(indices[i], torch.zeros(1, dtype=given[i].dtype)) for i in wanted]
    return [
        operand_gradient.expand(given[i].shape).clone(memory_format=torch.contiguous_format)
        for i, operand_gradient in zip(wanted, gradients, strict=True)
    ]


@blockwise_cpp_backward.register_fake
def blockwise_cpp_gradients(gradient, out, rows, wanted, given, *rest):
    """The shapes of the gradients."""
    return [given[i].new_empty(given[i].shape) for i in wanted]


def cpp_setup_context(ctx, inputs, output):
    """Saves operands, result and statistics."""
    tensors, seed, _, ctx.cpp, *ctx.call = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output, seed)


def cpp_autograd(ctx, gradient, _):
    """The gradients of the operands that require one."""
    *tensors, out, rows, seed = ctx.saved_tensors
    wanted = wanted_places(ctx.needs_input_grad[0])
    gradients = blockwise_cpp_backward(gradient, out, rows, wanted, tensors, seed, ctx.cpp, *ctx.call)
    by_operand = gradients_at(gradients, wanted, len(tensors))
    return by_operand, None, None, None, *([] if field == [] else None for field in ctx.call)


blockwise_cpp.register_autograd(cpp_autograd, setup_context=cpp_setup_context)


class BlockwiseCpp(torch.autograd.Function):
    """`blockwise_cpp` in eager mode; second derivatives are those of the functions of blocks."""

    @staticmethod
    def forward(ctx, seed, saves, call, *tensors):
        ctx.tile, ctx.cpp, *fields = call
        cpp, ctx.call = ctx.cpp, Call(*fields)
        out, rows, saved, ctx.held = cpp_forward(cpp, operands_of(tensors, ctx.call), ctx.call, seed, saves)
        ctx.save_for_backward(*tensors, out, rows, saved, seed)
        return for_caller(cpp, out)

    @staticmethod
    def backward(ctx, gradient):
        if torch._C._functorch.is_legacy_batchedtensor(gradient):
            wanted = wanted_places(ctx.needs_input_grad)
            gradients = for_each_gradient(
                lambda out_gradient: [BlockwiseCpp.backward(ctx, out_gradient)[i] for i in wanted], gradient
            )
            return tuple(gradients_at(gradients, wanted, len(ctx.needs_input_grad)))
        *tensors, out, rows, saved, seed = ctx.saved_tensors
        wanted = wanted_places(ctx.needs_input_grad[3:])
        if torch.is_grad_enabled():
            if seed is not None:
                raise RuntimeError(
                    f"'{ctx.tile.split('.')[-1]}': kernels in C++ draw dropout and noise, so their gradients have no "
                    "derivatives; compile with backend='torch' for second derivatives."
                )
            gradients = BlockwiseGradient.apply(gradient, wanted, seed, (ctx.tile, *ctx.call), *tensors)
            return None, None, None, *gradients_at(gradients, wanted, len(tensors))
        gradient, ctx.held = for_cpp(ctx.cpp, gradient), None
        by_operand = cpp_gradients(ctx.cpp, operands_of(tensors, ctx.call), ctx.call, out, rows, saved, gradient, seed)
        indices = [index for index, is_present in enumerate(ctx.call.present) if is_present]
        return None, None, None, *(by_operand.get(index) if i in wanted else None for i, index in enumerate(indices))
