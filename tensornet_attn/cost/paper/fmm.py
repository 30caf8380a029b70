"""FMMformer: the size of its language models, the entries of a band, and its measurements.

It prints complexities, O(N), and no count of MACs or bytes; figure 6 is measured on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.cost.paper.language import Model, language_model, small
from tensornet_attn.cost.paper.model import PLAIN, Adjustment, Count, Row, Section, Table, figures, printed

PAPER = printed("fmm")
B5, B20 = {"k": "5"}, {"k": "20"}
MODELS: dict[str, Model] = {
    "Softmax": small("mhsa"),
    "Linear": small("linear"),
    "Band5": small("band", B5),
    "Band20": small("band", B20),
    "Fast weight": small("fast_weight1"),
    "Fast weight + Linear": small("fast_weight2"),
    "FMMformer (1-kernel + Band5)": small("fmm1_causal", B5),
    "FMMformer (1-kernel + Band20)": small("fmm1_causal", B20),
    "FMMformer (2-kernel + Band20)": small("fmm2_causal", B20),
    "FMMformer (1-kernel linear + Band20)": small("fmm1_causal", B20),
    "FMMformer (1-kernel fast weight + Band20)": small("fmm_fast_weight1", B20),
    "FMMformer (2-kernel linear + Band20)": small("fmm2_causal", B20),
    "FMMformer (2-kernel fast weight + Band20)": small("fmm_fast_weight2", B20),
}
NOTE = (
    "43.8M, which is 40 M only to the nearest ten million: 34.3M for the 267,735 words of WikiText-103, with one "
    "matrix for embedding and output, and 9.5M for the layers, which include 256 weights of the blend and 16,384 rates "
    "of fast weights."
)
NOTE_BAND = "5 entries per row, so a bandwidth counts diagonals; without the 6 cut off in the corners, it is 0.12496%."


def models(section: Section) -> Iterable[Row]:
    """The parameters that a table's caption gives for all its models."""
    for row in section.rows:
        model = MODELS[row["Method"]]
        count = language_model(model, row["#params"], PLAIN, NOTE)
        yield Row(row["Method"], section.where, model.values, (), (count,))


def band(section: Section) -> Iterable[Row]:
    """The entries within the band, as a percentage of the map; products with the band save the others."""
    for row in section.rows:
        entries = Adjustment("entries", "k * N - (k ** 2 - 1) / 4", "k per row, fewer in the rows of the two corners.")
        count = Count(row["unit"], printed=row["printed"], rest=(entries,), note=NOTE_BAND, percentage_of="N ** 2")
        yield Row(f"{row['place']}: {row['claim']}", section.where, {"N": 4000, "k": 5}, (), (count,))


FMM = Table(
    "fmm",
    "Nguyen et al., FMMformer: Efficient and Flexible Transformer via Decomposed Near-field and Far-field Attention "
    "(NeurIPS 2021)",
    "trainable parameters of whole language models",
    (*models(PAPER["table 2"]), *models(PAPER["table 3"]), *band(PAPER["text"]), *figures(PAPER["figures"])),
)
