"""`python -m tensornet_attn.cli.generate [--check] [codegen] [docs] [schema]`: everything, where no part is named.

`resources` is a part that is made on demand alone: it compiles all Triton kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tensornet_attn.cli.generate.catalogue import Catalogue
from tensornet_attn.cli.generate.files import ON_DEMAND, PARTS, ROOT, stale
from tensornet_attn.cli.output import write


def main(arguments: Sequence[str]) -> int:
    """Writes the parts, or with `--check` says what is stale; the exit code."""
    parts = [argument for argument in arguments if argument != "--check"] or list(PARTS)
    known = PARTS | ON_DEMAND
    if unknown := [part for part in parts if part not in known]:
        print(f"error: there is no part '{unknown[0]}'; one of {', '.join(known)}.", file=sys.stderr)
        return 2
    if "--check" in arguments:
        found = stale()
        print("\n".join(found) or "everything generated is fresh.", file=sys.stderr if found else sys.stdout)
        return 1 if found else 0
    catalogue = Catalogue()
    for part in parts:
        for make in known[part]:
            for path, text in make(catalogue):
                (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
                write(str(ROOT / path), text)
                print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
