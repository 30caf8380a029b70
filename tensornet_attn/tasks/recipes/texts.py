"""Language modelling of texts by character, byte or word, in random, adjacent or sliding windows, or in streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet, Bytes
from tensornet_attn.tasks.chance import SPLITS, Integers, RandomStream, Rows
from tensornet_attn.tasks.reading import Arrays, Cache, fingerprint, read_bytes, read_text
from tensornet_attn.tasks.recipe import Measure, Options, Recipe, Source

Text = npt.NDArray[np.integer]
EOS, UNKNOWN = "<eos>", "<unk>"
FILES = {"train": "wiki.train.tokens", "validation": "wiki.valid.tokens", "test": "wiki.test.tokens"}
_THINGS = "cat dog bird horse king queen child farmer sailor teacher river stone tree house".split()
_KINDS = "old young small great quiet bright cold green happy strange".split()
_DEEDS = "see hear follow find remember paint leave greet know lift".split()
_PLACES = "in the garden,by the sea,on the hill,near the town,under the bridge,behind the wall".split(",")
_JOINTS = (". ", ". ", "; then ", ", and ", ".\n")
SENTENCES = 6000


class Windowed(Options):
    """Options of all language-model tasks on text. Each token of validation and test is scored once.

    With `streams`, sample i continues sample i - streams, for models with a memory; the batch size is then `streams`.
    """

    length: int = Field(128, ge=1, le=2**20, description="tokens of a window")
    streams: int = Field(0, ge=0, description="number of parallel streams of the text; 0 trains on random windows")


@dataclass(frozen=True)
class Lanes:
    """A text split into equal lanes, one per stream, and each lane into windows."""

    tokens: int
    length: int
    streams: int

    @property
    def lane(self) -> int:
        """Positions of one lane; the last token of the text is only a target."""
        return -(-(self.tokens - 1) // self.streams)

    @property
    def windows(self) -> int:
        return self.streams * -(-self.lane // self.length)

    def spans(self, index: Integers) -> tuple[Integers, Integers]:
        """The first position of each window and the position after its last; equal for an empty window."""
        lane, window = index % self.streams, index // self.streams
        start = lane * self.lane + window * self.length
        end = np.minimum(np.minimum(start + self.length, (lane + 1) * self.lane), self.tokens - 1)
        return start, np.maximum(start, end)


@dataclass(frozen=True)
class Sliding:
    """Windows of `context` tokens that advance by `stride` and score their last `stride` positions.

    The first window scores all its positions, and the last window ends with the text and scores the rest. Every token
    but the first is scored once, with at least context - stride + 1 tokens before it, if the text has them.
    """

    tokens: int
    context: int
    stride: int

    @property
    def width(self) -> int:
        """Positions of a window; the last token of the text is only a target."""
        return min(self.context, self.tokens - 1)

    @property
    def windows(self) -> int:
        return 1 + -(-(self.tokens - 1 - self.width) // self.stride)

    def rows(self, text: Text, index: Integers) -> Rows:
        """The windows of the numbers `index`.

        >>> rows = Sliding(tokens=8, context=3, stride=2).rows(np.arange(8), np.arange(3))
        >>> rows["tokens"].tolist(), rows["targets"].tolist()
        ([[0, 1, 2], [2, 3, 4], [4, 5, 6]], [[1, 2, 3], [-100, 4, 5], [-100, 6, 7]])
        """
        end = np.minimum(self.width + index * self.stride, self.tokens - 1)
        done = np.where(index == 0, 0, self.width + (index - 1) * self.stride)  # earlier windows score these
        position = (end - self.width)[:, None] + np.arange(self.width)
        targets = np.where(position >= done[:, None], text[position + 1].astype(np.int64), -100)
        return {"tokens": text[position], "targets": targets}


def windowed(
    task: str, texts: Mapping[str, Text], alphabet: Alphabet | Bytes, options: Windowed, measure: Measure
) -> Source:
    """The source of a text in three splits. Raises InputError for a split that is too short."""
    for split in SPLITS:
        need = options.length + 1 if split == "train" else 2
        if len(texts[split]) < need:
            raise InputError(
                f"task '{task}': split '{split}' has {len(texts[split])} tokens; windows of {options.length} need at "
                f"least {need}: give a longer text or reduce 'length'."
            )
    lanes = {split: Lanes(len(text), options.length, max(1, options.streams)) for split, text in texts.items()}

    def rows(stream: RandomStream, index: Integers) -> Rows:
        text, lane = texts[stream.split], lanes[stream.split]
        if stream.split == "train" and not options.streams:
            start = stream.at(index).below(0, 1, len(text) - options.length)[:, 0]
            return cut(text, start, start + options.length, options.length)
        return cut(text, *lane.spans(index % lane.windows), options.length)

    sizes = {split: None if split == "train" else lanes[split].windows for split in SPLITS}
    return Source("language_model", alphabet, options.length, sizes, rows, measure=measure, texts=texts)


def separated(text: Text) -> dict[str, Text]:
    """Splits a text: 90 % for training, then 5 % each for validation and test."""
    validation, test = len(text) * 90 // 100, len(text) * 95 // 100
    return {"train": text[:validation], "validation": text[validation:test], "test": text[test:]}


def cut(text: Text, start: Integers, end: Integers, length: int) -> Rows:
    """Windows of a text, with the next tokens as targets.

    >>> rows = cut(np.arange(10), np.array([2, 7]), np.array([5, 9]), 3)
    >>> rows["tokens"].tolist(), rows["targets"].tolist()
    ([[2, 3, 4], [7, 8, 0]], [[3, 4, 5], [8, 9, -100]])
    """
    position = start[:, None] + np.arange(length)
    inside = position < end[:, None]
    position = np.minimum(position, len(text) - 2)
    targets = np.where(inside, text[position + 1].astype(np.int64), -100)
    return {"tokens": np.where(inside, text[position], 0), "targets": targets}


def made_up() -> str:
    """A generated text of simple sentences, about 250,000 characters, for a first run without a file.

    Verbs agree with their subjects a few words before. The text is the same on every machine.
    """
    bits = RandomStream("sentences", 1, "train", 0).at(range(SENTENCES)).below(0, 8, 2**20).tolist()
    return "".join(_sentence(*row) for row in bits)


def _sentence(
    plural: int, adjective: int, noun: int, location: int, deed: int, object_noun: int, object_plural: int, joint: int
) -> str:
    subject = f"the {_pick(_KINDS, adjective)} {_pick(_THINGS, noun)}{'s' * (plural % 2)}"
    verb = f"{_pick(_DEEDS, deed)}{'s' * (1 - plural % 2)}"
    spot = f" {_pick(_PLACES, location)}" if location % 3 else ""
    return f"{subject}{spot} {verb} the {_pick(_THINGS, object_noun)}{'s' * (object_plural % 2)}{_pick(_JOINTS, joint)}"


def _pick(words: Sequence[str], bits: int) -> str:
    return words[(bits >> 4) % len(words)]


class CharLm(Windowed):
    path: str | None = Field(None, description="a text file; none for a generated text of simple sentences")
    vocabulary: int | None = Field(None, ge=1, description="maximum number of characters; none for no maximum")


def _open_char_lm(options: CharLm, cache: Cache) -> Source:
    """char_lm: the next character of any UTF-8 text; 90 % for training, then 5 % each for validation and test."""
    text = made_up() if options.path is None else read_text(Path(options.path))
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    letters, tokens = np.unique(points, return_inverse=True)
    if options.vocabulary is not None and len(letters) > options.vocabulary:
        raise InputError(
            f"task 'char_lm': the text has {len(letters):,} different characters; a vocabulary of "
            f"{options.vocabulary:,} is too small: raise 'vocabulary'."
        )
    return windowed(
        "char_lm", separated(tokens), Alphabet(tuple(map(chr, letters.tolist())), ""), options, "bits_per_character"
    )


CHAR_LM = Recipe(
    "char_lm",
    1,
    "The next character of any text file.",
    CharLm,
    _open_char_lm,
    drawn=False,
    files="path is any file of UTF-8 text; without path, the task generates a text.",
)


class ByteLm(Windowed):
    path: str = Field(description="any file, e.g. enwik8")


def _open_byte_lm(options: ByteLm, cache: Cache) -> Source:
    """byte_lm: the next byte of any file, split in order into 90, 5 and 5 %.

    On enwik8, these are the splits of the papers, at 90 and 95 million of 100,000,000 bytes, and bits per character are
    bits per byte, as in the papers.
    """
    tokens = np.frombuffer(read_bytes(Path(options.path)), np.uint8).astype(np.uint16) + np.uint16(1)
    return windowed("byte_lm", separated(tokens), Bytes(), options, "bits_per_character")


BYTE_LM = Recipe(
    "byte_lm",
    1,
    "The next byte of any file.",
    ByteLm,
    _open_byte_lm,
    drawn=False,
    files="path is any file; for the bits per character of the papers, it is enwik8, unpacked.",
)


class Wikitext(Windowed):
    length: int = Field(256, ge=1, le=2**20, description="words of a window")
    path: str = Field(description="the folder of wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens")
    vocabulary: int | None = Field(
        None, ge=2, description="number of words; rarer words become <unk>; none for all words"
    )


def _open_wikitext(options: Wikitext, cache: Cache) -> Source:
    """wikitext: the next word of wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens in a local folder.

    Words are separated by blanks, and `<eos>` ends each line. The vocabulary is sorted by count, then by word.
    """
    texts = {split: read_text(Path(options.path) / name) for split, name in FILES.items()}
    key = {"task": "wikitext", "version": 1, "vocabulary": options.vocabulary, "files": fingerprint(texts.values())}
    arrays = cache.keep(key, lambda: _wikitext_arrays(texts, options.vocabulary))
    words = arrays["words"].astype(np.uint8).tobytes().decode().split("\n")
    tokens = {split: arrays[split] for split in SPLITS}
    return windowed("wikitext", tokens, Alphabet(tuple(words)), options, "perplexity")


def _wikitext_arrays(texts: dict[str, str], limit: int | None) -> Arrays:
    """The tokens of each split, and the words as bytes, one per line."""
    counts = Counter(_words(texts["train"]))
    for split in SPLITS[1:]:
        counts.update(dict.fromkeys(set(_words(texts[split])) - set(counts), 0))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    words = ranked if limit is None else ranked[:limit]
    if len(words) < len(ranked) and UNKNOWN not in words:
        words = [*words[:-1], UNKNOWN]
    token_of = {word: token for token, word in enumerate(words)}
    unknown = token_of.get(UNKNOWN, 0)
    tokens = {
        split: np.fromiter((token_of.get(word, unknown) for word in _words(text)), np.int32)
        for split, text in texts.items()
    }
    return tokens | {"words": np.frombuffer("\n".join(words).encode(), np.uint8)}


def _words(text: str) -> Iterator[str]:
    if not text.strip():
        raise InputError("task 'wikitext': one of the files is empty; give each file text.")
    for line in text.removesuffix("\n").split("\n"):
        yield from line.split()
        yield EOS


WIKITEXT = Recipe(
    "wikitext",
    1,
    "The next word of WikiText, from a local folder.",
    Wikitext,
    _open_wikitext,
    drawn=False,
    costly=True,
    files=f"path is the folder of {', '.join(FILES.values())}: word-level WikiText-2 or WikiText-103, unpacked.",
)
