"""The last step of `make demo`: compares a small thsa with the reference, and times it on the CPU."""

from __future__ import annotations

import time
from statistics import median

import tensornet_attn as ta

LEGS = {"f": 64, "r": 64, "s": 64}  # as in the Makefile; the published sizes take seconds on a CPU
STEPS = 20


def main() -> None:
    import torch

    torch.manual_seed(0)
    layer = ta.compile(ta.load("thsa", legs=LEGS))
    x = torch.randn(2, 64, 64, requires_grad=True)  # batch n f
    print(ta.verify(layer, x))
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        y = layer(x)
        y.square().mean().backward()
        seconds.append(time.perf_counter() - start)
    print(
        f"layer:    x [{' '.join(map(str, x.shape))}] -> y [{' '.join(map(str, y.shape))}], gradients of x and of "
        f"{', '.join(name for name, _ in layer.named_parameters())}"
    )
    print(f"time:     {1000 * median(seconds):.1f} ms for forward and backward on the CPU, median of {STEPS}")
    print("files:    demo/thsa.svg (the picture), demo/thsa.py (the generated module)")


if __name__ == "__main__":
    main()
