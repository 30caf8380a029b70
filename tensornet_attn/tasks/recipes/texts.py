"""The next character, byte or word of a running text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet, Bytes
from tensornet_attn.tasks.cache import Arrays, Cache
from tensornet_attn.tasks.chance import Stream
from tensornet_attn.tasks.reading import fingerprint, read_bytes, read_text
from tensornet_attn.tasks.recipe import Recipe, Source
from tensornet_attn.tasks.splits import SPLITS
from tensornet_attn.tasks.windows import Windowed, separated, windowed

_THINGS = "cat dog bird horse king queen child farmer sailor teacher river stone tree house".split()
_KINDS = "old young small great quiet bright cold green happy strange".split()
_DEEDS = "see hear follow find remember paint leave greet know lift".split()
_PLACES = "in the garden,by the sea,on the hill,near the town,under the bridge,behind the wall".split(",")
_JOINTS = (". ", ". ", "; then ", ", and ", ".\n")
SENTENCES = 6000


def made_up() -> str:
    """A text of simple sentences, the same on every machine, for a first run without a file.

    About a quarter of a million characters; a verb agrees with its subject, some words before it.
    """
    bits = Stream("sentences", 1, "train", 0).at(range(SENTENCES)).below(0, 8, 2**20).tolist()
    return "".join(_sentence(*row) for row in bits)


def _sentence(many: int, kind: int, thing: int, place: int, deed: int, other: int, others: int, joint: int) -> str:
    subject = f"the {_pick(_KINDS, kind)} {_pick(_THINGS, thing)}{'s' * (many % 2)}"
    verb = f"{_pick(_DEEDS, deed)}{'s' * (1 - many % 2)}"
    spot = f" {_pick(_PLACES, place)}" if place % 3 else ""
    return f"{subject}{spot} {verb} the {_pick(_THINGS, other)}{'s' * (others % 2)}{_pick(_JOINTS, joint)}"


def _pick(words: Sequence[str], bits: int) -> str:
    return words[(bits >> 4) % len(words)]


class CharLm(Windowed):
    path: str | None = Field(None, description="a text file; none for a made-up text of simple sentences")
    vocabulary: int | None = Field(None, ge=1, description="most different characters; none for as many as there are")


def _open_char_lm(options: CharLm, cache: Cache) -> Source:
    """char_lm: the next character of any UTF-8 text; 90 % to train on, then 5 % each for validation and test."""
    text = made_up() if options.path is None else read_text(Path(options.path))
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    letters, tokens = np.unique(points, return_inverse=True)
    if options.vocabulary is not None and len(letters) > options.vocabulary:
        raise InputError(
            f"task 'char_lm': the text has {len(letters):,} different characters; a vocabulary of "
            f"{options.vocabulary:,} is too small."
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
    files="path is any file of UTF-8 text; without it a text is made up.",
)


class ByteLm(Windowed):
    path: str = Field(description="any file, such as enwik8")


def _open_byte_lm(options: ByteLm, cache: Cache) -> Source:
    """byte_lm: the next byte of any file, in the order that it has; 90, 5 and 5 % of it.

    On enwik8, whose first 100,000,000 bytes the papers split at 90 and 95 million, these are their splits, and the bits
    per character are theirs: of bytes.
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
    files="path is any file: enwik8, unpacked, for the bits per character of the papers.",
)


EOS, UNKNOWN = "<eos>", "<unk>"
FILES = {"train": "wiki.train.tokens", "validation": "wiki.valid.tokens", "test": "wiki.test.tokens"}


class Wikitext(Windowed):
    length: int = Field(256, ge=1, le=2**20, description="words of a window")
    path: str = Field(description="the folder of wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens")
    vocabulary: int | None = Field(None, ge=2, description="words; the rarer ones are <unk>; none for all words")


def _open_wikitext(options: Wikitext, cache: Cache) -> Source:
    """wikitext: the next word of a local folder with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens.

    Words stand between blanks, `<eos>` at the end of each line; the vocabulary is sorted by count, then by the word.
    """
    texts = {split: read_text(Path(options.path) / name) for split, name in FILES.items()}
    key = {"task": "wikitext", "version": 1, "vocabulary": options.vocabulary, "files": fingerprint(texts.values())}
    arrays = cache.keep(key, lambda: _wikitext_arrays(texts, options.vocabulary))
    words = arrays["words"].astype(np.uint8).tobytes().decode().split("\n")
    tokens = {split: arrays[split] for split in SPLITS}
    return windowed("wikitext", tokens, Alphabet(tuple(words)), options, "perplexity")


def _wikitext_arrays(texts: dict[str, str], most: int | None) -> Arrays:
    """The tokens of each split, and the words as bytes, one a line."""
    counts = Counter(_words(texts["train"]))
    for split in SPLITS[1:]:
        counts.update(dict.fromkeys(set(_words(texts[split])) - set(counts), 0))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    kept = ranked if most is None else ranked[:most]
    if len(kept) < len(ranked) and UNKNOWN not in kept:
        kept = [*kept[:-1], UNKNOWN]
    place = {word: token for token, word in enumerate(kept)}
    other = place.get(UNKNOWN, 0)
    tokens = {
        split: np.fromiter((place.get(word, other) for word in _words(text)), np.int32) for split, text in texts.items()
    }
    return tokens | {"words": np.frombuffer("\n".join(kept).encode(), np.uint8)}


def _words(text: str) -> Iterator[str]:
    if not text.strip():
        raise InputError("task 'wikitext': one of the files is empty; each holds text.")
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
