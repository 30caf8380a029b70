"""Losses, the Trainer and the pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline

import tensornet_attn as ta
from tests.hf import tiny
from tests.hf.test_auto import AUTO
from tests.models import tiny as plain

PADDED = -100  # a label that no loss counts


def labels_of(kind: str) -> torch.Tensor:
    if kind == "sequence_classifier":
        return torch.tensor([0, 2, 1])
    labels = tiny.batch()["input_ids"] if kind == "language_model" else plain.tokens(3, 6, seed=4)
    return labels.masked_fill(tiny.batch()["attention_mask"] == 0, PADDED)


@pytest.mark.parametrize("kind", AUTO)
def test_the_loss_is_the_mean_over_labels(kind: str) -> None:
    model, inputs, labels = tiny.of_kind(kind), tiny.batch(), labels_of(kind)
    found = model(**inputs, labels=labels)
    logits, wanted = found.logits, labels
    if kind == "language_model":
        logits, wanted = logits[:, :-1], labels[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, -2), wanted.flatten(), ignore_index=PADDED)
    torch.testing.assert_close(found.loss, loss, rtol=1e-10, atol=1e-10)
    loss.backward()
    want = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    model(**inputs, labels=labels).loss.backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.grad, want[name], rtol=1e-10, atol=1e-10)
    if kind != "sequence_classifier":
        count = 2 * int((wanted != PADDED).sum())
        half = model(**inputs, labels=labels, num_items_in_batch=count).loss
        torch.testing.assert_close(half, loss.detach() / 2, rtol=1e-10, atol=1e-10)


def test_the_start_of_a_target_is_made_of_its_labels() -> None:
    model, inputs = tiny.of_kind("seq2seq"), tiny.batch()
    labels = torch.tensor([[4, 5, PADDED], [6, PADDED, PADDED], [7, 8, 9]])
    given = torch.tensor([[1, 4, 5], [1, 6, 0], [1, 7, 8]])
    one, two = model(**inputs, labels=labels), model(**inputs, decoder_input_ids=given, labels=labels)
    assert torch.equal(one.logits, two.logits)


def test_losses_of_designs_count_in_training() -> None:
    model = tiny.of_design("mhsa", mlp="sigma_moe_regularised", mlp_legs={"e": 4, "l": 4})
    tokens = tiny.batch()["input_ids"]
    plain_loss = model(tokens, labels=tokens).loss
    model.train()
    losses = model.model(tokens, losses=True)[1]
    weighted = sum(model.config.spec.loss_weights[name] * value for name, value in losses.items())
    assert set(losses) == {"layers.0.mlp.entropy", "layers.1.mlp.entropy"}
    torch.testing.assert_close(model(tokens, labels=tokens).loss, plain_loss + weighted, rtol=1e-10, atol=1e-10)


class Rows(Dataset):
    """The same rows, all over again."""

    def __init__(self, kind: str):
        inputs, labels = tiny.batch(), labels_of(kind)
        self.rows = [
            {**{name: value[row] for name, value in inputs.items()}, "labels": labels[row]}
            for row in range(len(labels))
        ]

    def __len__(self) -> int:
        return len(self.rows) * 4

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return self.rows[place % len(self.rows)]


@pytest.mark.parametrize("kind", AUTO)
def test_the_trainer_trains(kind: str, tmp_path: Path) -> None:
    model = tiny.of_kind(kind)
    arguments = TrainingArguments(
        str(tmp_path), max_steps=12, per_device_train_batch_size=3, gradient_accumulation_steps=2, learning_rate=3e-3,
        use_cpu=True, report_to=[], logging_steps=3, save_strategy="no", disable_tqdm=True, seed=1,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=Rows(kind), eval_dataset=Rows(kind))
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before - 0.3
    trainer.save_model(str(tmp_path))
    again = AUTO[kind].from_pretrained(tmp_path)
    assert torch.equal(
        again(**tiny.batch(), labels=labels_of(kind)).loss, model(**tiny.batch(), labels=labels_of(kind)).loss
    )


def test_the_pipeline_writes_on(tmp_path: Path) -> None:
    words = {"<pad>": 0, "<end>": 1, **{word: place + 2 for place, word in enumerate("a b c d e f g h i".split())}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", unk_token="<end>", padding_side="left"
    )
    model = tiny.of_kind("language_model", eos_token_id=1)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    write = pipeline("text-generation", str(tmp_path), device="cpu")
    texts = ["a b c d", "e f"]
    found = write(texts, max_new_tokens=6, do_sample=False, batch_size=2, return_full_text=False)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    wanted = model.generate(
        inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=6, use_cache=False
    )
    assert [one[0]["generated_text"] for one in found] == tokenizer.batch_decode(
        wanted[:, 4:], skip_special_tokens=True
    )
    assert isinstance(write.model, ta.hf.TensornetForCausalLM)
