"""The keys under `model:` in a model file, as pydantic models and as a JSON schema."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from tensornet_attn import limits
from tensornet_attn.ops.schema import Arithmetic
from tensornet_attn.spec import Design
from tensornet_attn.spec.places import Path
from tensornet_attn.spec.report import Reporter, written

Norm = Literal["layernorm", "rmsnorm"]
Positions = Literal["none", "learned", "sinusoid"]
MemoryKind = Literal["inputs", "cache"]
Pooling = Literal["mean", "cls", "concat"]
Initialisation = Literal["design", "normal", "gpt2", "xavier", "transformer_xl", "mgk", "fmm", "lra", "epa"]


def _design(value: Any) -> Any:
    if not isinstance(value, (str, os.PathLike, Mapping, Design)) or value == {}:
        raise PydanticCustomError("design", "expected a design: a shipped name, a path, or the design itself")
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _short(kind: Any, key: str) -> Callable[[Any], Any]:
    """Expands `mhsa` to `{design: mhsa}` in a part, and to `{mixer: mhsa}` in a layer."""

    def spelled_out(value: Any) -> Any:
        if isinstance(value, (str, os.PathLike, Design)):
            return {key: value}
        if not isinstance(value, (Mapping, _Data)):
            raise PydanticCustomError(kind, "expected a design or a mapping")
        return value

    return spelled_out


def _whole(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.SIZE:
        raise PydanticCustomError("whole", "expected a whole number from 1")
    return value


def _rows(value: Any) -> Any:
    return value if isinstance(value, int) and value == 0 and not isinstance(value, bool) else _whole(value)


def _share(value: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value < 1:
        raise PydanticCustomError("share", "expected a number from 0 up to but not including 1")
    return value


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class Part(_Data):
    """One design in a layer, with its sizes and settings."""

    design: Annotated[Any, BeforeValidator(_design, json_schema_input_type=str | dict[str, Any])] = Field(
        description="A shipped name, a path, or the design itself."
    )
    legs: dict[str, Arithmetic] = Field({}, description="Sizes of legs; the model sets the leg of its width.")
    settings: dict[str, Arithmetic] = Field({}, description="Settings of the design.")
    causal: StrictBool | None = Field(None, description="Overrides the design's 'causal'.")


ShortPart = Annotated[Part, BeforeValidator(_short("part", "design"), json_schema_input_type=Part | str)]
Whole = Annotated[int, BeforeValidator(_whole, json_schema_input_type=Annotated[int, Field(ge=1)])]
Rows = Annotated[int, BeforeValidator(_rows, json_schema_input_type=Annotated[int, Field(ge=0)])]
Share = Annotated[float, BeforeValidator(_share, json_schema_input_type=Annotated[float, Field(ge=0, lt=1)])]


class Layer(_Data):
    """A mixer and an optional MLP, each with a norm and a residual connection."""

    mixer: ShortPart = Field(description="Any attention design.")
    mlp: ShortPart | None = Field(None, description="Any design of single positions.")
    repeat: Whole = Field(1, description="Number of copies of this layer in a row, each with its own weights.")


class DecoderLayer(Layer):
    """A layer that also attends to the encoded source, between mixer and MLP."""

    cross: ShortPart = Field(description="Any design with a second input, such as 'cross'.")


ShortLayer = Annotated[Layer, BeforeValidator(_short("layer", "mixer"), json_schema_input_type=Layer | str)]

Vocabulary = Annotated[Whole, Field(description="Number of tokens in the vocabulary.")]


class Config(_Data):
    """The keys that all kinds of model have."""

    vocabulary: Whole | None
    length: Whole = Field(description="Sequence length of the model; also the number of learned positions.")
    width: Whole = Field(description="Width of the residual stream.")
    positions: Positions = Field("none", description="Positions added to the embedding; 'none': only the designs' own.")
    embedding_scale: Arithmetic = Field(1, description="Factor on embeddings: arithmetic over width and length.")
    norm: Norm = Field("layernorm", description="Kind of the norms before each design and at the end.")
    post_norm: StrictBool = Field(False, description="Norms follow the residual connections; no norm at the end.")
    dropout: Share = Field(0.0, description="Dropout on embeddings and on the output of each design.")
    init: Initialisation = Field("design", description="Distribution of the initial values.")


class TokenModelConfig(Config):
    kind: Literal["language_model", "masked_language_model"]
    vocabulary: Vocabulary
    layers: Annotated[list[ShortLayer], Field(min_length=1)]
    tied: StrictBool = Field(True, description="The output shares the weights of the embedding.")
    output_bias: StrictBool = Field(False, description="The output has a bias for each token.")


class MaskedLanguageModelConfig(TokenModelConfig):
    kind: Literal["masked_language_model"]


class LanguageModelConfig(TokenModelConfig):
    kind: Literal["language_model"]
    memory: Rows = Field(0, description="Number of rows of earlier segments that designs with a context input see.")
    memory_kind: MemoryKind = Field("inputs", description="The memory holds inputs of layers, or the decoding cache.")


class SequenceClassifierConfig(Config):
    kind: Literal["sequence_classifier"]
    layers: Annotated[list[ShortLayer], Field(min_length=1)]
    classes: Whole
    vocabulary: Whole | None = Field(None, description="Number of tokens in the vocabulary; excludes 'features'.")
    features: Whole | None = Field(None, description="Number of features of a position, instead of a token.")
    pooling: Pooling = Field(
        "mean", description="Mean of all positions, a learned first position, or all positions concatenated."
    )


class Seq2SeqConfig(Config):
    kind: Literal["seq2seq"]
    vocabulary: Vocabulary
    encoder: Annotated[list[ShortLayer], Field(min_length=1)]
    decoder: Annotated[list[DecoderLayer], Field(min_length=1)]
    target_vocabulary: Whole | None = Field(None, description="Number of target tokens, if source and target differ.")
    tied: StrictBool = Field(True, description="The output shares the weights of the target's embedding.")


AnyConfig = LanguageModelConfig | MaskedLanguageModelConfig | SequenceClassifierConfig | Seq2SeqConfig
CONFIGS: dict[str, type[AnyConfig]] = {
    "language_model": LanguageModelConfig,
    "masked_language_model": MaskedLanguageModelConfig,
    "sequence_classifier": SequenceClassifierConfig,
    "seq2seq": Seq2SeqConfig,
}
STACKS = ("layers", "encoder", "decoder")
PARTS = ("mixer", "cross", "mlp")  # in the order of a block


def json_schema() -> dict[str, Any]:
    """The JSON schema of model files. For inline designs, see `ta.json_schema()`."""
    model = TypeAdapter(AnyConfig).json_schema(mode="validation")
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
    "whole": ("a whole number from 1", "e.g. 64."),
    "share": ("a number from 0 up to but not including 1", "e.g. 0.1."),
    "number": ("a finite number or arithmetic", "e.g. 0.5 or 'width ** 0.5'."),
    "bool_type": ("true or false", "e.g. true."),
    "list_type": ("a list of layers", "e.g. [{mixer: mhsa, mlp: mlp, repeat: 2}]."),
    "too_short": ("at least one layer", "e.g. [{mixer: mhsa, mlp: mlp, repeat: 2}]."),
    "dict_type": ("a mapping of names to numbers", "e.g. {h: 4}."),
    "design": ("a design", "give a shipped name, a path, or the design itself."),
    "part": ("a design", "e.g. mhsa, or {design: mhsa, legs: {h: 4}}."),
    "layer": ("a layer", "e.g. {mixer: mhsa, mlp: mlp}."),
    "model_type": ("a layer", "e.g. {mixer: mhsa, cross: cross, mlp: mlp}."),
}
_OTHER = ("another value", "compare with docs/models.md.")


def report_config(error: ValidationError, reporter: Reporter, kind: str) -> None:
    """Reports each validation error at its place under `model`."""
    for raw in error.errors(include_url=False, include_context=True, include_input=False):
        path: Path = ("model", *raw["loc"])
        last = str(path[-1])
        if raw["type"] == "extra_forbidden":
            reporter.unknown_key(path, _valid_keys(path, kind))
        elif raw["type"] == "missing":
            hint = f"e.g. '{_EXAMPLES[last]}'."
            reporter.error("missing-key", f"the key '{last}' is missing.", path, key=True, hint=hint)
        elif raw["type"] == "literal_error":
            actual = written(reporter.document.value(path))
            hint = f"use one of {raw['ctx']['expected'].replace(chr(39), '').replace(' or ', ', ')}."
            reporter.error("wrong-value", f"{actual} is not a value of '{last}'.", path, hint=hint)
        else:
            what, hint = _WANTED.get(raw["type"], _OTHER)
            actual = written(reporter.document.value(path))
            reporter.error("wrong-type", f"expected {what}, got {actual}.", path, hint=hint)


def _valid_keys(path: Path, kind: str) -> list[str]:
    """The keys that are valid in the place of an unknown key."""
    if len(path) == 2:
        return list(CONFIGS[kind].model_fields)
    model: type[BaseModel] = Part
    if len(path) == 4:
        model = DecoderLayer if path[1] == "decoder" else Layer
    return list(model.model_fields)
