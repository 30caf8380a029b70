"""Arguments and results that attentions of other libraries have besides the output: float masks, maps and others."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from tensornet_attn.convert.masks import shown
from tensornet_attn.errors import InputError
from tensornet_attn.graph.attention import map_of
from tensornet_attn.nn.module import CompiledDesign, leaves
from tensornet_attn.nn.tokens import changed_by_padding
from tensornet_attn.ops import OPS

# Unsupported arguments of a call, and the reasons.
REFUSED = {
    "position_bias": "it takes no position_bias",
    "softcap": "it does not cap its scores",
    "s_aux": "it has no attention sinks",
    "sinks": "it has no attention sinks",
    "head_mask": "it takes no head_mask",
    "cu_seq_lens_q": "it takes no packed sequences without a mask (cu_seq_lens_q)",
    "cache": "it takes no paged cache",
}


def refuse(where: str, arguments: Mapping[str, object], taken: Container[str] = ()) -> None:
    """Raises InputError for an argument in REFUSED that is not None and not in `taken`."""
    for name, reason in REFUSED.items():
        if arguments.get(name) is not None and name not in taken:
            raise InputError(f"{where}: {reason}.")


def split_float_mask(design: CompiledDesign, name: str, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Splits a float mask into visible pairs and the values to add. The values are None if they are known to be zeros.

    Raises InputError if there are other values and the design cannot add them. While torch compiles, values are
    unknown; the compiled program then asserts that they are zeros.
    """
    visible = shown(mask)
    numbers, compiling = torch.where(visible, mask, 0), torch.compiler.is_compiling()
    if not compiling and not bool(numbers.any()):
        return visible, None
    if adds(design):
        return visible, numbers
    sentence = f"{design.design.name}: this design cannot add the values of {name}; give only zeros and minus infinity."
    if not compiling:
        raise InputError(sentence)
    torch._assert_async(~numbers.any(), sentence)
    return visible, None


def adds(design: CompiledDesign) -> bool:
    """Whether all boxes of a design that take masks can add a float mask."""
    masks = design.mask_places
    return not masks.maps and all(OPS[kind].takes_float_mask for _, kind, _ in masks.places)


def maps(
    design: CompiledDesign,
    inputs: tuple[Tensor, ...],
    masks: Mapping[str, Tensor],
    heads: Sequence[str] | None = None,
    rows: Tensor | None = None,
    counted: bool = False,
) -> Tensor:
    """The attention map of a call, [batch..., heads, n, m], computed as the diagram is written and without dropout.

    `heads`: the order of the map's other legs, which are flattened; by default, the order in the diagram. `rows` and
    `counted` as in `call_of_tokens`. Raises InputError if the design has no attention map, or if padding changes it.
    """
    if problem := changed_by_padding(design, inputs, masks.get("key_mask"), rows, counted):
        raise InputError(
            f"{design.design.name}: there are no maps of padded sequences, because {problem}; call with "
            "need_weights=False or output_attentions=False."
        )
    graph = design.plan.graph
    reader = map_of(graph)
    if reader is None:
        raise InputError(
            f"{graph.name}: it has no attention map to return; call with need_weights=False or output_attentions=False."
        )
    name, pair = reader.use.name, (graph.query, str(graph.key))
    lengths = design._signature.check(inputs, masks.get("mask"), masks.get("key_mask"), None)
    values = design._evaluate(graph, leaves(design, inputs, None), lengths=lengths, until=name, **masks)
    legs = graph.legs_of(name)
    order = (*(heads or [leg for leg in legs if leg not in pair]), *pair)
    tensor = values[name].movedim([legs.index(leg) - len(legs) for leg in order], list(range(-len(order), 0)))
    batch = tensor.shape[: tensor.dim() - len(legs)]
    return tensor.reshape(*batch, prod(tensor.shape[len(batch) : -2]), *tensor.shape[-2:])
