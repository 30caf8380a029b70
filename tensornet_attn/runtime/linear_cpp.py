"""Linear attention on a CPU by C++ kernels: sums over keys, what queries read of them, and the gradients of both."""

import ctypes
import math

import torch
from torch import Tensor

from tensornet_attn.runtime.cpp import cpp_library
from tensornet_attn.runtime.native import blas_threads, in_rows
from tensornet_attn.runtime.operations import place_among


class LinearCpp:
    """The C++ of some kernels, and its passes. Lists are by kernel; a side of a kernel is the inputs of its features.

    All tensors are [batch, heads, rows, columns], those of inputs with the `small` dimensions that features sum over
    behind; an input that rows or columns share has one of them.
    """

    SUMS, READS, READ_GRADIENTS, SUM_GRADIENTS = range(4)

    def __init__(self, text: str, small: tuple[int, ...] = ()):
        self.text, self.small = text.strip(), small
        self.libraries: dict = {}  # by dtype, None if there is none

    def takes(self, v: Tensor) -> bool:
        """Whether the C++ computes with values [..., m, e]: a worker has a head, so no more threads than heads."""
        if math.prod(v.shape[:-2]) < torch.get_num_threads() or v.dtype not in (torch.float32, torch.float64):
            return False
        if v.dtype not in self.libraries:
            self.libraries[v.dtype] = cpp_library(self.text, str(v.dtype).removeprefix("torch."))
        return self.libraries[v.dtype] is not None

    def laid(self, x: Tensor) -> Tensor:
        """An operand as the C++ reads it: the entries of a row are neighbours."""
        if in_rows(inputs_apart(x)[0], 2):  # all are laid alike
            return x
        small, first = [*range(4, x.ndim)], [*range(x.ndim - 4)]
        return x.movedim(small, first).contiguous().movedim(first, small)

    def sums(self, keys: list[list[Tensor]], v: Tensor, seen: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
        """S [batch, heads, d, e] and z [batch, heads, 1, d]. `seen`: the visible keys, [batch, heads, m, 1]."""
        widths = [max(x.shape[3] for x in side) for side in keys]
        states = [v.new_empty(*v.shape[:2], width, v.shape[3]) for width in widths]
        totals = [v.new_empty(*v.shape[:2], 1, width) for width in widths]
        self.run(self.SUMS, keys, [v, None, seen], [states, totals])
        return states, totals

    def reads(
        self, queries: list[list[Tensor]], states, totals, eps: list[float | None]
    ) -> tuple[Tensor, list[Tensor]]:
        """What queries read, with the heads of a row side by side, and the factors 1 / (row sum + eps) of rows.

        A kernel with eps None has no factors. Without any eps, the factors are the row sums, by which nothing is
        divided.
        """
        states, totals = ([x.contiguous() for x in tensors] for tensors in (states, totals))
        batch, heads = queries[0][0].shape[:2]
        n = max(x.shape[2] for x in queries[0])
        out = states[0].new_empty(batch, n, heads, states[0].shape[3]).transpose(1, 2)
        rows = [out.new_empty(batch, heads, n, 1) for _ in queries]
        self.run(self.READS, queries, [out, None, None], [states, totals, rows], eps=eps)
        return out, rows

    def read_gradients(self, queries: list[list[Tensor]], g: Tensor, states, totals, rows, eps: list[float | None]):
        """The gradients of queries, one for each tensor, of states and of totals.

        `rows`: those of `reads`, or the gradients of row sums.
        """
        states, totals = ([x.contiguous() for x in tensors] for tensors in (states, totals))
        d_queries, d_inputs = gradients_like(queries)
        d_states, d_totals = ([torch.empty_like(x) for x in tensors] for tensors in (states, totals))
        lists = [states, totals, rows, d_states, d_totals]
        self.run(self.READ_GRADIENTS, queries, [self.laid(g), None, None], lists, d_inputs, eps)
        return d_queries, d_states, d_totals

    def sum_gradients(
        self, keys: list[list[Tensor]], v: Tensor, seen: Tensor | None, d_states, d_totals
    ) -> list[Tensor]:
        """The gradients of keys, one for each tensor, and values."""
        (d_keys, d_inputs), ((d_v,), _) = gradients_like(keys), gradients_like([[v]])
        self.run(self.SUM_GRADIENTS, keys, [v, d_v, seen], [d_states, d_totals], d_inputs)
        return [*d_keys, d_v]

    def run(self, number: int, sides: list[list[Tensor]], values: list, lists: list, gradients=None, eps=None):
        """Calls a pass. `lists`: lists by kernel; later ones are absent. `eps`: none for row sums as a result."""
        v, threads = values[0], torch.get_num_threads()
        tensors, widths = [*values], []
        for i, side in enumerate(sides):
            tensors += [by_kernel[i] for by_kernel in lists] + [None] * (5 - len(lists))
            widths.append(max(x.shape[3] for x in side))
            for x, d_x in zip(side, gradients[i] if gradients else [None] * len(side), strict=True):
                inputs = inputs_apart(x, v.shape[2])
                input_gradients = [None] * len(inputs) if d_x is None else inputs_apart(d_x, v.shape[2])
                tensors += [tensor for pair in zip(inputs, input_gradients, strict=True) for tensor in pair]
                widths += [x.shape[3]] * len(inputs)
        sizes = [*v.shape, *widths]
        steps = [step for x in tensors for step in ((0, 0, 0) if x is None else x.stride()[:3])]
        numbers = [math.nan if kernel_eps is None else kernel_eps for kernel_eps in eps or [None] * len(sides)]
        library = self.libraries[v.dtype]
        with blas_threads(library, threads):
            library.linear(
                number,
                ctypes.c_bool(not eps),
                (ctypes.c_long * len(sizes))(*sizes),
                (ctypes.c_void_p * len(tensors))(*(None if x is None else x.data_ptr() for x in tensors)),
                (ctypes.c_long * len(steps))(*steps),
                (ctypes.c_double * len(sides))(*numbers),
                threads,
            )


def inputs_apart(x: Tensor, rows: int = -1) -> list[Tensor]:
    """The tensors [batch, heads, rows, columns] of an input."""
    if x.ndim > 4:
        return [input_tensor for summand in x.unbind(4) for input_tensor in inputs_apart(summand, rows)]
    return [x] if rows in (-1, x.shape[2]) else [x.expand(-1, -1, rows, -1)]  # `expand` takes long in small calls


def gradients_like(sides: list[list[Tensor]]) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Memory for the gradient of each tensor, and that of each side: heads of a row side by side, behind small
    dimensions.

    Zeros for an input that rows share, whose gradient is added up.
    """
    tensors, gradients = list[Tensor](), list[Tensor]()
    places = [[place_among(tensors, x) for x in side] for side in sides]
    for x in tensors:
        batch, heads, rows, width, *small = x.shape
        allocate = x.new_zeros if rows == 1 else x.new_empty
        memory = allocate(batch, rows, *small, heads, width)
        gradients.append(memory.permute(0, -2, 1, -1, *range(2, 2 + len(small))))
    return gradients, [[gradients[at] for at in side_places] for side_places in places]
