"""A step with a cache, beside one written by hand on scaled_dot_product_attention: python docs/results/decoding.py

One thread, float32, batch 1; the two in turns, medians.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F

import tensornet_attn as ta

ROUNDS = 60


def seconds(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def layer_after(name: str, length: int) -> tuple[Callable[[], object], ta.CompiledDesign]:
    """A step of a design behind so many positions."""
    layer = ta.compile(name, causal=True).eval()
    cache = layer.new_cache(max_length=length + 2 * ROUNDS)
    layer(torch.randn(1, length, 512), cache=cache)
    x = torch.randn(1, 1, 512)
    return lambda: layer(x, cache=cache), layer


def by_hand(layer: ta.CompiledDesign, length: int) -> Callable[[], object]:
    """The same of mhsa, with room for keys and values made before."""
    k, v = (torch.zeros(1, 8, length + 2 * ROUNDS, 64) for _ in range(2))
    x, weights = torch.randn(1, 1, 512), (layer.Wq, layer.Wk, layer.Wv)
    seen = length

    def step() -> torch.Tensor:
        nonlocal seen
        q, k_new, v_new = ((x @ w.flatten(1)).unflatten(-1, (8, 64)).transpose(1, 2) for w in weights)
        k[:, :, seen : seen + 1], v[:, :, seen : seen + 1] = k_new, v_new
        seen += 1
        out = F.scaled_dot_product_attention(q, k[:, :, :seen], v[:, :, :seen])
        return out.transpose(1, 2).flatten(2) @ layer.Wo.flatten(0, 1)

    return step


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    ours, layer = layer_after("mhsa", 4096)
    hand = by_hand(layer, 4096)
    times = [(seconds(hand), seconds(ours)) for _ in range(ROUNDS)]
    one, other = (median(column) * 1e3 for column in zip(*times, strict=True))
    print(f"mhsa, 4,096 positions: by hand {one:.2f} ms, with a cache {other:.2f} ms")
    for length in (256, 4096, 16384):
        step, _ = layer_after("linear", length)
        print(f"linear, {length:,} positions: {median(seconds(step) for _ in range(ROUNDS)) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
