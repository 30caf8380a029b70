"""Pydantic's complaints about a model file as problems with a code, a sentence and a place."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from tensornet_attn.models.config import CONFIGS, DecoderLayer, Layer, Part
from tensornet_attn.spec.places import Path
from tensornet_attn.spec.report import Reporter, printable

TOP = ("tensornet", "name", "about", "source", "model")
_EXAMPLES = {
    "vocabulary": "vocabulary: 256",
    "length": "length: 128",
    "width": "width: 64",
    "layers": "layers: [{mixer: mhsa, mlp: mlp, repeat: 2}]",
    "encoder": "encoder: [{mixer: mhsa, mlp: mlp}]",
    "decoder": "decoder: [{mixer: mhsa, cross: cross, mlp: mlp}]",
    "classes": "classes: 10",
    "mixer": "mixer: mhsa",
    "cross": "cross: cross",
    "design": "design: mhsa",
}
_WANTED = {
    "whole": ("a whole number from 1 is wanted here", "e.g. 64."),
    "share": ("a number from 0 up to but not including 1 is wanted here", "e.g. 0.1."),
    "number": ("a finite number or arithmetic is wanted here", "e.g. 0.5 or 'width ** 0.5'."),
    "bool_type": ("true or false is wanted here", "e.g. true."),
    "list_type": ("a list of layers is wanted here", "e.g. [{mixer: mhsa, mlp: mlp, repeat: 2}]."),
    "too_short": ("at least one layer is wanted here", "e.g. [{mixer: mhsa, mlp: mlp, repeat: 2}]."),
    "dict_type": ("a mapping of names to numbers is wanted here", "e.g. {h: 4}."),
    "design": ("a design is wanted here", "a shipped name, a path, or the design itself."),
    "part": ("a design is wanted here", "e.g. mhsa, or {design: mhsa, legs: {h: 4}}."),
    "layer": ("a layer is wanted here", "e.g. {mixer: mhsa, mlp: mlp}."),
    "model_type": ("a layer is wanted here", "e.g. {mixer: mhsa, cross: cross, mlp: mlp}."),
}
_OTHER = ("another value is wanted here", "compare with docs/models.md.")


def report_config(error: ValidationError, reporter: Reporter, kind: str) -> None:
    """Reports each complaint at its place under `model`."""
    for raw in error.errors(include_url=False, include_context=True, include_input=False):
        path: Path = ("model", *raw["loc"])
        last = str(path[-1])
        if raw["type"] == "extra_forbidden":
            hint = reporter.nearest(last, _known(path, kind))
            reporter.error("unknown-key", f"there is no key '{printable(last)}' here.", path, key=True, hint=hint)
        elif raw["type"] == "missing":
            hint = f"e.g. '{_EXAMPLES[last]}'."
            reporter.error("missing-key", f"the key '{last}' is missing.", path, key=True, hint=hint)
        elif raw["type"] == "literal_error":
            given = written(reporter.document.value(path))
            hint = f"one of {raw['ctx']['expected'].replace(chr(39), '').replace(' or ', ', ')}."
            reporter.error("wrong-value", f"{given} is no value of '{last}'.", path, hint=hint)
        else:
            what, hint = _WANTED.get(raw["type"], _OTHER)
            given = written(reporter.document.value(path))
            reporter.error("wrong-type", f"{what}, {given} given.", path, hint=hint)


def _known(path: Path, kind: str) -> list[str]:
    """The keys that may stand where an unknown one does."""
    if len(path) == 2:
        return list(CONFIGS[kind].model_fields)
    model: type[BaseModel] = Part
    if len(path) == 4:
        model = DecoderLayer if path[1] == "decoder" else Layer
    return list(model.model_fields)


def written(value: Any) -> str:
    """How a message shows a value."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text '{printable(value)}'"
    if isinstance(value, (int, float)):
        return printable(str(value)) if not isinstance(value, int) or value.bit_length() < 512 else "a very long number"
    return {"dict": "a mapping", "list": "a list", "tuple": "a list"}.get(type(value).__name__, type(value).__name__)
