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
    floor=or_null(NUMBER),
    of_floor=or_null(NUMBER),
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
    **{"pass": {"enum": ["forward", "forward+backward", "decoding"]}},
    model=or_null(record(flops=COUNT, bytes=COUNT, floor=or_null(NUMBER), exponentials=COUNT, share=or_null(NUMBER))),
    contestants={"type": "array", "items": CONTESTANT},
)
CRITERION = record(
    target=TEXT,
    n=COUNT,
    kind={"enum": ["ratio", "share", "growth"]},
    wanted=NUMBER,
    over=TEXT,
    reached=or_null(SPREAD),
    peak_ours=or_null(COUNT),
    peak_other=or_null(COUNT),
    reason=TEXT,
    met=or_null({"type": "boolean"}),
)
SHAPE = record(batch=COUNT, rows=COUNT, columns=COUNT, summed=COUNT)
PRODUCTS = {"type": "array", "items": record(shape=SHAPE, flops=NUMBER)}
RATES = record(
    dtype=TEXT, flops=NUMBER, bandwidth=NUMBER, side=COUNT, copied=COUNT, products=PRODUCTS, exponentials=NUMBER
)
GPU = record(name=TEXT, capability=TEXT, memory=COUNT, processors=COUNT, cuda=TEXT)
NAMES = {"type": "array", "items": TEXT}
SCHEMA = record(
    tensornet_attn_bench={"const": 2},
    command=TEXT,
    machine=record(
        cpu=TEXT,
        cores=COUNT,
        threads=COUNT,
        device=TEXT,
        gpu=or_null(GPU),
        torch=TEXT,
        triton=or_null(TEXT),
        python=TEXT,
        platform=TEXT,
        tensornet_attn=TEXT,
    ),
    load={"type": "array", "items": or_null(NUMBER), "maxItems": 2},
    rates={"type": "array", "items": RATES, "maxItems": 2},
    options=record(
        against=NAMES,
        backends=NAMES,
        passes=NAMES,
        repeats=COUNT,
        seconds=NUMBER,
        memory=NUMBER,
        seed=COUNT,
        costs=or_null(TEXT),
        tune={"type": "boolean"},
        graphs={"type": "boolean"},
        uncompared={"type": "boolean"},
    ),
    finished={"type": "boolean"},
    results={"type": "array", "items": RESULT},
    aims={"type": "array", "items": CRITERION},
)
