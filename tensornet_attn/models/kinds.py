"""The kinds of model: causal and masked language models, sequence classifiers, and encoders with a decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import nn

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.models.base import (
    Documents,
    Losses,
    Model,
    Positions,
    TokenTable,
    WithLosses,
    check_numbers,
    check_tokens,
    gathered,
)
from tensornet_attn.models.cache import ModelCache, caches_of
from tensornet_attn.models.config import (
    LanguageModelConfig,
    Seq2SeqConfig,
    SequenceClassifierConfig,
    TokenModelConfig,
)
from tensornet_attn.models.read import ModelSpec, load, override_keys
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.nn.offsets import Packed, lengths_of, of_one_forward, positions_in
from tensornet_attn.spec.sources import Source

Tensor = torch.Tensor


class Memory(NamedTuple):
    """The memory of a language model between segments, as in Transformer-XL.

    `states`: for each layer with a context input, its last inputs [batch, rows, width], detached from the gradient.
    `keep` [batch, rows] is false for padding; None means no padding.
    """

    states: tuple[Tensor, ...]
    keep: Tensor | None = None

    @property
    def rows(self) -> int:
        return self.states[0].shape[1]

    @property
    def batch(self) -> int | None:
        return self.states[0].shape[0]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint stores, by name, [batch, ...] each."""
        named = {str(index): state for index, state in enumerate(self.states)}
        return named if self.keep is None else named | {"keep": self.keep}

    def with_tensors(self, named: Mapping[str, Tensor]) -> Memory:
        """The memory with the tensors that `tensors` returned."""
        return Memory(tuple(named[str(index)] for index in range(len(self.states))), named.get("keep"))


def _check_memory(memory: Memory, layers: int, batch: int, width: int) -> None:
    """Raises InputError for a memory of another model or another batch size."""
    if not isinstance(memory, Memory) or len(memory.states) != layers:
        received = f"{len(memory.states)} states" if isinstance(memory, Memory) else f"a {type(memory).__name__}"
        raise InputError(f"memory is {received}; give the memory that the last call returned, or new_memory(batch).")
    for state in memory.states:
        if state.dim() != 3 or (state.shape[0], state.shape[2]) != (batch, width) or state.shape[1] != memory.rows:
            raise InputError(
                f"memory has a state of shape {list(state.shape)}; give [batch {batch}, rows, width {width}]."
            )


def _seen(memory: Memory, key_mask: Tensor | None, batch: int, n: int) -> Tensor | None:
    """False for padding in memory and segment together, [batch, rows + n]; None if there is no padding."""
    if memory.keep is None and key_mask is None:
        return None
    device = memory.states[0].device
    before = torch.ones(batch, memory.rows, dtype=torch.bool, device=device) if memory.keep is None else memory.keep
    now = torch.ones(batch, n, dtype=torch.bool, device=device) if key_mask is None else key_mask.expand(batch, n)
    return torch.cat([before, now], 1)


def _documents(cu_seqlens: Tensor | None, max_seqlen: int | None, tokens: Tensor, name: str) -> Documents | None:
    """The arguments of a packed call; None if the call is not packed. Raises InputError."""
    if cu_seqlens is None:
        if max_seqlen is not None:
            raise InputError(f"{name}: max_seqlen needs 'cu_seqlens', the offsets of the documents.")
        return None
    if tokens.shape[0] != 1:
        raise InputError(
            f"{name}: the batch is [{tokens.shape[0]}] with cu_seqlens: give all sequences as one row, [1, n]."
        )
    packed, rows = Packed(cu_seqlens=cu_seqlens, max_seqlen=max_seqlen), tokens.shape[1]
    word, offsets = packed.offsets(name, rows, tokens.device)
    if not torch.compiler.is_compiling():  # a traced program checks them in its layers
        packed.check_longest(name, max(lengths_of(name, word, offsets, rows)))
    return {"cu_seqlens": of_one_forward(cu_seqlens), "max_seqlen": max_seqlen}


