"""Names of operations: each import of a file has its own."""

from __future__ import annotations

import torch

from tensornet_attn.runtime.operations import operation

SPACE = "tensornet_attn_runtime_operations"


def test_a_name_that_is_taken_moves_to_the_next_space() -> None:
    assert operation("new_in_test") == f"{SPACE}::new_in_test"
    for space in (SPACE, f"{SPACE}_2"):
        assert operation("new_in_test") == f"{space}::new_in_test"

        @torch.library.custom_op(f"{space}::new_in_test", mutates_args=())
        def kept(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        assert kept(torch.zeros(1)).item() == 1
    assert operation("new_in_test") == f"{SPACE}_3::new_in_test"
