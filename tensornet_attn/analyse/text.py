"""Text as the input of a layer: windows of UTF-8 bytes, each byte an embedding, each position a sinusoid."""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence

import torch

from tensornet_attn.analyse.repeat import repeated_tokens
from tensornet_attn.errors import InputError
from tensornet_attn.graph.model import Graph
from tensornet_attn.graph.model import Tensor as Leaf
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.runtime.positions import sinusoid

Tensor = torch.Tensor
LENGTH, BATCH = 128, 8


def text_inputs(
    module: CompiledDesign,
    path: str,
    length: int | None = None,
    batch: int = BATCH,
    seed: int = 0,
    embedding: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The inputs of a design, made from a text file: one [batch, length, f] for each input that has no default.

    The text is read as UTF-8 and cut into windows of `length` bytes (128, or the largest length of the design); as many
    as there are, at most `batch` for each input. A second input, such as the memory of cross, gets the window after the
    first's, the last one the first. A byte is its row of `embedding` [256, f], or of one drawn from N(0, 1) with
    `seed`; sinusoids of the position are added. Raises InputError, OSError.
    """
    widths = _widths(module)
    wanted = _length(module.plan.graph, length)
    windows = cut(read_text(path, wanted * (batch + 1)), wanted, batch + 1, path)
    chosen = [windows.roll(-place, 0)[:batch] for place in range(len(widths))]
    return _embedded(module, chosen, widths, seed, embedding)


def repeated_inputs(
    module: CompiledDesign,
    length: int | None = None,
    batch: int = BATCH,
    seed: int = 0,
    embedding: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The inputs of a design for `induction_scores`: random bytes, embedded as by `text_inputs`, repeated once.

    [batch, 2 * period, f] for each input that has no default, the same sequences for all; period is half of `length`
    (128, or the largest length of the design), at most 256. No inputs where the length has no room for two tokens
    twice. Raises InputError.
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
    """[batch, length, width] for each of some windows of bytes [batch, length]."""
    table = {width: _table(width, seed, embedding) for width in widths}
    like = next(module.parameters(), torch.zeros(()))
    inputs = []
    for bytes_, width in zip(windows, widths, strict=True):
        value = table[width][bytes_] + sinusoid(torch.arange(bytes_.shape[1]), width, torch.float32)
        inputs.append(value.to(like.device, like.dtype))
    return tuple(inputs)


def _widths(module: CompiledDesign) -> list[int]:
    """The width of each input that has no default. Raises InputError."""
    graph = module.plan.graph
    return [_width(graph, tensor) for tensor in graph.of_role("input") if tensor.default is None]


def read_text(path: str, size: int) -> bytes:
    """The first bytes of a text file. Raises InputError where they are not UTF-8 or none, OSError."""
    with open(os.fspath(path), "rb") as file:
        data = file.read(size)
        last = not file.read(1)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, last)  # a character may be cut at the end
    except UnicodeDecodeError as error:
        raise InputError(f"'{path}': byte {error.start} is not UTF-8; save it as UTF-8 text.") from error
    if not data:
        raise InputError(f"'{path}' is empty: there is no text to look at.")
    return data


def cut(data: bytes, length: int, batch: int, path: str = "text") -> Tensor:
    """Windows of bytes: [windows, length]; a text shorter than one window is one of its own length.

    >>> cut(b"abcdefgh", 3, 8).tolist()
    [[97, 98, 99], [100, 101, 102]]
    """
    length = min(length, len(data))
    count = min(len(data) // length, batch)
    return torch.tensor(list(data[: count * length])).reshape(count, length)


def _table(width: int, seed: int, embedding: Tensor | None) -> Tensor:
    """[256, f]: the row of each byte."""
    if embedding is None:
        return torch.randn(256, width, generator=torch.Generator().manual_seed(seed))
    if tuple(embedding.shape) != (256, width):
        raise InputError(f"the checkpoint's embedding has shape {list(embedding.shape)}; a byte needs [256, {width}].")
    return embedding.detach().float()


def _width(graph: Graph, leaf: Leaf) -> int:
    """The size of the one leg beside the sequence leg. Raises InputError."""
    sizes = [graph.leg[leg].size for leg in leaf.legs[1:]]
    if len(leaf.legs) != 2 or not graph.leg[leaf.legs[0]].sequence or sizes[0] is None:
        shape = " ".join(leaf.legs)
        raise InputError(
            f"{graph.name}: input '{leaf.name}' has legs '{shape}'; text goes on a sequence leg and one more."
        )
    return sizes[0]


def _length(graph: Graph, length: int | None) -> int:
    maxima = [leg.maximum for leg in graph.legs if leg.sequence and leg.maximum is not None]
    if length is None:
        return min([LENGTH, *maxima])
    if length < 1:
        raise InputError(f"length is {length}; a window has at least one byte.")
    return length
