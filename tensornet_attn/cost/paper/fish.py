"""FiSHformer: the formulas of appendix D, its claim about FLOPs, its efficiency figures; and its table 5, Swin-T.

N tokens, H local and M global heads of width D, input width Dx. The appendix gives formulas and no numbers; our rows
use our default sizes. It only counts the computation of the maps: queries, keys, scores and their mixing.

Table 5 is Swin-T with half of its heads global: parameters, and GMACs of a batch of 1,024 images. c = 96 channels,
stages of 2, 2, 6, 2 blocks and 3, 6, 12, 24 heads of width 32, windows of 7 x 7 = 49 tokens, N = 56^2 tokens in the
first stage. Attention and feed-forward layers are designs; other layers are counted in closed form. Half of the heads
are global in the last two stages, as in the released configuration (`STAGES: [2, 3]`, `HDP_RATIOS: [2, 1]`); one linear
layer without bias mixes them. The counter fvcore (0.1.5) gives the paper's counts below for the released code, to the
last digit.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.cost.paper.model import (
    PLAIN,
    Adjustment,
    Count,
    Part,
    Rounding,
    Row,
    Section,
    Table,
    figures,
    printed,
)

PAPER = printed("fish")
VALUES = {"N": 1024, "H": 8, "M": 4, "D": 64, "Dx": 512}
LENGTHS = {"n": "N", "m": "N"}
LEGS = {"f": "Dx", "h": "H", "d": "D"}
SOFTMAX, SHARED = Part("mhsa", LEGS, LENGTHS), Part("fish", LEGS | {"g": "M"}, LENGTHS)

WHY = "a sum of k products has k - 1 additions in the appendix, and k with 2 FLOPs per multiply-add."
VALUE = "the appendix counts only the computation of the maps, not values, their sum and the output."
NOISE = "one addition per global score, M N^2; eq. 8 draws noise per local head. We count additions as elementwise."
DEVIATION = "our file mixes the deviations, M for each head."

REST = Adjustment("values and output", "-4 * N * H * D * Dx - 2 * N ** 2 * H * D", VALUE)
MIXING = (
    Adjustment("additions of the mixing", "-H * N ** 2", WHY),
    Adjustment("noise", "M * N ** 2", NOISE),
    Adjustment("deviation of the noise", "-2 * M * H", DEVIATION),
)


def made(heads: str) -> tuple[Adjustment, ...]:
    """Additions in queries, keys and scores of a number of heads."""
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
    "2 global heads of 8. The paper counts whole models with fvcore; we count one layer of gfish_release and a "
    "feed-forward layer of width 2,048, for 8,192 tokens of width 4,096: the corner of fig. 3 with the largest saving."
)


def equations(section: Section) -> Iterable[Row]:
    """The printed formulas, at our default sizes."""
    for row in section.rows:
        parts, adjustments = MODELS[row["model"]]
        if row["unit"] == "parameters":
            adjustments = () if row["model"] == "FiSH saves" else (WEIGHTS,)
        count = Count(row["unit"], adjustments, row["formula"])
        yield Row(f"{row['equation']}, {row['model']}", section.where, VALUES, parts, (count,), kind=row["model"])


def claims(section: Section) -> Iterable[Row]:
    """The largest saving in the text, as a percentage of a layer with 8 heads."""
    for row in section.rows:
        layer = (SOFTMAX, FEED_FORWARD)
        less = Part("gfish_release", LEGS | {"g": "M"}, LENGTHS, times=-1)
        count = Count(row["unit"], printed=row["printed"], parts=(SOFTMAX, less), note=CLAIM)
        yield Row(f"{row['place']}: {row['claim']}", section.where, CLAIM_VALUES, (), (count,), layer)


FISH = Table(
    "fish",
    "Nguyen et al., Improving Transformer with an Admixture of Attention Heads (NeurIPS 2022), appendices C and D; its "
    "table 5 is the table swin",
    "k multiplications and k - 1 additions for a sum of k products; without softmax, scale and drawing of noise",
    (*equations(PAPER["equations"]), *claims(PAPER["text"]), *figures(PAPER["figures"])),
    "N tokens; H local and M global heads of width D; input width Dx",
)


DEPTHS, HEADS, WINDOWS = (2, 2, 6, 2), (3, 6, 12, 24), (64, 16, 4, 1)
SWIN_VALUES = {"c": 96, "N": 56**2}
SWIN_AROUND = "a convolution, norm or linear layer besides attention and feed-forward layers."
BIASES = "our attention has no biases; Swin has them on queries, keys, values and output."

SWIN_WEIGHTS = (
    Adjustment("patch embedding", "48 * c + c", SWIN_AROUND),
    Adjustment("norms of the blocks", "2 * 2 * (2 + 2 * 2 + 6 * 4 + 2 * 8) * c", SWIN_AROUND),
    Adjustment("other norms", "2 * c + 2 * 4 * (1 + 2 + 4) * c + 2 * 8 * c", SWIN_AROUND),
    Adjustment("merging of patches", "8 * (1 + 4 + 16) * c ** 2", SWIN_AROUND),
    Adjustment("classifier", "8 * c * 1000 + 1000", SWIN_AROUND),
    Adjustment("position tables", "13 ** 2 * (2 * 3 + 2 * 6 + 6 * 12 + 2 * 24)", "one number per head and offset."),
)
WORK = (
    Adjustment("patch embedding", "N * 48 * c", SWIN_AROUND),
    Adjustment("merging of patches", "3 * N / 4 * 8 * c ** 2", SWIN_AROUND),
    Adjustment("classifier", "8 * c * 1000", SWIN_AROUND),
)
NORMS = (
    Adjustment(
        "norms",
        "5 * (2 * (2 + 2 / 2 + 6 / 4 + 2 / 8) + 1 + (1 + 1 / 2 + 1 / 4) + 1 / 8) * c * N",
        "5 operations per element that a norm reads, as in the counter fvcore; we count them as elementwise.",
    ),
)


def global_heads(stage: int, half: tuple[int, ...]) -> int:
    """The number of heads with their own queries and keys: all, or half of them, rounded up."""
    return -(-HEADS[stage] // 2) if stage in half else HEADS[stage]


def blocks(half: tuple[int, ...]) -> tuple[Part, ...]:
    """The attention and feed-forward layers of all stages; in the stages `half`, half of the heads are global."""
    parts = []
    for stage, (depth, heads, windows) in enumerate(zip(DEPTHS, HEADS, WINDOWS, strict=True)):
        width = {"f": f"{2**stage} * c"}
        legs = width | {"h": str(heads), "d": "32"}
        legs |= {"g": str(global_heads(stage, half))} if stage in half else {}
        design = "hard_fish" if stage in half else "mhsa"
        parts.append(Part(design, legs, {"n": "49", "m": "49"}, times=depth, batch=str(windows)))
        parts.append(Part("mlp", width, {"n": f"N / {4**stage}"}, times=depth))
    return tuple(parts)


def biases(half: tuple[int, ...]) -> Adjustment:
    """Biases of the queries and keys of global heads, of all values, and of the output."""
    each = (
        f"{depth} * (2 * {global_heads(stage, half)} + 2 * {heads})"
        for stage, (depth, heads) in enumerate(zip(DEPTHS, HEADS, strict=True))
    )
    return Adjustment("biases of attention", f"32 * ({' + '.join(each)})", BIASES)


IMAGES = 1024
NOTE_IMAGES = (
    "the column's head is FLOPs (10^9), but it has GMACs of 1,024 images: 4.51 x 1,024 and 4.27 x 1,024, from the MACs "
    "of one image rounded to two digits. The counts here are for one image."
)
NOTE_LINEAR = (
    "with one linear layer that mixes the heads. With the two layers of GFiSH, it would be 4.28 GMACs per image."
)
GLOBAL = {"Softmax-12/24": (), "Hard-GFiSH-6/12": (2, 3)}  # stages with half of the heads global
DESIGNS = {"Softmax-12/24": "mhsa", "Hard-GFiSH-6/12": "hard_fish"}
EACH = {"4618.24": "4.51G", "4372.48": "4.27G"}  # MACs of one image


def model(name: str, half: tuple[int, ...], weights: str, work: str) -> Row:
    """Swin-T with half of the heads global in the stages `half`, counted from 0."""
    each = EACH.get(work)
    counts = (
        Count("parameters", (), None, weights, (*SWIN_WEIGHTS, biases(half)), note=NOTE_LINEAR if half else None),
        Count(
            "MACs",
            NORMS,
            None,
            work,
            WORK,
            note=NOTE_IMAGES if each else None,
            rounding=Rounding(like=each, times=IMAGES) if each else PLAIN,
        ),
    )
    return Row(name, "table 5", SWIN_VALUES, blocks(half), counts)


SWIN = Table(
    "swin",
    "Nguyen et al., Improving Transformer with an Admixture of Attention Heads (NeurIPS 2022), table 5: Swin-T",
    "all parameters; multiply-adds of products, and 5 operations per element that a LayerNorm reads",
    tuple(
        model(f"{row['Method']}: {DESIGNS[row['Method']]}", GLOBAL[row["Method"]], row["Params"], row["FLOPs (10^9)"])
        for row in printed("fish")["table 5"].rows
    ),
    "c channels and N tokens of the first stage",
)
