"""A design as a pydantic model: the keys and values of the YAML file, before names are resolved."""

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
from tensornet_attn.ops.schema import Arithmetic, LegName, Operand, deep_recursion, holds_operands
from tensornet_attn.spec.places import Document
from tensornet_attn.spec.report import Reporter, printable
from tensornet_attn.spec.sizes import Sizes
from tensornet_attn.spec.translate import report_validation
from tensornet_attn.spec.yaml import dump, plain

SECTIONS = ("legs", "settings", "inputs", "weights", "constants", "noise", "state", "diagram", "losses")
REQUIRED = ("tensornet", "name", "legs", "inputs", "diagram", "output")


def _legs(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, (list, tuple)) and all(isinstance(leg, str) for leg in value)):
        return value
    raise PydanticCustomError("legs", "legs are names separated by spaces, such as 'n f' (a scalar has [])")


def _version(value: Any) -> Any:
    if value != 1 or isinstance(value, bool):
        raise PydanticCustomError("version", "this package reads version 1 of the language: 'tensornet: 1'")
    return value


def _characters(value: str) -> str:
    if not value.isprintable() and any("\ud800" <= character <= "\udfff" for character in value):
        raise PydanticCustomError("surrogate", "half of a surrogate pair is not a character")
    return value


Text = Annotated[StrictStr, AfterValidator(_characters)]
Legs = Annotated[str | tuple[str, ...], BeforeValidator(_legs)]


class Declaration(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    legs: Legs


class Input(Declaration):
    """A positional argument of forward; `default` names the input that replaces it if a call omits it."""

    default: LegName | None = None


class Weight(Declaration):
    """A parameter; a `frozen` one gets no gradient."""

    init: LegName = "xavier"
    frozen: StrictBool = False


class Constant(Declaration):
    """A tensor with known values."""

    value: LegName


class Noise(Declaration):
    """Gaussian noise, fresh at each training call."""

    std: Arithmetic = 1
    always: StrictBool = False


class State(Declaration):
    """A buffer; each training call stores the result of the step `update` in it."""

    init: LegName = "zeros"
    update: LegName


class Loss(BaseModel):
    """A scalar step that a trainer adds to its loss, times `weight`; `step` defaults to the name of the loss."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    weight: Arithmetic
    step: LegName | None = None


class Special(BaseModel):
    """Sizes and weights at which a design equals another design, its special case; see `tensornet_attn.special`.

    `legs` and `settings` are arithmetic over those of the special case; `weights` gives each weight as an expression of
    its tensors. With `causal`, the designs are equal only if both are compiled causal.
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
            raise PydanticCustomError("legs", "legs are names separated by spaces, such as 'n f' (a scalar has [])")
        return value

    return Annotated[model, BeforeValidator(widen, json_schema_input_type=model | str | list[str])]


def _loss(value: Any) -> Any:
    """`balance: 0.01` is short for `balance: {weight: 0.01}`."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        return {"weight": value}
    if not isinstance(value, (dict, Loss)):
        raise PydanticCustomError("loss", "expected the weight of a loss, or its step and weight")
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
    """A tensor diagram. Its arguments are the keys of a YAML file: `Design(tensornet=1, name="mhsa", legs={...}, ...)`.

    Raises DesignError if the form of an entry is wrong; `tensornet_attn.check` and every use also check the diagram.
    `design.legs` maps leg names to sizes, None for legs sized at run time; `declared_legs` has the entries as written.
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
        alias="legs", description="All legs, each with a size or a kind: query, key, relative, head."
    )
    inputs: dict[str, InputDeclaration] = Field(description="The positional arguments of forward, in order.")
    weights: dict[str, WeightDeclaration] = Field({}, description="Parameters; the names are keys of the state dict.")
    constants: dict[str, Constant] = Field({}, description="Tensors with known values.")
    noise: dict[str, NoiseDeclaration] = Field({}, description="Gaussian noise, fresh at each training call.")
    state: dict[str, State] = Field({}, description="Buffers that training updates.")
    diagram: dict[str, Operand] = Field(description="The steps, read from top to bottom.")
    losses: dict[str, LossDeclaration] = Field({}, description="Scalar steps that a trainer adds to its loss.")
    output: Text = Field(description="The step that forward returns.")
    contains: dict[str, Special] = Field({}, description="Designs that this one equals at some sizes and weights.")
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
        """Builds the pydantic model of a subclass."""
        with deep_recursion():
            cls.model_rebuild(force=True)

    def __eq__(self, other: object) -> bool:
        """Two designs are equal if they have the same entries in the same order, wherever they were read from."""
        return isinstance(other, Design) and repr(self.as_dict()) == repr(other.as_dict())

    __hash__ = None  # type: ignore[assignment]

    @property
    def document(self) -> Document:
        """The data that this design was read from, with locations. A design built in Python has none."""
        return self._document or Document(self.as_dict(), self.name)

    @cached_property
    def legs(self) -> dict[str, int | None]:
        """Maps leg names to sizes, None for legs sized at run time. Raises DesignError if a size cannot be resolved."""
        reporter = Reporter(self.document)
        sizes = Sizes.of(self.declared_legs, self.settings, reporter)
        if reporter.failed:
            raise DesignError(reporter.problems())
        return {leg.name: leg.size for leg in sizes.legs.values()}

    def as_dict(self) -> dict[str, Any]:
        """The design as plain data: the entries as written, without defaults."""
        return {key: plain(value) for key, value in self.model_dump(by_alias=True, exclude_unset=True).items()}

    def to_yaml(self) -> str:
        """The design as YAML text; reading the text gives an equal design."""
        return dump(_compact(self.as_dict()))


def _compact(design: dict[str, Any]) -> dict[str, Any]:
    """Shortens `Wq: {legs: f h d}` to `Wq: f h d`, and puts the sections in the order of the language."""
    for section in ("inputs", "weights", "noise"):
        for name, declaration in design.get(section, {}).items():
            if set(declaration) == {"legs"}:
                design[section][name] = declaration["legs"]
    for name, declaration in design.get("losses", {}).items():
        if set(declaration) == {"weight"}:
            design["losses"][name] = declaration["weight"]
    order = list(Design.model_fields)
    order[order.index("declared_legs")] = "legs"
    return {key: design[key] for key in order if key in design}


def json_schema() -> dict[str, Any]:
    """The JSON schema of a design file, for completion in editors. A file with `extends` needs only `name`."""
    schema = Design.model_json_schema(by_alias=True, mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    about = "The name of a shipped design, or a path. This file starts from that design."
    schema["properties"]["extends"] = {"type": "string", "description": about}
    del schema["required"]
    schema["if"] = {"required": ["extends"]}
    schema["then"] = {"required": ["name"]}
    schema["else"] = {"required": list(REQUIRED)}
    for section in SECTIONS:  # in a file with `extends`, null removes an entry
        values = schema["properties"][section]["additionalProperties"]
        schema["properties"][section]["additionalProperties"] = {"anyOf": [values, {"type": "null"}]}
    return schema
