"""Search spaces of designs: choices, moves on diagrams, and reproducible proposals."""

from tensornet_attn.search.build import Proposal, Refused, built
from tensornet_attn.search.moves import MOVES, Move, apply
from tensornet_attn.search.propose import cross, mutate, propose, seeds
from tensornet_attn.search.read import check, load
from tensornet_attn.search.space import COSTS, Bounds, Choice, Path, Price, Space, as_data, from_data, price, to_text
from tensornet_attn.search.survey import Size, Survey, size_of, survey

__all__ = [
    "COSTS", "MOVES", "Bounds", "Choice", "Move", "Path", "Price", "Proposal", "Refused", "Size", "Space", "Survey",
    "apply", "as_data", "built", "check", "cross", "from_data", "load", "mutate", "price", "propose", "seeds",
    "size_of", "survey", "to_text",
]  # fmt: skip
