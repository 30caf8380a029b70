"""All designs at small sizes for tests of torch's machinery, and the few of them that show every kind of region."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tensornet_attn as ta
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Box, Graph, Kernel, Step
from tensornet_attn.plan.plan import Plan
from tests.designs.case import N
from tests.designs.cases import CASES, drawn, normal

Mode = tuple[str, bool | None]  # a design and whether it is causal
EACH: list[Mode] = [(name, causal) for name, case in CASES.items() for causal in case.causal]
SLICE: list[Mode] = [
    ("cross", True),  # a fused call, two inputs
    ("fmm2", True),  # a band and sums of keys
    ("kernel_fish", True),  # heads mixed in chunks
    ("transformer_xl", False),  # blocks of queries, relative positions
    ("gfish", True),  # noise
    ("fish_simplex", False),
    ("mgk", False),  # keys and features side by side
    ("mgk_em", False),  # a state
    ("differential", True),
    ("fmm_fast_weight2", True),
    ("hard_lfish", True),  # states of few heads, mixed before they are read
    ("glfish", True),  # sums over the keys alone
    ("glfish", False),  # one sum for all queries
    ("linear2", False),  # features in tiles, two kernels in one call
    ("epa_rope", False),  # grouped experts
    ("mamba1", True),  # a scan that is read once
    ("moa_regularised", True),  # losses
    ("sigma_moe_regularised", None),  # experts dropped out
    ("rwkv7", True),  # a delta rule, a convolution, norms
    ("olmo2", False),  # halves apart and together
    ("mingru", True),  # a scan
]
# With these, every call that the source of a design makes, with its keywords, is made by one of them.
ONE_WAY = "stick_breaking gemma2_local kernel_gfish t5 glfish mgk_hard linear2 head_gated cohere based minimax".split()
CAUSAL = "band linear gla thsa_xl rg_lru skip_left mgk gated_deltanet comba gated_deltaproduct rwkv4".split()
CAUSAL += ["sigmoid_attention"]  # a logarithm of a length
CAUSAL += ["mamba2"]  # means of squares
BOTH_WAYS = "alibi hard_glfish fmm3 lfish fmm_lra_release gpt_oss deberta_v2".split()
WIDE: list[Mode] = [*SLICE, *((name, True) for name in CAUSAL + BOTH_WAYS), ("deepseek_moe", None)]
WIDE = list(dict.fromkeys([*WIDE, *((name, False) for name in [*ONE_WAY, *BOTH_WAYS, "hard_lfish"])]))
EVERY = list(dict.fromkeys([*WIDE, *((name, case.causal[-1]) for name, case in CASES.items())]))  # each in one way
SHORT = [mode for mode in SLICE if mode[0] not in ("fmm2", "fish_simplex", "mgk_em")]  # where compiling takes seconds
MASKED = [mode for mode in EACH if mode[1] is not None]  # those that have keys to mask
WIDE_MASKED = [mode for mode in WIDE if mode[1] is not None]


def quick(modes: list[Mode] = EACH, few: list[Mode] = SLICE) -> pytest.MarkDecorator:
    """A test of these modes, of which all but a few are slow."""
    marked = [pytest.param(*mode, marks=[] if mode in few else pytest.mark.slow) for mode in modes]
    return pytest.mark.parametrize(("name", "causal"), marked)


def few_of(names: Sequence[str]) -> list[Any]:
    """Values for a parameter: these designs, of which all but those of `SLICE` are slow."""
    few = {name for name, _ in SLICE}
    return [pytest.param(name, marks=[] if name in few else pytest.mark.slow) for name in names]


def design_of(name: str) -> ta.Design:
    """At the sizes of the other tests, but with so many experts that grouped products pay."""
    case = CASES[name]
    many = {"e": 16} if "e" in case.legs and chooses(build(ta.load(name)), "e") else {}
    return ta.load(name, legs=case.legs | many, settings=case.settings)


def made(
    name: str, causal: bool | None, backend: str = "torch", dtype: torch.dtype = torch.float64, seed: int = 0
) -> nn.Module:
    """The design in evaluation, every weight drawn anew."""
    module = ta.compile(design_of(name), backend, causal, dtype=dtype)
    return drawn(module, seed, CASES[name].positive)


def inputs_of(name: str, batch: int, n: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> list[Tensor]:
    """Inputs of n keys; queries are fewer where there is a context of its own."""
    generator, case = torch.Generator().manual_seed(seed), CASES[name]
    return [normal(generator, batch, n + length - N, case.legs["f"]).to(dtype) for length in case.inputs]


def key_mask_of(xs: list[Tensor]) -> Tensor:
    """[batch, m]: the first sequence sees no key."""
    mask = torch.rand(xs[-1].shape[:2], generator=torch.Generator().manual_seed(2)) < 0.6
    mask[0] = False
    return mask


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def gradients(module: nn.Module, y: Tensor, xs: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(y.square().sum(), [*xs, *trained(module)]))


def chooses(graph: Graph, *legs: str) -> bool:
    """Whether a topk chooses along one of these legs, or along any."""
    boxes = [step.op for step in graph.steps if isinstance(step.op, Box) and step.op.kind == "topk"]
    return any(not legs or box.leg in legs for box in boxes)


def writes(module: nn.Module) -> bool:
    """Whether a training call stores a state."""
    return bool(module.plan.graph.of_role("state"))


def draws(module: nn.Module) -> bool:
    """Whether a training call draws noise, or what it drops."""
    graph = module.plan.graph
    return bool(graph.of_role("noise")) or any(isinstance(s.op, Box) and s.op.kind == "dropout" for s in graph.steps)


def kernels_of(steps: Iterable[Step]) -> Iterator[Kernel]:
    """The kernels of these steps, and of the steps inside them."""
    for step in steps:
        if step.kernel is not None:
            yield step.kernel
            yield from kernels_of(step.kernel.body)


def kinds(plan: Plan) -> set[str]:
    """What a plan consists of, also inside kernels."""
    roles = {role for role in ("noise", "state") if plan.graph.of_role(role)}
    boxes = {f"{step.box.kind} box" for step in plan.schedule.steps if step.box is not None}
    return roles | boxes | {kernel.kind for kernel in kernels_of(plan.schedule.steps)}
