"""Few Heads Are Enough (EPA; later SwitchHead): all rows of its tables and equations.

The sizes of a model are those of its shipped file, which has them from table 6. That table lacks some, and the model
width everywhere: they follow from the printed counts and from the paper's rule for equal parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tensornet_attn.cost.paper.epa_layer import LAYERS
from tensornet_attn.cost.paper.epa_model import (
    LETTERS,
    design_of,
    parameters,
    widest,
    widths_of,
)
from tensornet_attn.cost.paper.model import Adjustment, Count, Row, Table
from tensornet_attn.cost.paper.printed import Section, printed
from tensornet_attn.cost.paper.shipped import shipped

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
FILES = {  # the shipped models that rows stand for
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
WEB = ("C4", "peS2o")  # data on which EPA has other sizes than on WikiText-103
RULE = "d_head and d_ff are not printed; they follow from the paper's rule for equal parameters"
NOTE_MOA = f"{RULE}, and E is the number of heads of the dense model."
NOTE_HEADS = "table 6 has no such row: d_head keeps the width of all heads together."
NOTE_TABLE_1 = f"{RULE}. The number of parameters is the caption's."
NOTE_CONTEXT = (
    "the print is the count with C = 2, as if with cached context; with C = 1, as rotary positions have it, it "
    "is 3.4G and 10.0M. In the released code the settings of this model alone keep the cached context."
)
NOTE_FAST = (
    "table 6 gives this model d_head = 128 and 272M parameters, and K = 4 on WikiText-103. With those of EPA 262M on "
    "C4 in table 3, d_head = 112 and K = 2, the count is the one printed here, and so are the 259M parameters."
)
NOTE_MOE = (
    "d_ff is not what table 6 prints: the sigma-MoE has {experts} experts of width 128, as in Csordas et al. (2023)."
)
NOTE_INNER = (
    "with 1648 the model has 41.6M parameters, not the 47M printed: the sigma-MoE of Csordas et al. (2023), which the "
    "paper takes as it is, has 16 experts of width 128."
)
NOTE_272M = "table 4 prints 259M for this model: that of d_head = 112."
NOTE_WIDTH = (
    "the paper's rule gives {rule}: with {printed}, attention has more parameters than the dense model, and the whole "
    "has 272M where the dense model has 262M."
)
NOTE_EQ_13 = (
    "eq. 13 is not what the tables were computed with. They follow the script of the released code, which counts 2 T "
    "rows of positions, not 2 C T, and adds the gates."
)
NOTE_EQ_12 = (
    "the text says that eq. 12 holds for EPA as well; the script counts 2 T positions, not 2 C T, and the gates."
)
NOTE_MOA_EQ = (
    "the script adds the gates and what weighs the results; of the memory of positions it counts 2 T, not 2 C T."
)
NOTE_RAM = "13.5 / 20 is 0.675, which is 0.68 by the digits printed."
NOTE_TIME = "442 / 670 is 0.66."
RATIOS = {("0.67", "13.5G"): NOTE_RAM, ("0.65", "442ms"): NOTE_TIME}


def file_of(row: Cells) -> str:
    """The name of the shipped model of a printed row, perhaps at other sizes.

    >>> file_of({"Model": "MoA", "sel. mode": "sigmoid", "n_heads": "8", "#params": "47M"})
    'moa_47m_xl_sigmoid'
    """
    name = FILES[row["Model"], row["#params"]]
    if name == "epa_262m_xl" and row.get("Dataset") in WEB:
        return "epa_262m_xl_c4"
    return f"{name}_sigmoid" if row.get("sel. mode") == "sigmoid" and row["Model"] == "MoA" else name


def sizes(row: Cells) -> tuple[Values, str | None]:
    """The values of a printed row, and what must be said about them."""
    model, heads, size = row["Model"], int(row["n_heads"]), row["#params"]
    values = values_of(file_of(row))
    if model == "MoA":
        return values | {"H": heads}, NOTE_MOA
    if model in ("Transformer XL", "Transformer (RoPE)"):  # all heads together are as wide as in the file
        values |= {"H": heads, "dh": values["H"] * values["dh"] // heads}
        return values, None if "Dataset" not in row or in_table_6(row) else NOTE_HEADS
    if size == "47M" and row.get("Dataset") in WEB:
        values |= {"K": 3}
    if model != "Fast Transformer":
        return values, None
    if size == "272M":
        values |= {"dh": int(row["d_head"]), "K": int(row["K"])}
    return values, NOTE_FAST if size == "259M" else NOTE_MOE.format(experts=values["dff"] // 128)


def in_table_6(row: Cells) -> bool:
    """Whether table 6 gives the sizes of a row."""
    names = ("Model", "Dataset", "n_heads", "#params")
    return any(all(line[name] == row[name] for name in names) for line in PAPER["table 6"].rows)


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
    """Tables 2 to 6: parameters, MACs and memory where they are printed."""
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
    """What is said of the parameters of a row, and of its MACs and memory."""
    if size == "243M":
        return None, NOTE_CONTEXT
    if model == "Fast Transformer" and size != "259M":
        return NOTE_272M if size == "272M" else note, None
    return note, note


def width(row: Cells, values: Values) -> Count:
    """The width of a head that table 6 prints, beside that of the rule."""
    found = widest("VO", values["H"], values["E"], values["dm"], values["C"] > 1)
    rule = Adjustment("rule", str(found), "the largest multiple of 4 that keeps attention below the dense parameters.")
    note = NOTE_WIDTH.format(rule=found, printed=row["d_head"]) if str(found) != row["d_head"] else None
    return Count("d_head", printed=row["d_head"], rest=(rule,), parts=(), note=note)


def inner(row: Cells, values: Values) -> Count:
    """The width of the feed-forward layer that table 6 prints, beside that of all experts of the sigma-MoE."""
    experts = Adjustment("experts", "dff", "the width of all experts of the sigma-MoE together.")
    note = NOTE_INNER if int(row["d_ff"]) != values["dff"] else None
    return Count("d_ff", printed=row["d_ff"], rest=(experts,), parts=(), note=note)


def table_1(section: Section) -> Iterable[Row]:
    """The parameters of all choices of projections with experts."""
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
    """The formulas as printed, at the sizes of a model of 47M parameters on WikiText-103."""
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
    """What the text says in numbers."""
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
    "partly. Parameters of the whole model",
    (
        *equations(PAPER["equations"]),
        *table_1(PAPER["table 1"]),
        *(row for i in (2, 3, 4, 5, 6) for row in rows(PAPER[f"table {i}"])),
        *measured(PAPER["table 7"]),
        *claims(PAPER["text"]),
    ),
    "T tokens; C chunks of context, 2 with Transformer-XL's and 1 without; H heads of width dh, of MoA those active; "
    "dm model width, which the paper does not print; E experts a head, of MoA in all; K of them active",
)
