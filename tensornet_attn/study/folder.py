"""The folder of a study: `study.yaml`, runs by what they train, and logs."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from tensornet_attn.errors import InputError
from tensornet_attn.files import write_whole
from tensornet_attn.study.config import Study
from tensornet_attn.study.same import check_same, decisive
from tensornet_attn.study.written import yaml_of

CONFIG, DATABASE, RUNS, LOGS = "study.yaml", "study.db", "trials", "logs"


def run_folder(design: str, rung: int, rate: float, seed: int) -> str:
    """Where a run is, beside the store: the same for the same design, whoever trains it, and whenever.

    >>> run_folder("tensornet: 1", 1, 1e-3, 0)
    'trials/0640dca63934/rung1-lr0.001-seed0'
    """
    return f"{RUNS}/{key(design)}/rung{rung}-lr{rate!r}-seed{seed}"


def key(design: str) -> str:
    """A name for the text of a design."""
    return sha256(design.encode()).hexdigest()[:12]


def log_of(out: Path, slot: int) -> Path:
    """What the processes of a slot have written."""
    return out / LOGS / f"slot{slot}.log"


def prepare(study: Study, out: Path) -> None:
    """Makes the folder, or checks that it is this study's. Raises InputError, OSError."""
    (out / LOGS).mkdir(parents=True, exist_ok=True)
    path = out / CONFIG
    if path.exists():
        there = read_study(path)
        check_same(study, decisive(there), f"'{out}'", "choose another --out")
        if study.trials < there.trials:
            raise InputError(
                f"'{out}' holds a study of {there.trials} trials; {study.trials} are asked for: choose another --out."
            )
        if study == there:
            return
    write_whole(path, yaml_of(study).encode())


def read_study(path: Path) -> Study:
    """The study of a folder's file, which need not be looked at again. Raises InputError."""
    from pydantic import ValidationError

    from tensornet_attn.spec.yaml import parse

    try:
        return Study(**parse(path.read_text(encoding="utf-8"), os.fspath(path))[0].data)
    except (ValidationError, TypeError) as error:
        raise InputError(f"'{path}' holds no study that this package can read: choose another --out.") from error
