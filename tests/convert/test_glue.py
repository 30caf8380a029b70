"""docs/reproduce/glue.py: what it reads, and that a converted encoder learns from it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.convert.models import SIZES
from tests.scripts import script

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a dog runs sleeps yes no".split()
YES, NO = "a dog runs\ta dog runs yes", "a dog runs\ta dog sleeps no"


@pytest.fixture
def glue() -> ModuleType:
    return script("reproduce/glue")


def written(path: Path, header: str, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in [header, *lines]), encoding="utf-8")
    return path


def test_lines_without_a_label_are_left_out_and_quotes_are_text(glue: ModuleType, tmp_path: Path) -> None:
    mnli = written(
        tmp_path / "train.tsv",
        "index\tsentence1\tsentence2\tgold_label",
        ['0\t"a dog\truns\tentailment', "1\ta\tb\t-", "2\tc\td\tcontradiction"],
    )
    assert glue.rows(mnli, "mnli") == [('"a dog', "runs", 1), ("c", "d", 0)]
    qnli = written(tmp_path / "dev.tsv", "index\tquestion\tsentence\tlabel", ["0\twho\tyou\tnot_entailment"])
    assert glue.rows(qnli, "qnli") == [("who", "you", 1)]


@pytest.mark.parametrize("design", ["none", "thsa"])
def test_an_encoder_learns(
    glue: ModuleType, design: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers.models.bert import BertConfig, BertModel, BertTokenizerFast

    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    BertModel(BertConfig(**SIZES)).save_pretrained(tmp_path)
    header = "index\tquestion\tsentence\tlabel"
    for name, count in (("train.tsv", 64), ("dev.tsv", 8)):
        lines = [
            f"{place}\t{NO if place % 2 else YES}\t{'not_' * (place % 2)}entailment" for place in range(count)
        ]  # fmt: skip
        written(tmp_path / name, header, lines)
    words = ["qnli", "--data", str(tmp_path), "--model", str(tmp_path), "--design", design]
    monkeypatch.setattr(sys, "argv", ["glue.py", *words, "--epochs", "12", "--batch", "16", "--lr", "0.003"])
    glue.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(design)]
    assert len(lines) == 12
    assert lines[-1] == f"{design} on qnli, epoch 12: accuracy 1.0000"
