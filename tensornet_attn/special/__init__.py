"""Special cases: the sizes and weights at which a design equals another, listed in `contains`, and their graph."""

from tensornet_attn.special.embed import Embedding, embed, special_of
from tensornet_attn.special.lattice import contains, route, special_cases

__all__ = ["Embedding", "contains", "embed", "route", "special_cases", "special_of"]
