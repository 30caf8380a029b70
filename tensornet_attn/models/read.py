"""From a document to a ModelSpec: form, and every design in its place. Everything wrong is reported at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from tensornet_attn import limits
from tensornet_attn.models.config import (
    CONFIGS,
    PARTS,
    STACKS,
    TOP,
    LanguageModelConfig,
    Layer,
    Part,
    Seq2SeqConfig,
    SequenceClassifierConfig,
    report_config,
    written,
)
from tensornet_attn.models.cost import ModelCost, cost
from tensornet_attn.models.fit import Fitted, Place, fit, shipped
from tensornet_attn.spec.arithmetic import evaluate, names, parse
from tensornet_attn.spec.names import identifier_problem
from tensornet_attn.spec.places import Document, Path
from tensornet_attn.spec.report import Reporter, printable
from tensornet_attn.spec.tokens import Refusal
from tensornet_attn.spec.yaml import dump
from tensornet_attn.spec.yaml import parse as parse_yaml

AnyConfig = LanguageModelConfig | SequenceClassifierConfig | Seq2SeqConfig
Block = dict[str, Fitted]  # mixer, cross, mlp: those there are, in this order


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """A checked model. `stacks`: by name (layers, or encoder and decoder) the blocks, repeated layers spelled out.

    `path`: the file it was read from, which paths of designs in `config` are relative to.
    """

    name: str
    about: str
    config: AnyConfig
    stacks: dict[str, tuple[Block, ...]]
    embedding_scale: float
    path: str | None = None

    @property
    def kind(self) -> str:
        return self.config.kind

    @property
    def legs(self) -> dict[str, int]:
        """The sizes that are the model's own."""
        return sizes_of(self.config)

    @property
    def parts(self) -> Iterator[Fitted]:
        """The designs of all places, block by block."""
        return (part for blocks in self.stacks.values() for block in blocks for part in block.values())

    @cached_property
    def loss_weights(self) -> dict[str, float]:
        """What a trainer multiplies each auxiliary loss by, by its name in the model: `layers.0.mixer.balance`."""
        return {
            f"{stack}.{place}.{role}.{name}": weight
            for stack, blocks in self.stacks.items()
            for place, block in enumerate(blocks)
            for role, part in block.items()
            for name, weight in part.design.loss_weights.items()
        }

    def cost(self, n: int | None = None, batch: int = 1, m: int | None = None, dtype: str = "float32") -> ModelCost:
        """MACs and parameters of all layers; `n` is the model's length if not given. See `ModelCost`."""
        return cost(self.name, self.config, self.stacks, n, batch, m, dtype)

    def to_yaml(self, whole: bool = False) -> str:
        """The model as YAML text that reads back to the same model.

        Shipped designs stay names, others are written out; with `whole` all are written out, with the sizes they have.
        """
        data = self.config.model_dump(exclude_unset=True, mode="python")
        for block, layer, given in self._layers(data):
            for role in [role for role in PARTS if layer.get(role) is not None]:
                layer[role] = _part(getattr(given, role), block[role], whole)
        about = {"about": self.about} if self.about else {}
        return dump({"tensornet": 1, "name": self.name, **about, "model": {"kind": data.pop("kind"), **data}})

    def as_given(self) -> dict[str, Any]:
        """What the file says under `model`: its designs as they are named there, relative paths relative to `path`."""
        data = self.config.model_dump(exclude_unset=True, mode="python")
        for _, layer, given in self._layers(data):
            for role in [role for role in PARTS if layer.get(role) is not None]:
                layer[role]["design"] = getattr(given, role).design  # a Design stays one
        return data

    def _layers(self, data: dict[str, Any]) -> Iterator[tuple[Block, dict[str, Any], Layer]]:
        """Each entry of each stack: as it was fitted, as it stands in `data`, and as it was given."""
        for stack in STACKS:
            place = 0
            for layer, given in zip(data.get(stack, ()), getattr(self.config, stack, ()), strict=True):
                yield self.stacks[stack][place], layer, given
                place += given.repeat


def sizes_of(config: AnyConfig) -> dict[str, int]:
    """The sizes that are a model's own; numbers in place of tokens have `features` and no vocabulary."""
    names = ("vocabulary", "features", "length", "width")
    return {name: getattr(config, name) for name in names if getattr(config, name, None) is not None}


def read_model(document: Document, reporter: Reporter) -> ModelSpec | None:
    """The model of a document; what is wrong goes to the reporter."""
    if "model" not in document.data and {"diagram", "extends"} & document.data.keys():
        message = "this is a design; a model is wanted here."
        reporter.error("wrong-type", message, (), hint="'ta.load' reads designs; a model has them under 'layers'.")
        return None
    _check_top(document, reporter)
    config = _config(document, reporter)
    if config is None:
        return None
    _check_input(config, reporter)
    scale = _scale(config, reporter)
    memory = getattr(config, "memory", 0)
    if memory and config.positions != "none":
        message = f"'{config.positions}' positions start anew in each segment, and the memory stands before it."
        hint = "write 'positions: none': a design with a context input counts distances itself."
        reporter.error("no-fit", message, ("model", "positions"), hint=hint)
    _check_tables(config, reporter)
    stacks = {
        stack: tuple(_blocks(document, reporter, config, stack)) for stack in STACKS if getattr(config, stack, None)
    }
    if reporter.failed:
        return None
    if memory and not any(block["mixer"].context for block in stacks["layers"]):
        message = "no mixer of this model has a context input, which the memory is for."
        hint = "such an input is 'memory: {legs: m f, default: x}'; e.g. transformer_xl or epa_xl."
        reporter.error("no-fit", message, ("model", "memory"), hint=hint)
        return None
    total = sum(part.elements for blocks in stacks.values() for block in blocks for part in block.values())
    if total > limits.TOTAL_ELEMENTS:
        message = f"the designs of this model have {total:.3g} weights."
        reporter.error("too-large", message, ("model",), key=True, hint=f"at most {limits.TOTAL_ELEMENTS:.3g}.")
        return None
    name = document.data.get("name") or config.kind
    return ModelSpec(name, document.data.get("about") or "", config, stacks, scale, document.path)


