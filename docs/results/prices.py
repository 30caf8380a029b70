"""How long fused attention of rewritten scores takes, how long the scores as they stand, and which is planned.

    python docs/results/prices.py two_products 1024 512

takes the layers by name, none for all, and lengths, none for 1,024. One thread, forward and backward, float32, some
2,048 positions; both ways alternate, and each has the median of its CPU times.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch

import tensornet_attn as ta
from tensornet_attn import compiler
from tensornet_attn.plan import fuse

SIDES = {"Wp": "f h e", "Wr": "f h e"}
TWO = {
    "P": "x[n f] Wp[f h e] -> n h e",
    "R": "x[m f] Wr[f h e] -> m h e",
    "A": {"softmax": "m", "scale": "(d + e) ** -0.5", "of": "Q[n h d] K[m h d] + P[n h e] R[m h e] -> h n m"},
}
KEYS = {
    "t": "x[m f] Wt[f h] -> m h",
    "A": {"softmax": "m", "scale": "d ** -0.5", "of": "t[m h] Q[n h d] K[m h d] -> h n m"},
}
LAYERS: dict[str, dict[str, Any]] = {
    "two_products": {"extends": "mhsa", "legs": {"f": 1024, "e": 8}, "weights": SIDES, "diagram": TWO},
    "two_wide_products": {"extends": "mhsa", "legs": {"f": 1024, "e": 64}, "weights": SIDES, "diagram": TWO},
    "temperatures": {"extends": "mhsa", "legs": {"f": 1024}, "weights": {"Wt": "f h"}, "diagram": KEYS},
    "key_mixtures": {"extends": "mgk", "legs": {"f": 1024}},
    "few_heads": {"extends": "hard_fish", "legs": {"f": 512}},
    "few_narrow_heads": {"extends": "hard_fish", "legs": {"f": 64, "g": "head 2", "h": "head 4", "d": 21}},
    "cores": {"extends": "thsa", "legs": {"f": 64, "r": "head 16", "s": "head 99"}},
    "spread_keys": {"extends": "skip_left", "legs": {"f": 256}},
}
ROUNDS, POSITIONS = 5, 2048


def made(layer: dict[str, Any], n: int, against: list[str]) -> Any:
    """The layer, planned as if the price of fused attention had always said this."""
    priced = fuse.too_dear
    compiler._plans.clear()
    fuse.too_dear = lambda *given: against
    try:
        return ta.compile(layer, "torch", n=n)
    finally:
        fuse.too_dear = priced
        compiler._plans.clear()


def main(words: list[str]) -> None:
    torch.set_num_threads(1)
    lengths = [int(word) for word in words if word.isdigit()] or [1024]
    for name in [word for word in words if not word.isdigit()] or LAYERS:
        layer = {"tensornet": 1, "name": name, **LAYERS[name]}
        for n in lengths:
            fused, stands = made(layer, n, []), made(layer, n, ["as they stand"])
            stands.load_state_dict(fused.state_dict())
            x = torch.randn(max(1, POSITIONS // n), n, layer["legs"]["f"], requires_grad=True)
            times: tuple[list[float], list[float]] = [], []
            for _ in range(ROUNDS + 1):
                for way, own in zip((fused, stands), times, strict=True):
                    start = time.process_time()
                    way(x).square().sum().backward()
                    own.append(time.process_time() - start)
            plan = ta.compile(layer, "torch", n=n).plan
            taken = "taken" if any(fuse.FUSED in region.chosen for region in plan.regions) else "left"
            a, b = (1e3 * statistics.median(own[1:]) for own in times)
            print(f"{name}, n {n}: {a / b:.2f} times as long, {a:.0f} of {b:.0f} ms; {taken}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
