"""Translates pydantic's errors into problems with a code, a message and a location, one for each root cause."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from tensornet_attn.ops import OPS
from tensornet_attn.ops.maps import MAPS
from tensornet_attn.ops.schema import BOXES, kinds_of
from tensornet_attn.spec.expression import CONCATENATION
from tensornet_attn.spec.places import Path
from tensornet_attn.spec.report import Reporter, meant, printable, written

_DECLARED = {
    "inputs": ("legs", "default"),
    "weights": ("legs", "init", "frozen"),
    "constants": ("legs", "value"),
    "noise": ("legs", "std", "always"),
    "state": ("legs", "init", "update"),
    "losses": ("step", "weight"),
    "contains": ("legs", "settings", "weights", "causal"),
}
TOP = (
    "tensornet", "name", "about", "source", "extends", "causal", "settings", "legs", "inputs", "weights", "constants",
    "noise", "state", "diagram", "losses", "output", "contains",
)  # fmt: skip
_LEGS_HINT = "write names separated by spaces, e.g. 'n f' (a scalar has [])."
_BOX_HINT = "e.g. 'x[n f] W[f d] -> n d', or a box such as {softmax: m, of: S}."


def report_validation(error: ValidationError, reporter: Reporter) -> dict[Path, str]:
    """Reports each error once, but none of a mapping from which a wrong key was `cut`.

    Returns pydantic's type of each error, by the path without a usable value.
    """
    complaints: dict[Path, dict[str, Any]] = {}
    for raw in error.errors(include_url=False, include_context=False, include_input=False):
        path = _path(raw["loc"], reporter.document.data)
        missing = raw["type"] == "missing" and len(path) > 1
        complaints.setdefault(path[:-1] if missing else path, {"type": raw["type"], "msg": raw["msg"], "path": path})
    unknown_in = {path[:-1] for path, complaint in complaints.items() if complaint["type"] == "extra_forbidden"}
    for owner in unknown_in & {*complaints}:  # a key that is missing is one of them, misspelt
        del complaints[owner]
    unknown = [str(path[0]) for path in complaints if len(path) == 1 and path[0] not in TOP]
    misspelt = {(meant(reporter.nearest(key, TOP)),) for key in unknown}
    owners = {path[:-1] for path in reporter.cut}
    for complaint in complaints.values():
        path = complaint["path"]
        if (complaint["type"] != "missing" or path not in misspelt) and not {path, path[:-1]} & owners:
            _report(complaint, reporter)
    return {complaint["path"]: complaint["type"] for complaint in complaints.values()}


def _path(loc: tuple[int | str, ...], data: Any) -> Path:
    """The path into the data, without pydantic's names of union members."""
    path: list[int | str] = []
    for step in loc:
        inside = isinstance(data, (list, tuple)) and isinstance(step, int) and step < len(data)
        if inside or (isinstance(data, dict) and step in data):
            data = data[step]
        elif isinstance(step, str) and (step in ("text", "[key]") or step.startswith("box:")):
            continue
        elif isinstance(data, dict):
            data = None
        else:
            break
        path.append(step)
    return tuple(path)


def _report(complaint: dict[str, Any], reporter: Reporter) -> None:
    path, kind = complaint["path"], complaint["type"]
    value = reporter.document.value(path)
    if kind == "extra_forbidden":
        reporter.unknown_key(path, _known(path, reporter))
    elif kind == "missing":
        where = "" if len(path) == 1 else f" in '{printable(str(path[-2]))}'"
        examples = _EXAMPLES if len(path) == 1 else _INNER.get(str(path[0]), {})
        example = examples.get(str(path[-1]), f"{path[-1]}: ...")
        message = f"the key '{path[-1]}' is missing{where}."
        reporter.error("missing-key", message, path, key=True, hint=f"e.g. '{example}'.")
    elif kind in ("union_tag_not_found", "union_tag_invalid"):
        _report_box(value, complaint, reporter)
    else:
        code, message, hint = _sentence(kind, path, written(value))
        reporter.error(code, message, path, hint=hint)


_EXAMPLES = {
    "tensornet": "tensornet: 1",
    "name": "name: my_design",
    "legs": "legs: {n: query, m: key, f: 512}",
    "inputs": "inputs: {x: n f}",
    "output": "output: y",
    "diagram": 'diagram: {y: "x[n f] W[f d] -> n d"}',
}
_INNER = {
    "inputs": {"legs": "legs: n f"},
    "weights": {"legs": "legs: f h d"},
    "constants": {"legs": "legs: h g", "value": "value: eye"},
    "noise": {"legs": "legs: h n m"},
    "state": {"legs": "legs: h r", "update": "update: prior"},
    "losses": {"weight": "weight: 0.01"},
    "diagram": {
        "of": "of: Q[n h d] K[m h d] -> h n m",
        "k": "k: 2",
        "groups": "groups: 2",
        "width": "width: w",
        "along": "along: d",
        "to": "to: m",
        "query": "query: phiQ",
        "key": "key: phiK",
        "value": "value: V",
        "rate": "rate: beta",
        "decay": "decay: log_g",
    },
}


