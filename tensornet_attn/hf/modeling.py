"""Models of designs as Hugging Face models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)
from transformers.utils.output_capturing import capture_outputs

from tensornet_attn.errors import InputError
from tensornet_attn.hf.cache import TensornetCache, TensornetEncoderDecoderCache
from tensornet_attn.hf.config import KEYS, TensornetConfig, config_of
from tensornet_attn.models.base import Block, Losses, Model
from tensornet_attn.models.kinds import KINDS
from tensornet_attn.models.read import ModelSpec
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.spec.sources import Source

Tensor = torch.Tensor
UNSCORED = -100  # the label that losses ignore in transformers
PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")  # as passed by `DataCollatorWithFlattening`


class TensornetPreTrainedModel(PreTrainedModel):
    """Base class: wraps a model of `ta.models` as `model`; weights have names such as `model.layers.0.mixer.design.Wq`.

    `TensornetForCausalLM(config)` initialises the weights as the diagram specifies, or wraps a given `model`. Raises
    InputError if the diagram describes another kind of model.
    """

    config_class = TensornetConfig
    base_model_prefix = "model"
    _no_split_modules = ["Block"]
    kind: ClassVar[str]

    def __init__(self, config: TensornetConfig, model: Model | None = None):
        super().__init__(config)
        spec = config.spec
        if spec.kind != self.kind:
            raise InputError(f"the diagram describes a {spec.kind}; {type(self).__name__} requires a {self.kind}.")
        self.model = KINDS[self.kind](spec, backend=config.backend) if model is None else model
        self._fresh: dict[str, Tensor] = {}  # initial values for weights that the checkpoint lacks
        self._drawn = False
        self.post_init()
        self._drawn = True

    @classmethod
    def from_pretrained(cls, *args: Any, **options: Any) -> Any:
        """As in transformers; designs then use the plan for the device they are loaded on."""
        loaded = super().from_pretrained(*args, **options)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model._fresh = {}
        for module in model.modules():
            parameter = next(module.parameters(recurse=False), None)
            if isinstance(module, CompiledDesign) and parameter is not None:
                module.to(parameter.device)
        return loaded

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialises weights that a checkpoint lacks; those of a new model are initialised by its constructor."""
        if not self._drawn:
            return
        path = next(name for name, submodule in self.model.named_modules() if submodule is module)
        if not self._fresh:
            fresh = KINDS[self.kind](self.config.spec)
            self._fresh = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
        for name, weight in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if not getattr(weight, "_is_hf_initialized", False):
                weight.copy_(self._fresh[f"{path}.{name}" if path else name])

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of the vocabulary; in an encoder-decoder model, that of the source."""
        return self.model.embedding

    def get_output_embeddings(self) -> nn.Module | None:
        """The output layer, if it has its own weights."""
        return self.model.output

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **options: Any) -> nn.Embedding:
        """Returns the embedding. Raises InputError for another size, because the diagram determines it."""
        embedding = self.get_input_embeddings()
        if not isinstance(embedding, nn.Embedding):
            raise InputError("the diagram has 'features' instead of tokens: there is no embedding to resize.")
        if new_num_tokens not in (None, self.config.vocab_size):
            raise InputError(
                f"the diagram has {self.config.vocab_size} tokens, not {new_num_tokens}: create the model with "
                f"'vocabulary={new_num_tokens}'."
            )
        return embedding

    def _loss(self, logits: Tensor, labels: Tensor, auxiliary: Losses, options: Mapping[str, Any]) -> Tensor:
        """The mean cross-entropy of logits [..., k] and labels [...], plus the weighted losses of the designs.

        These may be a part of a batch, of which `num_items_in_batch` in `options` is the number of labels.
        """
        scores, labels = logits.flatten(0, -2), labels.to(logits.device).flatten()
        scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        scored, weights = (labels != UNSCORED).sum(), self.config.spec.loss_weights
        count = options.get("num_items_in_batch")
        total = scored if count is None else count
        loss = F.cross_entropy(scores, labels, ignore_index=UNSCORED, reduction="sum") / total
        return loss + sum(scored / total * weights[name] * auxiliary_loss for name, auxiliary_loss in auxiliary.items())

    def _asks_losses(self, labels: Tensor | None) -> bool:
        return self.training and labels is not None and bool(self.config.spec.loss_weights)


def _check_options(model: object, options: dict[str, Any], accepted: tuple[str, ...] = ()) -> None:
    """Raises InputError for unsupported arguments."""
    for name, value in options.items():
        if name not in accepted and value is not None and value is not False:
            raise InputError(f"{type(model).__name__} does not accept '{name}': leave it out.")


def _key_mask(name: str, mask: Tensor | None) -> Tensor | None:
    """The mask as bool [batch, all positions], or None if all are True. Raises InputError for another shape."""
    if mask is None:
        return None
    if mask.dim() != 2:
        raise InputError(f"'{name}' has shape {list(mask.shape)}; give [batch, positions], 1 = token.")
    mask = mask.bool()
    return None if not torch.compiler.is_compiling() and bool(mask.all()) else mask


def _check_positions(position_ids: Tensor | None, key_mask: Tensor | None) -> None:
    """Raises InputError for several sequences in one row of a batch."""
    checkable = key_mask is None and not torch.compiler.is_compiling()
    if position_ids is not None and checkable and bool((position_ids.diff(dim=-1) < 0).any()):
        raise InputError(
            "'position_ids' restart within a row of a batch, or after cached positions: give all sequences as one row."
        )


def _packed(
    tokens: Tensor, position_ids: Tensor | None, key_mask: Tensor | None, past: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """Returns `cu_seqlens` and `max_seqlen` if the call packs several documents into one row.

    Detects `cu_seq_lens_q`, or `position_ids` that restart at 0, as transformers packs them. Raises InputError.
    """
    offsets, longest = options.get("cu_seq_lens_q"), options.get("max_length_q")
    longest = int(longest) if isinstance(longest, Tensor) and not torch.compiler.is_compiling() else longest
    if offsets is None:
        asks = tokens.shape[0] == 1 < tokens.shape[1] and key_mask is None and past is None
        if position_ids is None or not asks or torch.compiler.is_compiling():
            return {}
        starts = position_ids.reshape(-1) == 0
        if not bool(starts[1:].any()):
            return {}
        starts[0], end = True, torch.tensor([tokens.shape[1]], device=starts.device)
        offsets = torch.cat((starts.nonzero()[:, 0], end)).int()
        longest = None
    if past is not None:
        raise InputError("packed sequences do not accept 'past_key_values': generate from a batch instead.")
    return {"cu_seqlens": offsets, "max_seqlen": longest}


def _last(logits_to_keep: int | Tensor, shape: torch.Size, device: torch.device) -> Tensor | None:
    """Flat indices [batch * k] of the positions whose logits are requested. Returns None for all positions."""
    if isinstance(logits_to_keep, int):
        if logits_to_keep == 0:
            return None
        logits_to_keep = torch.arange(max(0, shape[1] - logits_to_keep), shape[1], device=device)
    rows = torch.arange(shape[0], device=device)[:, None] * shape[1]
    return (rows + logits_to_keep.to(device)).flatten()


class TensornetGenerationMixin(TensornetPreTrainedModel, GenerationMixin):
    """The methods that `generate` calls."""

    def new_cache(self, *, max_length: int | None = None) -> TensornetCache | TensornetEncoderDecoderCache:
        """Returns an empty cache for `past_key_values`; `max_length`: positions allocated by the first call.

        Raises InputError if a design cannot decode with a cache.
        """
        try:
            kept = self.model.new_cache(max_length=max_length)
        except InputError as error:
            raise InputError(f"{error} Call with use_cache=False.") from error
        return TensornetEncoderDecoderCache(kept) if self.config.is_encoder_decoder else TensornetCache(kept)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **options: Any
    ) -> Any:  # None; transformers declares a bool, and returns None too
        if model_kwargs.get("past_key_values") is not None or not generation_config.use_cache:
            # transformers declares `self` as a protocol for another type checker
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **options)  # type: ignore[misc]
        elif generation_config.cache_implementation not in (None, "dynamic"):
            name = generation_config.cache_implementation
            raise InputError(
                f"cache_implementation='{name}' is for keys and values: leave it out, designs have their own cache."
            )
        else:
            model_kwargs["past_key_values"] = self.new_cache()

    def _past(self, past: Any, use_cache: bool | None, labels: Tensor | None) -> Any:
        """The cache of a call, created if requested. Raises InputError for another type."""
        if past is None:
            default = self.config.use_cache and not self.training and labels is None
            return self.new_cache() if (default if use_cache is None else use_cache) else None
        if not isinstance(past, (TensornetCache, TensornetEncoderDecoderCache)):
            raise InputError(
                f"past_key_values is a {type(past).__name__}; give the one that the model returned, or new_cache()."
            )
        return past


class TensornetForCausalLM(TensornetGenerationMixin):
    """A language model for `AutoModelForCausalLM`."""

    kind = "language_model"
    _can_record_outputs = {"hidden_states": Block}

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: TensornetCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """input_ids [batch, n], attention_mask [batch, all positions] -> logits [batch, n, vocabulary].

        labels [batch, n]: the input tokens; the loss shifts them by one. position_ids: for learned and sinusoidal
        positions. logits_to_keep: number of last positions, or their indices. Sequences packed into one row [1, n] are
        detected by `position_ids` that restart at 0, or by `cu_seq_lens_q` and `max_length_q`. Raises InputError.
        """
        _check_options(self, options, ("num_items_in_batch", "output_hidden_states", *PACKED))
        mask, shape = _key_mask("attention_mask", attention_mask), input_ids.shape
        packed = _packed(input_ids, position_ids, mask, past_key_values, options)
        past = None if packed else self._past(past_key_values, use_cache, labels)
        asks = self._asks_losses(labels)
        if not packed:
            _check_positions(position_ids, mask)
        outputs = self.model(
            input_ids,
            mask,
            at=_last(logits_to_keep, shape, input_ids.device),
            losses=asks,
            cache=None if past is None else past.kept,
            positions=position_ids,
            **packed,
        )
        logits, losses = outputs if asks else (outputs, {})
        logits = logits.unflatten(0, (shape[0], -1)) if logits.dim() == 2 else logits
        loss = None if labels is None else self._loss(logits[:, :-1], labels[:, 1:], losses, options)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)


class TensornetForMaskedLM(TensornetPreTrainedModel):
    """A masked language model for `AutoModelForMaskedLM`."""

    kind = "masked_language_model"
    _can_record_outputs = {"hidden_states": Block}

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> MaskedLMOutput:
        """input_ids, attention_mask, labels [batch, n] -> logits [batch, n, vocabulary]. Raises InputError."""
        _check_options(self, options, ("num_items_in_batch", "output_hidden_states", *PACKED))
        asks = self._asks_losses(labels)
        mask = _key_mask("attention_mask", attention_mask)
        packed = _packed(input_ids, position_ids, mask, None, options)
        if not packed:
            _check_positions(position_ids, mask)
        outputs = self.model(input_ids, mask, losses=asks, positions=position_ids, **packed)
        logits, losses = outputs if asks else (outputs, {})
        loss = None if labels is None else self._loss(logits, labels, losses, options)
        return MaskedLMOutput(loss=loss, logits=logits)


class TensornetForSequenceClassification(TensornetPreTrainedModel):
    """A sequence classifier for `AutoModelForSequenceClassification`."""

    kind = "sequence_classifier"
    _can_record_outputs = {"hidden_states": Block}

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of the vocabulary, or the projection of input features."""
        return self.model.embedding if self.model.features is None else self.model.projection

    def get_output_embeddings(self) -> None:
        """Returns None: the output has classes, not the vocabulary."""

    @capture_outputs
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **options: Any
    ) -> SequenceClassifierOutput:
        """input_ids [batch, n] or features [batch, n, features], attention_mask [batch, n] -> logits [batch, classes].

        labels as in transformers: class indices [batch], or values [batch, classes]. Raises InputError.
        """
        _check_options(self, options, ("num_items_in_batch", "output_hidden_states"))
        asks = self._asks_losses(labels)
        mask = _key_mask("attention_mask", attention_mask)
        outputs = self.model(input_ids, mask, losses=asks)
        logits, losses = outputs if asks else (outputs, {})
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
            loss = loss + sum(
                self.config.spec.loss_weights[name] * auxiliary_loss for name, auxiliary_loss in losses.items()
            )
        return SequenceClassifierOutput(loss=loss, logits=logits)


