"""Runs the generator as `python -m docs.generate`."""

import sys

from docs.generate.files import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
