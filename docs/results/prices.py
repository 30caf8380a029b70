"""How fast layers planned with the prices of a CPU are, beside the same layers planned with generic prices.

    python docs/results/prices.py mhsa llama --legs f=256 --n 512,1024 --backend cpp

For each design and length: the seconds of one forward with backward as planned with the prices of `cpu`, over those
with `generic`, and whether both plans have the same source. The two take turns, call by call; the ratio is the median
over the rounds of the ratio in a round. C++ kernels are compiled first, if they are not in the cache.
"""

from __future__ import annotations

import argparse
from statistics import median

import torch

import tensornet_attn as ta
from tensornet_attn.bench.case import TRAINING, Case, runner
from tensornet_attn.bench.measure import interleaved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("designs", nargs="+")
    parser.add_argument("--legs", default="", help="NAME=SIZE,...")
    parser.add_argument("--n", default="512", help="lengths, N,...")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0, help="at most, for each design and length")
    args = parser.parse_args()
    torch.set_num_threads(1)
    legs = dict(entry.split("=") for entry in args.legs.split(",") if entry)
    for name in args.designs:
        design = ta.load(name, legs={leg: int(size) for leg, size in legs.items()})
        for n in map(int, args.n.split(",")):
            print(f"{name:24s} n {n:6d}  {compared(design, n, args)}", flush=True)


def compared(design: ta.Design, n: int, args: argparse.Namespace) -> str:
    """The ratio of one design at one length, as words."""
    case = Case(design, n, args.batch)
    layers = {costs: ta.compile(design, args.backend, device_costs=costs) for costs in ("generic", "cpu")}
    if layers["generic"].source == layers["cpu"].source:
        return "the same source"
    calls = {costs: runner(case.loaded(layer), case, case.inputs(), TRAINING) for costs, layer in layers.items()}
    timed = interleaved(calls, args.rounds, args.seconds)
    ratios = [cpu / generic for generic, cpu in zip(timed["generic"].seconds, timed["cpu"].seconds, strict=True)]
    seconds = {costs: median(of.seconds) * 1e3 for costs, of in timed.items()}
    words = ", ".join(f"{costs} {milliseconds:.3g} ms" for costs, milliseconds in seconds.items())
    return f"cpu / generic {median(ratios):.2f} in {len(ratios)} rounds ({words})"


if __name__ == "__main__":
    main()
