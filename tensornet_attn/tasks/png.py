"""Grey pictures out of PNG files, by Pillow: eight bits a channel, not interlaced, as image data sets store them."""

from __future__ import annotations

import struct
from importlib.util import find_spec
from io import BytesIO

import numpy as np
import numpy.typing as npt

from tensornet_attn.errors import MissingPartError

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
