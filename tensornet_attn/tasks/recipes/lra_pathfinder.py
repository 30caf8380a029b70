"""lra_pathfinder: the Long Range Arena's Pathfinder: whether two dots are the ends of one path, pixel by pixel.

A folder with curv_baseline, curv_contour_length_9 and curv_contour_length_14 (easy, intermediate, hard). Each has
metadata/*.npy, which is text: `FOLDER FILE NUMBER LABEL ...` a line, and PNG files. As in the arena empty files are
left out, and 80, 10 and 10 % are for training, validation and test; here in an order fixed once, for every seed.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.cache import Arrays, Cache
from tensornet_attn.tasks.chance import Integers, Stream
from tensornet_attn.tasks.pictures import GREYS
from tensornet_attn.tasks.png import Unreadable, read_png
from tensornet_attn.tasks.reading import MissingFile, fingerprint, read_bytes, read_text, the_files
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Recipe, Source, sizes_of
from tensornet_attn.tasks.splits import Rows

FOLDERS = {"easy": "curv_baseline", "intermediate": "curv_contour_length_9", "hard": "curv_contour_length_14"}
CLASSES = ("0", "1")
Picture = tuple[Path, int, int]  # file, label, bytes


class Options(Base):
    path: str = Field(description="the folder of curv_baseline and the like")
    level: Literal["easy", "intermediate", "hard"] = Field("hard", description="which of the three")
    side: int = Field(32, ge=1, le=1024, description="pixels of a side; a sample has side * side tokens")


def _open(options: Options, cache: Cache) -> Source:
    folder = Path(options.path) / FOLDERS[options.level]
    listed = _listed(folder)
    facts = [f"{path.relative_to(folder)} {label} {size} {path.stat().st_mtime_ns}" for path, label, size in listed]
    key = {"task": "lra_pathfinder", "version": 1, "side": options.side, "files": fingerprint(facts)}
    arrays = cache.keep(key, lambda: _arrays(listed, options.side))
    order = Stream("lra_pathfinder", 1, "train", 0).order(0, len(listed))
    cuts = [len(order) * 8 // 10, len(order) * 9 // 10]
    parts = dict(zip(("train", "validation", "test"), np.split(order, cuts), strict=True))
    for split, part in parts.items():
        if not len(part):
            raise InputError(f"task 'lra_pathfinder': split '{split}' has no samples; give more pictures.")

    def rows(stream: Stream, index: Integers) -> Rows:
        chosen = parts[stream.split][index]
        return {name: arrays[name][chosen] for name in ("tokens", "targets")}

    return Source("classification", GREYS, options.side**2, sizes_of(parts), rows, classes=CLASSES)


def _listed(folder: Path) -> list[Picture]:
    """The pictures that the metadata name, without empty files. Raises InputError."""
    tables = sorted(the_files(folder / "metadata", "*.npy"), key=lambda path: (len(path.name), path.name))
    found = []
    for table in tables:
        for number, line in enumerate(read_text(table).splitlines(), 1):
            picture = _picture(folder, table, number, line.split(" "))
            if picture[2]:
                found.append(picture)
    return found


def _picture(folder: Path, table: Path, number: int, fields: list[str]) -> Picture:
    if len(fields) < 4 or fields[3] not in CLASSES:
        raise InputError(f"'{table}', line {number}: folder, file, number and label (0 or 1) are needed.")
    inside = PurePosixPath(fields[0]) / fields[1]
    if inside.is_absolute() or ".." in inside.parts:
        raise InputError(f"'{table}', line {number}: '{inside}' is outside of the folder.")
    path = folder / inside
    try:
        return path, int(fields[3]), path.stat().st_size
    except OSError as error:
        raise MissingFile(f"'{path}' cannot be read: {error.strerror or error}.") from error


def _arrays(listed: list[Picture], side: int) -> Arrays:
    tokens = np.zeros((len(listed), side * side), np.uint8)
    for row, (path, _, _) in zip(tokens, listed, strict=True):
        try:
            pixels = read_png(read_bytes(path))
        except Unreadable as error:
            raise InputError(f"'{path}' cannot be read: {error}.") from error
        if pixels.shape != (side, side, 1):
            height, width, channels = pixels.shape
            raise InputError(
                f"'{path}' has {height} x {width} pixels of {channels} channels, not {side} x {side} grey."
            )
        row[:] = pixels.reshape(-1)
    return {"tokens": tokens, "targets": np.array([label for _, label, _ in listed], np.uint8)}


RECIPE = Recipe(
    "lra_pathfinder",
    1,
    "The arena's Pathfinder: do two dots lie on one path.",
    Options,
    _open,
    drawn=False,
    costly=True,
    files=f"path is the folder of {', '.join(FOLDERS.values())}: pathfinder32 of the arena's lra_release, or another "
    "side.",
)
