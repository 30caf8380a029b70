"""The diagram as an immutable graph: tensors and steps, joined by named legs (a leg may join many tensors)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from tensornet_attn.spec.arithmetic import ONE, Arith, evaluate
from tensornet_attn.spec.sizes import Leg

__all__ = [
    "MASKED_BOXES",
    "REDUCTIONS",
    "Attention",
    "Box",
    "Contraction",
    "Diagram",
    "Function",
    "Kernel",
    "Leg",
    "Loss",
    "Seen",
    "Step",
    "Tensor",
    "Term",
    "Use",
    "Visible",
]

MASKED_BOXES = frozenset({"softmax", "normalize", "keep", "sum", "mean", "max", "logsumexp"})
REDUCTIONS = frozenset({"logsumexp", "max", "sum", "mean"})


@dataclass(frozen=True)
class Function:
    """`softcap(30)`, `band(5)`, `kron(eye(h), ones(d, d))`: a name and its arguments."""

    name: str
    arguments: tuple[Function | Arith, ...] = ()


@dataclass(frozen=True)
class Tensor:
    """A leaf of the diagram; `role` is input, weight, constant, noise or state.

    `stored`: of a weight whose legs were split, which of them are one dimension where it is stored: (f), (h d).
    """

    name: str
    role: str
    legs: tuple[str, ...]
    init: Function | None = None  # of a weight or state; the value of a constant
    frozen: bool = False
    default: str | None = None  # an input: the input it is when not given
    std: Arith = ONE  # noise
    always: bool = False  # noise
    update: str | None = None  # state: the step whose value is stored
    stored: tuple[tuple[str, ...], ...] = ()  # weight: (), each leg is a dimension of its own


@dataclass(frozen=True)
class Use:
    """A tensor or step, its legs renamed by position."""

    name: str
    legs: tuple[str, ...]


@dataclass(frozen=True)
class Term:
    """A product of uses times a coefficient; no factors means the coefficient alone."""

    coefficient: Arith
    factors: tuple[Use, ...]


@dataclass(frozen=True)
class Contraction:
    """A sum of products. Legs of a term that the result lacks are summed; result legs it lacks are broadcast."""

    terms: tuple[Term, ...]

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        return tuple(use for term in self.terms for use in term.factors)


@dataclass(frozen=True)
class Visible:
    """Where a masked box may look, in the legs of another step.

    `masks`: those of the design. `legs`: the box's own beside query and key, which a mask of the call may name, in
    written order, each with the leg of the step that it is; None where the step lacks it: then an entry is seen that is
    seen anywhere along that leg. Without `legs`, a key mask alone hides something.
    """

    masks: tuple[Function, ...] = ()
    legs: tuple[tuple[str, str | None], ...] | None = None


Seen = frozenset[frozenset[Visible]]  # what any of these sees; each sees what is visible to all of its own


@dataclass(frozen=True)
class Box:
    """One box: its kind, the leg it acts along, its operands by role, and its parameters.

    `operands`: (role, use) pairs; the role is `of`, but for `topk` (of, by) and `delta_rule` (query, key, value, rate).
    `numbers`: scale, dropout, eps, k, base, fraction, where the box has them, defaults filled in.
    `masks`: as written in the box; the design's own `causal` is in `Graph.masks`.
    `other`: the second leg of rope (`along`), of rel_shift (`to`). `function`: the map. `mode`: delta_rule's normalize.
    `seen`: of the box `hide`, which no design has, what its readers see: elsewhere it holds a number, `fill`.
    """

    kind: str
    leg: str | None
    operands: tuple[tuple[str, Use], ...]
    numbers: tuple[tuple[str, Arith], ...] = ()
    masks: tuple[Function, ...] = ()
    other: str | None = None
    function: Function | None = None
    mode: str | None = None
    seen: Seen = frozenset()

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        return tuple(use for _, use in self.operands)

    def operand(self, role: str) -> Use:
        return dict(self.operands)[role]

    def number(self, name: str) -> Arith:
        return dict(self.numbers)[name]


@dataclass(frozen=True)
class Attention:
    """Softmax attention as one fused operation, made by the planner only: the scores never stand in memory.

    softmax over `leg` of scale * (query . key), times value, summed over `leg`. Legs that query and key share, and the
    scores lack, are summed inside. `steps` names the steps of the diagram that it does at once. The softmax also runs
    over the legs `beside` the key leg, which the key has and the value lacks: several keys of one position.
    """

    leg: str
    query: Use
    key: Use
    value: Use
    scores: tuple[str, ...]  # legs of the softmax box, in written order
    scale: Arith
    dropout: Arith
    masks: tuple[Function, ...]
    steps: tuple[str, ...]
    beside: tuple[str, ...] = ()

    @property
    def uses(self) -> tuple[Use, ...]:
        return (self.query, self.key, self.value)


@dataclass(frozen=True)
class Kernel:
    """Steps of the diagram as one operation, made by the planner only; `kind` names how it is computed.

    `body`: the steps it computes, as the graph had them; the last one has the name, and gives the result, of the step
    that this operation is of. `uses`: what the body reads from outside, each tensor once, under its own leg names.
    `form`: the same in named fields, as its kind has them, derived from the body.
    """

    kind: str
    uses: tuple[Use, ...]
    body: tuple[Step, ...]
    form: object = field(default=None, repr=False, compare=False)

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(step.name for step in self.body)


@dataclass(frozen=True)
class Step:
    """A named result: its operation and its legs in written order.

    A box or expression nested inside a box is a step of its own, named after its place: `A.of`, `Gs.by`, `A.of.of`.
    """

    name: str
    op: Contraction | Box | Attention | Kernel
    legs: tuple[str, ...]

    @property
    def nested(self) -> bool:
        return "." in self.name

    @property
    def contraction(self) -> Contraction | None:
        """The operation, where it is a sum of products."""
        return self.op if isinstance(self.op, Contraction) else None

    @property
    def box(self) -> Box | None:
        """The operation, where it is a box of the language."""
        return self.op if isinstance(self.op, Box) else None

    @property
    def fused(self) -> Attention | Kernel | None:
        """The operation, where the planner made it of several steps."""
        return self.op if isinstance(self.op, Attention | Kernel) else None

    @property
    def attention(self) -> Attention | None:
        """The operation, where it is fused attention."""
        return self.op if isinstance(self.op, Attention) else None

    @property
    def kernel(self) -> Kernel | None:
        """The operation, where it is a kernel of several steps."""
        return self.op if isinstance(self.op, Kernel) else None

    @property
    def form(self) -> object:
        """What a kernel computes, in named fields; None where it has none."""
        return self.op.form if isinstance(self.op, Kernel) else None


@dataclass(frozen=True)
class Loss:
    """An auxiliary loss: a step without legs, and what training multiplies it by."""

    name: str
    step: str
    weight: Arith


@dataclass(frozen=True)
class Diagram:
    """The data of a `Graph`. Steps stand in an order in which each may be computed from what stands before it."""

    name: str
    legs: tuple[Leg, ...]
    settings: tuple[tuple[str, int | float], ...]
    tensors: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    output: str
    causal: bool = False
    losses: tuple[Loss, ...] = ()

    @cached_property
    def leg(self) -> dict[str, Leg]:
        return {leg.name: leg for leg in self.legs}

    @cached_property
    def tensor(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def step(self) -> dict[str, Step]:
        return {step.name: step for step in self.steps}

    @cached_property
    def query(self) -> str | None:
        return next((leg.name for leg in self.legs if leg.kind == "query"), None)

    @cached_property
    def key(self) -> str | None:
        return next((leg.name for leg in self.legs if leg.kind == "key"), None)

    @cached_property
    def values(self) -> dict[str, int | float]:
        """What names in arithmetic stand for: settings and the sizes known before run time."""
        return dict(self.settings) | {leg.name: leg.size for leg in self.legs if leg.size is not None}

    def of_role(self, role: str) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.role == role)

    def legs_of(self, name: str) -> tuple[str, ...]:
        """The legs of a tensor or step, in the order declared or written."""
        return (self.tensor.get(name) or self.step[name]).legs

    def shape_of(self, name: str) -> tuple[int | None, ...]:
        """The stored shape of a weight, constant or state; None on legs sized at run time."""
        tensor = self.tensor[name]
        if tensor.stored:
            return tuple(prod(self.leg[leg].stored or 1 for leg in group) for group in tensor.stored)
        return tuple(self.leg[leg].stored for leg in tensor.legs)

    def masks(self, step: Step) -> tuple[Function, ...]:
        """The masks of a box: its own, and `causal` where the design is causal and the box acts over keys."""
        box = step.op
        if not isinstance(box, Box) or not self.masked(step):
            return ()
        causal = Function("causal")
        query = self.query in box.operand("of").legs
        return (*box.masks, causal) if self.causal and query and causal not in box.masks else box.masks

    def masked(self, step: Step) -> bool:
        """Whether masks act in this step: a masked box along the key leg."""
        return (
            isinstance(step.op, Box)
            and step.op.kind in MASKED_BOXES
            and step.op.leg is not None
            and step.op.leg == self.key
        )

    @cached_property
    def updates(self) -> tuple[tuple[str, str], ...]:
        """(state, step) pairs: after a training call the step's value is stored in the state."""
        return tuple((t.name, t.update) for t in self.tensors if t.role == "state" and t.update is not None)

    @cached_property
    def loss_weights(self) -> dict[str, float]:
        """What training multiplies each loss by, by the loss's name."""
        return {loss.name: float(evaluate(loss.weight, self.values)) for loss in self.losses}

    @cached_property
    def results(self) -> frozenset[str]:
        """The steps that are wanted for themselves: the output, what a state stores, and losses."""
        return frozenset({self.output, *(step for _, step in self.updates), *(loss.step for loss in self.losses)})

    @cached_property
    def tied(self) -> bool:
        """Whether a tensor declared on one sequence leg is used on the other: self-attention, both have one length."""
        pair, known = {self.query, self.key}, self.tensor.keys() | self.step.keys()
        inside = [part.op for step in self.steps if isinstance(step.op, Kernel) for part in step.op.body]
        return any(
            own != leg and {own, leg} == pair
            for op in (*(step.op for step in self.steps), *inside)
            for use in op.uses
            if use.name in known
            for own, leg in zip(self.legs_of(use.name), use.legs, strict=True)
        )

    def uses(self) -> Iterator[tuple[Step, Use]]:
        for step in self.steps:
            for use in step.op.uses:
                yield step, use

    @cached_property
    def readers(self) -> dict[str, tuple[tuple[Step, Use], ...]]:
        """The uses of every tensor and step that is used, each with the step it stands in."""
        found: dict[str, list[tuple[Step, Use]]] = {}
        for step, use in self.uses():
            found.setdefault(use.name, []).append((step, use))
        return {name: tuple(uses) for name, uses in found.items()}
