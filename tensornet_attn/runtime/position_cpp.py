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

    def __init__(self, text: str, rank: int, operands: tuple, results: tuple):
        self.text, self.rank, self.operands, self.results = text.strip(), rank, operands, results
        self.pointers = ctypes.c_void_p * (len(operands) + sum(isinstance(result, tuple) for result in results))
        self.functions: dict = {}  # by dtype, None if there is none

    def __call__(self, *tensors: Tensor) -> list[Tensor] | None:
        """The results; None if torch must compute them."""
        if not is_plain(tensors) or (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
            return None
        first, sizes = tensors[0], [x.numel() for x in tensors]
        dtype, count = first.dtype, sizes[0] // self.operands[0][1]
        alike = all([x.dtype == dtype and x.is_cpu for x in tensors])
        if not alike or sizes != [count * size if batched else size for batched, size in self.operands]:
            return None
        if dtype not in self.functions:
            kind = str(dtype).removeprefix("torch.")
            library = cpp_library(self.text, kind) if kind in CPP_REALS else None
            self.functions[dtype] = library and library.position
        function, places = self.functions[dtype], [x if x.is_contiguous() else x.contiguous() for x in tensors]
        written = [result for result in self.results if not isinstance(result, tuple)]
        if function is None or any([places[place] is not tensors[place] for place in written]):
            return None
        batch = first.shape[: first.ndim - self.rank]
        results = []
        for result in self.results:
            new = isinstance(result, tuple)
            results.append(first.new_empty((*batch, *result)) if new else tensors[result])
            places += results[-1:] if new else []
        function(ctypes.c_long(count), torch.get_num_threads(), self.pointers(*[x.data_ptr() for x in places]))
        return results
