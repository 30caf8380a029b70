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
    found = difference(undescribed(decisive(run)), undescribed(decisive(stored)))
    if found is not None:
        place, message = found
        more = HINTS.get(place, "").format(task=run.task)
        raise InputError(f"'{out}' has another run: {message}{more}; choose another --out.")
    if run.steps < stored.steps:
        raise InputError(f"'{out}' has a run of {stored.steps} steps, more than {run.steps}: choose another --out.")
    return run.model_copy(update={"model": stored.model})


def difference(here: Any, there: Any) -> tuple[str, str] | None:
    """The place of the first difference and its description; None if both are equal.

    >>> difference({"a": [1, 2], "b": 3}, {"a": [1, 5], "b": 3})
    ('a[1]', "'a[1]' is 5 there and 2 here")
    """
    found = next(differences(here, there), None)
    if found is None:
        return None
    place, *values = found
    own, before = ("not given" if value is None else str(value) for value in values)
    shown = [text if len(text) <= _LONG else text[: _LONG - 3] + "..." for text in (before, own)]
    return place, f"'{place}' is {shown[0]} there and {shown[1]} here"


def differences(here: Any, there: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields (place, value here, value there) of all differences, in order.

    >>> list(differences({"a": [1, 2], "b": 3}, {"a": [1, 5], "b": 3}))
    [('a[1]', 2, 5)]
    """
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for name in [*here, *(name for name in there if name not in here)]:
            yield from differences(here.get(name), there.get(name), f"{place}.{name}".lstrip("."))
    elif isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        for index, (one, other) in enumerate(zip(here, there, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif here != there:
        yield place, here, there


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint: its folder, its step, and the content of `state.json`."""

    path: Path
    step: int
    state: Mapping[str, Any]


def checkpoints(folder: Path) -> list[Saved]:
    """The complete checkpoints in a folder, by step."""
    found = (_opened(path) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted((saved for saved in found if saved is not None), key=lambda saved: saved.step)


def write(folder: Path, step: int, state: Mapping[str, Any], files: Mapping[str, bytes], keep: int) -> Path:
    """Writes the checkpoint of a step and removes all but the last `keep`; an OSError leaves the others intact."""
    name = f"step-{step:08d}"
    aside, path = folder / f"{_ASIDE}{name}", folder / name
    state = {**state, "step": step, "files": {file: len(data) for file, data in files.items()}}
    try:
        folder.mkdir(exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for file, data in [*files.items(), (STATE, json.dumps(state, indent=1).encode())]:
            with (aside / file).open("wb") as handle:
                handle.write(data)
                handle.flush()
                os.fsync(handle.fileno())
        _force(aside)
        os.rename(aside, path)
        _force(folder)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for saved in checkpoints(folder)[:-keep]:
        _remove(saved.path)
    return path


def clean(folder: Path) -> None:
    """Removes incomplete checkpoints, which a killed process has left."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if _NAME.match(path.name.removeprefix(_GONE).removeprefix(_ASIDE)) and path.name.startswith(_ASIDE):
            shutil.rmtree(path, ignore_errors=True)
        elif _NAME.match(path.name) and _opened(path) is None:
            _remove(path)


def _opened(path: Path) -> Saved | None:
    """The checkpoint in a folder; None if there is none or it is incomplete."""
    match = _NAME.match(path.name)
    if not match:
        return None
    try:
        state = json.loads((path / STATE).read_bytes())
        whole = all((path / file).stat().st_size == size for file, size in state["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Saved(path, int(match[1]), state) if whole and state.get("step") == int(match[1]) else None


def _remove(path: Path) -> None:
    """Renames a checkpoint and then removes it, so that a kill leaves no folder that looks complete."""
    aside = path.with_name(f"{_GONE}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rename(path, aside)
        shutil.rmtree(aside, ignore_errors=True)


def _force(folder: Path) -> None:
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

    own, tensors = model.state_dict(), load_file(saved.path / MODEL)
    for name in [*own, *(name for name in tensors if name not in own)]:
        if name not in tensors or name not in own or own[name].shape != tensors[name].shape:
            shapes = [list(each[name].shape) if name in each else "missing" for each in (own, tensors)]
            raise InputError(
                f"'{saved.path}' is a checkpoint of another model: '{name}' is {shapes[1]} there and {shapes[0]} here."
            )
        own[name].copy_(like(own[name], tensors[name]))


def whole(value: Tensor) -> Tensor:
    """A copy of a tensor on the CPU; gathers a sharded tensor."""
    return gathered(value).detach().to("cpu", copy=True).contiguous()


def gathered(value: Tensor) -> Tensor:
    """Gathers a DTensor, and returns other tensors unchanged. Every process must call it."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value  # importing DTensor takes a second


def like(pattern: Any, value: Tensor) -> Tensor:
    """A tensor on the device of `pattern`, sharded like `pattern`, a Tensor or a DTensor."""
    value = value.to(pattern.device)
    if not hasattr(pattern, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, pattern.device_mesh, pattern.placements, src_data_rank=None)


def save(session: Session, out: Path) -> None:
    """Writes a checkpoint of the session. Every process must call it; the first process writes. Raises OSError."""
    from safetensors.torch import save as packed

    files = {
        MODEL: {name: whole(value) for name, value in session.model.state_dict().items()},
        OPTIMIZER: {
            f"{name}/{key}": whole(value)
            for name, parameter in session.model.named_parameters()
            for key, value in session.optimizer.state.get(parameter, {}).items()
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
    for path, value in load_file(saved.path / OPTIMIZER).items():
        name, _, key = path.rpartition("/")
        parameter = parameters[name]
        session.optimizer.state[parameter][key] = value if key == "step" else like(parameter, value)
    if (saved.path / MEMORY).exists():
        stored = load_file(saved.path / MEMORY)
        for part in range(session.share.parts):
            rows = slice(*session.share.rows(part, session.run.batch))
            own = {name: value[rows].to(session.fabric.device, copy=True) for name, value in stored.items()}
            fresh = session.memories[part]
            assert fresh is not None
            session.memories[part] = fresh.with_tensors(own)
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


def undescribed(value: Any) -> Any:
    """A value without the descriptions in its designs and models: a reworded description is no other run.

    >>> undescribed({"design": {"about": "Attention.", "name": "a"}})
    {'design': {'name': 'a'}}
    """
    if isinstance(value, Mapping):
        return {key: undescribed(own) for key, own in value.items() if key not in ("about", "source")}
    return [undescribed(own) for own in value] if isinstance(value, list) else value


def write_config(run: Run, out: Path) -> None:
    """Writes `run.yaml`: the resolved run, with its model written out."""
    write_whole(out / CONFIG, dump(run.model_dump(mode="json", exclude_none=True, exclude={*SIZES, "design"})).encode())
