"""What the mean loss of a language model is called in its own unit: perplexity, or bits of what it predicts."""

from __future__ import annotations

import math
from typing import Literal

Measure = Literal["perplexity", "bits_per_character", "bits_per_dimension"]
_LARGEST = 709.0  # exp of more is no float64


def measured(measure: Measure, nats: float) -> float:
    """A mean loss in nats as the measure: exp(nats) for words and subwords; nats / ln 2 for characters and pixels.

    >>> round(measured("perplexity", math.log(50)), 9), measured("bits_per_character", math.log(32))
    (50.0, 5.0)
    """
    if measure != "perplexity":
        return nats / math.log(2)
    return math.inf if nats > _LARGEST else math.exp(nats)
