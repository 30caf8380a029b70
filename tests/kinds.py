"""Which modern designs stand for their kind.

What is asked of every shipped design is asked of those in specs/modern that stand here; of the others by
`make test-all`. With all other designs they make every call that the source of any design makes.
"""

from __future__ import annotations

from pathlib import Path

STAND_FOR_THEIR_KIND = frozenset(
    "abc based cohere comba cope deberta_v2 deepseek_moe deepseek_v3 fox gated_deltanet gated_deltaproduct gau gemma2"
    " gemma2_local gemma3_local gla gpt_oss gsa kda laser lfm2 mamba1 mamba2 mingru minimax moh retnet rg_lru rwkv4"
    " rwkv7 sigmoid_attention stick_breaking t5".split()
)
MODERN = frozenset(path.stem for path in Path(__file__).resolve().parents[1].glob("specs/modern/*.yaml"))
