"""How a table is computed and shown: parts, adjustments, digits, text, JSON, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tensornet_attn.cost.paper import (
    PLAIN,
    TABLES,
    Adjustment,
    CostTerm,
    Count,
    PaperTable,
    PrintedRow,
    Rounding,
    as_printed,
    compare,
    number,
    tables_named,
)
from tests.paper_tables import compare_row, compared, split
from tests.refusals import refusal

LINEAR = {
    "tensornet": 1,
    "name": "linear_map",
    "legs": {"n": "query", "f": 4, "g": 3},
    "inputs": {"x": "n f"},
    "weights": {"W": "f g"},
    "diagram": {"y": "x[n f] W[f g] -> n g"},
    "output": "y",
}
PARTS = (
    CostTerm(LINEAR, {"f": "F", "g": "F / 2"}, {"n": "N"}, batch="2"),
    CostTerm(LINEAR, {"f": "F"}, {"n": "N"}, times="3"),
)
SMALL = PrintedRow(
    "two layers",
    "table 9",
    {"N": 500, "F": 40},
    (
        Count(
            "MACs", (Adjustment("biases", "N * F", "the paper counts them."),), "N * F * (F + 10)", "1.0M", (), PARTS
        ),
        Count("parameters", (), "F * (F / 2 + 9)", None, (Adjustment("rest", "0 * F", "none."),), PARTS),
        Count("time", printed="12ms", source="measured", note="on some machine."),
    ),
)
TABLE = PaperTable("small", "A paper (2020)", "all of it", (SMALL,), "N rows")


def test_parts_add_up():
    macs, parameters, time = compare(TABLE, split).numbers
    assert (time.ours, time.paper, time.state) == (None, None, "measured")
    assert macs.ours == macs.ours_dense == 2 * 500 * 40 * 20 + 3 * 500 * 40 * 3
    assert (macs.paper, macs.recount) == (macs.ours + 500 * 40, "1.0M")
    assert macs.stated == 500 * 40 * 50
    assert macs.state == "reproduced"
    assert parameters.ours == parameters.paper == 40 * 20 + 3 * 40 * 3
    assert (parameters.stated, parameters.state) == (40 * 29, "reproduced")


TEXT = """\
small: A paper (2020)
convention of the paper: all of it.
letters: N rows.

table 9
model       unit        printed  recount      paper     ours  state
two layers  MACs           1.0M     1.0M  1,000,000  980,000  reproduced
two layers  parameters        -        -      1,160    1,160  reproduced
two layers  time           12ms        -          -        -  measured [1]

notes:
  [1] on some machine.

formulas of the source:
  MACs of two layers: N * F * (F + 10)
  parameters of two layers: F * (F / 2 + 9)

paper = ours, and:
  MACs, biases: the paper counts them.
      N * F
"""


def test_to_text():
    text = compare(TABLE, split).to_text()
    assert text == TEXT


SWIN = """\
swin: Nguyen et al., Improving Transformer with an Admixture of Attention Heads (NeurIPS 2022), table 5: Swin-T
convention of the paper: all parameters; multiply-adds of products, and 5 operations per element that a LayerNorm
  reads.
letters: c channels and N tokens of the first stage.

table 5
model                       unit        printed  recount          paper           ours  state
Softmax-12/24: mhsa         parameters    28.3M    28.3M     28,288,354     28,288,354  reproduced
Softmax-12/24: mhsa         MACs        4618.24  4618.24  4,509,194,496  4,490,566,656  reproduced [1]
Hard-GFiSH-6/12: hard_fish  parameters    26.2M    26.2M     26,221,138     26,221,138  reproduced [2]
Hard-GFiSH-6/12: hard_fish  MACs        4372.48  4372.48  4,270,607,616  4,251,979,776  reproduced [1]

notes:
  [1] the column's head is FLOPs (10^9), but it has GMACs of 1,024 images: 4.51 x 1,024 and 4.27 x 1,024, from the
    MACs of one image rounded to two digits. The counts here are for one image.
  [2] with one linear layer that mixes the heads. With the two layers of GFiSH, it would be 4.28 GMACs per image.

paper = ours, and:
  MACs, norms: 5 operations per element that a norm reads, as in the counter fvcore; we count them as elementwise.
      5 * (2 * (2 + 2 / 2 + 6 / 4 + 2 / 8) + 1 + (1 + 1 / 2 + 1 / 4) + 1 / 8) * c * N
