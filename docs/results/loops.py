"""What an SM of a GPU has to do for 1,000 scores, counted in the machine code of kernels: no GPU needed.

    python docs/results/loops.py mhsa mhsa:causal hard_fish:g=2 --target 90

compiles forward and backward in bfloat16 as `tensornet-attn explain DESIGN --kernels` does, takes the innermost loop of
each kernel that makes products, apart by nvdisasm, and gives clocks: `issue`, of the four schedulers, which issue an
instruction a clock each; `cores`, of the tensor cores at their peak; `exp`, of the units that make powers. What only
blocks at an edge do is left out. A loop takes at least the most of the three. `bytes` of tiles are copied for them,
mostly from the L2 cache. `barriers` are those of a round; registers, stack, instructions and wgmma those of a kernel.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from triton import knobs

import tensornet_attn as ta
from tensornet_attn.compiler import emit_source
from tensornet_attn.runtime.triton import survey

LABEL, LINE = re.compile(r"\s*(\.L_\w+):"), re.compile(r"\s*/\*[0-9a-f]+\*/\s+(.*?);")
JUMP = re.compile(r"BRA.*?`\((\.L_\w+)\)")
PRODUCTS, WIDE = ("HGMMA", "HMMA"), re.compile(r"HGMMA\.(\d+)x(\d+)x(\d+)")
FLOPS, MMA, SLOWER = 4096, 4096, 0.62  # a clock of an SM in bfloat16; an HMMA.16816; the rate of these on sm_90


def instructions(kernel: Any) -> tuple[list[str], list[str]]:
    """All instructions; those of a round of the longest innermost loop with products, without what a branch leaves out.

    Those of a loop without products inside of it, over heads, stand there once for each of its rounds.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(kernel.asm["cubin"])
        text = subprocess.run(
            [knobs.nvidia.nvdisasm.path, "-c", file], capture_output=True, text=True, check=True
        ).stdout
    labels, found = dict[str, int](), list[str]()
    for line in text.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(found)
        elif one := LINE.match(line):
            found.append(one[1])
    jumps = {i: labels[jump[1]] for i, line in enumerate(found) if (jump := JUMP.search(line)) and jump[1] in labels}
    every = [(end, i) for i, end in jumps.items() if end < i]
    loops = [(end, i) for end, i in every if any(map(makes_products, found[end : i + 1]))]
    loops = [one for one in loops if not any(one[0] <= a and b <= one[1] for a, b in loops if (a, b) != one)]
    every_one = [*map(name_of, found)]
    if not loops:
        return every_one, []
    at, last = max(loops, key=lambda loop: loop[1] - loop[0])
    inside = [one for one in every if at < one[0] and one[1] < last]
    rounds = max(map(int, re.findall(r"in range\((\d+)\):", kernel.src.fn.src)), default=1)
    kept = []
    while at <= last:
        kept += [found[at]] * (rounds if any(a <= at <= b for a, b in inside) else 1)
        end = jumps.get(at, at)
        edge = found[at].startswith("@") and at < end <= last and not any(map(makes_products, found[at:end]))
        at = end if edge else at + 1
    return every_one, [name_of(line) for line in kept]


def name_of(line: str) -> str:
    return line.split()[1 if line.startswith("@") else 0]


def makes_products(line: str) -> bool:
    return name_of(line).startswith(PRODUCTS)


def clocks(names: list[str], warps: int) -> tuple[float, float, float]:
    """issue, cores, exp of a round of a loop."""
    wide = [WIDE.match(name) for name in names]
    cores = sum(2 * int(m[1]) * int(m[2]) * int(m[3]) / FLOPS for m in wide if m) * warps / 4
    cores += sum(name.startswith("HMMA") for name in names) * MMA / FLOPS / SLOWER * warps
    return len(names) * warps / 4, cores, sum(name.startswith("MUFU") for name in names) * 2.0 * warps


def loaded(names: list[str], warps: int) -> int:
    """Bytes of tiles that a round copies into shared memory, from memory or the L2 cache."""
    sizes = [name.rsplit(".", 1)[-1] for name in names if name.startswith("LDGSTS")]
    return sum(int(size) if size.isdigit() else 32 for size in sizes) // 8 * 32 * warps


def report(word: str, target: int) -> None:
    name, _, rest = word.partition(":")
    causal, legs = rest == "causal", [part.split("=") for part in rest.split(",") if "=" in part]
    design = ta.load(name, legs={leg: int(size) for leg, size in legs})
    source = emit_source(design, backend="triton", causal=causal or None)
    maps = {
        own: found.count("[")
        for own, found in re.findall(r"^(\w+) = region\(.*?reads=\[(.*?)\],\s+\w+=", source, re.S | re.M)
    }
    kernels, used_by = list[Any](), survey.used_by

    def spy(kernel: Any) -> survey.Used:
        kernels.append(kernel)
        return used_by(kernel)

    survey.used_by = spy
    try:
        used = ta.kernels(design, target, torch.bfloat16, causal or None)
    finally:
        survey.used_by = used_by
    for kernel, one in zip(kernels, used, strict=True):
        region, _, kind = one.kernel.partition("_tiles_")
        sizes = [int(size) for size in re.findall(r"_block (\d+)", one.sizes)[:2]]
        if f"{region}_tiles" not in maps or len(sizes) < 2:
            continue
        (every, names), heads = instructions(kernel), max(1, maps[f"{region}_tiles"])
        issue, cores, exp = (1000 * x / sizes[0] / sizes[1] / heads for x in clocks(names, one.warps))
        moved = 1000 * loaded(names, one.warps) / sizes[0] / sizes[1] / heads
        counted = f"issue {issue:5.0f}, cores {cores:4.0f}, exp {exp:4.0f}, {moved:6,.0f} bytes"
        wide = sum(name.startswith("HGMMA") for name in every)
        used_by_thread = f"{one.registers} registers, {one.stack} bytes of stack"
        barriers = names.count("BAR.SYNC.DEFER_BLOCKING")
        held = f"{barriers} barriers, {used_by_thread}, {len(every)} instructions, {wide} wgmma in all"
        print(
            f"{word:22s} {kind:12s} {sizes[0]:3d} x {sizes[1]:3d}, {one.warps} warps, {heads} maps: {counted}; {held}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("designs", nargs="+")
    parser.add_argument("--target", type=int, default=90)
    given = parser.parse_args()
    for word in given.designs:
        report(word, given.target)


if __name__ == "__main__":
    main()
