"""Few Heads Are Enough (EPA; later SwitchHead): all rows of its tables and equations.

The formulas of a layer are those of the script in the released code, `paper/common.py` of moe_attention: the printed
eq. 13 to 15 do not give the tables. T tokens, C chunks of context (2 with Transformer-XL's, 1 without), H heads of
width dh, model width dm; E experts per head, K active. For MoA, E experts of which H are active. The script counts
`p = 2 * T * C` rows of relative positions instead of 2 T C - 1.

A whole model has L layers of attention and a feed-forward layer of width dff, or a sigma-MoE; embeddings of V tokens
are not shared with the output. Its sizes are those of its shipped file, taken from table 6. Table 6 lacks some sizes,
and the model width everywhere. These follow from the printed counts and from the paper's rule for equal parameters: the
head width is the largest multiple of 4 at which attention has at most as many parameters as in the dense model; then
the feed-forward layer is widened as long as the whole model has no more parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensornet_attn.cost.paper.language import shipped
from tensornet_attn.cost.paper.model import Adjustment, Count, Formula, Formulas, Part, Row, Section, Table, printed
from tensornet_attn.cost.sizes import largest_size

XL = {"n": "T", "m": "C * T"}  # lengths of queries and keys
P = "(T + C * T - 1)"  # our relative positions: one per distance

WHY_ROWS = "with cached context, keys and values are computed for C T rows; the script counts T."
WHY_PLACES = "there are T + C T - 1 distances; the script counts 2 C T, or 2 T with experts."
WHY_SCORES = "the script does not count the product of queries and positions."
WHY_BIAS = "the script does not count the products of u and v with keys and positions."
WHY_COLUMNS = "every head has its own gates: H E columns; the script counts E."
WHY_SIDES = "the gate of the output is computed for T queries; the script counts C T."
WHY_WEIGHING = "the script counts a gate times one number as a MAC; we count it as elementwise if no leg is summed."

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
    "the script weighs the results of two experts per head, as in its EPA; MoA has one.",
)

WHY_INPUTS = "autograd also saves the layer's inputs; the script does not count them."
WHY_TWICE = "the script counts scores and softmax; autograd saves only the softmax."
WHY_GATES = "autograd saves the sigmoids and the result of topk; the script counts one of the two."
WHY_CHOSEN = "autograd saves the indices of the K chosen experts."
WHY_EXPERTS = "dense products save the results of all experts; a kernel that sums the chosen ones saves none."

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
        "dense products compute queries, maps and results of all E experts; the script counts the H chosen ones.",
    ),
    Adjustment("weighed results", "-T * E * dh", "autograd saves the experts' results before and after their gate."),
    Adjustment("context rows", "-2 * (C - 1) * T * dh", WHY_ROWS),
    Adjustment("positions", f"(2 * T - {P}) * dh", WHY_PLACES),
    Adjustment("gates twice", "-T * E", WHY_GATES),
    Adjustment("chosen experts", "-T * H", WHY_CHOSEN),
    Adjustment("gate rows in MoA", "(C - 1) * T * E", "gates are computed for T queries; the script counts C T."),
)

EPA_MACS = "2 * C * T ** 2 * dh * H + (2 * K + 2) * T * dh * dm * H + 2 * K * T * dh * H + 2 * E * C * T * dm"
EPA_FLOATS = "2 * C * T ** 2 * H + 4 * T * dh * H + 2 * E * C * T"
HEADS = {"f": "dm", "h": "H", "d": "dh"}
EXPERTS = HEADS | {"e": "E"}


@dataclass(frozen=True)
class Layer:
    """A kind of attention layer: our design, the script's formulas, and the adjustments from our counts to theirs."""

    part: Part
    macs: Formula
    floats: Formula
    macs_adjustments: tuple[Adjustment, ...]
    floats_adjustments: tuple[Adjustment, ...]

    def count(self, unit: str, printed: str | None, formula: Formula | None = None, note: str | None = None) -> Count:
        """One number of a layer; `formula` replaces the script's."""
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
        of("moa_47m_xl_sigmoid", {"f": "dm", "e": "E", "d": "dh"}, {"k": "H"}),  # has no loss that balances experts
        "2 * H * C * T ** 2 * dh + (2 * H + 2) * T * dh * dm + 2 * H * T * dh + E * T * dm + 2 * C * T * dh * dm",
        "2 * H * C * T ** 2 + (2 * H + 2) * T * dh + 2 * T * dh + E * C * T",
        (MOA_ROWS, MOA_WEIGHING, MOA_PLACES, PLACE_SCORES),
        (INPUTS, TWICE, *MOA_KEPT),
    ),
}


