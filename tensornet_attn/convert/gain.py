"""Adds what trained layers have besides their weights to designs: biases, norms, rotary positions, windows and more.

Functions take a design as plain data (`Design.as_dict()`) and return such data. Expressions are parsed and edited by
insertion, so that other text stays as written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

from tensornet_attn.errors import InputError
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph
from tensornet_attn.ir.arithmetic import ONE, Negative, to_text
from tensornet_attn.spec.expression import SumText, TermText, UseText, parse_sum_text
from tensornet_attn.spec.yaml import Data, edited, plain


def with_biases(document: Data, graph: Graph, axes: Mapping[str, int]) -> tuple[Data, dict[str, str]]:
    """Adds a bias to each of these weights, on all legs but the input leg. Returns weight -> name of its bias.

    `x[n f] Wq[f h d] -> n h d` becomes `x[n f] Wq[f h d] + bq[h d] -> n h d`: in every product with the weight, the
    constant 1 replaces the tensor on the input leg. Raises InputError if there is no such product.
    """
    short = {weight: len(weight) > 1 and weight[0] == "W" for weight in axes}  # bq for Wq, b_C for C
    names = {weight: _free(document, f"b{weight[1:]}" if short[weight] else f"b_{weight}") for weight in axes}
    biased: set[str] = set()

    def edit(expression: str) -> str:
        tree, added = parse_sum_text(expression), ""
        for term in tree.terms:
            for use in term.factors:
                if use.name in axes:
                    biased.add(use.name)
                    added += _companion(expression, tree, term, use, axes[use.name], names[use.name], graph)
        arrow = expression.index("->")
        return f"{expression[:arrow].rstrip()}{added} {expression[arrow:]}" if added else expression

    out = edited(document, edit)
    if missing := sorted(axes.keys() - biased):
        raise InputError(f"'{graph.name}' uses '{missing[0]}' in no product, so its bias cannot be added.")
    for weight, axis in axes.items():
        legs = graph.legs_of(weight)
        out["weights"][names[weight]] = {"legs": " ".join(legs[:axis] + legs[axis + 1 :]) or [], "init": "zeros"}
    return out, names


def with_output_bias(document: Data, graph: Graph, leg: str) -> tuple[Data, str]:
    """Adds a bias to the output on one of its legs. Returns the name of the bias."""
    name, out = _free(document, "bo"), plain(document)
    output, legs = document["output"], " ".join(graph.step[document["output"]].legs)
    step = out["diagram"][output]
    if isinstance(step, str) and "->" in step:
        arrow = step.index("->")
        out["diagram"][output] = f"{step[:arrow].rstrip()} + {name}[{leg}] {step[arrow:]}"
    else:
        new = _free(document, f"{output}_biased")
        out["diagram"][new] = f"{output}[{legs}] + {name}[{leg}] -> {legs}"
        out["output"] = new
    out["weights"][name] = {"legs": leg, "init": "zeros"}
    return out, name


def with_rope(
    document: Data, graph: Graph, axes: Mapping[str, tuple[int, int]], base: float, fraction: float, scaling: Data
) -> Data:
    """Adds rotary positions to the projections by these weights; `axes`: the rotated axis, and the width of its blocks.

    `scaling`: further keys of the box. Raises InputError if a projection does not have exactly one sequence leg.
    """
    rotated: set[str] = set()

    def edit(expression: str) -> Any:
        tree = parse_sum_text(expression)
        uses = [use for term in tree.terms for use in term.factors if use.name in axes]
        if not uses:
            return expression
        use, legs = uses[0], [leg.name for leg in tree.legs]
        axis, width = axes[use.name]
        rotated_leg = use.legs[axis].name if use.legs else ""
        positions = [leg for leg in legs if graph.leg[leg].sequence]
        if len(positions) != 1 or rotated_leg not in legs:
            raise InputError(f"'{graph.name}' cannot have rotary positions: '{expression}' mixes positions or heads.")
        rotated.update(rotated_use.name for rotated_use in uses)
        box = {"rope": positions[0], "along": rotated_leg, "base": base, "fraction": fraction}
        blocks = (size_of(graph, rotated_leg) or width) // width
        keys = {key: value for key, value in box.items() if (key, value) not in (("base", 10000), ("fraction", 1))}
        return keys | ({"blocks": blocks} if blocks > 1 else {}) | scaling | {"of": expression}

    out: Data = edited(document, edit)
    if missing := sorted(axes.keys() - rotated):
        raise InputError(f"'{graph.name}' uses '{missing[0]}' in no product, so rotary positions cannot be added.")
    return out


def with_scaling(document: Data, scaling: Mapping[str, Any]) -> Data:
    """Every box `rope` with the keys that scale its positions."""
    out: Data = plain(document)
    for box in _boxes(out["diagram"]):
        if "rope" in box:
            box |= scaling
    return out


def with_norm(
    document: Data, graph: Graph, weight: str, axis: int, norm: tuple[str, float], shape: tuple[int, ...], whole: bool
) -> tuple[Data, str, tuple[int, ...]]:
    """Adds a norm (kind, eps) after a projection, before rotary positions. Returns the name and shape of its scale.

    `axis`: the axis of the weight with the entries of a head. `shape`: [d] for a scale shared by all heads, [heads, d]
    for one per head; `whole` normalises over all heads at once. Raises InputError if the norm cannot be added.
    """
    out, kind = plain(document), norm[0]
    projections = [
        (name, expression)
        for name, step in out["diagram"].items()
        for expression in _texts(step)
        if _uses(expression, weight)
    ]
    if len(projections) != 1:
        raise InputError(f"'{graph.name}' uses '{weight}' in {len(projections)} expressions; a norm needs exactly one.")
    step, expression = projections[0]
    tree = parse_sum_text(expression)
    use = next(use for term in tree.terms for use in term.factors if use.name == weight)
    legs = [leg.name for leg in tree.legs]
    normed_leg = use.legs[axis].name if use.legs else ""
    heads = [leg for leg in legs if not graph.leg[leg].sequence and leg != normed_leg]
    if normed_leg not in legs or (not whole and size_of(graph, normed_leg) != shape[-1]):
        raise InputError(f"'{graph.name}' has no leg of {shape[-1]} entries in '{expression}' for a norm.")
    if whole and kind != "rmsnorm" and heads:
        raise InputError(f"'{graph.name}' cannot normalise several legs at once with '{kind}'.")
    scaled = [leg for leg in legs if leg in (*heads, normed_leg)] if len(shape) > 1 else [normed_leg]
    sizes = tuple(size_of(graph, leg) or 0 for leg in scaled)
    if prod(sizes) != prod(shape):
        raise InputError(f"'{graph.name}' has {sizes} entries, but the scale of the norm has {shape}.")
    before, normed = _free(document, f"{step}_projected"), _free(document, f"{step}_normed")
    scale, row = _free(document, f"{weight[1:].lower() or weight}_norm"), " ".join(legs)
    steps: Data = {before: expression}
    factors = f"{normed}[{row}]"
    if whole and heads:
        rest = " ".join(leg for leg in legs if leg not in (*heads, normed_leg))
        square = _free(document, f"{step}_square")
        of: Any = {"map": "square", "of": before}
        for leg in (normed_leg, *heads):
            of = {"mean": leg, "of": of}
        steps |= {square: of, normed: {"map": "power(-0.5)", "of": f"{square}[{rest}] + {norm[1]} -> {rest}"}}
        factors = f"{before}[{row}] {normed}[{rest}]"
    else:
        steps[normed] = {kind: normed_leg, "eps": norm[1], "of": before}
    steps[step] = _replaced(out["diagram"][step], expression, f"{factors} {scale}[{' '.join(scaled)}] -> {row}")
    out["diagram"] = _before(out["diagram"], step, steps)
    out["weights"][scale] = {"legs": " ".join(scaled), "init": "ones"}
    return out, scale, sizes


def with_window(document: Data, graph: Graph, before: int, after: int) -> Data:
    """Restricts every softmax over the keys to a window around the query. Raises InputError if there is none."""
    out: Data = plain(document)
    for box in _softmaxes(out, graph, "a window"):
        masks = box.get("mask", [])
        box["mask"] = [*([masks] if isinstance(masks, str) else masks), f"window({before}, {after})"]
    return out


def with_softcap(document: Data, graph: Graph, cap: float) -> Data:
    """Replaces scores s by cap tanh(s / cap) in every softmax over the keys. Raises InputError if there is none."""
    out: Data = plain(document)
    for box in _softmaxes(out, graph, "capped scores"):
        box["of"] = {"map": f"softcap({cap} / ({box.get('scale', 1)}))", "of": box["of"]}  # the scale follows
    return out


def with_alibi(document: Data, graph: Graph, heads: int) -> Data:
    """Adds ALiBi to every softmax over the keys: minus the head's slope times the distance. Raises InputError."""
    slopes, gap = _free(document, "slopes"), _free(document, "gap")

    def bias(out: Data, head: str) -> str:
        out.setdefault("constants", {})[slopes] = {"legs": head, "value": "alibi_slopes"}
        out["constants"][gap] = {"legs": f"{graph.query} {graph.key}", "value": "distance"}
        return f"{slopes}[{head}] {gap}[{graph.query} {graph.key}]"

    return _biased(document, graph, heads, "-", bias, "ALiBi")


