"""Runs `tensornet-attn` as `python -m tensornet_attn.cli`."""

import sys

from tensornet_attn.cli import main

if __name__ == "__main__":
    sys.exit(main())
