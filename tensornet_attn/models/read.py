"""Reads a model file: checks the form and every design in its place, and applies overrides."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from tensornet_attn import limits
from tensornet_attn.errors import DesignError, InputError, Problem, nearest
from tensornet_attn.ir.arithmetic import evaluate, names, parse
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.models.config import CONFIGS, PARTS, STACKS, TOP, AnyConfig, Layer, Part, report_config
from tensornet_attn.models.cost import ModelCost, cost
from tensornet_attn.models.fit import DesignPlace, Fitted, check_carried, fit, is_path, shipped
from tensornet_attn.spec import library
from tensornet_attn.spec import load as load_design
from tensornet_attn.spec.names import identifier_problem
from tensornet_attn.spec.places import Document, Path
from tensornet_attn.spec.report import Reporter, written
from tensornet_attn.spec.sources import Source, document_of
from tensornet_attn.spec.yaml import dump
from tensornet_attn.spec.yaml import parse as parse_yaml

Block = dict[str, Fitted]  # by role: mixer, cross, mlp, in this order
REPLACING = {  # by role: the overrides of its design, legs and settings
    "mixer": ("design", "legs", "settings"),
    "mlp": ("mlp", "mlp_legs", "mlp_settings"),
}
MAPPINGS = tuple(name for _, *names in REPLACING.values() for name in names)
OF_LAYERS = (*REPLACING["mixer"], *REPLACING["mlp"], "depth")


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """A checked model description.

    `stacks`: the blocks by stack name (layers, or encoder and decoder), with repeated layers expanded. `path`: the file
    of the model; paths of designs in `config` are relative to it.
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
        """The sizes of the model: those of vocabulary, features, length and width that it has."""
        return sizes_of(self.config)

    @cached_property
    def loss_weights(self) -> dict[str, float]:
        """The weights of the auxiliary losses, by name in the model, such as `layers.0.mixer.balance`."""
        return {
            f"{stack}.{index}.{role}.{name}": weight
            for stack, blocks in self.stacks.items()
            for index, block in enumerate(blocks)
            for role, fitted in block.items()
            for name, weight in fitted.design.loss_weights.items()
        }

    def cost(self, n: int | None = None, batch: int = 1, m: int | None = None, dtype: str = "float32") -> ModelCost:
        """MACs and parameters of one forward pass at n positions (default: the model's length); see `ModelCost`."""
        return cost(self.name, self.config, self.stacks, n, batch, m, dtype)

    def to_yaml(self, whole: bool = False) -> str:
        """The model as YAML text, which `load` reads back to the same model.

        Shipped designs stay names, and other designs are written out; with `whole`, all designs are written out with
        their sizes.
        """
        content = self.config.model_dump(exclude_unset=True, mode="python")
        for block, layer, layer_config in self._layers(content):
            for role in [role for role in PARTS if layer.get(role) is not None]:
                layer[role] = _part(getattr(layer_config, role), block[role], whole)
        about = {"about": self.about} if self.about else {}
        return dump({"tensornet": 1, "name": self.name, **about, "model": {"kind": content.pop("kind"), **content}})

    def as_given(self) -> dict[str, Any]:
        """The content of `model:` as given, with designs unresolved; relative paths are relative to `path`."""
        content = self.config.model_dump(exclude_unset=True, mode="python")
        for _, layer, layer_config in self._layers(content):
            for role in [role for role in PARTS if layer.get(role) is not None]:
                layer[role]["design"] = getattr(layer_config, role).design  # model_dump would convert a Design
        return content

    def _layers(self, content: dict[str, Any]) -> Iterator[tuple[Block, dict[str, Any], Layer]]:
        """For each entry of each stack: its fitted block, its entry in `content`, and its layer in the config."""
        for stack in STACKS:
            index = 0
            for layer, layer_config in zip(content.get(stack, ()), getattr(self.config, stack, ()), strict=True):
                yield self.stacks[stack][index], layer, layer_config
                index += layer_config.repeat


def sizes_of(config: AnyConfig) -> dict[str, int]:
    """The sizes of a model by name; a model of features has no vocabulary."""
    names = ("vocabulary", "features", "length", "width")
    return {name: getattr(config, name) for name in names if getattr(config, name, None) is not None}


