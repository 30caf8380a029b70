"""The cache of one design as a layer of a Hugging Face cache."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

import tensornet_attn as ta
from tensornet_attn.hf.cache import DesignCacheLayer
from tests.refusals import refusal

LEGS = {"mhsa": {"f": 16, "h": 2}, "linear": {"f": 16, "h": 2}}


def after(name: str, length: int, batch: int = 3) -> tuple[torch.nn.Module, torch.Tensor, transformers.Cache]:
    """A layer, its input, and what it keeps of the first positions of that."""
    torch.manual_seed(0)
    layer = ta.compile(ta.load(name, legs=LEGS[name]), causal=True, dtype=torch.float64).eval()
    x = torch.randn(batch, 8, 16, dtype=torch.float64)
    past = transformers.Cache(layers=[DesignCacheLayer(layer.new_cache())])
    layer(x[:, :length], cache=past.layers[0].cache)
    return layer, x, past


@pytest.mark.parametrize("name", LEGS)
def test_it_counts_reorders_repeats_and_selects(name: str) -> None:
    layer, x, past = after(name, 5)
    assert (past.get_seq_length(), past.get_mask_sizes(2, 0), past.get_max_length()) == (5, (7, 0), -1)
    order = torch.tensor([2, 0, 0])
    past.reorder_cache(order)
    repeated, chosen = copy.deepcopy(past), copy.deepcopy(past)
    repeated.batch_repeat_interleave(2)
    chosen.batch_select_indices(torch.tensor([True, False, True]))
    for kept, rows in ((past, order), (repeated, order.repeat_interleave(2)), (chosen, order[[0, 2]])):
        y = layer(x[rows, 5:], cache=kept.layers[0].cache)
        torch.testing.assert_close(y, layer(x)[rows, 5:], rtol=0, atol=1e-12)


def test_it_goes_back_where_the_design_can() -> None:
    layer, x, past = after("mhsa", 7)
    past.crop(-3)
    assert past.get_seq_length() == 4
    torch.testing.assert_close(layer(x[:, 4:], cache=past.layers[0].cache), layer(x)[:, 4:], rtol=0, atol=1e-12)
    past.crop(-9)  # more than there are, as in transformers
    assert past.get_seq_length() == 0
    layer(x[:, :2], cache=past.layers[0].cache)
    past.reset()
    assert past.get_seq_length() == 0
    _, _, sums = after("linear", 7)
    sums.crop(0)
    with pytest.raises(ta.InputError, match="is a state: one value for all positions"):
        sums.crop(-1)


def test_it_refuses_what_is_not_the_designs() -> None:
    _, x, past = after("mhsa", 2)
    assert refusal(past.update, x, x, 0) == (
        "mhsa: a design does not cache external keys and values; pass its cache to the call."
    )
    assert refusal(past.crop, 3) == "mhsa: 'tokens_to_remove' is 3; give minus the number of positions to drop."
