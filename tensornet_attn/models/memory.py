"""What a language model carries from one segment to the next, as in Transformer-XL: never hidden, never trained."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tensornet_attn.errors import InputError

Tensor = torch.Tensor


class Memory(NamedTuple):
    """The last inputs of each layer with a context input, [batch, rows, width] each; detached.

    `keep` [batch, rows] says which rows are no padding; None where all are.
    """

    states: tuple[Tensor, ...]
    keep: Tensor | None = None

    @property
    def rows(self) -> int:
        return self.states[0].shape[1]


def empty(layers: int, batch: int, width: int, device: torch.device, dtype: torch.dtype) -> Memory:
    """The memory before the first segment: no rows."""
    return Memory(tuple(torch.zeros(batch, 0, width, device=device, dtype=dtype) for _ in range(layers)))


def check(memory: Memory, layers: int, batch: int, width: int) -> None:
    """Raises InputError for a memory of another model or another batch."""
    if not isinstance(memory, Memory) or len(memory.states) != layers:
        given = f"{len(memory.states)} states" if isinstance(memory, Memory) else f"a {type(memory).__name__}"
        raise InputError(f"memory is {given}; give what the call before returned, or new_memory(batch).")
    for state in memory.states:
        if state.dim() != 3 or (state.shape[0], state.shape[2]) != (batch, width) or state.shape[1] != memory.rows:
            raise InputError(
                f"memory has a state of shape {list(state.shape)}; it needs [batch {batch}, rows, width {width}]."
            )


def seen(memory: Memory, key_mask: Tensor | None, batch: int, n: int) -> Tensor | None:
    """Which rows of memory and segment together are no padding, [batch, rows + n]; None where all are."""
    if memory.keep is None and key_mask is None:
        return None
    device = memory.states[0].device
    before = torch.ones(batch, memory.rows, dtype=torch.bool, device=device) if memory.keep is None else memory.keep
    now = torch.ones(batch, n, dtype=torch.bool, device=device) if key_mask is None else key_mask.expand(batch, n)
    return torch.cat([before, now], 1)


def after(contexts: list[Tensor], keep: Tensor | None, rows: int) -> Memory:
    """The last `rows` rows of memory and segment together."""
    states = tuple(context[:, max(0, context.shape[1] - rows) :].detach() for context in contexts)
    return Memory(states, None if keep is None else keep[:, max(0, keep.shape[1] - rows) :])
