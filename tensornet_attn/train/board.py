"""TensorBoard's event files beside the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensornet_attn.train.progress import Tell


@contextmanager
def board(folder: Path, step: int, wanted: bool) -> Iterator[Tell]:
    """What takes the metrics of each step; what was written after `step` is marked as gone."""
    if not wanted:
        yield lambda line: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder), purge_step=step + 1) as writer:

        def tell(line: Mapping[str, Any]) -> None:
            for name, value in line.items():
                if name != "step" and value is not None:
                    writer.add_scalar(name.replace("eval_", "eval/", 1), value, line["step"])

        yield tell
