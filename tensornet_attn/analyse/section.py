"""The sections of a report: compiled designs with the inputs of a call, from a text, or from a call of a model."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

import torch
from torch import nn

from tensornet_attn.analyse.maps import Maps, analysed, attention_maps
from tensornet_attn.errors import InputError
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.runtime.positions import sinusoid

Tensor = torch.Tensor
LENGTH, BATCH = 128, 8


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

    def maps(self, step: str, samples: int = 1) -> Iterator[Maps]:
        """The maps of one attention box, of so many samples at a time. Raises InputError."""
        legs = {name: len(shape) for name, shape, _ in self.module._signature.inputs} | {"mask": 2, "key_mask": 1}
        size = len(self.inputs[0])
        named = dict(zip(legs, self.inputs, strict=False)) | self.see
        for first in range(0, size, samples):
            chunk = {
                name: tensor[first : first + samples] if tensor.ndim > legs[name] and len(tensor) == size else tensor
                for name, tensor in named.items()
                if tensor is not None
            }
            yield attention_maps(self.module, **chunk)[step]


def model_sections(model: nn.Module, *inputs: Any, repeated: Tensor | None = None, **named: Any) -> list[Section]:
    """A section for each compiled design of a model with an attention box or a topk, in the order of the calls.

    The model is called once with `inputs` and `named`, in evaluation mode and without gradients; a section has the
    inputs of its design in that call. If `repeated` is given, [batch, 2 * period] tokens from `repeated_tokens`, the
    model is called a second time with them, for the induction scores. The model may be any module with compiled
    designs: of `ta.models`, of `ta.convert_model`, or your own. A design that is called several times has several
    sections. Raises InputError if there is no such design.

    >>> import tensornet_attn as ta
    >>> model = ta.models.LanguageModel(vocabulary=9, length=8, width=16, layers=["mhsa", "thsa"])
    >>> tokens = ta.repeated_tokens(9, period=4, batch=3)
    >>> [section.title for section in model_sections(model, tokens)]
    ['layers.0.mixer: mhsa', 'layers.1.mixer: thsa']
    """
    sections = _called(model, *inputs, **named)
    if not sections:
        raise InputError(f"{type(model).__name__}: it has no compiled design with an attention box or a topk.")
    if repeated is None:
        return sections
    again = {section.title: section for section in _called(model, repeated)}
    calls = {title: Call(section.inputs, section.see) for title, section in again.items()}
    return [replace(section, repeated=calls.get(section.title)) for section in sections]


def joined_sections(parts: Sequence[Sequence[Section]]) -> list[Section]:
    """Joins the sections of several calls of one model, each on a part of the batch, into those of one call.

    The calls have equal titles in the same order, as in `model_sections`. Parts are concatenated along the first
    dimension; tensors without a batch dimension are taken from the first part.
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
    """Inputs and masks of several calls, concatenated along the first dimension."""
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
    """Sections with the inputs of each design with an attention box or a topk, from one call in evaluation mode."""
    sections: dict[str, Section] = {}
    names = {module: path.removesuffix("design").removesuffix(".") for path, module in model.named_modules()}

    def record(module: CompiledDesign, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        see = {key: options[key] for key in ("mask", "key_mask") if options.get(key) is not None}
        flags = {"mask", "key_mask", "noise", "losses"} - {name for name, _, _ in module._signature.inputs}
        rest = {key: option for key, option in options.items() if key not in flags and option is not None}
        title = f"{names[module]}: {module.design.name}" if names[module] else module.design.name
        again = (f"{title} (call {number})" for number in count(2))
        title = next(free for free in chain([title], again) if free not in sections)
        sections[title] = Section(title, module, module._signature.ordered(args, rest), see=see)

    designs = [module for module in names if isinstance(module, CompiledDesign)]
    looked_at = [design for design in designs if analysed(design.plan.graph)]
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
    return list(sections.values())


def repeated_tokens(vocabulary: int | Sequence[int], period: int, batch: int = 8, seed: int = 0) -> Tensor:
    """Sequences of random tokens, each repeated once: [batch, 2 * period], int64.

    `vocabulary`: the number of tokens, or the tokens to choose from. The `period` tokens of a sequence are drawn
    uniformly without replacement, so that each has one first occurrence. Raises InputError.

    >>> tokens = repeated_tokens(100, period=4, batch=2)
    >>> tokens.shape, torch.equal(tokens[:, :4], tokens[:, 4:])
    (torch.Size([2, 8]), True)
    """
    tokens = torch.tensor(range(vocabulary) if isinstance(vocabulary, int) else vocabulary, dtype=torch.int64)
    if not 2 <= period <= len(tokens):
        raise InputError(f"period is {period!r}; with {len(tokens)} tokens, give an integer from 2 to {len(tokens)}.")
    if batch < 1:
        raise InputError(f"batch is {batch!r}; give an integer of at least 1.")
    generator = torch.Generator().manual_seed(seed)
    sequences = torch.stack([torch.randperm(len(tokens), generator=generator)[:period] for _ in range(batch)])
    return tokens[torch.cat([sequences, sequences], 1)]


def text_inputs(
    module: CompiledDesign,
    path: str,
    length: int | None = None,
    batch: int = BATCH,
    seed: int = 0,
    embedding: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The inputs of a design from a text file: one [batch, length, f] for each input without a default.

    The text is read as UTF-8 and cut into windows of `length` bytes (default: 128, or the maximum length of the
    design); at most `batch` windows per input. A second input, such as the memory of cross, gets the window after the
    first input's, the last one the first window. Each byte becomes its row of `embedding` [256, f], by default drawn
    from N(0, 1) with `seed`, plus sinusoids of the position. Raises InputError, OSError.
    """
    widths = _widths(module)
    window_length = _length(module.plan.graph, length)
    windows = cut(read_text(path, window_length * (batch + 1)), window_length, batch + 1)
    chosen = [windows.roll(-index, 0)[:batch] for index in range(len(widths))]
    return _embedded(module, chosen, widths, seed, embedding)


def repeated_inputs(
    module: CompiledDesign,
    length: int | None = None,
    batch: int = BATCH,
    seed: int = 0,
    embedding: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The inputs of a design for `induction_scores`: random bytes, embedded as in `text_inputs`, repeated once.

    [batch, 2 * period, f] for each input without a default, with the same sequences for all. `period` is half of
    `length` (default: 128, or the maximum length of the design), at most 256. Returns no inputs if the length cannot
    hold two tokens twice. Raises InputError.
    """
    widths = _widths(module)
    period = min(_length(module.plan.graph, length) // 2, 256)
    if period < 2:
        return ()
    tokens = repeated_tokens(256, period, batch, seed)
    return _embedded(module, [tokens] * len(widths), widths, seed, embedding)


def _embedded(
    module: CompiledDesign, windows: Sequence[Tensor], widths: Sequence[int], seed: int, embedding: Tensor | None
) -> tuple[Tensor, ...]:
    """[batch, length, width] for each of several windows of bytes [batch, length]."""
    like = next(module.parameters(), torch.zeros(()))
    inputs = []
    for bytes_, width in zip(windows, widths, strict=True):
        if embedding is not None and tuple(embedding.shape) != (256, width):
            shape = list(embedding.shape)
            raise InputError(f"the checkpoint's embedding has shape {shape}, but bytes need [256, {width}].")
        drawn = torch.Generator().manual_seed(seed)
        table = torch.randn(256, width, generator=drawn) if embedding is None else embedding.detach().float()
        embedded = table[bytes_] + sinusoid(torch.arange(bytes_.shape[1]), width, torch.float32)
        inputs.append(embedded.to(like.device, like.dtype))
    return tuple(inputs)


def _widths(module: CompiledDesign) -> list[int]:
    """The width of each input without a default, the size of its only other leg. Raises InputError."""
    graph, widths = module.plan.graph, []
    for leaf in (tensor for tensor in graph.of_role("input") if tensor.default is None):
        sizes = [size_of(graph, leg) for leg in leaf.legs[1:]]
        if len(leaf.legs) != 2 or not graph.leg[leaf.legs[0]].sequence or sizes[0] is None:
            shape = " ".join(leaf.legs)
            raise InputError(
                f"{graph.name}: input '{leaf.name}' has legs '{shape}', but text needs a sequence leg and one other."
            )
        widths.append(sizes[0])
    return widths


def read_text(path: str, size: int) -> bytes:
    """The first bytes of a text file. Raises InputError if they are not UTF-8 or the file is empty, OSError."""
    with open(os.fspath(path), "rb") as file:
        content = file.read(size)
        last = not file.read(1)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content, last)  # the last character may be incomplete
    except UnicodeDecodeError as error:
        raise InputError(f"'{path}': byte {error.start} is not UTF-8; save it as UTF-8 text.") from error
    if not content:
        raise InputError(f"'{path}' is empty; give a file with text.")
    return content


def cut(content: bytes, length: int, batch: int) -> Tensor:
    """Windows of bytes: [windows, length]; a text shorter than `length` is one window.

    >>> cut(b"abcdefgh", 3, 8).tolist()
    [[97, 98, 99], [100, 101, 102]]
    """
    length = min(length, len(content))
    count = min(len(content) // length, batch)
    return torch.tensor(list(content[: count * length])).reshape(count, length)


def _length(graph: Graph, length: int | None) -> int:
    maxima = [leg.maximum for leg in graph.legs if leg.sequence and leg.maximum is not None]
    if length is None:
        return min([LENGTH, *maxima])
    if length < 1:
        raise InputError(f"length is {length}; give at least 1.")
    return length
