"""lra_image: the Long Range Arena's image task: the class of a grey picture, pixel by pixel.

A folder with CIFAR-10's binary files data_batch_*.bin and test_batch.bin: a byte for the class, then the red, green and
blue planes. As in the arena, the last tenth of the training pictures is for validation. Grey is that of its image
library: 0.2989 red + 0.587 green + 0.114 blue, rounded as that does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.cache import Cache
from tensornet_attn.tasks.chance import Integers, Stream
from tensornet_attn.tasks.pictures import GREYS, cifar10, grey
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Recipe, Source, sizes_of
from tensornet_attn.tasks.splits import Rows


class Options(Base):
    path: str = Field(description="the folder of data_batch_*.bin and test_batch.bin")
    side: int = Field(32, ge=1, le=4096, description="pixels of a side; a sample has side * side tokens")
    classes: int = Field(10, ge=2, le=256, description="classes of the pictures")


def _open(options: Options, cache: Cache) -> Source:
    train, test = cifar10(Path(options.path), options.side, options.classes)
    held = len(train) * 9 // 10
    parts = {"train": train[:held], "validation": train[held:], "test": test}
    for split, part in parts.items():
        if not len(part):
            raise InputError(f"task 'lra_image': split '{split}' has no samples; give more pictures.")

    def rows(stream: Stream, index: Integers) -> Rows:
        chosen = parts[stream.split][index]
        return {"tokens": grey(chosen[:, 1:]), "targets": chosen[:, 0].astype(np.int64)}

    names = tuple(map(str, range(options.classes)))
    return Source("classification", GREYS, options.side**2, sizes_of(parts), rows, classes=names)


RECIPE = Recipe(
    "lra_image",
    1,
    "The arena's image task: grey pictures, pixel by pixel.",
    Options,
    _open,
    drawn=False,
    files="path is the folder of data_batch_1.bin to data_batch_5.bin and test_batch.bin: CIFAR-10's binary version, "
    "unpacked.",
)
