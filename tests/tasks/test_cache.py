"""What is stored: whole, checked, found again, and made again where it is damaged."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.tasks import task_named
from tensornet_attn.tasks.reading import Arrays, Cache
from tests.refusals import refusal

KEY = {"task": "some", "version": 1}
ARRAYS = {
    "bytes": np.arange(256),
    "signed": np.array([[-1, 127]]),
    "wide": np.array([[2**40], [-(2**40)]]),
    "none": np.zeros((0, 3), np.int64),
}


class Maker:
    """Counts how often it makes the arrays."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Arrays:
        self.times += 1
        return dict(ARRAYS)


def equal(left: Arrays, right: Arrays) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_arrays_are_made_once_and_read_as_they_were(tmp_path: Path) -> None:
    maker = Maker()
    first, again = (Cache(tmp_path / "new" / "folder").keep(KEY, maker) for _ in range(2))
    assert maker.times == 1
    assert equal(first, ARRAYS)
    assert equal(again, ARRAYS)
    assert [value.dtype.str for value in again.values()] == ["|u1", "|i1", "<i8", "|u1"]
    assert equal(Cache(None).keep(KEY, maker), ARRAYS)
    Cache(tmp_path / "new" / "folder").keep(KEY | {"seed": 1}, maker)
    assert maker.times == 3


def damage(data: bytes) -> list[bytes]:
    header, body = data.split(b"\n", 1)
    return [
        b"",
        b"\n",
        data[:20],
        data[:-1],
        header,
        data[:-1] + bytes([data[-1] ^ 1]),
        header.replace(b'"mark": "tensornet_attn arrays 1"', b'"mark": "another"') + b"\n" + body,
        header.replace(b"some", b"none") + b"\n" + body,
        b"[1]\n" + body,
        b"\xff\xfe\n" + body,
    ]


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    maker, cache = Maker(), Cache(tmp_path)
    cache.keep(KEY, maker)
    (path,) = tmp_path.rglob("*.arrays")
    whole = path.read_bytes()
    for times, data in enumerate(damage(whole), 2):
        path.write_bytes(data)
        assert equal(cache.keep(KEY, maker), ARRAYS)
        assert maker.times == times
        assert path.read_bytes() == whole


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    assert refusal(lambda: Cache(tmp_path).keep(KEY, Maker())) == (
        f"'{tmp_path / 'some'}': samples cannot be stored: No space left on device; set cache=FOLDER, or "
        "cache=False to store nothing."
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ta.InputError, match=re.escape("set cache=FOLDER, or cache=False to store nothing.")):
        task_named("copy", cache=tmp_path / "file", length=16).samples("train", 0, 1)


LISTOPS = {"min_length": 20, "max_length": 64}


def test_costly_samples_are_stored_unless_told_otherwise(cache_home: Path) -> None:
    task_named("listops", cache=False, **LISTOPS).samples("train", 0, 2)
    task_named("copy").samples("train", 0, 2)
    assert not cache_home.exists()
    task_named("listops", **LISTOPS).samples("test", 0, 2)
    assert len(list(cache_home.rglob("*.arrays"))) == 1
    task_named("copy", cache=True).samples("train", 0, 2)
    assert sorted(path.parent.name for path in cache_home.rglob("*.arrays")) == ["copy", "listops"]


def test_stored_samples_are_those_that_are_drawn(tmp_path: Path) -> None:
    for options in ({}, {"train": 1500}):
        drawn, stored, again = (task_named("mqar", cache=c, **options) for c in (False, tmp_path, tmp_path))
        for start, count in ((0, 3), (1020, 8), (1400, 200)):
            for task in (stored, again):
                for name in ("tokens", "targets"):
                    wanted = getattr(drawn.samples("train", start, count), name)
                    assert torch.equal(getattr(task.samples("train", start, count), name), wanted)
    assert len(list(tmp_path.rglob("*.arrays"))) == 2  # the size of a split changes no sample


def test_another_option_seed_or_split_is_stored_apart(tmp_path: Path) -> None:
    for options in ({}, {"seed": 1}, {"length": 32, "pairs": 4}):
        task_named("mqar", cache=tmp_path, **options).samples("validation", 0, 1)
    task_named("mqar", cache=tmp_path).samples("test", 0, 1)
    assert len(list(tmp_path.rglob("*.arrays"))) == 4


def test_what_is_held_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_named("copy", cache=tmp_path, length=16)
    batches = task.samples("train", 1000, 2100)
    assert len(task.held) == 4
    monkeypatch.setattr("tensornet_attn.tasks.task._HELD", 1)
    assert torch.equal(task.samples("train", 1000, 2100).tokens, batches.tokens)
    task.samples("train", 5000, 1)
    assert len(task.held) == 1
