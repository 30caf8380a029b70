"""The JSON schema of what `bench -o` writes."""

from __future__ import annotations

from typing import Any

TEXT, NUMBER, COUNT = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 0}


def record(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


SPREAD = record(median=NUMBER, low=NUMBER, high=NUMBER)
CONTESTANT = record(
    name=TEXT,
    status={"enum": ["measured", "skipped", "failed", "wrong"]},
    reason=TEXT,
    note=TEXT,
    seconds=or_null(SPREAD),
    rounds=COUNT,
    calls=COUNT,
    ratio=or_null(SPREAD),
    peak_bytes=or_null(COUNT),
    error=or_null(NUMBER),
    checked_n=or_null(COUNT),
)
RESULT = record(
    design=TEXT,
    n=COUNT,
    batch=COUNT,
    dtype=TEXT,
    device=TEXT,
    causal={"type": "boolean"},
    legs={"type": "object", "additionalProperties": COUNT},
    settings={"type": "object", "additionalProperties": NUMBER},
    ours=TEXT,
    **{"pass": {"enum": ["forward", "forward+backward"]}},
    contestants={"type": "array", "items": CONTESTANT},
)
NAMES = {"type": "array", "items": TEXT}
SCHEMA = record(
    tensornet_attn_bench={"const": 1},
    command=TEXT,
    machine=record(
        cpu=TEXT, cores=COUNT, threads=COUNT, device=TEXT, torch=TEXT, python=TEXT, platform=TEXT, tensornet_attn=TEXT
    ),
    load={"type": "array", "items": or_null(NUMBER), "maxItems": 2},
    options=record(
        against=NAMES, backends=NAMES, passes=NAMES, repeats=COUNT, seconds=NUMBER, memory=NUMBER, seed=COUNT
    ),
    finished={"type": "boolean"},
    results={"type": "array", "items": RESULT},
)
