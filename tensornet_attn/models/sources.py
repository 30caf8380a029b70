"""From a source to a checked model: a shipped name, a path, YAML text or a dict, and what is to be otherwise in it."""

from __future__ import annotations

from typing import Any

from tensornet_attn.errors import DesignError, Problem
from tensornet_attn.models.override import override
from tensornet_attn.models.read import ModelSpec, read_model
from tensornet_attn.spec import library
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
