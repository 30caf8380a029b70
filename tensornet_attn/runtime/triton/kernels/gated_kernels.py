"""The kernel that computes the states between chunks: a program processes the chunks in order."""

import triton
import triton.language as tl

from tensornet_attn.runtime.triton.kernels.scan_kernels import rows_of, store_rows
from tensornet_attn.runtime.triton.kernels.tiles import product


@triton.jit
def states_between(
    keeps, adds, first, held, chunks, features, width,
    GIVEN: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """S becomes keep S + add for each chunk; `held` receives S before each: keeps [b, chunks, features, features].

    adds and held [b, chunks, width, features], first [b, width, features] if GIVEN. All states are transposed, so that
    they are the left factor of each product and stay in registers.
    """
    lead, f = tl.program_id(0).to(tl.int64), tl.arange(0, FEATURES)
    e = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    adds += lead * chunks * width * features
    held += lead * chunks * width * features
    keeps += lead * chunks * features * features
    if GIVEN:
        state = rows_of(first + lead * width * features, e, features, width, f, features).to(DTYPE)
    else:
        state = tl.zeros([WIDTH, FEATURES], DTYPE)
    for step in range(chunks):
        chunk = lead * 0 + step  # 64-bit
        store_rows(held + chunk * width * features, e, features, width, f, state)
        keep = rows_of(keeps + chunk * features * features, f, features, features, f, features)
        add = rows_of(adds + chunk * width * features, e, features, width, f, features)
        state = product(state.to(keep.dtype), tl.trans(keep), PRECISION) + add
