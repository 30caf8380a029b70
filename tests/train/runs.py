"""Tiny runs for tests, and what is compared of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DROPPED = {"design": "sigma_moe_regularised", "legs": {"e": 4, "l": 4}, "settings": {"k": 2, "drop": 0.2}}
CALM = {  # an auxiliary loss that does not depend on how a batch is spread
    "tensornet": 1,
    "name": "calm",
    "extends": "mlp",
    "legs": {"m": "key", "l": 8},
    "diagram": {"squares": "y[n f] y[n f] -> n", "size": {"mean": "m", "of": "squares[m]"}},
    "losses": {"size": 0.1},
}
LAYERS = [
    {"mixer": {"design": "transformer_xl", "legs": {"h": 2}}, "mlp": DROPPED},
    {"mixer": {"design": "mgk_em", "legs": {"h": 2}}},
    {"mixer": {"design": "fish", "legs": {"h": 2, "g": 1}}},
]
TIMES = ("seconds", "tokens_per_second")


def small(**changes: Any) -> dict[str, Any]:
    """Ten steps on mqar by one layer of mhsa."""
    run = {
        "task": "mqar",
        "options": {"length": 16, "pairs": 2, "vocabulary": 16},
        "design": "mhsa",
        "legs": {"h": 2},
        "mlp": "none",
        "width": 8,
        "depth": 1,
        "steps": 10,
        "batch": 8,
        "warmup": 2,
        "eval_every": 5,
        "eval_samples": 20,
        "save_every": 4,
        "threads": 1,
        "accelerator": "cpu",
        "tensorboard": False,
    }
    return {name: value for name, value in (run | changes).items() if value is not None}


def everything(**changes: Any) -> dict[str, Any]:
    """A run with all that a checkpoint must carry: dropout, noise, a state, a memory, parts of a batch, and losses.

    The made-up text has 28 different characters.
    """
    model = {"kind": "language_model", "vocabulary": 28, "length": 8, "width": 8, "dropout": 0.1, "memory": 6}
    model |= {"layers": LAYERS, "positions": "none"}
    run = {
        "task": "char_lm",
        "options": {"length": 8, "streams": 4},
        "model": {"tensornet": 1, "name": "everything", "model": model},
        "steps": 24,
        "batch": 4,
        "accumulate": 2,
        "warmup": 5,
        "eval_every": 7,
        "eval_samples": 12,
        "save_every": 3,
        "keep": 2,
        "threads": 1,
        "accelerator": "cpu",
        "tensorboard": False,
    }
    return run | changes


def carrying(**changes: Any) -> dict[str, Any]:
    """A run whose memory is the decoding cache: keys, a band, states, and dropout beside them."""
    mixers = ("alibi", "linear", "fmm_fast_weight2")
    layers = [{"mixer": {"design": name, "legs": {"h": 2}}} for name in mixers]
    layers[0]["mlp"] = {"design": "sigma_moe_regularised", "legs": {"e": 4, "l": 4}}
    run = everything()
    model = run["model"]["model"] | {"memory_kind": "cache", "layers": layers}
    return run | {"model": {"tensornet": 1, "name": "carrying", "model": model}} | changes


def spread(**changes: Any) -> dict[str, Any]:
    """A run whose losses do not depend on how its batch is spread: a state and a memory, without dropout and noise.

    An auxiliary loss is among them.
    """
    run = everything(schedule="constant", steps=8, batch=8, options={"length": 8, "streams": 8})
    model = run["model"]["model"] | {"dropout": 0.0, "layers": [LAYERS[0] | {"mlp": {"design": CALM}}, LAYERS[1]]}
    return run | {"model": {"tensornet": 1, "name": "spread", "model": model}} | changes


def curve(out: Path) -> list[dict[str, Any]]:
    """The lines of the metrics, without times; each must be whole."""
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def weights(out: Path, step: int) -> bytes:
    """The weights and the optimizer of a checkpoint."""
    folder = out / "checkpoints" / f"step-{step:08d}"
    return b"".join((folder / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors"))
