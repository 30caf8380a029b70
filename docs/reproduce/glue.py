"""Fine-tunes a Hugging Face encoder on MNLI or QNLI, its attention converted to a design before.

python docs/reproduce/glue.py mnli --data data/MNLI --model bert-large-uncased --design thsa

Tuformer, table 1: batches of 32, 10 epochs, a learning rate of 1e-5. --data is the folder of GLUE's train.tsv and of
dev_matched.tsv or dev.tsv; --model a name or folder that transformers loads; --design none trains the attention as it
is. Prints the accuracy on the dev file after each epoch, and then the effective heads of the cores, layer by layer.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import tensornet_attn as ta
from tensornet_attn.nn.module import CompiledDesign

TASKS = {  # the dev file, and the columns of the two texts and the label
    "mnli": ("dev_matched.tsv", ("sentence1", "sentence2", "gold_label")),
    "qnli": ("dev.tsv", ("question", "sentence", "label")),
}
LABELS = {"mnli": ("contradiction", "entailment", "neutral"), "qnli": ("entailment", "not_entailment")}
Row = tuple[str, str, int]


def rows(path: Path, task: str) -> list[Row]:
    """(text, text, class) of each line that has a label."""
    _, columns = TASKS[task]
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        found = [tuple(line[name] for name in columns) for line in table]
    return [(one, two, LABELS[task].index(label)) for one, two, label in found if label in LABELS[task]]


def batches(rows: list[Row], tokenizer: Any, size: int, device: str) -> Iterator[tuple[Any, torch.Tensor]]:
    for start in range(0, len(rows), size):
        ones, twos, classes = zip(*rows[start : start + size], strict=True)
        tokens = tokenizer(list(ones), list(twos), truncation=True, max_length=128, padding=True, return_tensors="pt")
        yield tokens.to(device), torch.tensor(classes, device=device)


def accuracy(model: Any, rows: list[Row], tokenizer: Any, size: int, device: str) -> float:
    model.eval()
    right = 0
    with torch.no_grad():
        for tokens, classes in batches(rows, tokenizer, size, device):
            right += int((model(**tokens).logits.argmax(1) == classes).sum())
    return right / len(rows)


def main() -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    given = parser().parse_args()
    random.seed(given.seed)
    torch.manual_seed(given.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, dev = (rows(given.data / name, given.task) for name in ("train.tsv", TASKS[given.task][0]))
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    model = AutoModelForSequenceClassification.from_pretrained(given.model, num_labels=len(LABELS[given.task]))
    if given.design != "none":
        ta.convert_model(model, given.design)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr)
    for epoch in range(1, given.epochs + 1):
        random.shuffle(train)
        model.train()
        for tokens, classes in batches(train, tokenizer, given.batch, device):
            optimizer.zero_grad()
            cross_entropy(model(**tokens).logits, classes).backward()
            optimizer.step()
        scored = accuracy(model, dev, tokenizer, given.batch, device)
        print(f"{given.design} on {given.task}, epoch {epoch}: accuracy {scored:.4f}", flush=True)
    cores = [part for part in model.modules() if isinstance(part, CompiledDesign)]
    if cores:
        print("effective heads:", ", ".join(f"{ta.effective_heads(core):.2f}" for core in cores))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("task", choices=TASKS)
    made.add_argument("--data", type=Path, required=True, help="the folder of GLUE's files")
    made.add_argument("--model", required=True, help="a name or folder that transformers loads")
    made.add_argument("--design", default="thsa", help="a design that contains mhsa, or none")
    made.add_argument("--epochs", type=int, default=10)
    made.add_argument("--batch", type=int, default=32)
    made.add_argument("--lr", type=float, default=1e-5)
    made.add_argument("--seed", type=int, default=0)
    return made


if __name__ == "__main__":
    main()
