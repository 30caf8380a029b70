"""Whether two studies are one: all that decides what is proposed and how it is judged must be equal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tensornet_attn.errors import InputError
from tensornet_attn.study.config import Study
from tensornet_attn.study.written import study_data

FREE = ("trials", "finalists", "seconds", "gibibytes", "threads")  # what may change while a study lasts
_LONG = 60


def decisive(study: Study) -> dict[str, Any]:
    """What must be the same for a study to go on."""
    data = {key: value for key, value in study_data(study).items() if key not in FREE}
    data["space"] = {key: value for key, value in data["space"].items() if key not in ("name", "about")}
    return dict(json.loads(json.dumps(data)))  # as it is when it has been in a store


def check_same(study: Study, there: Mapping[str, Any], where: str, hint: str) -> None:
    """Raises InputError where a place holds another study: with the first difference, and what to do."""
    own = decisive(study)
    if own == there:
        return
    from tensornet_attn.train.record import differences  # it brings torch, which takes seconds

    place, here, before = next(differences(own, there))
    kind = "space" if place.split(".")[0] == "space" else "study"
    told = f"'{place}' is {_format(before)} there and {_format(here)} here"
    raise InputError(f"{where} belongs to another {kind}: {told}; {hint}.")


def _format(value: Any) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= _LONG else text[: _LONG - 3] + "..."
