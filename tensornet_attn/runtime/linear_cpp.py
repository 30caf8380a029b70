"""Linear attention on a CPU by C++ kernels: sums over keys, what queries read of them, and the gradients of both."""

import ctypes
import math

import torch
from torch import Tensor

from tensornet_attn.runtime.cpp import cpp_library
from tensornet_attn.runtime.native import blas_threads, in_rows

LINEAR_LIBRARIES: dict = {}  # text and dtype: the library, or None
SUMS, READS, READ_GRADIENTS, SUM_GRADIENTS = range(4)  # the passes of the C++


def linear_library(text: str, v: Tensor) -> ctypes.CDLL | None:
    """The library for values [batch, heads, m, e], whose workers have a head each; None if there is no text.

    None also if there are more threads than heads.
    """
    if not text or v.shape[0] * v.shape[1] < torch.get_num_threads():
        return None
    if (text, v.dtype) not in LINEAR_LIBRARIES:
        LINEAR_LIBRARIES[text, v.dtype] = cpp_library(text, str(v.dtype).removeprefix("torch."))
    return LINEAR_LIBRARIES[text, v.dtype]


def cpp_sums(library, keys: list[Tensor], v: Tensor, seen: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
    """Of each kernel S [batch, heads, d, e] and z [batch, heads, 1, d], from keys [batch, heads, m, d]."""
    shape = v.shape[:2]
    states = [v.new_empty(*shape, k.shape[3], v.shape[3]) for k in keys]
    totals = [v.new_empty(*shape, 1, k.shape[3]) for k in keys]
    run_linear(library, SUMS, [*keys, v, seen, *states, *totals], len(keys))
    return states, totals


def cpp_reads(library, queries: list[Tensor], states, totals, eps: list[float | None], apart: bool):
    """What queries [batch, heads, n, d] read, with the heads of a row side by side, and of each kernel [.., n, 1].

    These are 1 / (row sum + eps), by which rows are multiplied; or `apart`, row sums.
    """
    batch, heads, n, _ = queries[0].shape
    out = queries[0].new_empty(batch, n, heads, states[0].shape[3]).transpose(1, 2)
    rows = [out.new_empty(batch, heads, n, 1) for _ in queries]
    run_linear(library, READS, [*queries, out, None, *states, *totals, *rows], len(queries), eps, apart)
    return out, rows


def cpp_read_gradients(library, queries: list[Tensor], g: Tensor, states, totals, rows, eps, apart: bool):
    """The gradients of queries, one for each tensor, of states and of totals.

    `rows`: those of `cpp_reads`, or `apart` their gradients.
    """
    g = g if in_rows(g, 2) else g.contiguous()
    made, d_states, d_totals = (
        gradients_like(queries),
        *([torch.empty_like(x) for x in part] for part in (states, totals)),
    )
    each = [made[id(q)] for q in queries]
    tensors = [*queries, g, None, *states, *totals, *rows, *each, *d_states, *d_totals]
    run_linear(library, READ_GRADIENTS, tensors, len(queries), eps, apart)
    return [*made.values()], d_states, d_totals


def cpp_sum_gradients(library, keys: list[Tensor], v: Tensor, seen: Tensor | None, d_states, d_totals):
    """The gradients of keys, one for each tensor, and values."""
    made, (d_v,), none = gradients_like(keys), gradients_like([v]).values(), [None] * len(keys)
    each = [made[id(k)] for k in keys]
    tensors = [*keys, v, seen, *d_states, *d_totals, *none, *each, *none, *none, d_v]
    run_linear(library, SUM_GRADIENTS, tensors, len(keys))
    return [*made.values(), d_v]


def gradients_like(given: list[Tensor]) -> dict[int, Tensor]:
    """Memory for the gradient of each tensor, the heads of a row side by side, by the tensor's id."""
    return {id(x): x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in given}


def run_linear(library, number: int, tensors: list[Tensor | None], kernels: int, eps=(), apart: bool = False) -> None:
    """Calls a pass; tensors after the last one are absent."""
    first, v = tensors[0], tensors[kernels]
    tensors = [*tensors, *[None] * (7 * kernels + 3 - len(tensors))]
    sizes = [*first.shape[:3], v.shape[3], *(x.shape[3] for x in tensors[:kernels])]
    steps = [step for x in tensors for step in ((0, 0, 0) if x is None else x.stride()[:3])]
    eps = [math.nan if one is None else one for one in eps or [None] * kernels]
    threads = torch.get_num_threads()
    with blas_threads(library, threads):
        library.linear(
            number,
            ctypes.c_bool(apart),
            (ctypes.c_long * len(sizes))(*sizes),
            (ctypes.c_void_p * len(tensors))(*(None if x is None else x.data_ptr() for x in tensors)),
            (ctypes.c_long * len(steps))(*steps),
            (ctypes.c_double * kernels)(*eps),
            threads,
        )
