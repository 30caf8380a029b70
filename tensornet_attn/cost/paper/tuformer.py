"""Tuformer: parameters of table 2 as percentages of mhsa's, the printed times, and the maps of THSA.

N queries, M keys, model width F, H heads of width D, R = H D tunable heads. The paper prints F = 512 and D = 64.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.cost.paper.model import Adjustment, Count, Formula, Part, Row, Section, Table, figures, printed

PAPER = printed("tuformer")
ONE = {"n": "1", "m": "1"}  # parameters do not depend on lengths
HEADS = {"f": "F", "h": "H", "d": "D"}
MHSA = Part("mhsa", HEADS, ONE)
SIZES = {"F": 512, "H": 8, "D": 64, "R": 512}
TUNABLE = {"f": "F", "r": "R", "s": "R"}

CUT = "1.5625 %, cut off instead of rounded."
FULL = (
    "C2 and C3 of D x D, as the formula reads without the figure's inner leg of 1, would have 8,192 entries: 100.78 %"
)
NOTES = {
    "MHSA with 125% params": "heads of width W = 80 instead of 64: the four matrices are widened equally.",
    "MHSA with 1.5% params": f"one head of W = 8: {CUT} Its sizes are not printed; 8 heads of 1 would be heads-only.",
    "THSA": "at R = F = 512. Appendix E says R = 1,024 for this task, which would be 150 %.",
    "C = C1 (x) (1 1^T)": f"100.006 %: C1 has H^2 = 64 entries. 101% would fit skip-left: {FULL}.",
    "skip-left C = I_H (x) (C2^T C3)": f"100.012 % with an inner leg of 1, as fig. 5a draws it. {FULL}.",
    "trainable heads-only C = C1": "1.57 % with 8 heads, as in heads-only; it takes 32 = 4 H heads to reach 6.35 %.",
    "heads-only C = I_H": CUT,
}
DESIGNS: dict[str, tuple[Part, dict[str, int], Formula]] = {
    "MHSA": (MHSA, SIZES, "4 * F * H * D"),
    "MHSA with 125% params": (Part("mhsa", HEADS | {"d": "W"}, ONE), SIZES | {"W": 80}, "4 * F * H * W"),
    "MHSA with 1.5% params": (Part("mhsa", HEADS | {"h": "1", "d": "W"}, ONE), SIZES | {"W": 8}, "4 * F * W"),
    "THSA": (Part("thsa", TUNABLE, ONE), SIZES, "4 * F * R + R ** 2"),
    "C = C1 (x) (1 1^T)": (Part("skip_right", HEADS, ONE), SIZES, "4 * F * H * D + H ** 2"),
    "skip-left C = I_H (x) (C2^T C3)": (Part("skip_left", HEADS | {"c": "1"}, ONE), SIZES, "4 * F * H * D + 2 * D"),
    "trainable heads-only C = C1": (
        Part("trainable_heads_only", {"f": "F", "h": "H"}, ONE),
        SIZES,
        "4 * F * H + H ** 2",
    ),
    "heads-only C = I_H": (Part("heads_only", {"f": "F", "h": "H"}, ONE), SIZES, "4 * F * H"),
}
LABELS = {
    "C = C1 (x) (1 1^T)": "skip-right, C1 (x) (1 1^T)",
    "skip-left C = I_H (x) (C2^T C3)": "skip-left, I_H (x) (C2^T C3)",
    "trainable heads-only C = C1": "trainable heads-only, C1",
    "heads-only C = I_H": "heads-only, I_H",
}

BESIDE = (
    Adjustment("beside the maps", "-(N * F + 2 * (N + M) * R)", "autograd saves x, queries, keys, values and heads."),
    Adjustment("products before the core", "-M * N * R", "autograd also saves Q[n s] K[m s], which C then mixes."),
)
NOTE_RATIO = "R = H D maps where MHSA has H: D = 64 times as many."
TIMES = {
    "heads-only trains faster": "6.1 for 10.6 in table 2 is 42 % less.",
    "heads-only tests faster": "2.3 for 3.2 in table 2 is 28 % less.",
}


def table_2(section: Section) -> Iterable[Row]:
    """Percentages of mhsa at the same width, and the printed times."""
    for row in section.rows:
        name = row["Models"]
        part, values, formula = DESIGNS[name]
        counts = (
            Count("parameters", (), formula, row["# params"], note=NOTES.get(name)),
            *(Count(f"{c} (time)", printed=row[c], source="measured") for c in ("Train", "Test")),
        )
        yield Row(LABELS.get(name, name), section.where, values, (part,), counts, (MHSA,))


def equations(section: Section) -> Iterable[Row]:
    """The memory overhead of THSA's maps."""
    for row in section.rows:
        part = Part("thsa", TUNABLE, {"n": "N", "m": "M"})
        count = Count(row["unit"], BESIDE, row["formula"])
        yield Row(f"{row['equation']}, {row['model']}", section.where, SIZES | {"N": 256, "M": 256}, (part,), (count,))


def claims(section: Section) -> Iterable[Row]:
    """Numbers in the text."""
    for row in section.rows:
        name = f"{row['place']}: {row['claim']}"
        if row["unit"] == "parameters":
            more = (Part("thsa", TUNABLE, ONE), Part("mhsa", HEADS, ONE, times=-1))
            count = Count("parameters", printed=row["printed"])
            yield Row(name, section.where, SIZES, more, (count,), (MHSA,))
        elif row["claim"] in TIMES:
            count = Count(row["unit"], printed=row["printed"], source="measured", note=TIMES[row["claim"]])
            yield Row(name, section.where, {}, (), (count,))
        else:
            ratio = Adjustment("maps", "R / H", "maps of THSA relative to those of MHSA.")
            count = Count(row["unit"], formula=row["printed"], rest=(ratio,), note=NOTE_RATIO)
            yield Row(name, section.where, SIZES, (), (count,))


TUFORMER = Table(
    "tuformer",
    "Liu, Su and Huang, Tuformer (ICLR 2022)",
    "parameters of a layer without biases; 100% is MHSA of the same width. The columns Train and Test have no unit",
    (*table_2(PAPER["table 2"]), *equations(PAPER["equations"]), *claims(PAPER["text"]), *figures(PAPER["figures"])),
    "F model width; H heads of width D; R = H D tunable heads; N queries, M keys; W another width of heads",
)
