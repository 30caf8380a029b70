"""The core of a design: what it computes from given queries, keys and values, without its projections.

Q: x[n f] Wq[f h d] -> n h d                      Q: query[n h d] -> n h d
K: memory[m f] Wk[f h d] -> m h d                 K: key[m h d] -> m h d
V: memory[m f] Wv[f h d] -> m h d                 V: value[m h d] -> m h d
A: {softmax: m, of: "Q[n h d] K[m h d] -> h n m"}
y: A[h n m] V[m h d] Wo[h d f] -> n f             y: A[h n m] V[m h d] -> n h d
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensornet_attn.errors import DesignError, InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.attention import MapReader, ahead, attentions, behind, map_of
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.ir.steps import within, without
from tensornet_attn.spec import Design
from tensornet_attn.spec.expression import SumText, parse_sum_text
from tensornet_attn.spec.read import load
from tensornet_attn.spec.yaml import Data, edited

Legs = tuple[str, ...]
SIDES = ("query", "key", "value")
INSTEAD = "use ta.convert_model to put the whole design into a model"


@dataclass(frozen=True)
class AttentionCore:
    """A design without weights whose inputs are queries, keys and values, in this order.

    `rows`: the legs of each input as written; `heads`: those that the attention map also has; `width`: for each input,
    the leg of a head's entries. `output`: the legs of the output.
    """

    design: Design
    graph: Graph
    rows: tuple[Legs, Legs, Legs]
    heads: tuple[Legs, Legs, Legs]
    width: Legs
    output: Legs

    def sized(self, sizes: dict[str, int]) -> Design:
        """The design with these sizes for the legs of its inputs."""
        return load(self.design, legs=dict(sizes))


def between(design: Design) -> AttentionCore:
    """Returns the core of a design. A design with three inputs and no weights is its own core.

    Raises InputError, which names the rest, if the design does more than weigh values by scores.
    """
    graph = build(design)
    held = [tensor.name for tensor in graph.tensors if tensor.role in ("weight", "state")]
    try:
        inside = design if len(graph.of_role("input")) == 3 and not held else load(_without_projections(design, graph))
        graph = build(inside)
    except DesignError as error:
        first = error.problems[0].message
        raise InputError(f"{graph.name}: without its projections it is not a valid design: {first}") from None
    reader = map_of(graph)
    rows = tuple(tensor.legs for tensor in graph.of_role("input"))
    sequences = [[leg for leg in row if graph.leg[leg].sequence] for row in rows]
    if reader is None or sequences != [[graph.query], [graph.key], [graph.key]]:
        raise InputError(f"{graph.name}: it does not weigh its last input by scores of the other two.")
    other_legs = [[leg for leg in row if not graph.leg[leg].sequence] for row in rows]
    heads = tuple(within(row, reader.use.legs) for row in other_legs)
    widths = [[leg for leg in row if leg not in reader.use.legs] for row in other_legs]
    output = graph.legs_of(graph.output)
    if any(len(width) != 1 for width in widths) or widths[0] != widths[1]:
        shapes = ", ".join(f"[{' '.join(row)}]" for row in rows)
        raise InputError(
            f"{graph.name}: its queries, keys and values are {shapes}; each needs one leg besides its heads."
        )
    if {*output} != {graph.query, *heads[0], *widths[2]} or {*heads[2]} not in ({*heads[0]}, {*heads[1]}):
        raise InputError(
            f"{graph.name}: its output is [{' '.join(output)}]; it must have the heads of the queries and the width "
            "of the values."
        )
    return AttentionCore(inside, graph, rows, heads, tuple(width[0] for width in widths), output)  # type: ignore[arg-type]


def scaled_by_queries(graph: Graph) -> bool:
    """Whether scaling the queries, the first input, scales the scores.

    Terms of constants only, such as ALiBi's, are not scaled.
    """
    query, *rest = (tensor.name for tensor in graph.of_role("input"))
    inputs, linear = ahead(graph.steps, (query, *rest)), {query: True}
    scores = {attention.of.name for attention in attentions(graph).values()}
    for step in graph.steps:
        if linear.keys().isdisjoint(step.reads):
            continue
        terms = [term.factors for term in step.terms] if step.contraction else [step.uses]
        if step.name in scores:
            terms = [term for term in terms if not inputs.isdisjoint(use.name for use in term)]
        single = all([linear.get(use.name) for use in term if use.name in linear] == [True] for term in terms)
        linear[step.name] = single and (step.box is None or operation_of(step).linear)
    return all(linear.get(name) for name in scores)


def _without_projections(design: Design, graph: Graph) -> Data:
    """The design as data, without its projections to queries, keys, values and output."""
    reader = map_of(graph)
    if reader is None:
        raise InputError(f"{graph.name}: it has no attention map that weighs all values; {INSTEAD}.")
    side_of = _sides(graph, reader)
    data = design.as_dict()
    rows: dict[str, str] = {}

    def edit(expression: str) -> str:
        tree = parse_sum_text(expression)
        side = side_of.get(_factors(tree))
        if side is None:
            return expression
        rows[side] = " ".join(leg.name for leg in tree.legs)
        return f"{names[side]}[{rows[side]}] -> {rows[side]}"

    taken = {*graph.step, *graph.tensor}
    names = {side: side if side not in taken else f"{side}_given" for side in SIDES}
    out: dict[str, Any] = edited(data, edit)
    out["diagram"][graph.output], last = _unprojected(out["diagram"][graph.output], graph)
    removed = {name for pair in side_of for name in pair} | last
    stored = (tensor.name for tensor in graph.tensors if tensor.role in ("weight", "state"))
    if kept := [name for name in stored if name not in removed]:
        requirement = "but the rest of a design must have no weights"
        raise InputError(f"{graph.name}: without its projections it still has '{kept[0]}', {requirement}; {INSTEAD}.")
    out["inputs"] = {names[side]: rows[side] for side in SIDES}
    legs = dict.fromkeys(leg for row in rows.values() for leg in row.split())
    sizes = {leg: graph.leg[leg] for leg in legs if not graph.leg[leg].sequence}
    out["legs"] |= {name: f"head {leg.size}" if leg.kind == "head" else leg.size for name, leg in sizes.items()}
    for tensor in graph.of_role("input"):
        out["legs"].pop(tensor.legs[-1], None)
    return {key: section for key, section in out.items() if key not in ("weights", "contains")}


def _sides(graph: Graph, reader: MapReader) -> dict[tuple[str, ...], str]:
    """The side (query, key or value) of each projection (input, weight)."""
    scores = behind(graph, [reader.use.name])
    sides_of: dict[tuple[str, ...], set[str]] = {}
    for step in graph.steps:
        if (pair := _projection(graph, step)) is not None:
            key = "key" if step.name in scores else "value"
            sides_of.setdefault(pair, set()).add("query" if graph.query in step.legs else key)
    named = [next(iter(sides)) for sides in sides_of.values() if len(sides) == 1]
    if sorted(named) != sorted(SIDES):
        raise InputError(
            f"{graph.name}: it has {named.count('query')} projections to queries, {named.count('key')} to keys and "
            f"{named.count('value')} to values; exactly one of each can be removed; {INSTEAD}."
        )
    return {pair: next(iter(sides)) for pair, sides in sides_of.items()}


def _projection(graph: Graph, step: Step) -> tuple[str, ...] | None:
    """The names of the input and the weight if a step is a projection of single positions, else None."""
    terms = step.terms
    if len(terms) != 1 or terms[0].coefficient != ONE or len(terms[0].factors) != 2:
        return None
    roles = {graph.tensor[use.name].role: use for use in terms[0].factors if use.name in graph.tensor}
    if {*roles} != {"input", "weight"} or not {*roles["input"].legs} & {graph.query, graph.key} <= {*step.legs}:
        return None
    return tuple(sorted(use.name for use in terms[0].factors))


def _factors(tree: SumText) -> tuple[str, ...]:
    """The sorted names of the factors if the expression is one plain product, else ()."""
    plainly = len(tree.terms) == 1 and tree.terms[0].coefficient == ONE
    return tuple(sorted(use.name for use in tree.terms[0].factors)) if plainly else ()


def _unprojected(expression: Any, graph: Graph) -> tuple[Any, set[str]]:
    """The output expression without its output projection, and the name of that weight."""
    if not isinstance(expression, str) or "->" not in expression:
        return expression, set()
    tree, width = parse_sum_text(expression), graph.legs_of(graph.output)[-1]
    weights = {tensor.name for tensor in graph.of_role("weight")}
    uses = [use for term in tree.terms for use in term.factors if use.name in weights]
    if len(tree.terms) != 1 or len(uses) != 1 or uses[0].legs is None:
        return expression, set()
    (use,), names = uses, [leg.name for leg in uses[0].legs]
    if width not in names:
        return expression, set()
    rest = [leg.name for leg in tree.legs if leg.name != width]
    cut = expression.index("->")
    before = f"{expression[: use.span[0]]}{expression[use.span[1] : cut]}".strip()
    return f"{before} -> {' '.join([*rest, *without(names, width)])}", {use.name}
