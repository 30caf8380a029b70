"""FiSHformer: the formulas of appendix D, its claim about FLOPs, and its figures of efficiency.

N tokens, H local and M global heads of width D, input width Dx. The appendix gives formulas and no numbers; the rows
have our default sizes. It counts what makes the maps alone: queries, keys, scores and their mixing.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.cost.paper.figures import figures
from tensornet_attn.cost.paper.model import Adjustment, Count, Part, Row, Table
from tensornet_attn.cost.paper.printed import Section, printed

PAPER = printed("fish")
VALUES = {"N": 1024, "H": 8, "M": 4, "D": 64, "Dx": 512}
LENGTHS = {"n": "N", "m": "N"}
LEGS = {"f": "Dx", "h": "H", "d": "D"}
SOFTMAX, SHARED = Part("mhsa", LEGS, LENGTHS), Part("fish", LEGS | {"g": "M"}, LENGTHS)

WHY = "a sum of k products has k - 1 additions in the appendix, and k in 2 FLOPs a multiply-add."
VALUE = "the appendix counts what makes the maps; values, their sum and the output are left out."
NOISE = "one addition a global score, M N^2; eq. 8 draws noise for each local head. To us adding is elementwise."
DEVIATION = "our file mixes the deviations, M for each head."

REST = Adjustment("values and output", "-4 * N * H * D * Dx - 2 * N ** 2 * H * D", VALUE)
MIXING = (
    Adjustment("additions of the mixing", "-H * N ** 2", WHY),
    Adjustment("noise", "M * N ** 2", NOISE),
    Adjustment("deviation of the noise", "-2 * M * H", DEVIATION),
)


def made(heads: str) -> tuple[Adjustment, ...]:
    """Additions of queries, keys and scores of so many heads."""
    return (
        Adjustment("additions of the projections", f"-2 * {heads} * D * N", WHY),
        Adjustment("additions of the scores", f"-{heads} * N ** 2", WHY),
    )


MODELS: dict[str, tuple[tuple[Part, ...], tuple[Adjustment, ...]]] = {
    "softmax": ((SOFTMAX,), (REST, *made("H"))),
    "FiSH": ((SHARED,), (REST, *made("M"), *MIXING)),
    "FiSH saves": (
        (SOFTMAX, Part("fish", LEGS | {"g": "M"}, LENGTHS, times=-1)),
        (
            *made("(H - M)"),
            Adjustment("additions of the mixing", "H * N ** 2", WHY),
            Adjustment("noise", "-M * N ** 2", NOISE),
            Adjustment("deviation of the noise", "2 * M * H", DEVIATION),
        ),
    ),
}
WEIGHTS = Adjustment("values and output", "-2 * H * D * Dx", VALUE)

CLAIM_VALUES = {"N": 8192, "D": 512, "Dx": 4096, "H": 8, "M": 2, "l": 2048}
FEED_FORWARD = Part("mlp", {"f": "Dx", "l": "l"}, {"n": "N"})
CLAIM = (
    "2 global heads of 8. The paper counts whole models with fvcore; ours is one layer of gfish_release and a "
    "feed-forward layer of width 2,048, for 8,192 tokens of width 4,096: the corner of fig. 3 with the largest saving."
)


def equations(section: Section) -> Iterable[Row]:
    """The formulas as printed, at our default sizes."""
    for row in section.rows:
        parts, adjustments = MODELS[row["model"]]
        if row["unit"] == "parameters":
            adjustments = () if row["model"] == "FiSH saves" else (WEIGHTS,)
        count = Count(row["unit"], adjustments, row["formula"])
        yield Row(f"{row['equation']}, {row['model']}", section.where, VALUES, parts, (count,), kind=row["model"])


def claims(section: Section) -> Iterable[Row]:
    """The largest saving that the text names, as a percentage of a layer with 8 heads."""
    for row in section.rows:
        layer = (SOFTMAX, FEED_FORWARD)
        less = Part("gfish_release", LEGS | {"g": "M"}, LENGTHS, times=-1)
        count = Count(row["unit"], printed=row["printed"], parts=(SOFTMAX, less), note=CLAIM)
        yield Row(f"{row['place']}: {row['claim']}", section.where, CLAIM_VALUES, (), (count,), layer)


FISH = Table(
    "fish",
    "Nguyen et al., Improving Transformer with an Admixture of Attention Heads (NeurIPS 2022), appendices C and D; its "
    "table 5 is the table swin",
    "k multiplications and k - 1 additions for a sum of k products; softmax, scale and the drawing of noise left out",
    (*equations(PAPER["equations"]), *claims(PAPER["text"]), *figures(PAPER["figures"])),
    "N tokens; H local and M global heads of width D; input width Dx",
)