def read_model(document: Document, reporter: Reporter) -> ModelSpec | None:
    """The model of a document; None if it has errors. Problems go to the reporter."""
    if "model" not in document.data and {"diagram", "extends"} & document.data.keys():
        message = "this is a design, not a model."
        reporter.error("wrong-type", message, (), hint="use 'ta.load' for designs; a model has them under 'layers'.")
        return None
    _check_top(document, reporter)
    config = _config(document, reporter)
    if config is None:
        return None
    _check_input(config, reporter)
    scale = _scale(config, reporter)
    memory = getattr(config, "memory", 0)
    if memory and config.positions != "none":
        message = f"'{config.positions}' positions restart in each segment, so they do not fit a memory."
        hint = "write 'positions: none', and use a design that encodes relative positions."
        reporter.error("no-fit", message, ("model", "positions"), hint=hint)
    _check_tables(config, reporter)
    stacks = {
        stack: tuple(_blocks(document, reporter, config, stack)) for stack in STACKS if getattr(config, stack, None)
    }
    if reporter.failed:
        return None
    by_cache = getattr(config, "memory_kind", "inputs") == "cache"
    if by_cache and not memory:
        message = "'memory_kind: cache' needs a memory, and 'memory' is 0."
        hint = "e.g. 'memory: 128', which keeps the last 128 positions."
        reporter.error("no-fit", message, ("model", "memory_kind"), hint=hint)
        return None
    if memory and not by_cache and not any(block["mixer"].context for block in stacks["layers"]):
        message = "'memory' needs a mixer with a context input, and this model has none."
        hint = "e.g. transformer_xl or epa_xl; a context input is 'memory: {legs: m f, default: x}'."
        reporter.error("no-fit", message, ("model", "memory"), hint=hint)
        return None
    total = sum(fitted.elements for blocks in stacks.values() for block in blocks for fitted in block.values())
    if total > limits.TOTAL_ELEMENTS:
        message = f"the designs of this model have {total:.3g} weights."
        reporter.error("too-large", message, ("model",), key=True, hint=f"use at most {limits.TOTAL_ELEMENTS:.3g}.")
        return None
    name = document.data.get("name") or config.kind
    return ModelSpec(name, document.data.get("about") or "", config, stacks, scale, document.path)


def _check_top(document: Document, reporter: Reporter) -> None:
    content = document.data
    if content.get("tensornet") != 1 or isinstance(content.get("tensornet"), bool):
        version = written(content.get("tensornet"))
        message = f"expected version 1 of the language, got {version}."
        reporter.error("version", message, ("tensornet",), hint="write 'tensornet: 1'.")
    for key in [key for key in content if key not in TOP]:
        reporter.unknown_key((key,), TOP)
    for key in ("name", "about", "source"):
        text = content.get(key, "")
        if not isinstance(text, str) or any("\ud800" <= character <= "\udfff" for character in text):
            message = f"expected text, got {written(text)}."
            reporter.error("wrong-type", message, (key,), hint=f"e.g. '{key}: tiny'.")
        elif key == "name" and "name" in content and (problem := identifier_problem(text)):
            reporter.error("name", problem[0], ("name",), hint=problem[1])


def _config(document: Document, reporter: Reporter) -> AnyConfig | None:
    """The content of `model:` with its form checked; None if it has errors."""
    content = document.data.get("model")
    if not isinstance(content, Mapping):
        message = f"expected a mapping, got {written(content)}."
        reporter.error("wrong-type", message, ("model",), hint="e.g. 'model: {kind: language_model, ...}'.")
        return None
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in CONFIGS:
        hint = reporter.nearest(kind, CONFIGS) if isinstance(kind, str) else f"use one of {', '.join(CONFIGS)}."
        what = f"{written(kind)} is not a kind of model." if "kind" in content else "the key 'kind' is missing."
        reporter.error("wrong-value", what, ("model", "kind"), hint=hint)
        return None
    try:
        return CONFIGS[kind](**content)
    except ValidationError as error:
        report_config(error, reporter, kind)
        return None


def _scale(config: AnyConfig, reporter: Reporter) -> float:
    """The factor on embeddings: arithmetic over the sizes of the model."""
    values = sizes_of(config)
    try:
        tree = parse(config.embedding_scale)
        for size_name in names(tree):
            if size_name.name not in values:
                raise Refusal(
                    "unknown-name",
                    f"there is no size '{size_name.name}'.",
                    f"use one of {', '.join(values)}.",
                    size_name.span,
                )
        return float(evaluate(tree, values))
    except Refusal as problem:
        reporter.syntax(problem, ("model", "embedding_scale"))
        return 1.0


