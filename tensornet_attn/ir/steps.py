"""The parts of a diagram: tensors, uses, and the operations of steps."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tensornet_attn.ir.arithmetic import ONE, Arith, Negative

LOGIC = {"or": 1, "and": 2, "not": 3}  # operators of masks: precedence


@dataclass(frozen=True)
class Function:
    """A name with arguments, as `softcap(30)` or `kron(eye(h), ones(d, d))`; those of `or`, `and`, `not` are masks."""

    name: str
    arguments: tuple[Function | Arith, ...] = ()

    def to_text(self, number: Callable[[Arith], str]) -> str:
        """The text in a design: `relu`, `band(5)`, `causal and not (band(5) or prefix(2))`."""
        precedence, texts = LOGIC.get(self.name, 0), list[str]()
        for argument in self.arguments:
            if not isinstance(argument, Function):
                texts.append(number(argument))
            elif LOGIC.get(argument.name, 4) < precedence:
                texts.append(f"({argument.to_text(number)})")
            else:
                texts.append(argument.to_text(number))
        if self.name == "not":
            return f"not {texts[0]}"
        if precedence:
            return f" {self.name} ".join(texts)
        return f"{self.name}({', '.join(texts)})" if texts else self.name


@dataclass(frozen=True)
class Use:
    """A tensor or a step with its legs renamed by position."""

    name: str
    legs: tuple[str, ...]

    def renamed(self, names: Mapping[str, str]) -> Use:
        """The use with new names for legs; the others stay."""
        return Use(self.name, tuple(names.get(leg, leg) for leg in self.legs))


@dataclass(frozen=True)
class Tensor:
    """A leaf of the diagram; `role` is input, weight, constant, noise or state.

    `stored` groups the legs of a weight with split legs by the dimensions of the stored tensor: (f), (h d).
    """

    name: str
    role: str
    legs: tuple[str, ...]
    init: Function | None = None  # of a weight or a state; for a constant, its value
    frozen: bool = False
    default: str | None = None  # of an input: the input that replaces an omitted argument
    std: Arith = ONE  # of noise
    always: bool = False  # of noise
    update: str | None = None  # of a state: the step whose value is stored
    stored: tuple[tuple[str, ...], ...] = ()  # of a weight: (), if each leg is a dimension
    finite: bool = False  # of an input of a decoding step: nothing infinite is in it where the key mask hides it
    wide: bool = False  # of an input of a decoding step: at least float32, whatever the dtype of the layer

    @property
    def use(self) -> Use:
        """The tensor, with its own legs."""
        return Use(self.name, self.legs)


def legs_in(uses: Iterable[Use]) -> set[str]:
    return {leg for use in uses for leg in use.legs}


def within(legs: Iterable[str], others: Container[str | None]) -> tuple[str, ...]:
    """The legs that are also among others, in their order."""
    return tuple(leg for leg in legs if leg in others)


def without(legs: Iterable[str], *others: str | None) -> tuple[str, ...]:
    """The legs that are not among others."""
    return tuple(leg for leg in legs if leg not in others)


@dataclass(frozen=True)
class Term:
    """A coefficient times a product of uses; without factors, the coefficient."""

    coefficient: Arith
    factors: tuple[Use, ...]


def plus(*factors: Use) -> Term:
    return Term(ONE, factors)


def minus(*factors: Use) -> Term:
    return Term(Negative(ONE), factors)


@dataclass(frozen=True)
class Contraction:
    """A sum of products. A term sums its legs that the result lacks, and broadcasts over result legs that it lacks."""

    terms: tuple[Term, ...]

    @classmethod
    def of(cls, *factors: Use) -> Contraction:
        """One product."""
        return cls((plus(*factors),))

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        return tuple(use for term in self.terms for use in term.factors)


@dataclass(frozen=True)
class Visible:
    """The entries visible to a masked box, in the legs of another step.

    `masks` are those of the design. `legs` are the box's legs other than query and key, which a mask of the call may
    have, in the order written, each with the matching leg of the step. The match is None if the step lacks the leg; an
    entry is then visible if it is visible anywhere along the leg. If `legs` is None, only a key mask hides entries.
    """

    masks: tuple[Function, ...] = ()
    legs: tuple[tuple[str, str | None], ...] | None = None


Seen = frozenset[frozenset[Visible]]  # the union of alternatives; an alternative is the intersection of its parts


@dataclass(frozen=True)
class Box:
    """A box: its kind, its leg, its operands by role, and its parameters.

    `operands`: (role, use) pairs; most boxes have only `of`, `topk` of and by, `delta_rule` query, key, value, rate.
    `numbers`: the box's numbers such as scale, dropout, eps, k, base and fraction, including defaults.
    `masks`: as written in the box; `Graph.masks` adds the design's `causal`.
    `other`: the second leg, such as `along` of rope. `function`: the map. `mode`: as delta_rule's `normalize`.
    `seen`: for the box `hide`, which only rewrites create, the entries visible to its readers; others become `fill`.
    `parts`: for `join` and `split`, the legs that form the joined leg, in the order of its entries.
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
        """The legs that the box names; operands cannot be renamed without the box."""
        return tuple(leg for leg in (self.leg, self.other, *self.parts) if leg is not None)

    def renamed(self, names: Mapping[str, str]) -> Box:
        """The box with renamed legs and unchanged operands."""
        leg, other = (None if leg is None else names.get(leg, leg) for leg in (self.leg, self.other))
        return replace(self, leg=leg, other=other, parts=tuple(names.get(leg, leg) for leg in self.parts))

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        return tuple(use for _, use in self.operands)

    @property
    def joins(self) -> bool:
        """Whether the box has several operands. Their legs may match, so no leg can be removed or split separately."""
        return len(self.operands) > 1

    @property
    def of(self) -> Use:
        """The operand of a box that has one."""
        return self.operand("of")

    def operand(self, role: str) -> Use:
        return dict(self.operands)[role]

    def number(self, name: str) -> Arith:
        return dict(self.numbers)[name]


