"""EPA's tables: the script's formulas, the differences at sizes of no table, and the sizes it does not print."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

import tensornet_attn as ta
from tensornet_attn.cost.paper import TABLES, as_printed, paper_named
from tests.paper_tables import compare_row, compared, file_of, printed, split

ALL = compared("epa").numbers
NUMBERS = {(n.row.where, n.row.model, n.count.unit): n for n in ALL}


def xl(T, C, H, dh, dm, **_):
    return H * (4 * T * dh * dm + 2 * C * T**2 * dh + 2 * C * T * dh * dm), H * (
        4 * T * dh + 2 * C * T**2 + 2 * C * T * dh
    )


def rope(T, C, H, dh, dm, **_):
    return H * (4 * T * dh * dm + 2 * T**2 * dh), H * (4 * T * dh + 2 * T**2)


def epa(T, C, H, dh, dm, E, K, with_xl=True, X=2, S=2, **_):
    work = 2 * C * T**2 * dh * H + (X * K + 4 - X) * T * dh * dm * H + X * K * T * dh * H + S * E * C * T * dm
    kept = 2 * C * T**2 * H + 4 * T * dh * H + S * E * C * T
    return work + with_xl * 2 * T * dh * dm * H, kept + with_xl * 2 * T * dh * H


def moa(T, C, H, dh, dm, E, **_):
    work = (2 * H * C * T**2 * dh, (2 * H + 2) * T * dh * dm, 2 * H * T * dh, E * T * dm, 2 * C * T * dh * dm)
    return sum(work), 2 * H * C * T**2 + (2 * H + 2) * T * dh + 2 * T * dh + E * C * T


FORMULAS = {  # of the released script
    "Transformer XL": xl,
    "Transformer (RoPE)": rope,
    "EPA": epa,
    "EPA (RoPE)": partial(epa, with_xl=False),
    "MoA": moa,
}


def script(row, values):
    """MACs and floats of the script for a row at some values."""
    return dict(zip(("MACs", "floats"), FORMULAS[row.kind](**values), strict=True))


LAYER = [n for n in ALL if n.count.unit in ("MACs", "floats") and n.row.where != "equations"]


def test_tables_2_to_5_have_two_numbers_of_a_layer_in_each_row():
    assert len(LAYER) == 2 * (20 + 19 + 12 + 6)


@pytest.mark.parametrize("found", LAYER, ids=lambda n: f"{n.row.where}, {n.row.model}, {n.count.unit}")
def test_ours_and_the_differences_give_the_printed_number(found):
    stated = script(found.row, found.row.values)[found.count.unit]
    assert found.ours + found.difference == found.paper == found.stated == stated
    if "RoPE 243M" not in found.row.model:
        assert found.recount == found.count.printed


def test_the_row_that_was_printed_for_another_context():
    """EPA RoPE 243M: with C = 2 the formula gives what is printed; with C = 1, which the model has, it does not."""
    macs, floats = (NUMBERS["table 5", "EPA RoPE 243M, 4 heads", unit] for unit in ("MACs", "floats"))
    assert (macs.count.printed, floats.count.printed) == ("4.2G", "18.4M")
    assert (macs.recount, floats.recount) == ("3.4G", "10.0M")
    with_context = script(macs.row, macs.row.values | {"C": 2})
    assert as_printed(with_context["MACs"], "4.2G") == "4.2G"
    assert as_printed(with_context["floats"], "18.4M") == "18.4M"


@pytest.mark.parametrize("kind", FORMULAS)
@pytest.mark.parametrize("T", [17, 64])
def test_the_differences_are_not_those_of_one_size(kind, T):
    """While the context is longer than a head is wide: below, other orders of the products take the fewest FLOPs."""
    row = next(n.row for n in LAYER if n.row.kind == kind)
    values = row.values | {"T": T, "C": 3 if row.values["C"] > 1 else 1, "dm": 300, "dh": 28, "H": 6}
    values |= {name: size for name, size in (("E", 9), ("K", 4)) if name in values}
    other = replace(row, values=values, counts=tuple(c for c in row.counts if c.unit in ("MACs", "floats")))
    stated = script(other, values)
    for found in compare_row(other, split):
        assert found.paper == found.stated == stated[found.count.unit]


def test_eq_13_is_not_that_of_the_tables():
    """Nor is eq. 12 for EPA, 14 or 15: the tables follow the script."""
    found = {n.row.model: (n.stated, n.paper) for n in ALL if n.row.where == "equations"}
    assert found == {
        "eq. 11, XL 47M": (453_427_200, 453_427_200),
        "eq. 12, XL 47M": (3_461_120, 3_461_120),
        "eq. 12, EPA 47M": (835_584, 762_880),
        "eq. 13, EPA 47M": (200_318_976, 170_364_928),
        "eq. 14, MoA 47M": (222_216_192, 223_451_136),
        "eq. 15, MoA 47M": (1_363_968, 1_324_032),
    }


def test_dense_counts_are_those_of_the_planner():
    found = NUMBERS["table 3", "EPA 47M, 2 heads, C4", "MACs"]
    design = ta.load("epa_xl", legs={"f": 412, "h": 2, "d": 76, "e": 5}, settings={"k": 3})
    planned = ta.cost(design, n=256, m=512).planned
    assert (planned.macs, planned.total.routed_macs) == (found.ours_dense, found.ours)
    dense = NUMBERS["table 3", "XL 47M, 10 heads, C4", "MACs"]
    assert dense.ours_dense == dense.ours


def test_ours_counts_all_context_rows_and_all_gates():
    """The two that the script counts too few are in ours: K, V for C T rows, and H E gate columns."""
    values = NUMBERS["table 3", "EPA 47M, 2 heads, C4", "MACs"].row.values
    T, C, H, dh, dm, E, K = (values[name] for name in ("T", "C", "H", "dh", "dm", "E", "K"))
    design = ta.load("epa_xl", legs={"f": dm, "h": H, "d": dh, "e": E}, settings={"k": K})
    rows = {row.step: row.routed_macs for row in ta.cost(design, n=T, m=C * T).planned.steps}
    assert rows["K"] == C * T * dm * H * dh
    assert rows["V"] == C * T * K * H * dh * (dm + 1)
    assert (rows["Gs.of.of"], rows["Gd.of.of"]) == (C * T * dm * H * E, T * dm * H * E)


ROPE, MOA = (ta.models.load(name).stacks["layers"][0]["mixer"].design for name in ("rope_45m", "moa_47m_xl_sigmoid"))
RULE = [  # design, its legs, the dense model, the head width of the paper
    ("epa_xl", {"f": 412, "h": 2, "e": 5}, ("transformer_xl", {"f": 412, "h": 10, "d": 41}), 76),
    ("epa_xl", {"f": 1024, "h": 4, "e": 4}, ("transformer_xl", {"f": 1024, "h": 16, "d": 64}), 112),
    ("epa_xl", {"f": 1024, "h": 2, "e": 8}, ("transformer_xl", {"f": 1024, "h": 16, "d": 64}), 132),
    ("epa_xl", {"f": 512, "h": 2, "e": 4}, ("transformer_xl", {"f": 512, "h": 8, "d": 64}), 112),
    ("epa_rope", {"f": 412, "h": 2, "e": 5, "d": 4}, (ROPE, {"f": 412, "h": 10, "d": 41}), 64),
    ("epa_rope", {"f": 1024, "h": 4, "e": 4, "d": 4}, (ROPE, {"f": 1024, "h": 16, "d": 64}), 100),
    (MOA, {"f": 412, "e": 10, "d": 4}, ("transformer_xl", {"f": 412, "h": 10, "d": 41}), 88),
    (MOA, {"f": 1024, "e": 16, "d": 4}, ("transformer_xl", {"f": 1024, "h": 16, "d": 64}), 144),
]


@pytest.mark.parametrize(("design", "legs", "dense", "width"), RULE)
def test_the_rule_for_head_widths(design, legs, dense, width):
    assert ta.match_parameters(ta.load(design, legs=legs), ta.load(*dense), leg="d", multiple=4) == width


RELEASED = {1: 5014, 2: 5050, 3: 5135, 4: 5000}  # of the released settings: d_ff in thousandths of the model width
CHOICES = [cells for cells in printed("epa", "table 1") if cells["kind"] == "choice"]


@pytest.mark.parametrize("cells", CHOICES, ids=lambda cells: cells["design"])
def test_table_1_has_the_widths_of_the_rule_for_its_designs(cells):
    choice = NUMBERS["table 1", cells["row"], "parameters"]
    dh, dff = (choice.row.values[name] for name in ("dh", "dff"))
    dense = ta.cost(ta.load("transformer_xl", legs={"f": 412, "h": 10, "d": 41})).parameters

    def attention(d):
        positions = (412 + 2) * 2 * d  # Wr, u and v
        return ta.cost(ta.load(cells["design"], legs={"f": 412, "h": 2, "d": d, "e": 5})).parameters + positions

    assert attention(dh) <= dense < attention(dh + 4)
    experts = [projection for projection in "VKQO" if cells[f"{projection} expert"] == "Y"]
    assert dff == 412 * RELEASED[len(experts)] // 1000
    assert cells["design"] == ("epa" if experts == ["V", "O"] else f"epa_{''.join(experts).lower()}")
    assert choice.recount == "47M"


TABLE_6 = [row.values for row in TABLES["epa"].rows if row.where == "table 6"]
PRINTED = {"H": "n_heads", "dh": "d_head", "dff": "d_ff", "E": "E", "K": "K", "T": "T", "L": "n_layers"}
NOT_THOSE_OF_TABLE_6 = {"fast_transformer": {"dff"}, "fast_transformer_259m": set()}  # the width of the sigma-MoE


def test_the_shipped_models_have_the_sizes_of_table_6():
    """All that it prints, also of models with other heads or data, but for the width of a sigma-MoE of 47M."""
    for cells, values in zip(printed("epa", "table 6"), TABLE_6, strict=True):
        found = {letter: str(values.get(letter, "-")) for letter in PRINTED}
        wanted = {letter: cells[column] for letter, column in PRINTED.items()}
        different = {letter for letter in PRINTED if found[letter] != wanted[letter]}
        assert different == NOT_THOSE_OF_TABLE_6.get(file_of(cells), set())


@pytest.mark.parametrize(("size", "width", "dense"), [("47M", 412, 2053), ("262M", 1024, 4110)])
def test_the_rule_for_feed_forward_layers_gives_those_of_moa(size, width, dense):
    """As many parameters as attention spares, and less than one more unit takes."""
    mine, theirs = (
        paper_named("epa").sizes[f"{model}_{size.lower()}{xl}"] for model, xl in (("moa", "_xl"), ("xl", ""))
    )
    heads = {letter: theirs[name] for letter, name in (("f", "dm"), ("h", "H"), ("d", "dh"))}
    legs = {letter: mine[name] for letter, name in (("f", "dm"), ("e", "E"), ("d", "dh"))}
    attention = ta.cost(ta.load(MOA, legs=legs)).parameters
    spare = ta.cost(ta.load("transformer_xl", legs=heads)).parameters - attention
    assert theirs["dff"] == dense
    assert 0 <= spare - (2 * width + 1) * (mine["dff"] - dense) < 2 * width + 1


def test_the_large_fast_transformer_has_two_sizes():
    """259M in table 4, with the widths of table 3; 272M in table 6, with a width above the rule's."""
    small = NUMBERS["table 4", "Fast 259M, 4 heads, C4", "parameters"]
    large = NUMBERS["table 6", "Fast 272M, 4 heads, C4", "parameters"]
    assert (small.row.values["dh"], small.recount) == (112, "259M")
    assert (large.row.values["dh"], large.recount) == (128, "272M")
    assert small.row.values | {"dh": 128} == large.row.values


