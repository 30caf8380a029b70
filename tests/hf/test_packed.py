"""Sequences packed into one row by transformers: logits, loss and gradients are those of each by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

import tensornet_attn as ta
from tests.hf import tiny
from tests.models import tiny as plain

ROWS = [row[: 3 + place].tolist() for place, row in enumerate(plain.tokens(4, 7))]


def packed(flash: bool = False, rows: list[list[int]] = ROWS) -> dict[str, Any]:
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=flash, return_position_ids=not flash)
    return dict(collate([{"input_ids": row} for row in rows]))


def apart(model: Any, rows: list[list[int]] = ROWS) -> Tensor:
    return torch.cat([model(torch.tensor([row])).logits for row in rows], 1)


@pytest.mark.parametrize("design", ["mhsa", "linear", "fmm_fast_weight1", None])
@pytest.mark.parametrize("positions", ["learned", "sinusoid", "none"])
def test_logits_are_those_of_each_sequence(design: str | None, positions: str) -> None:
    """None: a masked language model."""
    model = tiny.of_design(design, positions=positions) if design else tiny.of_kind("masked_language_model")
    wanted = apart(model)
    for flash in (False, True):
        given = packed(flash)
        given.pop("labels")
        torch.testing.assert_close(model(**given).logits, wanted, rtol=1e-9, atol=1e-9)


def test_the_loss_and_its_gradients_are_those_of_all_sequences() -> None:
    model = tiny.of_kind("language_model").train()
    model(**packed()).loss.backward()
    found = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    count = sum(len(row) - 1 for row in ROWS)
    for row in ROWS:
        model(torch.tensor([row]), labels=torch.tensor([row]), num_items_in_batch=count).loss.backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(found[name], value.grad, rtol=1e-9, atol=1e-9)


def test_the_trainer_trains_without_padding(tmp_path: Path) -> None:
    model = tiny.of_kind("language_model")
    options = TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=4, use_cpu=True, report_to=[], save_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    rows: Any = [{"input_ids": row} for row in ROWS * 3]
    before = model(**packed()).loss.item()
    Trainer(model, options, train_dataset=rows, data_collator=DataCollatorWithFlattening()).train()
    assert model(**packed()).loss.item() < before


def test_one_graph_for_all_packed_batches() -> None:
    model = tiny.of_kind("language_model")
    torch._dynamo.reset()
    whole = torch.compile(model, dynamic=True, backend="eager")
    for place, rows in enumerate((ROWS, ROWS[1:], ROWS[:2], ROWS[::-1])):
        given = packed(True, rows) | {"max_length_q": 8, "max_length_k": 8}
        given.pop("labels")
        with torch.compiler.set_stance("default" if place < 2 else "fail_on_recompile"):
            torch.testing.assert_close(whole(**given, use_cache=False).logits, apart(model, rows), rtol=1e-9, atol=1e-9)


def test_what_is_refused() -> None:
    model = tiny.of_kind("language_model")
    twice = torch.tensor([[0, 1, 2, 0, 1]] * 2)
    with pytest.raises(ta.InputError, match="'position_ids' restart within a row of a batch, or after"):
        model(plain.tokens(2, 5), position_ids=twice)
    with pytest.raises(
        ta.InputError, match=r"packed sequences do not accept 'past_key_values': generate from a batch instead."
    ):
        model(plain.tokens(1, 5), cu_seq_lens_q=torch.tensor([0, 5]), past_key_values=model.new_cache())
    inner = model.model
    with pytest.raises(ta.InputError, match=r"a call with cu_seqlens takes no cache: leave out one of the two\."):
        inner(plain.tokens(1, 5), cu_seqlens=torch.tensor([0, 5]), cache=inner.new_cache())
    with pytest.raises(
        ta.InputError, match=r"the batch is \[2\] with cu_seqlens: give all sequences as one row, \[1, n\]"
    ):
        inner(plain.tokens(2, 5), cu_seqlens=torch.tensor([0, 5]))
