"""Masks as a caller has them, in a design's own terms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.convert.masks import arguments, of_hugging_face, of_torch, shown, visible_pairs
from tests.refusals import refusal

KEYS = torch.tensor([[True, True, True, False], [False, True, True, True]])
PAIRS = KEYS[:, None, :].expand(2, 4, 4)
LEAST = torch.finfo(torch.float32).min


def added(visible: torch.Tensor, hidden: float = LEAST) -> torch.Tensor:
    return torch.zeros(visible.shape).masked_fill(~visible, hidden)


def same(got: dict[str, torch.Tensor], **wanted: torch.Tensor) -> bool:
    return got.keys() == wanted.keys() and all(torch.equal(got[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("causal", [False, True])
def test_hidden_keys_become_a_key_mask(causal: bool) -> None:
    visible = PAIRS.tril() if causal else PAIRS
    for mask in (visible, added(visible), added(visible, -torch.inf)):
        assert same(arguments(mask, causal, "here"), key_mask=KEYS)


def test_nothing_hidden_is_no_mask() -> None:
    everything = torch.ones(2, 4, 4, dtype=torch.bool)
    assert arguments(None, False, "here") == {}
    assert arguments(everything, False, "here") == {}
    assert arguments(everything.tril(), True, "here") == {}


def test_what_is_more_than_hidden_keys_stays_a_mask() -> None:
    band = torch.ones(4, 4, dtype=torch.bool).tril().triu(-1)
    assert same(arguments(band, False, "here"), mask=band)
    assert same(arguments(added(band), True, "here"), mask=band)
    near = added(band) + 0.5
    assert same(arguments(near, True, "here"), mask=near)


def test_a_causal_design_cannot_look_ahead() -> None:
    wanted = "here: the mask makes later keys visible, but the design is causal."
    assert refusal(arguments, PAIRS, True, "here") == wanted


BAND = torch.ones(6, 6, dtype=torch.bool).tril().triu(-2)


def test_behind_positions_that_were_seen_and_in_a_window() -> None:
    """The last two queries of six; the design itself sees two keys before a query."""
    hidden = torch.tensor([False, True, True, True, True, True])
    for seen in (0, 4, 5):
        rows = BAND[seen:]
        assert arguments(rows, True, "here", seen, (2, 0)) == {}
        wanted = {"key_mask": rows[0]} if seen == 5 else {"mask": rows}
        assert same(arguments(rows, True, "here", seen), **wanted)
        kept = {"key_mask": hidden} if seen == 0 else {}
        assert same(arguments(rows & hidden, True, "here", seen, (2, 0)), **kept)
        room = torch.cat((rows, torch.zeros(6 - seen, 3, dtype=torch.bool)), 1)  # a static cache has room for more
        assert arguments(room, True, "here", seen, (2, 0)) == {}
        assert torch.equal(visible_pairs({}, 6 - seen, True, torch.device("cpu"), seen, (2, 0)), rows)


def test_a_mask_beyond_the_window_or_of_too_few_keys() -> None:
    for mask, message in (
        (torch.ones(6, 6, dtype=torch.bool).tril(), "the mask makes keys visible beyond the window of the design."),
        (BAND[:, :4], "the mask has 4 keys, but there are 6, cached keys included."),
    ):
        assert refusal(arguments, mask, True, "here", 0, (2, 0)) == f"here: {message}"


def test_nan_is_no_hidden_place() -> None:
    """It reaches the output, as it does elsewhere."""
    mask = torch.zeros(4, 4)
    mask[0, 1] = torch.nan
    assert shown(mask).all()
    assert arguments(mask, False, "here")["mask"].isnan().sum() == 1
    x = torch.randn(1, 4, 12)
    layer = ta.nn.MultiheadAttention("mhsa", 12, 3, batch_first=True)
    assert layer(x, x, x, attn_mask=mask)[0].isnan().any(-1).tolist() == [[True, False, False, False]]


def test_visible_pairs() -> None:
    cpu = torch.device("cpu")
    assert torch.equal(visible_pairs({"key_mask": KEYS}, 4, True, cpu), PAIRS.tril())
    assert torch.equal(visible_pairs({"mask": added(PAIRS)}, 4, False, cpu), PAIRS)
    assert torch.equal(visible_pairs({}, 4, True, cpu), torch.ones(4, 4, dtype=torch.bool).tril())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [None, 1, 4])
def test_forms_of_hugging_face(rows: int | None, causal: bool) -> None:
    """[batch, m] speaks of keys alone; [batch, heads, n or 1, m] of pairs."""
    pairs = PAIRS.tril() if causal else PAIRS
    if rows is None:
        masks = [KEYS, KEYS.long()]
    else:
        masks = [pairs[:, None, -rows:], pairs[:, None, -rows:].expand(2, 3, rows, 4)]
    n = 1 if rows == 1 else 4
    for mask in masks:
        assert same(of_hugging_face(mask, n, causal, "here", 4 - n), key_mask=KEYS)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            SimpleNamespace(),
            "here: the attention mask is a SimpleNamespace; load the model with attn_implementation='sdpa' or 'eager', "
            "whose masks are tensors.",
        ),
        (
            torch.ones(2, 4, 4),
            "here: the attention mask is torch.float32 of shape [2, 4, 4]; give [batch, m], or boolean or float "
            "[batch, 1, n, m].",
        ),
        (
            torch.ones(2, 1, 4, 4, dtype=torch.long),
            "here: the attention mask is torch.int64 of shape [2, 1, 4, 4]; give [batch, m], or boolean or float "
            "[batch, 1, n, m].",
        ),
    ],
)
def test_other_forms_are_refused(mask: Any, message: str) -> None:
    assert refusal(of_hugging_face, mask, 4, False, "here") == message


def test_forms_of_torch() -> None:
    """True hides there; a float is added; one mask for each sentence and head must be the same for all heads."""
    past = torch.ones(4, 4, dtype=torch.bool).tril()
    assert of_torch(None, None, 3, "here") is None
    for given, wanted in (
        ((~past, None), past),
        ((None, ~KEYS), PAIRS),
        ((~past, ~KEYS), PAIRS & past),
        (((~(PAIRS & past)).repeat_interleave(3, 0), None), PAIRS & past),
        ((added(past, -torch.inf), ~KEYS), added(PAIRS & past, -torch.inf)),
        ((~past, added(KEYS, -torch.inf)), added(PAIRS & past, -torch.inf)),
    ):
        found = of_torch(*given, 3, "here")
        assert found is not None
        assert torch.equal(found, wanted)
