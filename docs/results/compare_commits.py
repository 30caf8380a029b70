"""Speed and memory of two commits, design by design: run before a large deletion.

python docs/results/compare_commits.py HEAD~1 HEAD                          all designs, forward with backward
python docs/results/compare_commits.py main . --designs 'epa*,mhsa' --n 512 NEW may be `.`, the files as they are
python docs/results/compare_commits.py main . --text                        no measuring: how the emitted text differs

Each commit is checked out into a worktree of its own and runs in a process of its own, which stays alive: both are
warm, and they take turns, call by call. Only `ta.list_designs`, `ta.load` and `ta.compile` are used, so that the
inside of the package may differ. Speed is the median over rounds of old time / new time in the round. A design that is
too slow is measured again, twice at most, and all its rounds count.

Exit code 1: the geometric mean of speeds is below 0.98, one speed is below 0.95, one peak of memory is above 1.02 of
the old, or a design that ran no longer does; with --text, a text differs. Exit code 2: there was nothing to compare.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from difflib import unified_diff
from fnmatch import fnmatch
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEAN, LEAST, MEMORY = 0.98, 0.95, 1.02
AGAIN = 2  # times that a design which is too slow is measured once more
SAMPLE = 0.02  # seconds of one measurement; faster calls are repeated until one takes as long
# By name: the options of `emit_source`. An A100 is sm_80, an H200 is sm_90; their prices may choose other tiles.
EMITTED = {
    "torch": {"backend": "torch", "device_costs": "generic", "package": True},
    "torch alone": {"backend": "torch", "device_costs": "generic"},
    "cpp": {"backend": "cpp", "device_costs": "generic", "package": True},
    "triton sm_80": {"backend": "triton", "device_costs": "a100", "package": True},
    "triton sm_90": {"backend": "triton", "device_costs": "h200", "package": True},
}

WORKER = r'''
import gc, json, os, re, sys, time
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever is printed goes to standard error
import torch
import tensornet_attn as ta

assert ta.__file__.startswith(sys.argv[1]), ta.__file__
held = {}

def designs():
    return {"designs": ta.list_designs()}

def emitted(name, options):
    return {"text": ta.emit_source(name, **options)}

def inputs(design, n, batch, device):
    """Numbers of N(0, 1) for the inputs that must be given, n on every leg without a size."""
    torch.manual_seed(1)
    given = [one for one in design.inputs.values() if one.default is None]
    shapes = [[design.legs[leg] or n for leg in re.findall(r"\w+", str(one.legs))] for one in given]
    return [torch.randn(batch, *shape).to(device) for shape in shapes]

def prepare(name, n, batch, backend, device):
    held.clear()
    gc.collect()
    design = ta.load(name)
    torch.manual_seed(0)
    module = ta.compile(design, backend, device=device)
    while True:  # a leg may have a maximum
        try:
            given = [x.requires_grad_() for x in inputs(design, n, batch, device)]
            with torch.no_grad():
                value = module.eval()(*given).double().square().mean().sqrt().item()
            break
        except ValueError:
            if n < 2:
                raise
            n //= 2
    leaves = [*given, *(p for p in module.train().parameters() if p.requires_grad)]

    def call():
        out = module(*given)
        torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)
        if device != "cpu":
            torch.cuda.synchronize()

    for _ in range(2):
        call()
    held["call"], held["device"] = call, device
    start = time.perf_counter()
    call()
    return {"n": n, "value": value, "seconds": time.perf_counter() - start}

def measure(calls):
    """Seconds of one call."""
    call = held["call"]
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = (time.perf_counter() - start) / calls
    gc.enable()
    return {"seconds": seconds}

def peak():
    """The most bytes of tensors alive at once in one call, beyond those before it."""
    call = held["call"]
    if held["device"] != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return {"bytes": torch.cuda.max_memory_allocated() - before}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = [one for one in profile.profiler.kineto_results.events() if one.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return {"bytes": most}

for line in sys.stdin:
    asked = json.loads(line)
    try:
        answer = globals()[asked.pop("do")](**asked)
    except Exception as error:  # told to the other side, whatever it is
        answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    print(json.dumps(answer), file=answers)
'''


class Failed(Exception):
    """What a commit says of a design that does not run."""


class Worker:
    """A process that runs the package of one worktree, and answers."""

    def __init__(self, tree: Path, threads: int | None):
        known = {"PYTHONPATH": str(tree), "OMP_WAIT_POLICY": "passive", "KINETO_LOG_LEVEL": "99"}
        known |= {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tree)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=tree,
            env=os.environ | known,
        )

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        """The answer to one question. Raises Failed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            print(json.dumps({"do": do} | given), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"the process ended: exit code {self.process.wait()}"}
        if "error" in answer:
            raise Failed(answer["error"])
        return dict(answer)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def worktree(commit: str, folder: Path) -> Iterator[Path]:
    """The files of a commit, removed afterwards; `.`: those of this checkout."""
    if commit == ".":
        yield ROOT
        return
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def compare(old: Worker, new: Worker, design: str, given: argparse.Namespace) -> dict[str, Any]:
    """The row of one design: seconds, speed, bytes, or the error of a side."""
    row: dict[str, Any] = {"design": design}
    sides, ready = {"old": old, "new": new}, {}
    for side, worker in sides.items():
        try:
            sizes = {"n": given.n, "batch": given.batch, "backend": given.backend, "device": given.device}
            ready[side] = worker.ask("prepare", name=design, **sizes)
        except Failed as error:
            row[f"{side}_error"] = str(error)
    if len(ready) < 2:
        return row
    row["n"] = ready["old"]["n"]
    if ready["new"]["n"] != row["n"]:
        return row | {"new_error": f"it runs at n {ready['new']['n']} only"}
    row["same_output"] = abs(ready["old"]["value"] - ready["new"]["value"]) <= 1e-3 * abs(ready["old"]["value"])
    calls = max(1, round(SAMPLE / max(ready["old"]["seconds"], 1e-6)))
    times: dict[str, list[float]] = {"old": [], "new": []}
    for _ in range(1 + AGAIN):
        for turn in range(given.repeats):
            for side in sorted(sides, reverse=turn % 2 == 0):  # old new, new old, ...
                times[side].append(sides[side].ask("measure", calls=calls)["seconds"])
        row["speed"] = median(a / b for a, b in zip(times["old"], times["new"], strict=True))
        if row["speed"] >= LEAST:
            break
    for side, worker in sides.items():
        row[f"{side}_seconds"], row[f"{side}_bytes"] = median(times[side]), worker.ask("peak")["bytes"]
    row["rounds"], row["memory"] = len(times["old"]), row["new_bytes"] / max(row["old_bytes"], 1)
    return row


