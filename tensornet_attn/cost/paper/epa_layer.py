"""Few Heads Are Enough (EPA): MACs and memory of one attention layer, by the five kinds of layers in its tables.

T tokens, C chunks of context (2 with Transformer-XL's, 1 without), H heads of width dh, model width dm; E experts a
head, K active. Of MoA, E experts of which H are active. The formulas are those of the script in the released code,
`paper/common.py` of moe_attention: eq. 13 to 15 as printed do not give the tables. Its `p = 2 * T * C` rows of relative
positions stand for 2 T C - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensornet_attn.cost.paper.model import Adjustment, Count, Formula, Formulas, Part
from tensornet_attn.cost.paper.shipped import shipped

XL = {"n": "T", "m": "C * T"}  # lengths of queries and keys
P = "(T + C * T - 1)"  # our relative positions: one for each distance there is

WHY_ROWS = "with cached context, keys and values are made for C T rows; the script counts T."
WHY_PLACES = "there are T + C T - 1 distances; the script counts 2 C T, or 2 T with experts."
WHY_SCORES = "the product of queries and positions is left out by the script."
WHY_BIAS = "the products of u and v with keys and positions are left out by the script."
WHY_COLUMNS = "every head has gates of its own: H E columns; the script counts E."
WHY_SIDES = "the gate of the output is made for T queries; the script counts C T."
WHY_WEIGHING = "a gate times one number is a MAC to the script; to us it is elementwise where nothing is summed."

DENSE_ROWS = Adjustment("context rows", "-2 * (C - 1) * T * dm * H * dh", WHY_ROWS)
DENSE_PLACES = Adjustment("positions", f"(2 * C * T - {P}) * dm * H * dh", WHY_PLACES)
PLACE_SCORES = Adjustment("position scores", f"-T * {P} * H * dh", WHY_SCORES)
BIASES = Adjustment("biases u and v", f"-(C * T + {P}) * H * dh", WHY_BIAS)
ROWS = Adjustment("context rows", "-(C - 1) * T * (dm * H * dh + K * (dm + 1) * H * dh)", WHY_ROWS)
PLACES = Adjustment("positions", f"(2 * T - {P}) * dm * H * dh", WHY_PLACES)
COLUMNS = Adjustment("gate columns", "-(T + C * T) * dm * (H - 1) * E", WHY_COLUMNS)
SIDES = Adjustment("gate rows", "(C - 1) * T * dm * E", WHY_SIDES)
WEIGHING = Adjustment("weighing", "K * T * H * dh", WHY_WEIGHING)
MOA_ROWS = Adjustment("context rows", "-2 * (C - 1) * T * dm * dh", WHY_ROWS)
MOA_PLACES = Adjustment("positions", f"(2 * C * T - {P}) * dm * dh", WHY_PLACES)
MOA_WEIGHING = Adjustment(
    "weighing in MoA",
    "2 * T * H * dh",
    "the script weighs the results of two experts a head, as in its EPA; MoA has one.",
)

WHY_INPUTS = "autograd keeps the layer's inputs as well; the script leaves them out."
WHY_TWICE = "the script counts scores and softmax; of the two autograd keeps the softmax."
WHY_GATES = "autograd keeps the sigmoids and what topk leaves of them; the script counts one of the two."
WHY_CHOSEN = "autograd keeps which K experts are chosen."
WHY_EXPERTS = "dense products keep the results of all experts; a kernel that adds the chosen ones up keeps none."

INPUTS = Adjustment("inputs", "-(T + C * T) * dm", WHY_INPUTS)
ONE_INPUT = Adjustment("inputs", "-T * dm", WHY_INPUTS)
TWICE = Adjustment("scores", "C * T ** 2 * H", WHY_TWICE)
KEPT_ROWS = Adjustment("context rows", "-2 * (C - 1) * T * H * dh", WHY_ROWS)
KEPT_DENSE_PLACES = Adjustment("positions", f"(2 * C * T - {P}) * H * dh", WHY_PLACES)
KEPT_PLACES = Adjustment("positions", f"(2 * T - {P}) * H * dh", WHY_PLACES)
KEPT_GATES = (
    Adjustment("gates twice", "-(T + C * T) * H * E", WHY_GATES),
    Adjustment("chosen experts", "-(T + C * T) * H * K", WHY_CHOSEN),
    Adjustment("gate columns", "-(T + C * T) * (H - 1) * E", WHY_COLUMNS),
    Adjustment("gate rows", "(C - 1) * T * E", WHY_SIDES),
    Adjustment("results of experts", "-(T + C * T) * H * E * dh", WHY_EXPERTS),
)
MOA_KEPT = (
    Adjustment(
        "experts not chosen",
        "-(E - H) * (C * T ** 2 + 2 * T * dh)",
        "dense products make queries, maps and results of all E experts; the script counts the H chosen ones.",
    ),
    Adjustment("weighed results", "-T * E * dh", "autograd keeps the experts' results before and after their gate."),
    Adjustment("context rows", "-2 * (C - 1) * T * dh", WHY_ROWS),
    Adjustment("positions", f"(2 * T - {P}) * dh", WHY_PLACES),
    Adjustment("gates twice", "-T * E", WHY_GATES),
    Adjustment("chosen experts", "-T * H", WHY_CHOSEN),
    Adjustment("gate rows in MoA", "(C - 1) * T * E", "the gates are made for T queries; the script counts C T."),
)

EPA_MACS = "2 * C * T ** 2 * dh * H + (2 * K + 2) * T * dh * dm * H + 2 * K * T * dh * H + 2 * E * C * T * dm"
EPA_FLOATS = "2 * C * T ** 2 * H + 4 * T * dh * H + 2 * E * C * T"
HEADS = {"f": "dm", "h": "H", "d": "dh"}
EXPERTS = HEADS | {"e": "E"}


@dataclass(frozen=True)
class Layer:
    """A kind of attention layer: our design of it, the script's formulas, and what makes our counts the script's."""

    part: Part
    macs: Formula
    floats: Formula
    macs_adjustments: tuple[Adjustment, ...]
    floats_adjustments: tuple[Adjustment, ...]

    def count(self, unit: str, printed: str | None, formula: Formula | None = None, note: str | None = None) -> Count:
        """One number of a layer; `formula` stands in for the script's."""
        macs = unit == "MACs"
        adjustments = self.macs_adjustments if macs else self.floats_adjustments
        return Count(unit, adjustments, formula or (self.macs if macs else self.floats), printed, note=note)


