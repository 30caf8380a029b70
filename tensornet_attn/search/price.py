"""What bounds are about: the costs of a design that are known before anything is built."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from tensornet_attn import compiler
from tensornet_attn.cost.decoding import decoding_state
from tensornet_attn.cost.report import cost_of
from tensornet_attn.graph import Graph


@dataclass(frozen=True)
class Price:
    """The costs of a design at `n` queries and keys and a batch.

    `macs`: multiply-adds of a forward call, as planned. `parameters`: trainable ones. `activations`: floats that
    training keeps for backward, as planned. `decoding_state`: floats that decoding keeps of n tokens, of one sequence.
    """

    macs: int
    parameters: int
    activations: int
    decoding_state: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


COSTS = tuple(field.name for field in fields(Price))


def price(graph: Graph, n: int, batch: int = 1) -> Price:
    """The price of a graph. Raises InputError where a length is above a leg's maximum."""
    report = cost_of(graph, compiler.plan_of(graph).schedule, n, n, batch)
    total = report.best.total
    return Price(total.macs, report.parameters, total.saved_floats, decoding_state(graph, n))


@dataclass(frozen=True)
class Bounds:
    """The least and the most that each cost may be, at these sizes; a cost that is not in `limits` is free."""

    n: int = 64
    batch: int = 1
    limits: tuple[tuple[str, float, float], ...] = ()

    def broken(self, found: Price) -> str | None:
        """The first bound that a price breaks, `macs at most 1000000`; None where it keeps to all."""
        for name, least, most in self.limits:
            value = getattr(found, name)
            if value > most:
                return f"{name} at most {most:,.0f}"
            if value < least:
                return f"{name} at least {least:,.0f}"
        return None
