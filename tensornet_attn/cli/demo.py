"""The last step of `make demo`: runs the design thsa forward and backward on the CPU and prints a summary."""

from __future__ import annotations

import time

import tensornet_attn as ta


def main() -> None:
    import torch

    torch.manual_seed(0)
    module = ta.compile("thsa")
    x = torch.randn(2, 128, 512, requires_grad=True)  # batch n f
    target = torch.randn(2, 128, 512)
    start = time.perf_counter()
    y = module(x)
    loss = (y - target).square().mean()
    loss.backward()
    seconds = time.perf_counter() - start
    weights = dict(module.named_parameters())
    for name, weight in weights.items():
        if weight.grad is None or not weight.grad.isfinite().all():
            raise SystemExit(f"error: '{name}' has no finite gradient.")
    print(f"forward:  x [{' '.join(map(str, x.shape))}] -> y [{' '.join(map(str, y.shape))}]")
    print(f"backward: loss {loss.item():.4f}, gradients of x and of {', '.join(weights)}")
    print(f"time:     {seconds:.2f} s on the CPU")
    print("files:    demo/thsa.svg (the picture), demo/thsa.py (the generated module)")


if __name__ == "__main__":
    main()
