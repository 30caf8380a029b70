"""Parallel text: the sentences that translations are compared with, and how a decoder's tokens become a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Parallel:
    """What a translation is judged by.

    `references`: for each split the target sentences as they stand in the files, by the number of the sample. `text`
    makes a sentence of tokens. `edge`: the token that a decoder begins with and ends with.
    """

    references: Mapping[str, Sequence[str]]
    text: Callable[[Sequence[int]], str]
    edge: int


def without_pieces(sentence: str, mark: str) -> str:
    """A sentence whose words are whole again: `mark` ends a piece of a word that goes on with the next one.

    >>> without_pieces("the low@@ est num@@ ber", "@@"), without_pieces("as it is", "")
    ('the lowest number', 'as it is')
    """
    return f"{sentence} ".replace(f"{mark} ", "").strip() if mark else sentence
