"""Calls with a cache: the parts of a design, planned for one query position and for many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch

from tensornet_attn.cost.devices import GENERIC
from tensornet_attn.cost.target import Target
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.pairs import overwrites
from tensornet_attn.nn.cache import Cache
from tensornet_attn.nn.executable import Arguments, Executable, Result
from tensornet_attn.plan.cache import LruCache as Plans
from tensornet_attn.plan.decoding import decoding_of
from tensornet_attn.plan.make import make_plan
from tensornet_attn.plan.plan import Plan
from tensornet_attn.plan.stages import Stage, merged, single
from tensornet_attn.runtime.precision import rounded_to, wide_dtype

Tensor = torch.Tensor
_serials = count()
_plans: Plans[Plan] = Plans(most=1024)  # keyed by content: equal layers share their plans


def _stage_plan(graph: Graph, backend: str, target: Target) -> Plan:
    return _plans.get((graph.to_text(), backend, target), partial(make_plan, graph, backend, target))


class Decoder:
    """The parts of a compiled design that run with a cache. All are planned here, so that tracing plans nothing."""

    def __init__(self, graph: Graph, make: Callable[[Plan], Executable], plan: Plan, droppable: bool = False):
        self.decoding, self.serial = decoding_of(graph, droppable), next(_serials)
        self.states = tuple(cached.name for cached in self.decoding.kept if cached.leg is None)
        self._kept = tuple(cached.name for cached in self.decoding.kept)
        rows = ((cached.name, cached.legs, cached.leg) for cached in self.decoding.kept if cached.leg is not None)
        self._rows = {name: (legs.index(leg) - len(legs), len(legs)) for name, legs, leg in rows}  # axis and rank
        graph = self.decoding.graph
        self._query, self._key, self._output = graph.query, graph.key, graph.output
        self._ranks = {tensor.name: len(tensor.legs) for tensor in graph.of_role("input")}
        self._first = next(iter(self._ranks))
        self._behind_kept, self._limited = self._makes_kept(), plan.target.memory is not None
        self._wide = any(part.wide for part in self.decoding.parts)
        self._many = tuple(self._planned(stage, make, plan, "prefill") for stage in single(self.decoding))
        steps = decoding_of(plan.graph, droppable, stepwise=True) if self.states else self.decoding
        steps = steps if steps.kept == self.decoding.kept else self.decoding
        self._one = tuple(self._planned(stage, make, plan, "decoding") for stage in merged(steps, False))
        self._one_separate = self._one  # without wide parts both are equal
        if self._wide:
            separate = merged(self.decoding, True)
            self._one_separate = tuple(self._planned(stage, make, plan, "decoding") for stage in separate)
        self._most = min((leg.maximum for leg in graph.legs if leg.sequence and leg.maximum), default=None)
        self._repeats = self._can_repeat()

    def call(
        self,
        module: Any,
        cache: Cache,
        values: Mapping[str, Tensor],
        arguments: Arguments,
        uncached_call: Callable[[], Result],
    ) -> Result:
        """Returns the output of a chunk and appends its positions to the cache.

        `values`: inputs by name. `arguments`: checked, with the lengths of the chunk and of all keys. `uncached_call`:
        the call without a cache. It gives the same output if the cache is empty, reads no state, and respects a memory
        limit, that of the backward included.
        """
        memory, first = self.decoding.memory, cache.length == 0
        length, like = arguments.lengths[self._query], next(iter(values.values()))
        keys = arguments.lengths.get(str(self._key), cache.length + length)
        chunk = _Chunk(dict(values), like, length, keys, arguments.mask, arguments.key_mask)
        uncached = first and (self._limited or bool(self.states) or torch.is_grad_enabled())
        output = uncached_call() if uncached else None
        stages = self._one if self._usual(uncached, chunk) else self._one_separate
        for stage in self._many if uncached or length != 1 else stages:
            if not (stage.values[0] in self._behind_kept if uncached else first or not (memory and stage.once)):
                continue
            outputs = zip(stage.values, self._run(module, cache, stage, chunk), strict=True)
            chunk.values.update((name, self._finite(name, tensor, chunk)) for name, tensor in outputs)
        if output is None:
            output = chunk.values[self._output]
        if first or not memory:
            repeatable = self._usual(uncached, chunk) and self._repeats and len(values) == 1
            if repeatable and not torch.compiler.is_compiling():
                plain = not torch.is_autocast_enabled(like.device.type)
                inference = torch.is_inference_mode_enabled()
                cache.last = (self.serial, like.shape, like.dtype, like.device, inference) if plain else None
            batch = self._batch(chunk)
            new = {
                cached.name: _of_batch(chunk.values[cached.name], batch, len(cached.legs))
                for cached in self.decoding.kept
            }
            cache.update(new, keys if memory else length, like.dtype)
        return output

    def _can_repeat(self) -> bool:
        """Whether a step of one position reads only the chunk, cached rows and states."""
        rows = [cached for cached in self.decoding.kept if cached.leg is not None]
        origins = {operand.how for stage in self._one for operand in stage.inputs}
        complete = all(cached.reach is None for cached in rows) and not self.decoding.memory
        return complete and origins <= {"chunk", "kept", "state", "level", "seen", "empty"}

    def repeats(self, module: Any, cache: Cache, inputs: tuple[Any, ...]) -> bool:
        """Whether a call has the same form as the previous step, so that its checks can be skipped."""
        if torch.compiler.is_compiling() or cache.last is None or len(inputs) != 1 or torch.is_grad_enabled():
            return False
        x = inputs[0]
        return (
            isinstance(x, Tensor)
            and cache.last == (self.serial, x.shape, x.dtype, x.device, torch.is_inference_mode_enabled())
            and cache.shown is None
            and not cache.spoiled
            and cache.has_room
            and not module.training
            and (self._most is None or cache.length < self._most)
            and (cache.max_length is None or cache.length < cache.max_length)
            and not torch.is_autocast_enabled(x.device.type)
        )

    def repeated(self, module: Any, cache: Cache, x: Tensor) -> Tensor:
        """The output of a step for which `repeats` holds."""
        values, batch = {self._first: x}, x.shape[: x.ndim - self._ranks[self._first]]
        for stage in self._one:
            query, key = stage.legs
            lengths = {query: 1, key: 1 if stage.reach == 0 else cache.length + 1}
            inputs: list[Tensor] = []
            for operand in stage.inputs:
                if operand.how == "chunk":
                    tensor = values[operand.value_name]
                    inputs.append(tensor.squeeze(operand.lost) if operand.lost else tensor)
                elif operand.how == "kept":
                    inputs.append(cache.appended(operand.value_name, values[operand.value_name]))
                elif operand.how in ("seen", "empty"):
                    inputs.append(x.new_zeros(()).expand(*batch, lengths[key] if operand.how == "seen" else 1))
                elif operand.value_name in stage.overwrites:
                    inputs.append(cache.to_overwrite(operand.value_name))
                else:
                    inputs.append(cache.state(operand.value_name, batch, x))
            owner = module if stage.executable.source else _With(module, stage.plan, x.dtype)
            outputs: Any = stage.executable.run(owner, Arguments((*inputs,), lengths, None, None, None))
            outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
            for name, axis, tensor in zip(stage.values, stage.places, outputs, strict=True):
                values[name] = tensor.unsqueeze(axis) if axis else tensor
        cache.step(values)
        return values[self._output]

    def _usual(self, uncached: bool, chunk: _Chunk) -> bool:
        """Whether the chunk is one position in one dtype; of a design with states, without a mask and gradients."""
        separate = torch.is_grad_enabled() or torch.is_autocast_enabled(chunk.like.device.type)
        hidden = bool(self.states) and (chunk.key_mask is not None or separate)
        one_dtype = not self._wide or wide_dtype(chunk.like.dtype) == chunk.like.dtype
        return not uncached and chunk.length == 1 and not hidden and one_dtype

    def _makes_kept(self) -> frozenset[str]:
        """The values from which the cached values are computed."""
        needed = {*self._kept}
        for part in reversed(self.decoding.parts):
            if part.value_name in needed:
                needed |= {operand.value_name for operand in part.inputs if operand.how == "chunk"}
        return frozenset(needed)

    def _planned(self, stage: Stage, make: Callable[[Plan], Executable], parent: Plan, workload: str) -> _Planned:
        measured = parent.target.device.measured and workload == "decoding"  # but with many queries
        device = GENERIC if measured else parent.target.device
        target = replace(parent.target, workload=workload, device=device, n=None, m=None, memory=None)
        graph, in_torch = stage.graph, parent.backend == "cpp" and not stage.places  # else: states of one position
        plan = _stage_plan(graph, "torch" if in_torch else parent.backend, target)
        executable = make(plan)
        if not executable.compiled:
            plan = _stage_plan(graph, "torch", target)
            executable = make(plan)
        inputs = tuple(
            _Input(
                operand.how,
                operand.value_name,
                operand.axis,
                len(legs),
                operand.hides,
                graph.key in legs,
                graph.tensor[operand.name].wide,
                operand.axis if stage.places else 0,
            )
            for operand in stage.inputs
            for legs in [graph.legs_of(operand.name)]
        )
        legs, once = (graph.query, str(graph.key)), stage.values[0] in self._kept
        renewed = {*overwrites(plan.schedule).values()} if executable.source else ()
        states = frozenset(source.value_name for source in stage.inputs if source.name in renewed)
        places = stage.places or (0,) * len(stage.values)
        return _Planned(stage.values, places, inputs, stage.reach, stage.wide, states, once, legs, plan, executable)

    def _run(self, module: Any, cache: Cache, planned: _Planned, chunk: _Chunk) -> Sequence[Tensor]:
        keys, like = chunk.keys, chunk.like
        if planned.reach is not None:
            keys = min(keys, planned.reach + chunk.length)
        inputs = tuple([self._input(module, cache, planned.reach, operand, chunk, keys) for operand in planned.inputs])
        operands = zip(inputs, planned.inputs, strict=True)
        inputs = tuple([x.squeeze(operand.lost) if operand.lost else x for x, operand in operands])
        mask, key_mask = (None if mask is None else mask[..., -keys:] for mask in (chunk.mask, chunk.key_mask))
        dtype, wide = like.dtype, wide_dtype(like.dtype)
        stage_dtype = wide if planned.wide else dtype
        if wide != dtype:
            inputs = tuple(
                x.to(wide if operand.wide else stage_dtype) for x, operand in zip(inputs, planned.inputs, strict=True)
            )
        lengths = dict(zip(planned.legs, (chunk.length, keys), strict=True))
        owner = (
            module if stage_dtype == dtype and planned.executable.source else _With(module, planned.plan, stage_dtype)
        )
        outputs = planned.executable.run(owner, Arguments(inputs, lengths, mask, key_mask, None))
        values: Sequence[Any] = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        places = zip(planned.places, values, strict=True)
        values = [tensor.unsqueeze(axis) if axis else tensor for axis, tensor in places]
        if wide == dtype:
            return values
        pairs = zip(planned.values, values, strict=True)
        return [
            rounded_to(tensor, dtype) if name == self._output else tensor.to(wide if planned.wide else dtype)
            for name, tensor in pairs
        ]

    def _input(self, module: Any, cache: Cache, reach: int | None, operand: _Input, chunk: _Chunk, keys: int) -> Tensor:
        if operand.how == "kept":
            new = chunk.values.get(operand.value_name)
            new = new if new is None else _of_batch(new, self._batch(chunk), operand.rank)
            return cache.extended(operand.value_name, new, reach)
        if operand.how == "chunk":
            tensor = chunk.values[operand.value_name]
            if chunk.key_mask is None or not operand.hides:
                return tensor
            # a hidden position must not reach a state
            return torch.where(_seen(chunk.key_mask, tensor, operand.axis, operand.rank), tensor, 0)
        length, like = chunk.length, chunk.like
        if operand.how in ("state", "level"):  # a copy, which a stage may overwrite
            return cache.state(operand.value_name, self._batch(chunk), like).clone()
        if operand.how == "place":
            return torch.arange(1, length + 1, dtype=wide_dtype(like.dtype), device=like.device)
        if operand.how == "visible":
            if chunk.key_mask is None:
                return like.new_ones(*[1] * len(self._batch(chunk)), length)
            return chunk.key_mask[..., -length:].to(like.dtype)
        if operand.how in ("seen", "empty"):
            return like.new_zeros(()).expand(*self._batch(chunk), keys if operand.how == "seen" else length)
        rows: Tensor = getattr(module, operand.value_name)
        count = keys if operand.on_keys else length
        last = keys if self.decoding.memory else cache.length + length
        return rows.narrow(operand.axis, last - count, count)

    def _finite(self, name: str, tensor: Tensor, chunk: _Chunk) -> Tensor:
        """A value to cache without what is infinite or NaN at positions that the key mask hides."""
        if chunk.key_mask is None or name not in self._rows:
            return tensor
        return torch.where(_seen(chunk.key_mask, tensor, *self._rows[name]) | tensor.isfinite(), tensor, 0)

    def _batch(self, chunk: _Chunk) -> tuple[int, ...]:
        return tuple(chunk.like.shape[: chunk.like.ndim - self._ranks[next(iter(chunk.values))]])


def _of_batch(tensor: Tensor, batch: tuple[int, ...], rank: int) -> Tensor:
    """Expands the value to the full batch, for values of inputs that lack batch dimensions."""
    return tensor if tensor.shape[: tensor.ndim - rank] == batch else tensor.expand(*batch, *tensor.shape[-rank:])


def _seen(key_mask: Tensor, tensor: Tensor, axis: int, rank: int) -> Tensor:
    """The key mask at the last positions, those of a value with `rank` legs, whose sequence leg is at `axis`."""
    visible = key_mask[..., -tensor.shape[axis] :]
    shape = [*visible.shape[:-1], *[1] * rank]
    shape[axis] = visible.shape[-1]
    return visible.reshape(shape)


class _Chunk(NamedTuple):
    """The arguments of a call and the values computed so far. `keys`: positions in the cache plus the chunk."""

    values: dict[str, Tensor]
    like: Tensor
    length: int
    keys: int
    mask: Tensor | None
    key_mask: Tensor | None


class _Input(NamedTuple):
    """An input of a part, see `PartInput`. `hides`: it feeds a state, so that hidden positions are set to zero.

    `wide`: the part reads it in at least float32. `lost`: the dimension of the sequence leg that its graph lacks, or 0.
    """

    how: str
    value_name: str
    axis: int
    rank: int
    hides: bool
    on_keys: bool
    wide: bool
    lost: int


class _Planned(NamedTuple):
    """A stage with its plan, as plain data that torch.compile can read. `legs`: query leg and key leg.

    `places`: the dimension of the sequence leg that a value lacks, from the end, or 0.
    `once`: it computes cached values; those of a memory are computed by the first call only. `overwrites`: the states
    whose memory the new ones take.
    """

    values: tuple[str, ...]
    places: tuple[int, ...]
    inputs: tuple[_Input, ...]
    reach: int | None
    wide: bool
    overwrites: frozenset[str]
    once: bool
    legs: tuple[str, str]
    plan: Plan
    executable: Executable


class _With:
    """A module with another plan, and with its weights cast to a dtype."""

    def __init__(self, module: Any, plan: Plan, dtype: torch.dtype):
        self.__dict__.update(_module=module, plan=plan, _dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._module, name)
        return (
            attribute.to(self._dtype) if isinstance(attribute, Tensor) and attribute.is_floating_point() else attribute
        )
