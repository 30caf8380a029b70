"""See `tensornet_attn.ir.tokens`."""

from tensornet_attn.ir.tokens import *  # noqa: F403