def _check_top(document: Document, reporter: Reporter) -> None:
    data = document.data
    if data.get("tensornet") != 1 or isinstance(data.get("tensornet"), bool):
        given = written(data.get("tensornet"))
        message = f"this package reads version 1 of the language, {given} given."
        reporter.error("version", message, ("tensornet",), hint="write 'tensornet: 1'.")
    for key in data:
        if key not in TOP:
            hint = reporter.nearest(key, TOP)
            reporter.error("unknown-key", f"there is no key '{printable(key)}' here.", (key,), key=True, hint=hint)
    for key in ("name", "about", "source"):
        text = data.get(key, "")
        if not isinstance(text, str) or any("\ud800" <= character <= "\udfff" for character in text):
            message = f"a text is wanted here, {written(text)} given."
            reporter.error("wrong-type", message, (key,), hint=f"e.g. '{key}: tiny'.")
        elif key == "name" and "name" in data and (problem := identifier_problem(text)):
            reporter.error("name", problem[0], ("name",), hint=problem[1])


def _config(document: Document, reporter: Reporter) -> AnyConfig | None:
    """What stands under `model`, its form checked."""
    data = document.data.get("model")
    if not isinstance(data, Mapping):
        message = f"a mapping is wanted here, {written(data)} given."
        reporter.error("wrong-type", message, ("model",), hint="e.g. 'model: {kind: language_model, ...}'.")
        return None
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in CONFIGS:
        hint = reporter.nearest(kind, CONFIGS) if isinstance(kind, str) else f"one of {', '.join(CONFIGS)}."
        what = f"{written(kind)} is no kind of model." if "kind" in data else "the key 'kind' is missing."
        reporter.error("wrong-value", what, ("model", "kind"), hint=hint)
        return None
    try:
        return CONFIGS[kind](**data)
    except ValidationError as error:
        report_config(error, reporter, kind)
        return None


def _scale(config: AnyConfig, reporter: Reporter) -> float:
    """The factor on embeddings: arithmetic over the model's own sizes."""
    values = sizes_of(config)
    try:
        tree = parse(config.embedding_scale)
        for used in names(tree):
            if used.name not in values:
                raise Refusal(
                    "unknown-name", f"there is no size '{used.name}'.", f"one of {', '.join(values)}.", used.span
                )
        return float(evaluate(tree, values))
    except Refusal as problem:
        reporter.syntax(problem, ("model", "embedding_scale"))
        return 1.0


def _check_input(config: AnyConfig, reporter: Reporter) -> None:
    """A classifier of numbers has `features`, all other models a vocabulary."""
    features = getattr(config, "features", None)
    if config.vocabulary is None and features is None:
        hint = "e.g. 'vocabulary: 256'; or 'features: 3' for numbers in place of tokens."
        reporter.error("missing-key", "the key 'vocabulary' is missing.", ("model", "vocabulary"), key=True, hint=hint)
    elif config.vocabulary is not None and features is not None:
        message = "a position has a token or numbers, not both."
        reporter.error("no-fit", message, ("model", "features"), key=True, hint="leave out 'vocabulary' or 'features'.")


def _check_tables(config: AnyConfig, reporter: Reporter) -> None:
    """Tables of tokens, positions and classes: multiplied out before anything is allocated."""
    named = ("vocabulary", "features", "target_vocabulary", "classes")
    rows = {name: getattr(config, name, None) or 0 for name in named}
    rows["length"] = config.length if config.positions == "learned" else 0
    if getattr(config, "pooling", "") == "concat":
        rows["classes"] *= config.length
    for name, count in rows.items():
        if count * config.width > limits.ELEMENTS:
            message = f"{count} rows of width {config.width} are too many numbers for one table."
            reporter.error("too-large", message, ("model", name), hint=f"at most {limits.ELEMENTS:.3g}.")


def _blocks(document: Document, reporter: Reporter, config: AnyConfig, stack: str) -> Iterator[Block]:
    layers = getattr(config, stack)
    if sum(layer.repeat for layer in layers) > limits.LAYERS:
        message = f"more than {limits.LAYERS} layers."
        reporter.error("too-large", message, ("model", stack), hint="a model needs far fewer.")
        return
    causal = stack == "decoder" or config.kind == "language_model"
    own, memory = config.length + (getattr(config, "pooling", "") == "cls"), getattr(config, "memory", 0)
    for index, layer in enumerate(layers):
        parts = {role: getattr(layer, role) for role in PARTS if getattr(layer, role, None) is not None}
        block: Block = {}
        for role, part in parts.items():
            path: Path = ("model", stack, index)
            path = (*path, role) if document.value((*path, role)) is not None else path
            rows = (own, own + (memory if role == "mixer" else 0))
            place = Place(document, reporter, path, role, part, config.width, causal and role != "cross", rows)
            if (fitted := fit(place)) is not None:
                block[role] = fitted
        if len(block) == len(parts):
            yield from [block] * layer.repeat


def _part(part: Part, fitted: Fitted, whole: bool) -> dict[str, Any]:
    """A part as data: by name where it is shipped, else the design as it was fitted."""
    if shipped(part.design) and not whole:
        return part.model_dump(exclude_unset=True)
    design = parse_yaml(fitted.design.to_yaml(), fitted.design.name)[0].data
    causal = {} if part.causal is None else {"causal": part.causal}
    return {"design": design, **causal}
