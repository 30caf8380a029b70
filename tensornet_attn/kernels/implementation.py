"""Implementations: an implementation computes forms of a diagram, and states its limits, its cost and its kernels.

It does not refer to other implementations. The planner asks each row of the table in `implementations` for each form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.figures import as_long, instead
from tensornet_attn.cost.kernels import KernelTraits, Parts
from tensornet_attn.cost.order import split_best
from tensornet_attn.cost.products import Matmul
from tensornet_attn.cost.rates import RateTable
from tensornet_attn.cost.seconds import parts_of
from tensornet_attn.cost.target import Target
from tensornet_attn.cost.work import KernelWork
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.attention import attentions
from tensornet_attn.graph.graph import Box, Graph, Kernel, Step, Use
from tensornet_attn.ops.map import arguments, row

Place = TypeVar("Place")
Form = TypeVar("Form")


@dataclass(frozen=True)
class Lowered:
    """A graph after a lowering: the choices by the step that they create, the rejections by the box they concern.

    `costs`: the figures of the choices, if cost decided. `more`: words after earlier choices.
    """

    graph: Graph
    chosen: dict[str, str] = field(default_factory=dict)
    refused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    costs: dict[str, str] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FormCost:
    """The predicted seconds of a form in an implementation, and those of the alternative.

    `but`: the text before both if the implementation does not pay off. `worth`: the implementation pays off up to this
    multiple of the other seconds; `why`: the reason. `where`: the device of the seconds if it is another one; then only
    their ratio is printed.
    """

    cost: float
    alternative: float
    but: str
    worth: float = 1
    why: str = ""
    where: str = ""

    @property
    def pays(self) -> bool:
        return self.cost <= self.worth * self.alternative

    def __str__(self) -> str:
        costs = instead(self.cost, self.alternative)
        if self.where:
            costs = f"{as_long(self.cost, self.alternative)} at the rates of {self.where}"
        return f"{costs}, {self.why}" if self.why and self.pays and self.cost > self.alternative else costs


@dataclass(frozen=True)
class Context:
    """The input of a planning decision: `sizes` of all legs, target, backend, and the rows of the table.

    `forced`: names of implementations, and of rewritings that compare whole plans, that are used wherever they are
    supported, even if they do not pay off.
    """

    sizes: Mapping[str, int]
    target: Target
    backend: str
    rows: tuple[Implementation[Any], ...]
    forced: tuple[str, ...] = ()

    @property
    def device(self) -> Device:
        return self.target.device

    def split(self, graph: Graph) -> Graph:
        """The graph in primitive steps, in the best orders of products."""
        return split_best(graph, self.sizes, self.device, self.device.width)[0]

    def takes(self, graph: Graph, box: str) -> bool:
        """Whether an implementation computes a map without storing it."""
        candidates = [row for row in self.rows if row.alone] if box in attentions(graph) else []
        return any(row.takes(graph, box, self) for row in candidates)


class Rewriting(NamedTuple):
    """A change of the whole diagram that gives maps implementations of their own."""

    name: str
    apply: Callable[[Graph, Context], Lowered]


class Implementation(KernelTraits, ABC, Generic[Form]):
    """One way to compute forms of a diagram: what it takes, the kernels that it makes, their costs and their text.

    `kind`: of its kernels, the name of its file. `alone`: it computes maps without storing them.

    `opaque`: torch.compile treats its kernels as one operation each. `in_reader`: they are part of the kernel that
    reads them, which `explain` lists. `of_recurrences`: it changes kernels of recurrences only.
    """

    name: str
    alone = False
    opaque = False
    work = KernelWork
    in_reader = False
    of_recurrences = False

    def unsupported(self, form: Form, context: Context) -> tuple[str, ...]:
        """Why it cannot compute a form, in sentences; empty if it can."""
        return ()

    def cost(self, form: Form, context: Context) -> FormCost | None:
        """Its cost for a supported form, and that of the alternative; None if it never costs more."""
        return None

    def judged(self, form: Form, context: Context) -> tuple[tuple[str, ...], FormCost | None]:
        """Why a form is not computed this way (unsupported, or too expensive); empty if it is. And the cost."""
        reasons = self.unsupported(form, context)
        cost = None if reasons or self.name in context.forced else self.cost(form, context)
        if cost is None or cost.pays:
            return reasons, cost
        return (f"{cost.but} {cost}",), cost

    @abstractmethod
    def lowered(self, graph: Graph, context: Context) -> Lowered:
        """The graph with one operation for each form that is supported and pays off."""

    def takes(self, graph: Graph, place: str, context: Context) -> bool:
        """Whether it computes the form at a step."""
        return False

    def on_triton(self, form: object) -> bool:
        """Whether Triton has a kernel for a form of this kind."""
        return False

    def in_cpp(self, graph: Graph, step: Step) -> bool:
        """Whether C++ has a kernel for a kernel of this kind."""
        return False

    @abstractmethod
    def emit(self, writer: Writer, step: Step) -> None:
        """Emits the call of a kernel."""

    def plain(self, step: Step) -> bool:
        """Whether a strict plan for C++ or Triton leaves a kernel to torch, as it does products and boxes."""
        return False

    def marked(self, graph: Graph) -> Graph:
        """Marks the kernels of this kind that C++ computes."""

        def marked_step(step: Step) -> Step:
            op = step.kernel if step.kernel and step.kernel.kind == self.kind else None
            return step if op is None or not self.in_cpp(graph, step) else replace(step, op=replace(op, cpp=True))

        return replace(graph, steps=tuple(map(marked_step, graph.steps)))


class WorkOfSteps(KernelWork):
    """The work of the steps inside, each by itself."""

    @property
    def kept(self) -> dict[str, int]:
        return {}

    @property
    def stored(self) -> dict[str, int]:
        return self.saved_inside

    @property
    def gradient_macs(self) -> int:
        return self.learned * sum(work.gradient_macs for work in self.works)

    @property
    def matmuls(self) -> list[Matmul]:
        return [matmul for work in self.works for matmul in work.matmuls]

    def seconds(self, table: RateTable, backward: bool) -> Parts:
        seconds, in_cpp = defaultdict[str, float](float), self.step.kernel is not None and self.step.kernel.cpp
        for inner_step in self.inner_steps:
            for kind, each in parts_of(self.inner, inner_step, table, backward, in_cpp).items():
                seconds[kind] += each
        return seconds

    def scratch(self, device: Device) -> tuple[int, int]:
        """The most of a step inside, forward and backward."""
        forward, backward = zip(*(work.scratch(device) for work in self.works), strict=True)
        return max(forward), max(backward)


class OfSteps(KernelTraits):
    """Kernels that cost what the steps inside do, each by itself."""

    by_steps, work = True, WorkOfSteps


class AtPlaces(Implementation[Form], Generic[Place, Form]):
    """An implementation whose forms are lowered one after another, each at its place."""

    @abstractmethod
    def places(self, graph: Graph) -> Iterable[Place]:
        """The places where a graph may have a form of this kind, usually steps."""

    @abstractmethod
    def form(self, graph: Graph, place: Place) -> Form | None:
        """The form at a place; None if there is none of this kind."""

    @abstractmethod
    def lower(self, form: Form, context: Context) -> Lowered:
        """The graph with one operation for a form that is supported and pays off."""

    def named(self, place: Place) -> str:
        """The step under which `explain` lists a rejection."""
        return str(place)

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        lowered, refused = Lowered(graph), dict[str, tuple[str, ...]]()
        for place in self.places(graph):
            form = self.form(lowered.graph, place)
            if form is None:
                continue
            against, cost = self.judged(form, context)
            if against:
                earlier = refused.get(self.named(place), ())
                refused[self.named(place)] = tuple(dict.fromkeys((*earlier, *against)))
            else:
                new = self.lower(form, context)
                costs = {} if cost is None else dict.fromkeys(new.chosen, str(cost))
                lowered = Lowered(new.graph, lowered.chosen | new.chosen, costs=lowered.costs | costs)
        return replace(lowered, refused=refused)


class OfBoxes(AtPlaces[str, Form]):
    """An implementation whose forms are at boxes of the diagram."""

    def takes(self, graph: Graph, place: str, context: Context) -> bool:
        form = self.form(graph, place)
        return form is not None and not self.judged(form, context)[0]


def is_map(step: Step) -> bool:
    """Whether a step is an elementwise map without arguments."""
    return step.box is not None and step.box.function is not None and not arguments(step.box)


def has_slope(box: Box) -> bool:
    """Whether kernels that are not of torch compute a map and its gradient."""
    return bool(row(box).triton and row(box).slope)


def leg_sizes(graph: Graph, sizes: Mapping[str, int] | None = None) -> dict[str, int]:
    """The sizes of all legs; `sizes`: those of legs that the graph knows no size of, which else count as 1."""
    return {leg.name: leg.size or 1 for leg in graph.legs} | dict(sizes or {})


def kernel(kind: str, graph: Graph, before: Sequence[Step], body: Sequence[Step], form: object) -> Kernel:
    """A kernel of the steps `body`, which read the graph and the results of the steps `before`."""
    body_names, legs_before = {step.name for step in body}, {step.name: step.legs for step in before}
    names = dict.fromkeys(use.name for step in body for use in step.uses if use.name not in body_names)
    uses = tuple(Use(name, legs_before[name] if name in legs_before else graph.legs_of(name)) for name in names)
    return Kernel(kind, uses, tuple(body), form)
