"""The blocks that the launcher chooses on sm_90, beside the fastest of those that were timed on an H200 (blocks.json).

    python docs/results/blocks.py

Values per thread and bytes of shared memory are those that `region_need.py` predicted for the kernels of that day; the
times are of single launches. Blocks of the list that were not timed are passed over.
"""

from __future__ import annotations

import json
from pathlib import Path

from tensornet_attn.runtime.triton.configure import SHARED
from tensornet_attn.runtime.triton.kernels.region_launch import HOPPER, HOPPER_KEYS

ROOM = 1024 * SHARED[90]


def main() -> None:
    ratios = []
    for name, timed in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))["kernels"].items():
        found = {tuple(block): (values, shared, ms) for *block, values, shared, ms in timed}
        keys = name.endswith(": keys") and not name.startswith("band")
        fits = (
            block
            for *block, most, share in ((HOPPER_KEYS, *HOPPER) if keys else HOPPER)
            for values, shared, _ in [found.get(tuple(block), (most + 1, 0, 0))]
            if values <= most and shared <= ROOM * share
        )
        block = tuple(next(fits))
        least = min(ms for _, _, ms in found.values())
        ratios.append(found[block][2] / least)
        print(f"{name:40s} {block!s:18s} {found[block][2]:7.3f} ms, the fastest {least:7.3f}, ratio {ratios[-1]:.2f}")
    print(f"{len(ratios)} kernels: ratio {sum(ratios) / len(ratios):.2f} on average, at most {max(ratios):.2f}")


if __name__ == "__main__":
    main()
