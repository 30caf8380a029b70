"""An operation: all that the package knows of one kind of box. Each kind answers in a file of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import inf
from typing import ClassVar, Literal

from tensornet_attn.ir.arithmetic import to_text
from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.steps import Tensor as Leaf
from tensornet_attn.ir.values import Legs, Value
from tensornet_attn.ops.given import Checker, Graph, KernelTiles, Lines, Run, Scene, Tensor, Tile, Tiles
from tensornet_attn.ops.model import BoxModel


class Operation(ABC):
    """What there is to know of a kind of box; what is said here holds where a kind says nothing else."""

    kind: str
    model: type[BoxModel] | None = None  # its keys in a design; None: rewriting alone makes it

    # The language
    masked: ClassVar[bool] = False  # whether masks act in it along the key leg
    has_leg: ClassVar[bool] = True  # whether its key names a leg
    leg_on_operand: ClassVar[bool] = True  # whether its first operand has this leg
    splits: ClassVar[bool] = False  # whether its leg of the operand is several in the result
    makes_leg: ClassVar[bool] = False  # whether its second leg is one that the operand lacks
    has_map: ClassVar[bool] = False  # whether its key names an elementwise map
    modes: tuple[str, ...] = ()  # the values of the key that chooses between ways of one box
    mode_key: ClassVar[str] = "normalize"  # that key; one that may be left out has None for its usual way

    # Facts for rewriting and planning
    elementwise: ClassVar[bool] = False  # every entry by itself, whatever its legs are
    reduces: ClassVar[bool] = False  # its result lacks the leg that it runs over
    is_sum: ClassVar[bool] = False  # its result is the sum along its leg, so that parts of the leg add up
    log_of_sum: ClassVar[bool] = False  # its result is the logarithm of the sum of exponentials along its leg
    same_of_one: ClassVar[bool] = False  # along a leg of one entry, which no mask hides, its result is that entry
    linear: ClassVar[bool] = False  # of a sum it is the sum
    recurrent: ClassVar[bool] = False  # runs from key to key with a state; causal by nature, a key mask alone acts
    runs_along: ClassVar[bool] = False  # an entry needs all entries along the leg
    looks_back: ClassVar[bool] = False  # no later position reaches an earlier one, with no mask at all
    zero_where_hidden: ClassVar[bool] = False  # keeps the key leg, with zeros where masks hide
    only_hides: ClassVar[bool] = False  # its operand where it may look, a number elsewhere
    selects: ClassVar[bool] = False  # k entries along its leg, zeros elsewhere
    without_gradient: ClassVar[tuple[str, ...]] = ()  # operands, by role, that decide and are no part of the result
    logarithms: ClassVar[tuple[str, ...]] = ()  # operands, by role, of which a state is multiplied by the exp
    scales: ClassVar[bool] = False  # every entry is multiplied by a number, drawn as its `dropout` says
    keeps_zeros: ClassVar[bool] = True  # zero where its operands are; those of maps say so themselves
    ignores_zeros: ClassVar[Literal["always", "nonnegative", "never"]] = "never"  # entries that are zero change nothing
    takes_float_mask: ClassVar[bool] = True  # whether the numbers of a float mask can be added in it
    divides_by_sum: ClassVar[bool] = False  # by a sum along the leg, which should not be near zero
    keeps_sign: ClassVar[bool] = False  # not negative where its operand is not

    # Work and memory
    per_element: ClassVar[int] = 0  # elementwise operations for each number of the operand
    saves: tuple[str, ...] = ()  # for the backward: operands by role, `result`, `row` (a number each), `chosen`
    gradient: ClassVar[str] = ""  # the runtime's function of what it `saves` first and of its gradient; else torch's
    row_gradients: ClassVar[Mapping[str, str]] = {}  # beside it, of operands with a number a row: the same, by role

    # Pictures and code
    look: ClassVar[str] = "box"
    between: ClassVar[str] = " "  # the word before the second leg
    inline: ClassVar[bool] = False  # whether its operand may be written inside its line

    def check(self, box: Checker, name: str, value: int | float, leg: str, other: str) -> None:  # noqa: B027  # most have nothing to refuse
        """Raises Refusal where a number that is known now cannot be."""

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        """The legs of the result. Raises Refusal where operands do not fit."""
        return tuple(name for name in box.legs or () if not (self.reduces and name == leg))

    def written_out(self, step: Step, box: Box, query: str | None) -> tuple[list[Step], list[Leaf]]:
        """The steps that it is short for, the last of its name, and the constants that they need; else itself."""
        return [step], []

    def finite(self, graph: Graph, box: Box) -> bool:
        """Whether it is a number at every number, and its derivative too; but for what overflows in a sum."""
        return True

    def zero_at_zero(self, graph: Graph, box: Box) -> bool:
        """Whether it is zero where its operand is."""
        return self.keeps_zeros

    def lower_bound(self, graph: Graph, box: Box, below: float) -> float:
        """A number that no value is below; `below`: one for the operand."""
        return 0 if self.keeps_sign and below >= 0 else -inf

    def zeros_elsewhere(self, box: Box) -> bool:
        """Whether it selects entries, and all others are zero."""
        return self.selects

    def nothing_elsewhere(self, box: Box) -> bool:
        """Whether it selects entries, and all others are minus infinity, of which a softmax makes zeros."""
        return False

    def legs_mixed(self, box: Box) -> set[str | None]:
        """The legs along which an entry of the result takes more than one entry of the operand."""
        return {box.leg, box.other}

    def legs_whole(self, graph: Graph, box: Box) -> tuple[str | None, ...]:
        """The legs of which no block may be missing to compute it."""
        return (box.leg,)

    def counts_positions(self, box: Box) -> bool:
        """Whether it counts where its entries stand along its leg, one by one, as `legs_mixed` says."""
        return box.leg not in self.legs_mixed(box)

    def by_length(self, box: Box) -> bool:
        """Whether an entry is another one where more positions follow."""
        return False

    @abstractmethod
    def reference(self, run: Run, step: Step, box: Box) -> tuple[Tensor, Legs]:
        """What it computes, as plainly as the equation, and the legs of that."""

    def products(self, scene: Scene, step: Step, box: Box) -> dict[Legs, int]:
        """Multiply-adds of one batch element, by the legs they run over."""
        return {}

    def operations(self, scene: Scene, step: Step, box: Box) -> int:
        """Elementwise operations over the whole batch: one more for each number for a mask, a scale and a dropout."""
        numbers = dict(box.numbers)
        acts = sum(name in numbers and scene.number(numbers[name]) != at for name, at in (("scale", 1), ("dropout", 0)))
        each = self.per_element + bool(scene.graph.masks(step)) + acts
        return each * scene.elements(box.operand("of"))

    def saved(self, box: Box) -> tuple[str, ...]:
        """What `saves` says, of a box."""
        return self.saves

    @property
    def multiplies(self) -> bool:
        """Whether its backward multiplies by entries of operands: an infinite one that masks hide then does harm."""
        return not (self.linear or self.scales or self.selects or self.recurrent)

    def also_saved(self, scene: Scene, step: Step, box: Box) -> dict[str, int]:
        """Floats that its backward keeps beside these, by a name of their own."""
        return {}

    def emit(self, lines: Lines, step: Step, box: Box) -> None:
        """Its line of PyTorch, where no masks act: that with masks, without any, along the last leg."""
        value = lines.value(box.operand("of"))
        value = value.arranged((*without(value.legs, box.leg), str(box.leg)))
        self.emit_masked(lines, step, box, value, "None", "None")

    def emit_masked(self, lines: Lines, step: Step, box: Box, value: Value, keep: str, bias: str) -> None:
        """Its line where masks act: `value` has the leg last; `keep` and `bias` are names, or None."""
        raise TypeError(f"no mask acts in '{self.kind}'.")

    def tile(self, tiles: KernelTiles, step: Step, box: Box) -> Tile | None:
        """Its tile in a kernel where no masks act, made of those of its operands; None where there are none."""
        return None

    def tile_masked(self, tiles: KernelTiles, step: Step, box: Box) -> Tile | None:
        """Its tile of queries x keys where masks act; None where there are none."""
        return None

    def tile_along(self, tiles: Tiles, step: Step, box: Box) -> Tile | None:
        """Its tile where its leg has tiles beside each other, over `tiles.variable`; None where there are none."""
        return None

    def tile_summed(self, tiles: KernelTiles, step: Step, box: Box) -> Tile | None:
        """A tile of queries x keys whose sum along the keys is its result; of `log_of_sum`, a softmax of these."""
        return None

    def words(self, box: Box) -> str:
        """What a picture calls it: `softmax over m`."""
        if box.leg is None:
            return box.kind
        return f"{box.kind} over {box.leg}" + (f"{self.between}{box.other}" if box.other else "")

    def parameters(self, box: Box, written: dict[str, str]) -> list[str]:
        """Its numbers in a picture; `written`: those that say something, as text."""
        return [f"{name} = {text}" for name, text in written.items()]


def dim_of(value: Value, leg: str | None) -> int:
    """The dimension of a leg, from the end."""
    return value.legs.index(str(leg)) - len(value.legs)


def without(legs: Legs, *others: str | None) -> Legs:
    return tuple(leg for leg in legs if leg not in others)


def aligned(value: Tensor, have: Legs, want: Legs) -> Tensor:
    """`value` [batch..., have] with its legs in the order of `want`; legs it lacks have size 1."""
    batch = value.ndim - len(have)
    value = value.permute([*range(batch), *(batch + have.index(leg) for leg in want if leg in have)])
    return value[(..., *(slice(None) if leg in have else None for leg in want))]


def over(value: Tensor, divisor: Tensor) -> Tensor:
    """value / divisor; a zero divisor gives zeros, and gradients of zero."""
    zero = divisor == 0
    return (value / divisor.masked_fill(zero, 1)).masked_fill(zero, 0)


def axis_of(leg: str | None, legs: Legs) -> int:
    """The dimension of a leg counted from the end, so that it holds with and without a batch."""
    return [*legs].index(leg) - len(legs)  # type: ignore[arg-type]


def call_words(name: str, arguments: tuple[object, ...]) -> str:
    return f"{name}({', '.join(map(to_text, arguments))})" if arguments else name  # type: ignore[arg-type]
