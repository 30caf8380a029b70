"""See `tensornet_attn.ir.arithmetic`."""

from tensornet_attn.ir.arithmetic import *  # noqa: F403
