"""Calls that the type checker of a user accepts. `make lint` reads this file; nothing runs it."""

from pathlib import Path
from typing import Any, assert_type

import torch
from torch import nn

import tensornet_attn as ta
from tensornet_attn.nn.module import CompiledDesign


def layers(x: torch.Tensor) -> None:
    layer = ta.compile(ta.load("thsa", legs={"f": 64}), causal=True, n=512, device=x.device, dtype=x.dtype)
    assert_type(layer.new_cache(), ta.nn.cache.Cache)
    assert_type(layer(x), Any)  # as of any nn.Module
    assert_type(ta.convert(nn.MultiheadAttention(16, 4), "thsa", jitter=0.1), CompiledDesign)


def runs(folder: Path) -> None:
    assert_type(ta.train(task="copy", design="mhsa", steps=3, out=folder), dict[str, Any])
    ta.search("thsa", task="copy", trials=3, rungs=2)
    assert_type(ta.models.make("wikitext_small", vocabulary=9), ta.models.Model)
    assert_type(ta.hf.make("mhsa", vocabulary=9, length=8, width=16), ta.hf.TensornetPreTrainedModel)
