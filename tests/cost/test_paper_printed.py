"""Every printed number has one row: counted by printed table, and compared cell by cell with the transcription."""

from __future__ import annotations

from collections import Counter

import pytest

from tensornet_attn.cost.paper import FOLDER, TABLES, Paper, paper_named
from tests.paper_tables import compared, printed

PRINTED = {  # rows of each table, as counted in the papers
    "epa": {
        "equations": 6,
        "table 1": 17,
        "table 2": 20,
        "table 3": 19,
        "table 4": 12,
        "table 5": 6,
        "table 6": 27,
        "table 7": 4,
        "text": 4,
    },
    "fish": {"equations": 6, "text": 1, "figures": 13},
    "mgk": {"equations": 7, "table 6": 6, "text": 2, "figures": 7},
    "tuformer": {"table 2": 8, "equations": 1, "text": 4, "figures": 1},
    "fmm": {"table 2": 7, "table 3": 9, "text": 1, "figures": 2},
    "swin": {"table 5": 2},
}
COSTS = [  # tables with columns of parameters, MACs, FLOPs, memory and time
    (name, where) for name in TABLES for where, table in paper_named(name).sections.items() if "counts" in table
]
OTHERS = {  # columns that name a row, or on which its costs depend
    *("Model", "Models", "Method", "Dataset", "Size", "sel. mode", "n_heads", "#GPUs", "GPU type"),
    *("V expert", "K expert", "Q expert", "O expert", "E", "K", "T", "n_layers"),
    *("row", "kind", "design", "sizes", "note"),  # ours
}
DERIVED = {  # columns of which only some rows are compared: the others are taken as they are printed
    "d_head": lambda row: row["E"] != "-",
    "d_ff": lambda row: row["Model"] == "Fast Transformer",
}


@pytest.mark.parametrize("name", TABLES)
def test_each_printed_row_is_a_row(name: str) -> None:
    assert Counter(row.where for row in TABLES[name].rows) == PRINTED[name]


def test_all_that_is_transcribed_is_in_a_table() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.toml" for name in TABLES}


@pytest.mark.parametrize(("name", "where"), COSTS)
def test_each_printed_cell_is_a_number(name: str, where: str) -> None:
    rows, columns = printed(name, where), paper_named(name).sections[where]["counts"]
    assert {*rows[0]} - {*columns} <= OTHERS
    wanted = [row[c] for row in rows for c in columns if c not in DERIVED or DERIVED[c](row)]
    assert [n.count.printed for n in compared(name).numbers if n.row.where == where] == wanted


@pytest.mark.parametrize("name", TABLES)
def test_each_equation_is_a_number_with_its_formula(name: str) -> None:
    if "equations" not in PRINTED[name]:
        return
    rows = printed(name, "equations")
    found = [n for n in compared(name).numbers if n.row.where == "equations"]
    assert [(n.count.unit, n.count.formula) for n in found] == [(row["unit"], row["formula"]) for row in rows]
    assert all(n.stated is not None for n in found)


NOT_REPRODUCED = {  # all that is printed and not reproduced
    "epa": [
        *("eq. 12, EPA 47M", "eq. 13, EPA 47M", "eq. 14, MoA 47M", "eq. 15, MoA 47M"),
        *("EPA RoPE 243M, 4 heads", "EPA RoPE 243M, 4 heads"),
        *("Fast 47M, 2 heads, WT-103", "Fast 272M, 4 heads, WT-103"),
        *("Fast 47M, 2 heads, C4", "Fast 272M, 4 heads, C4", "Fast 47M, 2 heads, peS2o"),
    ],
    "fish": [],
    "mgk": ["B (ii), M = 2, MGK", "B, saving, MGK saves"],
    "tuformer": [
        *("MHSA with 1.5% params", "skip-right, C1 (x) (1 1^T)", "trainable heads-only, C1", "heads-only, I_H"),
    ],
    "fmm": [row["Method"] for where in ("table 2", "table 3") for row in printed("fmm", where)],
    "swin": [],
}


@pytest.mark.parametrize("name", TABLES)
def test_what_is_not_reproduced_says_why(name: str) -> None:
    differing = [n for n in compared(name).numbers if n.state == "differs"]
    assert [n.row.model for n in differing] == NOT_REPRODUCED[name]
    assert all(n.count.note and n.count.note.endswith(".") for n in differing)


@pytest.mark.parametrize("name", TABLES)
def test_measured_and_drawn_numbers_are_not_computed(name: str) -> None:
    for number in compared(name).numbers:
        if number.state in ("measured", "drawn"):
            assert (number.ours, number.paper, number.recount, number.adjustments) == (None, None, None, ())
        else:
            assert number.ours is not None
            assert number.count.printed is not None or number.stated is not None


def test_a_row_with_a_cell_missing_is_refused() -> None:
    paper = Paper("who", "how", {"table 1": {"rows": "Model | MACs\na | 1M\nb"}}, {}, {}, {}, {})
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        paper.printed("table 1")