@dataclass(frozen=True)
class Kernel:
    """Several steps of the diagram as one operation, created by the planner; `kind` names its implementation.

    `body` has the original steps; the last has the name and the result of the kernel's step. `uses` are the outside
    tensors that the body reads, each once, under their own leg names, with sequence legs as they are read. `form`
    describes the same computation in the named fields of its kind, derived from the body. `hidden`: (tensor, step)
    pairs; on the key leg, the step is read instead of the tensor, whose hidden keys may be infinite. `cpp`: generated
    C++ computes it.
    """

    kind: str
    uses: tuple[Use, ...]
    body: tuple[Step, ...]
    form: object = field(default=None, repr=False, compare=False)
    hidden: tuple[tuple[str, str], ...] = ()
    cpp: bool = False

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(step.name for step in self.body)


@dataclass(frozen=True)
class Step:
    """A named result: its operation and its legs in the order written.

    A box or expression nested in a box is a separate step, named after its place: `A.of`, `Gs.by`, `A.of.of`.
    """

    name: str
    op: Contraction | Box | Kernel
    legs: tuple[str, ...]

    @property
    def nested(self) -> bool:
        return "." in self.name

    @property
    def use(self) -> Use:
        """The result, with its own legs."""
        return Use(self.name, self.legs)

    @property
    def uses(self) -> tuple[Use, ...]:
        return self.op.uses

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names of the tensors and steps that it uses."""
        return frozenset(use.name for use in self.uses)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of a sum of products; other operations have none."""
        return self.op.terms if isinstance(self.op, Contraction) else ()

    @property
    def contraction(self) -> Contraction | None:
        """The operation if it is a sum of products, otherwise None."""
        return self.op if isinstance(self.op, Contraction) else None

    @property
    def box(self) -> Box | None:
        """The operation if it is a box, otherwise None."""
        return self.op if isinstance(self.op, Box) else None

    @property
    def kernel(self) -> Kernel | None:
        """The operation if it is a kernel of several steps, otherwise None."""
        return self.op if isinstance(self.op, Kernel) else None

    @property
    def form(self) -> object:
        """The form of a kernel, None if there is none."""
        return self.op.form if isinstance(self.op, Kernel) else None

    @property
    def arithmetic(self) -> tuple[Arith, ...]:
        """The coefficients of a sum of products, or the numbers of a box."""
        if isinstance(self.op, Contraction):
            return tuple(term.coefficient for term in self.op.terms)
        return tuple(number for _, number in self.op.numbers) if isinstance(self.op, Box) else ()


def with_terms(step: Step, terms: Iterable[Term]) -> Step:
    """A sum of other products under the same name."""
    return replace(step, op=Contraction(tuple(terms)))


def with_uses(step: Step, change: Callable[[Use], Use]) -> Step:
    """A step, other than a kernel, with `change` applied to all its uses."""
    if step.box is not None:
        operands = tuple((role, change(use)) for role, use in step.box.operands)
        return replace(step, op=replace(step.box, operands=operands))
    terms = tuple(replace(term, factors=tuple(map(change, term.factors))) for term in step.terms)
    return with_terms(step, terms)


@dataclass(frozen=True)
class Loss:
    """An auxiliary loss: a step without legs, and its weight in training."""

    name: str
    step: str
    weight: Arith