def emitted(worker: Worker, design: str, options: dict[str, Any]) -> list[str]:
    """The lines of the emitted text, or the error of the design."""
    try:
        return str(worker.ask("emitted", name=design, options=options)["text"]).splitlines()
    except Failed as error:
        return [str(error)]


def compare_text(old: Worker, new: Worker, designs: list[str]) -> int:
    """Prints the differences of the emitted text. Returns how many texts differ."""
    differing = 0
    for design in designs:
        for kind, options in EMITTED.items():
            before, after = (emitted(worker, design, options) for worker in (old, new))
            difference = list(unified_diff(before, after, f"{design}, {kind}, old", "new", lineterm="", n=1))
            differing += bool(difference)
            print("\n".join(difference), end="\n" * bool(difference), flush=True)
    print(f"{differing} of {len(designs) * len(EMITTED)} texts differ")
    return differing


def verdict(rows: list[dict[str, Any]]) -> tuple[float | None, list[str]]:
    """The geometric mean of speeds, and what is not as it must be."""
    speeds = [row["speed"] for row in rows if "speed" in row]
    mean = geometric_mean(speeds) if speeds else None
    wrong = [f"the geometric mean of speeds is {mean:.3f}, below {MEAN}"] if mean is not None and mean < MEAN else []
    for row in rows:
        if "new_error" in row and "old_error" not in row:
            wrong.append(f"{row['design']} no longer runs: {row['new_error']}")
        if row.get("speed", 1) < LEAST:
            wrong.append(f"{row['design']} has speed {row['speed']:.3f}, below {LEAST}")
        if row.get("memory", 1) > MEMORY:
            wrong.append(f"{row['design']} takes {row['memory']:.3f} times the memory, above {MEMORY}")
    return mean, wrong