ONE = {"n": "1", "m": "1"}  # parameters do not depend on lengths
AROUND = (
    Adjustment(
        "embedding and output", "(2 * dm + 1) * V", "two matrices over the vocabulary, and biases of the output."
    ),
    Adjustment("norms", "(4 * L + 2) * dm", "two layer norms per layer and one at the end."),
)
XL_PART = Adjustment("positions", "L * (dm + 2) * H * dh", "Transformer-XL's Wr, u and v beside the design.")
MLP = Part(shipped("xl_47m").mlp.design, {"f": "dm", "l": "dff"}, ONE)
MOE = shipped("fast_transformer").mlp
MOE_PART = Part(MOE.design, {"f": "dm", "e": f"dff / {MOE.legs['l']}", "l": str(MOE.legs["l"])}, ONE)
LETTERS = "VKQO"
SMALL = shipped("xl_47m")
DENSE = {model.width: model.mixer.legs for model in (SMALL, shipped("xl_41m"), shipped("xl_262m"))}


def parameters(
    layer: str, values: Mapping[str, int], printed: str, note: str | None, moe: bool = False, design: str | None = None
) -> Count:
    """The parameters of a model; `design` replaces the layer's design and gets Transformer-XL's positions."""
    times, own = values["L"], LAYERS[layer].part
    attention = Part(design or own.design, own.legs, ONE, {} if design else own.settings, times)
    feed_forward = MOE_PART if moe else MLP
    parts = (attention, Part(feed_forward.design, feed_forward.legs, ONE, times=times))
    rest = (*AROUND, *([XL_PART] if design else []))
    return Count("parameters", (), None, printed, rest, parts, note)


def design_of(projections: str) -> str:
    """The shipped design with experts in these of the projections V, K, Q, O.

    >>> design_of("VO"), design_of("VKO")
    ('epa', 'epa_vko')
    """
    return "epa" if projections == "VO" else f"epa_{projections.lower()}"


def attention_parameters(
    projections: str, dh: int, H: int = 2, E: int = 5, dm: int = SMALL.width, xl: bool = True
) -> int:
    """The parameters of one layer with E experts per head in these projections; `xl`: with Transformer-XL's positions.

    >>> attention_parameters("", 41, H=10), attention_parameters("VO", 76)
    (845420, 822656)
    """
    experts = len(projections)
    gates = bool({*projections} & {*"VK"}) + bool({*projections} & {*"QO"})
    return dm * H * dh * (4 - experts + experts * E) + xl * (dm + 2) * H * dh + gates * dm * H * E


def dense_parameters(dm: int, xl: bool = True) -> int:
    """The parameters of one attention layer of the dense model of a width."""
    return attention_parameters("", DENSE[dm]["d"], DENSE[dm]["h"], dm=dm, xl=xl)


def widest(projections: str, H: int = 2, E: int = 5, dm: int = SMALL.width, xl: bool = True) -> int:
    """The head width by the paper's rule.

    >>> widest("VO"), widest("VO", H=4, E=4, dm=1024), widest("VO", xl=False)
    (76, 112, 64)
    """
    dense = dense_parameters(dm, xl)
    return largest_size(lambda d: attention_parameters(projections, d, H, E, dm, xl), dense, "attention", "d", 4)


def widths_of(projections: str) -> tuple[int, int]:
    """The widths of head and feed-forward layer of a model of table 1, which does not print them.

    >>> widths_of("V"), widths_of("VO"), widths_of("VKO"), widths_of("VKQO")
    ((112, 2065), (76, 2080), (56, 2115), (48, 2060))
    """
    return widest(projections), SMALL.width * RELEASED[len(projections)] // 1000


RELEASED = {1: 5014, 2: 5050, 3: 5135, 4: 5000}  # of the released settings: d_ff in thousandths of the model width


Values = dict[str, int]
Cells = Mapping[str, str]

