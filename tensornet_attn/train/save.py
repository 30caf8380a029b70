"""A session to a checkpoint and back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tensornet_attn.errors import InputError
from tensornet_attn.files import write_whole
from tensornet_attn.spec.yaml import dump
from tensornet_attn.train import folder, state
from tensornet_attn.train.config import LATER, MACHINE, SIZES, Run
from tensornet_attn.train.folder import Saved
from tensornet_attn.train.session import Session

CHECKPOINTS, CONFIG = "checkpoints", "run.yaml"
FREE = {*MACHINE, "run"}


def save(session: Session, out: Path) -> None:
    """Writes a checkpoint of what is so far. Every process calls it; the first one writes. Raises OSError."""
    from safetensors.torch import save as packed

    files = {
        state.MODEL: state.model_tensors(session.model),
        state.OPTIMIZER: state.optimizer_tensors(session.model, session.optimizer),
        state.MEMORY: state.memory_tensors(session.memories, lambda piece: _gathered(session, piece)),
    }
    if session.first:
        packets = {name: packed(tensors) for name, tensors in files.items() if tensors}
        folder.write(out / CHECKPOINTS, session.step, _facts(session), packets, session.run.keep)


def resume(session: Session, saved: Saved) -> None:
    """Puts a checkpoint into a session that has just begun. Raises InputError for one of another run or model."""
    from safetensors.torch import load_file

    if saved.state.get("config") != config_hash(session.run):
        raise InputError(f"'{saved.path}' is a checkpoint of another run: its configuration is not that of {CONFIG}.")
    state.load_model(session.model, load_file(saved.path / state.MODEL), saved.path)
    state.load_optimizer(session.model, session.optimizer, load_file(saved.path / state.OPTIMIZER))
    if (saved.path / state.MEMORY).exists():
        held, share = load_file(saved.path / state.MEMORY), session.share
        spans = [share.rows(part, session.run.batch) for part in range(share.parts)]
        device = session.fabric.device
        session.memories = [state.memory_rows(held, start, stop, device) for start, stop in spans]
    session.step, session.seconds = saved.step, saved.state["seconds"]
    session.peak = saved.state["peak_memory_bytes"]


def config_hash(run: Run) -> str:
    """A hash of all that decides what a run computes, but for the number of steps where the schedule ignores it."""
    return hashlib.sha256(json.dumps(decisive(run), sort_keys=True).encode()).hexdigest()


def decisive(run: Run) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    free = FREE | ({"steps"} if run.schedule == "constant" else set())
    added = {name for name in LATER if getattr(run, name) == Run.model_fields[name].default}
    return run.model_dump(mode="json", exclude=free | added)


def write_config(run: Run, out: Path) -> None:
    """Writes `run.yaml`: the run with nothing left to look up."""
    write_whole(out / CONFIG, yaml_of(run).encode())


def yaml_of(run: Run) -> str:
    """A run whose model is written out as YAML that reads back to it."""
    return dump(run.model_dump(mode="json", exclude_none=True, exclude={*SIZES, "design"}))


def _facts(session: Session) -> dict[str, Any]:
    """What `state.json` says. Samples and random numbers are functions of the seed and the step."""
    return {
        "samples": session.step * session.run.batch,
        "seed": session.run.seed,
        "config": config_hash(session.run),
        "seconds": session.seconds,
        "peak_memory_bytes": session.peak,
        "processes": session.share.world,
        "model": session.spec.to_yaml(whole=True),
    }


def _gathered(session: Session, piece: Any) -> Any:
    """The pieces of all processes, in the order of their rows."""
    return piece if session.share.world == 1 else session.fabric.all_gather(piece).flatten(0, 1)
