"""The C++ of a region: a function for the forward and one for the backward of a tile program, behind a header."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tensornet_attn.emit.cpp.backward import backward
from tensornet_attn.emit.cpp.factors import with_factors_outside
from tensornet_attn.emit.cpp.forward import forward
from tensornet_attn.emit.cpp.region import RegionText
from tensornet_attn.tiles.derive import gradients

CACHE = 768 * 1024  # bytes that the tiles of a block may take
BLOCKS = ((64, 256), (64, 128), (32, 128), (32, 64), (16, 64))  # queries x keys
HEADER = (Path(__file__).parent / "header.h").read_text(encoding="utf-8")
PRODUCTS = {"float": "sgemm_", "double": "dgemm_"}  # of the BLAS that torch has


@dataclass
class Region(RegionText):
    """The text of a region. `gradients`: the number of the operand of each gradient that the backward makes."""

    gradients: list[int] = field(default_factory=list)
    text: str = ""
    block: tuple[int, int] = BLOCKS[0]

    def __post_init__(self) -> None:
        self.program = with_factors_outside(self.program)
        super().__post_init__()
        made = gradients(self.program)
        self.gradients = [*dict.fromkeys(leaf.data[0] for leaf, _ in made.leaves if leaf.op in ("load", "entry"))]
        self.text = f"{forward(self)}\n{backward(self, made)}\n"
        fits = ((n, m) for n, m in BLOCKS if self.tiles * n * m * 4 <= CACHE)
        self.block = next(fits, BLOCKS[-1])


def source(region: Region, kind: str = "float") -> str:
    """The whole text for a type of numbers; the macros REAL and GEMM, if they are defined, choose another."""
    queries, keys = region.block
    own = {
        "REAL": kind,
        "GEMM": PRODUCTS[kind],
        "QUERIES": queries,
        "KEYS": keys,
        "MASKS": region.looks,
        "ROWS": region.drawn,
    }
    text = HEADER
    for name, value in own.items():
        text = text.replace(f"@{name}@", str(value))
    return text + region.text
