"""What a diagram is made of, as plain data: tensors, uses, and the operations of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tensornet_attn.ir.arithmetic import ONE, Arith

LOGIC = {"or": 1, "and": 2, "not": 3}  # words that join masks: how tightly each binds


@dataclass(frozen=True)
class Function:
    """`softcap(30)`, `band(5)`, `kron(eye(h), ones(d, d))`: a name and its arguments; of `or`, `and`, `not` masks."""

    name: str
    arguments: tuple[Function | Arith, ...] = ()

    def to_text(self, number: Callable[[Arith], str]) -> str:
        """As it is written: `relu`, `band(5)`, `causal and not (band(5) or prefix(2))`."""
        own = LOGIC.get(self.name)
        if own is None:
            texts = [part.to_text(number) if isinstance(part, Function) else number(part) for part in self.arguments]
            return f"{self.name}({', '.join(texts)})" if texts else self.name
        texts = []
        for part in self.arguments:
            text = part.to_text(number) if isinstance(part, Function) else number(part)
            texts.append(f"({text})" if isinstance(part, Function) and LOGIC.get(part.name, 4) < own else text)
        return f"not {texts[0]}" if self.name == "not" else f" {self.name} ".join(texts)


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
    `parts`: of `join` and `split`, the legs that are the leg together, in the order of their entries.
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
    parts: tuple[str, ...] = ()

    @cached_property
    def acting(self) -> tuple[str, ...]:
        """The legs that it names: an operand may not lack or rename them by itself."""
        return tuple(leg for leg in (self.leg, self.other, *self.parts) if leg is not None)

    def renamed(self, names: Mapping[str, str]) -> Box:
        """The same along legs of other names; its operands stay."""
        leg, other = (None if leg is None else names.get(leg, leg) for leg in (self.leg, self.other))
        return replace(self, leg=leg, other=other, parts=tuple(names.get(leg, leg) for leg in self.parts))

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        return tuple(use for _, use in self.operands)

    @property
    def joins(self) -> bool:
        """Whether it has several operands: a leg of one may meet legs of the others, so none is taken out or split."""
        return len(self.operands) > 1

    def operand(self, role: str) -> Use:
        return dict(self.operands)[role]

    def number(self, name: str) -> Arith:
        return dict(self.numbers)[name]


@dataclass(frozen=True)
class FusedAttention:
    """Softmax attention as one fused operation, made by the planner only: the scores never stand in memory.

    softmax over `leg` of scale * (query . key), times value, summed over `leg`. Legs that query and key share, and the
    scores lack, are summed inside. `steps` names the steps of the diagram that it does at once. The softmax also runs
    over the legs `beside` the key leg, which the key has and the value lacks: several keys of one position. `sink`: one
    more score, of no value.
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
    sink: Use | None = None

    @property
    def uses(self) -> tuple[Use, ...]:
        return (self.query, self.key, self.value, *([self.sink] if self.sink else []))


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
    op: Contraction | Box | FusedAttention | Kernel
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
    def kernel(self) -> Kernel | None:
        """The operation, where it is steps that the planner computes as one."""
        return self.op if isinstance(self.op, Kernel) else None

    @property
    def form(self) -> object:
        """What a kernel computes, in named fields; None where it has none."""
        return self.op.form if isinstance(self.op, Kernel) else None

    @property
    def attention(self) -> FusedAttention | None:
        """The operation, where it is attention that the planner fused."""
        return self.op if isinstance(self.op, FusedAttention) else None

    @property
    def fused(self) -> FusedAttention | Kernel | None:
        """The operation, where the planner made it of several steps."""
        return self.op if isinstance(self.op, FusedAttention | Kernel) else None


def with_uses(step: Step, change: Callable[[Use], Use]) -> Step:
    """A sum of products, a box, or fused attention, with every use changed."""
    if step.attention is not None:
        query, key, value, *sink = map(change, step.attention.uses)
        changed = replace(step.attention, query=query, key=key, value=value, sink=next(iter(sink), None))
        return replace(step, op=changed)
    if step.box is not None:
        operands = tuple((role, change(use)) for role, use in step.box.operands)
        return replace(step, op=replace(step.box, operands=operands))
    terms = step.contraction.terms if step.contraction is not None else ()
    sums = tuple(replace(term, factors=tuple(map(change, term.factors))) for term in terms)
    return replace(step, op=Contraction(sums))


@dataclass(frozen=True)
class Loss:
    """An auxiliary loss: a step without legs, and what training multiplies it by."""

    name: str
    step: str
    weight: Arith
