"""The command line `tensornet-attn`: data on stdout, messages on stderr.

Exit codes: 0 fine, 1 the input is wrong, 2 usage, 3 an optional part is missing.
"""

from __future__ import annotations

from tensornet_attn.cli.boundary import run as main

__all__ = ["main"]
