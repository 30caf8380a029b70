"""Listops: the values of the lists, and the arena's law of listops."""

from __future__ import annotations

import random
import statistics

import numpy as np

from tensornet_attn.tasks import task_named
from tensornet_attn.tasks.chance import RandomStream
from tensornet_attn.tasks.recipes import listops


def value(words: list[str]) -> int:
    """What a list comes to, read word by word."""
    word = words.pop(0)
    if word.isdigit():
        return int(word)
    arguments = []
    while words[0] != "]":
        arguments.append(value(words))
    words.pop(0)
    by_name = {"[MIN": min, "[MAX": max, "[MED": lambda x: int(statistics.median(x)), "[SM": lambda x: sum(x) % 10}
    return by_name[word](arguments)


def test_the_target_is_the_value_and_the_group_the_outermost_operator() -> None:
    for options in ({}, {"min_length": 500, "max_length": 900, "max_depth": 10, "max_args": 10}):
        task = task_named("listops_mini", **options)
        batch = task.samples("train", 0, 60)
        assert batch.key_mask is not None
        assert batch.group is not None
        for tokens, mask, target, group in zip(batch.tokens, batch.key_mask, batch.targets, batch.group, strict=True):
            words = listops.WORDS.decode(tokens[mask].tolist()).split()
            assert options.get("min_length", 1) < len(words) < task.length
            assert words[0] == f"[{listops.OPERATORS[group]}"
            assert value(words) == target
            assert words == []


def test_mini_lists_have_two_operators_on_top_of_each_other_at_most() -> None:
    for tokens in task_named("listops_mini").samples("train", 0, 200).tokens.tolist():
        depth = np.cumsum([(11 <= token <= 14) - (token == 15) for token in tokens])
        assert depth.max() in (1, 2)


def test_without_sums_three_of_four_answers_are_easy() -> None:
    """All operators are as likely outermost: a model that knows all but SM is right in three of four and some."""
    group = task_named("listops_mini").samples("train", 0, 4000).group
    assert group is not None
    assert all(abs((group == place).double().mean() - 0.25) < 0.03 for place in range(4))


def test_lengths_follow_the_law_of_the_arena() -> None:
    """The arena's generator, written down again with Python's random numbers, gives as long lists as ours."""
    chance = random.Random(0)

    def length(depth: int) -> int:
        if depth > 1 and (depth == 6 or chance.random() > 0.25):
            return 1
        return 2 + sum(length(depth + 1) for _ in range(chance.randint(2, 10)))

    theirs = np.sort([length(1) for _ in range(4000)])
    bits = RandomStream("law", 1, "train", 0).at(np.arange(4000)).bits(0, 1)[:, 0]
    ours = np.sort(listops.lengths(bits, 6, 10, 10**9))
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        place = int(share * 4000)
        assert abs(ours[place] - theirs[place]) <= 0.12 * theirs[place] + 1
    assert abs(ours.mean() / theirs.mean() - 1) < 0.08


def test_a_length_is_that_of_the_tree_written_down() -> None:
    bits = RandomStream("length", 1, "train", 0).at(np.arange(300)).bits(0, 1)[:, 0]
    length = listops.lengths(bits, 5, 4, 200)
    whole = length < 200
    tokens = listops.written(listops.grown(bits[whole], 5, 4), 200, 1, 11, 15)
    assert ((tokens != 0).sum(1) == length[whole]).all()
    assert (np.diff((tokens != 0).astype(int), axis=1) <= 0).all()  # no gaps
