"""Checks the arguments of a call; errors name the input, the leg and both sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any
from warnings import warn

import torch

from tensornet_attn.cost.kernels import unfolded
from tensornet_attn.emit.masks import takes_key_mask
from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph.diagram import operation_of, size_of
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.recurrence import Recurrence, sums, unmasked
from tensornet_attn.ir.arithmetic import Arith, evaluate, names
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.keywords import caller
from tensornet_attn.nn.offsets import Packed
from tensornet_attn.ops import OPS
from tensornet_attn.rewrite.change import seen
from tensornet_attn.runtime.operations import is_plain

Tensor = torch.Tensor
WHOLE = (torch.int64, torch.int32, torch.int16)
Noise = Mapping[str, Tensor] | None
Shape = tuple[tuple[str, int | None], ...]  # (leg, size); size None: known at run time


@dataclass(frozen=True)
class Masks:
    """Where masks act. `places`: (step, kind, other legs with sizes) of each box that `mask` acts on."""

    design: str
    query: str
    key: str
    places: tuple[tuple[str, str, Shape], ...]
    keys: bool  # whether `key_mask` acts on a box or a product
    recurrence: str | None  # a recurrence over keys, which accepts no mask
    apart: tuple[str, ...] = ()  # boxes whose maps are planned with fewer legs, as those with a split leg
    maps: tuple[str, ...] = ()  # sums planned as attention: no float mask can be added

    def refuse(self, sentence: str) -> InputError:
        return InputError(f"{self.design}: {sentence}")


@dataclass(frozen=True)
class Signature:
    """The call signature of a design, as plain tuples: cheap to check and readable by torch.compile."""

    design: str
    inputs: tuple[tuple[str, Shape, str | None], ...]  # (name, shape, default)
    needed: int  # number of inputs without a default
    noise: tuple[tuple[str, Shape], ...]
    query: str | None
    key: str | None
    tied: bool  # query and key have the same length
    maxima: tuple[tuple[str, int], ...]
    masks: Masks
    counts: frozenset[str] = frozenset()  # inputs used as positions only; they may be integers
    packed_names: tuple[str, ...] = ()  # inputs whose name is also an argument of packed calls
    numbers: tuple[tuple[str, Arith], ...] = ()  # (step, number) of the numbers that depend on a length
    values: Mapping[str, float] = field(default_factory=dict)  # of the settings and legs in these numbers

    @staticmethod
    def of(graph: Graph, schedule: Graph | None = None) -> Signature:
        """The signature of a design; `schedule`: the graph that runs, in which legs may be split."""
        inputs = tuple((tensor.name, _shape(graph, tensor.legs), tensor.default) for tensor in graph.of_role("input"))
        return Signature(
            graph.name,
            inputs,
            max((index + 1 for index, (_, _, default) in enumerate(inputs) if default is None), default=0),
            tuple((tensor.name, _shape(graph, tensor.legs)) for tensor in graph.of_role("noise")),
            graph.query,
            graph.key,
            graph.tied,
            tuple((leg.name, leg.maximum) for leg in graph.legs if leg.sequence and leg.maximum is not None),
            _masks(graph, schedule or graph),
            frozenset(tensor.name for tensor in graph.of_role("input")[1:] if _only_positions(graph, tensor.name)),
            tuple(name for name, _, _ in inputs if name in Packed._fields),
            tuple(_numbers(graph)),
            graph.values,
        )

    def check(
        self, inputs: tuple[Tensor, ...], mask: Tensor | None, key_mask: Tensor | None, noise: Noise
    ) -> dict[str, int]:
        """Checks the arguments and returns the lengths of the sequence legs. Raises InputError."""
        lengths = self._complete(*self._check_given(inputs, self.needed))
        self._check_numbers(lengths)
        if mask is None and key_mask is None and noise is None and len(inputs) == 1:
            return lengths
        batch = self.batch(inputs)
        if mask is not None:
            check_mask(self.masks, mask, batch, lengths)
        if key_mask is not None:
            check_key_mask(self.masks, key_mask, batch, lengths)
        if noise is not None:
            check_noise(self.design, dict(self.noise), noise, batch, lengths)
        return lengths

    def check_row(self, inputs: tuple[Tensor, ...], behind: bool = False) -> dict[str, int]:
        """Checks a packed row and returns the lengths of its sequence legs. Raises InputError.

        `behind`: later inputs may be missing because a cache holds their values.
        """
        return self._check_given(inputs, 1 if behind else self.needed)[0]

    def check_cached(
        self, inputs: tuple[Tensor, ...], mask: Tensor | None, key_mask: Tensor | None, cached: int, memory: bool
    ) -> dict[str, int]:
        """Checks a chunk after `cached` positions, or against a memory of them, and returns the lengths.

        Raises InputError.
        """
        if memory and not cached:
            return self.check(inputs, mask, key_mask, None)
        lengths: dict[str, int] = {}
        for (name, shape, default), tensor in zip(self.inputs, inputs, strict=False):
            if tensor is None:
                continue
            if self.key in dict(shape) and (memory or default is not None):
                reason = "is already in the cache" if memory else f"defaults to '{default}', which continues the cache"
                raise InputError(f"{self.design}: with a cache, '{name}' {reason}: leave it out.")
            self._check_input(name, shape, tensor, lengths, {leg: name for leg, _ in shape})
        if str(self.query) not in lengths:
            raise InputError(f"{self.design}: with a cache, a chunk is required; give {self._takes}.")
        chunk = lengths[str(self.query)]
        keys = cached if memory else cached + chunk
        if self.key is not None:
            lengths[self.key] = keys
        self._check_numbers(lengths)
        for leg, maximum in self.maxima:
            if not memory and cached + chunk > maximum:
                raise InputError(
                    f"{self.design}: {chunk:,} positions after the {cached:,} in the cache exceed the maximum "
                    f"{maximum:,} of leg '{leg}'."
                )
        batch = self.batch(inputs)
        if mask is not None:
            check_mask(self.masks, mask, batch, lengths)
        if key_mask is not None:
            check_key_mask(self.masks, key_mask, batch, {self.masks.key: keys})
        return lengths

    def without_inputs(self, packed: Packed, named: Mapping[str, Tensor]) -> tuple[Packed, dict[str, Tensor]]:
        """Moves inputs of the design whose names are arguments of packed calls to the inputs given by name."""
        inputs = {name: getattr(packed, name) for name in self.packed_names if getattr(packed, name) is not None}
        return packed._replace(**dict.fromkeys(inputs)), {**named, **inputs}

    def with_losses(self, named: Mapping[str, Tensor], losses: Any) -> dict[str, Tensor]:
        """Adds the input called losses to the inputs given by name. Raises InputError if there is none."""
        if "losses" not in (name for name, _, _ in self.inputs):
            raise InputError(f"{self.design}: 'losses' is a {type(losses).__name__}; give True or False.")
        return {**named, "losses": losses}

    def ordered(
        self, inputs: tuple[Tensor, ...], named: Mapping[str, Tensor], cached: bool = False
    ) -> tuple[Tensor, ...]:
        """Returns the inputs in declared order, None for a default or, if `cached`, for a memory in the cache.

        Raises InputError.
        """
        names = [name for name, _, _ in self.inputs]
        for name in named:
            if name not in names:
                arguments = (*names, "mask", "key_mask", "noise", "losses", "cache", *Packed._fields)
                raise InputError(f"{self.design}: there is no input '{name}'; {nearest(name, arguments)}")
            if names.index(name) < len(inputs):
                raise InputError(f"{self.design}: input '{name}' is given twice, by position and by name.")
        needed = [n for n, legs, default in self.inputs if default is None and not (cached and self.key in dict(legs))]
        missing = [name for name in names[len(inputs) :] if name in needed and name not in named]
        if missing:
            raise InputError(f"{self.design}: input '{missing[0]}' is missing; give {self._takes}.")
        return (*inputs, *(named.get(name) for name in names[len(inputs) :]))  # type: ignore[arg-type]

    def with_empty(self, inputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """The inputs of a chunk with empty ones for those that a cache holds instead."""
        first = next(x for x in inputs if x is not None)
        batch = self.batch(inputs)  # type: ignore[arg-type]
        return tuple(
            first.new_zeros(*batch, *(size or 0 for _, size in shape)) if x is None and default is None else x
            for (_, shape, default), x in zip_longest(self.inputs, inputs)
        )

    @property
    def _takes(self) -> str:
        """The inputs in order with their defaults, for messages."""
        return ", ".join(name if default is None else f"{name} (default {default})" for name, _, default in self.inputs)

    def _check_given(self, inputs: tuple[Tensor, ...], needed: int) -> tuple[dict[str, int], dict[str, str]]:
        """Checks the given inputs and returns (leg -> length, leg -> the input that has it)."""
        if not needed <= len(inputs) <= len(self.inputs):
            raise InputError(f"{self.design}: {len(inputs)} inputs given; give {self._takes}.")
        lengths: dict[str, int] = {}
        whose: dict[str, str] = {}
        tensors = {name: tensor for (name, _, _), tensor in zip(self.inputs, inputs, strict=False)}
        for name, shape, default in self.inputs:
            if tensors.get(name) is None and default is not None:
                tensors[name] = tensors[default]
            if name in tensors:
                self._check_input(name, shape, tensors[name], lengths, whose)
        return lengths, whose

    def _check_input(
        self, name: str, shape: Shape, tensor: Tensor, lengths: dict[str, int], whose: dict[str, str]
    ) -> None:
        check_tensor(self.design, f"input '{name}'", tensor)
        integer = name in self.counts and tensor.dtype in WHOLE
        if not tensor.is_floating_point() and not integer:
            accepted = "integers or floating point numbers" if name in self.counts else "floating point numbers"
            raise InputError(f"{self.design}: input '{name}' is {tensor.dtype}; give {accepted}.")
        sizes = tensor.shape
        if len(sizes) < len(shape):
            legs = " ".join(leg for leg, _ in shape)
            raise InputError(
                f"{self.design}: input '{name}' has {len(sizes)} dimensions; give [batch..., {legs}], at least "
                f"{len(shape)}."
            )
        for axis, (leg, size) in enumerate(shape, len(sizes) - len(shape)):
            actual = sizes[axis]
            if size is None:
                if lengths.setdefault(leg, actual) != actual:
                    raise InputError(
                        f"{self.design}: input '{name}' has length {actual} on leg '{leg}', input '{whose[leg]}' has "
                        f"{lengths[leg]}."
                    )
                whose[leg] = name
            elif actual != size:
                legs = " ".join(leg for leg, _ in shape)
                raise InputError(
                    f"{self.design}: input '{name}' has size {actual} on leg '{leg}', which is {size}; its shape is "
                    f"[batch..., {legs}]."
                )

    def _complete(self, lengths: dict[str, int], whose: dict[str, str]) -> dict[str, int]:
        """Adds the lengths that no input has: that of the other sequence leg, or the maximum."""
        query, key, maxima = self.query, self.key, dict(self.maxima)
        if self.tied and query in lengths and key in lengths and lengths[query] != lengths[key]:
            raise InputError(
                f"{self.design}: legs '{query}' and '{key}' have the same length in this design; input "
                f"'{whose[query]}' has "
                f"{lengths[query]} on '{query}', input '{whose[key]}' has {lengths[key]} on '{key}'."
            )
        for leg, other_leg in ((query, key), (key, query)):
            if leg is not None and leg not in lengths:
                follows = self.tied and other_leg in lengths
                lengths[leg] = lengths[other_leg] if follows else maxima.get(leg, 0)  # type: ignore[index]
        for leg, maximum in self.maxima:
            if lengths[leg] > maximum:
                raise InputError(f"{self.design}: length {lengths[leg]} on leg '{leg}' exceeds its maximum {maximum}.")
        return lengths

    def _check_numbers(self, lengths: dict[str, int]) -> None:
        """Raises InputError if a number has no value at these lengths, as `1 / (m - 1)` at length 1; 0 counts as 1."""
        if not self.numbers or torch.compiler.is_compiling():
            return
        counted = {leg: max(length, 1) for leg, length in lengths.items()}
        for step, number in self.numbers:
            try:
                evaluate(number, {**self.values, **counted})
            except Refusal as refusal:
                met = [
                    f"'{leg}' has length {lengths[leg]}"
                    for leg in counted
                    if leg in {name.name for name in names(number)}
                ]
                raise InputError(
                    f"{self.design}: in '{step}', {refusal.message.rstrip('.')} where {' and '.join(met)}."
                ) from None

    def check_place(self, weights: Mapping[str, Any], inputs: tuple[Tensor, ...], **others: Tensor | None) -> None:
        """Raises InputError if a tensor is on another device than the weights, or an input has another dtype.

        Without weights, the first input counts instead.
        """
        first = next(iter(weights.values()), None)
        matching = first is not None and all(
            x is None or (x.dtype, x.device) == (first.dtype, first.device) for x in inputs
        )
        if torch.compiler.is_compiling() or (
            matching and first is not None and all(x is None or x.device == first.device for x in others.values())
        ):
            return
        present = [(name, x) for (name, *_), x in zip(self.inputs, inputs, strict=False) if x is not None]
        floating = [weight for weight in weights.values() if weight is not None and weight.is_floating_point()]
        like, what = (floating, "the weights are") if floating else ([present[0][1]], f"'{present[0][0]}' is")
        devices, dtypes = {x.device for x in like}, {x.dtype for x in like}
        for name, x in (*present, *((name, x) for name, x in others.items() if x is not None)):
            if x.device not in devices:
                raise InputError(f"{self.design}: '{name}' is on {x.device}, but {what} on {like[0].device}: move one.")
        for name, x in present:
            free = name in self.counts or torch._C._is_any_autocast_enabled()
            if x.dtype not in dtypes and not free:
                raise InputError(
                    f"{self.design}: input '{name}' is {x.dtype}, but {what} {like[0].dtype}: convert one of them, or "
                    "use torch.autocast."
                )

    def batch(self, inputs: tuple[Tensor, ...]) -> tuple[int, ...]:
        """The batch dimensions of the call: those of all inputs, broadcast."""
        batch: tuple[int, ...] = ()
        for (name, shape, _), tensor in zip(self.inputs, inputs, strict=False):
            if tensor is None:
                continue
            leading = tuple(tensor.shape[: tensor.dim() - len(shape)])
            if leading == batch:
                continue
            if not _broadcast(leading, batch):
                raise InputError(
                    f"{self.design}: input '{name}' has batch dimensions {list(leading)}, the inputs before it "
                    f"have {list(batch)}; they must broadcast."
                )
            batch = leading if not batch else tuple(torch.broadcast_shapes(leading, batch))
        return batch


def _broadcast(leading: Sequence[int], batch: Sequence[int]) -> bool:
    """Whether batch dimensions broadcast."""
    pairs = zip(reversed(leading), reversed(batch), strict=False)
    return all(size == batch_size or size == 1 or batch_size == 1 for size, batch_size in pairs)


def check_tensor(design: str, what: str, argument: object) -> None:
    """Raises InputError if a value is no tensor, or a nested or a sparse one."""
    if not isinstance(argument, torch.Tensor):
        raise InputError(f"{design}: {what} is a {type(argument).__name__}; give a tensor.")
    if argument.is_nested:
        raise InputError(
            f"{design}: {what} is a nested tensor; give padding and a key_mask, or one row and cu_seqlens."
        )
    if argument.layout != torch.strided:
        raise InputError(f"{design}: {what} is a sparse tensor, {argument.layout}; give a dense one.")


def check_mask(masks: Masks, mask: Tensor, batch: tuple[int, ...], lengths: dict[str, int]) -> None:
    """Checks a mask: [n, m], [batch..., n, m] or [batch..., other legs, n, m], bool or float. Raises InputError."""
    if masks.recurrence is not None:
        raise masks.refuse(f"the {masks.recurrence} accepts no mask; give a key_mask.")
    if not masks.places:
        raise masks.refuse("mask: no box of this design has both a query and a key leg.")
    check_tensor(masks.design, "mask", mask)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise masks.refuse(f"mask is {mask.dtype}; give a boolean (True = visible) or a float (added).")
    forbids = next((box for box in masks.places if not OPS[box[1]].takes_float_mask), None)
    if mask.dtype != torch.bool and forbids is not None:
        raise masks.refuse(f"a float mask cannot be added in '{forbids[0]}', a {forbids[1]} box; give a boolean one.")
    if mask.dtype != torch.bool and masks.maps:
        raise masks.refuse(
            f"a float mask cannot be added in '{masks.maps[0]}', a sum that is planned as attention; give a boolean "
            "one, or compile with backend='reference'."
        )
    n, m = lengths[masks.query], lengths[masks.key]
    if mask.dim() < 2 or tuple(mask.shape[-2:]) != (n, m):
        raise masks.refuse(
            f"mask has shape {list(mask.shape)}; its last two dimensions must be '{masks.query}' {n} and "
            f"'{masks.key}' {m}."
        )
    for _, _, other_legs in masks.places:
        _check_leading(masks, mask, batch, other_legs)


def _check_leading(masks: Masks, mask: Tensor, batch: tuple[int, ...], other_legs: Shape) -> None:
    """Checks the dimensions before query and key: none, the batch, or the batch and the other legs of the box."""
    leading = tuple(mask.shape[:-2])
    expected: list[tuple[str, int | None]] = [("batch", size) for size in batch]
    if len(leading) not in (0, len(batch)):
        if masks.apart:
            raise masks.refuse(
                f"mask has {mask.dim()} dimensions; '{masks.apart[0]}' is planned as one map for many entries of its "
                f"legs, so give [{masks.query}, {masks.key}] or [batch..., {masks.query}, {masks.key}], "
                "or compile with backend='reference'."
            )
        expected += other_legs
    if len(leading) not in (0, len(expected)):
        legs = [leg for leg, _ in other_legs]
        pair = [masks.query, masks.key]
        forms = [
            pair,
            *([["batch...", *pair]] if batch else []),
            *([["batch..."] * bool(batch) + legs + pair] if legs else []),
        ]
        texts = " or ".join(f"[{', '.join(form)}]" for form in forms)
        raise masks.refuse(f"mask has {mask.dim()} dimensions with {len(batch)} of the batch; give {texts}.")
    for actual, (leg, size) in zip(leading, expected, strict=False):
        if size is not None and actual != size and actual != 1 and not (leg == "batch" and size == 1):
            raise masks.refuse(f"mask has shape {list(mask.shape)}: {actual} on '{leg}', which is {size}.")


def warn_of_zeros_and_ones(design: str, mask: Tensor) -> bool:
    """Warns of a float mask on a CPU that holds only 0 and 1; returns whether it has looked."""
    if not mask.is_floating_point() or mask.device.type != "cpu" or not is_plain((mask,)):
        return False
    if ((mask == 0) | (mask == 1)).all() and mask.any():
        problem = "'mask' is a float mask that holds only 0 and 1, and is added to the scores"
        warn(f"{design}: {problem}: if 0 means hidden, give mask.bool().", stacklevel=caller())
    return True


def check_key_mask(masks: Masks, key_mask: Tensor, batch: tuple[int, ...], lengths: dict[str, int]) -> None:
    """Checks a key mask: [batch..., m], boolean. Raises InputError."""
    if not masks.keys:
        raise masks.refuse("key_mask: no box of this design runs over a key leg, and no product sums one.")
    check_tensor(masks.design, "key_mask", key_mask)
    if key_mask.dtype != torch.bool:
        raise masks.refuse(f"key_mask is {key_mask.dtype}; give a boolean one, True = visible.")
    m = lengths[masks.key]
    if key_mask.dim() < 1 or key_mask.shape[-1] != m:
        raise masks.refuse(f"key_mask has shape {list(key_mask.shape)}; its last dimension must be '{masks.key}' {m}.")
    if not _broadcast(key_mask.shape[:-1], batch):
        raise masks.refuse(f"key_mask has shape {list(key_mask.shape)}; the batch is {list(batch)}.")


def check_noise(
    design: str,
    declared: dict[str, Shape],
    noise: Mapping[str, Tensor],
    batch: tuple[int, ...],
    lengths: dict[str, int],
) -> None:
    """Checks noise values by name, [batch..., legs]. Raises InputError."""
    if not isinstance(noise, Mapping):
        raise InputError(f"{design}: noise is a {type(noise).__name__}; give a dict of tensors by name.")
    for name, tensor in noise.items():
        if name not in declared:
            raise InputError(f"{design}: there is no noise '{name}'; {nearest(str(name), declared)}")
        check_tensor(design, f"noise '{name}'", tensor)
        legs = declared[name]
        expected = [lengths.get(leg) if size is None else size for leg, size in legs]
        shape = f"[{', '.join(['batch...', *(leg for leg, _ in legs)])}]"
        if tensor.dim() < len(legs):
            raise InputError(f"{design}: noise '{name}' has shape {list(tensor.shape)}; give {shape}.")
        for actual, (leg, _), size in zip(tensor.shape[tensor.dim() - len(legs) :], legs, expected, strict=True):
            if size is not None and actual != size:
                raise InputError(
                    f"{design}: noise '{name}' has size {actual} on leg '{leg}', which is {size}; give {shape}."
                )
        if not _broadcast(tensor.shape[: tensor.dim() - len(legs)], batch):
            raise InputError(f"{design}: noise '{name}' has shape {list(tensor.shape)}; the batch is {list(batch)}.")


def _only_positions(graph: Graph, name: str) -> bool:
    """Whether the design uses an input only as positions, without transforming it."""
    roles = [
        role
        for step, use in graph.readers.get(name, ())
        for role in ([role for role, operand in step.box.operands if operand == use] if step.box else [""])
    ]
    return bool(roles) and {*roles} == {"positions"}


def _numbers(graph: Graph) -> Iterator[tuple[str, Arith]]:
    """The numbers that depend on the length of a sequence leg, each with its step."""
    for step in graph.steps:
        for number in step.arithmetic:
            if any(name.name not in graph.values for name in names(number)):
                yield step.name, number


def _shape(graph: Graph, legs: tuple[str, ...]) -> Shape:
    return tuple((leg, size_of(graph, leg)) for leg in legs)


def _masks(graph: Graph, schedule: Graph) -> Masks:
    split = {
        leg
        for tensor in graph.tensors
        if tensor.name in schedule.tensor
        for leg, group in zip(tensor.legs, schedule.tensor[tensor.name].stored, strict=False)
        if len(group) > 1
    }
    masked = [(step.name, step.box) for step in graph.steps if step.box is not None and graph.masked(step)]
    paired = {name: box for name, box in masked if graph.query in box.of.legs}
    other_legs = {name: seen(graph, graph.step[name]) for name in paired}
    places = [(name, box.kind, _shape(graph, other_legs[name])) for name, box in paired.items()]
    new = [step for step in unfolded(schedule).steps if step.name not in graph.step and graph.query in step.legs]
    words = [f"{str(step.op.kind).replace('_', ' ')} '{step.name}'" for step in graph.steps if unmasked(step)]  # type: ignore[union-attr]
    fast = next(iter(words), None)
    maps = tuple(step.name for step in sums(graph) if step.name not in _sums(schedule))
    moved = {seen(graph, step) for step in new} - {(), *other_legs.values()}
    split_boxes = tuple(
        name for name, legs in other_legs.items() if legs and (moved or name in maps or split & {*legs})
    )
    key = str(graph.key or graph.query)  # without a key leg, a key mask hides queries
    return Masks(graph.name, graph.query, key, tuple(places), takes_key_mask(graph), fast, split_boxes, maps)


def _sums(schedule: Graph) -> set[str]:
    """The sums over keys that the schedule computes as sums."""
    forms = [step.form for step in schedule.steps]
    states = {form.box.name for form in forms if isinstance(form, Recurrence) and form.mixes}
    return {step.name for step in sums(unfolded(schedule)) if step.name not in states}


def refuse_onnx(graph: Graph) -> None:
    """Raises InputError with the first step that no program for ONNX computes."""
    for step in graph.steps:
        if step.box is not None and operation_of(step).recurrent:
            raise InputError(
                f"{graph.name}: '{step.name}' is a '{step.box.kind}', which updates a state key by key; ONNX has no "
                "such operation: export the layer with torch.export, or a design without it."
            )
