"""`python -m tests.relations`: tries the relations on random designs of new seeds, and writes down what breaks them.

    python -m tests.relations --minutes 20                             new seeds, on PyTorch
    python -m tests.relations --seeds 100 --backend torch cpp          a hundred seeds on two backends
    python -m tests.relations --designs shipped --relation padded      every shipped design
    python -m tests.relations --designs my.yaml --relation hidden      a file
    python -m tests.relations --seed 4711 --relation chunks            one seed again

A failing random design is shrunk to a file of a few lines in --out, which says how to try it again. The table at the
end has the designs tried for each relation and backend, and the failures. The exit code is 0 if there are none.
Kernels of Triton run in its interpreter: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import tensornet_attn as ta
from tensornet_attn.runtime.triton.target import interpreting, mend_interpreter
from tests.designs.cases import CASES
from tests.relations import reach
from tests.relations.explore import Counts, Failure, Trial, command, relations, shrunk_failure, written
from tests.relations.generator import drawn_design, shipped
from tests.relations.subject import BACKENDS
from tests.relations.text import Data, normal_form


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.relations", description=__doc__, formatter_class=_Whole)
    parser.add_argument("--seeds", type=int, help="how many; without it, until --minutes are over")
    parser.add_argument("--seed", type=int, help="only this seed; without it, a number from the system")
    parser.add_argument("--minutes", type=float, default=10, help="no new design after these (10)")
    parser.add_argument("--relation", nargs="*", default=[], help="parts of the names of relations")
    parser.add_argument("--backend", nargs="*", default=["torch"], choices=[*BACKENDS], help="torch if not given")
    parser.add_argument("--designs", nargs="*", default=[], help="shipped, names of shipped designs, or files")
    parser.add_argument("--slow", action="store_true", help="torch.compile and torch.export too")
    parser.add_argument("--reach", action="store_true", help="print what the designs of the seeds reach")
    parser.add_argument("--out", type=Path, default=Path("build/relations"), help="where failing designs are written")
    options = parser.parse_args(arguments)
    if "triton" in options.backend and interpreting():
        mend_interpreter()
    counts, end = Counts(), time.monotonic() + 60 * options.minutes
    designs = []
    for seed, origin, data in _designs(options):
        if time.monotonic() > end:
            break
        designs.append(data)
        for backend in options.backend:
            for relation in relations(options.relation, options.slow):
                if failure := counts.add(Trial(relation.name, backend, seed, data, origin)):
                    print(f"{command(failure.trial)}\n    {failure.text}", flush=True)
                    _write(failure, options.out)
    print(counts.to_text())
    if options.reach:
        print(reach.to_text(reach.reach(designs)))
    return 1 if counts.failures else 0


def _designs(options: argparse.Namespace) -> Iterator[tuple[int, str, Data]]:
    """(seed, origin, design) of what the options ask for."""
    first = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    if options.designs:
        for name in CASES if options.designs == ["shipped"] else options.designs:
            shipped_one = name in CASES
            data = normal_form(shipped(name) if shipped_one else ta.load(name).as_dict())
            yield (first if options.seed is not None else 0), (name if shipped_one else "file"), data
        return
    seeds = [first] if options.seed is not None and options.seeds is None else count(first)
    for seed, _ in zip(seeds, count() if options.seeds is None else range(options.seeds), strict=False):
        yield seed, "random", drawn_design(seed).data


def _write(failure: Failure, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    small = shrunk_failure(failure)
    small = small._replace(trial=small.trial._replace(origin="file"))
    path = folder / f"{small.trial.relation}-{small.trial.backend}-{small.trial.seed}.yaml"
    path.write_text(written(small).replace(" FILE\n", f" {path}\n", 1), encoding="utf-8")
    print(f"    {path}", flush=True)


class _Whole(argparse.RawDescriptionHelpFormatter):
    """Help that keeps its lines."""


if __name__ == "__main__":
    sys.exit(main())
