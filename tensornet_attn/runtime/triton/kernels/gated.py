"""`gated_delta_rule` with a Triton kernel for the states between chunks.

Computations within chunks are batched matrix products, for which torch has kernels.
"""

import torch
from torch import Tensor

from tensornet_attn.runtime.gated import (
    gated_delta_rule,
    gated_gradients_by_chunks,
    gated_gradients_shapes,
    gated_reads_by_chunks,
    gated_reads_shape,
)
from tensornet_attn.runtime.operations import batch_first, operation
from tensornet_attn.runtime.products import exact_products
from tensornet_attn.runtime.recomputed import recomputed
from tensornet_attn.runtime.triton.configure import configured, distinct, held_for, padded
from tensornet_attn.runtime.triton.kernels.gated_kernels import states_between
from tensornet_attn.runtime.triton.kernels.tiles import sums_of, tile_type

WIDEST = 128  # maximum width of keys that a program supports
STATES = ((64, 8, 2), (32, 4, 2), (32, 4, 1), (16, 4, 2), (16, 4, 1), (16, 8, 1))


def triton_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, rate: Tensor, decay: Tensor | None = None, erase: Tensor | None = None,
    write: Tensor | None = None, undecayed: bool = False, key_mask: Tensor | None = None, chunk: int = 64,
    past: list[Tensor] | tuple[Tensor, ...] = (), steps: int = 1,
) -> Tensor:  # fmt: skip
    """`gated_delta_rule`, with the same arguments; uses the torch version for wider keys and for a `past` state."""
    reads = read_triton_gated if k.shape[-1] <= WIDEST and not past else None
    return gated_delta_rule(q, k, v, rate, decay, erase, write, undecayed, key_mask, chunk, past, steps, reads)


@torch.library.custom_op(operation("triton_gated"), mutates_args=())
def triton_gated(
    q: Tensor, e: Tensor | None, k: Tensor, w: Tensor | None, v: Tensor, rate: Tensor, decay: Tensor | None,
    first: Tensor | None, undecayed: bool, chunk: int,
) -> Tensor:  # fmt: skip
    """`gated_reads`, with the same arguments."""
    with torch.cuda.device_of(q), exact_products(k):
        return gated_reads_by_chunks(q, e, k, w, v, rate, decay, first, undecayed, chunk, triton_held)


@torch.library.custom_op(operation("triton_gated_gradients"), mutates_args=())
def triton_gated_gradients(
    g: Tensor, q: Tensor, e: Tensor | None, k: Tensor, w: Tensor | None, v: Tensor, rate: Tensor, decay: Tensor | None,
    first: Tensor | None, undecayed: bool, chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`gated_gradients`, with the same arguments."""
    with torch.cuda.device_of(q), exact_products(k):
        return gated_gradients_by_chunks(g, q, e, k, w, v, rate, decay, first, undecayed, chunk, triton_held)


def triton_held(keeps: Tensor, adds: Tensor, first: Tensor | None = None) -> Tensor:
    """`held_before`, with the same arguments: keeps [b, chunks, d, d], adds [b, chunks, d, e] -> [b, chunks, d, e]."""
    lead, chunks, features, width = adds.shape
    keeps, adds = keeps.contiguous(), adds.mT.contiguous()
    before = None if first is None else first.reshape(lead, features, width).mT.contiguous()
    states, deep, size = torch.empty_like(adds), padded(features), adds.element_size()
    candidates = [
        {"WIDTH": min(block, padded(width)), "num_warps": warps, "num_stages": stages}
        for block, warps, stages in STATES
    ]

    def need(WIDTH: int, **launch: int) -> tuple[int, int]:
        return deep * (deep + 2 * WIDTH) * held_for(size), size * deep * (deep + WIDTH)

    sizes = (features, width, str(adds.dtype).removeprefix("torch."))
    config = configured("states between", sizes, distinct(candidates), need)
    if states.numel():
        states_between[(lead, -(-width // config["WIDTH"]))](
            keeps, adds, before, states, chunks, features, width, GIVEN=before is not None,
            DTYPE=tile_type(sums_of(adds)), PRECISION="ieee" if deep <= 64 else "tf32x3", FEATURES=deep, **config,
        )  # fmt: skip
    return states.mT


triton_gated.register_fake(gated_reads_shape)
triton_gated_gradients.register_fake(gated_gradients_shapes)
read_triton_gated = recomputed(triton_gated, triton_gated_gradients, gated_gradients_by_chunks, batch_first)
