"""Parallel text: pairs of sentences as samples, a vocabulary of both languages, and what cannot be used."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tensornet_attn.tasks import Task, task_named
from tests.refusals import refusal
from tests.tasks.parallel import corpus

SPLITS = ("train", "validation", "test")


def task_of(folder: Path, **options: object) -> Task:
    return task_named("translation", path=str(folder), source="nl", **({"length": 12} | options))


def message(folder: Path, **options: object) -> str:
    return refusal(task_of, folder, **options).replace(f"{folder}/", "")


def test_a_sample_is_a_sentence_and_its_translation_between_edges(tmp_path: Path, cache_home: Path) -> None:
    corpus(tmp_path)
    for _ in range(2):  # made, then read
        task = task_of(tmp_path)
        assert [task.size(split) for split in SPLITS] == [300, 24, 24]
        assert (task.kind, task.vocabulary, task.source.measure) == ("sequence_to_sequence", 3 + 28, "perplexity")
        parallel = task.source.parallel
        assert parallel is not None
        (batch,) = task.batches("test", 100)
        lines = [(tmp_path / f"test.{ending}").read_text().splitlines() for ending in ("nl", "en")]
        assert list(parallel.references["test"]) == lines[1]
        assert batch.source is not None
        assert batch.source_mask is not None
        for row, (source, target) in enumerate(zip(*lines, strict=True)):
            words = len(target.split())
            assert parallel.text(batch.source[row].tolist()) == source
            assert batch.source_mask[row].tolist() == [True] * words + [False] * (12 - words)
            assert batch.tokens[row, 0] == parallel.edge
            assert parallel.text(batch.targets[row, :words].tolist()) == target
            assert batch.targets[row, words:].tolist() == [parallel.edge] + [-100] * (11 - words)
            assert torch.equal(batch.tokens[row, 1 : words + 1], batch.targets[row, :words])
            assert batch.key_mask is not None
            assert batch.key_mask[row].sum() == words + 1
    assert len(list((cache_home / "translation").iterdir())) == 1


def test_a_smaller_vocabulary_and_words_of_its_own_names_are_unknown(tmp_path: Path) -> None:
    corpus(tmp_path)
    (tmp_path / "test.nl").write_text("<edge> hond <padding> nieuw oud\n" * 24)
    task = task_of(tmp_path, vocabulary=10)
    (batch,) = task.batches("test", 100)
    assert batch.source is not None
    assert batch.source[0].tolist()[:5] == [2, 2, 2, 2, 2]
    assert task.vocabulary == 10
    whole = task_of(tmp_path)
    (batch,) = whole.batches("test", 100)
    assert batch.source is not None
    assert whole.alphabet.decode(batch.source[0].tolist()[:5]) == "<unk> hond <unk> <unk> oud"


def test_characters_and_pieces_of_words(tmp_path: Path) -> None:
    corpus(tmp_path)
    letters = task_of(tmp_path, unit="character", length=80)
    parallel = letters.source.parallel
    assert parallel is not None
    assert letters.source.measure == "bits_per_character"
    batch = letters.samples("test", 0, 1)
    scored = batch.targets[0][batch.targets[0] != -100].tolist()
    assert parallel.text(scored) == parallel.references["test"][0]
    for path in tmp_path.glob("*.*"):
        path.write_text(path.read_text().replace("hond", "ho@@ nd").replace("house", "ho@@ use"))
    pieces = task_of(tmp_path, pieces="@@", length=20).source.parallel
    assert pieces is not None
    assert "@@" not in " ".join(pieces.references["test"])
    assert any("house" in line for line in pieces.references["test"])
    place = task_of(tmp_path, pieces="@@", length=20).alphabet.encode("ho@@ use old")
    assert pieces.text([*place, 1, 0]) == "house old"


def test_long_and_empty_training_pairs_are_left_out_and_others_cut_off(tmp_path: Path) -> None:
    for ending in ("nl", "en"):
        (tmp_path / f"train.{ending}").write_text("a b\n\na b c d\na\n")
        (tmp_path / f"valid.{ending}").write_text("a b c d e\n")
        (tmp_path / f"test.{ending}").write_text("a\n")
    task = task_of(tmp_path, length=4)
    assert [task.size(split) for split in SPLITS] == [2, 1, 1]
    batch = task.samples("validation", 0, 1)
    assert batch.source is not None
    words = task.alphabet.encode("a b c d")
    assert (batch.source.tolist(), batch.targets.tolist()) == ([words], [words])
    assert batch.tokens.tolist() == [[1, *words[:3]]]


def test_equal_probabilities_have_the_vocabulary_as_perplexity(tmp_path: Path) -> None:
    task = task_of(corpus(tmp_path))
    (batch,) = task.batches("test", 100)
    score = task.score(torch.zeros(24, 12, 31, dtype=torch.float64), batch)
    assert score.means()["perplexity"] == pytest.approx(31, rel=1e-14)
    assert score.means()["loss"] == pytest.approx(math.log(31), rel=1e-14)


def test_parallel_text_that_cannot_be_used(tmp_path: Path) -> None:
    needed = (
        "Task 'translation': path is the folder of train.de, train.en, valid.de, valid.en, test.de and test.en, one "
        "sentence per line: IWSLT'14 or WMT as plain text; source= and target= are the endings."
    )
    assert message(tmp_path) == f"'train.nl' cannot be read: No such file or directory. {needed}"
    corpus(tmp_path)
    assert message(tmp_path, target="fr") == f"'train.fr' cannot be read: No such file or directory. {needed}"
    assert message(tmp_path, length=5) == (
        "task 'translation': no training sentence has fewer than 5 tokens; raise 'length'."
    )
    path = tmp_path / "valid.en"
    lines = path.read_text()
    path.write_text(lines + "one more\n")
    assert message(tmp_path) == (
        "'valid.nl' has 24 lines and 'valid.en' 25; line i of one must be the translation of line i of the other."
    )
    path.write_text("\n" + lines.partition("\n")[2])
    wanted = "task 'translation': line 1 of split 'validation' is empty on one side; remove it from both."
    assert message(tmp_path) == wanted
