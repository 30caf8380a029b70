"""Rotary embedding by the position on a sequence leg, or by explicit positions."""

from __future__ import annotations

import math
from typing import Literal

from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.ir.steps import Box, Step, without
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.ops.given import Checker, ForwardEmitter, Graph, ReferenceEvaluation, Scene, Tensor
from tensornet_attn.ops.operation import Operation, aligned, dim_of
from tensornet_attn.ops.schema import Arithmetic, BoxModel, Flag, LegName, Operand

# Required and optional numbers of each scaling, with the meanings of transformers' rope_parameters.
ORIGINAL = "original_max_position_embeddings"
SCALINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "dynamic": (("factor", ORIGINAL), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", ORIGINAL), ()),
    "yarn": (
        ("factor", ORIGINAL),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
}
SCALED = tuple(dict.fromkeys(name for needed, more in SCALINGS.values() for name in (*needed, *more)))
USUAL = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": 1.0}


class Rope(BoxModel):
    """Rotary embedding by the position on a sequence leg, or by explicit positions."""

    operands = ("of", "positions")
    numbers = ("base", "fraction", "blocks", "interleaved", *SCALED)
    second = "along"
    optional = frozenset({"positions", "interleaved", "rope_type", *SCALED})
    rope: LegName
    along: LegName
    base: Arithmetic = 10000
    fraction: Arithmetic = 1
    blocks: Arithmetic = 1
    interleaved: Flag | None = None
    positions: Operand | None = None
    rope_type: Literal["linear", "dynamic", "llama3", "yarn"] | None = None
    factor: Arithmetic | None = None
    low_freq_factor: Arithmetic | None = None
    high_freq_factor: Arithmetic | None = None
    original_max_position_embeddings: Arithmetic | None = None
    attention_factor: Arithmetic | None = None
    beta_fast: Arithmetic | None = None
    beta_slow: Arithmetic | None = None
    mscale: Arithmetic | None = None
    mscale_all_dim: Arithmetic | None = None
    truncate: Flag | None = None
    of: Operand


class RopeOperation(Operation):
    kind = "rope"
    model = Rope
    modes = ("linear", "dynamic", "llama3", "yarn")
    mode_key = "rope_type"
    linear = True
    per_element = 3  # two products and a sum, for the rotated fraction
    between = " along "

    @property
    def multiplies(self) -> bool:
        return True  # by explicit positions, which may have a gradient

    def check(self, box: Checker, name: str, value: int | float, leg: str, other: str) -> None:
        """Checks that scaling numbers are positive, and that equal blocks each rotate an even number of entries."""
        if name in SCALED and name != "truncate" and not value > 0:
            raise Refusal("number", f"'{name}' is {value}; it must be positive.", f"e.g. '{name}: 8'.")
        if name == "blocks":
            check_blocks(box, value, leg, other)

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        self.check_scaling(box)
        if "positions" in box.operands:
            check_positions(box, leg, other)
        return super().result(box, leg, other)

    def check_scaling(self, box: Checker) -> None:
        """Raises Refusal if a number of the scaling is missing, or if it has a number of another scaling."""
        kind = box.written("rope_type")
        needed, more = SCALINGS.get(str(kind), ((), ()))
        present = [name for name in SCALED if box.written(name) is not None]
        for name in (name for name in present if name not in (*needed, *more)):
            box.written(name)
            which = " or ".join(
                f"'rope_type: {scaling}'"
                for scaling, (required, optional) in SCALINGS.items()
                if name in (*required, *optional)
            )
            raise Refusal("unknown-key", f"'{name}' needs another 'rope_type'.", f"use it with {which}.")
        if missing := [name for name in needed if name not in present]:
            box.written("rope_type")
            message = f"'rope_type: {kind}' needs '{missing[0]}'."
            raise Refusal("missing-key", message, f"this type has the keys {', '.join((*needed, *more))}.")
        base = box.number("base")
        if kind == "yarn" and base is not None and base <= 1:
            box.written("base")
            raise Refusal("number", f"'base' is {base}; with YaRN it must be above 1.", "e.g. 'base: 10000'.")
        if kind == "llama3":
            low, high = box.number("low_freq_factor"), box.number("high_freq_factor")
            if low is not None and high is not None and not low < high:
                box.written("low_freq_factor")
                message = f"'low_freq_factor' is {low} and 'high_freq_factor' {high}."
                raise Refusal("number", message, "make the first smaller than the second, e.g. 1 and 4.")

    def legs_mixed(self, box: Box) -> set[str | None]:
        return {box.other}

    def legs_whole(self, graph: Graph, box: Box) -> tuple[str | None, ...]:
        """A block of queries knows its positions on the query leg, but on no other leg."""
        return (box.other,) if box.leg == graph.query and not by_length(box) else (box.leg, box.other)

    def counts_positions(self, box: Box) -> bool:
        return "positions" not in dict(box.operands)

    def by_length(self, box: Box) -> bool:
        return by_length(box)

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        """(a cos - b sin, b cos + a sin) for the two halves a, b of the rotated entries of each block."""
        import torch

        legs = (*without(step.legs, box.leg, box.other), str(box.leg), str(box.other))
        blocks = aligned(run.operand(step), step.legs, legs).chunk(run.number(box.number("blocks")), -1)
        return torch.cat([self.rotated(run, box, block) for block in blocks], -1), legs

    def rotated(self, run: ReferenceEvaluation, box: Box, x: Tensor) -> Tensor:
        """One block, [batch..., legs..., n, d]."""
        import torch

        width = round(run.number(box.number("fraction")) * x.shape[-1])
        others = len(run.graph.legs_of(box.of.name)) - 2
        cos, sin = self.turns(run, box, width, others)  # n pairs
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        turned, rest = x[..., :width], x[..., width:]
        if interleaved(box):
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        else:
            a, b = turned.chunk(2, -1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        return torch.cat((turned, rest.expand(*turned.shape[:-1], rest.shape[-1])), -1)

    def turns(self, run: ReferenceEvaluation, box: Box, width: int, others: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines times the attention factor, [batch..., ones..., n, pairs]."""
        import torch

        leg, explicit = str(box.leg), dict(box.operands).get("positions")
        if explicit is None:
            positions = run.positions(leg)[:, None]  # one axis
        else:
            axes = without(explicit.legs, leg)
            positions = aligned(run.values[explicit.name], explicit.legs, (leg, *axes))
            positions = positions if axes else positions[..., None]
        positions = positions.to(torch.float64)
        length = (
            positions.detach().max() + 1
            if positions.numel()
            else torch.ones((), dtype=torch.float64, device=run.device)
        )
        numbers = {name: float(run.number(tree)) for name, tree in box.numbers}
        width //= positions.shape[-1]  # the axes share the pairs equally
        base = numbers["base"]
        rates = [rate(box.mode, numbers, base, pair, width, length) for pair in range(width // 2)]
        by_pair = torch.stack([torch.as_tensor(angle, dtype=torch.float64, device=run.device) for angle in rates])
        angles = (positions[..., None] * by_pair).flatten(-2)  # n pairs
        angles = angles.reshape(*angles.shape[:-2], *[1] * others, *angles.shape[-2:])
        factor = attention_factor(box.mode, numbers)
        return factor * angles.cos(), factor * angles.sin()

    def operations(self, scene: Scene, step: Step, box: Box) -> int:
        return int(super().operations(scene, step, box) * scene.number(box.number("fraction")))

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        operand = lines.value(box.of)
        blocks, width = lines.number(box.number("blocks")), lines.size(str(box.other))
        expression, position_dim, along_dim = operand.text, dim_of(operand, box.leg), dim_of(operand, box.other)
        others = [leg for leg in operand.legs if leg not in (box.leg, box.other)]
        if blocks != "1":  # adds a dim of blocks before the entries of a block
            expression, width = f"{operand.text}.unflatten({along_dim}, ({blocks}, -1))", f"({width} // {blocks})"
            position_dim -= position_dim < along_dim
            others.insert(sum(leg in others for leg in operand.legs[: operand.legs.index(str(box.other))]), "")
        if lines.number(box.number("fraction")) not in ("1", "1.0"):
            width = f"round({lines.factor(box.number('fraction'))} * {width})"
        positions, base = position_text(lines, box, tuple(others)), lines.number(box.number("base"))
        options = ["interleaved=True"] if interleaved(box) else []
        options += [f"scaling={scaling_text(lines, box)}"] if box.mode else []
        options += [f"axes={axes_text(lines, box)}"] if axes_text(lines, box) else []
        expression = lines.call(
            "rotate", expression, positions, str(position_dim), str(along_dim), base, width, *options
        )
        lines.bind(
            step.name,
            expression if blocks == "1" else f"{expression}.flatten({along_dim - 1}, {along_dim})",
            operand.legs,
        )

    def parameters(self, box: Box, written: dict[str, str]) -> list[str]:
        flags = {"interleaved": "interleaved" if interleaved(box) else "", "truncate": ""}
        labels = [flags.get(name, f"{name} = {number}") for name, number in written.items()]
        return [label for label in labels if label]


def check_blocks(box: Checker, blocks: int | float, leg: str, along: str) -> None:
    """Raises Refusal if the leg has no positions, if blocks are unequal, or if an odd number of entries rotates."""
    declared_fraction = box.number("fraction")
    fraction = 1 if declared_fraction is None else declared_fraction
    if not box.declared[leg].sequence and not box.broken(leg):
        box.written("rope")
        hint = "name the leg whose positions rotate, e.g. 'rope: n'."
        raise Refusal("box-leg", f"'{leg}' is not a query or key leg.", hint)
    width = box.declared[along].size
    if width is None and not box.broken(along):
        box.written("along")
        raise Refusal("box-leg", f"leg '{along}' is sized at run time.", "rotate along a feature leg.")
    if not isinstance(blocks, int) or blocks < 1 or (width or blocks) % blocks:
        box.written("blocks")
        message = f"the {width} entries of '{along}' cannot be divided into {blocks} equal blocks."
        raise Refusal("number", message, f"set 'blocks' to a divisor of the size of '{along}'.")
    block = (width or 2 * blocks) // blocks
    rotated = fraction * block
    if not 0 < rotated <= block or rotated % 2:
        box.written("fraction" if fraction != 1 else "along" if blocks == 1 else "blocks")
        subject = f"'{along}'" if blocks == 1 else f"a block of '{along}'"
        if fraction == 1:
            message = f"{subject} has {block} entries, but entries rotate in pairs."
        else:
            message = f"{fraction} of the {block} entries of {subject} is {rotated:g}, but entries rotate in pairs."
        most = f", at most {block - block % 2}" if block > 1 else ""
        raise Refusal("number", message, f"rotate an even number of entries{most}.")


def check_positions(box: Checker, leg: str, along: str) -> None:
    """Raises Refusal unless positions have the leg and at most one more, for axes that share the pairs equally."""
    position_legs = box.operands["positions"].legs
    axes = without(position_legs, leg)
    box.written("positions")
    if (leg not in position_legs or len(axes) > 1) and not box.broken(*position_legs):
        message = f"'positions' has legs {' '.join(position_legs) or 'none'}."
        raise Refusal("box-leg", message, f"give 'positions' the leg '{leg}' and, for several axes, one more leg.")
    sizes = [box.declared[axis].size for axis in axes]
    width, fraction, blocks = box.declared[along].size, box.number("fraction"), box.number("blocks")
    if not axes or box.broken(*position_legs, along) or None in (width, fraction, blocks):
        return
    pairs = round(fraction * width / blocks) // 2
    if sizes[0] is None or pairs % sizes[0]:
        count = "a number known at run time" if sizes[0] is None else str(sizes[0])
        message = f"{pairs} pairs of entries cannot be divided equally between {count} axes of '{axes[0]}'."
        raise Refusal("box-leg", message, f"give '{axes[0]}' a size that divides the number of pairs.")


def interleaved(box: Box) -> bool:
    """Whether neighbouring entries form pairs, instead of entries of the two halves."""
    flag = dict(box.numbers).get("interleaved")
    return flag is not None and bool(evaluate(flag, {}))


def by_length(box: Box) -> bool:
    """Whether the angles depend on the total length."""
    return box.mode == "dynamic"


def position_text(lines: ForwardEmitter, box: Box, others: Legs) -> str:
    """The positions of the leg, [n], or explicit positions, [..., ones, n] or [..., ones, n, axes]."""
    explicit = dict(box.operands).get("positions")
    if explicit is None:
        return lines.positions(str(box.leg))
    axes = without(explicit.legs, box.leg)
    positions: TensorText = lines.value(explicit).aligned((*others, str(box.leg), *axes))
    return positions.text


def axes_text(lines: ForwardEmitter, box: Box) -> str:
    """The number of axes of the positions; empty if they have no leg of axes."""
    explicit = dict(box.operands).get("positions")
    axes = without(explicit.legs, box.leg) if explicit is not None else ()
    return lines.size(axes[0]) if axes else ""


def scaling_text(lines: ForwardEmitter, box: Box) -> str:
    """`("llama3", 8.0, 1.0, 4.0, 8192.0)`."""
    numbers = {name: float(evaluate(tree, lines.graph.values)) for name, tree in box.numbers}
    return f"({', '.join(f'{argument!r}' for argument in scaling_of(str(box.mode), numbers))})".replace("'", '"')


def scaling_of(kind: str, numbers: dict[str, float]) -> tuple[str | float, ...]:
    """The kind and its numbers, in the order of `runtime.positions.scaled_rates`."""
    if kind != "yarn":
        return (kind, *(numbers[name] for name in SCALINGS[kind][0]))
    required = (numbers["factor"], numbers[ORIGINAL], attention_factor(kind, numbers))
    return (kind, *required, *(numbers.get(name, usual) for name, usual in USUAL.items()))


def attention_factor(kind: str | None, numbers: dict[str, float]) -> float:
    """YaRN's factor of cosines and sines; computed as in transformers if it is not given."""
    if kind != "yarn":
        return 1.0
    if "attention_factor" in numbers:
        return numbers["attention_factor"]
    scales = [numbers.get("mscale"), numbers.get("mscale_all_dim")]
    if not all(scales):
        scales = [1.0, 0.0]
    grown = max(math.log(numbers["factor"]), 0.0) / 10
    return (grown * float(scales[0] or 0) + 1) / (grown * float(scales[1] or 0) + 1)


def rate(
    kind: str | None, numbers: dict[str, float], base: float, pair: int, width: int, length: Tensor
) -> float | Tensor:
    """The angle per position, in radians, of one pair of `width` entries; `length` is the last position plus 1."""
    plain = base ** (-2 * pair / width)
    if kind is None:
        return plain
    factor = numbers["factor"]
    if kind == "linear":
        return plain / factor
    original = numbers[ORIGINAL]
    if kind == "dynamic":
        if width <= 2:
            return plain
        longer = factor * length.clamp(min=original) / original - (factor - 1)
        return (base * longer ** (width / (width - 2))) ** (-2 * pair / width)
    turns = original * plain / (2 * math.pi)  # full rotations within the original length
    if kind == "llama3":
        low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        return (1 - share) * plain / factor + share * plain
    ends = [
        width * math.log(original / (numbers.get(name, USUAL[name]) * 2 * math.pi)) / (2 * math.log(base))
        for name in ("beta_fast", "beta_slow")
    ]
    if numbers.get("truncate", 1):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], width - 1)
    share = min(max((pair - first) / (last - first if last != first else 0.001), 0.0), 1.0)
    return share * plain / factor + (1 - share) * plain
