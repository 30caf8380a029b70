"""What a trained attention holds, whatever module held it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tensornet_attn.errors import InputError


@dataclass(frozen=True)
class Norm:
    """A norm of queries or keys, times `weight`: [d], [heads, d], or, `whole`, over all heads at once, [heads, d]."""

    kind: str  # rmsnorm or layernorm
    eps: float
    weight: Tensor
    whole: bool


@dataclass(frozen=True)
class Buckets:
    """Biases of distances in buckets, `weight` [buckets, heads], as the constant `bucket` of the language has them.

    `given`: another attention has the weight, and gives it at each call.
    """

    weight: Tensor
    furthest: int
    both_sides: bool
    given: bool = False


@dataclass(frozen=True)
class Trained:
    """The weights of one trained attention, read out of whatever module held them.

    `where` names it in errors: module path and class, "encoder.layer.0.attention (BertAttention)". `weights`: Wq [f h
    d], Wk [f g d], Wv [f g d], Wo [h d f], where g, the key and value heads, divides h. They are detached copies, and
    the scale of the scores is d ** -0.5: any other is absorbed into Wq and bq, or into the norm of the queries.
    `biases`: those there are of bq [h d], bk [g d], bv [g d], bo [f]. `norms`: of "q" and "k", before their rotary
    positions, which turn the first `rope_fraction` of queries and keys, halves paired. `window`: how far a query sees,
    keys before it and after. `softcap`: c, where scores s become c tanh(s / c). `alibi`: scores fall with the distance.
    `rope_scaling`: rope_type and its numbers, as a box `rope` has them.
    `cross`: keys and values are of another sequence. `sinks` [h]: one more score in each row of the map.
    `dropout` is on the map.
    """

    where: str
    weights: dict[str, Tensor]
    biases: dict[str, Tensor]
    causal: bool
    rope_base: float | None = None
    rope_fraction: float = 1.0
    dropout: float = 0.0
    norms: dict[str, Norm] = field(default_factory=dict)
    window: tuple[int, int] | None = None
    softcap: float | None = None
    alibi: bool = False
    rope_scaling: dict[str, Any] = field(default_factory=dict)
    buckets: Buckets | None = None
    cross: bool = False
    sinks: Tensor | None = None


@dataclass(frozen=True)
class Widths:
    """What an attention is from outside: its widths in and out, whether it is causal, and a tensor like its own."""

    where: str
    width: int
    output: int
    causal: bool
    like: Tensor


def refusal(where: str, reason: str) -> InputError:
    return InputError(f"{where} cannot be converted: {reason}.")
