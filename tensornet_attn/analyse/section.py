"""The layers that a report is about: compiled designs with the inputs of a call, alone or as they stand in a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import torch
from torch import nn

from tensornet_attn.analyse.steps import attention_steps, topk_steps
from tensornet_attn.errors import InputError
from tensornet_attn.nn.module import CompiledDesign

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Call:
    """The inputs of one call in declared order, and its `mask` and `key_mask`."""

    inputs: tuple[Tensor, ...]
    see: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Section:
    """One layer of a report: its title, a compiled module, the inputs of a call, and remarks on them.

    `repeated`: a second call, on random tokens that are repeated once (`repeated_tokens`), for the induction score.
    """

    title: str
    module: CompiledDesign
    inputs: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()
    see: dict[str, Any] = field(default_factory=dict)  # mask=, key_mask=
    repeated: Call | None = None


def model_sections(model: nn.Module, *inputs: Any, repeated: Tensor | None = None, **named: Any) -> list[Section]:
    """A section for each compiled design in a model that has an attention box or a topk, in the order of its calls.

    The model is called once with `inputs` and `named`, in evaluation mode and without gradients; a section holds what
    its design was given in that call. `repeated`, [batch, 2 * period] tokens as `repeated_tokens` gives them, is what
    the model is called with a second time, for the induction scores. Any module that holds compiled designs will do:
    one of `ta.models`, of `ta.convert_model`, or your own. A design that is called several times has several sections.
    Raises InputError where there is no such design.

    >>> import tensornet_attn as ta
    >>> model = ta.models.LanguageModel(vocabulary=9, length=8, width=16, layers=["mhsa", "thsa"])
    >>> tokens = ta.repeated_tokens(9, period=4, batch=3)
    >>> [section.title for section in model_sections(model, tokens)]
    ['layers.0.mixer: mhsa', 'layers.1.mixer: thsa']
    """
    sections = _called(model, *inputs, **named)
    if not sections:
        raise InputError(f"{type(model).__name__}: there is no compiled design with an attention box or a topk in it.")
    if repeated is None:
        return sections
    again = {section.title: section for section in _called(model, repeated)}
    calls = {title: Call(section.inputs, section.see) for title, section in again.items()}
    return [replace(section, repeated=calls.get(section.title)) for section in sections]


def joined_sections(parts: Sequence[Sequence[Section]]) -> list[Section]:
    """The sections of one call, from those of calls of the same model on one part of the batch after the other.

    The calls have the same titles in the same order, as `model_sections` gives them; parts follow along the first
    dimension. What has no batch dimension is that of the first part.
    """
    joined = []
    for first, *others in zip(*parts, strict=True):
        calls = [Call(section.inputs, section.see) for section in (first, *others)]
        inputs, see = _concatenated(first.module, calls)
        repeated = [section.repeated for section in (first, *others) if section.repeated is not None]
        again = Call(*_concatenated(first.module, repeated)) if repeated else None
        joined.append(replace(first, inputs=inputs, see=see, repeated=again))
    return joined


def _concatenated(module: CompiledDesign, calls: list[Call]) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Inputs and masks of several calls, along their first dimension."""
    legs = [len(shape) for _, shape, _ in module._signature.inputs]
    size = len(calls[0].inputs[0])

    def joined(values: list[Any], legs: int) -> Any:
        first = values[0]
        batched = first is not None and first.ndim > legs and len(first) == size
        return torch.cat(values) if batched else first

    columns = zip(*(call.inputs for call in calls), strict=True)
    inputs = tuple(joined(list(values), count) for values, count in zip(columns, legs, strict=True))
    counts = {"mask": 2, "key_mask": 1}
    return inputs, {name: joined([call.see[name] for call in calls], counts[name]) for name in calls[0].see}


@torch.no_grad()
def _called(model: nn.Module, *inputs: Any, **named: Any) -> list[Section]:
    """What each design with an attention box or a topk was given in one call of the model, in evaluation mode."""
    found: dict[str, Section] = {}
    names = {module: path.removesuffix("design").removesuffix(".") for path, module in model.named_modules()}

    def record(module: CompiledDesign, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        see = {key: options[key] for key in ("mask", "key_mask") if options.get(key) is not None}
        rest = {key: value for key, value in options.items() if key not in ("mask", "key_mask", "noise")}
        title = f"{names[module]}: {module.design.name}" if names[module] else module.design.name
        again = (f"{title} (call {number})" for number in count(2))
        title = next(free for free in chain([title], again) if free not in found)
        found[title] = Section(title, module, module._signature.ordered(given, rest), see=see)

    designs = [module for module in names if isinstance(module, CompiledDesign)]
    looked_at = [each for each in designs if attention_steps(each.plan.graph) or topk_steps(each.plan.graph)]
    handles = [module.register_forward_pre_hook(record, with_kwargs=True) for module in looked_at]
    modes = {module: module.training for module in names}
    try:
        model.eval()
        model(*inputs, **named)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes.items():
            module.training = training
    return list(found.values())
