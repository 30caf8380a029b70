"""A design as a pydantic model: what the YAML says, key for key, before anything is looked up."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictBool,
    StrictStr,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from tensornet_attn.errors import DesignError
from tensornet_attn.ops.model import Arithmetic, LegName, Operand, deep_recursion, holds_operands
from tensornet_attn.spec.places import Document
from tensornet_attn.spec.report import Reporter, printable
from tensornet_attn.spec.sizes import Sizes
from tensornet_attn.spec.translate import report_validation
from tensornet_attn.spec.yaml import dump, plain

SECTIONS = ("legs", "settings", "inputs", "weights", "constants", "noise", "state", "diagram", "losses")
REQUIRED = ("tensornet", "name", "legs", "inputs", "diagram", "output")


def _legs(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)):
        return value
    raise PydanticCustomError("legs", "legs are names separated by blanks, such as 'n f' (a scalar has [])")


def _version(value: Any) -> Any:
    if value != 1 or isinstance(value, bool):
        raise PydanticCustomError("version", "this package reads version 1 of the language: 'tensornet: 1'")
    return value


def _characters(value: str) -> str:
    if not value.isprintable() and any("\ud800" <= character <= "\udfff" for character in value):
        raise PydanticCustomError("surrogate", "half of a surrogate pair is no character")
    return value


Text = Annotated[StrictStr, AfterValidator(_characters)]
Legs = Annotated[str | tuple[str, ...], BeforeValidator(_legs)]


class Declaration(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    legs: Legs


class Input(Declaration):
    """A positional argument of forward; `default` names the input it is when not given."""

    default: LegName | None = None


class Weight(Declaration):
    """A parameter; `frozen` means that it gets no gradient."""

    init: LegName = "xavier"
    frozen: StrictBool = False


class Constant(Declaration):
    """A tensor whose values are known."""

    value: LegName


class Noise(Declaration):
    """Gaussian noise, fresh at each training call."""

    std: Arithmetic = 1
    always: StrictBool = False


class State(Declaration):
    """A buffer; after a training call the step `update` is stored in it."""

    init: LegName = "zeros"
    update: LegName


class Loss(BaseModel):
    """A scalar step that a trainer adds to its loss, times `weight`; the step of the loss's own name if not given."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    weight: Arithmetic
    step: LegName | None = None


class Special(BaseModel):
    """Sizes and weights at which a design is another one, its special case; see `tensornet_attn.special`.

    `legs` and `settings` are arithmetic over those of the special case; `weights` say how each weight comes from its
    tensors. `causal`: only when both are compiled causal.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    legs: dict[str, Arithmetic] = {}
    settings: dict[str, Arithmetic] = {}
    weights: dict[str, LegName] = {}
    causal: StrictBool = False


def _short(model: type[Declaration]) -> Any:
    """`Wq: f h d` is short for `Wq: {legs: f h d}`."""

    def widen(value: Any) -> Any:
        if isinstance(value, (str, list, tuple)):
            return {"legs": value}
        if not isinstance(value, (dict, model)):
            raise PydanticCustomError("legs", "legs are names separated by blanks, such as 'n f' (a scalar has [])")
        return value

    return Annotated[model, BeforeValidator(widen, json_schema_input_type=model | str | list[str])]


def _loss(value: Any) -> Any:
    """`balance: 0.01` is short for `balance: {weight: 0.01}`."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        return {"weight": value}
    if not isinstance(value, (dict, Loss)):
        raise PydanticCustomError("loss", "the weight of a loss is wanted here, or its step and weight")
    return value


if TYPE_CHECKING:
    InputDeclaration = Input
    WeightDeclaration = Weight
    NoiseDeclaration = Noise
    LossDeclaration = Loss
else:
    InputDeclaration, WeightDeclaration, NoiseDeclaration = _short(Input), _short(Weight), _short(Noise)
    LossDeclaration = Annotated[Loss, BeforeValidator(_loss, json_schema_input_type=Loss | int | float | str)]


