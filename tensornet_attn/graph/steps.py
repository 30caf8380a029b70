"""Checks the steps of a diagram in order: sums of products, boxes and uses."""

from __future__ import annotations

from collections import Counter

from tensornet_attn import limits
from tensornet_attn.graph.boxes import check_parameters, make_box
from tensornet_attn.graph.graph import Contraction, Step, Term, Use
from tensornet_attn.graph.scope import Scope
from tensornet_attn.graph.several import over_several
from tensornet_attn.graph.tensors import check_name
from tensornet_attn.ir.arithmetic import Arith
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ops import OPS
from tensornet_attn.ops.schema import BoxModel
from tensornet_attn.spec.expression import LegToken, SumText, TermText, UseText, each_of, parse_operand
from tensornet_attn.spec.places import Path


def declare_steps(scope: Scope) -> None:
    """Adds all steps to the scope. A broken step becomes open, so that its users are still checked in part."""
    scope.later = set(scope.design.diagram)
    for name, definition in scope.design.diagram.items():
        path = ("diagram", name)
        check_name(scope, name, path)
        use = operand(scope, definition, path, name)
        scope.later.discard(name)
        if use is None:
            scope.open.add(name)
        elif use.name != name and name not in scope.open:  # a bare use: the step is the tensor with renamed legs
            scope.add(Step(name, Contraction.of(use), use.legs), path)


def operand(scope: Scope, definition: str | BoxModel, path: Path, name: str) -> Use | None:
    """The use of an expression, use or box; a nested one becomes the step `name`. Returns None if it is broken."""
    try:
        if isinstance(definition, BoxModel):
            return _box(scope, definition, path, name)
        return _text(scope, definition, path, name)
    except Refusal:  # already reported
        scope.mentions(definition if isinstance(definition, str) else definition.model_dump(by_alias=True))
        return None


def _text(scope: Scope, expression: str, path: Path, name: str) -> Use | None:
    try:
        parsed = parse_operand(expression)
        if isinstance(parsed, UseText):
            use = scope.use(parsed, name)
            _warn_transposes(scope, (parsed,), path)
            return use
        op, legs = _contraction(scope, parsed, name)
    except Refusal as refusal:
        scope.reporter.syntax(refusal, path)
        raise
    _warn_transposes(scope, tuple(factor for term in parsed.terms for factor in term.factors), path)
    if any(token.parts for token in parsed.legs):
        return _joined(scope, parsed, Step(scope.fresh(f"{name}.apart"), op, legs), path, name)
    return scope.add(Step(name, op, legs), path)


def _joined(scope: Scope, parsed: SumText, step: Step, path: Path, name: str) -> Use:
    """Adds the steps that join legs of a result; the last of them gets the name."""
    use = scope.add(step, path)
    groups = [token for token in parsed.legs if token.parts]
    for token in groups:
        parts = tuple(leg_token.name for leg_token in token.parts)
        wish = name if token is groups[-1] else f"{name}.joined"
        use = scope.together(use, scope.joined(token).name, parts, wish)
        scope.paths[use.name] = path
    return use


def _box(scope: Scope, model: BoxModel, path: Path, name: str) -> Use | None:
    operands: dict[str, Use] = {}
    try:
        model = model.apart([leg.name for leg in scope.sizes.legs.values() if leg.kind == "key"])
    except Refusal as refusal:
        scope.reporter.syntax(refusal, (*path, model.key))
        raise
    complete = True
    for role in model.operands:
        definition = getattr(model, "key_" if role == "key" else role)
        if definition is None:  # optional; topk then uses `of` for `by`
            continue
        use = operand(scope, definition, (*path, role), f"{name}.{role}")
        complete &= use is not None
        if use is not None:
            operands[role] = use
    if not complete:  # checks the parameters that need no legs
        check_parameters(scope, model, path)
        scope.mentions(model.model_dump(by_alias=True))
        return None
    if "by" in model.operands and "by" not in operands:
        operands["by"] = operands["of"]
    if isinstance(getattr(model, model.key), tuple):
        return over_several(scope, model, operands, path, name)
    box, legs = make_box(scope, model, operands, path)
    steps, constants = OPS[box.kind].written_out(Step(name, box, legs), box, scope.query)
    scope.tensors |= {tensor.name: tensor for tensor in constants}
    return [scope.add(step, path) for step in steps][-1]


def _warn_transposes(scope: Scope, uses: tuple[UseText, ...], path: Path) -> None:
    """Warns of uses with the declared legs in another order: a transpose, often a mistake."""
    for use in uses:
        declared = scope.legs_of(use)
        if use.legs is None or declared is None:
            continue
        legs = tuple(token.name for token in use.legs)
        if legs != declared and sorted(legs) == sorted(declared):
            message = f"'{use.name}[{' '.join(legs)}]' is the transpose of '{use.name}[{' '.join(declared)}]'."
            hint = "keep the declared order unless you mean a transpose; legs are renamed by position."
            scope.reporter.warning("transpose", message, path, span=use.span, hint=hint)


