"""An implementation: one way to compute forms of a diagram, what it does not take, what it costs, what it makes.

It knows no other one. The table of all stands in `implementations`, and the planner asks each row for every form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

from tensornet_attn.cost.devices import Device
from tensornet_attn.graph.attention import attentions
from tensornet_attn.graph.model import Graph, Kernel, Step, Use
from tensornet_attn.plan.figures import instead
from tensornet_attn.plan.target import Target

Place = TypeVar("Place")
Form = TypeVar("Form")


@dataclass(frozen=True)
class Lowered:
    """A graph after a lowering: what was chosen, by the step it makes, and why not, by the box it left alone.

    `costs`: the figures of what was chosen, where there are any.
    """

    graph: Graph
    chosen: dict[str, str] = field(default_factory=dict)
    refused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    costs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """A predicted figure of a form in an implementation, and that of what would be computed in its place.

    `said`: a figure in words, to so many digits. `but`: what stands before both where it does not pay. `worth`: how
    many times the other figure it may reach.
    """

    own: float
    other: float
    said: Callable[[float, int], str]
    but: str
    worth: float = 1

    @property
    def pays(self) -> bool:
        return self.own <= self.worth * self.other

    def __str__(self) -> str:
        return instead(self.own, self.other, self.said)


@dataclass(frozen=True)
class Context:
    """What implementations are asked in view of: `sizes` of all legs in the run, target, backend, and who is asked.

    `always`: blocks of queries are taken even where they do not pay.
    """

    sizes: Mapping[str, int]
    target: Target
    backend: str
    rows: tuple[Implementation[Any], ...]
    always: bool = False

    @property
    def device(self) -> Device:
        return self.target.device

    def takes(self, graph: Graph, box: str) -> bool:
        """Whether an implementation computes a map by itself, and never makes it."""
        own = [row for row in self.rows if row.alone] if box in attentions(graph) else []
        return any(row.takes(graph, box, self) for row in own)


class Rewriting(NamedTuple):
    """A change of the whole diagram after which maps have implementations of their own."""

    name: str
    apply: Callable[[Graph, Context], Lowered]


class Implementation(ABC, Generic[Form]):
    """A row of the table. `kind`: of its kernels, if it makes any. `alone`: it takes maps, and never makes them.

    `opaque`: its kernels are one operation for torch.compile, which does not look into them.
    """

    name: str
    kind = ""
    alone = False
    opaque = False

    def unsupported(self, form: Form, context: Context) -> tuple[str, ...]:
        """Why it cannot compute a form, in sentences; empty where it can."""
        return ()

    def cost(self, form: Form, context: Context) -> Cost | None:
        """What a form takes, beside what it would take else; None where it never takes more. Asked if supported."""
        return None

    def judged(self, form: Form, context: Context) -> tuple[tuple[str, ...], Cost | None]:
        """Why a form is not computed so, that it cannot or does not pay, empty where it is; and its cost."""
        reasons = self.unsupported(form, context)
        cost = None if reasons else self.cost(form, context)
        return (reasons if cost is None or cost.pays else (f"{cost.but} {cost}",)), cost

    @abstractmethod
    def lowered(self, graph: Graph, context: Context) -> Lowered:
        """The graph in which every form that nothing speaks against is one operation."""

    def takes(self, graph: Graph, place: str, context: Context) -> bool:
        """Whether it computes the form at a step."""
        return False

    def on_triton(self, form: object) -> bool:
        """Whether Triton has a kernel of its kind for a form."""
        return False


class AtPlaces(Implementation[Form], Generic[Place, Form]):
    """Forms that are lowered one after another, each at its place."""

    @abstractmethod
    def places(self, graph: Graph) -> Iterable[Place]:
        """Where a graph may have a form of this kind: steps, as a rule."""

    @abstractmethod
    def form(self, graph: Graph, place: Place) -> Form | None:
        """The form at a place, as this implementation reads it; None where it is none of its kind."""

    @abstractmethod
    def lower(self, form: Form, context: Context) -> Lowered:
        """The graph in which a form is one operation; asked where nothing speaks against it."""

    def named(self, place: Place) -> str:
        """The step that a refusal stands under in `explain`."""
        return str(place)

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        made, refused = Lowered(graph), dict[str, tuple[str, ...]]()
        for place in self.places(graph):
            form = self.form(made.graph, place)
            if form is None:
                continue
            against, cost = self.judged(form, context)
            if against:
                known = refused.get(self.named(place), ())
                refused[self.named(place)] = tuple(dict.fromkeys((*known, *against)))
            else:
                new = self.lower(form, context)
                costs = {} if cost is None else dict.fromkeys(new.chosen, str(cost))
                made = Lowered(new.graph, made.chosen | new.chosen, costs=made.costs | costs)
        return replace(made, refused=refused)


class OfBoxes(AtPlaces[str, Form]):
    """Forms that stand at a box of the diagram."""

    def takes(self, graph: Graph, place: str, context: Context) -> bool:
        form = self.form(graph, place)
        return form is not None and not self.judged(form, context)[0]


def kernel(kind: str, graph: Graph, before: Sequence[Step], body: Sequence[Step], form: object) -> Kernel:
    """A kernel of these steps, which read the graph and what is made `before`."""
    own, made = {step.name for step in body}, {step.name: step.legs for step in before}
    names = dict.fromkeys(use.name for step in body for use in step.op.uses if use.name not in own)
    uses = tuple(Use(name, made[name] if name in made else graph.legs_of(name)) for name in names)
    return Kernel(kind, uses, tuple(body), form)
