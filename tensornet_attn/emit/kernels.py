"""The emitters of kernels that replace several steps, by kind."""

from __future__ import annotations

from collections.abc import Callable

from tensornet_attn.emit.band import emit_band
from tensornet_attn.emit.blockwise import emit_blockwise
from tensornet_attn.emit.experts import emit_experts
from tensornet_attn.emit.join import emit_join
from tensornet_attn.emit.linear import emit_linear, emit_sums
from tensornet_attn.emit.native import emit_native
from tensornet_attn.emit.states import emit_states
from tensornet_attn.emit.triton.call import emit_tiles
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Step

KERNELS: dict[str, Callable[[Writer, Step], None]] = {
    "band": emit_band,
    "experts": emit_experts,
    "join": emit_join,
    "linear": emit_linear,
    "sums": emit_sums,
    "blockwise": emit_blockwise,
    "native": emit_native,
    "states": emit_states,
    "tiles": emit_tiles,
}
