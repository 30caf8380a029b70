"""The plan of a design: its schedule, the lowering of each region, and the rejected lowerings with the reasons."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tensornet_attn.cost.figures import duration
from tensornet_attn.cost.price import PlanPrice, price_of
from tensornet_attn.cost.sizes import human
from tensornet_attn.cost.target import TRAINING, Target
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.pairs import BATCH
from tensornet_attn.tiles.cpp.step import PositionSteps


@dataclass(frozen=True)
class Lowering:
    """One way to compute a region. `against`: the reasons why it was not chosen; empty if there are none."""

    name: str
    against: tuple[str, ...] = ()


@dataclass(frozen=True)
class Region:
    """Steps of the diagram that are computed together: their backend, the chosen lowering, the rejected ones.

    `plain`: the region is a product or box without values of queries x keys. `cost`: the predicted figure and that of
    the alternative, if cost decided. `removed`: a rewrite left nothing of it to compute.
    """

    name: str
    steps: tuple[str, ...]
    backend: str
    chosen: str
    refused: tuple[Lowering, ...] = ()
    plain: bool = False
    cost: str = ""
    removed: bool = False


@dataclass(frozen=True)
class Offer:
    """A plan of the whole design: predicted seconds, peak memory in bytes, the region at the peak, and why not."""

    name: str
    seconds: float
    bytes: int
    region: str
    against: tuple[str, ...] = ()

    def __str__(self) -> str:
        reasons = "".join(f": {reason}" for reason in self.against)
        return f"{'not ' * bool(self.against)}{self.name}, {self.figures}{reasons}"

    @property
    def figures(self) -> str:
        return f"{duration(self.seconds)} and a peak of {human(self.bytes)}B in '{self.region}'"


@dataclass(frozen=True)
class Plan:
    """`graph`: the diagram as written. `schedule`: the diagram in primitive steps, in execution order.

    `offers`: the plans that were compared, if the target limits memory or requires linear memory. `instead`: the
    requested backend, if it cannot run; on a CPU, the backend that `auto` did not choose. `position`: the steps of one
    position that one call of C++ computes; None if there are none, or too few.
    """

    graph: Graph
    schedule: Graph
    regions: tuple[Region, ...]
    backend: str
    target: Target = TRAINING
    offers: tuple[Offer, ...] = ()
    instead: Lowering | None = None
    position: PositionSteps | None = None

    @property
    def lengths(self) -> tuple[tuple[str, int], ...]:
        """The lengths that the orders of products are optimised for; the code is correct for all lengths."""
        return tuple(leg for leg in self.target.sizes(self.graph).items() if leg[0] != BATCH)

    @property
    def backends(self) -> dict[str, str]:
        """The backend of each region, by the region's name, without those that a rewrite removed."""
        return {region.name: region.backend for region in self.regions if not region.removed}

    @property
    def price(self) -> PlanPrice:
        """The predicted time and memory of the schedule at the sizes of the target."""
        return price_of(self.schedule, self.target.sizes(self.graph), self.target)

    def region_of(self, step: str) -> str:
        """The name of the region of a step of the schedule; the step's own name if it has no region."""
        regions = {name: region.name for region in self.regions for name in (*region.steps, region.name)}
        return regions.get(step) or regions.get(step.partition(".")[0]) or step

    def as_dict(self) -> dict[str, object]:
        """The contents of `explain` as data: the target, the compared plans, each region with steps and rejections."""
        return {
            "design": self.graph.name,
            "backend": self.backend,
            "instead_of": self.instead and asdict(self.instead),
            "workload": self.target.workload,
            "device": self.target.device.name,
            "lengths": dict(self.lengths),
            "offers": [asdict(offer) for offer in self.offers],
            "regions": [asdict(region) for region in self.regions],
        }

    def explain(self) -> str:
        """The chosen and rejected lowerings of each region with the reasons, as text."""
        sizes = ", ".join(f"{leg} {size}" for leg, size in self.lengths)
        lines = [
            f"{self.graph.name}: backend {self.backend}, for {self.target.workload} on {self.target.device.name}, "
            f"product orders optimised for {sizes or 'the sizes of the design'}"
        ]
        lines += [f"  not {self.instead.name}: {reason}" for reason in self.instead.against] if self.instead else []
        lines += [f"  {offer}" for offer in self.offers]
        for region in self.regions:
            where = "" if region.backend == self.backend else f", on {region.backend}"
            lines.append(f"  {region.name}: {region.chosen}{where}")
            lines += [f"    predicted: {region.cost}"] if region.cost else []
            for lowering in region.refused:
                lines += [f"    not {lowering.name}: {reason}" for reason in lowering.against]
        return "\n".join(lines)
