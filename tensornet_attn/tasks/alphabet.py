"""Alphabets: conversion between tokens and words, characters or bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from tensornet_attn.errors import InputError, nearest


@dataclass(frozen=True)
class Alphabet:
    """Token i is `words[i]`; `joint` separates words in text, and is empty for characters.

    >>> letters = Alphabet(("a", "b", "c"))
    >>> letters.encode("c a"), letters.decode([0, 1])
    ([2, 0], 'a b')
    """

    words: tuple[str, ...]
    joint: str = " "

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def place(self) -> dict[str, int]:
        return {word: token for token, word in enumerate(self.words)}

    def encode(self, text: str) -> list[int]:
        """The tokens of a text. Raises InputError for a word that is not in the vocabulary."""
        words = text.split() if self.joint else text
        for word in words:
            if word not in self.place:
                raise InputError(f"'{word}' is not in the vocabulary: {nearest(word, self.words)}")
        return [self.place[word] for word in words]

    def decode(self, tokens: Iterable[int]) -> str:
        return self.joint.join(self.words[token] for token in tokens)


@dataclass(frozen=True)
class Bytes:
    """Token 0 is padding, byte b is token b + 1, and the last `marks` tokens are markers without text.

    >>> Bytes().encode("aé"), Bytes().decode([98, 196, 170, 0])
    ([98, 196, 170], 'aé')
    """

    marks: int = 0

    def __len__(self) -> int:
        return 257 + self.marks

    def encode(self, text: str) -> list[int]:
        return [byte + 1 for byte in text.encode()]

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(token - 1 for token in tokens if 0 < token <= 256).decode("utf-8", "replace")
