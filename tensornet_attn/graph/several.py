"""Boxes over several legs, such as `rmsnorm: [h, d]`: the legs are joined for the box, or reduced in turn.

N = rmsnorm over h, d of X               X' = X with h d joined;  N' = rmsnorm of X';  N = N' split
A = softmax over r, m of S, m a key      L = logsumexp_r(S);  A = softmax_m(L) exp(S - L)
s = sum over h, d of X                   S = sum_h(X);  s = sum_d(S)
"""

from __future__ import annotations

from collections.abc import Mapping

from tensornet_attn.graph.boxes import make_box
from tensornet_attn.graph.scope import Scope
from tensornet_attn.ir.steps import Box, Contraction, Function, Step, Term, Use, minus, plus, without
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ops import OPS
from tensornet_attn.ops.schema import BoxModel
from tensornet_attn.spec.expression import LegToken
from tensornet_attn.spec.places import Path


def over_several(scope: Scope, model: BoxModel, operands: Mapping[str, Use], path: Path, name: str) -> Use:
    """Adds the steps of a box over several legs; the last has the name. Reports a problem and raises Refusal."""
    try:
        legs = _legs(scope, model, operands["of"])
        keys = [leg for leg in legs if scope.sizes.legs[leg].kind == "key"]
        if OPS[model.key].reduces:
            order = {"key": 1, "query": 2}  # masks act along the keys of each query
            in_order = sorted(legs, key=lambda leg: order.get(scope.sizes.legs[leg].kind, 0))
            return _one_by_one(scope, model, operands["of"], path, name, in_order)
        if keys and OPS[model.key].exponential:
            _refuse_queries(model, keys[0], legs, scope.query)
            return _with_keys(scope, model, operands, path, name, keys[0], [leg for leg in legs if leg not in keys])
        joined = scope.joined(LegToken("_".join(legs), (0, 1), tuple(LegToken(leg, (0, 1)) for leg in legs)))
    except Refusal as refusal:
        refusal.span = None
        if refusal.code == "run-time-leg":
            may = "; a softmax may also have the key leg" if OPS[model.key].exponential else ""
            refusal.hint = f"use legs with sizes{may}."
        scope.reporter.syntax(refusal, (*path, model.key))
        raise
    inner = {
        role: scope.together(use, joined.name, legs, f"{name}.{role}.joined") if {*legs} <= {*use.legs} else use
        for role, use in operands.items()
    }
    box, result_legs = make_box(scope, model.model_copy(update={model.key: joined.name}), inner, path)
    joined_result = scope.add(Step(scope.fresh(f"{name}.joined"), box, result_legs))
    split = scope.apart(joined_result, joined.name, legs, name)
    last = Step(split.name, scope.steps[split.name].op, operands["of"].legs)
    return scope.add(last, path)


def _legs(scope: Scope, model: BoxModel, of: Use) -> tuple[str, ...]:
    """The legs of the box. Raises Refusal if a leg occurs twice or is not on the operand."""
    legs: tuple[str, ...] = getattr(model, model.key)
    for index, leg in enumerate(legs):
        scope.leg(LegToken(leg, (0, len(leg))))
        if leg in legs[:index]:
            raise Refusal("leg-twice", f"leg '{leg}' occurs twice in this box.", "name it once.")
        if leg not in of.legs:
            has = f"its legs are {' '.join(of.legs)}" if of.legs else "it has no legs"
            message = f"the operand of this box has no leg '{leg}'; {has}."
            raise Refusal("box-leg", message, "name legs of the operand.")
    return legs


def _refuse_queries(model: BoxModel, key: str, legs: tuple[str, ...], query: str | None) -> None:
    """Raises Refusal where a softmax over keys runs over queries too: it has no rows, and a mask none to act in."""
    if query in legs:
        message = f"'{query}' is the query leg; over keys, a {model.key} has a row for each query, in which masks act."
        others = [leg for leg in legs if leg != query]
        named = f"[{', '.join(others)}]" if len(others) > 1 else key
        hint = f"e.g. '{model.key}: {named}'; along the queries runs a box of its own, '{model.key}: {query}'."
        raise Refusal("box-leg", message, hint)


def _one_by_one(scope: Scope, model: BoxModel, of: Use, path: Path, name: str, legs: list[str]) -> Use:
    """Reduces one leg after the other, in this order."""
    *first, last = legs
    for leg in first:
        of = _step(
            scope,
            f"{name}.of.{leg}",
            Box(model.key, leg, (("of", of),)),
            without(of.legs, leg),
        )
    box, result_legs = make_box(scope, model.model_copy(update={model.key: last}), {"of": of}, path)
    return _step(scope, name, box, result_legs, path)


def _with_keys(
    scope: Scope, model: BoxModel, operands: Mapping[str, Use], path: Path, name: str, key: str, others: list[str]
) -> Use:
    """A softmax over keys and other legs: that over the keys of the logsumexp over the others, times their shares."""
    of, scale = operands["of"], scope.number(model.scale, "'scale'", lengths=True)[0]  # type: ignore[attr-defined]
    scores = _step(scope, f"{name}.scores", Contraction((Term(scale, (of,)),)), of.legs)
    level = scores
    for leg in others:
        legs = without(level.legs, leg)
        level = _step(scope, f"{name}.level", Box("logsumexp", leg, (("of", level),)), legs)
    changed = {model.key: key, "scale": 1, "dropout": 0}
    inner = {**operands, "of": level}
    box, result_legs = make_box(scope, model.model_copy(update=changed), inner, path)
    keys = _step(scope, f"{name}.keys", box, result_legs)
    rest = Contraction((plus(scores), minus(level)))
    less = _step(scope, f"{name}.less", rest, of.legs)
    share = _step(scope, f"{name}.share", Box("map", None, (("of", less),), function=Function("exp")), of.legs)
    dropout = scope.number(model.dropout, "'dropout'")  # type: ignore[attr-defined]
    product = Contraction.of(keys, share)
    if dropout[1] == 0:
        return _step(scope, name, product, of.legs, path)
    before_dropout = _step(scope, f"{name}.whole", product, of.legs)
    return _step(
        scope, name, Box("dropout", None, (("of", before_dropout),), (("dropout", dropout[0]),)), of.legs, path
    )


def _step(scope: Scope, wish: str, op: Contraction | Box, legs: tuple[str, ...], path: Path | None = None) -> Use:
    return scope.add(Step(scope.fresh(wish), op, legs), path)
