"""A made-up parallel corpus: word for word, the adjective behind its noun in the source and before it in the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np

NOUNS = {"hond": "dog", "kat": "cat", "boom": "tree", "huis": "house", "vogel": "bird", "steen": "stone"}
KINDS = {"oud": "old", "groot": "great", "klein": "small", "rood": "red"}
DEEDS = {"ziet": "sees", "hoort": "hears", "volgt": "follows", "vindt": "finds"}


def sentences(count: int, seed: int) -> tuple[list[str], list[str]]:
    """(source, target) sentences of 5 to 9 words."""
    chance, found = np.random.default_rng(seed), ([], [])
    for _ in range(count):
        sides: tuple[list[str], list[str]] = ([], [])
        for place in range(2 + int(chance.integers(2))):
            noun, kind, deed = (list(words)[chance.integers(len(words))] for words in (NOUNS, KINDS, DEEDS))
            sides[0].extend([deed] * (place > 0) + [noun, kind])
            sides[1].extend([DEEDS[deed]] * (place > 0) + [KINDS[kind], NOUNS[noun]])
        for side, words in zip(found, sides, strict=True):
            side.append(" ".join(words))
    return found


def corpus(folder: Path, train: int = 300, judged: int = 24) -> Path:
    """The six files of the task, from nl to en."""
    for seed, (name, count) in enumerate((("train", train), ("valid", judged), ("test", judged))):
        for ending, lines in zip(("nl", "en"), sentences(count, seed), strict=True):
            (folder / f"{name}.{ending}").write_text("".join(f"{line}\n" for line in lines))
    return folder
