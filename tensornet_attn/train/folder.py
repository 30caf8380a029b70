"""The folder of a run: its lock, its configuration, and saving and loading of checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from tensornet_attn.errors import InputError
from tensornet_attn.files import check_own, write_whole
from tensornet_attn.spec.yaml import dump
from tensornet_attn.train.config import LATER, MACHINE, SIZES, Run, read
from tensornet_attn.train.session import Session

Tensor = torch.Tensor
LOCK, CHECKPOINTS, CONFIG, STATE = "lock", "checkpoints", "run.yaml", "state.json"
MODEL, OPTIMIZER, MEMORY = "model.safetensors", "optimizer.safetensors", "memory.safetensors"
_NAME = re.compile(r"step-(\d{8,})\Z")
_ASIDE, _GONE = ".", ".gone-"  # prefixes of checkpoints that are being written and removed
_LONG = 60  # maximum characters of a value in a message


# Reasons for a difference from the run in the folder, by key.
HINTS = {
    "steps": "; only a run with 'schedule: constant' can be extended",
    "task_samples": ", because the recipe of '{task}' makes other samples now",
}


@contextmanager
def locked(out: Path, wanted: bool) -> Iterator[None]:
    """Creates and locks the folder. Raises InputError if another process has the lock, and OSError on failure."""
    if not wanted:
        yield
        return
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process uses '{out}': wait until it ends, or choose another --out.") from None
        yield


def same_run(run: Run, out: Path) -> Run:
    """Returns the run with the descriptions that the folder's run has, which its checkpoints are hashed with.

    Raises InputError if the folder has files of others, with the first difference if it has another run, and if its
    run has more steps.
    """
    check_own(out, LOCK, CONFIG)
    if not (out / CONFIG).exists():
        return run
    stored = read(out / CONFIG, {})
    mismatch = difference(undescribed(decisive(run)), undescribed(decisive(stored)))
    if mismatch is not None:
        path, message = mismatch
        more = HINTS.get(path, "").format(task=run.task)
        raise InputError(f"'{out}' has another run: {message}{more}; choose another --out.")
    if run.steps < stored.steps:
        raise InputError(f"'{out}' has a run of {stored.steps} steps, more than {run.steps}: choose another --out.")
    return run.model_copy(update={"model": stored.model})


def difference(here: Any, there: Any) -> tuple[str, str] | None:
    """The place of the first difference and its description; None if both are equal.

    >>> difference({"a": [1, 2], "b": 3}, {"a": [1, 5], "b": 3})
    ('a[1]', "'a[1]' is 5 there and 2 here")
    """
    mismatch = next(differences(here, there), None)
    if mismatch is None:
        return None
    path, *sides = mismatch
    mine, theirs = ("not given" if side is None else str(side) for side in sides)
    shown = [side if len(side) <= _LONG else side[: _LONG - 3] + "..." for side in (theirs, mine)]
    return path, f"'{path}' is {shown[0]} there and {shown[1]} here"


def differences(here: Any, there: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields (place, value here, value there) of all differences, in order.

    >>> list(differences({"a": [1, 2], "b": 3}, {"a": [1, 5], "b": 3}))
    [('a[1]', 2, 5)]
    """
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for name in [*here, *(name for name in there if name not in here)]:
            yield from differences(here.get(name), there.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        for index, (mine, theirs) in enumerate(zip(here, there, strict=True)):
            yield from differences(mine, theirs, f"{path}[{index}]")
    elif here != there:
        yield path, here, there


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint: its folder, its step, and the content of `state.json`."""

    path: Path
    step: int
    state: Mapping[str, Any]


def checkpoints(folder: Path) -> list[Saved]:
    """The complete checkpoints in a folder, by step."""
    candidates = (_checkpoint_at(path) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted((saved for saved in candidates if saved is not None), key=lambda saved: saved.step)


def write(folder: Path, step: int, state: Mapping[str, Any], files: Mapping[str, bytes], keep: int) -> Path:
    """Writes the checkpoint of a step and removes all but the last `keep`; an OSError leaves the others intact."""
    name = f"step-{step:08d}"
    staging, path = folder / f"{_ASIDE}{name}", folder / name
    state = {**state, "step": step, "files": {file: len(content) for file, content in files.items()}}
    try:
        folder.mkdir(exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        for file, content in [*files.items(), (STATE, json.dumps(state, indent=1).encode())]:
            with (staging / file).open("wb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
        _fsync(staging)
        os.rename(staging, path)
        _fsync(folder)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    for saved in checkpoints(folder)[:-keep]:
        _remove(saved.path)
    return path


def clean(folder: Path) -> None:
    """Removes incomplete checkpoints, which a killed process has left."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if _NAME.match(path.name.removeprefix(_GONE).removeprefix(_ASIDE)) and path.name.startswith(_ASIDE):
            shutil.rmtree(path, ignore_errors=True)
        elif _NAME.match(path.name) and _checkpoint_at(path) is None:
            _remove(path)


def _checkpoint_at(path: Path) -> Saved | None:
    """The checkpoint in a folder; None if there is none or it is incomplete."""
    match = _NAME.match(path.name)
    if not match:
        return None
    try:
        state = json.loads((path / STATE).read_bytes())
        complete = all((path / file).stat().st_size == size for file, size in state["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Saved(path, int(match[1]), state) if complete and state.get("step") == int(match[1]) else None


def _remove(path: Path) -> None:
    """Renames a checkpoint and then removes it, so that a kill leaves no folder that looks complete."""
    aside = path.with_name(f"{_GONE}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rename(path, aside)
        shutil.rmtree(aside, ignore_errors=True)


def _fsync(folder: Path) -> None:
    """Syncs the entries of a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@torch.no_grad()
def load_model(model: nn.Module, saved: Saved) -> None:
    """Loads the tensors of a checkpoint into a model, sharded or not. Raises InputError if names or shapes differ."""
    from safetensors.torch import load_file

    weights, tensors = model.state_dict(), load_file(saved.path / MODEL)
    for name in [*weights, *(name for name in tensors if name not in weights)]:
        if name not in tensors or name not in weights or weights[name].shape != tensors[name].shape:
            shapes = [list(side[name].shape) if name in side else "missing" for side in (weights, tensors)]
            raise InputError(
                f"'{saved.path}' is a checkpoint of another model: '{name}' is {shapes[1]} there and {shapes[0]} here."
            )
        weights[name].copy_(like(weights[name], tensors[name]))


def whole(tensor: Tensor) -> Tensor:
    """A copy of a tensor on the CPU; gathers a sharded tensor."""
    return gathered(tensor).detach().to("cpu", copy=True).contiguous()


def gathered(tensor: Tensor) -> Tensor:
    """Gathers a DTensor, and returns other tensors unchanged. Every process must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # importing DTensor takes a second


def like(pattern: Any, tensor: Tensor) -> Tensor:
    """A tensor on the device of `pattern`, sharded like `pattern`, a Tensor or a DTensor."""
    tensor = tensor.to(pattern.device)
    if not hasattr(pattern, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, pattern.device_mesh, pattern.placements, src_data_rank=None)


def save(session: Session, out: Path) -> None:
    """Writes a checkpoint of the session. Every process must call it; the first process writes. Raises OSError."""
    from safetensors.torch import save as packed

    files = {
        MODEL: {name: whole(tensor) for name, tensor in session.model.state_dict().items()},
        OPTIMIZER: {
            f"{name}/{key}": whole(tensor)
            for name, parameter in session.model.named_parameters()
            for key, tensor in session.optimizer.state.get(parameter, {}).items()
        },
        MEMORY: _memories(session),
    }
    if session.first:
        facts = {  # seed and step determine samples and random numbers
            "samples": session.step * session.run.batch,
            "seed": session.run.seed,
            "config": config_hash(session.run),
            "seconds": session.seconds,
            "peak_memory_bytes": session.peak,
            "processes": session.share.world,
            "model": session.spec.to_yaml(whole=True),
        }
        packets = {name: packed(tensors) for name, tensors in files.items() if tensors}
        write(out / CHECKPOINTS, session.step, facts, packets, session.run.keep)


def _memories(session: Session) -> dict[str, Tensor]:
    """The memories of all parts, [batch, rows, width] each, in the order of the batch."""
    parts: dict[str, list[Tensor]] = {}
    for memory in (memory for memory in session.memories if memory is not None):
        named = memory.tensors()
        for name, piece in named.items():
            everyone = (
                piece if session.share.world == 1 else cast(Tensor, session.fabric.all_gather(piece)).flatten(0, 1)
            )
            parts.setdefault(name, []).append(everyone.cpu())
    return {name: torch.cat(pieces).contiguous() for name, pieces in parts.items()}


def resume(session: Session, saved: Saved) -> None:
    """Loads a checkpoint into a new session. Raises InputError for a checkpoint of another run or model."""
    from safetensors.torch import load_file

    if saved.state.get("config") != config_hash(session.run):
        raise InputError(f"'{saved.path}' is a checkpoint of another run: its configuration differs from {CONFIG}.")
    load_model(session.model, saved)
    parameters = dict(session.model.named_parameters())
    for path, tensor in load_file(saved.path / OPTIMIZER).items():
        name, _, key = path.rpartition("/")
        parameter = parameters[name]
        session.optimizer.state[parameter][key] = tensor if key == "step" else like(parameter, tensor)
    if (saved.path / MEMORY).exists():
        stored = load_file(saved.path / MEMORY)
        for part in range(session.share.accumulations):
            rows = slice(*session.share.rows(part, session.run.batch))
            tensors = {name: tensor[rows].to(session.fabric.device, copy=True) for name, tensor in stored.items()}
            memory = session.memories[part]
            assert memory is not None
            session.memories[part] = memory.with_tensors(tensors)
    session.step, session.seconds = saved.step, saved.state["seconds"]
    session.peak = saved.state["peak_memory_bytes"]


def config_hash(run: Run) -> str:
    """A hash of the keys that determine the result of a run; see `decisive`."""
    return hashlib.sha256(json.dumps(decisive(run), sort_keys=True).encode()).hexdigest()


def decisive(run: Run) -> dict[str, Any]:
    """The keys that must not change between a run and its resumption; `steps` may, if the schedule is constant."""
    free = {*MACHINE, "run"} | ({"steps"} if run.schedule == "constant" else set())
    added = {name for name in LATER if getattr(run, name) == Run.model_fields[name].default}
    task = {"task": run.task.rpartition(":")[2]}  # a module may move; `task_samples` identifies its recipe
    return run.model_dump(mode="json", exclude=free | added) | task


def undescribed(node: Any) -> Any:
    """A value without the descriptions in its designs and models: a reworded description is no other run.

    >>> undescribed({"design": {"about": "Attention.", "name": "a"}})
    {'design': {'name': 'a'}}
    """
    if isinstance(node, Mapping):
        return {key: undescribed(child) for key, child in node.items() if key not in ("about", "source")}
    return [undescribed(child) for child in node] if isinstance(node, list) else node


def write_config(run: Run, out: Path) -> None:
    """Writes `run.yaml`: the resolved run, with its model written out."""
    write_whole(out / CONFIG, dump(run.model_dump(mode="json", exclude_none=True, exclude={*SIZES, "design"})).encode())