def with_sinks(document: Data, graph: Graph, heads: int) -> tuple[Data, str, tuple[int, ...]]:
    """One more score of each head in every softmax over the keys; its weight, and that one's shape.

    Raises InputError where the scores have no such heads, or a sink of their own.
    """
    out: Data = plain(document)
    name = _free(document, "sink")
    sizes: tuple[int, ...] = ()
    for box in _softmaxes(out, graph, "sinks"):
        if "sink" in box:
            raise InputError(f"'{graph.name}' has a sink of its own in the softmax of '{box['of']}'.")
        of = str(box["of"])
        step = graph.step.get(of)
        legs = [leg.name for leg in parse_sum_text(of).legs] if "->" in of else step.legs if step is not None else ()
        head_legs = [leg for leg in legs if not graph.leg[leg].sequence]
        sizes = tuple(size_of(graph, leg) or 0 for leg in head_legs)
        if prod(sizes) != heads or graph.query not in legs:
            raise InputError(f"'{graph.name}' has no {heads} heads in the scores '{of}', for sinks.")
        box["sink"] = f"{name}[{' '.join(head_legs)}]"
        out["weights"][name] = {"legs": " ".join(head_legs), "init": "zeros"}
    return out, name, sizes


def with_buckets(
    document: Data, graph: Graph, heads: int, count: int, furthest: int, both_sides: bool
) -> tuple[Data, str]:
    """Adds a bias per head and distance bucket to every softmax over the keys. Returns the name of its weight.

    Raises InputError if it cannot be added.
    """
    weight, own_bucket, distances, near = (_free(document, name) for name in ("B", "own_bucket", "distances", "near"))
    taken = {*document["legs"], *document.get("settings", {})}
    p, b = (next(name for name in (stem, f"{stem}_", f"{stem}__") if name not in taken) for stem in ("p", "bucket"))

    def bias(out: Data, head: str) -> str:
        if weight not in out["weights"]:
            out["legs"] |= {p: f"relative {furthest}", b: count}
            out["weights"][weight] = {"legs": f"{b} {head}", "init": "zeros"}
            out.setdefault("constants", {})[own_bucket] = {
                "legs": f"{p} {b}",
                "value": f"bucket({count}, {furthest}, {int(both_sides)})",
            }
            out["diagram"] = {
                distances: f"{weight}[{b} {head}] {own_bucket}[{p} {b}] -> {head} {p}",
                near: {"rel_shift": p, "to": graph.key, "of": distances},
                **out["diagram"],
            }
        return f"{near}[{head} {graph.query} {graph.key}]"

    return _biased(document, graph, heads, "+", bias, "relative biases"), weight