def test_the_ratios_of_table_7():
    """Two do not follow from the times and memories beside them."""
    rows = printed("epa", "table 7")
    ratios = {}
    for dense, own in (rows[:2], rows[2:]):
        for unit, of, digits in (("Rel. iter. time", "time of an iteration", "ms"), ("Rel. Mem.", "RAM/GPU", "G")):
            exact = float(own[of].rstrip(digits)) / float(dense[of].rstrip(digits))
            ratios[own["Size"], unit] = (own[unit], f"{exact:.3f}")
    assert ratios == {
        ("47M", "Rel. iter. time"): ("0.6", "0.600"),
        ("47M", "Rel. Mem."): ("0.67", "0.675"),
        ("262M", "Rel. iter. time"): ("0.65", "0.660"),
        ("262M", "Rel. Mem."): ("0.61", "0.610"),
    }


WIDTHS = [  # rows that share a model width, and the widths that give all their printed MACs
    (("XL 47M", "EPA 47M", "MoA sigmoid 47M", "MoA softmax 47M"), range(412, 413)),
    (("RoPE 45M", "EPA RoPE 45M"), range(412, 413)),
    (("XL 41M", "EPA 41M"), range(512, 513)),
    (("XL 262M", "EPA 262M", "MoA sigmoid 262M", "MoA softmax 262M", "RoPE 244M"), range(1021, 1026)),
]


@pytest.mark.parametrize(("models", "widths"), WIDTHS, ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_the_model_widths_that_the_paper_does_not_print(models, widths):
    rows = [n for n in LAYER if n.count.unit == "MACs" and n.row.model.split(",")[0] in models]

    def gives_all(dm):
        return all(
            as_printed(script(n.row, n.row.values | {"dm": dm})["MACs"], n.count.printed) == n.count.printed
            for n in rows
        )

    assert [dm for dm in range(300, 1200) if gives_all(dm)] == [*widths]
