"""Checks inputs, weights, constants, noise and state, and builds their Tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

from tensornet_attn import limits
from tensornet_attn.graph.scope import Scope, size_text
from tensornet_attn.ir.arithmetic import ONE, Arith
from tensornet_attn.ir.steps import Function, Tensor
from tensornet_attn.ir.tokens import Refusal, Span
from tensornet_attn.spec.design import Declaration
from tensornet_attn.spec.expression import parse_call, parse_legs
from tensornet_attn.spec.names import tensor_problem
from tensornet_attn.spec.places import Path
from tensornet_attn.spec.sizes import Leg

T = TypeVar("T")
ROLES = {"inputs": "input", "weights": "weight", "constants": "constant", "noise": "noise", "state": "state"}
DRAWN = {"xavier": (0,), "normal": (1,), "uniform": (1,)}  # initialisers and their numbers of arguments
FIXED = {"zeros": (0,), "ones": (0, 2), "full": (1,), "eye": (0, 1), "kron": (2,)}
VALUES = FIXED | {"sinusoid": (0,), "distance": (0,), "index": (0,), "alibi_slopes": (0,)}
VALUES |= {"bucket": (3,), "log_bucket": (2,)}
USAGE = {"normal": "normal(0.02)", "uniform": "uniform(0.1)", "full": "full(0.5)", "eye": "eye", "ones": "ones"}
USAGE |= {"kron": "kron(eye(h), ones(d, d))"}
USAGE |= {"bucket": "bucket(32, 128, 1)", "log_bucket": "log_bucket(512, 512)"}
USAGE |= {name: name for name in ("xavier", "zeros", "sinusoid", "distance", "index", "alibi_slopes")}
ALLOWED = {"weight": DRAWN | FIXED, "state": FIXED, "constant": VALUES}


def declare_tensors(scope: Scope) -> None:
    """Adds the tensors of all sections to the scope; broken ones become open."""
    total = 0
    for section, role in ROLES.items():
        for name, declaration in getattr(scope.design, section).items():
            path = (section, name)
            check_name(scope, name, path)
            try:
                tensor = _tensor(scope, name, role, declaration, path)
            except Refusal:  # already reported
                scope.open.add(name)
                scope.mentions(declaration.model_dump())
                continue
            if name not in scope.open:
                scope.tensors[name] = tensor
            total += _elements(scope, tensor, path)
    if total > limits.TOTAL_ELEMENTS:
        message = f"the weights have {total:.3g} elements in total."
        hint = f"use at most {limits.TOTAL_ELEMENTS:.3g}."
        scope.reporter.error("too-large", message, ("weights",), key=True, hint=hint)


def check_name(scope: Scope, name: str, path: Path) -> None:
    """Checks a name in the namespace that tensors and steps share; an invalid name becomes open."""
    problem = tensor_problem(name)
    if problem:
        scope.reporter.error("name", problem[0], path, key=True, hint=problem[1])
    elif name in scope.tensors or name in scope.open or name in scope.steps:
        hint = "rename one of them: tensors and steps share a namespace."
        scope.reporter.error("name-taken", f"'{name}' is already declared.", path, key=True, hint=hint)
    else:
        return
    scope.used.add(name)
    scope.open.add(name)


def _tensor(scope: Scope, name: str, role: str, declaration: Declaration, path: Path) -> Tensor:
    where = (*path, "legs") if isinstance(scope.reporter.document.value(path), dict) else path
    legs = _guard(scope, where, lambda: _legs(scope, name, role, declaration.legs))
    fields: dict[str, Any] = {}
    for key in ("init", "value"):
        if hasattr(declaration, key):
            written = getattr(declaration, key)
            fields["init"] = _guard(scope, (*path, key), lambda written=written: _init(scope, role, legs, written))  # type: ignore[misc]
    if role == "noise":
        fields["std"] = _guard(scope, (*path, "std"), lambda: _std(scope, declaration.std))  # type: ignore[attr-defined]
        fields["always"] = declaration.always  # type: ignore[attr-defined]
    if role == "weight":
        fields["frozen"] = declaration.frozen  # type: ignore[attr-defined]
    if role == "input":
        fields["default"] = _guard(scope, (*path, "default"), lambda: _default(scope, legs, declaration.default))  # type: ignore[attr-defined]
    if role == "state":
        fields["update"] = declaration.update  # type: ignore[attr-defined]
    return Tensor(name, role, legs, **fields)


def _guard(scope: Scope, path: Path, check: Callable[[], T]) -> T:
    """Runs a check and reports its error at the path."""
    try:
        return check()
    except Refusal as refusal:
        scope.reporter.syntax(refusal, path)
        raise


def _legs(scope: Scope, name: str, role: str, written: str | tuple[str, ...]) -> tuple[str, ...]:
    tokens = parse_legs(written if isinstance(written, str) else " ".join(written))
    for index, token in enumerate(tokens):
        leg = scope.leg(token)
        if token.name in [earlier.name for earlier in tokens[:index]]:
            hint = "use two different legs of equal size."
            raise Refusal("leg-twice", f"leg '{token.name}' occurs twice on '{name}'.", hint, token.span)
        run_time = leg.stored is None and leg.name not in scope.sizes.broken
        if run_time and role in ("weight", "state"):
            noun = "reach" if leg.kind == "relative" else "maximum"
            hint = f"give the leg a {noun}, e.g. '{leg.name}: {leg.kind} 256'."
            message = f"{role} '{name}' has the leg '{leg.name}', which is sized at run time."
            raise Refusal("run-time-leg", message, hint, token.span)
        if leg.kind == "relative" and role == "input":
            message = f"input '{name}' has the relative leg '{leg.name}'."
            raise Refusal("run-time-leg", message, "use legs with a size, the query leg or the key leg.", token.span)
    return tuple(token.name for token in tokens)


def _std(scope: Scope, written: Any) -> Any:
    tree, number = scope.number(written, "a standard deviation")
    if number is not None and number < 0:
        raise Refusal("number", f"'std' is {number}; it must be zero or more.", "e.g. 'std: 1'.")
    return ONE if written is None else tree


def _default(scope: Scope, legs: tuple[str, ...], name: str | None) -> str | None:
    if name is None:
        return None
    inputs = [tensor.name for tensor in scope.tensors.values() if tensor.role == "input"]
    if name not in inputs:
        hint = scope.reporter.nearest(name, inputs) if inputs else "name an input declared above."
        raise Refusal("unknown-name", f"there is no input '{name}' above this one.", hint)
    scope.used.add(name)
    theirs = [scope.sizes.legs[leg] for leg in scope.tensors[name].legs]
    ours = [scope.sizes.legs[leg] for leg in legs]
    if len(theirs) != len(ours) or not all(map(scope.fits, theirs, ours)):
        message = f"'{name}' has legs {' '.join(leg.name for leg in theirs)}, which do not fit {' '.join(legs)}."
        raise Refusal("size", message, "use a default whose legs fit this input.")
    return name


def _init(scope: Scope, role: str, legs: tuple[str, ...], written: str) -> Function:
    call = parse_call(written)
    allowed = ALLOWED[role]
    what = "value" if role == "constant" else "initialiser"
    if call.name not in allowed:
        hint = scope.reporter.nearest(call.name, allowed)
        raise Refusal("unknown-value", f"there is no {what} '{call.name}' for a {role}.", hint, (0, len(call.name)))
    if len(call.arguments) not in allowed[call.name]:
        counts = allowed[call.name]
        wanted = f"{' or '.join(map(str, counts))} argument{'s' * (counts != (1,))}"
        message = f"'{call.name}' takes {wanted}, got {len(call.arguments)}."
        raise Refusal("arguments", message, f"e.g. '{USAGE[call.name]}'.", call.span)
    function = scope.function(call, f"an {what}" if what == "initialiser" else "a constant")
    _check_shape(scope, function, legs, call.span)
    return function


def _check_shape(scope: Scope, function: Function, legs: tuple[str, ...], span: Span) -> None:
    sizes = [scope.sizes.legs[leg] for leg in legs]
    shown = f"{' '.join(legs) or 'no legs'} ({' x '.join(size_text(leg) for leg in sizes)})"
    wanted = _LEGS_OF.get(function.name)
    wanted = 2 if function.name == "ones" and function.arguments else wanted
    if wanted is not None and len(legs) != wanted:
        message = f"'{function.name}' needs {wanted} leg{'s' * (wanted > 1)}, but the tensor has {len(legs)}."
        raise Refusal("init-shape", message, "change the legs or the value.", span)
    if {*legs} & scope.sizes.broken:
        return
    if function.name == "distance" and {leg.kind for leg in sizes} != {"query", "key"}:
        message = f"'distance' needs the query leg and the key leg, not {shown}."
        raise Refusal("init-shape", message, "e.g. '{legs: n m, value: distance}'.", span)
    if function.name in BUCKETS:
        _check_buckets(scope, function, sizes, shown, span)
    if function.name == "index" and any(leg.size is None for leg in sizes):
        message = f"'index' needs a leg with a size, not {shown}."
        raise Refusal("init-shape", message, "use 'distance' for the distance of query and key.", span)
    if function.name in ("eye", "ones", "kron") and function.arguments:
        shape = _matrix(scope, function, span)
        if shape is not None and shape != tuple(leg.stored for leg in sizes):
            message = f"'{function.name}' has shape {shape[0]} x {shape[1]}, but the tensor has {shown}."
            raise Refusal("init-shape", message, "make the sizes equal.", span)


BUCKETS = ("bucket", "log_bucket")
_LEGS_OF = {"sinusoid": 2, "distance": 2, "index": 1, "alibi_slopes": 1, "eye": 2, "kron": 2}
_LEGS_OF |= dict.fromkeys(BUCKETS, 2)


def _check_buckets(scope: Scope, function: Function, legs: list[Leg], shown: str, span: Span) -> None:
    """Raises Refusal unless the legs are a relative leg of sufficient reach and a leg with an entry a bucket."""
    name, example = function.name, f"e.g. '{USAGE[function.name]}'."
    numbers = [scope.evaluated(argument) for argument in function.arguments]
    if None in numbers:
        return
    integers = [number for number in numbers if isinstance(number, int)]
    if len(integers) < len(numbers):
        raise Refusal("arguments", f"the arguments of '{name}' must be whole numbers.", example, span)
    count, furthest, sides = integers[0], integers[1], 1 if name == "log_bucket" else integers[2]
    exact = count // 4 if sides else count // 2
    exact += name == "log_bucket"  # divides by the logarithm of (furthest - 1) / exact
    if count % (4 if sides else 2) or count < 4 or furthest <= exact or sides not in (0, 1):
        message = f"'{name}' cannot divide distances up to {furthest} into {count} buckets."
        requirement = "a multiple of 4" if sides else "an even number from 4"
        raise Refusal(
            "arguments", message, f"make the first {requirement} and the second greater than {exact}; {example}", span
        )
    relative, buckets = legs
    if relative.kind != "relative" or buckets.size != count:
        message = f"'{name}' needs a relative leg and a leg of size {count}, not {shown}."
        raise Refusal("init-shape", message, f"e.g. '{{legs: p b, value: {USAGE[name]}}}'.", span)
    if relative.reach is not None and relative.reach < furthest:
        message = f"leg '{relative.name}' has reach {relative.reach}, but the buckets need {furthest}."
        raise Refusal("init-shape", message, f"declare '{relative.name}: relative {furthest}'.", span)


def _matrix(scope: Scope, function: Function, span: Span) -> tuple[int, int] | None:
    """Rows and columns of eye(a), ones(a, b) and kron(a, b). Returns None if a size is broken."""
    if function.name == "kron":
        shapes = [_factor(scope, argument, span) for argument in function.arguments]
        left, right = shapes if len(shapes) == 2 else (None, None)
        return None if left is None or right is None else (left[0] * right[0], left[1] * right[1])
    if len(function.arguments) != {"eye": 1, "ones": 2}.get(function.name):
        count = "one size" if function.name == "eye" else "two sizes"
        message = f"'{function.name}' takes {count} here, got {len(function.arguments)}."
        raise Refusal("arguments", message, "e.g. 'kron(eye(h), ones(d, d))'.", span)
    sizes = [scope.evaluated(argument) for argument in function.arguments]
    if None in sizes:
        return None
    integers = [size for size in sizes if isinstance(size, int) and 1 <= size <= limits.SIZE]
    if len(integers) < len(sizes):
        message = f"the sizes of '{function.name}' must be whole numbers from 1."
        raise Refusal("arguments", message, f"e.g. '{'eye(8)' if len(sizes) == 1 else 'ones(8, 8)'}'.", span)
    return integers[0], integers[-1]


def _factor(scope: Scope, argument: Function | Arith, span: Span) -> tuple[int, int] | None:
    if not isinstance(argument, Function) or (argument.name == "kron" and len(argument.arguments) != 2):
        raise Refusal("arguments", "'kron' takes two matrices.", "e.g. 'kron(eye(h), ones(d, d))'.", span)
    return _matrix(scope, argument, span)


def _elements(scope: Scope, tensor: Tensor, path: Path) -> int:
    """The number of elements of a stored tensor; reports one above the limit."""
    if tensor.role not in ("weight", "state", "constant"):
        return 0
    count = prod(scope.sizes.legs[leg].stored or 1 for leg in tensor.legs)
    if count > limits.ELEMENTS:
        message = f"'{tensor.name}' has {count:.3g} elements."
        scope.reporter.error("too-large", message, path, hint=f"use at most {limits.ELEMENTS:.3g} in one tensor.")
        return 0
    return count
