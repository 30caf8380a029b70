"""Regions of queries x keys as kernels that were written for them: how they are launched.

Operands come as [batch..., heads..., query or key, width...]; a program has one block of one side, and some tiles of
the heads. What programs write lies side by side: [batch, programs of each head, tiles of a program, sides].
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tensornet_attn.nn.functions.masks import run_time_mask
from tensornet_attn.nn.triton.configure import CHOICES, configured, distinct, interpreted, padded, target_of
from tensornet_attn.nn.triton.kernels.region_need import Footprint, need_elsewhere, need_of_cores, spread
from tensornet_attn.nn.triton.kernels.tiles import tile_type

REGIONS: dict = {}  # name: Region
CONFIGS: dict = {}  # what kernels have been launched with, by what it was chosen for
BUSY = 256  # programs that keep a GPU busy
BLOCKS = (  # rows of a program, its other side, in blocks; warps; stages
    (128, 64, 8, 2),
    (64, 64, 4, 2),
    (64, 32, 4, 2),
    (64, 16, 4, 2),
    (32, 32, 4, 2),
)
LARGEST = 128  # rows of any block
TRIED = (
    (128, 64, 8, 3),
    (64, 64, 4, 3),
    (128, 128, 8, 2),
    (64, 128, 4, 2),
)  # where kernels are timed: none comes first
SPLIT = ((16, 64, 8, 1), (16, 32, 8, 1), (16, 32, 4, 1))  # for many tiles beside each other: warps split columns
SMALL = ((32, 32, 8, 1), (16, 16, 8, 1), (16, 16, 4, 1))


def blocks_for(cores: bool) -> tuple:
    """The candidates of a kernel. `cores`: products on tensor cores, where 16 rows of a warp's own need no exchange.

    Else threads hold whole rows of what they multiply, and those of large blocks do not fit their registers, as
    compiling for sm_80 and sm_90 has shown: small ones come first, but for the interpreter, which has no registers.
    """
    if cores:
        return BLOCKS + TRIED + SPLIT + SMALL
    return BLOCKS + SMALL if interpreted() else SMALL + BLOCKS


@dataclass(frozen=True)
class Region:
    """A region: legs of its operands and of its result, how many tiles of each head a program has, its kernels.

    `operands`: the legs of each, "g n d". `heads`: (leg, tiles of a program); all tiles of those that are `whole`.
    `widths`: the legs of each side that is a width. `others`: the legs of a mask beside query and key. `noise`: the
    operands that are drawn where they are not operands. `relative`: the leg of relative positions, if there is one.
    `tables`: the operands that are read by the distance of query and key, which is their last leg.
    `reads`: of each map the tiles of the result that it alone makes. `sizes`: of heads, where no operand shows it.
    Of each of the `kernels`, `loops`: the head that its programs loop over; `live`: the tiles of queries x keys that
    one holds at once; `sums`: of the sums that it holds all the time those of one number, `accumulators`: the widths of the
    others; `resident`: those of the operands that it holds; `streamed`: of those that it loads for each block; `temporaries`: of
    what it makes of these.
    """

    sides: tuple[str, str]
    operands: dict[str, str]
    heads: dict[str, int]
    whole: tuple[str, ...]
    widths: dict[str, str]
    result: str
    others: str
    sizes: dict[str, int]
    reads: list[list[int]]
    loops: dict[str, str]
    live: dict[str, int]
    sums: dict[str, int]
    accumulators: dict[str, list[str]]
    resident: dict[str, list[str]]
    streamed: dict[str, list[str]]
    temporaries: dict[str, list[str]]
    random: bool
    noise: tuple[str, ...]
    kernels: dict
    relative: str = ""
    tables: tuple[str, ...] = ()

    def legs_of_gradient(self, name: str) -> list[str]:
        """The legs of what programs write for an operand: of a table rows for each query."""
        own = self.operands[name].split()
        return [*own[:-1], self.sides[0], own[-1]] if name in self.tables and self.sides[0] not in own else own


def region(name: str, **arguments) -> None:
    """Makes a region known to `tiled` by its name."""
    REGIONS[name] = Region(**arguments)


def with_batch(x: Tensor, sizes: list[int], batch: list[int]) -> Tensor:
    """[batch..., legs] as [batch as one, legs], expanded where it has no batch, or one entry of a leg for all."""
    return x.expand([*batch, *sizes]).reshape(math.prod(batch), *sizes)


def one_width(x: Tensor, legs: list[str], widths: dict[str, str]) -> Tensor:
    """The legs of a width, which are last, as one."""
    count = next((len(own.split()) for own in widths.values() if own.split()[-1] in legs), 1)
    return x if count == 1 else x.flatten(-count)


class Launch:
    """What all kernels of one call take."""

    def __init__(self, operands, mask, key_mask, seed, name, present, n, m, batch, numbers, training, cast):
        self.region = region = REGIONS[name]
        legs = [
            len(own.split()) for own, is_present in zip(region.operands.values(), present, strict=True) if is_present
        ]
        masks = [x.ndim > least for x, least in ((mask, 2), (key_mask, 1)) if x is not None]
        apart = any(masks) or seed is not None or any(x.ndim > own for x, own in zip(operands, legs, strict=True))
        batch = batch if apart else []  # else all of the batch are the same
        self.name, self.batch, self.count = name, batch, math.prod(batch)
        self.lengths = dict(zip(region.sides, (n, m), strict=True))
        self.lengths |= {region.relative: n + m - 1} if region.relative else {}
        some = iter(operands)
        self.operands = {
            operand: next(some) if is_present else None
            for operand, is_present in zip(region.operands, present, strict=True)
        }
        self.sizes = {**region.sizes, **self.seen_sizes()}
        self.programs = {leg: self.sizes[leg] // tiles for leg, tiles in region.heads.items()}
        for leg, tiles in region.heads.items():
            if self.sizes[leg] != tiles if leg in region.whole else self.sizes[leg] % tiles:
                raise ValueError(f"'{name}' has been made for {tiles} of leg '{leg}', not for {self.sizes[leg]}.")
        self.pairs = self.count * math.prod(self.programs.values())
        self.width = {axis: math.prod(self.sizes[leg] for leg in legs.split()) for axis, legs in region.widths.items()}
        floats = {name: x for name, x in self.operands.items() if x is not None and x.is_floating_point()}
        wide = {leg for legs in region.widths.values() for leg in legs.split()}
        met = [x for name, x in floats.items() if wide & {*region.operands[name].split()}]  # in products of matrices
        self.dtype = cast or max((x.dtype for x in met or floats.values()), key=lambda kind: torch.finfo(kind).bits)
        if self.dtype == torch.bfloat16 and interpreted():
            raise ValueError(f"'{name}': the interpreter of triton rounds bfloat16 wrongly; give float16 or float32.")
        longest = max(torch.finfo(x.dtype).bits for x in floats.values())
        self.sums = torch.float64 if longest > 32 else torch.float32
        self.like = operands[0]
        self.common = self.arguments(mask, key_mask, seed, numbers, training)

    def seen_sizes(self) -> dict[str, int]:
        """The size of each leg that an operand shows: of several the largest, where one entry stands for all."""
        found = {}
        for name, legs in self.region.operands.items():
            if self.operands[name] is not None:
                own = legs.split()
                for leg, size in zip(
                    own, self.operands[name].shape[self.operands[name].ndim - len(own) :], strict=True
                ):
                    found[leg] = max(size, found.get(leg, 1))
        return {leg: size for leg, size in found.items() if size > 1 or leg not in self.region.sizes}

    def whole(self, legs: list[str]) -> list[int]:
        """The sizes of legs."""
        return [self.lengths[leg] if leg in self.lengths else self.sizes[leg] for leg in legs]

    def arguments(self, mask, key_mask, seed, numbers, training) -> dict:
        """The arguments that every kernel takes."""
        region, found = self.region, {}
        for name, legs in region.operands.items():
            own, x = legs.split(), self.operands[name]
            if x is not None:
                x = one_width(with_batch(x, self.whole(own), self.batch), own, region.widths)
            found |= self.pointer(name, x, len(own) + 1)
        others = region.others.split()
        if mask is not None:
            mask = run_time_mask(mask, len(self.batch), len(others))
            whole = self.whole([*others, *region.sides])
            inner = mask.ndim - len(self.batch) if mask.ndim > 2 else 2
            shape = [*mask.shape[: mask.ndim - inner], *[1] * (len(whole) - inner), *mask.shape[mask.ndim - inner :]]
            self.mask_shape = shape
            mask = mask.reshape(shape).expand(*self.batch, *whole).reshape(self.count, *whole)
        kinds = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
        found |= self.pointer("mask", mask.view(torch.uint8) if kinds == 1 else mask, len(others) + 3)
        if key_mask is not None:
            key_mask = key_mask.expand(*self.batch, key_mask.shape[-1]).reshape(self.count, -1).view(torch.uint8)
        found |= self.pointer("key_mask", key_mask, 2)
        found |= {f"{leg}_end": length for leg, length in self.lengths.items()}
        found |= {f"{leg}_programs": self.programs[leg] for leg in region.heads if leg not in region.whole}
        found |= {f"number_{i}": number for i, number in enumerate(numbers)}
        for axis, size in self.width.items():
            found |= {f"{axis}_size": size, f"{axis}_wide": padded(size)}
        found |= {"MASK": kinds, "KEYS": key_mask is not None}
        if region.random:
            found |= {"seed": self.like if seed is None else seed, "TRAIN": training}
            found |= {f"{name}_GIVEN": self.operands[name] is not None for name in region.noise}
        return found | {"DOT": tile_type(self.dtype), "SUMS": tile_type(self.sums)}

    def pointer(self, name: str, x: Tensor | None, count: int) -> dict:
        """An operand and its strides; where it is not present, another tensor that is not read."""
        if x is None:
            return {name: self.like, f"{name}_step": (0,) * count}
        return {
            name: x,
            f"{name}_step": tuple(0 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True)),
        }

    @property
    def cores(self) -> bool:
        """Whether products are made by tensor cores, whose results warps hold in parts of 16 x 8."""
        return self.dtype.itemsize < 4

    def config(self, kind: str) -> dict:
        """The blocks of both sides for a kernel, and how a program is compiled."""
        room = {leg: min(padded(length), LARGEST) for leg, length in self.lengths.items()}
        at = (self.name, kind, self.dtype, target_of(), *self.width.values(), *room.values())
        if CHOICES or at not in CONFIGS:  # what is tuned comes first
            CONFIGS[at] = self.chosen(kind, room)
        return CONFIGS[at]

    def chosen(self, kind: str, room: dict[str, int]) -> dict:
        """The same, chosen among the blocks that are no larger than there is `room` on each side."""
        region, (n, m) = self.region, self.region.sides
        fixed, other = (m, n) if kind == "keys" else (n, m)
        candidates = [
            {f"{fixed}_block": min(own, room[fixed]), f"{other}_block": min(more, room[other]), **how}
            for own, more, *warps in blocks_for(self.cores)
            for how in [dict(zip(("num_warps", "num_stages"), warps, strict=True))]
        ]
        if region.relative:
            candidates = [one | self.band(one) for one in candidates]
        widths = {
            name: sum(padded(self.width[axis]) for axis in getattr(region, name)[kind])
            for name in ("accumulators", "resident", "streamed", "temporaries")
        }
        tiles = region.live[kind] * spread(region.relative, self.cores)
        wide = 2 * sum(padded(size) for size in self.width.values())
        footprint = Footprint(tiles, region.sums[kind], **widths, wide=wide)

        def need(num_warps, num_stages, **block):
            own, more, rows = (block[f"{side}_block"] for side in (fixed, other, self.rows(kind)))
            if self.cores:
                size = self.dtype.itemsize
                return need_of_cores(footprint, own, more, rows, num_warps, num_stages, size, target_of())
            return need_elsewhere(footprint, own, more, self.sums.itemsize)

        return configured(f"{self.name}_{kind}", (self.dtype, *self.width.values()), distinct(candidates), need)

    def band(self, config: dict) -> dict:
        """As many queries as keys, and the relative positions of their block."""
        names = [f"{leg}_block" for leg in self.region.sides]
        size = min(config[name] for name in names)
        return dict.fromkeys(names, size) | {f"{self.region.relative}_block": 2 * size}

    def launch(self, kind: str, side: str, **special) -> None:
        """Runs a kernel with a program for each block of a side."""
        blocks, programs = self.blocks(kind, side), self.programs_of(kind)
        if leg := self.region.loops.get(kind):
            special |= {f"{leg}_parts": programs[leg], f"{leg}_share": -(-self.programs[leg] // programs[leg])}
        count = blocks * self.count * math.prod(programs.values())
        if count:
            config = self.config(kind)
            parts = 0 if not self.cores else 1 if config[f"{self.rows(kind)}_block"] >= 16 * config["num_warps"] else 2
            self.region.kernels[kind][(count,)](**self.common, **special, blocks=blocks, PARTS=parts, **config)

    def rows(self, kind: str) -> str:
        """The side whose rows a tile of a kernel has: keys where its programs have keys, but for relative ones."""
        return self.region.sides[kind == "keys" and not self.region.relative]

    def programs_of(self, kind: str) -> dict[str, int]:
        """How many programs a kernel has for each head: of one that they loop over, no more than keep a GPU busy."""
        leg = self.region.loops.get(kind)
        if leg is None:
            return self.programs
        others = self.count * math.prod(count for own, count in self.programs.items() if own != leg)
        side = self.region.sides[kind == "keys"]
        parts = min(self.programs[leg], max(1, BUSY // max(1, others * self.blocks(kind, side))))
        share = -(-self.programs[leg] // parts)
        return {**self.programs, leg: -(-self.programs[leg] // share)}

    def blocks(self, kind: str, side: str) -> int:
        """The blocks of a side that a kernel has programs for; of relative positions those of differences of blocks."""
        if side == self.region.relative:
            return sum(self.blocks(kind, leg) for leg in self.region.sides) - 1
        return -(-self.lengths[side] // self.config(kind)[f"{side}_block"])

    def tiles(self, legs: list[str]) -> int:
        return math.prod(tiles for leg, tiles in self.region.heads.items() if leg in legs)

    def apart(self, kind: str, legs: list[str]) -> dict[str, int]:
        """Of each head, how many programs of a kernel have parts of their own of what has these legs."""
        return self.programs if self.region.loops.get(kind) in legs else self.programs_of(kind)

    def room(
        self,
        legs: list[str],
        dtype: torch.dtype,
        blocks: int | None = None,
        kind: str = "forward",
        whole: Tensor | None = None,
    ) -> Tensor:
        """A tensor for all programs' tiles: [pairs, (blocks), tiles, sides]. Where not all is written, it holds zeros:
        in tables, and of queries x keys, of which blocks that no mask lets see are left out.

        In the dtype of `whole` where it has no more numbers than that: then there are no parts to be added.
        """
        programs = self.programs if blocks is not None else self.apart(kind, legs)
        shape = [
            self.count * math.prod(programs.values()),
            *([] if blocks is None else [blocks]),
            self.tiles(legs),
            *self.side_sizes(legs),
        ]
        if whole is not None and whole.numel() == math.prod(shape):
            dtype = whole.dtype
        partly = self.distances() & {*legs} or {*self.region.sides} <= {*legs}
        make = torch.zeros if partly else torch.empty
        return make(shape, device=self.like.device, dtype=dtype)

    def side_sizes(self, legs: list[str]) -> list[int]:
        found = [self.lengths[leg] for leg in self.region.sides if leg in legs]
        if self.region.relative in legs:
            found.append(self.config("places")[f"{self.region.relative}_block"])
        found += [self.sizes[leg] for leg in self.distances() if leg in legs]
        return found + [size for axis, size in self.width.items() if self.region.widths[axis].split()[0] in legs]

    def distances(self) -> set[str]:
        return {self.region.operands[name].split()[-1] for name in self.region.tables}

    def joined(self, x: Tensor, legs: list[str], programs: dict[str, int] | None = None) -> Tensor:
        """[pairs, tiles, sides] of all programs as [batch, legs]: parts of what several programs have are added."""
        heads, programs = self.region.heads, programs or self.programs
        own = [leg for leg in heads if leg in legs]
        x = x.view(self.count, *programs.values(), *(heads[leg] for leg in own), *x.shape[2:])
        absent = [1 + i for i, leg in enumerate(heads) if leg not in own]
        if any(x.shape[dim] > 1 for dim in absent):
            x = x.sum(absent, keepdim=True)
        for dim in reversed(absent):
            x = x.squeeze(dim)
        count = len(own)
        order = [0, *(place for i in range(count) for place in (1 + i, 1 + count + i)), *range(1 + 2 * count, x.ndim)]
        return x.permute(order).reshape(self.count, *self.whole(legs))
