"""Compares layers of other packages with the designs that compute the same."""

from tests.parity import of_fla, of_transformers, of_x_transformers
from tests.parity.layer import Agreement, ParityLayer, compare

LAYERS: tuple[ParityLayer, ...] = (*of_transformers.LAYERS, *of_x_transformers.LAYERS, *of_fla.LAYERS)

__all__ = ["LAYERS", "Agreement", "ParityLayer", "compare"]