PAPER = printed("epa")
DATASET = "Wikitext 103"
SHORT = {
    "Transformer XL": "XL",
    "Transformer (RoPE)": "RoPE",
    "EPA (RoPE)": "EPA RoPE",
    "Fast Transformer": "Fast",
    "Trafo. XL": "XL",
    DATASET: "WT-103",
}
LAYER_OF = {"Fast Transformer": "EPA", "Trafo. XL": "Transformer XL"}
FILES = {  # the shipped models of the rows
    ("Transformer XL", "47M"): "xl_47m",
    ("Transformer XL", "41M"): "xl_41m",
    ("Transformer XL", "262M"): "xl_262m",
    ("Transformer (RoPE)", "45M"): "rope_45m",
    ("Transformer (RoPE)", "244M"): "rope_244m",
    ("EPA", "47M"): "epa_47m_xl",
    ("EPA", "41M"): "epa_41m_xl",
    ("EPA", "262M"): "epa_262m_xl",
    ("EPA (RoPE)", "45M"): "epa_45m_rope",
    ("EPA (RoPE)", "243M"): "epa_243m_rope",
    ("MoA", "47M"): "moa_47m_xl",
    ("MoA", "262M"): "moa_262m_xl",
    ("Fast Transformer", "47M"): "fast_transformer",
    ("Fast Transformer", "259M"): "fast_transformer_259m",
    ("Fast Transformer", "272M"): "fast_transformer_259m",
}
WEB = ("C4", "peS2o")  # data sets on which EPA has other sizes than on WikiText-103
RULE = "d_head and d_ff are not printed; they follow from the paper's rule for equal parameters"
NOTE_MOA = f"{RULE}, and E is the number of heads of the dense model."
NOTE_HEADS = "table 6 has no such row: d_head keeps the total width of all heads."
NOTE_TABLE_1 = (
    "d_head and d_ff are not printed; d_head follows from the paper's rule for equal parameters, as in all 15 released "
    "settings, and d_ff is theirs. The number of parameters is from the caption."
)
NOTE_CONTEXT = (
    "the printed number is the count with C = 2, as if with cached context; with C = 1, as with rotary positions, it "
    "is 3.4G and 10.0M. In the released code, only the settings of this model keep the cached context."
)
NOTE_FAST = (
    "table 6 gives this model d_head = 128 and 272M parameters, and K = 4 on WikiText-103. With the sizes of EPA 262M "
    "on C4 in table 3, d_head = 112 and K = 2, we get the count printed here, and the 259M parameters."
)
NOTE_MOE = (
    "d_ff is not the value in table 6: the sigma-MoE has {experts} experts of width 128, as in Csordas et al. (2023)."
)
NOTE_INNER = (
    "with 1648 the model has 41.6M parameters, not the printed 47M: the sigma-MoE of Csordas et al. (2023), which the "
    "paper uses unchanged, has 16 experts of width 128."
)
NOTE_272M = "table 4 prints 259M for this model, which is the count for d_head = 112."
NOTE_WIDTH = (
    "the paper's rule gives {rule}: with {printed}, attention has more parameters than the dense model, and the whole "
    "model has 272M where the dense model has 262M."
)
NOTE_EQ_13 = (
    "the tables were not computed with eq. 13. They follow the script of the released code, which counts 2 T rows of "
    "positions, not 2 C T, and adds the gates."
)
NOTE_EQ_12 = "the text says that eq. 12 also holds for EPA; the script counts 2 T positions, not 2 C T, and the gates."
NOTE_MOA_EQ = (
    "the script adds the gates and the weights of the results; for the memory of positions it counts 2 T, not 2 C T."
)
NOTE_RAM = "13.5 / 20 is 0.675, which is 0.68 with the printed digits."
NOTE_TIME = "442 / 670 is 0.66."
RATIOS = {("0.67", "13.5G"): NOTE_RAM, ("0.65", "442ms"): NOTE_TIME}


def file_of(row: Cells) -> str:
    """The name of the shipped model of a printed row, possibly at other sizes.

    >>> file_of({"Model": "MoA", "sel. mode": "sigmoid", "n_heads": "8", "#params": "47M"})
    'moa_47m_xl_sigmoid'
    """
    name = FILES[row["Model"], row["#params"]]
    if name == "epa_262m_xl" and row.get("Dataset") in WEB:
        return "epa_262m_xl_c4"
    return f"{name}_sigmoid" if row.get("sel. mode") == "sigmoid" and row["Model"] == "MoA" else name


