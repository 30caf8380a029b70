"""The table of relations: what every design keeps on every backend, and to which designs each relation applies."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tensornet_attn.graph.attention import behind
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.hidden import omits_hidden_keys
from tensornet_attn.graph.padding import padding_of
from tensornet_attn.graph.pairs import batched
from tensornet_attn.ir.arithmetic import names
from tensornet_attn.ops import OPS
from tests.relations import masks, precision, traces
from tests.relations import relations as of
from tests.relations.subject import Subject


class Relation(NamedTuple):
    """A relation: its function raises AssertionError where a subject breaks it. `slow`: takes seconds."""

    function: Callable[[Subject], None]
    applies: Callable[[Graph], bool] = lambda graph: True
    slow: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__


def keyed(graph: Graph) -> bool:
    """Whether a key mask acts on a step."""
    return omits_hidden_keys(graph) or any(
        graph.masked(step) or (step.box is not None and OPS[step.box.kind].recurrent) for step in graph.steps
    )


def hides_keys(graph: Graph) -> bool:
    """Whether a key mask hides keys wherever they meet: no box runs along the keys without masks."""
    boxes = [step for step in graph.steps if step.box is not None]
    along = [step for step in boxes if step.box.leg == graph.key and OPS[step.box.kind].runs_along]  # type: ignore[union-attr]
    free = [step for step in along if not (graph.masked(step) or OPS[step.box.kind].recurrent)]  # type: ignore[union-attr]
    return keyed(graph) and not free and graph.key not in graph.legs_of(graph.output) and not mixes_queries(graph)


def mixes_queries(graph: Graph) -> bool:
    """Whether a step before the output combines queries: a box along the query leg, or a product that sums over it."""
    needed = behind(graph, [graph.output])
    for step in (step for step in graph.steps if step.name in needed):
        if step.box is None and graph.query not in step.legs and any(graph.query in use.legs for use in step.op.uses):
            return True
        if step.box is not None and graph.query in OPS[step.box.kind].legs_mixed(step.box):
            return True
    return False


def separate_queries(graph: Graph) -> bool:
    """Whether queries are computed one by one, from keys of another input."""
    counted = [term.coefficient for step in graph.steps if step.contraction for term in step.contraction.terms]
    counted += [number for step in graph.steps if step.box is not None for _, number in step.box.numbers]
    lengths = {name.name for number in counted for name in names(number)}
    fixed = any(graph.query in t.legs for t in graph.tensors if t.role in ("weight", "state"))
    free = [leg.name for leg in graph.legs if leg.kind == "relative" and leg.size is None]
    stored = any(leg in tensor.legs for leg in free for tensor in graph.tensors)
    return not (graph.tied or graph.key is None or mixes_queries(graph) or graph.query in lengths or fixed or stored)


def paired(graph: Graph) -> bool:
    """Whether a mask of the call acts on a box."""
    boxes = [step.box for step in graph.steps if step.box is not None and graph.masked(step)]
    return any(graph.query in box.operand("of").legs for box in boxes) and not recurrent(graph)


def recurrent(graph: Graph) -> bool:
    return any(step.box is not None and OPS[step.box.kind].recurrent for step in graph.steps)


def exact(side: str) -> Callable[[Graph], bool]:
    """Whether padding on this side is exact, by `graph/padding.py`."""
    return lambda graph: getattr(padding_of(graph, [graph.output]), side) is None


def hides_between(graph: Graph) -> bool:
    """Whether hidden keys, with their queries if these are the same positions, can be removed anywhere."""
    return hides_keys(graph) and exact("between")(graph) and (graph.tied or exact("apart")(graph))


def noiseless(graph: Graph) -> bool:
    return not graph.of_role("noise")


TABLE = (
    Relation(of.backends_agree),
    Relation(masks.large_masks_are_scores, paired),
    Relation(masks.wide_biases_fit_half_layers, paired),
    Relation(of.not_a_number_is_seen),
    Relation(of.logarithms_of_nothing_are_finite, keyed),
    Relation(of.hidden_rows_do_not_matter, hides_keys),
    Relation(of.hidden_pairs_do_not_matter, keyed),
    Relation(of.products_at_hidden_pairs_may_overflow, paired),
    Relation(of.rows_behind_do_not_matter, exact("behind")),
    Relation(of.rows_before_do_not_matter, exact("before")),
    Relation(of.hidden_keys_are_no_keys, hides_between),
    Relation(of.tokens_are_the_sequence, noiseless),
    Relation(of.documents_are_calls, noiseless),
    Relation(of.chunks_are_the_whole),
    Relation(of.sequences_are_apart, lambda graph: graph.output in batched(graph)),
    Relation(of.queries_are_apart, separate_queries),
    Relation(of.masks_have_forms, paired),
    Relation(of.nothing_gives_nothing),
    Relation(of.strides_do_not_matter),
    Relation(of.calls_leave_no_trace),
    Relation(of.copies_are_the_layer),
    Relation(of.threads_are_apart),
    Relation(of.stored_orders_do_not_matter, lambda graph: bool(graph.of_role("weight"))),
    Relation(
        precision.halves_are_as_exact_as_rounded_steps,
        lambda graph: noiseless(graph) and not precision.chooses(graph),
    ),
    Relation(
        precision.gradients_of_halves_are_as_exact_as_rounded_steps,
        lambda graph: noiseless(graph) and not precision.chooses(graph) and not precision.jumps(graph),
    ),
    Relation(traces.sources_are_printed),
    Relation(traces.traced_is_the_layer, slow=True),
    Relation(traces.layers_share_a_trace, slow=True),
    Relation(traces.exported_is_the_layer, noiseless, slow=True),
    Relation(traces.onnx_is_the_layer, noiseless, slow=True),
)
RELATIONS: dict[str, Relation] = {relation.name: relation for relation in TABLE}
