"""Tries relations on designs: the outcome of one trial, and the counts of many."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from tests.relations.subject import NotApplicable, Subject
from tests.relations.table import RELATIONS, TABLE, Relation
from tests.relations.text import Data


class Trial(NamedTuple):
    """A relation, a backend and a seed to try on a design; `origin` says where the design comes from."""

    relation: str
    backend: str
    seed: int
    data: Data
    origin: str = ""


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
        with warnings.catch_warnings():
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
        frame = next(
            (
                f
                for f in reversed(traceback.extract_tb(error.__traceback__))
                if "tensornet_attn" in f.filename or "relations" in f.filename
            ),
            None,
        )
        where = f"{frame.filename.rpartition('tensornet_attn/')[2]}:{frame.lineno}" if frame else ""
        message = " ".join(str(error).split())
        return Failure(trial, type(error).__name__, message[:300], where)
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


def relations(texts: Iterable[str], slow: bool) -> list[Relation]:
    """The relations whose names contain one of these texts, or all; slow ones only if named or asked for."""
    texts = [text.replace(" ", "_") for text in texts]
    if texts:
        return [relation for relation in TABLE if any(text in relation.name for text in texts)]
    return [relation for relation in TABLE if slow or not relation.slow]
