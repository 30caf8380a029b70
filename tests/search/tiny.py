"""Shipped designs at sizes that a test can afford, and the comparison of a design with the reference."""

from __future__ import annotations

import random

import torch

import tensornet_attn as ta
from tensornet_attn.spec import Design
from tests.random_call import F64, Call, same_if_usable

SMALL = {512: 16, 64: 8, 128: 8, 32: 8, 16: 8, 8: 4}


def tiny(name: str) -> Design:
    """A shipped design with its large numbers made small."""
    design = ta.load(name)
    legs = {}
    for leg, text in design.declared_legs.items():
        number = str(text).removeprefix("head ").strip()
        if number.isdigit() and int(number) in SMALL:
            legs[leg] = SMALL[int(number)]
    settings: dict[str, float] = {"k": 4} if name in ("moa", "moa_sigmoid") else {}
    settings |= {"turned": 1} if "turned" in design.settings else {}  # of a head of two or four
    return ta.load(design, legs=legs, settings=settings)


def finite(design: Design, seed: int = 0) -> None:
    """The reference computes the design and its gradients without NaN or infinity."""
    torch.manual_seed(seed)
    module = ta.reference(design, dtype=F64)
    inputs = [torch.randn(2, 5, *_sizes(design, tensor), dtype=F64, requires_grad=True) for tensor in design.inputs]
    module(*inputs).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def _sizes(design: Design, tensor: str) -> list[int]:
    return [size for leg in ta.build(design).tensor[tensor].legs if (size := design.legs[leg]) is not None]


def agrees(design: Design, seed: int) -> bool:
    """Compares the compiled module with the reference, in value and gradients; False where those are not usable."""
    torch.manual_seed(seed)
    oracle, module = ta.reference(design, dtype=F64), ta.compile(design, "torch", dtype=F64)
    state = {name: torch.rand_like(value) * 1.2 - 0.5 for name, value in oracle.state_dict().items()}
    for one in (oracle, module):
        one.load_state_dict(state)
    return same_if_usable(module, oracle, *Call(module.plan.graph, random.Random(seed), seed).arguments())
