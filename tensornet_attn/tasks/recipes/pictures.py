"""Image tasks, pixel by pixel: classification, generation and Pathfinder, with readers of their files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.chance import Integers, RandomStream, Rows
from tensornet_attn.tasks.reading import (
    Cache,
    MissingFile,
    fingerprint,
    read_bytes,
    read_text,
    the_file,
    the_files,
)
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Recipe, Source, sizes_of

GREYS = Alphabet(tuple(map(str, range(256))))
Bytes = npt.NDArray[np.uint8]
LEVELS = Alphabet((*GREYS.words, "begin"))
BEGIN = 256
FOLDERS = {"easy": "curv_baseline", "intermediate": "curv_contour_length_9", "hard": "curv_contour_length_14"}
CLASSES = ("0", "1")
Picture = tuple[Path, int, int]  # file, label, size in bytes
_PICTURES = b"\x00\x00\x08\x03"  # idx: unsigned bytes in three dimensions
SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MODES = ("L", "LA", "RGB", "RGBA")
_SIDE = 1 << 12  # maximum side: the header of a small file could claim a picture larger than memory
_HEAD = 33  # bytes of the signature and the header


def cifar10(folder: Path, side: int = 32, classes: int = 10) -> tuple[Bytes, Bytes]:
    """(training, test) records of a folder of data_batch_*.bin and test_batch.bin: [images, 1 + 3 * side * side].

    A record is a byte for the class, then the red, green and blue planes. Raises InputError for other files.
    """
    train = [_records(path, side, classes) for path in the_files(folder, "data_batch_*.bin")]
    return np.concatenate(train), _records(the_file(folder, "test_batch.bin"), side, classes)


def _records(path: Path, side: int, classes: int) -> Bytes:
    content = np.frombuffer(read_bytes(path), np.uint8)
    size = 1 + 3 * side**2
    if len(content) % size:
        raise InputError(f"'{path}' has {len(content):,} bytes, not a multiple of {size:,}, an image of side {side}.")
    records = content.reshape(-1, size)
    if len(records) and records[:, 0].max() >= classes:
        raise InputError(f"'{path}' has class {records[:, 0].max()}; the classes are 0 to {classes - 1}.")
    return records


def mnist(folder: Path) -> tuple[Bytes, Bytes]:
    """(training, test) grey levels of train-images-idx3-ubyte and t10k-images-idx3-ubyte: [images, height, width].

    The names may have the form train-images.idx3-ubyte, and may end in `.gz`. Raises InputError for other files.
    """
    train, test = (_idx(the_file(folder, f"{name}-images[-.]idx3-ubyte*")) for name in ("train", "t10k"))
    if train.shape[1:] != test.shape[1:]:
        sides = [f"{height} x {width}" for _, height, width in (train.shape, test.shape)]
        raise InputError(f"'{folder}' has training images of {sides[0]} pixels and test images of {sides[1]}.")
    return train, test


def _idx(path: Path) -> Bytes:
    """The images of an idx file: four bytes for the type, four for each dimension, then the pixels."""
    content = read_bytes(path)
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"'{path}' cannot be unpacked: {error}.") from error
    if not content.startswith(_PICTURES) or len(content) < 16:
        raise InputError(
            f"'{path}' is not an idx file of grey images: it does not begin with 00 00 08 03 and three sizes."
        )
    count, height, width = struct.unpack(">3I", content[4:16])
    if len(content) - 16 != count * height * width:
        raise InputError(
            f"'{path}' has {len(content) - 16:,} pixels, but its header has {count:,} images of {height} x {width}."
        )
    return np.frombuffer(content, np.uint8, offset=16).reshape(count, height, width)


def grey(planes: Bytes) -> Integers:
    """Converts colour planes [images, 3 * pixels] to integer grey levels [images, pixels].

    >>> grey(np.array([[255, 0, 10, 255, 0, 20, 255, 0, 30]], np.uint8)).tolist()
    [[255, 0, 18]]
    """
    red, green, blue = planes.reshape(len(planes), 3, -1).astype(np.int64).transpose(1, 0, 2)
    return (2989 * red + 5870 * green + 1140 * blue) * 511 // 5_100_000


class UnreadableImage(Exception):
    """The reason why an image file cannot be read."""


def read_png(content: bytes) -> Bytes:
    """The pixels [height, width, channels] of a PNG file. Raises UnreadableImage; without Pillow, MissingPartError."""
    if find_spec("PIL") is None:
        raise MissingPartError("reading images needs Pillow: pip install 'tensornet-attn[train]'.")
    from PIL import Image

    if not content.startswith(SIGNATURE):
        raise UnreadableImage("it is not a PNG file")
    if len(content) < _HEAD:
        raise UnreadableImage("it is damaged")
    width, height, depth = struct.unpack(">IIB", content[16:25])
    if not (0 < width <= _SIDE and 0 < height <= _SIDE):
        raise UnreadableImage(f"it has {width} x {height} pixels")
    try:
        with Image.open(BytesIO(content), formats=["PNG"]) as picture:
            plain = depth == 8 and picture.mode in _MODES and not picture.info.get("interlace")
            pixels = np.asarray(picture) if plain else None
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for a damaged file
        raise UnreadableImage("it is damaged") from error
    if pixels is None:
        raise UnreadableImage("it must be a PNG file of eight bits per channel without palette or interlacing")
    return pixels.reshape(height, width, -1)


def with_validation(train: Bytes, test: Bytes) -> dict[str, Bytes]:
    """The three splits; validation is the last tenth of the training images."""
    train_end = len(train) * 9 // 10
    return {"train": train[:train_end], "validation": train[train_end:], "test": test}


class GreyImage(Base):
    path: str = Field(description="the folder of data_batch_*.bin and test_batch.bin")
    side: int = Field(32, ge=1, le=4096, description="pixels of a side; a sample has side * side tokens")
    classes: int = Field(10, ge=2, le=256, description="number of classes")


def _open_image(options: GreyImage, cache: Cache) -> Source:
    """lra_image: the Long Range Arena's image task: the class of a greyscale image, pixel by pixel.

    The folder has CIFAR-10's binary files data_batch_*.bin and test_batch.bin: a byte for the class, then the red,
    green and blue planes. As in the arena, the last tenth of the training images is for validation, and grey is 0.2989
    red + 0.587 green + 0.114 blue, rounded like the arena's image library does.
    """
    train, test = cifar10(Path(options.path), options.side, options.classes)
    parts = with_validation(train, test)
    sizes = sizes_of("lra_image", parts, "give more images")

    def rows(stream: RandomStream, index: Integers) -> Rows:
        chosen = parts[stream.split][index]
        return {"tokens": grey(chosen[:, 1:]), "targets": chosen[:, 0].astype(np.int64)}

    names = tuple(map(str, range(options.classes)))
    return Source("classification", GREYS, options.side**2, sizes, rows, classes=names)


LRA_IMAGE = Recipe(
    "lra_image",
    1,
    "The arena's image task: greyscale images, pixel by pixel.",
    GreyImage,
    _open_image,
    drawn=False,
    files="path is the folder of data_batch_1.bin to data_batch_5.bin and test_batch.bin: CIFAR-10's binary version, "
    "unpacked.",
)


class Generation(Base):
    path: str = Field(description="the folder of MNIST's idx files, or of CIFAR-10's binary files")
    data: Literal["mnist", "cifar10"] = Field(description="the data set, mnist or cifar10")
    grey: bool = Field(False, description="whether to convert colours to grey: one token per pixel instead of three")
    side: int = Field(32, ge=1, le=4096, description="pixels of a side of CIFAR-10's images; MNIST's files have theirs")


def _open_generation(options: Generation, cache: Cache) -> Source:
    """image_generation: the next pixel of an image, row by row; of a colour image, red, green and blue of each pixel.

    A marker before the image lets the model predict the first pixel, so bits per dimension are over all pixels and
    colours. The folder has MNIST's idx files or CIFAR-10's binary files. The last tenth of the training images is for
    validation; the linear transformer (Katharopoulos et al., 2020), which Tuformer follows, trains on all of them.
    """
    train, test = _sequences(options)
    parts = with_validation(train, test)
    sizes = sizes_of("image_generation", parts, "give more images")

    def rows(stream: RandomStream, index: Integers) -> Rows:
        targets = parts[stream.split][index].astype(np.int64)
        return {"tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=BEGIN), "targets": targets}

    return Source("language_model", LEVELS, train.shape[1], sizes, rows, measure="bits_per_dimension")


def _sequences(options: Generation) -> tuple[Bytes, Bytes]:
    """(training, test) images as sequences: [images, values per image]."""
    folder = Path(options.path)
    if options.data == "mnist":
        train, test = mnist(folder)
        pixels = math.prod(train.shape[1:])
        return train.reshape(-1, pixels), test.reshape(-1, pixels)
    train, test = (records[:, 1:] for records in cifar10(folder, options.side, 256))
    if options.grey:
        return grey(train).astype(np.uint8), grey(test).astype(np.uint8)
    shape = (-1, 3, options.side**2)  # planes of red, green and blue, interleaved below
    train, test = (planes.reshape(shape).transpose(0, 2, 1).reshape(planes.shape) for planes in (train, test))
    return train, test


IMAGE_GENERATION = Recipe(
    "image_generation",
    1,
    "The next pixel of an image of MNIST or CIFAR-10.",
    Generation,
    _open_generation,
    drawn=False,
    files="path is, with data=mnist, the folder of MNIST's train-images-idx3-ubyte and t10k-images-idx3-ubyte, with or "
    "without gzip; with data=cifar10, the folder of data_batch_1.bin to data_batch_5.bin and test_batch.bin: "
    "CIFAR-10's binary version, unpacked.",
)


class Pathfinder(Base):
    path: str = Field(description="the folder of curv_baseline, curv_contour_length_9 and curv_contour_length_14")
    level: Literal["easy", "intermediate", "hard"] = Field("hard", description="the difficulty, which selects a folder")
    side: int = Field(32, ge=1, le=1024, description="pixels of a side; a sample has side * side tokens")


def _open_pathfinder(options: Pathfinder, cache: Cache) -> Source:
    """lra_pathfinder: the Long Range Arena's Pathfinder, pixel by pixel: are two dots the ends of one path?

    The folder has curv_baseline, curv_contour_length_9 and curv_contour_length_14 (easy, intermediate, hard). Each has
    PNG files and metadata/*.npy, text files with lines `FOLDER FILE NUMBER LABEL ...`. As in the arena, empty files are
    skipped, and 80, 10 and 10 % are for training, validation and test; the order is the same for every seed.
    """
    folder = Path(options.path) / FOLDERS[options.level]
    listed = _listed(folder)
    facts = [f"{path.relative_to(folder)} {label} {size} {path.stat().st_mtime_ns}" for path, label, size in listed]
    key = {"task": "lra_pathfinder", "version": 1, "side": options.side, "files": fingerprint(facts)}
    arrays = cache.keep(key, lambda: _pathfinder_arrays(listed, options.side))
    order = RandomStream("lra_pathfinder", 1, "train", 0).order(0, len(listed))
    cuts = [len(order) * 8 // 10, len(order) * 9 // 10]
    parts = dict(zip(("train", "validation", "test"), np.split(order, cuts), strict=True))
    sizes = sizes_of("lra_pathfinder", parts, "give more images")

    def rows(stream: RandomStream, index: Integers) -> Rows:
        chosen = parts[stream.split][index]
        return {name: arrays[name][chosen] for name in ("tokens", "targets")}

    return Source("classification", GREYS, options.side**2, sizes, rows, classes=CLASSES)


def _listed(folder: Path) -> list[Picture]:
    """The images that the metadata list, without empty files. Raises InputError."""
    tables = sorted(the_files(folder / "metadata", "*.npy"), key=lambda path: (len(path.name), path.name))
    pictures = []
    for table in tables:
        for number, line in enumerate(read_text(table).splitlines(), 1):
            fields = line.split(" ")
            if len(fields) < 4 or fields[3] not in CLASSES:
                raise InputError(f"'{table}', line {number}: give folder, file, number and label (0 or 1).")
            inside = PurePosixPath(fields[0]) / fields[1]
            if inside.is_absolute() or ".." in inside.parts:
                raise InputError(f"'{table}', line {number}: '{inside}' is outside the folder.")
            path = folder / inside
            try:
                size = path.stat().st_size
            except OSError as error:
                raise MissingFile(f"'{path}' cannot be read: {error.strerror or error}.") from error
            if size:
                pictures.append((path, int(fields[3]), size))
    return pictures


def _pathfinder_arrays(listed: list[Picture], side: int) -> Rows:
    tokens = np.zeros((len(listed), side * side), np.uint8)
    for row, (path, _, _) in zip(tokens, listed, strict=True):
        try:
            pixels = read_png(read_bytes(path))
        except UnreadableImage as error:
            raise InputError(f"'{path}' cannot be read: {error}.") from error
        if pixels.shape != (side, side, 1):
            height, width, depth = pixels.shape
            raise InputError(f"'{path}' has {height} x {width} pixels of {depth} channels; give {side} x {side}, grey.")
        row[:] = pixels.reshape(-1)
    return {"tokens": tokens, "targets": np.array([label for _, label, _ in listed], np.uint8)}


LRA_PATHFINDER = Recipe(
    "lra_pathfinder",
    1,
    "The arena's Pathfinder: do two dots lie on one path?",
    Pathfinder,
    _open_pathfinder,
    drawn=False,
    costly=True,
    files=f"path is the folder of {', '.join(FOLDERS.values())}: pathfinder32 of the arena's lra_release, or the same "
    "with another side.",
)
