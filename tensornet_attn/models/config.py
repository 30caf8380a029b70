"""What a model file says under `model:`, as pydantic models, before any design is looked up."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool
from pydantic_core import PydanticCustomError

from tensornet_attn import limits
from tensornet_attn.ops.model import Arithmetic
from tensornet_attn.spec import Design

Norm = Literal["layernorm", "rmsnorm"]
Positions = Literal["none", "learned", "sinusoid"]
Pooling = Literal["mean", "cls", "concat"]
Initialisation = Literal["design", "normal", "gpt2", "xavier", "transformer_xl", "mgk", "fmm", "lra", "epa"]


def _design(value: Any) -> Any:
    if not isinstance(value, (str, os.PathLike, Mapping, Design)) or value == {}:
        raise PydanticCustomError("design", "a design is wanted here: a shipped name, a path, or the design itself")
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _part(value: Any) -> Any:
    """`mhsa` is short for `{design: mhsa}`."""
    if isinstance(value, (str, os.PathLike, Design)):
        return {"design": value}
    if not isinstance(value, (Mapping, Part)):
        raise PydanticCustomError("part", "a design is wanted here, or a mapping with 'design', 'legs', 'settings'")
    return value


def _layer(value: Any) -> Any:
    """`mhsa` is short for `{mixer: mhsa}`."""
    if isinstance(value, (str, os.PathLike, Design)):
        return {"mixer": value}
    if not isinstance(value, (Mapping, Layer)):
        raise PydanticCustomError(
            "layer", "a layer is wanted here: a design, or a mapping with 'mixer', 'mlp', 'repeat'"
        )
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.SIZE:
        raise PydanticCustomError("whole", "a whole number is wanted here, from 1")
    return value


def _rows(value: Any) -> Any:
    return value if isinstance(value, int) and value == 0 and not isinstance(value, bool) else _whole(value)


def _share(value: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value < 1:
        raise PydanticCustomError("share", "a number from 0 up to but not including 1 is wanted here")
    return value


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class Part(_Data):
    """One design in a layer, with the sizes and settings it has there."""

    design: Annotated[Any, BeforeValidator(_design, json_schema_input_type=str | dict[str, Any])] = Field(
        description="A shipped name, a path, or the design itself."
    )
    legs: dict[str, Arithmetic] = Field({}, description="Sizes of legs; the width is put on its leg by the model.")
    settings: dict[str, Arithmetic] = Field({}, description="Settings of the design.")
    causal: StrictBool | None = Field(None, description="Overrides what the design says.")


ShortPart = Annotated[Part, BeforeValidator(_part, json_schema_input_type=Part | str)]
Whole = Annotated[int, BeforeValidator(_whole, json_schema_input_type=Annotated[int, Field(ge=1)])]
Rows = Annotated[int, BeforeValidator(_rows, json_schema_input_type=Annotated[int, Field(ge=0)])]
Share = Annotated[float, BeforeValidator(_share, json_schema_input_type=Annotated[float, Field(ge=0, lt=1)])]


class Layer(_Data):
    """A mixer and, where there is one, an MLP, each with a norm and a residual connection around it."""

    mixer: ShortPart = Field(description="Any attention design.")
    mlp: ShortPart | None = Field(None, description="Any design of single positions.")
    repeat: Whole = Field(1, description="How many such layers follow each other, each with its own weights.")


class DecoderLayer(Layer):
    """A layer that looks at the encoded source as well, between mixer and MLP."""

    cross: ShortPart = Field(description="Any design with a second input, such as 'cross'.")


ShortLayer = Annotated[Layer, BeforeValidator(_layer, json_schema_input_type=Layer | str)]


class Config(_Data):
    """What all kinds of model have."""

    vocabulary: Whole = Field(description="How many tokens there are.")
    length: Whole = Field(description="The length it is made for; learned positions have as many rows.")
    width: Whole = Field(description="Of the residual stream.")
    positions: Positions = Field("none", description="Added to the embedding; 'none': what the designs do themselves.")
    embedding_scale: Arithmetic = Field(1, description="A factor on embeddings: arithmetic over width and length.")
    norm: Norm = Field("layernorm", description="Before each design, and at the end.")
    post_norm: StrictBool = Field(False, description="The norms after the residual connections, and none at the end.")
    dropout: Share = Field(0.0, description="On embeddings, and on what each design adds.")
    init: Initialisation = Field("design", description="How first values are drawn.")


class LanguageModelConfig(Config):
    kind: Literal["language_model"]
    layers: Annotated[list[ShortLayer], Field(min_length=1)]
    tied: StrictBool = Field(True, description="The output has the weights of the embedding.")
    output_bias: StrictBool = Field(False, description="The output has a bias for each token.")
    memory: Rows = Field(0, description="Rows of earlier segments kept for designs with a context input.")


class SequenceClassifierConfig(Config):
    kind: Literal["sequence_classifier"]
    layers: Annotated[list[ShortLayer], Field(min_length=1)]
    classes: Whole
    vocabulary: Whole | None = Field(None, description="How many tokens there are; or else 'features'.")
    features: Whole | None = Field(None, description="How many numbers a position has, in place of a token.")
    pooling: Pooling = Field("mean", description="Mean of all positions, a learned one put in front, or all in a row.")


class Seq2SeqConfig(Config):
    kind: Literal["seq2seq"]
    encoder: Annotated[list[ShortLayer], Field(min_length=1)]
    decoder: Annotated[list[DecoderLayer], Field(min_length=1)]
    target_vocabulary: Whole | None = Field(None, description="Of the target, if it is not that of the source.")
    tied: StrictBool = Field(True, description="The output has the weights of the target's embedding.")


CONFIGS: dict[str, type[LanguageModelConfig] | type[SequenceClassifierConfig] | type[Seq2SeqConfig]] = {
    "language_model": LanguageModelConfig,
    "sequence_classifier": SequenceClassifierConfig,
    "seq2seq": Seq2SeqConfig,
}
STACKS = ("layers", "encoder", "decoder")
PARTS = ("mixer", "cross", "mlp")  # in the order in which a block has them
