"""Expressions checked and made Contractions: what is glued, summed, kept, and what must not be."""

from __future__ import annotations

from collections import Counter

from tensornet_attn import limits
from tensornet_attn.graph.model import Contraction, Term, Use
from tensornet_attn.graph.scope import Scope
from tensornet_attn.ir.arithmetic import Arith
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.spec.expression import LegToken, SumText, TermText


def contraction(scope: Scope, text: SumText) -> tuple[Contraction, tuple[str, ...]]:
    """The contraction and its result's legs. Raises Refusal at the first cause."""
    terms = tuple(Term(_coefficient(scope, term), _factors(scope, term)) for term in text.terms)
    result = _result(scope, text)
    for term, written in zip(terms, text.terms, strict=True):
        _check_term(scope, term, written, result)
    covered = {leg for term in terms for use in term.factors for leg in use.legs}
    missing = next((token for token in text.legs if token.name not in covered), None)
    if missing is not None:
        message = f"result leg '{missing.name}' is on no tensor of the expression."
        raise Refusal("result-leg", message, "remove it, or use a tensor that has it.", missing.span)
    return Contraction(terms), result


def _coefficient(scope: Scope, term: TermText) -> Arith:
    try:
        return scope.number(term.coefficient, "a coefficient", lengths=True)[0]
    except Refusal as refusal:
        end = term.factors[0].span[0] if term.factors else term.span[1]
        refusal.span = refusal.span or (term.span[0], end)
        raise


def _factors(scope: Scope, term: TermText) -> tuple[Use, ...]:
    uses = [scope.use(factor) for factor in term.factors]
    return tuple(use for use in uses if use is not None)


def _result(scope: Scope, text: SumText) -> tuple[str, ...]:
    for place, token in enumerate(text.legs):
        scope.leg(token)
        if token.name in [other.name for other in text.legs[:place]]:
            raise Refusal("leg-twice", f"leg '{token.name}' stands twice in the result.", "name it once.", token.span)
    return tuple(token.name for token in text.legs)


def _check_term(scope: Scope, term: Term, text: TermText, result: tuple[str, ...]) -> None:
    count = Counter(leg for use in term.factors for leg in use.legs)
    if len(count.keys() | set(result)) > limits.PRODUCT_LEGS:
        raise Refusal("too-large", f"more than {limits.PRODUCT_LEGS} legs in one product.", "split it.", text.span)
    for leg, times in count.items():
        if leg in result:
            continue
        if times == 1:
            hint = "put it into the result, or on a second tensor; 'sum:' sums a leg away."
            message = f"leg '{leg}' dangles: it is on one tensor of the product and not in the result."
            raise Refusal("dangling", message, hint, _last(text, leg).span)
        if times > 2 and scope.sizes.legs[leg].kind != "head" and leg not in scope.sizes.broken:
            message = f"leg '{leg}' is contracted over {times} tensors at once and is no head leg."
            sized = scope.sizes.legs[leg].size is not None
            other = f"declare '{leg}: head ...'" if sized else "multiply two of them in a step of their own"
            hint = f"rename it where it is another leg, or {other}."
            raise Refusal("junction", message, hint, _last(text, leg).span)


def _last(text: TermText, leg: str) -> LegToken:
    """The last place of a leg in a product: where a mistaken name most often stands."""
    return [token for factor in text.factors for token in factor.legs or () if token.name == leg][-1]
