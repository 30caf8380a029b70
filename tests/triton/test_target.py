"""Whether kernels can run, in a sentence for each case."""

from __future__ import annotations

import pytest
import torch

from tensornet_attn.runtime.triton import target

MISSING = "triton is not installed: 'pip install triton' on Linux"
NO_GPU = "there is no GPU, and triton runs on the CPU only if TRITON_INTERPRET=1 is set"
OLD = "the GPU has capability 7.5, but 8.0 or above is required"
ROUNDS = "the interpreter of triton rounds bfloat16 incorrectly"


def put(monkeypatch: pytest.MonkeyPatch, there: bool, interpreted: bool, capability: tuple[int, int] | None) -> None:
    monkeypatch.setattr(target, "find_spec", lambda name: object() if there else None)
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interpreted else "0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: capability is not None)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)


CASES = [
    (False, False, (9, 0), torch.float32, [MISSING]),
    (True, False, None, torch.float32, [NO_GPU]),
    (True, False, (7, 5), torch.float32, [OLD]),
    (True, False, (8, 0), torch.bfloat16, []),
    (True, False, (9, 0), None, []),
    (True, True, None, torch.float32, []),
    (True, True, None, None, []),
    (True, True, None, torch.bfloat16, [ROUNDS]),
]


@pytest.mark.parametrize(("there", "interpreted", "capability", "dtype", "reasons"), CASES)
def test_what_speaks_against_kernels(
    monkeypatch: pytest.MonkeyPatch,
    there: bool,
    interpreted: bool,
    capability: tuple[int, int] | None,
    dtype: torch.dtype | None,
    reasons: list[str],
) -> None:
    put(monkeypatch, there, interpreted, capability)
    assert target.reasons_against(dtype) == reasons
