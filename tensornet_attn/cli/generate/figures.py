"""The figures of docs/costs.md: FiSHformer's figures of efficiency, drawn from our counts.

One layer: attention and a feed-forward layer of width 2,048, where the paper counts whole language models.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensornet_attn.cli.generate.catalogue import Catalogue
from tensornet_attn.cli.sweep import sweep
from tensornet_attn.cost.sweep import Sweep
from tensornet_attn.draw.sweep import sweep_svg

WIDTHS = (256, 512, 1024, 2048, 4096)
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
WORK = ("macs", "training")


def figure(designs: tuple[str, ...], against: str | None, measures: tuple[str, ...], *axes: str, **legs: int) -> Sweep:
    """A sweep over axes, each `f`, `n` or `g`; `l` is the width of the feed-forward layer beside."""
    sizes = {"f": WIDTHS, "n": LENGTHS, "g": (2, 4, 6)}
    over = {axis: sizes[axis] for axis in axes}
    return Sweep(designs, over, measures, against, beside=("mlp",), legs={**legs, "l": 2048}, order="fewest")


SHARED = ("gfish_release",)
FIGURES = {
    "fishformer-3": figure(SHARED, "mhsa", (*WORK, "parameters", "peak"), "f", "n", g=2),
    "fishformer-6": figure(("fish", "hard_fish", "gfish", "hard_gfish"), None, WORK, "n", g=2, f=1024),
    "fishformer-7": figure(SHARED, "mhsa", WORK, "n", "g", f=1024),
    "fishformer-8": figure(SHARED, "mhsa", ("parameters", "peak"), "f", "g"),
}


def figures(catalogue: Catalogue) -> Iterator[tuple[str, str]]:
    """Name and SVG of each figure whose designs are all there."""
    for name, asked in FIGURES.items():
        designs = {*asked.designs, *asked.beside, *([asked.against] if asked.against else [])}
        if designs <= {*catalogue.entries}:
            yield name, sweep_svg(sweep(asked))