def _biased(document: Data, graph: Graph, heads: int, sign: str, bias: Callable[[Data, str], str], what: str) -> Data:
    """Adds a bias to the scores of every softmax over the keys; `bias` gets the head leg. Raises InputError."""
    out: Data = plain(document)
    biased = False
    for step, definition in list(out["diagram"].items()):
        for box in _boxes(definition):
            if graph.key is None or box.get("softmax") != graph.key:
                continue
            legs = [leg.name for leg in parse_sum_text(box["of"]).legs] if "->" in str(box["of"]) else []
            head_legs = [leg for leg in legs if size_of(graph, leg) == heads and not graph.leg[leg].sequence]
            if len(head_legs) != 1 or graph.query not in legs:
                raise InputError(f"'{graph.name}' has no leg of {heads} heads in the scores '{box['of']}', for {what}.")
            scores, row = _free(out, f"{step}_scores"), " ".join(legs)
            term = f"(1 / ({box.get('scale', 1)})) * {bias(out, head_legs[0])}"
            new = {scores: box["of"]}
            box["of"] = f"{scores}[{row}] {sign} {term} -> {row}"
            out["diagram"] = _before(out["diagram"], step, new | {step: definition})
            biased = True
    if not biased:
        raise InputError(f"'{graph.name}' has no softmax over its keys, so {what} cannot be added.")
    return out


def with_weight_given(document: Data, name: str) -> Data:
    """Makes a weight the last input of the design."""
    out: Data = plain(document)
    out["inputs"][name] = out["weights"].pop(name)["legs"]
    return out