def of(name: str, legs: Formulas, settings: Formulas | None = None) -> Part:
    """The attention of a shipped model, at the sizes of a row."""
    return Part(shipped(name).mixer.design, legs, XL, settings or {})


LAYERS = {
    "Transformer XL": Layer(
        of("xl_47m", HEADS),
        "H * (4 * T * dh * dm + 2 * C * T ** 2 * dh + 2 * C * T * dh * dm)",
        "H * (4 * T * dh + 2 * C * T ** 2 + 2 * C * T * dh)",
        (DENSE_ROWS, DENSE_PLACES, PLACE_SCORES, BIASES),
        (INPUTS, TWICE, KEPT_ROWS, KEPT_DENSE_PLACES),
    ),
    "EPA": Layer(
        of("epa_47m_xl", EXPERTS, {"k": "K"}),
        f"{EPA_MACS} + 2 * T * dh * dm * H",
        f"{EPA_FLOATS} + 2 * T * dh * H",
        (ROWS, COLUMNS, SIDES, WEIGHING, PLACES, PLACE_SCORES, BIASES),
        (INPUTS, TWICE, KEPT_ROWS, *KEPT_GATES, KEPT_PLACES),
    ),
    "Transformer (RoPE)": Layer(
        of("rope_45m", HEADS),
        "H * (4 * T * dh * dm + 2 * T ** 2 * dh)",
        "H * (4 * T * dh + 2 * T ** 2)",
        (),
        (ONE_INPUT, TWICE),
    ),
    "EPA (RoPE)": Layer(
        of("epa_45m_rope", EXPERTS, {"k": "K"}),
        EPA_MACS,
        EPA_FLOATS,
        (COLUMNS, SIDES, WEIGHING),
        (ONE_INPUT, TWICE, *KEPT_GATES),
    ),
    "MoA": Layer(
        of("moa_47m_xl_sigmoid", {"f": "dm", "e": "E", "d": "dh"}, {"k": "H"}),  # costs no loss to balance experts
        "2 * H * C * T ** 2 * dh + (2 * H + 2) * T * dh * dm + 2 * H * T * dh + E * T * dm + 2 * C * T * dh * dm",
        "2 * H * C * T ** 2 + (2 * H + 2) * T * dh + 2 * T * dh + E * C * T",
        (MOA_ROWS, MOA_WEIGHING, MOA_PLACES, PLACE_SCORES),
        (INPUTS, TWICE, *MOA_KEPT),
    ),
}
