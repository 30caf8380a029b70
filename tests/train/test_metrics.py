"""Lines of metrics: whole ones are read, torn and later ones are cut."""

from __future__ import annotations

from pathlib import Path

from tensornet_attn.train import metrics


def test_what_is_torn_or_late_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"step": 1, "loss": 0.1},
        {"step": 2, "loss": 1 / 3},
        {"step": 2, "eval_loss": 0.5},
        {"step": 3, "loss": 2},
    ]
    for line in lines:
        metrics.append(path, line)
    with path.open("ab") as file:
        file.write(b'{"step": 4, "lo')
    assert metrics.read(path) == lines
    assert metrics.cut(path, 2) == lines[:3]
    assert path.read_bytes().endswith(b'"eval_loss": 0.5}\n')
    assert metrics.cut(path, 0) == []
    assert path.read_bytes() == b""


def test_no_file_has_no_lines(tmp_path: Path) -> None:
    assert metrics.cut(tmp_path / "metrics.jsonl", 5) == []
    assert not (tmp_path / "metrics.jsonl").exists()


def test_the_median_speed() -> None:
    speeds = [{"step": step, "tokens_per_second": speed} for step, speed in enumerate((1.0, 9.0, 5.0))]
    assert metrics.median_speed([*speeds, {"step": 3, "eval_loss": 1.0}]) == 5.0
