"""`python -m tests.mutations`: makes each change in a copy of the tree, one at a time, and says which are caught.

    python -m tests.mutations                      all, one at a time
    python -m tests.mutations cost/ scan --jobs 2  those whose file or sentence has one of these texts, two at a time
    python -m tests.mutations --list               what there is

A change is caught where its tests run and one of them fails. Where they cannot run, that is told as an error: a change
after which nothing can be imported says nothing about the tests. Before, the tests of all changes are run once
unchanged (--no-check leaves that out). The exit code is 0 where all are caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tests.mutations.around import AROUND
from tests.mutations.compiler import COMPILER
from tests.mutations.model import Mutation
from tests.mutations.relations import RELATIONS

MUTATIONS = (*COMPILER, *AROUND, *RELATIONS)
ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "tensornet_attn",
    "tests",
    "specs",
    "docs",
    "codegen",
    "pyproject.toml",
    "README.md",
    "CONTRIBUTING.md",
    "Makefile",
)
HANGS = 1800.0  # seconds after which tests of seconds are taken to hang
LATER = 10_000  # seconds by which the time of a changed file differs, so that Python compiles it again


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.mutations", description=__doc__, formatter_class=_Whole)
    parser.add_argument("texts", nargs="*", help="parts of a file's name, or of the sentence")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree that are worked on at once")
    parser.add_argument("--list", action="store_true", help="print them, and run nothing")
    parser.add_argument("--no-check", action="store_true", help="do not run the tests unchanged first")
    given = parser.parse_args(arguments)
    chosen = [one for one in MUTATIONS if not given.texts or any(t in f"{one.file} {one.breaks}" for t in given.texts)]
    if given.list or not chosen:
        print("\n".join(f"{one.path}: {one.breaks}" for one in chosen) or "there is no such mutation.")
        return 0 if chosen else 2
    with tempfile.TemporaryDirectory() as folder:
        copies = [_copy(Path(folder) / str(number)) for number in range(given.jobs)]
        if not given.no_check and (failed := list(_failing_unchanged(chosen, copies[0]))):
            print("\n".join(["fails without any change:", *failed]))
            return 2
        outcomes = list(_outcomes(chosen, copies))
    found = {kind: sum(outcome == kind for outcome in outcomes) for kind in ("caught", "survived", "error")}
    print(", ".join(f"{count} {kind}" for kind, count in found.items()))
    return 0 if found["caught"] == len(chosen) else 1


class _Whole(argparse.RawDescriptionHelpFormatter):
    """Help that keeps its lines."""


def _copy(to: Path) -> Path:
    """The tree as it stands here, whether committed or not."""
    to.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, to / part)
        else:
            shutil.copy2(ROOT / part, to / part)
    return to


def _failing_unchanged(chosen: Sequence[Mutation], tree: Path) -> Iterator[str]:
    """What fails in a tree without a change, as pytest tells it."""
    for interpreted in (False, True):
        nodes = [node for one in chosen if one.interpreted == interpreted for node in one.nodes]
        if nodes:
            done = _pytest(tree, list(dict.fromkeys(nodes)), interpreted)
            yield from [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()[-30:]


def _outcomes(chosen: Sequence[Mutation], copies: Sequence[Path]) -> Iterator[str]:
    free: Queue[Path] = Queue()
    for tree in copies:
        free.put(tree)

    def run(number: int) -> tuple[str, str]:
        tree = free.get()
        try:
            return _tried(chosen[number], tree, number)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(copies)) as pool:
        for one, (outcome, told) in zip(chosen, pool.map(run, range(len(chosen))), strict=True):
            print(f"{outcome:9}{one.path}: {one.breaks}", flush=True)
            if outcome == "error":
                print(told, flush=True)
            yield outcome


def _tried(one: Mutation, tree: Path, number: int) -> tuple[str, str]:
    """What comes of a change in this tree, and what pytest told; the tree is then as it was."""
    path = tree / one.path
    text, times = path.read_text(), path.stat()
    try:
        path.write_text(one.applied(text))
        os.utime(path, (times.st_atime, times.st_mtime + LATER * (number + 1)))
        done = _pytest(tree, one.nodes, one.interpreted)
    finally:
        path.write_text(text)
        os.utime(path, (times.st_atime, times.st_mtime))
    # 0: all passed, 1: tests failed; all else says that they did not run.
    return {0: "survived", 1: "caught"}.get(done.returncode, "error"), (done.stdout + done.stderr)[-2000:]


def _pytest(tree: Path, nodes: Sequence[str], interpreted: bool) -> subprocess.CompletedProcess[str]:
    """Runs tests in a tree, slow ones too, up to the first that fails."""
    kernels = {"TRITON_INTERPRET": "1"} if interpreted else {}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--tb=line", "-p", "no:cacheprovider", *nodes]
    world = {**os.environ, "PYTHONPATH": str(tree), **kernels}
    return subprocess.run(command, cwd=tree, env=world, capture_output=True, text=True, timeout=HANGS)


if __name__ == "__main__":
    sys.exit(main())