def line_of(row: dict[str, Any]) -> str:
    if "speed" not in row:
        errors = [f"{side}: {row[f'{side}_error']}" for side in ("old", "new") if f"{side}_error" in row]
        return f"{row['design']:24}  {'; '.join(errors)}"
    note = "" if row["same_output"] else "  another output"
    return (
        f"{row['design']:24}{row['n']:6}{1e3 * row['old_seconds']:11.2f}{1e3 * row['new_seconds']:11.2f}"
        f"{row['speed']:8.3f}{row['old_bytes'] / 1e6:11.2f}{row['new_bytes'] / 1e6:11.2f}{row['memory']:8.3f}{note}"
    )


def names_of(old: Worker, new: Worker, patterns: str) -> list[str]:
    """The designs of the old commit that match; those that are new have nothing to be compared with."""
    before, after = old.ask("designs")["designs"], new.ask("designs")["designs"]
    if fresh := sorted({*after} - {*before}):
        print(f"only in the new commit: {', '.join(fresh)}", file=sys.stderr)
    return [name for name in before if any(fnmatch(name, pattern) for pattern in patterns.split(","))]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("old", metavar="OLD", help="a commit")
    made.add_argument("new", metavar="NEW", help="a commit, or . for the files as they are")
    made.add_argument("--designs", default="*", metavar="NAME,...", help="names or patterns; all")
    made.add_argument("--n", type=int, default=256, help="length of both sequence legs, or the maximum of a leg")
    made.add_argument("--batch", type=int, default=1)
    made.add_argument("--repeats", type=int, default=11, help="rounds")
    made.add_argument("--backend", default="torch")
    made.add_argument("--device", default="cpu", help="cpu or cuda")
    made.add_argument("--threads", type=int, help="of torch; 1 where the machine is not quiet")
    form = made.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--text", action="store_true", help="measure nothing; print the difference of the emitted text")
    return made


def main() -> int:
    given = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that worktrees are removed then too
    rows = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compare_commits_")))
        trees = [stack.enter_context(worktree(getattr(given, side), folder / side)) for side in ("old", "new")]
        old, new = (Worker(tree, given.threads) for tree in trees)
        stack.callback(new.close)
        stack.callback(old.close)
        if given.text:
            designs = names_of(old, new, given.designs)
            return 2 if not designs else min(compare_text(old, new, designs), 1)
        if not given.json:
            head = "design                       n     old ms     new ms   speed     old MB     new MB  memory"
            print(
                f"{given.old} -> {given.new}, forward+backward, {given.backend} on {given.device}\n{head}", flush=True
            )
        for name in names_of(old, new, given.designs):
            rows.append(compare(old, new, name, given))
            print(line_of(rows[-1]), file=sys.stderr if given.json else sys.stdout, flush=True)
    mean, wrong = verdict(rows)
    if given.json:
        told = {"old": given.old, "new": given.new, "backend": given.backend, "device": given.device}
        print(json.dumps({**told, "rows": rows, "speed": mean, "wrong": wrong}, indent=1))
    else:
        measured = sum("speed" in row for row in rows)
        print(f"\n{measured} designs; geometric mean of speeds {'-' if mean is None else f'{mean:.3f}'}")
        print("\n".join(f"wrong: {one}" for one in wrong) or "all as it must be")
    return 2 if mean is None else 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