@holds_operands
class Design(BaseModel):
    """A tensor diagram. Build it in Python like the YAML: `Design(tensornet=1, name="mhsa", legs={...}, ...)`.

    Raises DesignError where its form is wrong; `tensornet_attn.check` and every use of it check the diagram itself.
    `design.legs` maps leg names to resolved sizes (None: sized at run time); `declared_legs` holds what was written.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        ignored_types=(cached_property,),
        title="A tensornet_attn design",
        defer_build=True,  # by `holds_operands`
    )

    tensornet: Annotated[Literal[1], BeforeValidator(_version)] = Field(description="Version of the language.")
    name: Text = Field(description="[a-z][a-z0-9_]*")
    about: Text = Field("", description="One sentence about the design.")
    source: Text = Field("", description="Paper, year, equation or figure.")
    causal: StrictBool | None = Field(None, description="Makes every box over a key leg causal.")
    settings: dict[str, Arithmetic] = Field({}, description="Names for numbers.")
    declared_legs: dict[str, Arithmetic] = Field(
        alias="legs", description="Every leg, once: a size, query, key, relative, head."
    )
    inputs: dict[str, InputDeclaration] = Field(description="The positional arguments of forward, in order.")
    weights: dict[str, WeightDeclaration] = Field({}, description="Parameters; their names are the state dict's keys.")
    constants: dict[str, Constant] = Field({}, description="Tensors whose values are known.")
    noise: dict[str, NoiseDeclaration] = Field({}, description="Gaussian noise, fresh at each training call.")
    state: dict[str, State] = Field({}, description="Buffers that training updates.")
    diagram: dict[str, Operand] = Field(description="The steps, read from top to bottom.")
    losses: dict[str, LossDeclaration] = Field({}, description="Scalar steps that a trainer adds to its loss.")
    output: Text = Field(description="The step that is returned.")
    contains: dict[str, Special] = Field({}, description="Designs that this one is at some sizes and weights.")
    _document: Document | None = PrivateAttr(None)

    def __init__(self, **data: Any):
        try:
            super().__init__(**data)
        except ValidationError as error:
            name = data.get("name")
            document = Document(data, printable(name, 64) if isinstance(name, str) else "design")
            reporter = Reporter(document)
            report_validation(error, reporter)
            raise DesignError(reporter.problems()) from error

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Builds a class that is made of this one."""
        with deep_recursion():
            cls.model_rebuild(force=True)

    def __eq__(self, other: object) -> bool:
        """Designs are equal that say the same in the same order, wherever they were read from."""
        return isinstance(other, Design) and repr(self.as_dict()) == repr(other.as_dict())

    __hash__ = None  # type: ignore[assignment]

    @property
    def document(self) -> Document:
        """The data this design was read from, with places; plain data for a design built in Python."""
        return self._document or Document(self.as_dict(), self.name)

    @cached_property
    def legs(self) -> dict[str, int | None]:
        """Leg names to resolved sizes; None for legs sized at run time. Raises DesignError."""
        reporter = Reporter(self.document)
        sizes = Sizes.of(self.declared_legs, self.settings, reporter)
        if reporter.failed:
            raise DesignError(reporter.problems())
        return {leg.name: leg.size for leg in sizes.legs.values()}

    def as_dict(self) -> dict[str, Any]:
        """The design as plain data: what was written, nothing filled in."""
        return {key: plain(value) for key, value in self.model_dump(by_alias=True, exclude_unset=True).items()}

    def to_yaml(self) -> str:
        """The design as YAML text that reads back to the same design."""
        return dump(_compact(self.as_dict()))


def _compact(data: dict[str, Any]) -> dict[str, Any]:
    """`Wq: {legs: f h d}` back to `Wq: f h d`, and sections in the order of the language."""
    for section in ("inputs", "weights", "noise"):
        for name, value in data.get(section, {}).items():
            if set(value) == {"legs"}:
                data[section][name] = value["legs"]
    for name, value in data.get("losses", {}).items():
        if set(value) == {"weight"}:
            data["losses"][name] = value["weight"]
    order = list(Design.model_fields)
    order[order.index("declared_legs")] = "legs"
    return {key: data[key] for key in order if key in data}


def json_schema() -> dict[str, Any]:
    """The JSON schema of a design file, for completion in editors. A file may extend another and then needs less."""
    schema = Design.model_json_schema(by_alias=True, mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    about = "A shipped design, or a path, that this one starts from."
    schema["properties"]["extends"] = {"type": "string", "description": about}
    del schema["required"]
    schema["if"] = {"required": ["extends"]}
    schema["then"] = {"required": ["name"]}
    schema["else"] = {"required": list(REQUIRED)}
    for section in SECTIONS:  # under `extends`, null removes
        values = schema["properties"][section]["additionalProperties"]
        schema["properties"][section]["additionalProperties"] = {"anyOf": [values, {"type": "null"}]}
    return schema
