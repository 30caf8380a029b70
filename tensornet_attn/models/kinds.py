"""The kinds of model: language models, causal and masked, sequence classifiers, encoder and decoder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import nn

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.models.cache import ModelCache, caches_of
from tensornet_attn.models.model import (
    Documents,
    Losses,
    Model,
    Positions,
    WithLosses,
    check_numbers,
    check_tokens,
    gathered,
)
from tensornet_attn.models.read import ModelSpec, load, override_keys
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.nn.offsets import Packed, lengths_of, positions_in
from tensornet_attn.spec.sources import Source

Tensor = torch.Tensor


class Memory(NamedTuple):
    """What a language model carries from one segment to the next, as in Transformer-XL: never hidden, never trained.

    The last inputs of each layer with a context input, [batch, rows, width] each; detached.

    `keep` [batch, rows] says which rows are no padding; None where all are.
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
        """What a checkpoint holds of it, by name, [batch, ...] each."""
        named = {str(place): state for place, state in enumerate(self.states)}
        return named if self.keep is None else named | {"keep": self.keep}

    def with_tensors(self, named: Mapping[str, Tensor]) -> Memory:
        """The memory whose `tensors` these are."""
        return Memory(tuple(named[str(place)] for place in range(len(self.states))), named.get("keep"))


def _check_memory(memory: Memory, layers: int, batch: int, width: int) -> None:
    """Raises InputError for a memory of another model or another batch."""
    if not isinstance(memory, Memory) or len(memory.states) != layers:
        given = f"{len(memory.states)} states" if isinstance(memory, Memory) else f"a {type(memory).__name__}"
        raise InputError(f"memory is {given}; give what the call before returned, or new_memory(batch).")
    for state in memory.states:
        if state.dim() != 3 or (state.shape[0], state.shape[2]) != (batch, width) or state.shape[1] != memory.rows:
            raise InputError(
                f"memory has a state of shape {list(state.shape)}; it needs [batch {batch}, rows, width {width}]."
            )


def _seen(memory: Memory, key_mask: Tensor | None, batch: int, n: int) -> Tensor | None:
    """Which rows of memory and segment together are no padding, [batch, rows + n]; None where all are."""
    if memory.keep is None and key_mask is None:
        return None
    device = memory.states[0].device
    before = torch.ones(batch, memory.rows, dtype=torch.bool, device=device) if memory.keep is None else memory.keep
    now = torch.ones(batch, n, dtype=torch.bool, device=device) if key_mask is None else key_mask.expand(batch, n)
    return torch.cat([before, now], 1)


def _documents(cu_seqlens: Tensor | None, max_seqlen: int | None, tokens: Tensor, name: str) -> Documents | None:
    """What packed calls are given where a row holds several documents. Raises InputError."""
    if cu_seqlens is None:
        if max_seqlen is not None:
            raise InputError(f"{name}: max_seqlen is given without 'cu_seqlens', the offsets of the documents.")
        return None
    if tokens.shape[0] != 1:
        raise InputError(
            f"{name}: the batch is [{tokens.shape[0]}] with cu_seqlens: give all sequences as one row, [1, n]."
        )
    packed, rows = Packed(cu_seqlens=cu_seqlens, max_seqlen=max_seqlen), tokens.shape[1]
    word, offsets = packed.offsets(name, rows, tokens.device)
    if not torch.compiler.is_compiling():  # a traced program checks them in its layers
        packed.check_longest(name, max(lengths_of(name, word, offsets, rows)))
    return {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen}


class TokenModel(Model):
    """Logits of a token at each position: [batch, n] -> [batch, n, vocabulary]."""

    def _make(self, **new: Any) -> None:
        config = self.spec.config
        self.embedding = nn.Embedding(config.vocabulary, config.width, **new)
        self.positions = Positions(config, config.length, **new)
        self.norm = self._last_norm(**new)
        self.output = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False, **new)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary, **new)) if config.output_bias else None

    def _embedded(self, tokens: Tensor, seen: int, positions: Tensor | None, documents: Documents | None) -> Tensor:
        """The tokens with positions, which count from 0 in each document of a row."""
        if documents is not None and positions is None and self.positions.kind in ("learned", "sinusoid"):
            positions = positions_in(documents["cu_seqlens"], tokens.shape[1])[None]
        return self.positions(self.embedding(tokens) * self.scale, seen, positions)

    def _logits(self, x: Tensor, at: Tensor | None) -> Tensor:
        weight = self.embedding.weight if self.output is None else self.output.weight
        x = x if at is None else x.flatten(0, 1).index_select(0, at)
        return F.linear(self.norm(x), weight, self.output_bias)


