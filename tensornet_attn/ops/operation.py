"""The base class of operations. An operation defines all properties of one kind of box, in its own file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import inf
from typing import ClassVar, Literal

from tensornet_attn.ir.arithmetic import to_text
from tensornet_attn.ir.steps import Box, Step, without
from tensornet_attn.ir.steps import Tensor as Leaf
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.ops.given import (
    Checker,
    ForwardEmitter,
    Graph,
    KernelTiles,
    ReferenceEvaluation,
    Scene,
    Tensor,
    Tile,
    TilesOfBox,
)
from tensornet_attn.ops.schema import BoxModel


class Operation(ABC):
    """All properties of a kind of box, with their defaults."""

    kind: str
    model: type[BoxModel] | None = None  # its keys in a design; None if only rewrites create it

    # The language
    masked: ClassVar[bool] = False  # whether masks apply to it along the key leg
    has_leg: ClassVar[bool] = True  # whether its key names a leg
    leg_on_operand: ClassVar[bool] = True  # whether its first operand has this leg
    splits: ClassVar[bool] = False  # whether its leg becomes several legs in the result
    makes_leg: ClassVar[bool] = False  # whether its second leg is new in the result
    has_map: ClassVar[bool] = False  # whether its key names an elementwise map
    modes: tuple[str, ...] = ()  # the values of the key that selects a mode of the box
    mode_key: ClassVar[str] = "normalize"  # that key; None selects the default mode of an optional key

    # Facts for rewriting and planning
    elementwise: ClassVar[bool] = False  # each entry of the result depends on one entry of the operand
    reduces: ClassVar[bool] = False  # the result lacks the leg of the box
    is_sum: ClassVar[bool] = False  # the result is the sum along the leg; sums over parts of it can be added
    accumulates: ClassVar[bool] = False  # an entry is the sum of the entries before it along the leg, or behind it
    log_of_sum: ClassVar[bool] = False  # the result is the logarithm of the sum of exponentials along the leg
    same_of_one: ClassVar[bool] = False  # along a leg of size 1 without masks, the result is the operand
    linear: ClassVar[bool] = False  # the result of a sum is the sum of the results
    recurrent: ClassVar[bool] = False  # carries a state from key to key; causal by definition, only a key mask applies
    runs_along: ClassVar[bool] = False  # an entry depends on all entries along the leg
    looks_back: ClassVar[bool] = False  # no position depends on a later one, even without masks
    zero_where_hidden: ClassVar[bool] = False  # keeps the key leg, with zeros at masked pairs
    only_hides: ClassVar[bool] = False  # the operand at visible pairs, a number elsewhere
    selects: ClassVar[bool] = False  # k entries along the leg, zeros elsewhere
    without_gradient: ClassVar[tuple[str, ...]] = ()  # roles of operands that get no gradient
    logarithms: ClassVar[tuple[str, ...]] = ()  # roles of operands whose exp multiplies a state
    scales: ClassVar[bool] = False  # multiplies each entry by a random number
    keeps_zeros: ClassVar[bool] = True  # zero where the operand is zero; for maps, see `Map.zero`
    ignores_zeros: ClassVar[Literal["always", "nonnegative", "never"]] = "never"  # zero entries have no effect
    takes_float_mask: ClassVar[bool] = True  # whether a float mask can be added to its operand
    divides_by_sum: ClassVar[bool] = False  # divides by a sum along the leg, which should not be near zero
    keeps_sign: ClassVar[bool] = False  # nonnegative where the operand is nonnegative

    # Work and memory
    per_element: ClassVar[int] = 0  # elementwise operations for each element of the operand
    exponential: ClassVar[int] = 0  # exponentials for each element of the operand
    on_triton: ClassVar[bool] = False  # whether Triton has a kernel for it
    by_position: ClassVar[bool] = False  # in strides, by calls for each position or part of a row
    copies: ClassVar[int] = 0  # scratch memory of the forward, in copies of all operands; twice as much in the backward
    # saved for backward: operands by role, `result`, `inner` (another one as large), `row` (a number a row), `chosen`
    saves: tuple[str, ...] = ()
    gradient: ClassVar[str] = ""  # runtime function of the first saved tensor and the gradient; empty: autograd
    operand_gradient: ClassVar[str] = ""  # runtime function of the operand and the gradient, where no mask applies
    cpp_row: ClassVar[tuple[str, str] | None] = None  # C++ of the divisor of a row: what is summed, and of the sum
    row_gradients: ClassVar[Mapping[str, str]] = {}  # gradient functions of operands with one number a row, by role

    # Pictures and code
    look: ClassVar[str] = "box"
    between: ClassVar[str] = " "  # the word before the second leg, in pictures
    inline: ClassVar[bool] = False  # whether its operand's expression may be inlined

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls) and cls.model is not None and "key" not in vars(cls.model):
            cls.model.key = cls.kind  # that of another operation's model stays

    def check(self, box: Checker, name: str, value: int | float, leg: str, other: str) -> None:  # noqa: B027  # most kinds have no check
        """Raises Refusal if a number that is known before run time is invalid."""

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        """The legs of the result. Raises Refusal if the legs of the operands do not fit."""
        return tuple(name for name in box.legs or () if not (self.reduces and name == leg))

    def written_out(self, step: Step, box: Box, query: str | None) -> tuple[list[Step], list[Leaf]]:
        """The steps that the box abbreviates, the last with its name, and their constants; else the step itself."""
        return [step], []

    def finite(self, graph: Graph, box: Box) -> bool:
        """Whether the result and its derivative are finite for finite operands, apart from overflow in a sum."""
        return True

    def nan_slope(self, box: Box) -> bool:
        """Whether the derivative at infinity is NaN, where the gradient of a hidden entry would be zero."""
        return False

    def zero_at_zero(self, graph: Graph, box: Box) -> bool:
        """Whether the result is zero where the operand is zero."""
        return self.keeps_zeros

    def lower_bound(self, graph: Graph, box: Box, below: float) -> float:
        """A lower bound of the result, given the lower bound `below` of the operand."""
        return 0 if self.keeps_sign and below >= 0 else -inf

    def zero_at_hidden(self, box: Box) -> bool:
        """Whether the result of a masked box has the key leg, and is zero where the masks hide."""
        return self.zero_where_hidden

    def zeros_elsewhere(self, box: Box) -> bool:
        """Whether it selects entries and sets the others to zero."""
        return self.selects

    def nothing_elsewhere(self, box: Box) -> bool:
        """Whether it selects entries and sets the others to minus infinity, which a softmax maps to zero."""
        return False

    def legs_mixed(self, box: Box) -> set[str | None]:
        """The legs along which an entry of the result depends on more than one entry of the operand."""
        return {box.leg, box.other}

    def legs_whole(self, graph: Graph, box: Box) -> tuple[str | None, ...]:
        """The legs that must be complete to compute it, and cannot be split into blocks."""
        return (box.leg,)

    def counts_positions(self, box: Box) -> bool:
        """Whether the result depends on the positions of entries along the leg, without mixing entries."""
        return box.leg not in self.legs_mixed(box)

    def by_length(self, box: Box) -> bool:
        """Whether an entry of the result depends on the total length."""
        return False

    @abstractmethod
    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        """The plain implementation of its equation; returns the result and its legs."""

    def products(self, scene: Scene, step: Step, box: Box) -> dict[Legs, int]:
        """MACs for one batch element: a count for each set of legs that a product runs over."""
        return {}

    def operations(self, scene: Scene, step: Step, box: Box) -> int:
        """Elementwise operations over the whole batch; a mask, a scale and a dropout add one for each element."""
        numbers = dict(box.numbers)
        acts = sum(
            name in numbers and scene.number(numbers[name]) != neutral
            for name, neutral in (("scale", 1), ("dropout", 0))
        )
        per_element = self.per_element + bool(scene.graph.masks(step)) + acts
        return per_element * scene.elements(box.of)

    def exponentials(self, box: Box) -> int:
        """Exponentials, or functions that take as long, for each element of the operand."""
        return self.exponential

    def saved(self, box: Box) -> tuple[str, ...]:
        """The tensors saved for the backward of this box, in the form of `saves`."""
        return self.saves

    @property
    def multiplies(self) -> bool:
        """Whether its backward multiplies by entries of operands, so that a masked infinite entry could give NaN."""
        return not (self.linear or self.scales or self.selects or self.recurrent)

    def also_saved(self, scene: Scene, step: Step, box: Box) -> dict[str, int]:
        """Sizes, in elements, of further tensors saved for the backward, by name."""
        return {}

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        """Emits its line of PyTorch without masks. By default, `emit_masked` with the leg moved last and no mask."""
        operand = lines.value(box.of)
        operand = operand.arranged((*without(operand.legs, box.leg), str(box.leg)))
        self.emit_masked(lines, step, box, operand, "None", "None")

    def emit_masked(
        self, lines: ForwardEmitter, step: Step, box: Box, operand: TensorText, keep: str, bias: str
    ) -> None:
        """Emits its line with masks. The leg is the last of `operand`; `keep`, `bias`: names of masks or "None"."""
        raise TypeError(f"masks do not apply to '{self.kind}'.")

    def tile(self, tiles: KernelTiles, step: Step, box: Box) -> Tile | None:
        """Its tile in a kernel without masks, from the tiles of its operands. Returns None if it has no tiles."""
        return None

    def tile_masked(self, tiles: KernelTiles, step: Step, box: Box) -> Tile | None:
        """Its tile of queries x keys with masks. Returns None if it has no such tile."""
        return None

    def tile_along(self, tiles: TilesOfBox, step: Step, box: Box) -> Tile | None:
        """Its tile if several tiles, indexed by `tiles.variable`, cover its leg. Returns None if it has none."""
        return None

    def tile_summed(self, tiles: KernelTiles, step: Step, box: Box) -> Tile | None:
        """A tile of queries x keys whose sum along the keys is the result; with `log_of_sum`, its softmax."""
        return None

    def words(self, box: Box) -> str:
        """Its label in pictures, such as `softmax over m`."""
        if box.leg is None:
            return box.kind
        return f"{box.kind} over {box.leg}" + (f"{self.between}{box.other}" if box.other else "")

    def parameters(self, box: Box, written: dict[str, str]) -> list[str]:
        """Its numbers in pictures; `written` maps the names of those with a non-default value to text."""
        return [f"{name} = {number}" for name, number in written.items()]


class NoBox(Operation):
    """What a step without a box has: all properties at their defaults."""

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        raise TypeError("a step without a box has no reference.")


def check_key_leg(box: Checker, kind: str, leg: str) -> None:
    """Raises Refusal if a box along the keys names another leg."""
    if box.declared[leg].kind != "key" and not box.broken(leg):
        box.written(kind)
        raise Refusal("box-leg", f"'{leg}' is not a key leg.", f"name the key leg, e.g. '{kind}: m'.")


def dim_of(operand: TensorText, leg: str | None) -> int:
    """The dimension of a leg, counted from the end."""
    return operand.legs.index(str(leg)) - len(operand.legs)


def aligned(tensor: Tensor, have: Legs, want: Legs) -> Tensor:
    """`tensor` [batch..., have] with its legs in the order of `want`; missing legs get size 1."""
    batch = tensor.ndim - len(have)
    tensor = tensor.permute([*range(batch), *(batch + have.index(leg) for leg in want if leg in have)])
    return tensor[(..., *(slice(None) if leg in have else None for leg in want))]


def over(dividend: Tensor, divisor: Tensor) -> Tensor:
    """dividend / divisor; where the divisor is zero, the result and its gradients are zero."""
    zero = divisor == 0
    return (dividend / divisor.masked_fill(zero, 1)).masked_fill(zero, 0)


def axis_of(leg: str | None, legs: Legs) -> int:
    """The dimension of a leg counted from the end, so that it is the same with and without a batch."""
    return [*legs].index(leg) - len(legs)  # type: ignore[arg-type]


def call_words(name: str, arguments: tuple[object, ...]) -> str:
    return f"{name}({', '.join(map(to_text, arguments))})" if arguments else name  # type: ignore[arg-type]
