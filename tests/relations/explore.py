"""Tries relations on designs: the outcome of one trial, and the counts of many."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch

from tensornet_attn.runtime import blockwise
from tests.relations.shrink import shrunk
from tests.relations.subject import NotApplicable, Subject
from tests.relations.table import RELATIONS, TABLE, Relation
from tests.relations.text import Data, compact

IN_BLOCKS = 1 << 40  # so that small calls with gradients run in blocks too, as large ones do
ROOT = Path(__file__).resolve().parents[2]


class Trial(NamedTuple):
    """A relation, a backend and a seed to try on a design.

    `origin`: "random" for the design of the seed, "file", or the name of a shipped design.
    """

    relation: str
    backend: str
    seed: int
    data: Data
    origin: str = "random"


class Failure(NamedTuple):
    """A trial that broke its relation: the kind of error, its message, and where it was raised."""

    trial: Trial
    kind: str
    message: str
    where: str

    @property
    def text(self) -> str:
        return f"{self.kind}: {self.message} ({self.where})"


def failure_of(trial: Trial) -> Failure | None:
    """How the relation fails, None if it holds. Raises NotApplicable if it says nothing about the trial."""
    try:
        with (
            warnings.catch_warnings(),
            patch.object(blockwise, "KEEP", IN_BLOCKS if trial.seed % 4 else blockwise.KEEP),
        ):
            warnings.filterwarnings("error", message=".*uses torch.*")
            subject = Subject(trial.data, trial.backend, trial.seed)
            if not RELATIONS[trial.relation].applies(subject.graph):
                raise NotApplicable(trial.relation)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(trial.seed)
                RELATIONS[trial.relation].function(subject)
    except NotApplicable:
        raise
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if ROOT in Path(frame.filename).parents]
        where = f"{Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].lineno}"
        return Failure(trial, type(error).__name__, " ".join(str(error).split())[:300], where)
    return None


@dataclass
class Counts:
    """Trials by relation and backend: how many held, failed, or said nothing."""

    tried: Counter[tuple[str, str]] = field(default_factory=Counter)
    silent: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, trial: Trial) -> Failure | None:
        """Tries and counts. Returns the failure, None if there is none."""
        cell = trial.relation, trial.backend
        try:
            failure = failure_of(trial)
        except NotApplicable:
            self.silent[cell] += 1
            return None
        self.tried[cell] += 1
        if failure is not None:
            self.failed[cell] += 1
            self.failures.append(failure)
        return failure

    def to_text(self) -> str:
        """The table relations x backends: designs tried, and failures."""
        backends = list(dict.fromkeys(backend for _, backend in [*self.tried, *self.silent]))
        rows = [["relation", *backends]]
        for relation in (relation.name for relation in TABLE):
            cells = [(relation, backend) for backend in backends]
            if any(self.tried[cell] + self.silent[cell] for cell in cells):
                rows.append([relation.replace("_", " "), *(self.cell(cell) for cell in cells)])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def cell(self, cell: tuple[str, str]) -> str:
        failed = f", {self.failed[cell]} failed" if self.failed[cell] else ""
        return f"{self.tried[cell]}{failed}"


def relations(texts: Iterable[str], slow: bool = False) -> list[Relation]:
    """The relations whose names contain one of these texts, or all; slow ones only if named or asked for."""
    texts = [text.replace(" ", "_") for text in texts]
    if texts:
        return [relation for relation in TABLE if any(text in relation.name for text in texts)]
    return [relation for relation in TABLE if slow or not relation.slow]


def shrunk_failure(failure: Failure, attempts: int = 300) -> Failure:
    """The same failure of a design of a few lines."""
    trial = failure.trial

    def of(data: Data) -> Failure | None:
        try:
            other = failure_of(trial._replace(data=data))
        except NotApplicable:
            return None
        return other if other is not None and (other.kind, other.where) == (failure.kind, failure.where) else None

    return of(shrunk(trial.data, lambda data: of(data) is not None, attempts)) or failure


def written(failure: Failure) -> str:
    """The failure as a design file: how it fails, and the command that tries it again."""
    trial = failure.trial
    head = f"# {trial.relation.replace('_', ' ')}, {trial.backend}: {failure.text}\n"
    return f"{head}# {command(trial)}\n{compact(trial.data)}"


def command(trial: Trial, file: str = "FILE") -> str:
    """The command that tries it again: on the design of the seed, or on a file."""
    options = f"--relation {trial.relation} --backend {trial.backend} --seed {trial.seed}"
    design = "" if trial.origin == "random" else f" --designs {file if trial.origin == 'file' else trial.origin}"
    return f"python -m tests.relations {options}{design}"