class Encoder:
    """The encoder of a model as `generate` calls it. Not a module: its weights belong to the model."""

    def __init__(self, model: Model):
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any) -> BaseModelOutput:
        """input_ids, attention_mask [batch, m] -> encoder states [batch, m, width]."""
        _check_options(self, options, ("return_dict",))
        return BaseModelOutput(self.model.encode(input_ids, _key_mask("attention_mask", attention_mask)))

    __call__ = forward


class TensornetForConditionalGeneration(TensornetGenerationMixin):
    """An encoder-decoder model for `AutoModelForSeq2SeqLM`."""

    kind = "seq2seq"

    def get_encoder(self, modality: str | None = None) -> Encoder:
        return Encoder(self.model)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shifts the labels right after the decoder's start token. Raises InputError if there is no start token."""
        config = self.config
        start = config.bos_token_id if config.decoder_start_token_id is None else config.decoder_start_token_id
        if start is None:
            raise InputError(
                "'labels' alone require 'decoder_start_token_id' in the configuration: set it, or give "
                "'decoder_input_ids'."
            )
        pad = start if config.pad_token_id is None else config.pad_token_id
        return F.pad(labels[:, :-1], (1, 0), value=start).masked_fill(F.pad(labels[:, :-1], (1, 0)) == UNSCORED, pad)

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: TensornetEncoderDecoderCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        decoder_position_ids: Tensor | None = None,
        **options: Any,
    ) -> Seq2SeqLMOutput:
        """input_ids [batch, m], decoder_input_ids [batch, n] and masks -> logits [batch, n, target_vocabulary].

        encoder_outputs: the output of the encoder, instead of input_ids. labels [batch, n]: the target tokens, from
        which decoder_input_ids are derived if they are not given. Raises InputError.
        """
        _check_options(self, options, ("num_items_in_batch",))
        past, asks = self._past(past_key_values, use_cache, labels), self._asks_losses(labels)
        if decoder_input_ids is None:
            if labels is None:
                raise InputError("a decoder requires 'decoder_input_ids', or 'labels' to derive them from.")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        source_mask = _key_mask("attention_mask", attention_mask)
        mask = _key_mask("decoder_attention_mask", decoder_attention_mask)
        _check_positions(decoder_position_ids, mask)
        encoded, losses = None if encoder_outputs is None else encoder_outputs[0], {}
        if encoded is None:
            encoded = self.model.encode(input_ids, source_mask, losses=asks)
            encoded, losses = encoded if asks else (encoded, {})
        logits = self.model.decode(
            encoded,
            decoder_input_ids,
            source_mask,
            mask,
            losses=asks,
            cache=None if past is None else past.kept,
            positions=decoder_position_ids,
        )
        if asks:
            logits, decoder_losses = logits
            losses = losses | decoder_losses
        loss = None if labels is None else self._loss(logits, labels, losses, options)
        return Seq2SeqLMOutput(loss=loss, logits=logits, past_key_values=past, encoder_last_hidden_state=encoded)


MODELS: tuple[type[TensornetPreTrainedModel], ...] = (
    TensornetForCausalLM,
    TensornetForMaskedLM,
    TensornetForSequenceClassification,
    TensornetForConditionalGeneration,
)


def make(source: Source | ModelSpec | Model, **options: Any) -> TensornetPreTrainedModel:
    """Returns the Hugging Face model of a model file or a design, or wraps a trained model of `ta.models`.

    `options`: as in `config_of`; `dtype` sets the dtype of the weights. A trained model keeps its sizes, dtype and
    backend. Raises InputError for options that would change them, and DesignError, InputError or TypeError as
    `config_of`.
    """
    trained = source if isinstance(source, Model) else None
    if trained is not None:
        for name in sorted(options.keys() & (KEYS | {"backend", "dtype"})):
            raise InputError(f"a trained model keeps its '{name}': leave it out.")
        options["backend"] = trained.backend
    config = config_of(source if trained is None else trained.spec, **options)
    (cls,) = (cls for cls in MODELS if cls.kind == config.spec.kind)
    return cls._from_config(config) if trained is None else cls(config, trained)
