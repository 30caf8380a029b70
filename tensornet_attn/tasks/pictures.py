"""Data sets of pictures in their own files: CIFAR-10's records, the idx files of MNIST, and grey PNG files."""

from __future__ import annotations

import gzip
import struct
import zlib
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.chance import Integers
from tensornet_attn.tasks.reading import read_bytes, the_file, the_files

GREYS = Alphabet(tuple(map(str, range(256))))
Bytes = npt.NDArray[np.uint8]
_PICTURES = b"\x00\x00\x08\x03"  # idx: unsigned bytes in three dimensions


def cifar10(folder: Path, side: int = 32, classes: int = 10) -> tuple[Bytes, Bytes]:
    """(training, test) records of a folder of data_batch_*.bin and test_batch.bin: [pictures, 1 + 3 side side].

    A record is a byte for the class, then the red, green and blue planes. Raises InputError.
    """
    train = [_records(path, side, classes) for path in the_files(folder, "data_batch_*.bin")]
    return np.concatenate(train), _records(the_file(folder, "test_batch.bin"), side, classes)


def _records(path: Path, side: int, classes: int) -> Bytes:
    data = np.frombuffer(read_bytes(path), np.uint8)
    size = 1 + 3 * side**2
    if len(data) % size:
        raise InputError(f"'{path}' has {len(data):,} bytes; pictures of side {side} have {size:,} each.")
    records = data.reshape(-1, size)
    if len(records) and records[:, 0].max() >= classes:
        raise InputError(f"'{path}' has class {records[:, 0].max()}; there are {classes}, from 0 on.")
    return records


def mnist(folder: Path) -> tuple[Bytes, Bytes]:
    """(training, test) grey levels of train-images-idx3-ubyte and t10k-images-idx3-ubyte: [pictures, height, width].

    Both may end in `.gz`, and have a dot in place of the last dash but one. Raises InputError.
    """
    train, test = (_idx(the_file(folder, f"{name}-images[-.]idx3-ubyte*")) for name in ("train", "t10k"))
    if train.shape[1:] != test.shape[1:]:
        sides = [f"{height} x {width}" for _, height, width in (train.shape, test.shape)]
        raise InputError(f"'{folder}' has training pictures of {sides[0]} pixels and test pictures of {sides[1]}.")
    return train, test


def _idx(path: Path) -> Bytes:
    """The pictures of an idx file: four bytes say what it holds, then each dimension has four, then the pixels."""
    data = read_bytes(path)
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"'{path}' cannot be unpacked: {error}.") from error
    if not data.startswith(_PICTURES) or len(data) < 16:
        raise InputError(
            f"'{path}' is no idx file of grey pictures: it does not begin with 00 00 08 03 and three sizes."
        )
    count, height, width = struct.unpack(">3I", data[4:16])
    if len(data) - 16 != count * height * width:
        raise InputError(
            f"'{path}' has {len(data) - 16:,} pixels; its header says {count:,} pictures of {height} x {width}."
        )
    return np.frombuffer(data, np.uint8, offset=16).reshape(count, height, width)


def grey(planes: Bytes) -> Integers:
    """[pictures 3 pixels] of colours as grey levels [pictures pixels], in whole numbers.

    >>> grey(np.array([[255, 0, 10, 255, 0, 20, 255, 0, 30]], np.uint8)).tolist()
    [[255, 0, 18]]
    """
    red, green, blue = planes.reshape(len(planes), 3, -1).astype(np.int64).transpose(1, 0, 2)
    return (2989 * red + 5870 * green + 1140 * blue) * 511 // 5_100_000


Pixels = npt.NDArray[np.uint8]
SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MODES = ("L", "LA", "RGB", "RGBA")
_SIDE = 1 << 12  # a small file could name a picture that fills the memory
_HEAD = 33  # bytes of the signature and the header


class Unreadable(Exception):
    """Why a file is no picture that can be read here."""


def read_png(data: bytes) -> Pixels:
    """[height width channels] of a PNG file. Raises Unreadable, MissingPartError."""
    if find_spec("PIL") is None:
        raise MissingPartError("pictures need Pillow: pip install 'tensornet-attn[train]'.")
    from PIL import Image

    if not data.startswith(SIGNATURE):
        raise Unreadable("it is no PNG file")
    if len(data) < _HEAD:
        raise Unreadable("it is damaged")
    width, height, depth = struct.unpack(">IIB", data[16:25])
    if not (0 < width <= _SIDE and 0 < height <= _SIDE):
        raise Unreadable(f"it has {width} x {height} pixels")
    try:
        with Image.open(BytesIO(data), formats=["PNG"]) as picture:
            plain = depth == 8 and picture.mode in _MODES and not picture.info.get("interlace")
            pixels = np.asarray(picture) if plain else None
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for a damaged file
        raise Unreadable("it is damaged") from error
    if pixels is None:
        raise Unreadable("only PNG files of eight bits a channel, without palette and interlacing, are read")
    return pixels.reshape(height, width, -1)
