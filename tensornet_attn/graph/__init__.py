"""The diagram as a graph with named legs: building and checking, canonical form and hash, text form."""

from tensornet_attn.graph.build import build, examine, problems_of
from tensornet_attn.graph.graph import Graph

__all__ = ["Graph", "build", "examine", "problems_of"]
