"""Calls by their tokens: whatever padding would change, a design is called with the tokens alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.nn.offsets import on_host
from tensornet_attn.nn.tokens import call_of_tokens
from tests.refusals import refusal

F64 = torch.float64
SCORES = {"softmax": "m", "scale": "m ** -0.5", "of": "Q[n h d] K[m h d] -> h n m"}


def of_length(extends: str, **options: Any) -> Any:
    """A design whose scores use the number of keys."""
    legs = {"f": 8, "h": "head 2"}
    design = {"tensornet": 1, "name": "counted", "extends": extends, "legs": legs, "diagram": {"A": SCORES}}
    return ta.compile(design, dtype=F64, **options)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_batches_of_any_rank(batch: tuple[int, ...], backend: str) -> None:
    layer, x = of_length("mhsa", backend=backend), torch.randn(*batch, 5, 8, dtype=F64)
    keep = torch.rand(*batch, 5, generator=torch.Generator().manual_seed(1)) < 0.6
    keep[..., 2] = True
    y = call_of_tokens(layer, (x,), keep).reshape(-1, 5, 8)
    for row, shown, found in zip(x.reshape(-1, 5, 8), keep.reshape(-1, 5), y, strict=True):
        torch.testing.assert_close(found[shown], layer(row[shown]), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("masked", ["keys", "rows", "both"])
def test_keys_of_another_sequence(masked: str) -> None:
    layer, x, memory = of_length("cross"), torch.randn(2, 4, 8, dtype=F64), torch.randn(2, 6, 8, dtype=F64)
    keys, rows = torch.ones(2, 6, dtype=torch.bool), torch.ones(2, 4, dtype=torch.bool)
    keys[0, :2] = keys[1, 5:] = rows[1, 0] = False
    masks = {"keys": (keys, None), "rows": (None, rows), "both": (keys, rows)}[masked]
    y = call_of_tokens(layer, (x, memory), *masks)
    for row in range(2):
        shown = memory[row] if masks[0] is None else memory[row, keys[row]]
        own = rows[row] if masks[1] is not None else slice(None)
        torch.testing.assert_close(y[row, own], layer(x[row, own], shown), rtol=1e-11, atol=1e-12)


def test_all_rows_of_a_sequence_may_be_padding() -> None:
    layer, x = of_length("mhsa"), torch.randn(2, 3, 8, dtype=F64)
    keep = torch.tensor([[True, True, False], [False] * 3])
    y = call_of_tokens(layer, (x,), keep)
    torch.testing.assert_close(y[0, :2], layer(x[0, :2]))
    assert not y[1].any()
    assert call_of_tokens(layer, (x,), torch.zeros_like(keep)).shape == x.shape


def test_an_exact_design_is_called_as_it_is() -> None:
    """A design that reads no other row takes no mask at all."""
    keep = torch.tensor([[False, True, True]])
    for name, masks in (("mhsa", {"key_mask": keep}), ("mlp", {})):
        layer = ta.compile(ta.load(name, legs={"f": 8}), dtype=F64)
        x = torch.randn(1, 3, 8, dtype=F64)
        assert torch.equal(call_of_tokens(layer, (x,), keep), layer(x, **masks))


def test_an_input_of_pairs_cannot_be_packed() -> None:
    design = {"tensornet": 1, "name": "pairs", "extends": "mhsa", "legs": {"f": 8, "h": "head 2"}}
    design |= {"inputs": {"b": "n m"}, "diagram": {"A": SCORES | {"of": "Q[n h d] K[m h d] + b[n m] -> h n m"}}}
    layer, x = ta.compile(design, dtype=F64), torch.randn(1, 3, 8, dtype=F64)
    inputs = layer._signature.ordered((x,), {"b": torch.zeros(1, 3, 3, dtype=F64)})
    assert refusal(call_of_tokens, layer, inputs, torch.tensor([[False, True, True]])) == (
        "pairs: padding changes its results, and an input has both a query and a key leg: give sequences of equal "
        "length."
    )


GAP = torch.tensor([[True, False, True, True, True]])


def test_a_compiled_call_asserts_that_nothing_is_hidden_between_tokens() -> None:
    layer, x = ta.compile(ta.load("band", legs={"f": 8}), dtype=F64), torch.randn(1, 5, 8, dtype=F64)
    compiled = torch.compile(lambda x, keep: call_of_tokens(layer, (x,), keep), backend="eager", fullgraph=True)
    right = GAP.flip(1).cumsum(1) < 4
    torch.testing.assert_close(compiled(x, right), layer(x, key_mask=right))
    sentence = "band: a compiled call takes no padding between tokens, because a mask of 'A' compares the positions"
    with pytest.raises(RuntimeError, match=sentence):
        compiled(x, GAP)


def test_hidden_rows_between_tokens_may_be_positions() -> None:
    """Of a layer that computes absolute positions of its own, so that padding on the left is removed."""
    design = {"tensornet": 1, "name": "placed", "extends": "mhsa", "legs": {"f": 8, "h": "head 2"}}
    design |= {"constants": {"s": {"legs": "m d", "value": "sinusoid"}}}
    design |= {"diagram": {"V": "x[m f] Wv[f h d] + s[m d] -> m h d"}}
    layer, x = ta.compile(design, dtype=F64), torch.randn(1, 7, 8, dtype=F64)
    keep = torch.nn.functional.pad(GAP, (2, 0))
    y = call_of_tokens(layer, (x,), keep, counted=True)[:, 2:]
    torch.testing.assert_close(y[GAP], layer(x[:, 2:], key_mask=GAP)[GAP], rtol=1e-11, atol=1e-12)


def test_an_input_of_each_sequence_cannot_be_packed() -> None:
    design = {"tensornet": 1, "name": "shifted", "extends": "band", "legs": {"f": 8, "h": "head 2"}}
    design |= {"inputs": {"c": "f"}, "diagram": {"V": "x[m f] Wv[f h d] + c[f] Wv[f h d] -> m h d"}}
    layer, x, c = ta.compile(design, dtype=F64), torch.randn(2, 5, 8, dtype=F64), torch.randn(8, dtype=F64)
    for shared in (c, c[None]):
        inputs = layer._signature.ordered((x,), {"c": shared})
        y = call_of_tokens(layer, inputs, GAP.expand(2, -1))[:, GAP[0]]
        torch.testing.assert_close(y, layer(x[:, GAP[0]], c=c), rtol=1e-11, atol=1e-12)
    inputs = layer._signature.ordered((x,), {"c": c.expand(2, 8)})
    assert refusal(call_of_tokens, layer, inputs, GAP.expand(2, -1)) == (
        "shifted: padding changes its results, and an input without a sequence leg differs between sequences: give "
        "sequences of equal length."
    )


def test_a_mask_on_a_gpu_is_read_once() -> None:
    mask, reads = torch.empty(2, 5, dtype=torch.bool, device="meta"), []
    read = reads.append
    for _ in range(3):
        assert on_host(mask, read) is None
    mask.logical_not_()
    on_host(mask, read)
    assert len(reads) == 2


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_masks_that_cannot_be_read_hide_nothing_between_tokens() -> None:
    layer = ta.compile(ta.load("mhsa_rope", legs={"f": 16, "h": 2}), "torch", dtype=F64)
    x, mask = torch.randn(3, 1, 5, 16, dtype=F64), torch.tensor([[[True] * 4 + [False]]] * 3)
    y = torch.vmap(lambda x, mask: call_of_tokens(layer, (x,), mask))(x, mask)
    torch.testing.assert_close(y, torch.stack([call_of_tokens(layer, (x[i],), mask[i]) for i in range(3)]))
    assert call_of_tokens(layer.to("meta"), (x[0].to("meta"),), mask[0].to("meta")).shape == (1, 5, 16)