def _check_input(config: AnyConfig, reporter: Reporter) -> None:
    """Checks that the model has either a vocabulary or, for classifiers of numbers, `features`."""
    features = getattr(config, "features", None)
    if config.vocabulary is None and features is None:
        hint = "e.g. 'vocabulary: 256'; or 'features: 3' for numbers instead of tokens."
        reporter.error("missing-key", "the key 'vocabulary' is missing.", ("model", "vocabulary"), key=True, hint=hint)
    elif config.vocabulary is not None and features is not None:
        message = "a model has 'vocabulary' or 'features', not both."
        reporter.error("no-fit", message, ("model", "features"), key=True, hint="leave out 'vocabulary' or 'features'.")


def _check_tables(config: AnyConfig, reporter: Reporter) -> None:
    """Limits the sizes of the tables of tokens, positions and classes before anything is allocated."""
    named = ("vocabulary", "features", "target_vocabulary", "classes")
    rows = {name: getattr(config, name, None) or 0 for name in named}
    rows["length"] = config.length if config.positions == "learned" else 0
    if getattr(config, "pooling", "") == "concat":
        rows["classes"] *= config.length
    for name, count in rows.items():
        if count * config.width > limits.ELEMENTS:
            message = f"a table of {count} rows of width {config.width} is too large."
            reporter.error("too-large", message, ("model", name), hint=f"use at most {limits.ELEMENTS:.3g} elements.")


def _blocks(document: Document, reporter: Reporter, config: AnyConfig, stack: str) -> Iterator[Block]:
    layers = getattr(config, stack)
    if sum(layer.repeat for layer in layers) > limits.LAYERS:
        message = f"'{stack}' has more than {limits.LAYERS} layers."
        reporter.error("too-large", message, ("model", stack), hint=f"use at most {limits.LAYERS}.")
        return
    causal = stack == "decoder" or config.kind == "language_model"
    positions, memory = config.length + (getattr(config, "pooling", "") == "cls"), getattr(config, "memory", 0)
    for index, layer in enumerate(layers):
        parts = {role: getattr(layer, role) for role in PARTS if getattr(layer, role, None) is not None}
        block: Block = {}
        for role, part in parts.items():
            path: Path = ("model", stack, index)
            path = (*path, role) if document.value((*path, role)) is not None else path
            rows = (positions, positions + (memory if role == "mixer" else 0))
            place = DesignPlace(document, reporter, path, role, part, config.width, causal and role != "cross", rows)
            if (fitted := fit(place)) is not None and getattr(config, "memory_kind", "") == "cache":
                check_carried(place, fitted)
            if fitted is not None:
                block[role] = fitted
        if len(block) == len(parts):
            yield from [block] * layer.repeat


def _part(part: Part, fitted: Fitted, whole: bool) -> dict[str, Any]:
    """A part as data: a shipped design by name, another design (or with `whole`, any) written out with its sizes."""
    if shipped(part.design) and not whole:
        return part.model_dump(exclude_unset=True)
    design = parse_yaml(fitted.design.to_yaml(), fitted.design.name)[0].data
    causal = {} if part.causal is None else {"causal": part.causal}
    return {"design": design, **causal}


def list_models(pattern: str = "*") -> list[str]:
    """The names of the shipped models that match a glob pattern.

    >>> list_models("rope_*")
    ['rope_244m', 'rope_45m']
    """
    return library.names(pattern, "model")


def load(source: Source | ModelSpec, **overrides: Any) -> ModelSpec:
    """Reads and checks a model from a shipped name, a path, YAML text or a dict, and applies overrides.

    The overrides are `design`, `legs` and `settings` of the mixers, `mlp`, `mlp_legs` and `mlp_settings` of the MLPs,
    `depth` (the number of repeats of the layers), and the keys of `model:`; see `override`. Raises DesignError with all
    problems, and InputError for an unknown override.

    >>> load("wikitext_small").stacks["layers"][0]["mixer"].design.legs["d"]
    16
    >>> load("wikitext_small", design="mgk", legs={"h": 4}, depth=2, vocabulary=9).cost(n=8).parameters
    1137040
    """
    if isinstance(source, ModelSpec):
        return override(source, overrides)
    spec, problems = _read(source)
    wrong = [problem for problem in problems if problem.severity == "error"]
    if spec is None or wrong:
        raise DesignError(wrong, "model")
    return override(spec, overrides)