class TokenModel(Model):
    """Base of the language models: tokens [batch, n] -> logits [batch, n, vocabulary]."""

    def _make(self, **new: Any) -> None:
        config = self.spec.config
        assert isinstance(config, TokenModelConfig)
        self.embedding = TokenTable(config.vocabulary, config.width, **new)
        self.positions = Positions(config, config.length, **new)
        self.norm = self._last_norm(**new)
        self.output = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False, **new)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary, **new)) if config.output_bias else None

    def _embedded(
        self,
        tokens: Tensor,
        seen: int,
        positions: Tensor | None,
        documents: Documents | None,
        key_mask: Tensor | None,
    ) -> Tensor:
        """The embedded tokens with positions, which start at 0 in each document of a packed row."""
        if documents is not None and positions is None and self.positions.kind in ("learned", "sinusoid"):
            positions = positions_in(documents["cu_seqlens"], tokens.shape[1])[None]
        return self.positions(self.embedding(tokens) * self.scale, seen, positions, key_mask)

    def _logits(self, x: Tensor, at: Tensor | None) -> Tensor:
        weight = self.embedding.weight if self.output is None else self.output.weight
        x = x if at is None else x.flatten(0, 1).index_select(0, at)
        return F.linear(self.norm(x), weight, self.output_bias)


