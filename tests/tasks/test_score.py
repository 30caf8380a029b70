"""Scores: sums and counts that add up over batches and processes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tensornet_attn.tasks import Task, task_named
from tensornet_attn.tasks.batch import Batch, Score
from tests.refusals import refusal


def logits_for(task: Task, batch: Batch, seed: int = 0) -> torch.Tensor:
    shape = (*batch.targets.shape, task.classes or task.vocabulary)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", ["copy", "listops_mini", "reverse"])
def test_scores_of_parts_add_up_to_that_of_the_whole(name: str) -> None:
    task = task_named(name)
    batch = task.samples("test", 0, 12)
    logits = logits_for(task, batch)
    whole = task.score(logits, batch)
    parts = [
        task.score(
            logits[start : start + 4],
            Batch(**{k: v[start : start + 4] for k, v in vars(batch).items() if v is not None}),
        )
        for start in (0, 4, 8)
    ]
    total = parts[0] + parts[1] + parts[2]
    assert total.means() == pytest.approx(whole.means(), rel=1e-12)
    assert total.replaced(sum(part.vector() for part in parts)).means() == pytest.approx(whole.means(), rel=1e-12)


def test_the_loss_is_in_nats_over_what_is_scored_and_has_a_gradient() -> None:
    task = task_named("mqar", vocabulary=64)
    batch = task.samples("train", 0, 3)
    logits = torch.zeros(3, 64, 64, requires_grad=True)
    total, count = task.loss(logits, batch)
    assert count == 24
    assert total.item() / 24 == pytest.approx(math.log(64))
    total.backward()
    assert logits.grad is not None
    assert (logits.grad.abs().sum(-1) > 0).sum() == 24
    assert task.score(logits, batch).means()["loss"] == pytest.approx(math.log(64))


@pytest.mark.parametrize(
    ("name", "measure"), [("char_lm", "bits_per_character"), ("wikitext", "perplexity"), ("mqar", None)]
)
def test_equal_probabilities_have_the_vocabulary_as_perplexity_and_its_logarithm_as_bits(
    name: str, measure: str | None, tmp_path: Path
) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").write_text(" ".join(f"w{place % 11}" for place in range(50)))
    task = task_named(name, length=32, **({"path": str(tmp_path)} if name == "wikitext" else {"vocabulary": 64}))
    total = Score({})
    for start in range(0, 12, 4):
        batch = task.samples("train", start, 4)
        shape = (*batch.targets.shape, task.vocabulary)
        total = total + task.score(torch.zeros(shape, dtype=torch.float64), batch)
    found, v = total.means(), task.vocabulary
    wanted = {"perplexity": v, "bits_per_character": math.log2(v), None: None}[measure]
    assert list(found) == ["loss", *([measure] if measure else []), "accuracy"]
    assert found.get(measure or "") == (None if wanted is None else pytest.approx(wanted, rel=1e-14))


def test_perplexity_is_that_of_the_whole_not_the_mean_of_parts() -> None:
    parts = [Score({"loss": (4.0, 4)}, "perplexity"), Score({"loss": (1.0, 1)}), Score({"loss": (30.0, 5)})]
    total = parts[0] + parts[1] + parts[2]
    assert total.means() == {"loss": 3.5, "perplexity": pytest.approx(math.exp(3.5))}
    assert total.replaced(total.vector()).means() == total.means()
    assert Score({"loss": (1e4, 1)}, "perplexity").means()["perplexity"] == math.inf
    assert math.isnan(Score({"loss": (math.nan, 1)}, "perplexity").means()["perplexity"])


def test_scores_of_some_places_are_those_of_all() -> None:
    task = task_named("mqar", length=16, pairs=2, vocabulary=16)
    batch = task.samples("test", 0, 3)
    logits, at = logits_for(task, batch), (batch.targets != -100).flatten().nonzero().flatten()
    assert task.score(logits.flatten(0, 1)[at], batch, at).parts == task.score(logits, batch).parts


@pytest.mark.parametrize("name", ["mqar", "listops_mini", "reverse"])
def test_label_smoothing_spreads_a_share_evenly_over_all_answers(name: str) -> None:
    """Against torch's own, and against a plain loop; what is not scored has no gradient."""
    task, share = task_named(name), 0.1
    batch = task.samples("train", 0, 2)
    logits = logits_for(task, batch).requires_grad_()
    total, count = task.loss(logits, batch, smoothing=share)
    rows, targets = logits.detach().flatten(0, -2).log_softmax(-1), batch.targets.flatten()
    plain = 0.0
    for row, target in zip(rows.tolist(), targets.tolist(), strict=True):
        if target != -100:
            plain -= (1 - share) * row[target] + share * sum(row) / len(row)
    assert total.item() == pytest.approx(plain, rel=1e-12)
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets, label_smoothing=share)
    assert total.item() / int(count) == pytest.approx(mean.item(), rel=1e-12)
    total.backward()
    assert logits.grad is not None
    assert bool((logits.grad.flatten(0, -2)[targets == -100] == 0).all())
    assert task.score(logits, batch).means()["loss"] == pytest.approx(task.loss(logits, batch)[0].item() / int(count))


def test_right_answers_score_one() -> None:
    task = task_named("listops_mini")
    batch = task.samples("test", 0, 200)
    means = task.score(20.0 * torch.nn.functional.one_hot(batch.targets, 10), batch).means()
    assert list(means) == ["loss", "accuracy", "accuracy/MIN", "accuracy/MAX", "accuracy/MED", "accuracy/SM"]
    assert all(means[name] == 1 for name in means if name != "loss")
    assert means["loss"] < 1e-6


def test_what_is_counted_nowhere_has_no_mean() -> None:
    task = task_named("listops_mini")
    batch = task.samples("test", 0, 1)
    score = task.score(logits_for(task, batch), batch)
    assert len(score.parts) == 6
    assert len(score.means()) == 3


def test_half_precision_is_scored_in_float32() -> None:
    task = task_named("copy")
    batch = task.samples("test", 0, 4)
    logits = logits_for(task, batch).bfloat16()
    assert task.loss(logits, batch)[0].item() == task.loss(logits.float(), batch)[0].item()


def test_logits_of_another_size_are_refused() -> None:
    task = task_named("mqar")
    assert refusal(task.score, torch.zeros(2, 64, 511), task.samples("train", 0, 2)) == (
        "task 'mqar': the logits have shape [2, 64, 511]; give [2, 64, 512]."
    )


def test_a_batch_moves_to_a_device() -> None:
    batch = task_named("reverse").samples("train", 0, 2).to("meta")
    assert {value.device.type for value in vars(batch).values() if value is not None} == {"meta"}
    assert batch.group is None
    assert len(batch) == 2
