"""The recipes: what is asked for, where, and how the samples are spread."""

from __future__ import annotations

import math

import torch

from tensornet_attn.tasks import task_named
from tensornet_attn.tasks.batch import Batch


def accuracy(guess: torch.Tensor, batch: Batch) -> float:
    scored = batch.targets != -100
    return ((guess == batch.targets) & scored).sum().item() / scored.sum().item()


def test_copy_is_0_w_0_w_and_scores_the_separator_and_the_second_w() -> None:
    task = task_named("copy", length=128)
    batch = task.samples("train", 0, 400)
    lengths = set()
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        separator = tokens.index(0, 1)
        word, size = tokens[1:separator], separator - 1
        lengths.add(size)
        assert tokens[:1] + tokens[separator:] == [0, 0, *word] + [0] * (126 - 2 * size)
        assert set(word) <= set(range(1, 11))
        assert targets == [-100] * size + [0, *word] + [-100] * (127 - 2 * size)
    assert lengths == set(range(32, 63))


def test_copy_has_a_ceiling_of_98_percent_for_the_most_probable_next_symbol() -> None:
    """Before the second 0 a symbol is likelier than the end of w, unless w is as long as it gets."""
    batch = task_named("copy", length=128).samples("test", 0, 2000)
    guess = torch.ones_like(batch.tokens)
    for row, tokens in zip(guess, batch.tokens.tolist(), strict=True):
        separator = tokens.index(0, 1)
        row[separator : 2 * separator - 1] = torch.tensor(tokens[1:separator])
        if separator - 1 == 62:
            row[62] = 0
    assert abs(accuracy(guess, batch) - 0.98) < 0.002


def test_mqar_puts_pairs_first_and_asks_for_each_value_once_behind_them() -> None:
    task = task_named("mqar", length=64, pairs=8)
    batch = task.samples("train", 0, 300)
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        keys, values = tokens[0:16:2], tokens[1:16:2]
        assert len(set(keys)) == len(set(values)) == 8
        assert all(1 <= key <= 255 for key in keys)
        assert all(256 <= value <= 511 for value in values)
        asked = [place for place, token in enumerate(tokens) if place >= 16 and token]
        assert sorted(tokens[place] for place in asked) == sorted(keys)
        wanted = {place: dict(zip(keys, values, strict=True))[tokens[place]] for place in asked}
        assert targets == [wanted.get(place, -100) for place in range(64)]


def test_mqar_gaps_follow_the_power_law() -> None:
    """With one pair nothing is in the way: gap g has probability g ** -0.99 / sum."""
    count = 40_000
    batch = task_named("mqar", length=42, pairs=1).samples("train", 0, count)
    gap = (batch.targets != -100).long().argmax(1) // 2  # the pair is gap 0
    weight = [g**-0.99 for g in range(1, 21)]
    for g in range(1, 21):
        share = weight[g - 1] / sum(weight)
        error = math.sqrt(share * (1 - share) / count)
        assert abs((gap == g).double().mean().item() - share) < 4.5 * error


def test_mqar_draws_gaps_one_after_the_other_among_those_left() -> None:
    """The first key's gap is drawn first, the second's among the others: P(a, b) = p_a p_b / (1 - p_a)."""
    count = 40_000
    tokens = task_named("mqar", length=10, pairs=2).samples("train", 0, count).tokens
    weight = torch.tensor([1.0, 2**-0.99, 3**-0.99], dtype=torch.float64)
    share = weight / weight.sum()
    places = [(tokens[:, 4::2] == tokens[:, key : key + 1]).long().argmax(1) for key in (0, 2)]
    for a in range(3):
        for b in {0, 1, 2} - {a}:
            expected = (share[a] * share[b] / (1 - share[a])).item()
            found = ((places[0] == a) & (places[1] == b)).double().mean().item()
            assert abs(found - expected) < 4.5 * math.sqrt(expected / count)


def test_mqar_filled_at_random_asks_the_same_and_fills_the_rest() -> None:
    blank, full = (task_named("mqar", filler=filler).samples("train", 0, 50) for filler in ("blank", "random"))
    assert (blank.tokens == 0).double().mean() > 0.5
    assert (full.tokens == 0).double().mean() < 0.02
    assert (full.targets != -100).sum() == 8 * 50


def test_selective_copy_repeats_the_symbols_in_order_behind_the_mark() -> None:
    task = task_named("selective_copy")
    batch = task.samples("train", 0, 300)
    used = torch.zeros(128)
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        symbols = [token for token in tokens[:112] if token]
        assert len(symbols) == 16
        assert set(symbols) <= set(range(1, 15))
        assert tokens[112:] == [15, *symbols[:-1]]
        assert targets == [-100] * 112 + symbols
        used += torch.tensor(tokens).bool()
    assert used[:112].min() > 15  # 43 is expected: every place is as likely
    assert used[:112].max() < 75


def test_reverse_gives_the_decoder_what_it_has_said_and_asks_for_the_rest() -> None:
    batch = task_named("reverse", length=12).samples("train", 0, 100)
    assert batch.source is not None
    assert batch.source_mask is not None
    for source, tokens, targets in zip(*(x.tolist() for x in (batch.source, batch.tokens, batch.targets)), strict=True):
        word = [token for token in source if token]
        backwards, rest = word[::-1], 12 - len(word) - 1
        assert 6 <= len(word) <= 11
        assert tokens == [1, *backwards] + [0] * rest
        assert targets == [*backwards, 1] + [-100] * rest
    assert torch.equal(batch.source_mask, batch.source != 0)
