"""wikitext: the next word of a local folder with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens.

Words stand between blanks, `<eos>` at the end of each line; the vocabulary is sorted by count, then by the word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import Field

from tensornet_attn.errors import InputError
from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.cache import Arrays, Cache
from tensornet_attn.tasks.reading import fingerprint, read_text
from tensornet_attn.tasks.recipe import Recipe, Source
from tensornet_attn.tasks.splits import SPLITS
from tensornet_attn.tasks.windows import Windowed, windowed

EOS, UNKNOWN = "<eos>", "<unk>"
FILES = {"train": "wiki.train.tokens", "validation": "wiki.valid.tokens", "test": "wiki.test.tokens"}


class Options(Windowed):
    length: int = Field(256, ge=1, le=2**20, description="words of a window")
    path: str = Field(description="the folder of wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens")
    vocabulary: int | None = Field(None, ge=2, description="words; the rarer ones are <unk>; none for all words")


def _open(options: Options, cache: Cache) -> Source:
    texts = {split: read_text(Path(options.path) / name) for split, name in FILES.items()}
    key = {"task": "wikitext", "version": 1, "vocabulary": options.vocabulary, "files": fingerprint(texts.values())}
    arrays = cache.keep(key, lambda: _arrays(texts, options.vocabulary))
    words = arrays["words"].astype(np.uint8).tobytes().decode().split("\n")
    tokens = {split: arrays[split] for split in SPLITS}
    return windowed("wikitext", tokens, Alphabet(tuple(words)), options, "perplexity")


def _arrays(texts: dict[str, str], most: int | None) -> Arrays:
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


RECIPE = Recipe(
    "wikitext",
    1,
    "The next word of WikiText, from a local folder.",
    Options,
    _open,
    drawn=False,
    costly=True,
    files=f"path is the folder of {', '.join(FILES.values())}: word-level WikiText-2 or WikiText-103, unpacked.",
)
