"""Graph to graph, the same function: rules as data, one engine."""

from tensornet_attn.rewrite.whole import simplified

__all__ = ["simplified"]
