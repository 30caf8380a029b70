"""The JSON schema of a model file, for completion in editors."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from tensornet_attn.models.config import LanguageModelConfig, Seq2SeqConfig, SequenceClassifierConfig

ANY = LanguageModelConfig | SequenceClassifierConfig | Seq2SeqConfig


def json_schema() -> dict[str, Any]:
    """What a model file may hold. A design that stands inline has a schema of its own, `ta.json_schema()`."""
    model = TypeAdapter(ANY).json_schema(mode="validation")
    definitions = model.pop("$defs")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A tensornet_attn model",
        "type": "object",
        "additionalProperties": False,
        "required": ["tensornet", "model"],
        "properties": {
            "tensornet": {"const": 1, "description": "Version of the language."},
            "name": {"type": "string"},
            "about": {"type": "string", "description": "One sentence about the model."},
            "source": {"type": "string", "description": "Paper, year, section."},
            "model": model,
        },
        "$defs": definitions,
    }
