"""A decoder whose cross attention is a design of the papers: it trains, and reads the source as far as it is seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tensornet_attn as ta
from tests.models import tiny

CROSS: dict[str, dict[str, Any]] = {
    "mhsa": {"legs": {"h": 2}},
    "thsa": {"legs": {"r": 8, "s": 8}},
    "hard_fish": {"legs": {"h": 4, "g": 2}},
    "hard_lfish": {"legs": {"h": 4, "g": 2}},
    "mgk": {"legs": {"h": 2}},
    "mgk_mqa": {"legs": {"h": 2}},
    "fmm1": {"legs": {"h": 2}, "settings": {"k": 2**30}},  # a band wider than any source: none
    "epa": {"legs": {"h": 2, "e": 3}},
    "moa": {"legs": {"e": 4}, "settings": {"k": 2}},
}


def model_with(name: str) -> ta.models.Seq2Seq:
    layer = {"mixer": {"design": "mhsa", "legs": {"h": 2}}, "cross": {"design": name, **CROSS[name]}, "mlp": "mlp"}
    return tiny.seq2seq(decoder=[layer], width=16, encoder=[{"mixer": {"design": "mhsa", "legs": {"h": 2}}}])


@pytest.mark.parametrize("name", CROSS)
def test_it_trains(name: str) -> None:
    model = model_with(name)
    source = tiny.tokens(8, 7)
    target = source.flip(1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(12):
        logits = model(source, F.pad(target[:, :-1], (1, 0)))
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    weights = [weight for key, weight in model.named_parameters() if "cross.design" in key]
    assert weights
    assert all(weight.grad is not None for weight in weights)
    assert any(bool(weight.grad.any()) for weight in weights)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("name", CROSS)
def test_it_reads_what_is_seen_of_the_source(name: str) -> None:
    model, source, target = model_with(name).eval(), tiny.tokens(2, 7), tiny.tokens(2, 5, seed=2)
    seen = torch.tensor([[True] * 5 + [False] * 2, [True] * 7])
    before = model(source, target, seen)
    hidden, other = source.clone(), source.clone()
    hidden[0, 5:] = (hidden[0, 5:] + 1) % tiny.VOCABULARY
    other[0, 4] = (other[0, 4] + 1) % tiny.VOCABULARY
    torch.testing.assert_close(model(hidden, target, seen), before, rtol=1e-9, atol=1e-10)
    assert not torch.allclose(model(other, target, seen)[0], before[0])
    assert not torch.allclose(model(other, target, seen)[0, 0], before[0, 0])  # the first token reads all of it
