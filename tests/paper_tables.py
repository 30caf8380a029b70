"""The papers' cost tables computed once for all tests, with products in the order of the fewest FLOPs."""

from __future__ import annotations

from functools import cache

from tensornet_attn.cost import device_named
from tensornet_attn.cost.order import split_best
from tensornet_attn.cost.paper import (
    TABLES,
    Cells,
    Compared,
    PaperComparison,
    PaperTable,
    PrintedRow,
    Split,
    compare,
    paper_named,
)
from tensornet_attn.graph import Graph

FLOPS = device_named("flops")


def split(graph: Graph, sizes: dict[str, int]) -> Graph:
    return split_best(graph, sizes, FLOPS)[0]


def compare_row(row: PrintedRow, split: Split) -> tuple[Compared, ...]:
    """Each count of a row."""
    return compare(PaperTable("row", "a test", "ours", (row,)), split).numbers


def file_of(cells: Cells) -> str:
    """The name of our file of the model in a printed row of EPA, possibly at other sizes."""
    return cells["sizes"].split()[0]


def printed(name: str, where: str) -> list[Cells]:
    """The cells of a printed table."""
    return paper_named(name).printed(where)


@cache
def compared(name: str) -> PaperComparison:
    return compare(TABLES[name], split)
