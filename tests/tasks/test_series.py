"""Time series out of .ts files: what is read, filled, scaled and held out, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tensornet_attn.tasks import Task, task_named
from tests.refusals import refusal

SPLITS = ("train", "validation", "test")
HEAD = "# a comment\n@problemName Walks\n@timeStamps false\n@univariate false\n@dimensions 2\n@equalLength {equal}\n"
HEAD += "@classLabel true left right\n@data\n"


def written(path: Path, series: list[np.ndarray], labels: list[str]) -> None:
    lines = [
        ":".join([*(",".join("?" if np.isnan(v) else repr(float(v)) for v in column) for column in one.T), label])
        for one, label in zip(series, labels, strict=True)
    ]
    path.write_text(HEAD.format(equal="true") + "\n".join(lines) + "\n")


def walks(folder: Path, counts: tuple[int, int] = (20, 6), lengths: tuple[int, int] = (5, 5)) -> list[list[np.ndarray]]:
    """Random walks in two dimensions, of 5 or more steps, every other one to the right."""
    chance, found = np.random.default_rng(0), []
    for name, count in zip(("TRAIN", "TEST"), counts, strict=True):
        series = [
            chance.normal([0, 3], [1, 50], (int(chance.integers(lengths[0], lengths[1] + 1)), 2)) for _ in range(count)
        ]
        written(folder / f"Walks_{name}.ts", series, [("left", "right")[place % 2] for place in range(count)])
        found.append(series)
    return found


def uea(folder: Path, **options: object) -> Task:
    return task_named("uea", path=str(folder), **options)


def message(folder: Path, **options: object) -> str:
    return refusal(uea, folder, **options).replace(f"{folder}/", "")


def test_series_are_scaled_by_the_training_series(tmp_path: Path) -> None:
    """The test series say what a scaled number was: with that all training series are found again, each once."""
    train, test = walks(tmp_path)
    task = uea(tmp_path)
    assert [task.size(split) for split in SPLITS] == [16, 4, 6]
    assert (task.kind, task.features, task.vocabulary, task.length) == ("classification", 2, 0, 5)
    assert task.source.classes == ("left", "right")
    batch, held = next(task.batches("test", 100)), next(task.batches("validation", 100))
    used = task.samples("train", 0, 16)
    assert (batch.tokens.dtype, batch.key_mask, batch.targets.tolist()) == (torch.float32, None, [0, 1] * 3)
    assert held.targets.tolist().count(0) == 2
    scaled, plain = batch.tokens.double().numpy(), np.stack(test)
    spread = (plain[0, 0] - plain[1, 0]) / (scaled[0, 0] - scaled[1, 0])
    mean = plain[0, 0] - scaled[0, 0] * spread
    np.testing.assert_allclose(scaled * spread + mean, plain, rtol=1e-4, atol=1e-4)
    found = torch.cat([used.tokens, held.tokens]).double().numpy() * spread + mean
    order = np.argsort(found[:, 0, 0])
    np.testing.assert_allclose(found[order], sorted(train, key=lambda one: one[0, 0]), rtol=1e-4, atol=1e-3)
    rows = used.tokens.flatten(0, 1).double()
    torch.testing.assert_close(rows.mean(0), torch.zeros(2).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(rows.std(0, unbiased=False), torch.ones(2).double(), atol=1e-6, rtol=0)


def test_shorter_series_are_padded_and_gaps_are_filled(tmp_path: Path) -> None:
    gap = float("nan")
    train = [np.array([[1.0, 7.0], [gap, 7.0], [3.0, 7.0]]), np.array([[2.0, gap], [2.0, gap]])]
    written(tmp_path / "Gaps_TRAIN.ts", train, ["left", "right"])
    written(tmp_path / "Gaps_TEST.ts", [np.array([[2.0, 8.0]])], ["right"])
    task = uea(tmp_path, validation=0)
    batch = task.samples("train", 0, 2)
    assert batch.key_mask is not None
    order = batch.targets.argsort()
    spread = np.sqrt(2 / 5)
    assert batch.key_mask[order].tolist() == [[True] * 3, [True, True, False]]
    wanted = [[[-1 / spread, 0], [0, 0], [1 / spread, 0]], [[0, 0], [0, 0], [0, 0]]]
    torch.testing.assert_close(batch.tokens[order], torch.tensor(wanted, dtype=torch.float32))
    (judged,), (same,) = task.batches("test", 9), task.batches("validation", 9)
    assert judged.tokens.tolist() == same.tokens.tolist() == [[[0, 1], [0, 0], [0, 0]]]
    assert uea(tmp_path, validation=0, length=2).samples("train", 0, 2).tokens.shape == (2, 2, 2)


def test_one_dimension_is_read_too(tmp_path: Path) -> None:
    for name in ("TRAIN", "TEST"):
        text = HEAD.format(equal="true").replace("@dimensions 2\n", "")
        (tmp_path / f"One_{name}.ts").write_text(text + "1,2,NaN:left\n\n2,3,4:right\n")
    task = uea(tmp_path, validation=0)
    assert (task.features, task.samples("test", 0, 2).tokens.shape) == (1, (2, 3, 1))


DATA = "1,2:3,4:left\n1,2:3,5:right\n"
WRONG = [
    ("hello", "'W_TRAIN.ts', line 1: begin lines before '@data' with '@' or '#'."),
    ("@problemName W\n", "'W_TRAIN.ts' has no line '@data'; give a .ts file of the archives."),
    ("@data\n1:a\n", "'W_TRAIN.ts' has no classes: add a line '@classLabel true CLASS CLASS ...' above '@data'."),
    (
        "@timeStamps true\n@classLabel true a\n@data\n",
        "'W_TRAIN.ts', line 1: time stamps are not supported; give only values.",
    ),
    (HEAD, "'W_TRAIN.ts' has no series below '@data'."),
    (HEAD + "1:2:up\n", "'W_TRAIN.ts', line 9: 'up' is not a class; use one of left, right."),
    (HEAD + "1,x:2,3:left\n", "'W_TRAIN.ts', line 9: could not convert string to float: 'x'."),
    (
        HEAD + "1,2:3:left\n",
        "'W_TRAIN.ts', line 9: dimension 2 has 1 values, dimension 1 has 2; give all dimensions the same length.",
    ),
    (HEAD + "left\n", "'W_TRAIN.ts', line 9: give the values of each dimension and the class, separated by colons."),
    (HEAD + "1::left\n", "'W_TRAIN.ts', line 9: give the values of each dimension and the class, separated by colons."),
    (HEAD + "1:2:left\n1:left\n", "'W_TRAIN.ts', line 10: 1 dimensions; the first series has 2."),
    (HEAD + DATA, "task 'uea': split 'validation' has no samples; change 'validation', the share of each class."),
]


@pytest.mark.parametrize(("text", "wanted"), WRONG, ids=range(len(WRONG)))
def test_series_that_cannot_be_read_are_told_with_their_line(tmp_path: Path, text: str, wanted: str) -> None:
    (tmp_path / "W_TRAIN.ts").write_text(text)
    (tmp_path / "W_TEST.ts").write_text(HEAD + DATA)
    assert message(tmp_path) == wanted


def test_files_that_are_missing_or_of_different_problems(tmp_path: Path) -> None:
    needed = "Task 'uea': path is the folder of NAME_TRAIN.ts and NAME_TEST.ts: one problem of the UEA or UCR archive, "
    assert message(tmp_path) == f"'{tmp_path}' has no file *_TRAIN.ts. {needed}unpacked."
    (tmp_path / "W_TRAIN.ts").write_text(HEAD + DATA)
    assert message(tmp_path) == f"'{tmp_path}' has no file *_TEST.ts. {needed}unpacked."
    (tmp_path / "W_TEST.ts").write_text(HEAD + "1:left\n")
    assert message(tmp_path) == "'W_TRAIN.ts' has series of 2 dimensions, 'W_TEST.ts' of 1; give files of one problem."
    (tmp_path / "W_TEST.ts").write_text(HEAD.replace("left", "up") + "1:2:up\n")
    wanted = "'W_TRAIN.ts' has the classes left, right, 'W_TEST.ts' has up, right; give files of one problem."
    assert message(tmp_path) == wanted
