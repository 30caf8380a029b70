"""Spaces and studies as data with nothing left to look up, as a file holds them; reading it gives an equal one."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from math import isfinite
from typing import Any

from ruamel.yaml import YAML

from tensornet_attn.search.space import Alternative, Space
from tensornet_attn.search.values import Values
from tensornet_attn.study.config import Study


def space_data(space: Space) -> dict[str, Any]:
    """A space with its bases written out. `search.load` reads it back to a space of the same hash."""
    numbers = {
        part: {name: _values(values) for name, values in getattr(space, part).items()} for part in ("legs", "settings")
    }
    alternatives = {
        step: {name: _alternative(step, one) for name, one in given.items()}
        for step, given in space.alternatives.items()
    }
    moves = {name: {option: _values(values) for option, values in given.items()} for name, given in space.moves.items()}
    bounds = {"n": space.bounds.n, "batch": space.bounds.batch}
    limits = {name: _limit(least, most) for name, least, most in space.bounds.limits}
    data = {
        "space": 1,
        "name": space.name,
        "about": space.about,
        "base": [dict(base) for base in space.bases.values()],
        **numbers,
        "alternatives": alternatives,
        "moves": moves,
        "most": space.most,
        "bounds": bounds | limits,
    }
    return {key: value for key, value in data.items() if value not in ({}, "")}


def _values(values: Values) -> dict[str, Any]:
    if values.items:
        return {"choices": list(values.items)}
    return {"log" if values.log else "range": [values.low, values.high]}


def _alternative(step: str, one: Alternative) -> dict[str, Any]:
    """As a space has it: the step itself, and other steps beside it."""
    change = dict(one.change)
    steps = dict(change.pop("diagram"))
    own = {"step": steps.pop(step)}
    return {**change, **({"steps": steps} if steps else {}), **own}


def study_data(study: Study) -> dict[str, Any]:
    """A study as `study.read` reads it back. The order of its keys counts: steps of designs are read in theirs."""
    data = study.model_dump(mode="json", exclude_none=True)
    return {**data, "bounds": {name: _limit(one.least, one.most) for name, one in study.bounds.items()}}


def _limit(least: float, most: float) -> dict[str, float]:
    return {name: end for name, end in (("least", least), ("most", most)) if isfinite(end)}


def yaml_of(study: Study) -> str:
    """A study as a file, which reads back to it."""
    yaml, out = YAML(typ="safe", pure=True), StringIO()
    yaml.default_flow_style = yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 4096
    yaml.dump(study_data(study), out)
    return out.getvalue()


def plain(value: Any) -> Any:
    """A value with lists for tuples and plain mappings, as JSON has it."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
