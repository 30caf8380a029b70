"""A worker as a process: it frees its slot when it is asked to end, and does not outlive whoever started it."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tensornet_attn.errors import MissingPartError, TensornetError
from tensornet_attn.search.read import load
from tensornet_attn.study.child import FUNCTIONS, TRAINING, Nursery
from tensornet_attn.study.folder import CONFIG, read_study
from tensornet_attn.study.process import Identity, end_with, identity
from tensornet_attn.study.rungs import callable_task, trained
from tensornet_attn.study.store import open_store, reached
from tensornet_attn.study.worker import Worker

FINE, WRONG, INTERRUPTED = 0, 1, 130


def serve(out: str, storage: str, name: str, parent: Identity) -> int:
    """Works for the study of a folder until it is finished; the exit status."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent tells us
    end_with(lambda: parent.gone, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        _work(out, storage, name)
    except KeyboardInterrupt:
        return INTERRUPTED
    except TensornetError as error:
        sys.stdout.write(json.dumps({"error": str(error), "missing": isinstance(error, MissingPartError)}) + "\n")
        sys.stdout.flush()
        return WRONG
    return FINE


def _stop(_number: int, _frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _work(out: str, storage: str, name: str) -> None:
    study = read_study(Path(out) / CONFIG)
    store = open_store(storage, study, name, identity())
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    functions = (rung.task.partition(":")[0] for rung in study.rungs if callable_task(rung.task))
    modules = (*(TRAINING if next(trained(study), None) is not None else FUNCTIONS), *functions)
    with reached(store.shown):
        Worker(store, study, load(study.space), Path(out), Nursery(modules)).work()
