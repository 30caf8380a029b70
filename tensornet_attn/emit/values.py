"""See `tensornet_attn.ir.values`."""

from tensornet_attn.ir.values import *  # noqa: F403
