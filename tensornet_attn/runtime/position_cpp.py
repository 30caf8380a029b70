"""Steps of one position by one call of C++: states, their updates and what is read of them."""

import ctypes

import torch
from torch import Tensor

from tensornet_attn.runtime.cpp import CPP_REALS, cpp_library
from tensornet_attn.runtime.operations import is_plain


class CppPosition:
    """The C++ of a group of steps. It reads tensors [batch..., legs], or [legs] of weights and constants.

    `operands`: whether each has batch dimensions, and its number of entries of one; the first one is a state.
    `results`: the sizes of legs of each result, or the number of the operand whose memory it takes.
    """

    def __init__(self, text: str, rank: int, operands: list, results: list):
        self.text, self.rank, self.operands, self.results = text.strip(), rank, operands, results
        self.pointers = ctypes.c_void_p * (len(operands) + sum(isinstance(result, list) for result in results))
        self.functions: dict = {}  # by dtype, None if there is none

    def __call__(self, *tensors: Tensor) -> list[Tensor] | None:
        """The results; None if torch must compute them."""
        if not is_plain(tensors) or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
            return None
        first, sizes = tensors[0], [x.numel() for x in tensors]
        dtype, count = first.dtype, sizes[0] // self.operands[0][1]
        others = [x for x in tensors if x.dtype != dtype or not x.is_cpu]
        if others or sizes != [count * size if batched else size for batched, size in self.operands]:
            return None
        if dtype not in self.functions:
            kind = str(dtype).removeprefix("torch.")
            library = cpp_library(self.text, kind) if kind in CPP_REALS else None
            self.functions[dtype] = library and library.position
        places, results = [x if x.is_contiguous() else x.contiguous() for x in tensors], []
        for result in self.results:
            if isinstance(result, list):
                results.append(first.new_empty((*first.shape[: first.ndim - self.rank], *result)))
                places.append(results[-1])
            elif places[result] is tensors[result]:
                results.append(tensors[result])
        if self.functions[dtype] is None or len(results) < len(self.results):  # a state is not in rows
            return None
        pointers = self.pointers(*[x.data_ptr() for x in places])
        self.functions[dtype](ctypes.c_long(count), torch.get_num_threads(), pointers)
        return results
