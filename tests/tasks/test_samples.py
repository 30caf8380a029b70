"""Samples are functions of their numbers: pinned, and independent of batch, order, process and store."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.tasks import Task, task_named
from tensornet_attn.tasks.batch import Batch

SMALL_LISTOPS = {"min_length": 20, "max_length": 64}
DRAWN: list[tuple[str, dict[str, Any]]] = [
    ("copy", {}),
    ("copy", {"length": 512, "symbols": 3}),
    ("mqar", {}),
    ("mqar", {"length": 128, "pairs": 16, "filler": "random"}),
    ("selective_copy", {}),
    ("reverse", {}),
    ("listops", {}),
    ("listops_mini", {}),
]
IDS = [f"{name}-{len(options)}" for name, options in DRAWN]
FIRST = {  # of the first samples of each split: a change needs a new version of the recipe
    "copy-0": "6f051e47c5967f0b",
    "copy-2": "fd0657b767e989e8",
    "mqar-0": "2335b88e4533ff1d",
    "mqar-3": "8b2c4a7e4897ac4e",
    "selective_copy-0": "df117c6bee9ace8d",
    "reverse-0": "184016b09d9ade1f",
    "listops-0": "e08d8134e2cd3e75",
    "listops_mini-0": "cd8a0b9a7fd12b67",
    "char_lm": "c9bdbb4ab2d9c250",
}


def fields(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(batch).items() if value is not None}


def same(left: Batch, right: Batch) -> bool:
    a, b = fields(left), fields(right)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def row(batch: Batch, place: int) -> Batch:
    return Batch(**{name: value[place : place + 1] for name, value in fields(batch).items()})


def digest(task: Task) -> str:
    total = hashlib.sha256()
    for split in ("train", "validation", "test"):
        for name, value in fields(task.samples(split, 0, 2)).items():
            total.update(name.encode() + value.numpy().tobytes())
    return total.hexdigest()[:16]


@pytest.mark.parametrize(("name", "options"), DRAWN, ids=IDS)
def test_the_first_samples_are_pinned(name: str, options: dict[str, Any]) -> None:
    task = task_named(name, cache=False, **options)
    assert (task.recipe.version, digest(task)) == (1, FIRST[f"{name}-{len(options)}"])


def test_the_first_samples_of_the_made_up_text_are_pinned() -> None:
    assert digest(task_named("char_lm")) == FIRST["char_lm"]


@pytest.mark.parametrize(("name", "options"), DRAWN, ids=IDS)
def test_a_sample_depends_on_nothing_but_its_number(name: str, options: dict[str, Any]) -> None:
    options = options | (SMALL_LISTOPS if name == "listops" else {})
    task = task_named(name, cache=False, **options)
    for split in ("train", "test"):
        together = task.samples(split, 40, 7)
        for place in (6, 0, 3):
            assert same(task.samples(split, 40 + place, 1), row(together, place))
        assert same(task_named(name, cache=False, **options).samples(split, 40, 7), together)
        assert not same(task_named(name, cache=False, seed=1, **options).samples(split, 40, 7), together)


@pytest.mark.parametrize(("name", "options"), DRAWN, ids=IDS)
def test_shapes_and_ranges_are_those_of_the_protocol(name: str, options: dict[str, Any]) -> None:
    options = options | (SMALL_LISTOPS if name == "listops" else {})
    task = task_named(name, cache=False, **options)
    batch = task.samples("validation", 0, 5)
    assert batch.tokens.shape == (5, task.length)
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64
    assert batch.targets.shape == ((5,) if task.kind == "classification" else (5, task.length))
    assert batch.tokens.min() >= 0
    assert batch.tokens.max() < task.vocabulary
    scored = batch.targets[batch.targets != -100]
    assert scored.min() >= 0
    assert scored.max() < (task.classes or task.vocabulary)
    assert (batch.key_mask is None) == (task.kind == "language_model")
    assert task.causal == (task.kind == "language_model")
    if batch.key_mask is not None:
        assert torch.equal(batch.key_mask, batch.tokens != 0)


TINY = [
    ("copy", {"length": 13, "symbols": 2}),
    ("mqar", {"length": 8, "pairs": 2, "vocabulary": 8}),
    ("selective_copy", {"length": 8, "count": 2, "symbols": 2}),
    ("reverse", {"length": 5, "symbols": 3}),
    ("listops_mini", {"max_depth": 2, "max_args": 2}),
]


@pytest.mark.parametrize(("name", "options"), TINY)
def test_splits_share_no_sample_even_where_there_are_few(name: str, options: dict[str, Any]) -> None:
    task = task_named(name, **options)
    seen = {}
    for split in ("train", "validation", "test"):
        batch = task.samples(split, 0, 400)
        rows = torch.cat([batch.tokens, *([] if batch.source is None else [batch.source])], 1)
        seen[split] = {tuple(row) for row in rows.tolist()}
    assert all(len(found) >= 2 for found in seen.values())
    assert not seen["train"] & seen["validation"]
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]


def test_too_few_different_samples_are_refused() -> None:
    task = task_named("copy", length=5, symbols=1)
    with pytest.raises(ta.InputError) as error:
        [task.samples(split, 0, 1) for split in ("train", "validation", "test")]
    assert str(error.value) == (
        "task 'copy': 20,000 attempts found no sample for split 'train'; choose options with enough different "
        "samples for three disjoint splits."
    )


def test_epochs_over_a_finite_split_hold_every_sample_once_and_differ_in_order() -> None:
    task = task_named("copy", length=16, train=50)
    endless = task_named("copy", length=16).samples("train", 0, 50).tokens.tolist()
    epochs = [task.samples("train", 50 * epoch, 50).tokens.tolist() for epoch in range(3)]
    assert all(sorted(epoch) == sorted(endless) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    across = task.samples("train", 40, 20).tokens.tolist()
    assert across == epochs[0][40:] + epochs[1][:10]
    assert task.size("train") == 50


def test_batches_walk_through_an_evaluation_split() -> None:
    task = task_named("copy", length=16, test=10)
    found = list(task.batches("test", 4))
    assert [len(batch) for batch in found] == [4, 4, 2]
    assert torch.equal(torch.cat([batch.tokens for batch in found]), task.samples("test", 0, 10).tokens)


IN_ANOTHER = """
import sys, hashlib
from tensornet_attn.tasks import task_named
task = task_named("listops", cache=sys.argv[1], min_length=20, max_length=64, train=3000)
batch = task.samples("train", 100, 64)
print(hashlib.sha256(batch.tokens.numpy().tobytes() + batch.targets.numpy().tobytes()).hexdigest())
"""


def test_two_processes_at_once_give_equal_samples_with_one_store_and_without(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", IN_ANOTHER, str(tmp_path / folder)], stdout=subprocess.PIPE, text=True,
            env=environment | {"PYTHONHASHSEED": seed},
        )
        for folder, seed in (("one", "1"), ("one", "2"))
    ]  # fmt: skip
    said = [run.communicate()[0].strip() for run in runs]
    task = task_named("listops", cache=False, min_length=20, max_length=64, train=3000)
    batch = task.samples("train", 100, 64)
    here = hashlib.sha256(batch.tokens.numpy().tobytes() + batch.targets.numpy().tobytes()).hexdigest()
    assert said == [here, here]
    assert not list(tmp_path.rglob(".*"))  # no temporary files are left
