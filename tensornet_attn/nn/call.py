"""The arguments of a call: checked against the design, with errors that name the input, the leg and both sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tensornet_attn.cost.kernels import unfolded
from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph.model import Graph
from tensornet_attn.graph.recurrence import Recurrence, erases, sums
from tensornet_attn.nn.given import Masks, check_key_mask, check_mask, check_noise

Tensor = torch.Tensor
Shape = tuple[tuple[str, int | None], ...]  # (leg, size; None: sized at run time)


@dataclass(frozen=True)
class Signature:
    """What a design's call takes, as plain tuples: cheap to check, and torch.compile can read them."""

    design: str
    inputs: tuple[tuple[str, Shape, str | None], ...]  # (name, shape, default)
    needed: int  # inputs that have no default
    noise: tuple[tuple[str, Shape], ...]
    query: str | None
    key: str | None
    tied: bool  # query and key have one length
    maxima: tuple[tuple[str, int], ...]
    masks: Masks

    @staticmethod
    def of(graph: Graph, schedule: Graph | None = None) -> Signature:
        """The call of a design; `schedule` is what runs, where legs of the design may be taken apart."""
        inputs = tuple((t.name, _shape(graph, t.legs), t.default) for t in graph.of_role("input"))
        return Signature(
            graph.name,
            inputs,
            max((i + 1 for i, (_, _, default) in enumerate(inputs) if default is None), default=0),
            tuple((t.name, _shape(graph, t.legs)) for t in graph.of_role("noise")),
            graph.query,
            graph.key,
            graph.tied,
            tuple((leg.name, leg.maximum) for leg in graph.legs if leg.sequence and leg.maximum is not None),
            _masks(graph, schedule or graph),
        )

    def check(
        self,
        inputs: tuple[Tensor, ...],
        mask: Tensor | None,
        key_mask: Tensor | None,
        noise: Mapping[str, Tensor] | None,
    ) -> dict[str, int]:
        """The lengths of the sequence legs. Raises InputError."""
        lengths = self._check_inputs(inputs)
        if mask is None and key_mask is None and noise is None and len(inputs) == 1:
            return lengths
        batch = self._batch(inputs)
        if mask is not None:
            check_mask(self.masks, mask, batch, lengths)
        if key_mask is not None:
            check_key_mask(self.masks, key_mask, batch, lengths)
        if noise is not None:
            check_noise(self.design, dict(self.noise), noise, batch, lengths)
        return lengths

    def with_losses(self, named: Mapping[str, Tensor], losses: Any) -> dict[str, Tensor]:
        """Inputs by name with the one called losses. Raises InputError where there is none."""
        if "losses" not in (name for name, _, _ in self.inputs):
            raise InputError(f"{self.design}: 'losses' is true or false, not a {type(losses).__name__}.")
        return {**named, "losses": losses}

    def ordered(self, inputs: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Inputs given by position and by name, in declared order, None for a default. Raises InputError."""
        names = [name for name, _, _ in self.inputs]
        for name in named:
            if name not in names:
                known = (*names, "mask", "key_mask", "noise", "losses")
                raise InputError(f"{self.design}: there is no input '{name}'; {nearest(name, known)}")
            if names.index(name) < len(inputs):
                raise InputError(f"{self.design}: input '{name}' is given twice, by position and by name.")
        missing = [n for n, _, default in self.inputs[len(inputs) :] if default is None and n not in named]
        if missing:
            raise InputError(f"{self.design}: input '{missing[0]}' is not given; it takes {self._takes}.")
        return (*inputs, *(named.get(name) for name in names[len(inputs) :]))  # type: ignore[arg-type]

    @property
    def _takes(self) -> str:
        """The inputs in order, for errors, each with what stands in for it."""
        named = [(name, "" if default is None else f" (default {default})") for name, _, default in self.inputs]
        return ", ".join(name + default for name, default in named)

    def _check_inputs(self, inputs: tuple[Tensor, ...]) -> dict[str, int]:
        if not self.needed <= len(inputs) <= len(self.inputs):
            raise InputError(f"{self.design}: {len(inputs)} inputs given; it takes {self._takes}.")
        lengths: dict[str, int] = {}
        whose: dict[str, str] = {}
        for (name, shape, default), value in zip(self.inputs, inputs, strict=False):
            if value is not None or default is None:
                self._check_input(name, shape, value, lengths, whose)
        return self._complete(lengths, whose)

    def _check_input(
        self, name: str, shape: Shape, value: Tensor, lengths: dict[str, int], whose: dict[str, str]
    ) -> None:
        if not isinstance(value, torch.Tensor):
            raise InputError(f"{self.design}: input '{name}' is a {type(value).__name__}, not a tensor.")
        if not value.is_floating_point():
            raise InputError(f"{self.design}: input '{name}' is {value.dtype}; give floating point numbers.")
        sizes = value.shape
        if len(sizes) < len(shape):
            legs = " ".join(leg for leg, _ in shape)
            raise InputError(
                f"{self.design}: input '{name}' has {len(sizes)} dimensions; it needs [batch..., {legs}], at least "
                f"{len(shape)}."
            )
        for place, (leg, size) in enumerate(shape, len(sizes) - len(shape)):
            got = sizes[place]
            if size is None:
                self._check_length(name, leg, got, lengths, whose)
            elif got != size:
                legs = " ".join(leg for leg, _ in shape)
                raise InputError(
                    f"{self.design}: input '{name}' has size {got} on leg '{leg}', which is {size}; its shape is "
                    f"[batch..., {legs}]."
                )

    def _check_length(self, name: str, leg: str, got: int, lengths: dict[str, int], whose: dict[str, str]) -> None:
        if leg in lengths and lengths[leg] != got:
            raise InputError(
                f"{self.design}: input '{name}' has length {got} on leg '{leg}', input '{whose[leg]}' has "
                f"{lengths[leg]}."
            )
        lengths[leg], whose[leg] = got, name

    def _complete(self, lengths: dict[str, int], whose: dict[str, str]) -> dict[str, int]:
        """Lengths that no input gives: the other leg's under self-attention or a default, else the maximum."""
        query, key, most = self.query, self.key, dict(self.maxima)
        if self.tied and query in lengths and key in lengths and lengths[query] != lengths[key]:
            raise InputError(
                f"{self.design}: legs '{query}' and '{key}' have one length in this design; input '{whose[query]}' has "
                f"{lengths[query]} on '{query}', input '{whose[key]}' has {lengths[key]} on '{key}'."
            )
        for leg, other in ((query, key), (key, query)):
            if leg is not None and leg not in lengths:
                given = any(default is not None and leg in dict(shape) for _, shape, default in self.inputs)
                follows = other in lengths and (self.tied or given)
                lengths[leg] = lengths[other] if follows else most.get(leg, 0)  # type: ignore[index]
        for leg, maximum in self.maxima:
            if lengths[leg] > maximum:
                raise InputError(f"{self.design}: length {lengths[leg]} on leg '{leg}' is above its maximum {maximum}.")
        return lengths

    def _batch(self, inputs: tuple[Tensor, ...]) -> tuple[int, ...]:
        """The batch dimensions of the call, to which those of all inputs broadcast."""
        found: tuple[int, ...] = ()
        for (name, shape, _), value in zip(self.inputs, inputs, strict=False):
            if value is None:
                continue
            own = tuple(value.shape[: value.dim() - len(shape)])
            for a, b in zip(reversed(own), reversed(found), strict=False):
                if a != b and a != 1 and b != 1:
                    raise InputError(
                        f"{self.design}: input '{name}' has batch dimensions {list(own)}, the inputs before it have "
                        f"{list(found)}; they must broadcast."
                    )
            found = own if not found else tuple(torch.broadcast_shapes(own, found))
        return found


def _shape(graph: Graph, legs: tuple[str, ...]) -> Shape:
    return tuple((leg, graph.leg[leg].size) for leg in legs)


def _masks(graph: Graph, schedule: Graph) -> Masks:
    split = {
        leg
        for tensor in graph.tensors
        if tensor.name in schedule.tensor
        for leg, group in zip(tensor.legs, schedule.tensor[tensor.name].stored, strict=False)
        if len(group) > 1
    }
    masked = [(step.name, step.box) for step in graph.steps if step.box is not None and graph.masked(step)]
    seen = [(name, box.kind, box.operand("of").legs) for name, box in masked if graph.query in box.operand("of").legs]
    pair = (graph.query, graph.key)
    places = [(name, kind, _shape(graph, tuple(leg for leg in legs if leg not in pair))) for name, kind, legs in seen]
    fast = next((step.name for step in graph.steps if erases(step)), None)
    maps = tuple(step.name for step in sums(graph) if step.name not in _sums(schedule))
    apart = tuple(name for name, _, legs in seen if split & {*legs} or (name in maps and {*legs} - {*pair}))
    return Masks(graph.name, str(graph.query), str(graph.key), tuple(places), bool(masked or fast), fast, apart, maps)


def _sums(schedule: Graph) -> set[str]:
    """The sums over keys that a schedule computes as sums."""
    forms = [step.form for step in schedule.steps]
    states = {form.box.name for form in forms if isinstance(form, Recurrence) and form.mixes}
    return {step.name for step in sums(unfolded(schedule)) if step.name not in states}
