"""Keys divided among programs, in the interpreter: every kind of region, masks, sinks, rows that see nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.runtime.triton.kernels.region_parts import parts_for
from tests.ops.test_softmax import design as with_sink
from tests.ops.test_softmax import masks
from tests.plan.blockwise_cases import TAKEN
from tests.triton.regions import F64, draw, on_triton, pair, same, same_in_calls, small_blocks

QUICK = ("divided by sums", "summed as exponentials", "kept", "heads mixed before and after", "a band", "dropout")
DESIGNS: dict[str, tuple[Any, dict[str, int]]] = {
    "softmax": ("cross", {"f": 8, "h": 2}),
    "two passes": ("talking_heads", {"f": 8, "h": 2}),
    "a softmax of sums": ("mgk", {"f": 8, "h": 2}),
    "relative positions": ("transformer_xl", {"f": 8, "h": 2}),
    "a loop over heads": ("thsa", {"f": 12, "r": 7, "s": 5}),
}
MASKED = {
    "window": with_sink("blocks", "heads", "causal and window(5, 0)"),
    "prefix": with_sink("blocks", "scalar", "causal and (window(5, 0) or prefix(2))"),
    "rows": with_sink("blocks", "rows"),
    "mixed": with_sink("mixed", "heads", causal=True),
}


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three parts of small blocks, some of them without a key."""
    small_blocks(monkeypatch, 3)


@pytest.mark.parametrize("name", DESIGNS)
def test_values_and_gradients(name: str) -> None:
    source, legs = DESIGNS[name]
    ours, oracle = pair(source, legs=legs)
    assert on_triton(ours)
    lengths = (1, 40) if len(ours.plan.graph.of_role("input")) > 1 else (18,)
    same(ours, oracle, [draw(1, n, legs["f"], seed=n) for n in lengths])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the root of zero where nothing is seen
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in TAKEN])
def test_every_kind_of_call(name: str) -> None:
    same_in_calls(TAKEN[name])


@pytest.mark.parametrize("kind", ["", "boolean", "float", "keys"])
@pytest.mark.parametrize("name", MASKED)
def test_masks_and_sinks(name: str, kind: str) -> None:
    ours, oracle = pair(MASKED[name])
    same(ours, oracle, [draw(2, 20, 6)], **masks(kind, 20, 20))


def test_the_backward_draws_as_the_forward_did() -> None:
    module = ta.compile(ta.load(TAKEN["dropout"]), "triton", dtype=F64).train()
    inputs = [draw(1, n, 6, seed=n).requires_grad_() for n in (3, 40)]

    def seeded(*inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return module(*inputs)

    assert torch.autograd.gradcheck(seeded, inputs, fast_mode=True)


@pytest.mark.parametrize(
    ("programs", "blocks", "parts"),
    [
        (200, 100, 1),  # enough programs without parts
        (8, 4, 1),  # joining takes longer than the keys
        (8, 64, 13),  # as many programs as multiprocessors
        (1, 1000, 100),  # more make none shorter
        (60, 1000, 7),  # four rounds of all multiprocessors, nearly full
        (0, 1000, 1),
        (5, 0, 1),
    ],
)
def test_the_price(programs: int, blocks: int, parts: int) -> None:
    assert parts_for(programs, blocks, 108) == parts