"""


def test_a_table_of_a_paper_in_full():
    assert compared("swin").to_text() == SWIN


def test_a_difference_that_no_note_explains_is_still_shown():
    macs = replace(SMALL.counts[0], printed="1.1M")
    (number,) = compare_row(replace(SMALL, counts=(macs,)), split)
    assert (number.state, number.recount) == ("differs", "1.0M")


def test_as_dict_is_json():
    found = json.loads(json.dumps(compare(TABLE, split).as_dict()))
    head = ("table", "source", "convention", "letters")
    assert [found[key] for key in head] == ["small", "A paper (2020)", "all of it", "N rows"]
    assert found["numbers"][0] == {
        "where": "table 9",
        "model": "two layers",
        "unit": "MACs",
        "printed": "1.0M",
        "recount": "1.0M",
        "paper": 1_000_000,
        "ours": 980_000,
        "ours_dense": 980_000,
        "difference": 20_000,
        "state": "reproduced",
        "note": None,
        "formula": "N * F * (F + 10)",
        "stated": 1_000_000,
        "percentage_of": None,
        "adjustments": [{"name": "biases", "value": 20_000, "formula": "N * F", "why": "the paper counts them."}],
        "values": {"N": 500, "F": 40},
    }
    measured = found["numbers"][2]
    assert (measured["printed"], measured["state"], measured["note"]) == ("12ms", "measured", "on some machine.")
    assert {measured[key] for key in ("recount", "paper", "ours", "ours_dense", "difference", "stated")} == {None}


def test_a_percentage_is_of_a_design_or_of_a_formula():
    parameters = Count("parameters", printed="25%", parts=PARTS[:1], whole=PARTS[1:])
    (number,) = compare_row(replace(SMALL, counts=(parameters,)), split)
    assert (number.percentage_of, number.recount, number.state) == (3 * 40 * 3, "222%", "differs")
    entries = Count("entries", printed="50%", rest=(Adjustment("half", "N / 2", "half."),), percentage_of="N")
    (number,) = compare_row(replace(SMALL, counts=(entries,)), split)
    assert (number.percentage_of, number.recount, number.state) == (500, "50%", "reproduced")


@pytest.mark.parametrize(
    ("value", "like", "whole", "rounding", "shown"),
    [
        (999_950_000, "453.4M", None, PLAIN, "1000.0M"),
        (2_358_116_352, "2.4G", None, PLAIN, "2.4G"),
        (2_358_116_352, "2.40G", None, PLAIN, "2.36G"),
        (4_000, "0.8M", None, PLAIN, "0.0M"),
        (262_108, "1", None, PLAIN, "262108"),
        (16_384, "1.5625%", 1_048_576, PLAIN, "1.5625%"),
        (1, "3 %", 3, PLAIN, "33 %"),
        (1, "more than 30%", 3, PLAIN, "33%"),
        (43_764_352, "40 M", None, Rounding(step=10), "40 M"),
        (45_100_000, "40 M", None, Rounding(step=10), "50 M"),
        (4_509_194_496, "4618.24", None, Rounding(like="4.51G", times=1024), "4618.24"),
    ],
)
def test_digits(value, like, whole, rounding, shown):
    assert as_printed(value, like, whole, rounding) == shown


def test_what_is_no_count_is_refused():
    assert refusal(number, "H / 3", {"H": 8}) == "'H / 3' is 2.6666666666666665, but counts are integers."
    assert refusal(as_printed, 1, "many") == "'many' is not a printed count, e.g. 170.4M or 125%."


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("fishes", "did you mean 'fish'?"),
        ("al", "did you mean 'all'?"),
        ("switchhead", "known here: all, epa, fish, fmm, mgk, swin, tuformer."),
    ],
)
def test_an_unknown_table_gets_the_nearest(name, hint):
    assert refusal(tables_named, name) == f"there is no cost table '{name}': {hint}"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_shown_whole(name):
    comparison = compared(name)
    text = comparison.to_text()
    assert max(map(len, text.splitlines())) <= 120
    for found in comparison.numbers:
        assert f"{found.row.model}  " in text
        assert found.ours is None or f"{found.ours:,}" in text
        assert (found.count.printed or "") in text
        assert all(a.why.endswith(".") for a in (*found.count.adjustments, *found.count.rest))
