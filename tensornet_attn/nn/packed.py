"""Packed calls: documents concatenated in one row, each computed as if by a call of its own.

# x [1, 9, f], cu_seqlens [0, 4, 6, 9]     ->     documents of 4, 2 and 3 positions

Documents of equal length form the batch of one call. If padding changes nothing (`graph/padding.py`), shorter documents
join a longer one as long as that costs less than another call. A traced call pads all documents to `max_seqlen`, so
that shapes do not depend on the offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from tensornet_attn.cost.devices import DEVICES
from tensornet_attn.cost.report import cost_of
from tensornet_attn.errors import InputError
from tensornet_attn.graph.attention import behind
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.padding import Padding, padding_of
from tensornet_attn.nn.cache import Cache, check_cache
from tensornet_attn.nn.call import check_key_mask
from tensornet_attn.nn.documents import Padded, RowIndices, Work, grouped
from tensornet_attn.nn.executable import Arguments, Result
from tensornet_attn.nn.offsets import Packed, check_traced, lengths_of
from tensornet_attn.runtime.masks import both

Tensor = torch.Tensor
CALL = 3e-4  # seconds per call, independent of its work
LENGTH = 256  # work is counted at this length and at twice this length
Side = Any  # RowIndices or Padded, of one sequence leg


def call_packed(
    module: Any, packed: Packed, inputs: tuple[Tensor, ...], key_mask: Tensor | None, losses: bool
) -> Result:
    """Returns the output of a packed call, [1, positions, ...], or [positions, ...] if no input has a batch dimension.

    Losses and stored states are averaged over the documents. Raises InputError.
    """
    packing: Packing = module._packing
    if packing.pairs:
        raise InputError(
            f"{packing.design}: the output '{packing.output}' has a query leg and a key leg, and a call with "
            f"{packed.word} "
            "pairs positions within each document only: call the documents one by one."
        )
    module._signature.check_place(module._parameters, inputs, key_mask=key_mask)
    averaged = losses or (module.training and bool(packing.states))
    padding = packing.everything if averaged else packing.evaluation
    row, traced = PackedSequences.of(module, inputs, key_mask, packed.word), torch.compiler.is_compiling()
    lengths = None if traced else documents(row, packed)
    if not traced and not row.lengths[packing.query]:
        return _empty(module, row, packed, averaged)
    if padding.alone and not averaged:  # rows do not depend on other rows, so their document does not matter
        return row.whole(_run(module, row.inputs, None, False).movedim(packing.axis, 0))  # type: ignore[union-attr]
    if lengths is None:
        return _traced(module, row, packed, padding, losses)
    return _by_length(module, row, *lengths, padding, losses)


class PackedSequences(NamedTuple):
    """The tensors of a packed call without batch dimension, and the lengths of their sequence legs."""

    packing: Packing
    inputs: tuple[Tensor | None, ...]
    key_mask: Tensor | None  # [keys]
    lengths: dict[str, int]
    batched: bool
    device: torch.device
    own_keys: bool  # whether an input has the key leg

    @staticmethod
    def of(
        module: Any, inputs: tuple[Tensor, ...], key_mask: Tensor | None, word: str, behind: bool = False
    ) -> PackedSequences:
        """Checks the inputs and removes their batch dimension. Raises InputError."""
        packing, signature = module._packing, module._signature
        if not packing.read:
            reason = f"the output '{packing.output}' depends on no input, so no document has rows of its own"
            raise InputError(f"{packing.design}: {reason}: call it without {word}.")
        lengths = signature.check_row(inputs, behind)
        batch = signature.batch(inputs)
        if batch not in ((), (1,)):
            raise InputError(
                f"{packing.design}: the batch is {[*batch]} with {word}: give all sequences as one row, "
                f"[1, {', '.join(packing.inputs[0])}]."
            )
        inputs_with_legs = [*zip(inputs, packing.inputs, strict=False)]
        flat = tuple([x if x is None or x.dim() == len(legs) else x.squeeze(0) for x, legs in inputs_with_legs])
        present = [(x, legs) for x, legs in inputs_with_legs if x is not None]
        if key_mask is not None:
            keys = lengths.get(str(packing.key), lengths.get(packing.query, 0))
            check_key_mask(signature.masks, key_mask, batch, {signature.masks.key: keys})
            key_mask = key_mask.reshape(-1)
        own_keys = not packing.tied and any(packing.key in legs for _, legs in present)
        if packing.query not in lengths:
            if not packing.tied:
                raise InputError(f"{packing.design}: no input has the leg '{packing.query}' that the documents divide.")
            lengths[packing.query] = lengths[str(packing.key)]
        return PackedSequences(packing, flat, key_mask, lengths, batch == (1,), present[0][0].device, own_keys)

    def split(self, queries: Side, keys: Side) -> Iterator[Any]:
        """Splits each input into documents. An input without a sequence leg is shared by all of them."""
        query, key = self.packing.query, str(self.packing.key)
        for tensor, legs in zip(self.inputs, self.packing.inputs, strict=False):
            if tensor is None or not {query, key} & {*legs}:
                yield tensor
            elif {query, key} <= {*legs}:
                yield queries.pairs(keys, tensor, legs.index(query), legs.index(key))
            else:
                yield queries.split(tensor, legs.index(query)) if query in legs else keys.split(tensor, legs.index(key))

    def whole(self, output: Tensor) -> Tensor:
        """A result with positions first, laid out like the inputs."""
        output = output.movedim(0, self.packing.axis)
        return output.unsqueeze(0) if self.batched else output

    def rows(self, output: Tensor) -> Tensor:
        """A result [documents, ...] with documents and positions merged into the first dimension."""
        return output.movedim(1 + self.packing.axis, 1).flatten(0, 1)


def documents(row: PackedSequences, packed: Packed) -> tuple[list[int], list[int]]:
    """Returns the number of queries and of keys of each document. Raises InputError."""
    packing, design = row.packing, row.packing.design
    length = row.lengths[packing.query]
    name, offsets = packed.offsets(design, length, row.device)
    queries = lengths_of(design, name, offsets, length)
    packed.check_positions(design, name, offsets)
    keys, key_offsets = queries, packed.key_offsets(design, row.device)
    if key_offsets is not None:
        keys = lengths_of(design, *key_offsets, row.lengths[str(packing.key)] if row.own_keys else length)
        if len(keys) != len(queries):
            raise InputError(f"{design}: '{name}' has {len(queries)} documents, 'cu_seqlens_k' has {len(keys)}.")
        if keys != queries and (packing.tied or not row.own_keys):
            raise InputError(
                f"{design}: queries and keys are the same positions, but '{name}' differs from 'cu_seqlens_k'."
            )
    elif row.own_keys and (packed.cu_seqlens is None or row.lengths[str(packing.key)] != length):
        raise InputError(f"{design}: keys are an input of their own: give their offsets, 'cu_seqlens_k'.")
    packed.check_longest(design, max(queries + keys))
    return queries, keys


def _run(module: Any, inputs: tuple[Tensor | None, ...], key_mask: Tensor | None, losses: bool) -> Result:
    lengths = module._signature.check(inputs, None, key_mask, None)
    output: Result = module._run(module, Arguments(inputs, lengths, None, key_mask, None, losses))  # type: ignore[arg-type]
    return output


def _empty(module: Any, row: PackedSequences, packed: Packed, averaged: bool) -> Result:
    """The output of a row without positions: no rows of the output of one position, so that gradients are zeros."""
    if averaged:
        raise InputError(f"{row.packing.design}: all documents are empty, so there are no losses and states.")
    padded_inputs = []
    for x in row.inputs:
        if x is not None:
            x = F.pad(x, [side for size in reversed(x.shape) for side in (0, int(size == 0))])[None]
        padded_inputs.append(x)
    output = _run(module, tuple(padded_inputs), None, False)
    return row.whole(row.rows(output)[:0])  # type: ignore[arg-type]


def _by_length(
    module: Any, row: PackedSequences, queries: list[int], keys: list[int], padding: Padding, losses: bool
) -> Result:
    """Runs one call per document length; padding can merge similar lengths."""
    packing = row.packing
    pads = padding.behind is None and (packing.keyed or padding.apart is None)
    work = partial(work_of, module, row.device) if pads else None
    groups = grouped([*zip(queries, keys, strict=True)], work)
    along = RowIndices.of(groups, queries, "queries", row.device)
    on_keys = along if keys == queries else RowIndices.of(groups, keys, "keys", row.device)
    visible_by_group = [None] * len(groups) if row.key_mask is None else on_keys.split(row.key_mask, 0)
    operands = [
        operand if isinstance(operand, list) else [operand] * len(groups) for operand in row.split(along, on_keys)
    ]
    states = _StateMeans(module, packing.states if module.training and len(groups) > 1 else ())
    outputs, means = [], dict[str, Tensor]()
    for group, visible_keys, *inputs in zip(groups, visible_by_group, *operands, strict=True):
        if group.padded and padding.key_mask and packing.keyed:
            visible_keys = both(visible_keys, group.shown(keys, row.device))
        share = len(group.documents) / sum(len(group.documents) for group in groups)
        output: Any = _run(module, tuple(inputs), visible_keys, losses)
        states.add(share)
        output, group_means = output if isinstance(output, tuple) else (output, {})
        means = {name: means.get(name, 0) + share * mean for name, mean in group_means.items()}
        outputs.append(row.rows(output))
    states.store()
    y = row.whole(along.joined(outputs))
    return (y, means) if losses else y


def call_with_cache(
    module: Any, packed: Packed, inputs: tuple[Tensor, ...], key_mask: Tensor | None, losses: bool, cache: Cache
) -> Result:
    """Returns the output of a packed call with a cache, whose batch is the documents. Raises InputError.

    Shorter documents are padded on the left, after their cached positions; the cache marks padding as hidden.
    """
    packing: Packing = module._packing
    design = packing.design
    check_cache(design, cache)
    if torch.compiler.is_compiling():
        raise InputError(
            f"{design}: a compiled call with a cache accepts no '{packed.word}': give [documents, positions, ...]."
        )
    if key_mask is not None:
        raise InputError(
            f"{design}: a call with a cache and {packed.word} accepts no 'key_mask': the cache has its own."
        )
    if any({packing.query, packing.key} <= {*legs} for legs in packing.inputs):
        raise InputError(
            f"{design}: a call with a cache and {packed.word} accepts no input with both a query and a key leg."
        )
    row = PackedSequences.of(module, inputs, None, packed.word, behind=cache.length > 0)
    queries, keys = documents(row, packed)
    memory = module._decoder(cache.droppable).decoding.memory
    problem = packing.evaluation.between if cache.length and not memory else packing.evaluation.before
    if problem is not None and len({*(keys if memory else queries)}) > 1:
        raise InputError(
            f"{design}: a cache pads documents to one length, and {problem}: give documents of equal "
            "length, or use one cache per document."
        )
    along, on_keys = (
        Padded.of(_offsets(lengths, row.device), sum(lengths), max(lengths), True) for lengths in (queries, keys)
    )
    visible = on_keys.shown if min(keys) < max(keys) and (row.own_keys or not memory) else None
    output = module._cached(cache, tuple(row.split(along, on_keys)), None, None, None, losses, visible)
    return row.whole(along.joined(row.rows(output)))


def _offsets(lengths: list[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], device=device)


class _StateMeans:
    """Averages the states that training calls store over the documents; every call reads the old values."""

    def __init__(self, module: Any, names: Sequence[str]):
        self.held = [getattr(module, name) for name in names]
        self.old = [state.clone() for state in self.held]
        self.new = [torch.zeros_like(state) for state in self.held]

    @torch.no_grad()
    def add(self, share: float) -> None:
        for state, old, new in zip(self.held, self.old, self.new, strict=True):
            new += share * state
            state.copy_(old)

    @torch.no_grad()
    def store(self) -> None:
        for state, new in zip(self.held, self.new, strict=True):
            state.copy_(new)


def _traced(module: Any, row: PackedSequences, packed: Packed, padding: Padding, losses: bool) -> Result:
    """Pads all documents to `max_seqlen`: shapes do not depend on the offsets. Raises InputError."""
    packing, design = row.packing, row.packing.design
    length = row.lengths[packing.query]
    name, offsets = packed.offsets(design, length, row.device)
    key_offsets, max_length = packed.key_offsets(design, row.device), packed.check_longest(design)
    separate_keys = row.own_keys and key_offsets is not None
    if key_offsets is None and row.own_keys and packed.cu_seqlens is None:
        raise InputError(f"{design}: keys are an input of their own: give their offsets, 'cu_seqlens_k'.")
    if max_length is None:
        raise InputError(
            f"{design}: a compiled call with '{name}' needs 'max_seqlen', the length of the longest document."
        )
    problem = padding.apart if separate_keys or not packing.keyed else padding.behind
    before = problem is not None and separate_keys and padding.before is None  # the last query is at the last key
    if problem is not None and not before:
        raise InputError(f"{design}: a compiled call pads documents to one length, and {problem}: call it uncompiled.")
    averaged = losses or (module.training and bool(packing.states))
    check_traced(design, name, offsets, length, max_length, least=int(averaged))
    packed.check_positions(design, name, offsets)
    along = on_keys = Padded.of(offsets, length, max_length, before)
    if separate_keys:
        assert key_offsets is not None
        keys = row.lengths[str(packing.key)]
        check_traced(design, *key_offsets, keys, max_length)
        on_keys = Padded.of(key_offsets[1], keys, max_length, before)
    visible_keys = None if row.key_mask is None else on_keys.split(row.key_mask, 0)
    if before or (padding.key_mask and packing.keyed):
        visible_keys = both(visible_keys, on_keys.shown)
    output: Any = _run(module, tuple(row.split(along, on_keys)), visible_keys, losses)
    output, means = output if isinstance(output, tuple) else (output, {})
    y = row.whole(along.joined(row.rows(output)))
    return (y, means) if losses else y


@dataclass(frozen=True)
class Packing:
    """A diagram as seen by packed calls, as plain data that torch.compile can read.

    `inputs`: legs of each input. `axis`: that of the query leg in the output, without batch. `pairs`: whether the
    output has both sequence legs. `read`: whether the output depends on inputs. `keyed`: whether keys are positions of
    the documents. `evaluation`: what padding changes in the output; `everything`: in losses and states too.
    """

    design: str
    query: str
    key: str | None
    inputs: tuple[tuple[str, ...], ...]
    output: str
    axis: int
    pairs: bool
    read: bool
    keyed: bool
    tied: bool
    states: tuple[str, ...]
    evaluation: Padding
    everything: Padding

    @staticmethod
    def of(graph: Graph) -> Packing:
        legs, query = graph.legs_of(graph.output), graph.query
        inputs = tuple(tensor.legs for tensor in graph.of_role("input"))
        read = any(tensor.name in behind(graph, (graph.output,)) for tensor in graph.of_role("input"))
        keyed = graph.key is None or graph.tied or any(graph.key in input_legs for input_legs in inputs)
        states = tuple(state for state, _ in graph.updates)
        evaluation, everything = padding_of(graph, (graph.output,)), padding_of(graph, graph.results)
        return Packing(
            graph.name, query, graph.key, inputs, graph.output, legs.index(query), graph.key in legs, read, keyed,
            graph.tied, states, evaluation, everything,
        )  # fmt: skip


def work_of(module: Any, device: torch.device) -> Work:
    """Returns length -> work of a sequence, in units of an empty call: a quadratic polynomial fitted to FLOPs."""
    works = module.__dict__.setdefault("_works", {})
    if device.type not in works:
        target, schedule = module.plan.target, module.plan.schedule
        rate = DEVICES["cpu"].rate if device.type == "cpu" else target.device.rate
        max_length = min((leg.maximum for leg in schedule.legs if leg.sequence and leg.maximum), default=2 * LENGTH)
        half = max(1, min(LENGTH, max_length // 2))
        half_work, full_work = (
            cost_of(module.plan.graph, schedule, n, n).best.evaluation.flops / rate / CALL for n in (half, 2 * half)
        )
        quadratic = max(0.0, full_work - 2 * half_work) / (2 * half**2)
        works[device.type] = (half_work - quadratic * half**2) / half, quadratic
    linear, quadratic = works[device.type]
    return lambda length: linear * length + quadratic * length**2