def _contraction(scope: Scope, parsed: SumText, name: str) -> tuple[Contraction, tuple[str, ...]]:
    """The contraction and the legs of its result. Raises Refusal at the first problem."""
    products = ((_coefficient(scope, term), [scope.use(use, name) for use in term.factors]) for term in parsed.terms)
    terms = tuple(Term(number, tuple(use for use in uses if use is not None)) for number, uses in products)
    result_legs = _result(scope, parsed)
    for term, written in zip(terms, parsed.terms, strict=True):
        _check_term(scope, term, written, result_legs)
    covered = {leg for term in terms for use in term.factors for leg in use.legs}
    missing = next((token for token in each_of(parsed.legs) if token.name not in covered), None)
    if missing is not None:
        message = f"result leg '{missing.name}' is on no tensor of the expression."
        raise Refusal("result-leg", message, "remove it, or use a tensor that has it.", missing.span)
    return Contraction(terms), result_legs


def _coefficient(scope: Scope, term: TermText) -> Arith:
    try:
        return scope.number(term.coefficient, "a coefficient", lengths=True)[0]
    except Refusal as refusal:
        end = term.factors[0].span[0] if term.factors else term.span[1]
        refusal.span = refusal.span or (term.span[0], end)
        raise


def _result(scope: Scope, parsed: SumText) -> tuple[str, ...]:
    legs = each_of(parsed.legs)
    for index, token in enumerate(legs):
        scope.leg(token)
        if token.name in [earlier.name for earlier in legs[:index]]:
            raise Refusal("leg-twice", f"leg '{token.name}' occurs twice in the result.", "name it once.", token.span)
    return tuple(token.name for token in legs)


def _check_term(scope: Scope, term: Term, written: TermText, result_legs: tuple[str, ...]) -> None:
    count = Counter(leg for use in term.factors for leg in use.legs)
    if len(count.keys() | set(result_legs)) > limits.PRODUCT_LEGS:
        message = f"this product has more than {limits.PRODUCT_LEGS} legs."
        raise Refusal("too-large", message, "split it into several steps.", written.span)
    for leg, times in count.items():
        if leg in result_legs:
            continue
        if times == 1:
            joined_legs = scope.split_again(leg)
            hint = "add it to the result or to a second tensor, or sum over it with a 'sum' box."
            for use in written.factors:
                declared = scope.legs_of(use) or ()
                if leg in declared and use.legs is not None and leg not in [token.name for token in use.legs]:
                    hint = f"'{use.name}' is declared with it: write '{use.name}[{' '.join(declared)}]', or {hint}"
            hint = f"write '{joined_legs}' in its place, to have its legs again." if joined_legs else hint
            message = f"leg '{leg}' dangles: it is on one tensor of the product and not in the result."
            raise Refusal("dangling", message, hint, _last(written, leg).span)
        if times > 2 and scope.sizes.legs[leg].kind != "head" and leg not in scope.sizes.broken:
            message = f"leg '{leg}' is contracted over {times} tensors at once, but is not a head leg."
            hint = _apart(scope, term, leg, result_legs)
            raise Refusal("junction", message, hint, _last(written, leg).span)


def _apart(scope: Scope, term: Term, leg: str, result_legs: tuple[str, ...]) -> str:
    """The hint for a leg of three or more tensors: rename it, split the product as in a gated unit, or share it."""
    uses = [use for use in term.factors if leg in use.legs]
    alike = next(((a, b) for i, a in enumerate(uses) for b in uses[i + 1 :] if {*a.legs} == {*b.legs}), None)
    advice = "multiply two of the tensors in a separate step"
    if alike is not None and {*alike[0].legs} - {leg} <= {*result_legs}:  # an elementwise product
        legs, names = " ".join(alike[0].legs), [use.name for use in alike]
        product = " ".join(f"{use.name}[{' '.join(use.legs)}]" for use in alike)
        advice = f"multiply '{names[0]}' and '{names[1]}' in a separate step, as in a gated unit: '{product} -> {legs}'"
    sized = scope.sizes.legs[leg].size is not None
    shared = f"; or declare '{leg}: shared ...' if all of them share it" if sized else ""
    return f"rename it where you mean another leg; {advice}{shared}."


def _last(written: TermText, leg: str) -> LegToken:
    """The last occurrence of a leg in a product, most often the mistaken one."""
    return [token for factor in written.factors for token in each_of(factor.legs) if token.name == leg][-1]
