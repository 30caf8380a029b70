"""What a finished run leaves: summary.json, what it has come to and cost, and its learning curves as a picture."""

from __future__ import annotations

import io
import json
import platform
import resource
import sys
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

import torch

from tensornet_attn import compiler
from tensornet_attn.analyse.plots import BLUE, GREY, INK, blank, label
from tensornet_attn.files import write_whole
from tensornet_attn.tasks.recipe import Measure
from tensornet_attn.train import metrics
from tensornet_attn.train.metrics import Line, median_speed
from tensornet_attn.train.session import Session
from tensornet_attn.version import __version__

SUMMARY, CURVES = "summary.json", "curves.svg"
_SPAN = 50  # steps, or a fiftieth of the run, that the thick line is a mean of


def finish(session: Session, out: Path, command: str) -> dict[str, Any]:
    """Writes and gives the summary, and draws the curves; nothing on processes other than the first."""
    told: dict[str, Any] = {}
    if session.first:
        lines = metrics.read(out / metrics.FILE)
        told = summary_of(session, lines, command)
        draw(lines, f"{session.spec.name} on {session.task.name}", out / CURVES)
        write_whole(out / SUMMARY, json.dumps(told, indent=2, ensure_ascii=False).encode() + b"\n")
    session.fabric.barrier()
    return told


def summary_of(session: Session, lines: list[Line], command: str) -> dict[str, Any]:
    """Final validation, size, work, speed, memory, and where all this comes from."""
    task, spec = session.task, session.spec
    judged = [line for line in lines if "eval_loss" in line]
    parts = (part for blocks in spec.stacks.values() for block in blocks for part in block.values())
    designs = {part.design.name: compiler.hash_of(part.design, part.causal) for part in parts}
    packages = {name: metadata.version(name) for name in ("torch", "lightning-fabric")}
    return {
        "task": task.name,
        "options": session.run.options,
        "model": spec.name,
        "designs": list(designs),
        "design_hashes": designs,
        "seed": session.run.seed,
        "steps": session.step,
        "parameters": sum(value.numel() for value in session.model.parameters() if value.requires_grad),
        "macs_per_token": spec.cost(n=task.length).macs / task.length,  # as planned, forward
        "peak_memory_bytes": session.peak,
        "tokens_per_second": median_speed(lines),
        "seconds": session.seconds,
        "eval": {name: value for name, value in judged[-1].items() if name.startswith("eval_")},
        "processes": session.share.world,
        "device": str(session.fabric.device),
        "command": command,
        "versions": {"tensornet-attn": __version__, "python": platform.python_version(), **packages},
    }


def peak_bytes(device: torch.device) -> int:
    """Of the CUDA allocator on a GPU, else the most that this process has had in memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def draw(lines: list[Line], title: str, path: Path) -> None:
    """Writes loss and validation loss, validation accuracies, and perplexity or bits, over the steps. SVG."""
    rates = sorted({name for line in lines for name in line if name.startswith("eval_accuracy")})
    units = sorted({f"eval_{unit}" for unit in get_args(Measure)} & {name for line in lines for name in line})
    panels = (
        ["loss, nats"]
        + ["validation accuracy"] * bool(rates)
        + [unit.removeprefix("eval_").replace("_", " ") for unit in units]
    )
    figure = blank(1 + 3.5 * len(panels) if rates else 5, 3.2)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    steps, losses = _points(lines, "loss")
    axes[0].plot(steps, losses, color=GREY, linewidth=0.6, alpha=0.6, label="training")
    axes[0].plot(steps, _smooth(losses), color=INK, linewidth=1.4, label="training, running mean")
    axes[0].plot(*_points(lines, "eval_loss"), color=BLUE, marker="o", markersize=3, label="validation")
    for rate in rates:
        name = rate.removeprefix("eval_")
        axes[1].plot(*_points(lines, rate), color=BLUE if name == "accuracy" else None, marker="o", ms=3, label=name)
    for axis, unit in zip(reversed(axes), reversed(units), strict=False):
        axis.plot(*_points(lines, unit), color=BLUE, marker="o", markersize=3, label="validation")
    for axis, what in zip(axes, panels, strict=True):
        label(axis, "", "step", what)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=7, frameon=False)
    figure.suptitle(title, fontsize=10, color=INK)
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    write_whole(path, picture.getvalue())


def _points(lines: list[Line], name: str) -> tuple[list[int], list[float]]:
    found = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    return [step for step, _ in found], [value for _, value in found]


def _smooth(values: list[float]) -> list[float]:
    """The mean of each value and those before it."""
    span = max(1, min(_SPAN, len(values) // 50))
    sums = list(accumulate(values, initial=0.0))
    starts = [max(0, place + 1 - span) for place in range(len(values))]
    return [(sums[place + 1] - sums[start]) / (place + 1 - start) for place, start in enumerate(starts)]
