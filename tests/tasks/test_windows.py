"""Windows of a text: random places, side by side, and streams; the loaders of texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tensornet_attn.tasks import task_named
from tensornet_attn.tasks.reading import default_folder
from tensornet_attn.tasks.recipes.texts import Lanes, Sliding
from tests.refusals import refusal

ALPHABET = "abcdefghijklmnopqrstuvwxyzäöü€😀\n"


def text_file(tmp_path: Path, size: int = 1000) -> Path:
    chosen = np.random.default_rng(0).integers(0, len(ALPHABET), size)
    (tmp_path / "text.txt").write_text("".join(ALPHABET[place] for place in chosen), encoding="utf-8")
    return tmp_path / "text.txt"


@pytest.mark.parametrize("streams", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("tokens", [2, 3, 13, 50, 101])
def test_lanes_ask_for_every_token_once_and_go_on_where_they_ended(tokens: int, streams: int) -> None:
    lanes = Lanes(tokens, 5, streams)
    index = np.arange(lanes.windows)
    start, end = lanes.spans(index)
    places = [place for a, b in zip(start.tolist(), end.tolist(), strict=True) for place in range(a, b)]
    assert sorted(places) == list(range(tokens - 1))
    later = index[streams:]
    going_on = start[later] < end[later]
    assert (end[later - streams] == start[later])[going_on].all()


@pytest.mark.parametrize("stride", [1, 2, 4, 5])
@pytest.mark.parametrize("tokens", [2, 5, 6, 7, 13, 50])
def test_windows_that_slide_score_every_token_once_with_a_context(tokens: int, stride: int) -> None:
    slide, text = Sliding(tokens, 5, stride), np.arange(tokens)
    rows = slide.rows(text, np.arange(slide.windows))
    scored = [
        (target, place - row[0] + 1)
        for row, targets in zip(rows["tokens"].tolist(), rows["targets"].tolist(), strict=True)
        for place, target in zip(row, targets, strict=True)
        if target != -100
    ]
    assert [target for target, _ in scored] == list(range(1, tokens))
    assert all(before == min(target, before) for target, before in scored[:5])
    assert all(before >= 5 - stride + 1 for _, before in scored[5:])
    if stride == 1:
        assert all(before == 5 for _, before in scored[5:])


def test_a_task_slides_over_its_text(tmp_path: Path) -> None:
    path = text_file(tmp_path)
    task = task_named("char_lm", path=str(path), length=16)
    batches = list(task.sliding("test", 7, 10, 3))
    assert [len(batch) for batch in batches] == [7, 7]
    targets = torch.cat([batch.targets for batch in batches])
    assert task.alphabet.decode(targets[targets != -100].tolist()) == path.read_text(encoding="utf-8")[951:]
    words = task_named("wikitext", path=str(wikitext(tmp_path)), length=4)
    scored = torch.cat([batch.targets[batch.targets != -100] for batch in words.sliding("train", 2, 3)])
    assert words.alphabet.decode(scored.tolist()) == "A = <eos> <eos> b c b <unk> b <eos>"
    for stride in (0, 11):
        wanted = f"windows of 10 tokens cannot slide by {stride}: choose 1 to 10."
        assert refusal(task.sliding, "test", 7, 10, stride) == wanted
    assert refusal(task_named("mqar").sliding, "test", 7, 10) == (
        "task 'mqar' has no text for sliding windows; use a text task such as char_lm."
    )


def test_char_lm_reads_any_text_in_three_parts(tmp_path: Path) -> None:
    path = text_file(tmp_path)
    text = path.read_text(encoding="utf-8")
    task = task_named("char_lm", path=str(path), length=16)
    assert task.vocabulary == len(set(text))
    batch = task.samples("train", 0, 50)
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        assert task.alphabet.decode([*tokens, targets[-1]]) in text[:900]
        assert tokens[1:] == targets[:-1]
    assert task.alphabet.decode(task.alphabet.encode(text)) == text
    for split, part in (("validation", text[900:950]), ("test", text[950:])):
        (whole,) = task.batches(split, 1000)
        scored = whole.targets != -100
        assert task.alphabet.decode(whole.targets[scored].tolist()) == part[1:]
        assert task.alphabet.decode(whole.tokens[scored].tolist()) == part[:-1]


def test_byte_lm_reads_any_file_and_splits_enwik8_as_the_papers_do(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)))
    task = task_named("byte_lm", path=str(path), length=16)
    assert (task.vocabulary, task.kind, task.source.measure) == (257, "language_model", "bits_per_character")
    data = np.frombuffer(path.read_bytes(), np.uint8).astype(int) + 1
    for split, start, stop in (("train", 0, 900), ("validation", 900, 950), ("test", 950, 1000)):
        assert task.source.texts is not None
        assert task.source.texts[split].tolist() == data[start:stop].tolist()
    (batch,) = task.batches("test", 100)
    assert batch.targets[batch.targets != -100].tolist() == data[951:].tolist()
    assert task.alphabet.encode("aé") == [98, 196, 170]
    assert message("byte_lm", path=str(tmp_path / "enwik8")) == (
        f"'{tmp_path / 'enwik8'}' cannot be read: No such file or directory. Task 'byte_lm': path is any file; for the "
        "bits per character of the papers, it is enwik8, unpacked."
    )


def test_random_windows_reach_both_ends_of_the_part() -> None:
    task = task_named("char_lm", length=16)
    assert task.size("train") is None
    firsts = task.samples("train", 0, 64).tokens
    assert len({tuple(row) for row in firsts.tolist()}) == 64


def test_streams_go_on_over_batches_and_begin_again(tmp_path: Path) -> None:
    path = text_file(tmp_path)
    text = path.read_text(encoding="utf-8")
    task = task_named("char_lm", path=str(path), length=10, streams=3)
    batches = [task.samples("train", 3 * step, 3) for step in range(31)]
    read = torch.cat([batch.targets for batch in batches[:30]], 1)
    assert [task.alphabet.decode(row[row != -100].tolist()) for row in read] == [
        text[1:301],
        text[301:601],
        text[601:900],
    ]
    assert torch.equal(batches[30].tokens, batches[0].tokens)


def wikitext(tmp_path: Path) -> Path:
    for name, text in (("train", " = A = \n\n b c b <unk> b \n"), ("valid", " b d \n"), ("test", " c b \n")):
        (tmp_path / f"wiki.{name}.tokens").write_text(text)
    return tmp_path


def test_wikitext_reads_a_folder_with_words_by_count(tmp_path: Path, cache_home: Path) -> None:
    for _ in range(2):  # made, then read
        task = task_named("wikitext", path=str(wikitext(tmp_path)), length=4)
        assert getattr(task.alphabet, "words", ()) == ("<eos>", "b", "=", "<unk>", "A", "c", "d")
        assert task.alphabet.decode(task.samples("validation", 0, 1).tokens[0].tolist()) == "b d <eos> <eos>"
        assert task.samples("validation", 0, 1).targets.tolist() == [[6, 0, -100, -100]]
        assert task.vocabulary == 7
    assert cache_home == default_folder()
    assert len(list((cache_home / "wikitext").iterdir())) == 1


def test_wikitext_with_a_smaller_vocabulary_calls_the_rest_unknown(tmp_path: Path) -> None:
    task = task_named("wikitext", path=str(wikitext(tmp_path)), length=4, vocabulary=3)
    assert getattr(task.alphabet, "words", ()) == ("<eos>", "b", "<unk>")
    assert task.samples("validation", 0, 1).targets.tolist() == [[2, 0, -100, -100]]


def message(name: str, **options: object) -> str:
    return refusal(task_named, name, **options)


def test_texts_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    needed = "Task 'char_lm': path is any file of UTF-8 text; without path, the task generates a text."
    assert message("char_lm", path=str(path)) == f"'{path}' cannot be read: No such file or directory. {needed}"
    assert message("char_lm", path=str(tmp_path)) == f"'{tmp_path}' cannot be read: Is a directory. {needed}"
    path.write_bytes(b"abc\xff")
    assert message("char_lm", path=str(path)) == f"'{path}': byte 3 is not UTF-8; save it as UTF-8 text."
    path.write_text("abc" * 10)
    assert message("char_lm", path=str(path), vocabulary=2) == (
        "task 'char_lm': the text has 3 different characters; a vocabulary of 2 is too small: raise 'vocabulary'."
    )
    assert message("char_lm", path=str(path), length=27) == (
        "task 'char_lm': split 'train' has 27 tokens; windows of 27 need at least 28: give a longer "
        "text or reduce 'length'."
    )
    assert message("char_lm", path=str(path), length=4) == (
        "task 'char_lm': split 'validation' has 1 tokens; windows of 4 need at least 2: give a longer "
        "text or reduce 'length'."
    )
    assert message("wikitext", path=str(tmp_path)) == (
        f"'{tmp_path / 'wiki.train.tokens'}' cannot be read: No such file or directory. Task 'wikitext': path is the "
        "folder of wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens: word-level WikiText-2 or WikiText-103, "
        "unpacked."
    )
    (wikitext(tmp_path) / "wiki.test.tokens").write_text("")
    assert message("wikitext", path=str(tmp_path)) == "task 'wikitext': one of the files is empty; give each file text."


def test_a_word_that_is_not_in_the_vocabulary_is_named() -> None:
    wanted = "'[MAD' is not in the vocabulary: did you mean '[MED'?"
    assert refusal(lambda: task_named("listops_mini").alphabet.encode("[MIN 3 [MAD 2 ] ]")) == wanted
