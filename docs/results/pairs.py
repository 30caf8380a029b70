"""Pairs of texts in the form of GLUE's QNLI, out of Python's standard library; none of it is part of this repository.

python docs/results/pairs.py -o data/stdlib-pairs --most 2560     writes train.tsv and dev.tsv

The question is a function's name and arguments, the sentence the first one of a docstring: its own, which is labelled
entailment, or that of another function of the same module, not_entailment. One module in five is for dev.tsv, which has
half as many pairs.
"""

from __future__ import annotations

import argparse
import ast
import platform
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from texts import modules

from tensornet_attn.files import write_whole

HEADER = "index\tquestion\tsentence\tlabel\n"


def functions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name and arguments, first sentence of the docstring) of the functions of a module that have one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (told := ast.get_docstring(node)):
            sentence = " ".join(re.split(r"\.\s|\n\n", told, maxsplit=1)[0].split())
            names = [node.name.strip("_"), *(each.arg for each in node.args.args if each.arg not in {"self", "cls"})]
            if 4 <= len(sentence.split()) <= 40:
                yield " ".join(names).replace("_", " "), sentence


def pairs(source: str, drawn: random.Random) -> Iterator[tuple[str, str, str]]:
    """(question, sentence, label): each function of a module with its own sentence, then with that of another."""
    found = list(dict(functions(ast.parse(source))).items())
    for index, (question, sentence) in enumerate(found if len(found) > 1 else ()):
        other = found[(index + drawn.randrange(1, len(found))) % len(found)][1]
        yield question, sentence, "entailment"
        if other != sentence:
            yield question, other, "not_entailment"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("-o", "--output", required=True, type=Path, help="the folder to write")
    made.add_argument("--most", type=int, default=10_000, help="pairs of train.tsv at most")
    return made


def main() -> None:
    given = parser().parse_args()
    root = Path(sysconfig.get_path("stdlib"))
    drawn = random.Random(0)
    rows: dict[str, list[tuple[str, str, str]]] = {"train": [], "dev": []}
    for name in sorted(modules(root)):
        split = "dev" if sha256(name.encode()).digest()[0] % 5 == 0 else "train"
        data = (root / name).read_bytes()
        if data.isascii():
            rows[split].extend(pairs(data.decode(), drawn))
    given.output.mkdir(parents=True, exist_ok=True)
    rows = {"train": rows["train"][: given.most], "dev": rows["dev"][: given.most // 2]}
    for split, found in rows.items():
        lines = [
            f"{index}\t{question}\t{sentence}\t{label}\n" for index, (question, sentence, label) in enumerate(found)
        ]
        write_whole(given.output / f"{split}.tsv", "".join([HEADER, *lines]).encode())
    sizes = ", ".join(f"{len(found):,} pairs in {split}.tsv" for split, found in rows.items())
    print(f"{given.output}: {sizes}, of Python {platform.python_version()}", file=sys.stderr)


if __name__ == "__main__":
    main()