class MaskedLanguageModel(TokenModel):
    """Logits of the token that a mask hides, from all positions: [batch, n] -> [batch, n, vocabulary].

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
        """As `LanguageModel`, without memory and cache."""
        check_tokens("tokens", tokens, key_mask)
        documents = _documents(cu_seqlens, max_seqlen, tokens, self.spec.name)
        x = self._embedded(tokens, 0, positions, documents)
        x, found = self._through("layers", x, losses, key_mask, documents=documents)
        return (self._logits(x, at), found) if losses else self._logits(x, at)


class LanguageModel(TokenModel):
    """Logits of the next token at each position: [batch, n] -> [batch, n, vocabulary].

    >>> model = LanguageModel(vocabulary=9, length=8, width=16, layers=["mhsa_rope"])
    >>> model(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 5, 9])
    """

    kind = "language_model"

    def _make(self, **new: Any) -> None:
        super()._make(**new)
        self.rows, self.carries = self.spec.config.memory, self.spec.config.memory_kind == "cache"

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
        """tokens [batch, n] integers, key_mask [batch, n] (true = a token): logits [batch, n, vocabulary].

        With `memory`, that of the call before or `new_memory(batch)`, (logits, memory). With `at` [k], places counted
        through all rows (row * n + position), logits [k, vocabulary] of these alone. With `losses`, the auxiliary
        losses by name, as `layers.0.mixer.balance`, stand last: (logits, losses), or (logits, memory, losses). With
        `cache`, the tokens stand behind those that it has seen, and key_mask [batch, seen + n] speaks of both.
        positions [batch, n] integers: where a learned or sinusoid position is not that of the row. cu_seqlens
        [documents + 1] int32: where each of several documents begins, packed into one row, [1, n], and max_seqlen the
        longest, which a compiled call needs; see docs/packed.md. Raises InputError.
        """
        seen = 0 if cache is None else cache.length
        check_tokens("tokens", tokens, key_mask, seen=seen)
        documents = _documents(cu_seqlens, max_seqlen, tokens, self.spec.name)
        if documents is not None and (memory is not None or cache is not None):
            other = "cache" if memory is None else "memory"
            raise InputError(f"a call with cu_seqlens takes no {other}: leave one of them out.")
        x = self._embedded(tokens, seen, positions, documents)
        if memory is not None:
            if cache is not None:
                raise InputError("a call has a memory of earlier segments or a cache: leave one of them out.")
            carry = self._carrying if self.carries else self._remembering
            *made, found = carry(x, key_mask, memory, at, losses)
            return (*made, found) if losses else tuple(made)
        x, found = self._through("layers", x, losses, key_mask, cache=cache, documents=documents)
        return (self._logits(x, at), found) if losses else self._logits(x, at)

    def new_cache(self, *, max_length: int | None = None) -> ModelCache:
        """An empty cache for `model(tokens, cache=cache)`; `max_length`: positions that it has room for from the start.

        Raises InputError where a design can keep none, with its place and the reason.
        """
        return caches_of(self._designs("layers"), max_length)

    def new_memory(self, batch: int) -> Memory | ModelCache:
        """The memory before the first segment. Raises InputError for a model without.

        With `memory_kind: cache` the caches of the designs that keep anything; each call changes them.
        """
        self._check_rows()
        if self.carries:
            return caches_of(self._carried, None, droppable=True)
        weight = self.embedding.weight  # it may be sharded, which a memory is not
        none = torch.zeros(batch, 0, weight.shape[1], dtype=weight.dtype, device=weight.device)
        return Memory((none,) * self._contexts)

    @cached_property
    def _carried(self) -> dict[str, CompiledDesign]:
        """The designs that keep anything of what they have seen, by their places."""
        return {place: one for place, one in self._designs("layers").items() if len(one.new_cache())}

    @property
    def _contexts(self) -> int:
        return sum(block.mixer.context for block in self.layers)

    def _check_rows(self) -> None:
        if not self.rows:
            raise InputError(f"'{self.spec.name}' has no memory; give it rows, e.g. 'memory: 128' in its description.")

    def _carrying(
        self, x: Tensor, key_mask: Tensor | None, memory: ModelCache, at: Tensor | None, losses: bool
    ) -> tuple[Tensor, ModelCache, Losses]:
        """A segment behind those that the cache has seen, which has then seen it too."""
        self._check_rows()
        if not isinstance(memory, ModelCache) or {*memory} != {*self._carried}:
            given = "a cache of other designs" if isinstance(memory, ModelCache) else f"a {type(memory).__name__}"
            raise InputError(f"memory is {given}; give what the call before returned, or new_memory(batch).")
        if key_mask is not None:
            raise InputError("a segment behind a carried cache has no padding: leave out 'key_mask'.")
        found: Losses = {}
        for place, block in enumerate(self.layers):
            at_block = f"layers.{place}"
            kept = {role: memory[f"{at_block}.{role}"] for role in block.roles if f"{at_block}.{role}" in memory}
            x = gathered(block(x, losses=losses, cache=kept), at_block, found)
        memory.keep_last(self.rows)
        return self._logits(x, at), memory, found

    def _remembering(
        self, x: Tensor, key_mask: Tensor | None, memory: Memory, at: Tensor | None, losses: bool
    ) -> tuple[Tensor, Memory, Losses]:
        self._check_rows()
        batch, n, width = x.shape
        _check_memory(memory, self._contexts, batch, width)
        keep, states, contexts = _seen(memory, key_mask, batch, n), iter(memory.states), []
        found: Losses = {}
        for place, block in enumerate(self.layers):
            context = torch.cat([next(states), x], 1) if block.mixer.context else None
            contexts += [] if context is None else [context]
            made = block(x, key_mask, losses=losses, context=context, context_mask=keep)
            x = gathered(made, f"layers.{place}", found)
        last = tuple(context[:, max(0, context.shape[1] - self.rows) :].detach() for context in contexts)
        keep = None if keep is None else keep[:, max(0, keep.shape[1] - self.rows) :]
        return self._logits(x, at), Memory(last, keep), found


class SequenceClassifier(Model):
    """Logits of the classes: [batch, n] -> [batch, classes]; of numbers [batch, n, features].

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
        cls = config.pooling == "cls"
        self.features, self.length, self.pooling = config.features, config.length, config.pooling
        if config.features is None:
            self.embedding = nn.Embedding(config.vocabulary, config.width, **new)
        else:
            self.projection = nn.Linear(config.features, config.width, **new)
        self.cls = nn.Parameter(torch.zeros(config.width, **new)) if cls else None
        self.positions = Positions(config, config.length + cls, **new)
        self.norm = self._last_norm(**new)
        rows = config.length if config.pooling == "concat" else 1
        self.output = nn.Linear(rows * config.width, config.classes, **new)

    def forward(
        self,
        tokens: Tensor,
        key_mask: Tensor | None = None,
        losses: bool = False,
        positions: Tensor | None = None,
    ) -> WithLosses:
        """tokens [batch, n] integers, or [batch, n, features] numbers, and key_mask [batch, n], true where one stands.

        positions [batch, n] as in `LanguageModel`; with `pooling: cls` its row stands before all of them.
        Logits [batch, classes]; with `losses`, (logits, auxiliary losses by name, as `layers.0.mixer.balance`). Raises
        InputError; also where `pooling: concat` is given another n than its length.
        """
        x = self._embedded(tokens, key_mask) * self.scale
        if self.cls is not None:
            x = torch.cat([self.cls.expand(x.shape[0], 1, -1), x], 1)
            key_mask = None if key_mask is None else nn.functional.pad(key_mask, (1, 0), value=True)
            positions = None if positions is None else nn.functional.pad(positions + 1, (1, 0))
        x, found = self._through("layers", self.positions(x, positions=positions), losses, key_mask)
        logits = self.output(self._pooled(self.norm(x), key_mask))
        return (logits, found) if losses else logits

    def _embedded(self, tokens: Tensor, key_mask: Tensor | None) -> Tensor:
        if self.features is None:
            check_tokens("tokens", tokens, key_mask)
            x = self.embedding(tokens)
        else:
            check_numbers("tokens", tokens, key_mask, self.features)
            x = self.projection(tokens.to(self.projection.weight.dtype))
        if self.pooling == "concat" and x.shape[1] != self.length:
            raise InputError(
                f"{x.shape[1]} positions given; 'pooling: concat' takes {self.length}, the model's length."
            )
        return x

    def _pooled(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """[batch, n, width] -> [batch, width], or [batch, n width]; a sequence of padding alone gives zeros."""
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

    Without a `target_vocabulary` source and target share vocabulary and embedding.

    >>> layer = {"mixer": "mhsa", "cross": "cross"}
    >>> model = Seq2Seq(vocabulary=9, length=8, width=16, encoder=["mhsa"], decoder=[layer])
    >>> model(torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64)).shape
    torch.Size([2, 4, 9])
    """

    kind = "seq2seq"

    def _make(self, **new: Any) -> None:
        config = self.spec.config
        own, out = config.target_vocabulary, config.target_vocabulary or config.vocabulary
        self.embedding = nn.Embedding(config.vocabulary, config.width, **new)
        self.target_embedding = None if own is None else nn.Embedding(own, config.width, **new)
        self.source_positions = Positions(config, config.length, **new)
        self.target_positions = Positions(config, config.length, **new)
        self.source_norm, self.norm = self._last_norm(**new), self._last_norm(**new)
        self.output = None if config.tied else nn.Linear(config.width, out, bias=False, **new)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        losses: bool = False,
    ) -> WithLosses:
        """source [batch, m], target [batch, n] integers; masks of these shapes (true = a token).

        With `losses`, (logits, auxiliary losses by name, as `encoder.0.mixer.balance`). Raises InputError.
        """
        if not losses:
            return self.decode(self.encode(source, source_mask), target, source_mask, target_mask)
        encoded, found = self.encode(source, source_mask, losses=True)
        logits, own = self.decode(encoded, target, source_mask, target_mask, losses=True)
        return logits, {**found, **own}

    def encode(self, source: Tensor, source_mask: Tensor | None = None, losses: bool = False) -> WithLosses:
        """What the decoder looks at: [batch, m, width]; with `losses`, (that, the encoder's losses)."""
        check_tokens("source", source, source_mask, "source_mask")
        x = self.source_positions(self.embedding(source) * self.scale)
        x, found = self._through("encoder", x, losses, source_mask)
        return (self.source_norm(x), found) if losses else self.source_norm(x)

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
        """Logits [batch, n, vocabulary] of a target after a source that `encode` has encoded; (logits, losses) too.

        With `at` [k], places counted through all rows (row * n + position), logits [k, vocabulary] of these alone.
        `cache` and `positions` as in `LanguageModel`; what the cache has seen of the source is not read again.
        """
        seen = 0 if cache is None else cache.length
        check_tokens("target", target, target_mask, "target_mask", seen)
        if target.shape[0] != encoded.shape[0]:
            raise InputError(f"'target' has batch {target.shape[0]}, 'source' has {encoded.shape[0]}.")
        table = self.embedding if self.target_embedding is None else self.target_embedding
        x = self.target_positions(table(target) * self.scale, seen, positions)
        x, found = self._through("decoder", x, losses, target_mask, encoded, source_mask, cache=cache)
        x = x if at is None else x.flatten(0, 1).index_select(0, at)
        logits = F.linear(self.norm(x), table.weight if self.output is None else self.output.weight)
        return (logits, found) if losses else logits

    def new_cache(self, *, max_length: int | None = None) -> ModelCache:
        """An empty cache for `decode(..., cache=cache)`, source included; see `LanguageModel.new_cache`."""
        return caches_of(self._designs("decoder"), max_length)


KINDS: dict[str, type[Model]] = {
    cls.kind: cls for cls in (LanguageModel, MaskedLanguageModel, SequenceClassifier, Seq2Seq)
}


class MakeOptions(TypedDict, total=False):
    """What `make` takes besides the description and overrides."""

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
    """The model of the kind that the description names, with what the overrides change; see `load`.

    Raises DesignError with everything wrong, TypeError for a keyword that no model has.
    """
    for name in overrides:
        if name not in override_keys():
            hint = nearest(name, (*MakeOptions.__annotations__, *sorted(override_keys())))
            raise TypeError(f"make() got an unexpected keyword argument '{name}'; {hint}")
    spec = load(source, **overrides)
    return KINDS[spec.kind](spec, backend=backend, device=device, dtype=dtype)