def sizes(row: Cells) -> tuple[Values, str | None]:
    """The values of a printed row, and a note about them."""
    model, heads, size = row["Model"], int(row["n_heads"]), row["#params"]
    values = values_of(file_of(row))
    if model == "MoA":
        return values | {"H": heads}, NOTE_MOA
    if model in ("Transformer XL", "Transformer (RoPE)"):  # the total width of all heads is that of the file
        values |= {"H": heads, "dh": values["H"] * values["dh"] // heads}
        names = ("Model", "Dataset", "n_heads", "#params")
        in_table = any(all(line[name] == row.get(name) for name in names) for line in PAPER["table 6"].rows)
        return values, None if "Dataset" not in row or in_table else NOTE_HEADS
    if size == "47M" and row.get("Dataset") in WEB:
        values |= {"K": 3}
    if model != "Fast Transformer":
        return values, None
    if size == "272M":
        values |= {"dh": int(row["d_head"]), "K": int(row["K"])}
    return values, NOTE_FAST if size == "259M" else NOTE_MOE.format(experts=values["dff"] // 128)


def values_of(name: str) -> Values:
    """The sizes of a shipped model by the paper's letters."""
    model = shipped(name)
    legs, settings = model.mixer.legs, model.mixer.settings
    values = {"T": model.length, "C": 1 + model.memory // model.length, "H": legs.get("h") or settings["k"]}
    values |= {"dh": legs["d"], "dm": model.width}
    values |= {"E": legs["e"]} if "e" in legs else {}
    values |= {"K": settings["k"]} if "h" in legs and settings else {}
    return values | {"dff": model.inner, "L": model.layers, "V": model.vocabulary}


def rows(section: Section) -> Iterable[Row]:
    """Tables 2 to 6: parameters, and MACs and memory if they are printed."""
    several = len({row.get("Dataset") for row in section.rows}) > 1
    for row in section.rows:
        values, note = sizes(row)
        model, size = row["Model"], row["#params"]
        layer = LAYER_OF.get(model, model)
        of_model, of_layer = notes(model, size, note)
        counts = [parameters(layer, values, size, of_model, moe=model == "Fast Transformer")]
        for unit, column in (("MACs", "MACs"), ("floats", "Mem (floats)")):
            if column in row:
                counts.append(LAYERS[layer].count(unit, row[column], note=of_layer))
        if "d_head" in row and "E" in values:
            counts.append(width(row, values))
        if "d_ff" in row and model == "Fast Transformer":
            counts.append(inner(row, values))
        words = [SHORT.get(model, model), *([row["sel. mode"]] if model == "MoA" else []), f"{size},"]
        name = f"{' '.join(words)} {row['n_heads']} heads"
        name += f", {SHORT.get(row['Dataset'], row['Dataset'])}" if several else ""
        yield Row(name, section.where, values, (LAYERS[layer].part,), tuple(counts), kind=layer)


def notes(model: str, size: str, note: str | None) -> tuple[str | None, str | None]:
    """The notes on the parameters of a row, and on its MACs and memory."""
    if size == "243M":
        return None, NOTE_CONTEXT
    if model == "Fast Transformer" and size != "259M":
        return NOTE_272M if size == "272M" else note, None
    return note, note


def width(row: Cells, values: Values) -> Count:
    """The head width printed in table 6, and that of the rule."""
    found = widest("VO", values["H"], values["E"], values["dm"], values["C"] > 1)
    rule = Adjustment("rule", str(found), "the largest multiple of 4 that keeps attention below the dense parameters.")
    note = NOTE_WIDTH.format(rule=found, printed=row["d_head"]) if str(found) != row["d_head"] else None
    return Count("d_head", printed=row["d_head"], rest=(rule,), parts=(), note=note)


def inner(row: Cells, values: Values) -> Count:
    """The feed-forward width printed in table 6, and that of all experts of the sigma-MoE."""
    experts = Adjustment("experts", "dff", "the total width of all experts of the sigma-MoE.")
    note = NOTE_INNER if int(row["d_ff"]) != values["dff"] else None
    return Count("d_ff", printed=row["d_ff"], rest=(experts,), parts=(), note=note)


def table_1(section: Section) -> Iterable[Row]:
    """The parameters for all choices of projections with experts."""
    dense = values_of("xl_47m")
    for row in section.rows:
        heads, chosen = int(row["n_heads"]), "".join(x for x in LETTERS if row[f"{x} expert"] == "Y")
        if not chosen:
            values, _ = sizes({"Model": row["Model"], "n_heads": row["n_heads"], "#params": row["#params"]})
            count = parameters("Transformer XL", values, row["#params"], None)
            yield Row(f"XL 47M, {heads} heads", section.where, values, (), (count,), kind="Transformer XL")
            continue
        dh, dff = widths_of(chosen)
        values = dense | {"H": heads, "dh": dh, "dff": dff, "E": 5, "K": 2}
        count = parameters("EPA", values, row["#params"], NOTE_TABLE_1, design=design_of(chosen))
        yield Row(f"EPA 47M, experts in {chosen}", section.where, values, (), (count,), kind="EPA")


def equations(section: Section) -> Iterable[Row]:
    """The printed formulas, at the sizes of a model of 47M parameters on WikiText-103."""
    models = {"Transformer XL": "10", "EPA": "2", "MoA": "4"}
    notes = {
        ("12", "EPA"): NOTE_EQ_12,
        ("13", "EPA"): NOTE_EQ_13,
        ("14", "MoA"): NOTE_MOA_EQ,
        ("15", "MoA"): NOTE_MOA_EQ,
    }
    for row in section.rows:
        model = row["model"]
        values, _ = sizes({"Model": model, "n_heads": models[model], "#params": "47M"})
        note = notes.get((row["equation"], model))
        count = LAYERS[model].count(row["unit"], None, row["formula"], note)
        name = f"eq. {row['equation']}, {SHORT.get(model, model)} 47M"
        yield Row(name, section.where, values, (LAYERS[model].part,), (count,), kind=model)


def measured(section: Section) -> Iterable[Row]:
    """Table 7: time and memory of training on GPUs."""
    for row in section.rows:
        counts = tuple(
            Count(column, printed=row[column], source="measured", note=RATIOS.get((row[column], row[beside])))
            for column, beside in (
                ("time of an iteration", "time of an iteration"),
                ("Rel. iter. time", "time of an iteration"),
                ("RAM/GPU", "RAM/GPU"),
                ("Rel. Mem.", "RAM/GPU"),
            )
        )
        name = f"{SHORT.get(row['Model'], row['Model'])} {row['Size']}, {row['#GPUs']} {row['GPU type']}"
        yield Row(name, section.where, {}, (), counts)


def claims(section: Section) -> Iterable[Row]:
    """Numbers in the text."""
    heads = {"fewest attention maps saved": (16, 4), "most attention maps saved": (16, 2)}
    for row in section.rows:
        if row["claim"] not in heads:
            count = Count(row["unit"], printed=row["printed"], source="measured")
            yield Row(f"{row['place']}: {row['claim']}", section.where, {}, (), (count,))
            continue
        dense, own = heads[row["claim"]]
        ratio = Adjustment("heads", "Hd / H", "heads of the dense model over those of EPA.")
        note = "the models of 262M parameters: 16 heads to 4 on C4, and to 2 on WikiText-103."
        count = Count(row["unit"], printed=row["printed"], rest=(ratio,), note=note)
        yield Row(f"{row['place']}: {row['claim']}", section.where, {"Hd": dense, "H": own}, (), (count,))


EPA = Table(
    "epa",
    "Csordas et al., Few Heads Are Enough (EPA, 2023; later SwitchHead)",
    "MACs and floats of one attention layer and one sequence: multiply-adds of products and of the gates that weigh "
    "experts; floats of queries, keys, values, heads, gates, and twice the map; cached context and gates are counted "
    "only partly. Parameters of the whole model",
    (
        *equations(PAPER["equations"]),
        *table_1(PAPER["table 1"]),
        *(row for i in (2, 3, 4, 5, 6) for row in rows(PAPER[f"table {i}"])),
        *measured(PAPER["table 7"]),
        *claims(PAPER["text"]),
    ),
    "T tokens; C chunks of context, 2 with Transformer-XL's and 1 without; H heads of width dh, for MoA those active; "
    "dm model width, which the paper does not print; E experts per head, for MoA in total; K of them active",
)
