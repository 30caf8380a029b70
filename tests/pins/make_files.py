"""Writes `tests/pins/files/`: small files as the package writes them today, which later ones must go on loading.

    python -m tests.pins.make_files              adds those that are missing
    python -m tests.pins.make_files FILE...      writes these again: only where old files need not load any more

Folders are stored as zip files, without pictures, which are made again. `values.json` is what the tests compare with.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tensornet_attn as ta

FILES = Path(__file__).parent / "files"
LEFT_OUT = (".svg", ".html", ".log", ".png")
MODEL = {
    "kind": "seq2seq",
    "vocabulary": 7,
    "length": 12,
    "width": 8,
    "encoder": [{"mixer": {"design": "mhsa", "legs": {"h": 2}}, "mlp": {"design": "mlp", "legs": {"l": 10}}}],
    "decoder": [
        {
            "mixer": {"design": "mhsa_rope", "legs": {"h": 2}},
            "cross": {"design": "cross", "legs": {"h": 2}},
            "mlp": {"design": "mlp", "legs": {"l": 10}},
            "repeat": 2,
        }
    ],
}
EVERYTHING = {  # dropout, noise, a state, a memory, losses: all that a checkpoint carries
    "kind": "language_model",
    "vocabulary": 28,
    "length": 8,
    "width": 8,
    "dropout": 0.1,
    "memory": 6,
    "positions": "none",
    "layers": [
        {
            "mixer": {"design": "transformer_xl", "legs": {"h": 2}},
            "mlp": {"design": "sigma_moe_regularised", "legs": {"e": 4, "l": 4}, "settings": {"k": 2, "drop": 0.2}},
        },
        {"mixer": {"design": "mgk_em", "legs": {"h": 2}}},
        {"mixer": {"design": "fish", "legs": {"h": 2, "g": 1}}},
    ],
}
SMALL: dict[str, Any] = {
    "batch": 8,
    "warmup": 2,
    "schedule": "constant",
    "eval_every": 4,
    "eval_samples": 16,
    "save_every": 4,
    "threads": 1,
    "accelerator": "cpu",
    "tensorboard": False,
    "steps": 4,
}
MQAR = {"length": 16, "pairs": 2, "vocabulary": 16}
RUN = {"task": "mqar", "options": MQAR, "design": "mhsa", "legs": {"h": 2}, "mlp": "none", "width": 8, "depth": 1}
RUN_LM = {
    "task": "char_lm",
    "options": {"length": 8, "streams": 4},
    "model": {"tensornet": 1, "name": "everything", "model": EVERYTHING},
    "batch": 4,
    "accumulate": 2,
}
SPACE = """space: 1
name: tiny
about: Attention of width 8.
base: [mhsa, linear]
legs: {f: 8, h: [1, 2]}
moves:
  share: {g: [1, 2]}
  kernel:
bounds: {n: 16}
"""
STUDY: dict[str, Any] = {
    "task": "mqar",
    "options": MQAR,
    "run": {"steps": 2, "depth": 1, "mlp": "none", "width": 8},
    "rates": [0.004],
    "trials": 2,
    "finalists": 1,
}


def wave(*shape: int) -> torch.Tensor:
    """Numbers between -1 and 1, the same on every machine and in every version of torch."""
    return torch.sin(torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float64)).reshape(shape)


def waved(module: nn.Module) -> nn.Module:
    """The module with such numbers as weights."""
    with torch.no_grad():
        for i, weight in enumerate(module.parameters(), 1):
            weight.copy_(wave(*weight.shape) / (1 + i) + 0.1)
    return module


def trained() -> nn.MultiheadAttention:
    """A layer to convert."""
    return waved(nn.MultiheadAttention(8, 2, batch_first=True).double().eval())  # type: ignore[return-value]


def make_layer(path: Path) -> None:
    """A checkpoint of a design, with noise and two experts, an embedding beside it."""
    design = ta.load("gfish", legs={"f": 8, "h": 4, "g": 2})
    ta.save(waved(ta.compile(design, causal=True).double()), path, {"embedding": wave(5, 8)})


def make_model(path: Path) -> None:
    """A checkpoint of an encoder and decoder."""
    ta.save(waved(ta.models.make(str(FILES / "model.yaml"), dtype=torch.float64)), path)


def make_converted(path: Path) -> None:
    """A trained attention that became a core of all heads, with its biases."""
    ta.save(ta.convert(trained(), "thsa"), path)


def make_model_yaml(path: Path) -> None:
    path.write_text(ta.models.load({"tensornet": 1, "name": "pinned", "model": MODEL}).to_yaml(), encoding="utf-8")


def make_space(path: Path) -> None:
    path.write_text(SPACE, encoding="utf-8")


def make_run(path: Path, **run: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ta.train(out=f"{folder}/run", **(SMALL | run))
        pack(Path(folder), path)


def make_study(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ta.search(str(FILES / "space.yaml"), out=f"{folder}/study", **STUDY)
        pack(Path(folder), path, without=("checkpoints", "pareto"))


def make_bench(path: Path) -> None:
    from tensornet_attn.cli import main

    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # the file names its command: no path of a machine
        main(["bench", "mhsa", *BENCH, "-o", path.name])
        shutil.copy(path.name, path)


BENCH = "--legs f=16,h=2 --n 16 --against eager --repeats 3 --seconds 0".split()
FILES_MADE: dict[str, Callable[[Path], None]] = {
    "space.yaml": make_space,
    "model.yaml": make_model_yaml,
    "layer.pt": make_layer,
    "model.pt": make_model,
    "converted.pt": make_converted,
    "run.zip": lambda path: make_run(path, **RUN),
    "run_lm.zip": lambda path: make_run(path, **RUN_LM),
    "study.zip": make_study,
    "bench.json": make_bench,
}


def pack(folder: Path, path: Path, without: tuple[str, ...] = ()) -> None:
    """The files of a folder as a zip file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        for file in sorted(folder.rglob("*")):
            parts = file.relative_to(folder).parts
            if file.is_file() and not file.name.endswith(LEFT_OUT) and not {*parts} & {*without}:
                made.write(file, "/".join(parts))


def unpack(name: str, folder: Path) -> Path:
    """The folder that a zip file of `files/` holds, below another one."""
    with zipfile.ZipFile(FILES / name) as packed:
        packed.extractall(folder)
        return folder / packed.namelist()[0].partition("/")[0]


def main(wanted: list[str]) -> None:
    from tests.pins.values import values

    FILES.mkdir(exist_ok=True)
    for name in wanted or [name for name in FILES_MADE if not (FILES / name).exists()]:
        print(name)
        FILES_MADE[name](FILES / name)
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(values(Path(folder)), indent=1) + "\n"
    (FILES / "values.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    wanted, sys.argv[:] = sys.argv[1:], ["tests/pins/make_files.py"]  # what runs say of their command
    main(wanted)
