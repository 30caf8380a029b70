"""image_generation: the next pixel of a picture, from the first to the last: every pixel and colour is predicted.

A picture is its rows one after the other, a colour picture red, green and blue of each pixel in turn. A mark stands
before it, so that the first pixel is predicted as well: bits per dimension are over all pixels and colours. A folder of
MNIST's idx files, or of CIFAR-10's binary files; the last tenth of the training pictures is for validation, where the
linear transformer (Katharopoulos et al., 2020), which Tuformer follows, trains on all.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.chance import Integers, Stream
from tensornet_attn.tasks.pictures import GREYS, cifar10, grey, mnist
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Recipe, Source, sizes_of
from tensornet_attn.tasks.splits import Rows

LEVELS = Alphabet((*GREYS.words, "begin"))
BEGIN = 256


class Options(Base):
    path: str = Field(description="the folder of MNIST's idx files, or of CIFAR-10's binary files")
    data: Literal["mnist", "cifar10"] = Field(description="which of the two")
    grey: bool = Field(False, description="whether colours become grey levels: one number a pixel in place of three")
    side: int = Field(
        32, ge=1, le=4096, description="pixels of a side of CIFAR-10's pictures; MNIST's files say theirs"
    )


def _open(options: Options, cache: Cache) -> Source:
    train, test = _sequences(options)
    held = len(train) * 9 // 10
    parts = {"train": train[:held], "validation": train[held:], "test": test}
    for split, part in parts.items():
        if not len(part):
            raise InputError(f"task 'image_generation': split '{split}' has no samples; give more pictures.")

    def rows(stream: Stream, index: Integers) -> Rows:
        targets = parts[stream.split][index].astype(np.int64)
        return {"tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=BEGIN), "targets": targets}

    return Source(
        "language_model", LEVELS, train.shape[1], sizes_of(parts), rows, measure="bits_per_dimension"
    )  # fmt: skip


def _sequences(options: Options) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]:
    """(training, test) pictures as [pictures, numbers of a picture]."""
    folder = Path(options.path)
    if options.data == "mnist":
        train, test = mnist(folder)
        pixels = math.prod(train.shape[1:])
        return train.reshape(-1, pixels), test.reshape(-1, pixels)
    train, test = (records[:, 1:] for records in cifar10(folder, options.side, 256))
    if options.grey:
        return grey(train), grey(test)
    return _interleaved(train), _interleaved(test)


def _interleaved(planes: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Red, green and blue planes as red, green and blue of each pixel: [pictures 3 pixels] -> [pictures pixels 3]."""
    return planes.reshape(len(planes), 3, -1).transpose(0, 2, 1).reshape(planes.shape)


RECIPE = Recipe(
    "image_generation",
    1,
    "The next pixel of a picture, of MNIST or CIFAR-10.",
    Options,
    _open,
    drawn=False,
    files="path is, with data=mnist, the folder of MNIST's train-images-idx3-ubyte and t10k-images-idx3-ubyte, packed "
    "with gzip or not; with data=cifar10, that of data_batch_1.bin to data_batch_5.bin and test_batch.bin: CIFAR-10's "
    "binary version, unpacked.",
)
