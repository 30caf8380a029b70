"""PNG files: what is read of them, and what is refused."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from tensornet_attn.tasks.recipes.pictures import SIGNATURE, UnreadableImage, read_png

MODES = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}


@pytest.mark.parametrize("mode", MODES)
def test_pixels_have_the_channels_of_each_mode(mode: str) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (13, 17, MODES[mode]), np.uint8)
    file = io.BytesIO()
    Image.fromarray(picture[:, :, 0] if mode == "L" else picture, mode).save(file, "PNG", optimize=True)
    assert np.array_equal(read_png(file.getvalue()), picture)


def png(rows: bytes, width: int = 4, height: int = 5, depth: int = 8, interlaced: int = 0) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, interlaced)
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


GOOD = png(bytes(25))
BAD = [
    (b"GIF89a", "it is not a PNG file"),
    (SIGNATURE, "it is damaged"),
    (GOOD[:40], "it is damaged"),
    (GOOD[:45] + b"\xff\xff\xff" + GOOD[48:], "it is damaged"),
    (png(bytes(24)), "it is damaged"),
    (png(bytes([9]) + bytes(24)), "it is damaged"),
    (png(bytes(25), depth=16), "it must be a PNG file of eight bits per channel without palette or interlacing"),
    (png(bytes(25), interlaced=1), "it must be a PNG file of eight bits per channel without palette or interlacing"),
    (png(b"", width=0), "it has 0 x 5 pixels"),
    (png(b"", width=2**30), "it has 1073741824 x 5 pixels"),
]


@pytest.mark.parametrize(("data", "reason"), BAD)
def test_what_is_no_such_picture_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableImage) as error:
        read_png(data)
    assert str(error.value) == reason


def test_a_small_file_cannot_fill_the_memory() -> None:
    assert len(png(bytes(10**7))) < 20_000
    assert read_png(png(bytes(10**7))).shape == (5, 4, 1)