class MaskedLanguageModel(TokenModel):
    """Logits of masked tokens, from all positions: [batch, n] -> [batch, n, vocabulary].

    >>> model = MaskedLanguageModel(vocabulary=9, length=8, width=16, layers=["mhsa"])
    >>> model(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 5, 9])
    """

    kind = "masked_language_model"

    def forward(
        self,
        tokens: Tensor,
        key_mask: Tensor | None = None,
        at: Tensor | None = None,
        losses: bool = False,
        positions: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> WithLosses:
        """As `LanguageModel.forward`, without memory and cache."""
        check_tokens("tokens", tokens, key_mask)
        documents = _documents(cu_seqlens, max_seqlen, tokens, self.spec.name)
        x = self._embedded(tokens, 0, positions, documents, key_mask)
        x, auxiliary = self._through("layers", x, losses, key_mask, documents=documents)
        return (self._logits(x, at), auxiliary) if losses else self._logits(x, at)


class LanguageModel(TokenModel):
    """Logits of the next token at each position: [batch, n] -> [batch, n, vocabulary].

    >>> model = LanguageModel(vocabulary=9, length=8, width=16, layers=["mhsa_rope"])
    >>> model(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 5, 9])
    """

    kind = "language_model"

    def _make(self, **new: Any) -> None:
        super()._make(**new)
        config = self.spec.config
        assert isinstance(config, LanguageModelConfig)
        self.rows, self.carries = config.memory, config.memory_kind == "cache"

    def forward(
        self,
        tokens: Tensor,
        key_mask: Tensor | None = None,
        memory: Memory | ModelCache | None = None,
        at: Tensor | None = None,
        losses: bool = False,
        cache: ModelCache | None = None,
        positions: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Tensor | tuple[Any, ...]:
        """Returns logits [batch, n, vocabulary] of tokens [batch, n], integers; key_mask [batch, n] is true for tokens.

        With `memory`, from `new_memory(batch)` or the last call, returns (logits, memory). With `at` [k], flat indices
        row * n + position, the logits are [k, vocabulary], of these positions only. With `losses`, the auxiliary losses
        by name, such as `layers.0.mixer.balance`, are the last result: (logits, losses) or (logits, memory, losses).
        With `cache`, the tokens continue the cached tokens, and key_mask [batch, cached + n] covers both. `positions`
        [batch, n], integers, replace the learned or sinusoid positions 0 to n - 1. `cu_seqlens` [documents + 1], int32,
        has the offsets of documents packed into one row, [1, n], and `max_seqlen` the length of the longest document,
        which compiled calls need; see docs/packed.md.

        Raises InputError for arguments of a wrong shape or dtype, and for arguments that exclude each other.
        """
        seen = 0 if cache is None else cache.length
        check_tokens("tokens", tokens, key_mask, seen=seen)
        documents = _documents(cu_seqlens, max_seqlen, tokens, self.spec.name)
        if documents is not None and (memory is not None or cache is not None):
            excluded = "cache" if memory is None else "memory"
            raise InputError(f"a call with cu_seqlens takes no {excluded}: leave out one of the two.")
        x = self._embedded(tokens, seen, positions, documents, key_mask)
        if memory is not None:
            if cache is not None:
                raise InputError("a call takes a memory or a cache, not both: leave out one of the two.")
            carry: Callable[..., Any] = self._carrying if self.carries else self._remembering
            *outputs, auxiliary = carry(x, key_mask, memory, at, losses)
            return (*outputs, auxiliary) if losses else tuple(outputs)
        x, auxiliary = self._through("layers", x, losses, key_mask, cache=cache, documents=documents)
        return (self._logits(x, at), auxiliary) if losses else self._logits(x, at)

    def new_cache(self, *, max_length: int | None = None) -> ModelCache:
        """An empty cache for `model(tokens, cache=cache)`; `max_length`: number of positions to allocate at once.

        Raises InputError with sublayer and reason if a design has no decoding cache.
        """
        return caches_of(self._designs("layers"), max_length)

    def new_memory(self, batch: int) -> Memory | ModelCache:
        """The empty memory for the first segment. Raises InputError if the model has no memory.

        With `memory_kind: cache`, the memory is a `ModelCache`, which each call updates in place.
        """
        self._check_rows()
        if self.carries:
            return caches_of(self._carried, None, droppable=True)
        weight = self.embedding.weight  # may be sharded; a memory is not
        none = torch.zeros(batch, 0, weight.shape[1], dtype=weight.dtype, device=weight.device)
        return Memory((none,) * self._contexts)

    @cached_property
    def _carried(self) -> dict[str, CompiledDesign]:
        """The designs with a cache that holds anything, by sublayer."""
        return {sublayer: design for sublayer, design in self._designs("layers").items() if len(design.new_cache())}

    @property
    def _contexts(self) -> int:
        return sum(block.mixer.context for block in self.layers)

    def _check_rows(self) -> None:
        if not self.rows:
            raise InputError(f"'{self.spec.name}' has no memory; add e.g. 'memory: 128' to its description.")

    def _carrying(
        self, x: Tensor, key_mask: Tensor | None, memory: ModelCache, at: Tensor | None, losses: bool
    ) -> tuple[Tensor, ModelCache, Losses]:
        """Runs a segment after the cached segments and adds it to the cache."""
        self._check_rows()
        if not isinstance(memory, ModelCache) or {*memory} != {*self._carried}:
            received = "a cache of other designs" if isinstance(memory, ModelCache) else f"a {type(memory).__name__}"
            raise InputError(
                f"memory is {received}; give the memory that the last call returned, or new_memory(batch)."
            )
        if key_mask is not None:
            raise InputError("with 'memory_kind: cache', segments have no padding: leave out 'key_mask'.")
        auxiliary: Losses = {}
        for index, block in enumerate(self.layers):
            block_name = f"layers.{index}"
            kept = {role: memory[f"{block_name}.{role}"] for role in block.roles if f"{block_name}.{role}" in memory}
            x = gathered(block(x, losses=losses, cache=kept), block_name, auxiliary)
        memory.keep_last(self.rows)
        return self._logits(x, at), memory, auxiliary

    def _remembering(
        self, x: Tensor, key_mask: Tensor | None, memory: Memory, at: Tensor | None, losses: bool
    ) -> tuple[Tensor, Memory, Losses]:
        self._check_rows()
        batch, n, width = x.shape
        _check_memory(memory, self._contexts, batch, width)
        keep, states, contexts = of_one_forward(_seen(memory, key_mask, batch, n)), iter(memory.states), []
        key_mask = of_one_forward(key_mask)
        auxiliary: Losses = {}
        for index, block in enumerate(self.layers):
            context = torch.cat([next(states), x], 1) if block.mixer.context else None
            contexts += [] if context is None else [context]
            output = block(x, key_mask, losses=losses, context=context, context_mask=keep)
            x = gathered(output, f"layers.{index}", auxiliary)
        last = tuple(context[:, max(0, context.shape[1] - self.rows) :].detach() for context in contexts)
        keep = None if keep is None else keep[:, max(0, keep.shape[1] - self.rows) :]
        return self._logits(x, at), Memory(last, keep), auxiliary


class SequenceClassifier(Model):
    """Logits of classes, from tokens [batch, n] or numbers [batch, n, features]: -> [batch, classes].

    >>> model = SequenceClassifier(vocabulary=9, length=8, width=16, classes=3, layers=["mhsa"])
    >>> model(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 3])
    >>> series = SequenceClassifier(features=4, length=8, width=16, classes=3, layers=["mhsa"], pooling="concat")
    >>> series(torch.zeros(2, 8, 4)).shape
    torch.Size([2, 3])
    """

    kind = "sequence_classifier"

    def _make(self, **new: Any) -> None:
        config = self.spec.config
        assert isinstance(config, SequenceClassifierConfig)
        cls = config.pooling == "cls"
        self.features, self.length, self.pooling = config.features, config.length, config.pooling
        if config.vocabulary is not None:
            self.embedding = TokenTable(config.vocabulary, config.width, **new)
        if config.features is not None:
            self.projection = nn.Linear(config.features, config.width, **new)
        self.cls = nn.Parameter(torch.zeros(config.width, **new)) if cls else None
        self.positions = Positions(config, config.length + cls, **new)
        self.norm = self._last_norm(**new)
        rows = config.length if config.pooling == "concat" else 1
        self.output = nn.Linear(rows * config.width, config.classes, **new)

    def forward(
        self, tokens: Tensor, key_mask: Tensor | None = None, losses: bool = False, positions: Tensor | None = None
    ) -> WithLosses:
        """Returns logits [batch, classes] of tokens [batch, n], integers, or [batch, n, features], floats.

        key_mask [batch, n] is true for tokens; features elsewhere are not read. positions [batch, n] as in
        `LanguageModel`; the learned row of `pooling: cls` precedes them. With `losses`, returns (logits, auxiliary
        losses by name, such as `layers.0.mixer.balance`). Raises InputError for arguments of wrong shape or dtype, and
        if `pooling: concat` gets an n other than `length`.
        """
        x = self._embedded(tokens, key_mask) * self.scale
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.shape[0], 1, -1), x], 1)
            if key_mask is not None:
                key_mask = nn.functional.pad(key_mask, (1, 0), value=True)
            positions = None if positions is None else nn.functional.pad(positions + 1, (1, 0))
        x = self.positions(x, positions=positions, key_mask=key_mask)
        x, auxiliary = self._through("layers", x, losses, key_mask)
        logits = self.output(self._pooled(self.norm(x), key_mask))
        return (logits, auxiliary) if losses else logits

    def _embedded(self, tokens: Tensor, key_mask: Tensor | None) -> Tensor:
        if self.features is None:
            check_tokens("tokens", tokens, key_mask)
            x = self.embedding(tokens)
        else:
            check_numbers("tokens", tokens, key_mask, self.features)
            tokens = tokens if key_mask is None else torch.where(key_mask[..., None], tokens, 0)
            x = self.projection(tokens.to(self.projection.weight.dtype))
        if self.pooling == "concat" and x.shape[1] != self.length:
            raise InputError(
                f"the call has {x.shape[1]} positions; 'pooling: concat' takes {self.length}, the model's length."
            )
        return x

    def _pooled(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """[batch, n, width] -> [batch, width] or [batch, n * width]; a sequence of padding only gives zeros."""
        if self.cls is not None:
            return x[:, 0]
        if self.pooling == "concat":
            return (x if key_mask is None else torch.where(key_mask[..., None], x, 0)).flatten(1)
        if key_mask is None:
            return x.mean(1)
        count = key_mask.sum(1, keepdim=True).clamp(min=1)
        return torch.where(key_mask[..., None], x, 0).sum(1) / count


class Seq2Seq(Model):
    """Logits of the next token of the target: [batch, m], [batch, n] -> [batch, n, target_vocabulary].

    Without `target_vocabulary`, source and target share vocabulary and embedding.

    >>> layer = {"mixer": "mhsa", "cross": "cross"}
    >>> model = Seq2Seq(vocabulary=9, length=8, width=16, encoder=["mhsa"], decoder=[layer])
    >>> model(torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64)).shape
    torch.Size([2, 4, 9])
    """

    kind = "seq2seq"

    def _make(self, **new: Any) -> None:
        config = self.spec.config
        assert isinstance(config, Seq2SeqConfig)
        target_vocabulary, output_size = config.target_vocabulary, config.target_vocabulary or config.vocabulary
        self.embedding = TokenTable(config.vocabulary, config.width, **new)
        self.target_embedding = (
            None if target_vocabulary is None else TokenTable(target_vocabulary, config.width, **new)
        )
        self.source_positions = Positions(config, config.length, **new)
        self.target_positions = Positions(config, config.length, **new)
        self.source_norm, self.norm = self._last_norm(**new), self._last_norm(**new)
        self.output = None if config.tied else nn.Linear(config.width, output_size, bias=False, **new)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        losses: bool = False,
    ) -> WithLosses:
        """Returns logits [batch, n, target_vocabulary] of source [batch, m] and target [batch, n], integers.

        The masks have the shapes of source and target and are true for tokens. With `losses`, returns (logits,
        auxiliary losses by name, such as `encoder.0.mixer.balance`). Raises InputError for arguments of wrong shape or
        dtype.
        """
        if not losses:
            encoded: Any = self.encode(source, source_mask)
            return self.decode(encoded, target, source_mask, target_mask)
        encoded, encoder_losses = self.encode(source, source_mask, losses=True)
        logits, decoder_losses = self.decode(encoded, target, source_mask, target_mask, losses=True)
        return logits, {**encoder_losses, **decoder_losses}

    def encode(self, source: Tensor, source_mask: Tensor | None = None, losses: bool = False) -> WithLosses:
        """Returns the encoded source, [batch, m, width]; with `losses`, (encoded source, losses of the encoder)."""
        check_tokens("source", source, source_mask, "source_mask")
        x = self.source_positions(self.embedding(source) * self.scale, key_mask=source_mask)
        x, auxiliary = self._through("encoder", x, losses, source_mask)
        return (self.source_norm(x), auxiliary) if losses else self.source_norm(x)

    def decode(
        self,
        encoded: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        at: Tensor | None = None,
        losses: bool = False,
        cache: ModelCache | None = None,
        positions: Tensor | None = None,
    ) -> WithLosses:
        """Returns logits [batch, n, vocabulary] of target [batch, n], given the encoded source of `encode`.

        `at`, `cache`, `positions` and `losses` as in `LanguageModel.forward`. A filled cache includes the source, so
        later calls do not read `encoded` again. Raises InputError for arguments of wrong shape or dtype.
        """
        seen = 0 if cache is None else cache.length
        check_tokens("target", target, target_mask, "target_mask", seen)
        if target.shape[0] != encoded.shape[0]:
            raise InputError(f"'target' has batch {target.shape[0]}, 'source' has {encoded.shape[0]}; make them equal.")
        table = self.embedding if self.target_embedding is None else self.target_embedding
        x = self.target_positions(table(target) * self.scale, seen, positions, target_mask)
        x, auxiliary = self._through("decoder", x, losses, target_mask, encoded, source_mask, cache=cache)
        x = x if at is None else x.flatten(0, 1).index_select(0, at)
        logits = F.linear(self.norm(x), table.weight if self.output is None else self.output.weight)
        return (logits, auxiliary) if losses else logits

    def new_cache(self, *, max_length: int | None = None) -> ModelCache:
        """An empty cache of target and source for `decode(..., cache=cache)`; see `LanguageModel.new_cache`."""
        return caches_of(self._designs("decoder"), max_length)


KINDS: dict[str, type[Model]] = {
    cls.kind: cls for cls in (LanguageModel, MaskedLanguageModel, SequenceClassifier, Seq2Seq)
}


class MakeOptions(TypedDict, total=False):
    """The options of `make` besides description and overrides."""

    backend: str
    device: torch.device | str | None
    dtype: torch.dtype | None


def make(
    source: Source | ModelSpec,
    *,
    backend: str = "auto",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **overrides: Any,
) -> Model:
    """Builds the model that a description defines, with overrides as in `load`; see `Model` for the other options.

    Raises DesignError with all problems of the description, and TypeError for an unknown keyword.
    """
    for name in overrides:
        if name not in override_keys():
            hint = nearest(name, (*MakeOptions.__annotations__, *sorted(override_keys())))
            raise TypeError(f"make() got an unexpected keyword argument '{name}'; {hint}")
    spec = load(source, **overrides)
    return KINDS[spec.kind](spec, backend=backend, device=device, dtype=dtype)
