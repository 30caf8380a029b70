"""Linear attention on a CPU by C++ kernels: sums over keys, what queries read of them, and the gradients of both."""

import ctypes
import math

import torch
from torch import Tensor

from tensornet_attn.runtime.cpp import cpp_library
from tensornet_attn.runtime.native import blas_threads, in_rows


class LinearCpp:
    """The C++ of some kernels, and its passes. All operands are [batch, heads, rows, columns]; lists are by kernel."""

    SUMS, READS, READ_GRADIENTS, SUM_GRADIENTS = range(4)

    def __init__(self, text: str):
        self.text, self.libraries = text.strip(), {}

    def takes(self, v: Tensor) -> bool:
        """Whether the C++ computes with values [..., m, e]: a worker has a head, so no more threads than heads."""
        if math.prod(v.shape[:-2]) < torch.get_num_threads() or v.dtype not in (torch.float32, torch.float64):
            return False
        if v.dtype not in self.libraries:
            self.libraries[v.dtype] = cpp_library(self.text, str(v.dtype).removeprefix("torch."))
        return self.libraries[v.dtype] is not None

    def laid(self, x: Tensor) -> Tensor:
        """An operand as the C++ reads it: the entries of a row are neighbours."""
        return x if in_rows(x, 2) else x.contiguous()

    def sums(self, keys: list[Tensor], v: Tensor, seen: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
        """S [batch, heads, d, e] and z [batch, heads, 1, d]. `seen`: the visible keys, [batch, heads, m, 1]."""
        states = [v.new_empty(*v.shape[:2], k.shape[3], v.shape[3]) for k in keys]
        totals = [v.new_empty(*v.shape[:2], 1, k.shape[3]) for k in keys]
        self.run(self.SUMS, [*keys, v, seen, *states, *totals], len(keys))
        return states, totals

    def reads(self, queries: list[Tensor], states, totals, eps: list[float | None]) -> tuple[Tensor, list[Tensor]]:
        """What queries read, with the heads of a row side by side, and the factors 1 / (row sum + eps) of rows.

        A kernel with eps None has no factors. Without any eps, the factors are the row sums, by which nothing is
        divided.
        """
        states, totals = ([x.contiguous() for x in part] for part in (states, totals))
        batch, heads, n, _ = queries[0].shape
        out = queries[0].new_empty(batch, n, heads, states[0].shape[3]).transpose(1, 2)
        rows = [out.new_empty(batch, heads, n, 1) for _ in queries]
        self.run(self.READS, [*queries, out, None, *states, *totals, *rows], len(queries), eps)
        return out, rows

    def read_gradients(self, queries: list[Tensor], g: Tensor, states, totals, rows, eps: list[float | None]):
        """The gradients of queries, one for each tensor, of states and of totals.

        `rows`: those of `reads`, or the gradients of row sums.
        """
        states, totals = ([x.contiguous() for x in part] for part in (states, totals))
        made = gradients_like(queries)
        d_states, d_totals = ([torch.empty_like(x) for x in part] for part in (states, totals))
        each = [made[id(q)] for q in queries]
        tensors = [*queries, self.laid(g), None, *states, *totals, *rows, *each, *d_states, *d_totals]
        self.run(self.READ_GRADIENTS, tensors, len(queries), eps)
        return [*made.values()], d_states, d_totals

    def sum_gradients(self, keys: list[Tensor], v: Tensor, seen: Tensor | None, d_states, d_totals) -> list[Tensor]:
        """The gradients of keys, one for each tensor, and values."""
        made, (d_v,), none = gradients_like(keys), gradients_like([v]).values(), [None] * len(keys)
        each = [made[id(k)] for k in keys]
        tensors = [*keys, v, seen, *d_states, *d_totals, *none, *each, *none, *none, d_v]
        self.run(self.SUM_GRADIENTS, tensors, len(keys))
        return [*made.values(), d_v]

    def run(self, number: int, tensors: list[Tensor | None], kernels: int, eps: list[float | None] | None = None):
        """Calls a pass; tensors after the last one are absent. `eps`: none for row sums as a result."""
        library, first, v, threads = (
            self.libraries[tensors[0].dtype],
            tensors[0],
            tensors[kernels],
            torch.get_num_threads(),
        )
        tensors = [*tensors, *[None] * (7 * kernels + 3 - len(tensors))]
        sizes = [*first.shape[:3], v.shape[3], *(x.shape[3] for x in tensors[:kernels])]
        steps = [step for x in tensors for step in ((0, 0, 0) if x is None else x.stride()[:3])]
        numbers = [math.nan if one is None else one for one in eps or [None] * kernels]
        with blas_threads(library, threads):
            library.linear(
                number,
                ctypes.c_bool(not eps),
                (ctypes.c_long * len(sizes))(*sizes),
                (ctypes.c_void_p * len(tensors))(*(None if x is None else x.data_ptr() for x in tensors)),
                (ctypes.c_long * len(steps))(*steps),
                (ctypes.c_double * kernels)(*numbers),
                threads,
            )


def gradients_like(given: list[Tensor]) -> dict[int, Tensor]:
    """Memory for the gradient of each tensor, the heads of a row side by side, by the tensor's id."""
    return {id(x): x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in given}
