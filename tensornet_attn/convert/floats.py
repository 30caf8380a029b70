"""Float masks of a call taken apart: where a query may look, and the numbers that are added there."""

from __future__ import annotations

import torch
from torch import Tensor

from tensornet_attn.errors import InputError
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.ops import OPS


def apart(design: CompiledDesign, name: str, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Where a float mask lets one look, and the numbers that it adds there; None where they are known to be zeros.

    Minus infinity, and the least number of the dtype, hide. Raises InputError for numbers in a design that adds none;
    while torch compiles, which cannot read them, they are compared when the program runs.
    """
    shown = mask > torch.finfo(mask.dtype).min
    numbers, compiling = torch.where(shown, mask, 0), torch.compiler.is_compiling()
    if not compiling and not bool(numbers.any()):
        return shown, None
    if adds(design):
        return shown, numbers
    sentence = f"{design.design.name}: numbers of {name} cannot be added in this design; give zeros and minus infinity."
    if not compiling:
        raise InputError(sentence)
    torch._assert_async(~numbers.any(), sentence)
    return shown, None


def adds(design: CompiledDesign) -> bool:
    """Whether the numbers of a float mask can be added wherever masks act in a design."""
    masks = design._signature.masks
    return not masks.maps and all(OPS[kind].takes_float_mask for _, kind, _ in masks.places)
