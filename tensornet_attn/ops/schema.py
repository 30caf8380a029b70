"""The base of the pydantic models of boxes, and the union of all boxes, in which a key selects the model."""

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
    is_integer = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= limits.INTEGER_BITS
    if not (is_integer or isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))):
        raise PydanticCustomError("number", "expected a finite number or arithmetic")
    return value


def _flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise PydanticCustomError("flag", "expected true or false")
    return value


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise PydanticCustomError("text", "expected a name")
    return value


def _legs(value: Any) -> Any:
    """Validates a leg or a list of legs."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(leg, str) for leg in value):
        return value if len(value) > 1 else value[0]
    if not isinstance(value, str):
        raise PydanticCustomError("legs of a box", "expected a leg or a list of legs")
    return value


def _masks(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, (list, tuple)) and all(isinstance(mask, str) for mask in value)):
        return value
    raise PydanticCustomError("masks", "expected a list of masks, e.g. causal, band(w) or 'window(left, right)'")


def _as_text(value: Any) -> Any:
    """A number as an expression without legs: `0 ->`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{'-' * (value < 0)}{abs(_arithmetic(value))!r} ->" if number else value


def _fill(value: Any) -> Any:
    """None for 0, the default, or "-inf"."""
    if value in (None, 0, "0", "-inf", -math.inf):
        return "-inf" if value in ("-inf", -math.inf) else None
    raise PydanticCustomError("fill", "expected 0 or -inf")


Arithmetic = Annotated[int | float | str, BeforeValidator(_arithmetic)]
Fill = Annotated[str | None, BeforeValidator(_fill)]
LegName = Annotated[str, BeforeValidator(_text)]
Flag = Annotated[bool, BeforeValidator(_flag)]
LegNames = Annotated[str | tuple[str, ...], BeforeValidator(_legs)]


class WithMasks:
    """Adds the masks of the table as examples to the JSON schema, for editors."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "examples": [row.example for row in MASKS.values()]}


Masks = Annotated[str | tuple[str, ...], BeforeValidator(_masks), WithMasks()]


class BoxModel(BaseModel):
    """The base of all boxes. The class variables give the builder the roles of the parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    key: ClassVar[str]  # the `kind` of its operation
    operands: ClassVar[tuple[str, ...]] = ("of",)
    numbers: ClassVar[tuple[str, ...]] = ()
    second: ClassVar[str | None] = None  # the parameter that names a second leg
    optional: ClassVar[frozenset[str]] = frozenset()  # operands and numbers that may be None; Box lacks them

    def apart(self, keys: Collection[str]) -> BoxModel:
        """The nested boxes that this box abbreviates; by default the box itself. `keys` contains the key leg."""
        return self


def kind_of(operand: Any) -> str | None:
    """The tag by which pydantic selects the model of a box or an expression."""
    if isinstance(operand, str):
        return "text"
    if isinstance(operand, BoxModel):
        return f"box:{operand.key}"
    if not isinstance(operand, dict):
        return None
    kinds = kinds_of(operand)
    return f"box:{kinds[0]}" if len(kinds) == 1 else None


def kinds_of(box: dict[str, Any]) -> list[str]:
    """The keys that name a box. A key that is a parameter of another box in the mapping does not count."""
    keys = [key for key in box if key in BOXES]
    parameters = {name for key in keys for name in BOXES[key].model_fields if name != key}
    return [key for key in keys if key not in parameters] or keys[:1]


BOXES: dict[str, type[BoxModel]] = {}  # by the key that names the box


class AnyBox:
    """The schema of an operand: a text, or a box of a kind that is registered when the schema is built."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = (Annotated[model, Tag(f"box:{model.key}")] for model in BOXES.values())
        union: Any = Annotated[Union[(Annotated[str, Tag("text")], *members)], Discriminator(kind_of)]
        return handler.generate_schema(union)


if TYPE_CHECKING:
    Operand = str | BoxModel
    OperandOrNumber = str | BoxModel
else:
    Operand = Annotated[Any, AnyBox()]
    OperandOrNumber = Annotated[Any, AnyBox(), BeforeValidator(_as_text)]
M = TypeVar("M", bound=type[BaseModel])
DEPTH = 10_000  # about 35 calls for each kind of box
_HOLDERS: list[type[BaseModel]] = []  # models with operands, other than boxes


def holds_operands(model: M) -> M:
    """Registers and builds a model with operands. It is rebuilt when a kind of box is added."""
    _HOLDERS.append(model)
    with deep_recursion():
        model.model_rebuild(force=True)
    return model


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Raises the recursion limit: pydantic recurses from each kind of box into the next."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def rebuild() -> None:
    """Rebuilds the models for the registered kinds of boxes."""
    models = [*BOXES.values(), *(kind for model in _HOLDERS for kind in (model, *model.__subclasses__()))]
    for model in models:
        for attribute in ("__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__"):
            if attribute in model.__dict__:
                delattr(model, attribute)
    with deep_recursion():
        for model in models:
            model.model_rebuild(force=True)
