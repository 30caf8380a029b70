"""What attentions of other libraries take and give beside the output: masks of floats, and attention maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tensornet_attn.errors import InputError
from tensornet_attn.graph.weighing import map_of
from tensornet_attn.nn.module import CompiledDesign, leaves
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


def maps(
    design: CompiledDesign, inputs: tuple[Tensor, ...], masks: Mapping[str, Tensor], heads: Sequence[str] | None = None
) -> Tensor:
    """The attention map of a call, [batch..., heads, n, m], as the diagram is written and without dropout.

    `heads`: the legs of the map beside queries and keys in the order in which they are counted; as written if absent.
    Raises InputError for a design without one.
    """
    graph = design.plan.graph
    reader = map_of(graph)
    if reader is None:
        raise InputError(f"{graph.name}: it has no attention map to return; call with need_weights=False.")
    name, pair = reader.use.name, (str(graph.query), str(graph.key))
    lengths = design._signature.check(inputs, masks.get("mask"), masks.get("key_mask"), None)
    values = design._evaluate(graph, leaves(design, inputs, None), lengths=lengths, until=name, **masks)
    legs = graph.legs_of(name)
    order = (*(heads or [leg for leg in legs if leg not in pair]), *pair)
    found = values[name].movedim([legs.index(leg) - len(legs) for leg in order], list(range(-len(order), 0)))
    return found.reshape(*found.shape[: found.dim() - len(legs)], -1, *found.shape[-2:])
