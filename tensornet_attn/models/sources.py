"""From a source to a checked model: a shipped name, a path, YAML text or a dict, and what is to be otherwise in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tensornet_attn.errors import DesignError, InputError, Problem, nearest
from tensornet_attn.models.config import CONFIGS, STACKS
from tensornet_attn.models.fit import is_path
from tensornet_attn.models.read import ModelSpec, read_model
from tensornet_attn.spec import library
from tensornet_attn.spec import load as load_design
from tensornet_attn.spec.names import identifier_problem
from tensornet_attn.spec.places import Document
from tensornet_attn.spec.report import Reporter
from tensornet_attn.spec.sources import Source, document_of


def list_models(pattern: str = "*") -> list[str]:
    """The names of the shipped models that match a pattern.

    >>> list_models("rope_*")
    ['rope_244m', 'rope_45m']
    """
    return library.model_names(pattern)


def load(source: Source | ModelSpec, **overrides: Any) -> ModelSpec:
    """A checked model from a shipped name, a path, YAML text or a dict. Raises DesignError with everything wrong.

    `overrides`: of the mixers `design`, `legs` and `settings`; of the MLPs `mlp`, `mlp_legs` and `mlp_settings`;
    `depth`, how often the layers repeat; and the keys of `model:` by name. See `override`.

    >>> load("wikitext_small").stacks["layers"][0]["mixer"].design.legs["d"]
    16
    >>> load("wikitext_small", design="mgk", legs={"h": 4}, depth=2, vocabulary=9).cost(n=8).parameters
    1137040
    """
    if isinstance(source, ModelSpec):
        return override(source, overrides)
    spec, problems = _read(source)
    wrong = [problem for problem in problems if problem.severity == "error"]
    if spec is None or wrong:
        raise DesignError(wrong, "model")
    return override(spec, overrides)


def check(source: Source) -> list[Problem]:
    """Every problem of a model, warnings included; an empty list means that it is fine."""
    return _read(source)[1]


def _read(source: Source) -> tuple[ModelSpec | None, list[Problem]]:
    document, reporter = document_of(source, "model")
    spec = read_model(document, reporter) if document.data else None
    return spec, reporter.problems()


PARTS = {  # by role: what replaces its design, its legs and its settings
    "mixer": ("design", "legs", "settings"),
    "mlp": ("mlp", "mlp_legs", "mlp_settings"),
}
MAPPINGS = tuple(name for _, *names in PARTS.values() for name in names)
OF_LAYERS = (*PARTS["mixer"], *PARTS["mlp"], "depth")


def override(spec: ModelSpec, changes: Mapping[str, Any]) -> ModelSpec:
    """The model with some keys of its description changed, and its mixers and MLPs, those of all layers alike.

    `design` takes the place of every mixer: the sizes that the model gives to legs stay where the new design has a leg
    of that name, settings do not. `mlp` takes the place of every MLP, sizes and all; None or 'none' leaves it out.
    `legs`, `settings`, `mlp_legs` and `mlp_settings` replace single ones. The model is then named after design and
    model. Raises InputError for what is no key, and DesignError for what does not fit.
    """
    if not changes:
        return spec
    _check(spec, changes)
    data = spec.as_given() | {key: value for key, value in changes.items() if key not in OF_LAYERS}
    layers = [layer for stack in STACKS for layer in data.get(stack, ())]
    for layer in layers:
        _change(layer, changes)
    for name in PARTS["mlp"][1:]:
        if changes.get(name) and not any("mlp" in layer for layer in layers):
            raise InputError(f"'{name}' is for an MLP, and '{spec.name}' has none.")
    document = Document({"tensornet": 1, "name": spec.name, "model": data}, spec.name, path=spec.path)
    reporter = Reporter(document)
    new = read_model(document, reporter)
    if new is None or reporter.failed:
        raise DesignError([problem for problem in reporter.problems() if problem.severity == "error"], "model")
    (stack, *_) = new.stacks.values()
    name = f"{stack[0]['mixer'].design.name}_{new.name}"
    return replace(new, name=name) if "design" in changes and not identifier_problem(name) else new


def override_keys() -> frozenset[str]:
    """All keys that models of any kind let be overridden."""
    own = {key for config in CONFIGS.values() for key in config.model_fields}
    return frozenset({*OF_LAYERS, *own} - {"kind", *STACKS})


def _check(spec: ModelSpec, changes: Mapping[str, Any]) -> None:
    """Raises InputError for what is no key, and for changes of layers that are not of the right form."""
    known = (*OF_LAYERS, *(key for key in CONFIGS[spec.kind].model_fields if key not in ("kind", *STACKS)))
    for key, value in changes.items():
        if key not in known:
            raise InputError(f"a {spec.kind} has no '{key}' to override: {nearest(key, known)}")
        if key in MAPPINGS and not isinstance(value, Mapping):
            raise InputError(f"'{key}' is a mapping of names to numbers, e.g. {{'h': 4}}, not {type(value).__name__}.")
    for stack in STACKS if "depth" in changes else ():
        count = len(getattr(spec.config, stack, ()))
        if count > 1:
            raise InputError(f"'depth' repeats the one entry of '{stack}'; '{spec.name}' has {count} entries there.")


def _change(layer: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Changes one entry of a stack."""
    if "depth" in changes:
        layer["repeat"] = changes["depth"]
    for role, (design, legs, settings) in PARTS.items():
        if design in changes:
            layer[role] = _replaced(role, layer.get(role) or {}, changes[design])
        if layer.get(role) is None:
            layer.pop(role, None)  # an MLP that there is not, or no longer
            continue
        for key, name in (("legs", legs), ("settings", settings)):
            if name in changes:
                layer[role][key] = layer[role].get(key, {}) | dict(changes[name])


def _replaced(role: str, part: Mapping[str, Any], design: Any) -> dict[str, Any] | None:
    """A part with another design; None where there is to be none."""
    # A path that is given here is relative to the working directory, not to the model's file.
    path = os.fspath(design) if isinstance(design, os.PathLike) else design
    path = os.path.abspath(path) if isinstance(path, str) and "\n" not in path and is_path(path) else path
    if role == "mlp":
        return None if design is None or design == "none" else {"design": path}
    known = load_design(design).legs
    legs = {leg: size for leg, size in part.get("legs", {}).items() if leg in known}
    causal = {"causal": part["causal"]} if "causal" in part else {}
    return {"design": path, "legs": legs, **causal}
