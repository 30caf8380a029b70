"""The boxes of the language as pydantic models: one class a box, named by the key that opens it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from tensornet_attn import limits


def _arithmetic(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= limits.INTEGER_BITS
    if not (whole or isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))):
        raise PydanticCustomError("number", "a finite number or arithmetic is wanted here")
    return value


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise PydanticCustomError("text", "a name is wanted here")
    return value


def _masks(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)):
        return value
    raise PydanticCustomError("masks", "a list of masks is wanted here: causal, band(w) or 'window(left, right)'")


Arithmetic = Annotated[int | float | str, BeforeValidator(_arithmetic)]
LegName = Annotated[str, BeforeValidator(_text)]
Masks = Annotated[str | tuple[str, ...], BeforeValidator(_masks)]


class BoxModel(BaseModel):
    """What every box has. The class variables tell the builder which parameters mean what."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    key: ClassVar[str]
    operands: ClassVar[tuple[str, ...]] = ("of",)
    numbers: ClassVar[tuple[str, ...]] = ()
    second: ClassVar[str | None] = None  # the parameter that names a second leg


def _kind(value: Any) -> str | None:
    """The tag of a box or expression: pydantic picks the model by it."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, BoxModel):
        return f"box:{value.key}"
    if not isinstance(value, dict):
        return None
    kinds = kinds_of(value)
    return f"box:{kinds[0]}" if len(kinds) == 1 else None


def kinds_of(data: dict[str, Any]) -> list[str]:
    """The box names among the keys; a name that is a parameter of another box there is no opener."""
    found = [key for key in data if key in BOXES]
    parameters = {name for key in found for name in BOXES[key].model_fields if name != key}
    return [key for key in found if key not in parameters] or found[:1]


class Softmax(BoxModel):
    """softmax(scale * of) along the leg."""

    key = "softmax"
    numbers = ("scale", "dropout")
    softmax: LegName
    scale: Arithmetic = 1
    mask: Masks = ()
    dropout: Arithmetic = 0
    of: Operand


class Normalize(BoxModel):
    """of / (sum along the leg + eps): kernel attention."""

    key = "normalize"
    numbers = ("eps",)
    normalize: LegName
    mask: Masks = ()
    eps: Arithmetic = 0
    of: Operand


class MaskedScores(BoxModel):
    """of where visible, 0 elsewhere."""

    key = "keep"
    keep: LegName
    mask: Masks = ()
    of: Operand


class Map(BoxModel):
    """An elementwise function."""

    key = "map"
    map: LegName
    of: Operand


class LogSumExp(BoxModel):
    """The logarithm of the sum of exponentials along the leg."""

    key = "logsumexp"
    logsumexp: LegName
    mask: Masks = ()
    of: Operand


class Max(BoxModel):
    """The largest entry along the leg."""

    key = "max"
    max: LegName
    mask: Masks = ()
    of: Operand


class Sum(BoxModel):
    """The sum along the leg."""

    key = "sum"
    sum: LegName
    mask: Masks = ()
    of: Operand


class Mean(BoxModel):
    """The mean along the leg."""

    key = "mean"
    mean: LegName
    mask: Masks = ()
    of: Operand


class TopK(BoxModel):
    """`of` at the k entries along the leg where `by` is largest, 0 elsewhere."""

    key = "topk"
    numbers = ("k",)
    operands = ("of", "by")
    topk: LegName
    k: Arithmetic
    by: Operand | None = None
    of: Operand


class RMSNorm(BoxModel):
    """of / sqrt(mean of squares along the leg + eps)."""

    key = "rmsnorm"
    numbers = ("eps",)
    rmsnorm: LegName
    eps: Arithmetic = 1e-5
    of: Operand


class LayerNorm(BoxModel):
    """(of - mean) / sqrt(variance along the leg + eps)."""

    key = "layernorm"
    numbers = ("eps",)
    layernorm: LegName
    eps: Arithmetic = 1e-5
    of: Operand


class L1Norm(BoxModel):
    """of / (sum of absolute values along the leg + eps)."""

    key = "l1norm"
    numbers = ("eps",)
    l1norm: LegName
    eps: Arithmetic = 0
    of: Operand


class L2Norm(BoxModel):
    """of / (root of the sum of squares along the leg + eps)."""

    key = "l2norm"
    numbers = ("eps",)
    l2norm: LegName
    eps: Arithmetic = 0
    of: Operand


class Rope(BoxModel):
    """Rotary embedding by the position on a sequence leg."""

    key = "rope"
    numbers = ("base", "fraction", "blocks")
    second = "along"
    rope: LegName
    along: LegName
    base: Arithmetic = 10000
    fraction: Arithmetic = 1
    blocks: Arithmetic = 1
    of: Operand


class RelShift(BoxModel):
    """From relative positions to keys: entry p = position(n) - position(m)."""

    key = "rel_shift"
    second = "to"
    rel_shift: LegName
    to: LegName
    of: Operand


class DeltaRule(BoxModel):
    """Fast weights: S += rate (v - S k) k^T, read by the query."""

    key = "delta_rule"
    operands = ("query", "key", "value", "rate")
    numbers = ("eps",)
    delta_rule: LegName
    query: Operand
    key_: Operand = Field(alias="key")
    value: Operand
    rate: Operand
    normalize: Literal["none", "read", "both"] = "none"
    eps: Arithmetic = 0


class Dropout(BoxModel):
    """Entries set to zero with this probability while training, the rest scaled up."""

    key = "dropout"
    numbers = ("dropout",)
    dropout: Arithmetic
    of: Operand


_MODELS: tuple[type[BoxModel], ...] = (
    Softmax, Normalize, MaskedScores, Map, LogSumExp, Max, Sum, Mean, TopK,
    RMSNorm, LayerNorm, L1Norm, L2Norm, Rope, RelShift, DeltaRule, Dropout,
)  # fmt: skip
BOXES: dict[str, type[BoxModel]] = {model.key: model for model in _MODELS}
if TYPE_CHECKING:
    Operand = str | BoxModel
else:
    Operand = Annotated[
        Union[(Annotated[str, Tag("text")], *(Annotated[model, Tag(f"box:{model.key}")] for model in _MODELS))],
        Discriminator(_kind),
    ]
