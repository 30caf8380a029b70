"""Random numbers by counter."""

from __future__ import annotations

import itertools

import numpy as np

from tensornet_attn.tasks.chance import RandomStream, mix

DRAWS = RandomStream("chance", 1, "train", 0).at(np.arange(12_000))


def test_the_numbers_are_those_of_splitmix64() -> None:
    """The first numbers of the public generator, seed 0."""
    state = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(word) for word in mix(state).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def test_everything_that_names_a_stream_changes_it() -> None:
    names = [
        ("a", 1, "train", 0),
        ("b", 1, "train", 0),
        ("a", 2, "train", 0),
        ("a", 1, "test", 0),
        ("a", 1, "train", 1),
    ]
    assert len({int(RandomStream(*name).key) for name in names}) == 5
    stream = RandomStream(*names[0])
    drawn = {stream.at([i], a).bits(p, 1).item() for i in range(5) for a in range(5) for p in range(5)}
    assert len(drawn) == 125


def test_numbers_below_a_bound_are_uniform() -> None:
    found = np.bincount(DRAWS.below(0, 10, 7).reshape(-1), minlength=7)
    assert (abs(found - 120_000 / 7) < 4.5 * np.sqrt(120_000 / 7)).all()


def test_distinct_numbers_come_in_every_order_alike() -> None:
    found = DRAWS.distinct(0, 2, 4)
    for pair in itertools.permutations(range(4), 2):
        assert abs((found == pair).all(1).sum() - 1000) < 4.5 * np.sqrt(1000)
    assert (np.sort(DRAWS.distinct(0, 5, 5), 1) == np.arange(5)).all()


def test_an_order_is_a_permutation_and_blocks_stay_together() -> None:
    stream = RandomStream("order", 1, "train", 0)
    assert sorted(stream.order(0, 100)) == list(range(100))
    assert stream.order(0, 100).tolist() != stream.order(1, 100).tolist()
    blocks = stream.order(3, 100, 16) // 16
    assert len(list(itertools.groupby(blocks.tolist()))) == 7