def check(source: Source) -> list[Problem]:
    """All problems of a model, warnings included; the list is empty if the model is valid."""
    return _read(source)[1]


def _read(source: Source) -> tuple[ModelSpec | None, list[Problem]]:
    document, reporter = document_of(source, "model")
    spec = read_model(document, reporter) if document.data else None
    return spec, reporter.problems()


def override(spec: ModelSpec, changes: Mapping[str, Any]) -> ModelSpec:
    """The model with some keys, and the mixers and MLPs of all layers, changed.

    `design` replaces every mixer. It inherits the model's sizes for legs that it also has, and no settings. `mlp`
    replaces every MLP with its own sizes; None or 'none' removes it. `legs`, `settings`, `mlp_legs` and `mlp_settings`
    replace single sizes and settings. With `design`, the model is named after design and model. Raises InputError for
    an unknown key, and DesignError if the result has problems.
    """
    if not changes:
        return spec
    _check_changes(spec, changes)
    content = spec.as_given() | {key: value for key, value in changes.items() if key not in OF_LAYERS}
    layers = [layer for stack in STACKS for layer in content.get(stack, ())]
    for layer in layers:
        _change_layer(layer, changes)
    for name in REPLACING["mlp"][1:]:
        if changes.get(name) and not any("mlp" in layer for layer in layers):
            raise InputError(f"'{name}' needs an MLP, and '{spec.name}' has none: leave it out, or add e.g. mlp='mlp'.")
    document = Document({"tensornet": 1, "name": spec.name, "model": content}, spec.name, path=spec.path)
    reporter = Reporter(document)
    new = read_model(document, reporter)
    if new is None or reporter.failed:
        raise DesignError([problem for problem in reporter.problems() if problem.severity == "error"], "model")
    (stack, *_) = new.stacks.values()
    name = f"{stack[0]['mixer'].design.name}_{new.name}"
    return replace(new, name=name) if "design" in changes and not identifier_problem(name) else new


def override_keys() -> frozenset[str]:
    """All overrides that any kind of model accepts."""
    config_keys = {key for config in CONFIGS.values() for key in config.model_fields}
    return frozenset({*OF_LAYERS, *config_keys} - {"kind", *STACKS})


def _check_changes(spec: ModelSpec, changes: Mapping[str, Any]) -> None:
    """Raises InputError for an unknown key, and for changes of layers with a wrong form."""
    keys = (*OF_LAYERS, *(key for key in CONFIGS[spec.kind].model_fields if key not in ("kind", *STACKS)))
    for key, change in changes.items():
        if key not in keys:
            raise InputError(f"a {spec.kind} has no '{key}' to override: {nearest(key, keys)}")
        if key in MAPPINGS and not isinstance(change, Mapping):
            raise InputError(
                f"'{key}' must be a mapping of names to numbers, e.g. {{'h': 4}}, not {type(change).__name__}."
            )
    for stack in STACKS if "depth" in changes else ():
        count = len(getattr(spec.config, stack, ()))
        if count > 1:
            raise InputError(f"'depth' needs a '{stack}' of one entry; '{spec.name}' has {count}: leave out 'depth'.")


def _change_layer(layer: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Changes one entry of a stack."""
    if "depth" in changes:
        layer["repeat"] = changes["depth"]
    for role, (design, legs, settings) in REPLACING.items():
        if design in changes:
            layer[role] = _with_design(role, layer.get(role) or {}, changes[design])
        if layer.get(role) is None:
            layer.pop(role, None)  # an MLP that is absent or removed
            continue
        for key, name in (("legs", legs), ("settings", settings)):
            if name in changes:
                layer[role][key] = layer[role].get(key, {}) | dict(changes[name])


def _with_design(role: str, part: Mapping[str, Any], design: Any) -> dict[str, Any] | None:
    """A part with another design; None for a removed MLP."""
    # A path in an override is relative to the working directory, not to the model's file.
    path = os.fspath(design) if isinstance(design, os.PathLike) else design
    path = os.path.abspath(path) if isinstance(path, str) and "\n" not in path and is_path(path) else path
    if role == "mlp":
        return None if design is None or design == "none" else {"design": path}
    declared_legs = load_design(design).legs
    legs = {leg: size for leg, size in part.get("legs", {}).items() if leg in declared_legs}
    causal = {"causal": part["causal"]} if "causal" in part else {}
    return {"design": path, "legs": legs, **causal}
