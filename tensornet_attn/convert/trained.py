"""The weights and properties of a trained attention, independent of its module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tensornet_attn.errors import InputError


@dataclass(frozen=True)
class QueryKeyNorm:
    """A norm of queries or keys with `weight` [d] or [heads, d]. With `whole`, it normalises all heads together."""

    kind: str  # rmsnorm or layernorm
    eps: float
    weight: Tensor
    whole: bool


@dataclass(frozen=True)
class Buckets:
    """Relative position biases with `weight` [buckets, heads], as in the constant `bucket` of the language.

    `passed_in`: another attention owns the weight, and passes it in each call.
    """

    weight: Tensor
    furthest: int
    both_sides: bool
    passed_in: bool = False


@dataclass(frozen=True)
class TrainedAttention:
    """The weights and properties of a trained attention.

    `where`: module path and class for errors, e.g. "encoder.layer.0.attention (BertAttention)". `weights`: copies of
    Wq [f h d], Wk [f g d], Wv [f g d], Wo [h d f], where g, the number of key and value heads, divides h. Scores are
    scaled by d ** -0.5; any other scale is absorbed into Wq and bq, or into the norm of the queries. `biases`: any of
    bq [h d], bk [g d], bv [g d], bo [f]. `norms`: by "q" and "k", applied before rotary positions. Rotary positions act
    on the leading `rope_fraction` of queries and keys, whose halves are paired. `rope_scaling`: rope_type and its
    parameters, as keys of a box `rope`. `dropout`: probability on the map. `window`: number of visible keys before and
    after a query. `softcap`: c in c tanh(s / c) for scores s. `alibi`: scores have ALiBi biases. `cross`: keys and
    values come from another sequence. `sinks` [h]: one more score in each row of the map.
    """

    where: str
    weights: dict[str, Tensor]
    biases: dict[str, Tensor]
    causal: bool
    rope_base: float | None = None
    rope_fraction: float = 1.0
    dropout: float = 0.0
    norms: dict[str, QueryKeyNorm] = field(default_factory=dict)
    window: tuple[int, int] | None = None
    softcap: float | None = None
    alibi: bool = False
    rope_scaling: dict[str, Any] = field(default_factory=dict)
    buckets: Buckets | None = None
    cross: bool = False
    sinks: Tensor | None = None


@dataclass(frozen=True)
class Widths:
    """Input and output widths of an attention, whether it is causal, and a tensor with its device and dtype."""

    where: str
    width: int
    output: int
    causal: bool
    like: Tensor


def refusal(where: str, reason: str) -> InputError:
    return InputError(f"{where} cannot be converted: {reason}.")