def with_dropout(document: Data, graph: Graph, probability: float) -> Data:
    """Sets the dropout of every softmax over the keys. Raises InputError if there is none."""
    out: Data = plain(document)
    for box in _softmaxes(out, graph, "dropout"):
        box["dropout"] = probability
    return out


def with_memory(document: Data, graph: Graph, needed: bool = False) -> tuple[Data, str]:
    """Adds a second input for keys and values; it defaults to the first unless `needed`. Returns its name."""
    inputs = graph.of_role("input")
    if len(inputs) > 1:
        out: Data = plain(document)
        if needed:
            out["inputs"][inputs[1].name] = " ".join(inputs[1].legs)
        return out, inputs[1].name
    x, name = inputs[0], _free(document, "memory")
    key_products = []

    def edit(expression: str) -> str:
        uses = [use for term in parse_sum_text(expression).terms for use in term.factors]
        for use in reversed(uses):
            if use.name == x.name and any(leg.name == graph.key for leg in use.legs or ()):
                key_products.append(expression)
                expression = f"{expression[: use.span[0]]}{name}{expression[use.span[0] + len(x.name) :]}"
        return expression

    out = edited(document, edit)
    if not key_products:
        raise InputError(f"'{graph.name}' computes no keys from its input '{x.name}'.")
    legs = [graph.key if leg == graph.query else leg for leg in x.legs]
    expression = " ".join(map(str, legs))
    out["inputs"][name] = expression if needed else {"legs": expression, "default": x.name}
    return out, name


def _companion(expression: str, tree: SumText, term: TermText, use: UseText, axis: int, name: str, graph: Graph) -> str:
    """The term of a bias: the product without the input leg of the weight and the tensor on that leg."""
    legs = [leg.name for leg in use.legs or ()]
    leg = legs.pop(axis)
    other_factors = [factor for factor in term.factors if factor is not use]
    carriers = [factor for factor in other_factors if leg in [factor_leg.name for factor_leg in factor.legs or ()]]
    if len(carriers) != 1 or leg in [result_leg.name for result_leg in tree.legs]:
        message = (
            f"'{graph.name}': the input leg '{leg}' of '{use.name}' is not summed with one tensor in '{expression}'"
        )
        raise InputError(f"{message}, so a bias cannot be added.")
    rest = [expression[slice(*factor.span)] for factor in other_factors if factor is not carriers[0]]
    coefficient, sign = term.coefficient, "+"
    if isinstance(coefficient, Negative):
        coefficient, sign = coefficient.of, "-"
    factor = "" if coefficient == ONE else f"({to_text(coefficient)}) * "
    bias = f"{name}[{' '.join(legs)}]"
    return f" {sign} {factor}{' '.join([*rest, bias])}"


def _free(document: Data, name: str) -> str:
    taken = {
        key
        for section in ("inputs", "weights", "constants", "noise", "state", "diagram")
        for key in document.get(section, {})
    }
    while name in taken:
        name += "_"
    return name


def _softmaxes(out: Data, graph: Graph, what: str) -> list[Data]:
    """The boxes of all softmaxes over the keys. Raises InputError if there is none."""
    boxes = [box for box in _boxes(out["diagram"]) if graph.key is not None and box.get("softmax") == graph.key]
    if not boxes:
        raise InputError(f"'{graph.name}' has no softmax over its keys, so {what} cannot be added.")
    return boxes


def _before(diagram: Data, step: str, steps: Data) -> Data:
    """The diagram with `step` replaced by `steps`."""
    replaced = [(steps.items() if name == step else [(name, definition)]) for name, definition in diagram.items()]
    return dict(pair for pairs in replaced for pair in pairs)


def _texts(definition: Any) -> Iterator[str]:
    """The expressions of a step."""
    if isinstance(definition, str) and "->" in definition:
        yield definition
    elif isinstance(definition, dict):
        for inner in definition.values():
            yield from _texts(inner)


def _uses(expression: str, weight: str) -> bool:
    return any(use.name == weight for term in parse_sum_text(expression).terms for use in term.factors)


def _replaced(definition: Any, expression: str, new: str) -> Any:
    if isinstance(definition, dict):
        return {key: _replaced(inner, expression, new) for key, inner in definition.items()}
    return new if definition == expression else definition


def _boxes(definition: Any) -> Iterator[Data]:
    if isinstance(definition, dict):
        yield definition
        for inner in definition.values():
            yield from _boxes(inner)
