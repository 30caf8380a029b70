"""The command line `tensornet-attn`. It prints data on stdout and messages on stderr.

Exit codes: 0 success, 1 invalid input, 2 invalid command line, 3 missing optional dependency, 130 interrupted.
"""

from __future__ import annotations

from tensornet_attn.cli.boundary import run as main

__all__ = ["main"]
