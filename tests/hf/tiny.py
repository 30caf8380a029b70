"""Tiny models for tests, in float64, weights large enough that no two tokens are nearly alike."""

from __future__ import annotations

from typing import Any

import torch

import tensornet_attn as ta
from tests.models import tiny

VOCABULARY = tiny.VOCABULARY
PAD = 0


def of_design(name: str, **options: Any) -> ta.hf.TensornetPreTrainedModel:
    """Two layers of a shipped design at its test size."""
    part = tiny.part(name)
    sizes = {"vocabulary": VOCABULARY, "length": 32, "width": tiny.width(name), "mlp": "mlp", "depth": 2, "tied": False}
    sizes |= {"positions": "learned"}
    sizes |= {"legs": part["legs"], "settings": part["settings"], "pad_token_id": PAD}
    torch.manual_seed(0)
    return tiny.spread(ta.hf.make(name, **sizes | options).double()).eval()


def of_kind(kind: str, **options: Any) -> ta.hf.TensornetPreTrainedModel:
    """Two layers of attention with rotary positions, under learned ones, as a model of a kind."""
    model: dict[str, Any] = {"kind": kind, "vocabulary": VOCABULARY, "length": 32, "width": 8, "positions": "learned"}
    if kind == "seq2seq":
        cross = {"cross": {"design": "cross", "legs": {"h": 2}}}
        model |= {"encoder": tiny.LAYERS, "decoder": [tiny.LAYERS[0] | cross], "target_vocabulary": VOCABULARY + 2}
    else:
        model["layers"] = tiny.LAYERS
    model |= {"classes": 3} if kind == "sequence_classifier" else {"tied": False}  # a tied one repeats itself
    torch.manual_seed(0)
    options = {"pad_token_id": PAD, "decoder_start_token_id": 1} | options
    return tiny.spread(ta.hf.make({"tensornet": 1, "name": "tiny", "model": model}, **options).double()).eval()


def batch(rows: int = 3, n: int = 6) -> dict[str, torch.Tensor]:
    """Tokens, and a mask: row i begins with i of padding."""
    mask = torch.arange(n) >= torch.arange(rows)[:, None]
    tokens = tiny.tokens(rows, n).clamp(min=1).masked_fill(~mask, PAD)
    return {"input_ids": tokens, "attention_mask": mask.long()}
