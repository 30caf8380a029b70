"""Grey pictures out of PNG files: eight bits a channel, not interlaced, as image data sets store them."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}  # colour type -> channels
_SIDE = 1 << 12  # a small file could name a picture that fills the memory


class Unreadable(Exception):
    """Why a file is no picture that can be read here."""


def read_png(data: bytes) -> Pixels:
    """[height width channels] of a PNG file. Raises Unreadable."""
    if not data.startswith(SIGNATURE):
        raise Unreadable("it is no PNG file")
    header, body = _chunks(data)
    width, height, depth, colour, _, _, interlaced = header
    if depth != 8 or colour not in _CHANNELS or interlaced:
        raise Unreadable("only PNG files of eight bits a channel, without palette and interlacing, are read")
    if not (0 < width <= _SIDE and 0 < height <= _SIDE):
        raise Unreadable(f"it has {width} x {height} pixels")
    channels = _CHANNELS[colour]
    size = height * (1 + width * channels)
    try:
        raw = zlib.decompressobj().decompress(body, size)
    except zlib.error as error:
        raise Unreadable("it is damaged") from error
    if len(raw) != size:
        raise Unreadable("it is damaged")
    rows = np.frombuffer(raw, np.uint8).reshape(height, -1)
    return _unfiltered(rows[:, 0], rows[:, 1:], channels).reshape(height, width, channels)


def _chunks(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """The fields of the header, and the compressed rows."""
    place, header, body = len(SIGNATURE), b"", []
    while place + 8 <= len(data):
        (size,), kind = struct.unpack(">I", data[place : place + 4]), data[place + 4 : place + 8]
        content = data[place + 8 : place + 8 + size]
        if kind == b"IHDR":
            header = content
        elif kind == b"IDAT":
            body.append(content)
        place += size + 12
    if len(header) != 13:
        raise Unreadable("it is damaged")
    return struct.unpack(">IIBBBBB", header), b"".join(body)


def _unfiltered(filters: Pixels, rows: Pixels, step: int) -> Pixels:
    """Rows with what the filter of each took away: the left, the upper, their mean or the nearest neighbour."""
    result = np.zeros((len(rows) + 1, rows.shape[1]), np.uint8)
    for place, kind in enumerate(filters.tolist()):
        above, row = result[place], rows[place]
        if kind == 0:
            result[place + 1] = row
        elif kind == 1:
            result[place + 1] = np.cumsum(row.reshape(-1, step), 0, np.uint8).reshape(-1)
        elif kind == 2:
            result[place + 1] = row + above
        elif kind in (3, 4):
            result[place + 1] = _by_byte(row.tolist(), above.tolist(), step, _mean if kind == 3 else _nearest)
        else:
            raise Unreadable("it is damaged")
    return result[1:]


def _by_byte(row: list[int], above: list[int], step: int, guess) -> list[int]:  # type: ignore[no-untyped-def]
    """A row whose bytes depend on the byte to their left, so one after the other."""
    done = [0] * step
    corner = [0] * step + above
    for place, byte in enumerate(row):
        done.append((byte + guess(done[place], above[place], corner[place])) & 255)
    return done[step:]


def _mean(left: int, up: int, corner: int) -> int:
    return (left + up) // 2


def _nearest(left: int, up: int, corner: int) -> int:
    """The neighbour nearest to left + up - corner (Paeth)."""
    by_left, by_up, by_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
    if by_left <= by_up and by_left <= by_corner:
        return left
    return up if by_up <= by_corner else corner
