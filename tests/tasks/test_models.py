"""A batch is what the models take, and the score is that of what they give."""

from __future__ import annotations

import torch

import tensornet_attn as ta
from tensornet_attn.tasks import Task, task_named
from tensornet_attn.tasks.batch import Batch

LAYERS = [{"mixer": {"design": "mhsa", "legs": {"h": 2}}, "mlp": "mlp"}]


def learns(task: Task, model: torch.nn.Module, batch: Batch, *inputs: torch.Tensor | None) -> None:
    """One step on a batch makes the loss on it smaller."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    total, count = task.loss(model(*inputs), batch)
    (total / count).backward()
    optimizer.step()
    before, after = total.item() / int(count), task.score(model(*inputs), batch).means()["loss"]
    assert after < before


def test_a_language_model_takes_its_batches() -> None:
    torch.manual_seed(0)
    task = task_named("mqar", length=16, pairs=2, vocabulary=16)
    model = ta.models.LanguageModel(vocabulary=task.vocabulary, length=task.length, width=8, layers=LAYERS)
    batch = task.samples("train", 0, 4)
    learns(task, model, batch, batch.tokens, batch.key_mask)


def test_a_classifier_takes_its_batches() -> None:
    torch.manual_seed(0)
    task = task_named("listops_mini")
    sizes = {"vocabulary": task.vocabulary, "length": task.length, "width": 8}
    model = ta.models.SequenceClassifier(**sizes, layers=LAYERS, classes=task.classes)
    batch = task.samples("train", 0, 4)
    learns(task, model, batch, batch.tokens, batch.key_mask)


def test_an_encoder_with_a_decoder_takes_its_batches() -> None:
    torch.manual_seed(0)
    task = task_named("reverse", length=8)
    sizes = {"vocabulary": task.vocabulary, "length": task.length, "width": 8}
    decoder = [{**LAYERS[0], "cross": {"design": "cross", "legs": {"h": 2}}}]
    model = ta.models.Seq2Seq(**sizes, encoder=LAYERS, decoder=decoder)
    batch = task.samples("train", 0, 4)
    learns(task, model, batch, batch.source, batch.tokens, batch.source_mask, batch.key_mask)
