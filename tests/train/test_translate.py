"""Greedy translations, against a plain loop, and BLEU, against sacrebleu's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import sacrebleu
import torch

import tensornet_attn as ta
from tensornet_attn.tasks import task_named
from tensornet_attn.train import translate
from tensornet_attn.train.trained import TrainedRun, open_run
from tests.models import tiny
from tests.refusals import refusal
from tests.tasks.parallel import corpus
from tests.train import runs

EDGE = 1


def run(folder: Path, steps: int = 2, width: int = 8) -> dict[str, object]:
    layer = {"mixer": {"design": "mhsa", "legs": {"h": 4}}, "mlp": "mlp"}
    model = {"kind": "seq2seq", "vocabulary": 31, "length": 12, "width": width, "positions": "learned"}
    model |= {"encoder": [layer], "decoder": [layer | {"cross": {"design": "cross", "legs": {"h": 4}}}]}
    changes = dict.fromkeys(("design", "legs", "mlp", "width", "depth"))
    options = {"path": str(folder), "source": "nl", "length": 12}
    return runs.small(task="translation", options=options, steps=steps, cache=False, **changes) | {
        "model": {"tensornet": 1, "name": "pair", "model": model}
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("parallel")
    ta.train(run(corpus(folder)), out=folder / "out")
    return open_run(folder / "out")


@pytest.mark.parametrize("masked", [True, False])
def test_greedy_translations_are_those_of_a_plain_loop(masked: bool) -> None:
    model = tiny.spread(tiny.seq2seq(positions="learned")).eval()
    source = tiny.tokens(batch=7, n=6)
    mask = torch.arange(6) < torch.tensor([[6], [5], [4], [3], [2], [1], [6]]) if masked else None
    ends = set()
    for edge in range(tiny.VOCABULARY):
        found = translate.greedy(model, source, mask, edge, 9)
        for row in range(7):
            said = [edge]
            while len(said) < 10:
                logits = model(
                    source[row : row + 1], torch.tensor([said]), None if mask is None else mask[row : row + 1]
                )
                said.append(int(logits[0, -1].argmax()))
                if said[-1] == edge:
                    break
            ends.add(said[-1] == edge)
            assert found[row] == [token for token in said[1:] if token != edge]
    assert ends == {True, False}


def test_logits_of_some_places_are_those_of_all() -> None:
    model = tiny.seq2seq().eval()
    encoded, target, at = model.encode(tiny.tokens()), tiny.tokens(n=4), torch.tensor([1, 3, 6])
    torch.testing.assert_close(model.decode(encoded, target, at=at), model.decode(encoded, target).flatten(0, 1)[at])


def test_bleu_is_that_of_sacrebleu_over_the_split(trained: TrainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Translations that are wrong in every third sentence, whatever the batch, and of the first sentences alone."""
    parallel = trained.task.source.parallel
    assert parallel is not None
    (whole,) = trained.task.batches("test", 100)
    assert whole.source is not None
    answers = {
        tuple(source): target[: target.index(EDGE)] if row % 3 else [3, 4]
        for row, (source, target) in enumerate(zip(whole.source.tolist(), whole.targets.tolist(), strict=True))
    }
    monkeypatch.setattr(
        translate, "greedy", lambda _model, source, *_: [answers[tuple(row)] for row in source.tolist()]
    )
    said = [parallel.text(answers[tuple(row)]) for row in whole.source.tolist()]
    references = list(parallel.references["test"])
    for samples in (None, 10):
        wanted = sacrebleu.corpus_bleu(said[:samples], [references[:samples]]).score
        found = [translate.bleu(trained, "test", samples, batch) for batch in (7, 24, None)]
        assert [one.score for one in found] == [pytest.approx(wanted)] * 3
        assert {one.sentences for one in found} == {samples or 24}
    assert 20 < wanted < 95
    assert found[0].signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert "tok:none" in translate.bleu(trained, "test", 10, tokenizer="none").signature


def test_right_translations_have_a_bleu_of_100() -> None:
    lines = ["the old dog sees the great tree .", "a small bird , follows the red stone"]
    assert translate.compared(lines, lines).score == pytest.approx(100)
    assert translate.compared(["x y z u v", "w w w w w"], lines).score < 5


def test_what_bleu_is_not_of(trained: TrainedRun) -> None:
    other = replace(trained, task=task_named("reverse"))
    wrong: Sequence[tuple[TrainedRun, tuple[str, ...], str]] = (
        (other, ("test",), "task 'reverse' has no parallel text for BLEU; use a translation task."),
        (trained, ("train",), "split 'train' has no reference translations for BLEU; choose split validation or test."),
    )
    for one, given, message in wrong:
        assert refusal(translate.bleu, one, *given) == message
    assert refusal(translate.bleu, trained, "test", tokenizer="13b").startswith(
        "sacrebleu has no tokenizer '13b': use one of none, zh, 13a, "
    )


@pytest.mark.slow
def test_a_made_up_language_is_learnt(tmp_path: Path) -> None:
    """Word for word, adjectives before their nouns: the model translates sentences that it has not seen."""
    config = run(corpus(tmp_path, train=2000), steps=400, width=32)
    config |= {"lr": 0.005, "warmup": 50, "batch": 32, "eval_every": 400}
    ta.train(config, out=tmp_path / "out")
    assert translate.bleu(open_run(tmp_path / "out"), "test").score > 90
