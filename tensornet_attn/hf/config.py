"""The configuration of a Hugging Face model: the YAML text of the model with all its designs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph import build
from tensornet_attn.models.read import ModelSpec, load, override_keys
from tensornet_attn.plan.decoding import decoding_of
from tensornet_attn.spec.sources import Source, document_of

KEYS = override_keys() | {"kind"}  # keys of the model; other keys are options of transformers
OF_LAYER = {  # options that size the layer of a model made from a design, by role
    "mixer": ("legs", "settings"),
    "mlp": ("mlp_legs", "mlp_settings"),
}


class TensornetConfig(PreTrainedConfig):
    """Configuration of a model of designs; create it with `ta.hf.config_of` from a model file or a design.

    `diagram` is the YAML text of the model. It determines all sizes, which the configuration has under the names that
    transformers uses. `backend`: as in `ta.compile`. Raises InputError, or DesignError for an invalid diagram.
    """

    model_type = "tensornet"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    diagram: str | None = None
    backend: str = "auto"
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if not isinstance(self.diagram, str):
            raise InputError(
                "a TensornetConfig requires 'diagram', the YAML text of a model: create it with ta.hf.config_of."
            )
        for name, size in _sizes(self.spec).items():
            passed = kwargs.pop(name, None)
            if passed not in (None, size):
                raise InputError(
                    f"'{name}' is {size} in the diagram, not {passed}: pass other sizes to ta.hf.config_of."
                )
            setattr(self, name, size)
        classes = getattr(self.spec.config, "classes", None)
        if classes is not None:
            labels = kwargs.get("num_labels") if self.id2label is None else len(self.id2label)
            if labels not in (None, classes):
                raise InputError(
                    f"the diagram has {classes} classes, not {labels} labels: set 'classes' in the diagram."
                )
            kwargs["num_labels"] = classes
        self.is_encoder_decoder = self.spec.kind == "seq2seq"
        self.use_cache = self.use_cache and _decodes(str(self.diagram))
        self.tie_word_embeddings = False  # tied weights are a single parameter
        super().__post_init__(**kwargs)

    @property
    def spec(self) -> ModelSpec:
        """The model described by the diagram."""
        return _read(str(self.diagram))


def config_of(source: Source | ModelSpec, *, backend: str = "auto", **options: Any) -> TensornetConfig:
    """Returns the configuration of a model, or of a model with layers of one design.

    `source`: a shipped name, a path, YAML text or a dict. `options`: overrides as in `ta.models.load`, and attributes
    of the configuration such as `eos_token_id`. A design also takes `vocabulary`, `length`, `width` and other keys of
    `model:`, `depth` (the number of layers), and `mlp`. Raises DesignError, InputError, or TypeError for an unknown
    keyword.

    >>> config = config_of("thsa", vocabulary=256, length=64, width=32, legs={"r": 8, "s": 8}, mlp="mlp", depth=2)
    >>> config.num_hidden_layers, config.vocab_size, config.spec.stacks["layers"][1]["mixer"].design.name
    (2, 256, 'thsa')
    """
    attributes = {attribute.name for attribute in fields(TensornetConfig)} | {"num_labels"}
    for name in options:
        if name not in attributes | KEYS:
            raise TypeError(
                f"config_of() got an unexpected keyword argument '{name}'; {nearest(name, attributes | KEYS)}"
            )
    changes = {name: options.pop(name) for name in (*options,) if name in KEYS}
    if isinstance(source, ModelSpec) or not (content := document_of(source, "model")[0].data) or "model" in content:
        if "kind" in changes:
            raise InputError("a model file defines its kind: leave out 'kind'.")
        spec = load(source, **changes)
    else:
        spec = load(_around(source, changes))
        spec = replace(spec, name=spec.stacks["layers"][0]["mixer"].design.name)
    return TensornetConfig(diagram=spec.to_yaml(whole=True), backend=backend, **options)


@lru_cache(maxsize=16)
def _decodes(diagram: str) -> bool:
    """Whether all designs that `generate` runs can decode with a cache."""
    spec = _read(diagram)
    stack = spec.stacks["decoder" if spec.kind == "seq2seq" else "layers"]
    try:
        for layer in {id(layer): layer for block in stack for layer in block.values()}.values():
            decoding_of(build(layer.design, causal=layer.causal))
    except InputError:
        return False
    return True


def _around(design: Source, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The model file for a design: layers of the design and, if given, of an MLP."""
    config = {"kind": "language_model", **changes}
    if config["kind"] == "seq2seq":
        raise InputError("an encoder-decoder model requires a model file: a design alone gives one stack of layers.")
    designs = {"mixer": design, "mlp": config.pop("mlp", None)}
    layer: dict[str, Any] = {"repeat": config.pop("depth", 1)}
    for role, names in OF_LAYER.items():
        sizes = {key: config.pop(name, {}) for key, name in zip(("legs", "settings"), names, strict=True)}
        if designs[role] not in (None, "none"):
            layer[role] = {"design": designs[role], **sizes}
    return {"tensornet": 1, "model": {**config, "layers": [layer]}}


@lru_cache(maxsize=16)
def _read(diagram: str) -> ModelSpec:
    return load(diagram + "\n")  # the newline marks it as text, not as a file name


def _sizes(spec: ModelSpec) -> dict[str, int]:
    """The sizes of a model, by their names in transformers."""
    config, stacks = spec.config, spec.stacks
    layers = stacks["decoder" if "decoder" in stacks else "layers"]
    vocabulary = getattr(config, "target_vocabulary", None) or config.vocabulary
    return {
        **({} if vocabulary is None else {"vocab_size": vocabulary}),
        "hidden_size": config.width,
        "num_hidden_layers": len(layers),
        "max_position_embeddings": config.length,
    }
