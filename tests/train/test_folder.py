"""Checkpoints appear whole or not at all, the last few are kept, and what is torn is no checkpoint."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tensornet_attn.train import folder

FILES = {"model.safetensors": b"weights"}


def steps(path: Path) -> list[int]:
    return [saved.step for saved in folder.checkpoints(path)]


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    for step in range(1, 6):
        folder.write(tmp_path, step, {"seconds": step}, FILES, keep=2)
    assert steps(tmp_path) == [4, 5]
    assert sorted(os.listdir(tmp_path)) == ["step-00000004", "step-00000005"]
    assert folder.checkpoints(tmp_path)[-1].state["seconds"] == 5


def test_what_is_torn_is_ignored_and_removed(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        folder.write(tmp_path, step, {}, FILES, keep=9)
    (tmp_path / "step-00000002" / "state.json").unlink()
    (tmp_path / "step-00000003" / "model.safetensors").write_bytes(b"weig")
    (tmp_path / "step-00000004" / "state.json").write_text('{"step"')
    for name in (".step-00000005", ".gone-step-00000000", ".cache", ".step"):
        (tmp_path / name).mkdir()
    assert steps(tmp_path) == [1]
    folder.clean(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".cache", ".step", "step-00000001"]


def test_a_full_disk_leaves_the_others_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write(tmp_path, 1, {}, FILES, keep=1)

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        folder.write(tmp_path, 2, {}, FILES, keep=1)
    assert os.listdir(tmp_path) == ["step-00000001"]


def test_no_folder_has_no_checkpoints(tmp_path: Path) -> None:
    assert steps(tmp_path / "none") == []
    folder.clean(tmp_path / "none")
