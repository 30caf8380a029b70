"""lra_image: the Long Range Arena's image task: the class of a grey picture, pixel by pixel.

A folder with CIFAR-10's binary files data_batch_*.bin and test_batch.bin: a byte for the class, then the red, green and
blue planes. As in the arena, the last tenth of the training pictures is for validation. Grey is that of its image
library: 0.2989 red + 0.587 green + 0.114 blue, rounded as that does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.chance import Integers, Stream
from tensornet_attn.tasks.reading import read_bytes, the_file
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Recipe, Source, sizes_of
from tensornet_attn.tasks.splits import Rows

GREYS = Alphabet(tuple(map(str, range(256))))
Bytes = npt.NDArray[np.uint8]


class Options(Base):
    path: str = Field(description="the folder of data_batch_*.bin and test_batch.bin")
    side: int = Field(32, ge=1, le=4096, description="pixels of a side; a sample has side * side tokens")
    classes: int = Field(10, ge=2, le=256, description="classes of the pictures")


def _open(options: Options, cache: Cache) -> Source:
    folder = Path(options.path)
    paths = sorted(folder.glob("data_batch_*.bin"))
    if not paths:
        raise InputError(f"'{folder}' holds no data_batch_*.bin; give the folder of CIFAR-10's binary files.")
    train = np.concatenate([_records(path, options) for path in paths])
    parts = {
        "train": train[: len(train) * 9 // 10],
        "validation": train[len(train) * 9 // 10 :],
        "test": _records(the_file(folder, "test_batch.bin"), options),
    }
    for split, part in parts.items():
        if not len(part):
            raise InputError(f"task 'lra_image': split '{split}' has no samples; give more pictures.")

    def rows(stream: Stream, index: Integers) -> Rows:
        chosen = parts[stream.split][index]
        return {"tokens": grey(chosen[:, 1:]), "targets": chosen[:, 0].astype(np.int64)}

    names = tuple(map(str, range(options.classes)))
    return Source("classification", GREYS, options.side**2, sizes_of(parts), rows, classes=names)


def _records(path: Path, options: Options) -> Bytes:
    """[pictures, 1 + 3 side side] of one file. Raises InputError."""
    data = np.frombuffer(read_bytes(path), np.uint8)
    size = 1 + 3 * options.side**2
    if len(data) % size:
        raise InputError(f"'{path}' has {len(data):,} bytes; pictures of side {options.side} have {size:,} each.")
    records = data.reshape(-1, size)
    if len(records) and records[:, 0].max() >= options.classes:
        raise InputError(f"'{path}' has class {records[:, 0].max()}; there are {options.classes}, from 0 on.")
    return records


def grey(planes: Bytes) -> Integers:
    """[pictures 3 pixels] of colours as grey levels [pictures pixels], in whole numbers.

    >>> grey(np.array([[255, 0, 10, 255, 0, 20, 255, 0, 30]], np.uint8)).tolist()
    [[255, 0, 18]]
    """
    red, green, blue = planes.reshape(len(planes), 3, -1).astype(np.int64).transpose(1, 0, 2)
    return (2989 * red + 5870 * green + 1140 * blue) * 511 // 5_100_000


RECIPE = Recipe("lra_image", 1, "The arena's image task: grey pictures, pixel by pixel.", Options, _open, drawn=False)
