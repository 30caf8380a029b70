"""Few Heads Are Enough (EPA): parameters of its whole models, and the widths of its rule for equal parameters.

L layers of attention and a feed-forward layer of width dff, or a sigma-MoE; embeddings of V pieces, not shared with the
output. The rule: the largest multiple of 4 for the width of a head at which attention has no more parameters than the
dense model's; then the feed-forward layer is widened as far as the whole has no more.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensornet_attn.cost.match import largest_size
from tensornet_attn.cost.paper.epa_layer import LAYERS
from tensornet_attn.cost.paper.model import Adjustment, Count, Part
from tensornet_attn.cost.paper.shipped import shipped

ONE = {"n": "1", "m": "1"}  # parameters do not depend on lengths
AROUND = (
    Adjustment(
        "embedding and output", "(2 * dm + 1) * V", "two matrices over the vocabulary, and biases of the output."
    ),
    Adjustment("norms", "(4 * L + 2) * dm", "two layer norms a layer and one at the end."),
)
XL_PART = Adjustment("positions", "L * (dm + 2) * H * dh", "Transformer-XL's Wr, u and v beside the design.")
MLP = Part(shipped("xl_47m").mlp.design, {"f": "dm", "l": "dff"}, ONE)
MOE = shipped("fast_transformer").mlp
EXPERTS = Part(MOE.design, {"f": "dm", "e": f"dff / {MOE.legs['l']}", "l": str(MOE.legs["l"])}, ONE)
LETTERS = "VKQO"
SMALL = shipped("xl_47m")
DENSE = {model.width: model.mixer.legs for model in (SMALL, shipped("xl_41m"), shipped("xl_262m"))}


def parameters(
    layer: str, values: Mapping[str, int], printed: str, note: str | None, moe: bool = False, design: str | None = None
) -> Count:
    """The parameters of a model; `design` takes the place of the layer's and gets Transformer-XL's positions."""
    times, own = values["L"], LAYERS[layer].part
    attention = Part(design or own.design, own.legs, ONE, {} if design else own.settings, times)
    feed_forward = EXPERTS if moe else MLP
    parts = (attention, Part(feed_forward.design, feed_forward.legs, ONE, times=times))
    rest = (*AROUND, *([XL_PART] if design else []))
    return Count("parameters", (), None, printed, rest, parts, note)


def design_of(projections: str) -> str:
    """The shipped design in which these of the projections V, K, Q, O have experts.

    >>> design_of("VO"), design_of("VKO")
    ('epa', 'epa_vko')
    """
    return "epa" if projections == "VO" else f"epa_{projections.lower()}"


def attention_parameters(
    projections: str, dh: int, H: int = 2, E: int = 5, dm: int = SMALL.width, xl: bool = True
) -> int:
    """Of one layer in which these projections have E experts a head; `xl`: with Transformer-XL's positions.

    >>> attention_parameters("", 41, H=10), attention_parameters("VO", 76)
    (845420, 822656)
    """
    experts = len(projections)
    gates = bool({*projections} & {*"VK"}) + bool({*projections} & {*"QO"})
    return dm * H * dh * (4 - experts + experts * E) + xl * (dm + 2) * H * dh + gates * dm * H * E


def dense_parameters(dm: int, xl: bool = True) -> int:
    """Of one attention layer of the dense model of a width."""
    return attention_parameters("", DENSE[dm]["d"], DENSE[dm]["h"], dm=dm, xl=xl)


def widest(projections: str, H: int = 2, E: int = 5, dm: int = SMALL.width, xl: bool = True) -> int:
    """The width of a head by the paper's rule.

    >>> widest("VO"), widest("VO", H=4, E=4, dm=1024), widest("VO", xl=False)
    (76, 112, 64)
    """
    dense = dense_parameters(dm, xl)
    return largest_size(lambda d: attention_parameters(projections, d, H, E, dm, xl), dense, "attention", "d", 4)


def widths_of(projections: str) -> tuple[int, int]:
    """Widths of head and feed-forward layer of a model of table 1, which does not print them."""
    dh = widest(projections)
    spare = dense_parameters(SMALL.width) - attention_parameters(projections, dh)
    return dh, feed_forward(spare, SMALL.width, SMALL.inner)


def feed_forward(spare: int, dm: int, dense: int) -> int:
    """The width of the feed-forward layer that `spare` parameters more allow, from that of the dense model."""
    return dense + spare // (2 * dm + 1)
