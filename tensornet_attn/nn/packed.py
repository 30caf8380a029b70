"""Packed calls: documents one behind another in one row, each computed as a call of its own would compute it.

# x [1, 9, f], cu_seqlens [0, 4, 6, 9]     ->     documents of 4, 2 and 3 positions

Documents of one length are the batch of one call. Where padding changes nothing (`graph/padding.py`), shorter ones join
a longer one as long as that is cheaper than another call. A traced call pads all of them to `max_seqlen`, so that its
shapes do not depend on the offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.graph.padding import Padding
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.call import check_key_mask
from tensornet_attn.nn.documents import Rows, grouped, pairs_of
from tensornet_attn.nn.made import Arguments, Result
from tensornet_attn.nn.offsets import Packed, check_traced, lengths_of
from tensornet_attn.nn.packing import Packing, work_of

Tensor = torch.Tensor


def call_packed(
    module: Any, packed: Packed, inputs: tuple[Tensor, ...], key_mask: Tensor | None, losses: bool
) -> Result:
    """The output of a packed call, [1, positions, ...]; [positions, ...] where no input has a batch dimension.

    Losses, and what states store, are averaged over the documents. Raises InputError.
    """
    packing: Packing = module._packing
    if packing.pairs:
        raise InputError(
            f"{packing.design}: the output '{packing.output}' is of queries and keys, and a call with {packed.word} "
            "has such pairs of each document alone: call the documents one by one."
        )
    averaged = losses or (module.training and bool(packing.states))
    padding = packing.everything if averaged else packing.evaluation
    row = Row.of(module, inputs, key_mask, packed.word)
    if torch.compiler.is_compiling():
        return _traced(module, row, packed, padding, losses)
    queries, keys = documents(row, packed)
    if padding.alone and not averaged:  # every row by itself: what is a document does not matter
        return row.whole(_run(module, row.inputs, None, False).movedim(packing.axis, 0))  # type: ignore[union-attr]
    return _by_length(module, row, queries, keys, padding, losses)


class Row(NamedTuple):
    """The tensors of a packed call without their batch dimension, and how many positions there are along a leg."""

    packing: Packing
    inputs: tuple[Tensor | None, ...]
    key_mask: Tensor | None  # [keys]
    lengths: dict[str, int]
    batched: bool
    device: torch.device
    own_keys: bool  # whether an input of the call stands on the key leg

    @staticmethod
    def of(module: Any, inputs: tuple[Tensor, ...], key_mask: Tensor | None, word: str, behind: bool = False) -> Row:
        """The row of a call. Raises InputError."""
        packing, signature = module._packing, module._signature
        lengths = signature.check_row(inputs, behind)
        batch = signature.batch(inputs)
        if batch not in ((), (1,)):
            raise InputError(
                f"{packing.design}: the batch is {[*batch]} with {word}: give all sequences as one row, "
                f"[1, {', '.join(packing.inputs[0])}]."
            )
        both = [*zip(inputs, packing.inputs, strict=False)]
        flat = tuple([x if x is None or x.dim() == len(legs) else x.squeeze(0) for x, legs in both])
        given = [(x, legs) for x, legs in both if x is not None]
        if key_mask is not None:
            keys = lengths.get(str(packing.key), lengths.get(packing.query, 0))
            check_key_mask(signature.masks, key_mask, batch, {str(packing.key): keys})
            key_mask = key_mask.reshape(-1)
        own_keys = any(packing.key in legs for _, legs in given)
        return Row(packing, flat, key_mask, lengths, batch == (1,), given[0][0].device, own_keys)

    def taken(
        self, take: Callable[[Tensor, int, bool], Any], pairs: Callable[[Tensor, int, int], Any]
    ) -> Iterator[Any]:
        """Each input as documents: `take` is given the axis of its sequence leg and whether it is the query leg.

        `pairs` is given both axes. An input without sequence legs serves all documents as it is.
        """
        query, key = self.packing.query, self.packing.key
        for value, legs in zip(self.inputs, self.packing.inputs, strict=False):
            if value is None or not {query, key} & {*legs}:
                yield value
            elif {query, key} <= {*legs}:
                yield pairs(value, legs.index(query), legs.index(str(key)))
            else:
                yield take(value, legs.index(query if query in legs else str(key)), query in legs)

    def whole(self, value: Tensor) -> Tensor:
        """A result with its positions first, in the form of the inputs."""
        value = value.movedim(0, self.packing.axis)
        return value.unsqueeze(0) if self.batched else value

    def rows(self, value: Tensor) -> Tensor:
        """The result of documents, [documents, ...], with documents and positions as one, first dimension."""
        return value.movedim(1 + self.packing.axis, 1).flatten(0, 1)


def documents(row: Row, packed: Packed) -> tuple[list[int], list[int]]:
    """How many queries and keys each document has. Raises InputError."""
    packing, design = row.packing, row.packing.design
    length = row.lengths[packing.query]
    name, offsets = packed.offsets(design, length, row.device)
    queries = lengths_of(design, name, offsets, length)
    packed.check_positions(design, name, offsets)
    keys, own = queries, packed.key_offsets(design, row.device)
    if own is not None:
        keys = lengths_of(design, *own, row.lengths[str(packing.key)] if row.own_keys else length)
        if len(keys) != len(queries):
            raise InputError(f"{design}: '{name}' has {len(queries)} documents, 'cu_seqlens_k' has {len(keys)}.")
        if keys != queries and (packing.tied or not row.own_keys):
            raise InputError(f"{design}: queries and keys are the same positions, and '{name}' is not 'cu_seqlens_k'.")
    elif row.own_keys and (packed.cu_seqlens is None or row.lengths[str(packing.key)] != length):
        raise InputError(f"{design}: keys are an input of their own: give 'cu_seqlens_k', their offsets.")
    packed.check_longest(design, max(queries + keys))
    return queries, keys


def _run(module: Any, inputs: tuple[Tensor | None, ...], key_mask: Tensor | None, losses: bool) -> Result:
    lengths = module._signature.check(inputs, None, key_mask, None)
    found: Result = module._run(module, Arguments(inputs, lengths, None, key_mask, None, losses))  # type: ignore[arg-type]
    return found


def _by_length(module: Any, row: Row, queries: list[int], keys: list[int], padding: Padding, losses: bool) -> Result:
    """One call for the documents of each length, or of lengths that are near to each other."""
    packing = row.packing
    pads = padding.behind is None and (packing.keyed or padding.apart is None)
    work = partial(work_of, module, row.device) if pads else None
    groups = grouped([*zip(queries, keys, strict=True)], work)
    along = Rows.of(groups, queries, "queries", row.device)
    on_keys = along if keys == queries else Rows.of(groups, keys, "keys", row.device)

    def take(value: Tensor, axis: int, query: bool) -> list[Tensor]:
        return (along if query else on_keys).split(value, axis)

    shown = [None] * len(groups) if row.key_mask is None else on_keys.split(row.key_mask, 0)
    taken = row.taken(take, pairs_of(along, on_keys))
    parts = [value if isinstance(value, list) else [value] * len(groups) for value in taken]
    states = _States(module, packing.states if module.training and len(groups) > 1 else ())
    results, means = [], dict[str, Tensor]()
    for group, keep, *inputs in zip(groups, shown, *parts, strict=True):
        if group.padded and padding.key_mask and packing.keyed:
            own = group.shown(keys, row.device)
            keep = own if keep is None else keep & own
        share = len(group.documents) / len(queries)
        made = _run(module, tuple(inputs), keep, losses)
        states.add(share)
        made, found = made if isinstance(made, tuple) else (made, {})
        means = {name: means.get(name, 0) + share * value for name, value in found.items()}
        results.append(row.rows(made))
    states.store()
    y = row.whole(along.joined(results))
    return (y, means) if losses else y


def call_with_cache(
    module: Any, packed: Packed, inputs: tuple[Tensor, ...], key_mask: Tensor | None, losses: bool, cache: Cache
) -> Result:
    """The output of a packed call with a cache, whose batch are the documents. Raises InputError.

    Shorter ones are padded on the left, behind what the cache has of them, and the cache knows what is padding.
    """
    packing: Packing = module._packing
    design = packing.design
    if torch.compiler.is_compiling():
        raise InputError(
            f"{design}: a compiled call with a cache takes no {packed.word}: give [documents, positions, ...]."
        )
    if key_mask is not None:
        raise InputError(f"{design}: a call with a cache and {packed.word} takes no 'key_mask': the cache has one.")
    row = Row.of(module, inputs, None, packed.word, behind=cache.length > 0)
    queries, keys = documents(row, packed)
    along, on_keys = (_Left.of(lengths, row.device) for lengths in (queries, keys))
    memory = module._decoder(cache.droppable).decoding.memory
    padding, sides = packing.evaluation, (keys,) if memory else (queries,)
    problem = padding.between if cache.length and not memory else padding.before
    if problem is not None and any(len({*lengths}) > 1 for lengths in sides):
        raise InputError(
            f"{design}: documents of several lengths are padded in a cache, and {problem}: give documents of one length, "
            "or a cache to each."
        )

    def take(value: Tensor, axis: int, query: bool) -> Tensor:
        return (along if query else on_keys).split(value, axis)

    def pairs(value: Tensor, query: int, key: int) -> Tensor:
        raise InputError(f"{design}: a packed call with a cache takes no input of queries and keys.")

    shown = None if memory and not row.own_keys else on_keys.shown
    made = module.call_cached(cache, tuple(row.taken(take, pairs)), None, None, None, losses, shown)
    return row.whole(row.rows(made).index_select(0, along.back))


class _Left(NamedTuple):
    """Documents padded on the left to the longest: as `_Padded`; `shown` is None where they are of one length."""

    index: Tensor
    shown: Tensor | None
    back: Tensor

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device) -> _Left:
        most, size = max(lengths), torch.tensor(lengths, device=device)
        end = size.cumsum(0)
        place = torch.arange(most, device=device) - most + size[:, None]  # below 0 before a document
        own = torch.repeat_interleave(size)
        back = (
            torch.arange(len(own), device=device) + ((torch.arange(len(lengths), device=device) + 1) * most - end)[own]
        )
        return _Left((end - size)[:, None] + place.clamp(min=0), place >= 0 if min(lengths) < most else None, back)

    def split(self, value: Tensor, axis: int) -> Tensor:
        return _documents(value, axis, self.index)


def _documents(value: Tensor, axis: int, index: Tensor) -> Tensor:
    """Rows along an axis as documents: `index` [documents, positions], which row each is."""
    value = value.movedim(axis, 0).index_select(0, index.flatten())
    return value.unflatten(0, index.shape).movedim(1, 1 + axis)


class _States:
    """What a training call stores, averaged over calls of shares of its documents, which all read the old values."""

    def __init__(self, module: Any, names: Sequence[str]):
        self.held = [getattr(module, name) for name in names]
        self.old = [value.clone() for value in self.held]
        self.new = [torch.zeros_like(value) for value in self.held]

    @torch.no_grad()
    def add(self, share: float) -> None:
        for held, old, new in zip(self.held, self.old, self.new, strict=True):
            new += share * held
            held.copy_(old)

    @torch.no_grad()
    def store(self) -> None:
        for held, new in zip(self.held, self.new, strict=True):
            held.copy_(new)


def _traced(module: Any, row: Row, packed: Packed, padding: Padding, losses: bool) -> Result:
    """All documents padded to `max_seqlen`, with shapes that do not depend on where they begin. Raises InputError."""
    packing, design = row.packing, row.packing.design
    length = row.lengths[packing.query]
    name, offsets = packed.offsets(design, length, row.device)
    own, most = packed.key_offsets(design, row.device), packed.check_longest(design)
    apart = row.own_keys and own is not None
    if own is None and row.own_keys and packed.cu_seqlens is None:
        raise InputError(f"{design}: keys are an input of their own: give 'cu_seqlens_k', their offsets.")
    if most is None:
        raise InputError(f"{design}: a compiled call with '{name}' needs 'max_seqlen', an int: the longest document.")
    problem = padding.apart if apart or not packing.keyed else padding.behind
    if problem is not None:
        raise InputError(f"{design}: a compiled call pads documents to one length, and {problem}: call it uncompiled.")
    check_traced(design, name, offsets, length, most)
    packed.check_positions(design, name, offsets)
    along = _Padded.of(offsets, length, most)
    on_keys = along
    if apart:
        assert own is not None
        check_traced(design, *own, row.lengths[str(packing.key)], most)
        on_keys = _Padded.of(own[1], row.lengths[str(packing.key)], most)

    def take(value: Tensor, axis: int, query: bool) -> Tensor:
        return (along if query else on_keys).split(value, axis)

    def pairs(value: Tensor, query: int, key: int) -> Tensor:
        found = value.movedim((query, key), (0, 1))[along.index[:, :, None], on_keys.index[:, None, :]]
        return found.movedim((1, 2), (1 + query, 1 + key))

    keep = None if row.key_mask is None else on_keys.split(row.key_mask, 0)
    if padding.key_mask and packing.keyed:
        keep = on_keys.shown if keep is None else keep & on_keys.shown
    made = _run(module, tuple(row.taken(take, pairs)), keep, losses)
    made, means = made if isinstance(made, tuple) else (made, {})
    y = row.whole(row.rows(made).index_select(0, along.back))
    return (y, means) if losses else y


class _Padded(NamedTuple):
    """All documents padded to one length: `index` [documents, positions], of the packed row, and which are `shown`."""

    index: Tensor
    shown: Tensor
    back: Tensor

    @staticmethod
    def of(offsets: Tensor, rows: int, most: int) -> _Padded:
        start, size = offsets[:-1, None], offsets.diff()[:, None]
        place = torch.arange(most, device=offsets.device)
        index = (start + torch.minimum(place, size - 1)).clamp(0, rows - 1)  # an empty document has any row
        row = torch.arange(rows, device=offsets.device)
        own = torch.searchsorted(offsets, row, right=True) - 1
        return _Padded(index, place < size, own * most + row - offsets[own])

    def split(self, value: Tensor, axis: int) -> Tensor:
        return _documents(value, axis, self.index)
