"""Where the norms stand: before the designs and at the end, or after the residual connections."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tests.models import tiny

Tensor = torch.Tensor


def by_hand(block: torch.nn.Module, x: Tensor, *source: Tensor) -> Tensor:
    """One block with norms after the residual connections, as in section 3.1 of Attention Is All You Need."""
    for role in block.roles:
        part = getattr(block, role)
        x = part.norm(x + part.design(x, *(source if role == "cross" else ())))
    return x


@pytest.mark.parametrize("make", [tiny.language, tiny.classifier])
def test_norms_after_the_residual_connections(make) -> None:
    model, x = tiny.spread(make(post_norm=True)), tiny.tokens()
    y = model.embedding(x)
    for block in model.layers:
        y = by_hand(block, y)
    wanted = y @ model.embedding.weight.T if make is tiny.language else model.output(y.mean(1))
    torch.testing.assert_close(model(x), wanted, rtol=1e-10, atol=1e-11)
    assert (model(x) - tiny.spread(make())(x)).abs().max() > 1e-3


def test_an_encoder_and_decoder_with_norms_after_the_residual_connections() -> None:
    model, source, target = tiny.spread(tiny.seq2seq(post_norm=True)), tiny.tokens(), tiny.tokens(2, 4, seed=3)
    encoded, y = model.embedding(source), model.embedding(target)
    for block in model.encoder:
        encoded = by_hand(block, encoded)
    for block in model.decoder:
        y = by_hand(block, y, encoded)
    torch.testing.assert_close(model(source, target), y @ model.embedding.weight.T, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("make", [tiny.language, tiny.classifier, tiny.seq2seq])
def test_no_norm_stands_at_the_end(make) -> None:
    before, after = make(), make(post_norm=True)
    gone = {*before.state_dict()} - {*after.state_dict()}
    assert gone == {
        f"{name}.{part}"
        for name in ("norm", *(["source_norm"] if make is tiny.seq2seq else []))
        for part in ("weight", "bias")
    }
    assert after.cost().parameters == sum(value.numel() for value in after.parameters())
    assert ta.models.load(after.to_yaml()).config.post_norm
