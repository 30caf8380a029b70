"""Generation of a converted Llama, beside the original's: python docs/results/generation.py [design]

Four layers, f 512, 8 heads, 2 key-value heads, a prompt of 32 tokens and 128 new ones, greedy; one thread, float32; the
two in turns, medians.
"""

from __future__ import annotations

import copy
import sys
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

import tensornet_attn as ta

ROUNDS, NEW = 15, 128
SIZES = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4, "vocab_size": 1000}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": None}


def speed(model: Any, prompt: torch.Tensor) -> float:
    """New tokens a second."""
    start = perf_counter()
    model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False)
    return NEW / (perf_counter() - start)


def main(design: str = "gqa") -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    original = LlamaForCausalLM(LlamaConfig(**SIZES | HEADS)).eval()
    converted = ta.convert_model(copy.deepcopy(original), design)
    prompt = torch.randint(1, 1000, (1, 32))
    pairs = [(speed(original, prompt), speed(converted, prompt)) for _ in range(ROUNDS + 1)][1:]
    one, other = (median(column) for column in zip(*pairs, strict=True))
    ratio = median(b / a for a, b in pairs)
    print(f"{design}: {other:.0f} tokens/s, the original {one:.0f}: {ratio:.2f} of it")


if __name__ == "__main__":
    main(*sys.argv[1:])
