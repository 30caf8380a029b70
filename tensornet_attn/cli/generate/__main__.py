"""Runs the generator as `python -m tensornet_attn.cli.generate`."""

import sys

from tensornet_attn.cli.generate.files import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
