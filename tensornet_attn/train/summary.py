"""`summary.json`: what a finished run has come to, and what it has cost."""

from __future__ import annotations

import json
import platform
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from tensornet_attn import compiler
from tensornet_attn.files import write_whole
from tensornet_attn.models.read import ModelSpec
from tensornet_attn.tasks.task import Task
from tensornet_attn.train.metrics import Line, median_speed
from tensornet_attn.train.model import designs_of
from tensornet_attn.train.session import Session
from tensornet_attn.version import __version__

FILE = "summary.json"


def summary_of(session: Session, lines: list[Line], command: str) -> dict[str, Any]:
    """Final validation, size, work, speed, memory, and where all this comes from."""
    judged = [line for line in lines if "eval_loss" in line]
    return {
        "task": session.task.name,
        "options": session.run.options,
        "model": session.spec.name,
        "designs": designs_of(session.spec),
        "design_hashes": hashes(session.spec),
        "seed": session.run.seed,
        "steps": session.step,
        "parameters": sum(value.numel() for value in session.model.parameters() if value.requires_grad),
        "macs_per_token": macs_per_token(session.spec, session.task),
        "peak_memory_bytes": session.peak,
        "tokens_per_second": median_speed(lines),
        "seconds": session.seconds,
        "eval": {name: value for name, value in judged[-1].items() if name.startswith("eval_")},
        "processes": session.share.world,
        "device": str(session.fabric.device),
        "command": command,
        "versions": versions(),
    }


def write(path: Path, summary: dict[str, Any]) -> None:
    write_whole(path, json.dumps(summary, indent=2, ensure_ascii=False).encode() + b"\n")


def macs_per_token(spec: ModelSpec, task: Task) -> float:
    """Multiply-adds of a forward pass as planned, by the positions of a sample."""
    return spec.cost(n=task.length).macs / task.length


def hashes(spec: ModelSpec) -> dict[str, str]:
    """The hash of the canonical form of each design, by name."""
    places = (part for blocks in spec.stacks.values() for block in blocks for part in block.values())
    return {part.design.name: compiler.hash_of(part.design, part.causal) for part in places}


def versions() -> dict[str, str]:
    from importlib import metadata

    packages = {name: metadata.version(name) for name in ("torch", "lightning-fabric")}
    return {"tensornet-attn": __version__, "python": platform.python_version(), **packages}


def peak_bytes(device: torch.device) -> int:
    """Of the CUDA allocator on a GPU, else the most that this process has had in memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
