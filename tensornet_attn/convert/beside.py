"""What attentions of other libraries take and give beside the output: masks of floats, attention maps, and more."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import torch
from torch import Tensor

from tensornet_attn.convert.masks import shown
from tensornet_attn.errors import InputError
from tensornet_attn.graph.weighing import map_of
from tensornet_attn.nn.module import CompiledDesign, leaves
from tensornet_attn.ops import OPS

# What a call may not ask for: argument -> what is wrong with it.
REFUSED = {
    "position_bias": "it takes no position_bias",
    "softcap": "it does not cap its scores",
    "s_aux": "it has no attention sinks",
    "sinks": "it has no attention sinks",
    "head_mask": "it takes no head_mask",
    "cu_seq_lens_q": "it takes no packed sequences without a mask (cu_seq_lens_q)",
    "cache": "it takes no paged cache",
}


def refuse(where: str, given: Mapping[str, object], taken: Container[str] = ()) -> None:
    """Raises InputError for what a call asks and no design does; `taken`: arguments that this one knows."""
    for name, reason in REFUSED.items():
        if given.get(name) is not None and name not in taken:
            raise InputError(f"{where}: {reason}.")


def split_float_mask(design: CompiledDesign, name: str, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Where a float mask lets one look, and the numbers that it adds there; None where they are known to be zeros.

    Raises InputError for numbers in a design that adds none;
    while torch compiles, which cannot read them, they are compared when the program runs.
    """
    visible = shown(mask)
    numbers, compiling = torch.where(visible, mask, 0), torch.compiler.is_compiling()
    if not compiling and not bool(numbers.any()):
        return visible, None
    if adds(design):
        return visible, numbers
    sentence = f"{design.design.name}: numbers of {name} cannot be added in this design; give zeros and minus infinity."
    if not compiling:
        raise InputError(sentence)
    torch._assert_async(~numbers.any(), sentence)
    return visible, None


def adds(design: CompiledDesign) -> bool:
    """Whether the numbers of a float mask can be added wherever masks act in a design."""
    masks = design.mask_places
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
        raise InputError(
            f"{graph.name}: it has no attention map to return; call with need_weights=False or output_attentions=False."
        )
    name, pair = reader.use.name, (str(graph.query), str(graph.key))
    lengths = design._signature.check(inputs, masks.get("mask"), masks.get("key_mask"), None)
    values = design._evaluate(graph, leaves(design, inputs, None), lengths=lengths, until=name, **masks)
    legs = graph.legs_of(name)
    order = (*(heads or [leg for leg in legs if leg not in pair]), *pair)
    found = values[name].movedim([legs.index(leg) - len(legs) for leg in order], list(range(-len(order), 0)))
    return found.reshape(*found.shape[: found.dim() - len(legs)], -1, *found.shape[-2:])
