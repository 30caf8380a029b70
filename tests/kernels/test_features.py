"""What kernels of linear attention compute inside: features on either sequence leg, pairs of sums with mixed states."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta

MIXED: dict[str, Any] = {
    "tensornet": 1,
    "name": "mixed",
    "legs": {"n": "query", "m": "key", "f": 6, "h": "head 2", "d": "shared 3", "e": "shared 3", "g": "head 2"},
    "inputs": {"x": "n f", "memory": {"legs": "m f", "default": "x"}, "values": "m g e"},
    "weights": {
        "Wq": {"legs": "f h d", "init": "normal(0.4)"},
        "Wk": {"legs": "f g d", "init": "normal(0.4)"},
        "Wo": {"legs": "h e f", "init": "normal(0.4)"},
        "P": {"legs": "g h", "init": "normal(0.4)"},
    },
    "constants": {"each": {"legs": "n", "value": "ones"}},
    "diagram": {
        "Q": "x[n f] Wq[f h d] -> n h d",
        "fQ": {"map": "elu1", "of": "Q"},
        "fK": {"map": "elu1", "of": "memory[m f] Wk[f g d] -> m g d"},
        "KV": {"sum": "m", "of": "each[n] fK[m g d] values[m g e] -> n m g d e"},
        "z": {"sum": "m", "of": "each[n] fK[m g d] -> n m g d"},
        "mixture": {"map": "softplus", "of": "P"},
        "KVh": "mixture[g h] KV[n g d e] -> n h d e",
        "zh": "mixture[g h] z[n g d] -> n h d",
        "rows": {"map": "reciprocal", "of": "fQ[n h d] zh[n h d] -> n h"},
        "y": "rows[n h] fQ[n h d] KVh[n h d e] Wo[h e f] -> n f",
    },
    "output": "y",
}
LOSS = {
    "rows": "fQ[n h d] zh[n h d] -> n h",
    "means": {"mean": "n", "of": "rows"},
    "mean": {"mean": "h", "of": "means"},
    "y": "fQ[n h d] KVh[n h d e] Wo[h e f] -> n f",
}
SHARED: dict[str, Any] = {
    "tensornet": 1,
    "name": "shared",
    "legs": {"n": "query", "m": "key", "f": 6, "h": "head 2", "d": 3},
    "inputs": {"x": "n f"},
    "weights": {name: {"legs": "f h d", "init": "normal(0.4)"} for name in ("Wq", "Wv")}
    | {"Wo": {"legs": "h d f", "init": "normal(0.4)"}},
    "diagram": {
        "Q": "x[n f] Wq[f h d] -> n h d",
        "P": {"map": "elu1", "of": "Q"},
        "A": {"normalize": "m", "of": "P[n h d] P[m h d] -> h n m"},
        "V": "x[n f] Wv[f h d] -> n h d",
        "y": "A[h n m] V[m h d] Wo[h d f] -> n f",
    },
    "output": "y",
}


def outcome(layer: Any, *inputs: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    """Output, and gradients of inputs and weights."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    output = layer(*leaves, **options)
    output, losses = output if isinstance(output, tuple) else (output, {})
    (output.sin().sum() + sum(losses.values())).backward()
    return [output.detach(), *losses.values(), *(x.grad for x in (*leaves, *layer.parameters()))]


def agree(design: dict[str, Any], *inputs: torch.Tensor, **options: Any) -> None:
    ours, oracle = ta.compile(ta.load(design), "torch", dtype=torch.float64), ta.reference(design, dtype=torch.float64)
    ours.load_state_dict(oracle.state_dict())
    for found, expected in zip(outcome(ours, *inputs, **options), outcome(oracle, *inputs, **options), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape)))


def test_a_pair_hides_what_only_the_kernel_with_values_reads() -> None:
    shown, values = torch.arange(7).expand(2, 7) < 5, drawn(2, 7, 2, 3)
    agree(MIXED, drawn(2, 5, 6), drawn(2, 7, 6), values)
    agree(MIXED, drawn(2, 5, 6), drawn(2, 7, 6), values.masked_fill(~shown[..., None, None], torch.nan), key_mask=shown)


def test_a_kernel_that_only_a_loss_needs_is_no_part_of_a_pair() -> None:
    diagram = {name: step for name, step in MIXED["diagram"].items() if name not in LOSS} | LOSS
    design = MIXED | {"diagram": diagram, "losses": {"aux": {"step": "mean", "weight": 0.1}}}
    inputs = drawn(2, 5, 6), drawn(2, 7, 6), drawn(2, 7, 2, 3)
    agree(design, *inputs)
    agree(design, *inputs, losses=True)


def test_one_feature_of_queries_and_keys() -> None:
    agree(SHARED, drawn(2, 5, 6))
    for backend in ("torch", "cpp", "triton"):
        assert "class Shared" in ta.emit_source(ta.load(SHARED), backend=backend)


def test_strict_plans_take_mixed_states_with_features() -> None:
    diagram = MIXED["diagram"] | {"y": LOSS["y"]}
    design = MIXED | {"diagram": {name: step for name, step in diagram.items() if name not in ("z", "zh", "rows")}}
    assert "inside: fQ, fK" in ta.explain(ta.load(design), "cpp", strict=True, n=4096)


@pytest.mark.parametrize("name", ["linear3", "lfish"])
def test_features_inside_kernels_are_named(name: str) -> None:
    lines = ta.explain(name, "torch", n=1024).splitlines()
    assert not any(line.startswith("  phiQ") for line in lines)
    assert any("; inside: phiQ" in line for line in lines)
