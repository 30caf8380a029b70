"""Rewrites of graphs that preserve the function: rules as data, applied by one engine."""

from tensornet_attn.rewrite.whole import simplified

__all__ = ["simplified"]
