"""Transformer-MGK: the formulas of appendix B, the sizes of its language models, its measurements and figures.

H / M heads with M keys per position, compared with H heads with one key. N tokens, heads of width D, input width Dx,
output width H D. The appendix gives formulas and no numbers; our rows use our default sizes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.cost.paper.language import BERT, MEDIUM, language_model
from tensornet_attn.cost.paper.model import Adjustment, Count, Part, Rounding, Row, Section, Table, figures, printed

PAPER = printed("mgk")
VALUES = {"N": 1024, "H": 8, "D": 64, "Dx": 512, "M": 2}
LENGTHS = {"n": "N", "m": "N"}
SOFTMAX = Part("mhsa", {"f": "Dx", "h": "H", "d": "D"}, LENGTHS)
LEGS = {"f": "Dx", "h": "H / M", "r": "M", "d": "D"}

WHY = "a sum of k products has k - 1 additions in the appendix, and k with 2 FLOPs per multiply-add."
WIDTH = "the appendix projects the heads to H D columns; our files project back to the input width Dx."
KEYS = "adding up a head's M keys takes M - 1 operations; we count them as elementwise."

NORMS = Adjustment("squared norms", "-2 * N * H * D", "the appendix does not count |k|^2; |q|^2 cancels.")
SUM = Adjustment("sum of the keys", "N ** 2 * H / M * (M - 1)", KEYS)
ADDED = "additions of the "
SINGLE = (
    Adjustment(f"{ADDED}projections", "-3 * N * H * D", WHY),
    Adjustment(f"{ADDED}scores", "-N ** 2 * H", WHY),
    Adjustment(f"{ADDED}heads", "-N * H * D", WHY),
    Adjustment(f"{ADDED}output", "-N * Dx", WHY),
    Adjustment("output width", "N * (2 * H * D - 1) * (H * D - Dx)", WIDTH),
)
MIXTURE = (
    NORMS,
    Adjustment(f"{ADDED}projections", "-(M + 2) * N * H / M * D", WHY),
    Adjustment(f"{ADDED}scores", "-N ** 2 * H", WHY),
    Adjustment(f"{ADDED}heads", "-N * H / M * D", WHY),
    Adjustment(f"{ADDED}output", "-N * Dx", WHY),
    SUM,
    Adjustment("output width", "N * (2 * H / M * D - 1) * (H * D - Dx)", WIDTH),
)
SAVED = (  # the terms of a single key minus those of the mixture
    Adjustment("squared norms", "2 * N * H * D", NORMS.why),
    Adjustment(f"{ADDED}projections", "-(3 - (M + 2) / M) * N * H * D", WHY),
    Adjustment(f"{ADDED}heads", "-(1 - 1 / M) * N * H * D", WHY),
    Adjustment("sum of the keys", "-N ** 2 * H / M * (M - 1)", KEYS),
    Adjustment("output width", "2 * (1 - 1 / M) * N * H * D * (H * D - Dx)", WIDTH),
)
WEIGHTS = {
    "softmax": (Adjustment("output width", "H * D * (H * D - Dx)", WIDTH),),
    "MGK": (Adjustment("output width", "H / M * D * (H * D - Dx)", WIDTH),),
    "MGK saves": (Adjustment("output width", "(1 - 1 / M) * H * D * (H * D - Dx)", WIDTH),),
}
PARTS = {
    "softmax": (SOFTMAX,),
    "MGK": (Part("mgk", LEGS, LENGTHS),),
    "MGK saves": (SOFTMAX, Part("mgk", LEGS, LENGTHS, times=-1)),
}
FLOPS = {"softmax": SINGLE, "MGK": MIXTURE, "MGK saves": SAVED}
SLIP = "a slip: the paper's own formula for any M gives - 7 / 2 at M = 2, but it prints - 4."
SLIP_SAVED = "the same slip: (i) minus the formula for any M gives - 3 / 2 at M = 2, but it prints - 1."
NOTES = {"B (ii), M = 2": SLIP, ("B, saving", "FLOPs"): SLIP_SAVED}

MODELS = {"Softmax 8 heads (medium)": MEDIUM, "BERT-Base": BERT}
NOTE_MODELS = {
    "Softmax 8 heads (medium)": "89.6M, rounded to tens. The 267,735 words of WikiText-103 are 68.5M of them.",
    "BERT-Base": "109.5M, rounded to tens, with 30,522 pieces and 512 positions, which the paper does not print.",
}


def equations(section: Section) -> Iterable[Row]:
    """The printed formulas, at our default sizes; the formula for any M at M = 4."""
    for row in section.rows:
        name, model, unit = row["equation"], row["model"], row["unit"]
        values = VALUES | {"M": 4} if "any M" in name else VALUES
        note = NOTES.get(name) or NOTES.get((name, unit))
        adjustments = (FLOPS if unit == "FLOPs" else WEIGHTS)[model]
        count = Count(unit, adjustments, row["formula"], note=note)
        yield Row(f"{name}, {model}", section.where, values, PARTS[model], (count,), kind=model)


def measured(section: Section) -> Iterable[Row]:
    """Table 6: memory and time on a GPU."""
    for row in section.rows:
        counts = tuple(Count(column, printed=row[column], source="measured") for column in section.columns[1:])
        yield Row(row["Method"], section.where, {}, (), counts)


def models(section: Section) -> Iterable[Row]:
    """Parameters of whole models."""
    for row in section.rows:
        model = language_model(MODELS[row["claim"]], row["printed"], Rounding(step=10), NOTE_MODELS[row["claim"]])
        yield Row(f"{row['place']}: {row['claim']}", section.where, MODELS[row["claim"]].values, (), (model,))


MGK = Table(
    "mgk",
    "Nguyen et al., Transformer with a Mixture of Gaussian Keys (2021; ICML 2022: Improving Transformers with "
    "Probabilistic Attention Keys)",
    "k multiplications and k - 1 additions for a sum of k products; without squared norms, priors, scale and softmax",
    (*equations(PAPER["equations"]), *measured(PAPER["table 6"]), *models(PAPER["text"]), *figures(PAPER["figures"])),
    "N tokens; H heads of width D; input width Dx; M keys per position in H / M heads",
)
