"""The C++ of a region: a function for the forward and one for the backward of a tile program, behind a header."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.tiles.build import tile_program
from tensornet_attn.tiles.cpp.backward import backward
from tensornet_attn.tiles.cpp.factors import with_factors_outside
from tensornet_attn.tiles.cpp.forward import forward
from tensornet_attn.tiles.cpp.lookups import with_lookups
from tensornet_attn.tiles.cpp.region import RegionText
from tensornet_attn.tiles.cpp.saved import saved_products
from tensornet_attn.tiles.derive import Gradients, gradients
from tensornet_attn.tiles.program import Node

CACHE = 1024 * 1024  # bytes that the tiles of a block may take: the second cache of a core
BLOCKS = ((64, 256), (32, 256), (32, 128), (32, 64), (16, 64))  # queries x keys
TILES = 64  # of a leg in one program
HEADER = (Path(__file__).parent / "header.h").read_text(encoding="utf-8")


@dataclass
class RegionSource(RegionText):
    """The text of a region. `gradients`: the number of the operand of each gradient that the backward makes."""

    gradients: list[int] = field(default_factory=list)
    text: str = ""
    block: tuple[int, int] = BLOCKS[0]
    stores: list[tuple[int, int]] = field(default_factory=list)  # `stored` and `held`, in forward and backward

    def __post_init__(self) -> None:
        self.program = with_lookups(self.graph, with_factors_outside(self.program))
        super().__post_init__()
        region_gradients = self.of_variables(gradients(self.program))
        self.saved = saved_products(self.graph, self.program, region_gradients)
        self.gradients = [*dict.fromkeys(leaf.data[0] for leaf, _ in region_gradients.leaves)]
        texts, printers = list[str](), (forward, partial(backward, gradients=region_gradients))
        for printer in printers:
            self.stored = self.held = 0
            texts.append(printer(self))
            self.stores.append((self.stored, self.held))
        self.text = "\n".join([*texts, ""])
        fitting = ((queries, keys) for queries, keys in BLOCKS if self.tiles * queries * keys * 4 <= CACHE)
        self.block = next(fitting, BLOCKS[-1])

    def of_variables(self, region_gradients: Gradients) -> Gradients:
        """The gradients without those of constants, of noise and of the mask."""
        tensors = self.graph.tensor

        def varies(leaf: Node) -> bool:
            if leaf.op not in ("load", "entry", "between"):
                return False
            name = self.program.operands[leaf.data[0]].use.name
            return name not in tensors or tensors[name].role != "constant"

        return replace(
            region_gradients,
            leaves=tuple((leaf, gradient) for leaf, gradient in region_gradients.leaves if varies(leaf)),
        )

    @property
    def saves(self) -> int:
        """The tiles that each block of a program may save for the backward."""
        return sum(self.program.tiles(node.heads) for node in self.saved)


def source(region: RegionSource, biased: RegionSource | None = None) -> str:
    """The whole text for float; the macros REAL and GEMM, if they are defined, choose another type of numbers."""
    variants = [region, *([biased] if biased else [])]
    masks, rows = max(variant.looks for variant in variants), max(variant.drawn for variant in variants)
    return headed(region.block, masks, rows) + "".join(variant.text for variant in variants)


def headed(block: tuple[int, int] = BLOCKS[-1], masks: int = 1, rows: int = 1) -> str:
    """The header for blocks of queries x keys; `masks`, `rows`: those that a worker combines or draws at a time."""
    macros = {"QUERIES": block[0], "KEYS": block[1], "MASKS": masks, "ROWS": rows}
    header = HEADER
    for name, replacement in macros.items():
        header = header.replace(f"@{name}@", str(replacement))
    return header


def region_of(graph: Graph, step: Step) -> RegionSource:
    """The C++ of a kernel of blocks of queries. Raises Unfit."""
    return RegionSource(graph, tile_program(graph, step, TILES), "region")


def biased_region_of(graph: Graph, step: Step, region: RegionSource) -> RegionSource | None:
    """The C++ of the same kernel for calls with a float mask; None if `region` is right for them too."""
    if not region.program.sums_powers:
        return None
    biased = RegionSource(graph, tile_program(graph, step, TILES, biased=True), "biased", biased=True)
    biased.block = region.block
    return biased
