"""Emits masks: what a box can see, computed once for all boxes with the same masks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial, reduce

from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Function, Graph, Seen, Step, Visible
from tensornet_attn.graph.hidden import BY_KEY, flat_steps, omits_hidden_keys
from tensornet_attn.graph.recurrence import unmasked
from tensornet_attn.graph.visibility import condition, written_numbers
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.ops import MASKS
from tensornet_attn.ops.conv import hides_rows

_PLACES = {"query": "query", "key": "key", "distance": "(query - key)"}


@dataclass
class VisibleKeys:
    """One call of `visible`: the position of its line, and whether its bias is used."""

    group: list[str]
    line: int
    keep: str
    bias: str
    text: str
    biased: bool = False


def takes_mask(graph: Graph) -> bool:
    """Whether a call takes `mask`: a box has query and key, and no recurrence would have to apply it too."""
    return not any(map(unmasked, graph.steps)) and any(graph.query in legs for legs in masked_legs(graph))


def takes_key_mask(graph: Graph) -> bool:
    steps = any(unmasked(step) or hides_rows(graph, step.box) for step in flat_steps(graph))
    return bool(masked_legs(graph)) or steps or omits_hidden_keys(graph)


def masked_legs(graph: Graph) -> list[Legs]:
    """The legs of each box that masks act on."""
    return [step.box.of.legs for step in flat_steps(graph) if step.box is not None and graph.masked(step)]


def keep_and_bias(writer: Writer, step: Step, layout: Legs) -> tuple[str, str]:
    """The names of mask and bias for a box laid out as [others..., n, m] or [others..., m]."""
    assert step.box is not None
    query = writer.graph.query in layout
    visible_keys = _keep(writer, writer.graph.masks(step), "mask", len(layout) - 1 - query, query)
    return visible_keys.keep, _bias(visible_keys, query and operation_of(step).takes_float_mask)


def row_keep(writer: Writer, layout: Legs) -> str:
    """The name of the key mask for a value laid out as [others..., n], whose rows are the keys."""
    return _keep(writer, (), "None", len(layout) - 1, False).keep


def attention_keep(writer: Writer, masks: tuple[Function, ...], heads: tuple[int, ...], causal: str) -> tuple[str, str]:
    """The names of mask and bias for fused attention, where all heads are one dimension.

    `causal`: the text of whether the masks only hide later keys, which the call then does itself.
    """
    mask = "mask"
    if len(heads) > 1 and takes_mask(writer.graph):
        mask = writer.call("heads_together", "mask", writer.batch_dims, f"({', '.join(map(str, heads))})")
    visible_keys = _keep(writer, () if causal == "True" else masks, mask, 1, True, causal)
    return visible_keys.keep, _bias(visible_keys, True)


def name_biases(writer: Writer) -> None:
    """Writes the lines of the masks, after it is known which biases are used."""
    for visible_keys in (*writer.keeps.values(), *writer.past_keeps):
        visible_keys.group[visible_keys.line] = (
            f"{visible_keys.keep}, {visible_keys.bias if visible_keys.biased else '_'} = {visible_keys.text}"
        )


def _bias(visible_keys: VisibleKeys, wanted: bool) -> str:
    visible_keys.biased |= wanted
    return visible_keys.bias if wanted else "None"


def _keep(
    writer: Writer, masks: tuple[Function, ...], mask: str, other_count: int, query: bool, unless: str = "False"
) -> VisibleKeys:
    mask = mask if query and takes_mask(writer.graph) else "None"
    signature = (frozenset(masks), mask, other_count, query, unless if masks else "")
    if signature not in writer.keeps:
        design_mask = own_mask(writer, masks)
        design_mask = design_mask if unless in ("True", "False") else f"None if {unless} else {design_mask}"
        arguments = [design_mask, mask, "key_mask", writer.batch_dims, str(other_count)]
        call = writer.call("visible", *arguments, *([] if query else ["False"]))
        keep, bias = writer.names.fresh("keep"), writer.names.fresh("bias")
        writer.line(call)
        writer.keeps[signature] = VisibleKeys(writer.groups[-1], len(writer.groups[-1]) - 1, keep, bias, call)
    visible_keys: VisibleKeys = writer.keeps[signature]
    return visible_keys


def seen_text(writer: Writer, seen: Seen, layout: Legs, batched: bool) -> str:
    """The mask of where a value [others..., n, m], or any value without the query leg, is visible; or None."""
    if writer.graph.query not in layout or seen == BY_KEY:
        return _by_key(writer, layout, batched)
    alternatives = []
    for conjunction in sorted(seen, key=repr):
        keeps = dict.fromkeys(_seen(writer, visible, layout) for visible in sorted(conjunction, key=repr))
        alternatives.append(reduce(partial(writer.call, "both"), keeps))
    expression = reduce(partial(writer.call, "either"), dict.fromkeys(alternatives))
    return expression if batched else writer.call("in_any", expression, str(len(layout)))


def _seen(writer: Writer, visible: Visible, layout: Legs) -> str:
    """The name of the mask for one visibility."""
    assert visible.legs is not None
    others, own_legs = layout[:-2], [leg for _, leg in visible.legs]
    mask = "mask"
    if tuple(own_legs) != others and takes_mask(writer.graph):
        order = ", ".join(str(own_legs.index(leg)) if leg in own_legs else "None" for leg in others)
        mask = writer.call("mask_along", "mask", writer.batch_dims, f"({order},)" if others else "()")
    return _keep(writer, visible.masks, mask, len(others), True).keep


def _by_key(writer: Writer, layout: Legs, batched: bool) -> str:
    expression = TensorText("key_mask", (str(writer.graph.key),), True).aligned(layout, whole=True).text
    expression = expression if batched else writer.call("in_any", expression, str(len(layout)))
    return expression if expression == "key_mask" else f"{expression} if key_mask is not None else None"


def own_mask(writer: Writer, masks: tuple[Function, ...]) -> str:
    """The masks of the design for a box as one boolean [n, m], or None."""
    calls = []
    for mask in dict.fromkeys(masks):
        row = MASKS.get(mask.name)
        if row is not None and row.torch and len(mask.arguments) == row.counts[0]:
            function, numbers = row.torch, [writer.integer(argument) for argument in written_numbers(mask)]
        else:
            function, numbers = "seen_mask", [sees_text(writer, [mask])]
        calls.append(writer.call(function, *writer.lengths_of_pair, *numbers, f"{writer.like.text}.device"))
    return " & ".join(calls) or "None"


def sees_text(writer: Writer, masks: Iterable[Function]) -> str:
    """The condition of masks as a function of query and key positions."""
    formulas = [condition(mask, writer.integer, _PLACES) for mask in dict.fromkeys(masks)]
    return (
        f"lambda query, key: {' & '.join(f'({formula})' for formula in formulas) if len(formulas) > 1 else formulas[0]}"
    )