def _sentence(kind: str, path: Path, actual: str) -> tuple[str, str, str]:
    """(code, message, hint) for a value of the wrong kind."""
    key, section = str(path[-1]) if path else "", str(path[0]) if path else ""
    if kind == "surrogate":
        message = "this text contains half of a surrogate pair, which is not a character."
        return "wrong-type", message, "write the character itself."
    if kind == "version":
        return "version", f"expected version 1 of the language, got {actual}.", "write 'tensornet: 1'."
    if kind == "literal_error":
        return "wrong-value", f"{actual} is not a value of '{key}'.", f"use one of {', '.join(_modes(key))}."
    inside = {"constants": "legs: h g, value: eye", "contains": "legs: {r: h * d}, weights: {C: eye}"}
    mapping = "a mapping", f"e.g. '{key}: {{{inside.get(section, 'legs: h g, update: prior')}}}'."
    wanted = {
        "flag": ("true or false", f"e.g. '{key}: true'."),
        "one or two": ("a leg, or a list of two", f"e.g. '{key}: {key[:1]}'."),
        "as many": ("a width for each leg", "e.g. 'conv: [n, m]' and 'width: [i, j]'."),
        "bool_type": ("true or false", f"e.g. '{key}: true'."),
        "string_type": ("text", f"e.g. '{_EXAMPLES.get(key, f'{key}: a text')}'."),
        "legs": ("the legs of a tensor", _LEGS_HINT),
        "loss": ("the weight of a loss", f"e.g. '{key}: 0.01', or '{key}: {{step: H, weight: 0.01}}'."),
        "model_type": mapping,
        "model_attributes_type": mapping,
        "number legs": ("the size or kind of a leg", "e.g. 512, 'f / h', 'head 8' or 'query'."),
        "number": ("a finite number or arithmetic", "e.g. 0.5 or 'd ** -0.5'."),
        "masks": ("a list of masks", "e.g. causal, band(w) or 'window(left, right)'."),
        "fill": ("0 or -inf", "entries that are not chosen get this value: 0, or -inf for a softmax around them."),
        "legs of a box": ("a leg, or a list of several", f"e.g. '{key}: m'."),
        "text contains": ("the value of a weight", f"e.g. '{key}: {key}' or '{key}: zeros'."),
        "text": ("a name", _NAMED.get(key, f"e.g. '{key}: m'.")),
        "dict_type": (
            "a mapping of names to values",
            "write it as 'name: value' lines, with a space after each colon.",
        ),
    }
    what, hint = wanted.get(f"{kind} {section}") or wanted.get(kind) or ("", "compare with a shipped design.")
    return "wrong-type", f"expected {what}, got {actual}." if what else f"{actual} is not allowed here.", hint


def _modes(key: str) -> tuple[str, ...]:
    """The values of a key that selects a mode of a box."""
    return next((op.modes for op in OPS.values() if op.modes and op.mode_key == key), ())


_NAMED = {
    "default": "e.g. 'default: x', an input declared above.",
    "init": "e.g. 'init: normal(0.02)'.",
    "value": "e.g. 'value: eye'.",
    "update": "e.g. 'update: prior', a step of the diagram.",
    "step": "e.g. 'step: balance', a step of the diagram.",
    "map": "e.g. 'map: relu'.",
}


def _report_box(value: Any, complaint: dict[str, Any], reporter: Reporter) -> None:
    path = complaint["path"]
    if not isinstance(value, dict):
        message = f"expected an expression or a box, got {written(value)}."
        reporter.error("wrong-type", message, path, hint=_BOX_HINT)
        return
    kinds = kinds_of(value)
    if kinds:
        names = " and ".join(f"'{kind}'" for kind in kinds)
        message = f"{names} are {'two' if len(kinds) == 2 else len(kinds)} boxes in one mapping."
        hint = "put one into the 'of' of the other."
        complaint["path"] = path = (*path, kinds[1])
        reporter.error("two-boxes", message, path, key=True, hint=hint)
        return
    unknown_keys = [key for key in value if key not in ("of", "mask", "scale", "by", "k", "eps")]
    if not unknown_keys:
        hint = f"name the box with one of: {', '.join(BOXES)}."
        reporter.error("unknown-box", "no key here names a box.", path, key=True, hint=hint)
        return
    box, *_ = unknown_keys
    if box in MAPS:
        hint = f"it is an elementwise map: write 'map: {box}' in its place."
    else:
        hint = CONCATENATION if box in ("concat", "cat") else reporter.nearest(str(box), BOXES)
    reporter.error("unknown-box", f"there is no box '{printable(str(box))}'.", (*path, box), key=True, hint=hint)


def _known(path: Path, reporter: Reporter) -> list[str]:
    if len(path) == 1:
        return list(TOP)
    if path[0] in _DECLARED:
        return list(_DECLARED[str(path[0])])
    box = reporter.document.value(path[:-1])
    kinds = kinds_of(box) if isinstance(box, dict) else []
    fields = BOXES[kinds[0]].model_fields if kinds else {}
    return [field.alias or name for name, field in fields.items()]
