"""translation: the encoder reads a sentence, and the decoder translates it; parallel text in local files.

The folder has train.SOURCE and train.TARGET, valid.SOURCE and so on, with one sentence per line; line i of one file is
the translation of line i of the other. IWSLT'14 and WMT have this form, unpacked or prepared by fairseq's scripts.
Tokens are separated by blanks (words, or subwords in files that are split into subwords), or are characters. Both
languages share the vocabulary of the training files, sorted by count, then by word.

Training pairs with an empty or too long side are skipped, as in fairseq; sentences of the other splits are truncated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.chance import SPLITS, Integers, RandomStream, Rows
from tensornet_attn.tasks.reading import Arrays, Cache, fingerprint, read_text
from tensornet_attn.tasks.recipe import Options as Base
from tensornet_attn.tasks.recipe import Parallel, Recipe, Source

FILES = {"train": "train", "validation": "valid", "test": "test"}
PADDING, EDGE, UNKNOWN = 0, 1, 2  # the edge starts and ends a target
MARKS = ("<padding>", "<edge>", "<unk>")
SIDES = ("source", "target")
Sentences = dict[str, dict[str, list[str]]]  # split -> side -> sentences


class Options(Base):
    path: str = Field(description="the folder of train.SOURCE, train.TARGET, valid.SOURCE and so on")
    source: str = Field("de", min_length=1, description="the ending of the names of source files")
    target: str = Field("en", min_length=1, description="the ending of the names of target files")
    unit: Literal["word", "character"] = Field("word", description="a token: text between blanks, or a character")
    pieces: str = Field("", description="the suffix of subwords inside a word, e.g. @@; BLEU joins them to words")
    vocabulary: int | None = Field(
        32_000, ge=4, description="maximum number of tokens of both languages; rarer tokens become <unk>"
    )
    length: int = Field(128, ge=2, le=2**16, description="maximum tokens of a sentence, with the edge")


def _open(options: Options, cache: Cache) -> Source:
    sentences = {split: _pairs(options, name) for split, name in FILES.items()}
    facts = fingerprint(chain.from_iterable(chain.from_iterable(sides.values()) for sides in sentences.values()))
    settings = {name: getattr(options, name) for name in ("unit", "vocabulary", "length")}
    key = {"task": "translation", "version": 1, "files": facts, **settings}
    arrays = cache.keep(key, lambda: _arrays(sentences, options))
    words = tuple(arrays["words"].astype(np.uint8).tobytes().decode().split("\n"))
    alphabet = Alphabet(words, "" if options.unit == "character" else " ")
    sizes: dict[str, int | None] = {split: len(arrays[f"{split}_source_ends"]) for split in SPLITS}

    def rows(stream: RandomStream, index: Integers) -> Rows:
        source, target = (_padded(arrays, f"{stream.split}_{side}", index, options.length) for side in SIDES)
        begun = np.concatenate([np.full((len(target), 1), EDGE), target[:, :-1]], 1)
        tokens = np.where(target == PADDING, PADDING, begun)
        return {"tokens": tokens, "targets": np.where(target == PADDING, -100, target), "source": source}

    def text(tokens: Sequence[int]) -> str:
        return without_pieces(
            alphabet.decode(token for token in tokens if token not in (PADDING, EDGE)), options.pieces
        )

    judged = {
        split: [without_pieces(line, options.pieces) for line in sentences[split]["target"]] for split in SPLITS[1:]
    }
    return Source(
        "sequence_to_sequence",
        alphabet,
        options.length,
        sizes,
        rows,
        padding=PADDING,
        measure="bits_per_character" if options.unit == "character" else "perplexity",
        parallel=Parallel(judged, text, EDGE),
    )


def without_pieces(sentence: str, mark: str) -> str:
    """A sentence with subwords joined to words; `mark` ends every subword of a word but the last.

    >>> without_pieces("the low@@ est num@@ ber", "@@"), without_pieces("as it is", "")
    ('the lowest number', 'as it is')
    """
    return f"{sentence} ".replace(f"{mark} ", "").strip() if mark else sentence


def _pairs(options: Options, name: str) -> dict[str, list[str]]:
    """The sentences of both sides of a split. Raises InputError if their numbers differ."""
    paths = {side: Path(options.path) / f"{name}.{getattr(options, side)}" for side in SIDES}
    lines = {side: read_text(path).removesuffix("\n").split("\n") for side, path in paths.items()}
    if len(lines["source"]) != len(lines["target"]):
        raise InputError(
            f"'{paths['source']}' has {len(lines['source']):,} lines and '{paths['target']}' {len(lines['target']):,}; "
            "line i of one must be the translation of line i of the other."
        )
    return lines


def _arrays(sentences: Sentences, options: Options) -> Arrays:
    """The tokens of each split and side, the ends of their sentences, and the words as bytes, one per line."""
    cut = (lambda line: list(line.strip())) if options.unit == "character" else str.split
    pieces = {
        split: {side: list(map(cut, lines)) for side, lines in sides.items()} for split, sides in sentences.items()
    }
    counts = Counter(chain.from_iterable(chain(*pieces["train"].values())))
    ranked = sorted(counts.keys() - set(MARKS), key=lambda word: (-counts[word], word))
    limit = None if options.vocabulary is None else options.vocabulary - len(MARKS)
    words = [*MARKS, *ranked[:limit]]
    token_of = {word: token for token, word in enumerate(words)} | dict.fromkeys(MARKS, UNKNOWN)
    arrays: Arrays = {"words": np.frombuffer("\n".join(words).encode(), np.uint8)}
    for split, sides in pieces.items():
        kept = _kept(split, sides, options.length)
        for side, edge in zip(SIDES, ([], [EDGE]), strict=True):
            lines = [
                ([token_of.get(word, UNKNOWN) for word in sides[side][at]] + edge)[: options.length] for at in kept
            ]
            arrays[f"{split}_{side}"] = np.fromiter(chain.from_iterable(lines), np.int32)
            arrays[f"{split}_{side}_ends"] = np.cumsum([len(line) for line in lines], dtype=np.int64)
    return arrays


def _kept(split: str, sides: Mapping[str, list[list[str]]], length: int) -> list[int]:
    """The indices of sentences to use. Raises InputError if there are none, or for an empty validation or test line."""
    sizes = [(len(source), len(target)) for source, target in zip(sides["source"], sides["target"], strict=True)]
    if split == "train":
        kept = [line for line, (source, target) in enumerate(sizes) if 0 < source <= length and 0 < target < length]
        if not kept:
            raise InputError(
                f"task 'translation': no training sentence has fewer than {length} tokens; raise 'length'."
            )
        return kept
    for line, pair in enumerate(sizes):
        if 0 in pair:
            raise InputError(
                f"task 'translation': line {line + 1} of split '{split}' is empty on one side; remove it from both."
            )
    return list(range(len(sizes)))


def _padded(arrays: Arrays, name: str, index: Integers, length: int) -> npt.NDArray[np.int64]:
    """The sentences of the numbers `index`, padded: [b, length]."""
    tokens, ends = arrays[name], arrays[f"{name}_ends"]
    start = np.where(index == 0, 0, ends[index - 1])
    position = start[:, None] + np.arange(length)
    inside = position < ends[index][:, None]
    return np.where(inside, tokens[np.minimum(position, len(tokens) - 1)], PADDING).astype(np.int64)


TRANSLATION = Recipe(
    "translation",
    1,
    "A sentence for an encoder: the decoder translates it; parallel text in local files.",
    Options,
    _open,
    drawn=False,
    costly=True,
    files="path is the folder of train.de, train.en, valid.de, valid.en, test.de and test.en, one sentence per line: "
    "IWSLT'14 or WMT as plain text; source= and target= are the endings.",
)
