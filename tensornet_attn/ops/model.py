"""The boxes of the language as pydantic models: their common base, and how a key names the box."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, Union

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
)
from pydantic_core import CoreSchema, PydanticCustomError

from tensornet_attn import limits
from tensornet_attn.ops.masks import MASKS


def _arithmetic(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= limits.INTEGER_BITS
    if not (whole or isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))):
        raise PydanticCustomError("number", "a finite number or arithmetic is wanted here")
    return value


def _flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise PydanticCustomError("flag", "true or false is wanted here")
    return value


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise PydanticCustomError("text", "a name is wanted here")
    return value


def _legs(value: Any) -> Any:
    """A leg, or a list of several."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, str) for one in value):
        return value if len(value) > 1 else value[0]
    if not isinstance(value, str):
        raise PydanticCustomError("legs of a box", "a leg or a list of legs is wanted here")
    return value


def _masks(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)):
        return value
    raise PydanticCustomError("masks", "a list of masks is wanted here: causal, band(w) or 'window(left, right)'")


def _as_text(value: Any) -> Any:
    """A number as the sum that it is: `0 ->`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{'-' * (value < 0)}{abs(_arithmetic(value))!r} ->" if number else value


def _fill(value: Any) -> Any:
    """0, which says nothing, or minus infinity."""
    if value in (None, 0, "0", "-inf", -math.inf):
        return "-inf" if value in ("-inf", -math.inf) else None
    raise PydanticCustomError("fill", "0 or -inf is wanted here")


Arithmetic = Annotated[int | float | str, BeforeValidator(_arithmetic)]
Fill = Annotated[str | None, BeforeValidator(_fill)]
LegName = Annotated[str, BeforeValidator(_text)]
Flag = Annotated[bool, BeforeValidator(_flag)]
LegNames = Annotated[str | tuple[str, ...], BeforeValidator(_legs)]


class WithMasks:
    """The schema of masks: an editor offers those of the table."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "examples": [row.example for row in MASKS.values()]}


Masks = Annotated[str | tuple[str, ...], BeforeValidator(_masks), WithMasks()]


class BoxModel(BaseModel):
    """What every box has. The class variables tell the builder which parameters mean what."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    key: ClassVar[str]
    operands: ClassVar[tuple[str, ...]] = ("of",)
    numbers: ClassVar[tuple[str, ...]] = ()
    second: ClassVar[str | None] = None  # the parameter that names a second leg
    optional: ClassVar[frozenset[str]] = frozenset()  # operands and numbers that a box may lack: None, in no Box then

    def apart(self, keys: Collection[str]) -> BoxModel:
        """The box that this one is short for, others inside; itself, as a rule. `keys`: the key leg."""
        return self


def kind_of(value: Any) -> str | None:
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


BOXES: dict[str, type[BoxModel]] = {}  # by the key that opens it


class AnyBox:
    """The schema of an operand: a text, or a box of one of the kinds that are known when it is built."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = (Annotated[model, Tag(f"box:{model.key}")] for model in BOXES.values())
        union = Annotated[Union[(Annotated[str, Tag("text")], *members)], Discriminator(kind_of)]
        return handler.generate_schema(union)


if TYPE_CHECKING:
    Operand = str | BoxModel
    OperandOrNumber = str | BoxModel
else:
    Operand = Annotated[Any, AnyBox()]
    OperandOrNumber = Annotated[Any, AnyBox(), BeforeValidator(_as_text)]
M = TypeVar("M", bound=type[BaseModel])
DEPTH = 10_000  # some 35 calls for each kind of box
_HOLDERS: list[type[BaseModel]] = []  # models that have operands, beside the boxes


def holds_operands(model: M) -> M:
    """Marks a model with operands, and builds it; it is built again where another kind of box becomes known."""
    _HOLDERS.append(model)
    with deep_recursion():
        model.model_rebuild(force=True)
    return model


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Lets calls nest deeper: pydantic goes from kind to kind of box, each inside of the one before."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def rebuild() -> None:
    """Builds the models again, for the kinds that are known now."""
    models = [*BOXES.values(), *(kind for model in _HOLDERS for kind in (model, *model.__subclasses__()))]
    for model in models:
        for built in ("__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__"):
            if built in model.__dict__:
                delattr(model, built)
    with deep_recursion():
        for model in models:
            model.model_rebuild(force=True)
