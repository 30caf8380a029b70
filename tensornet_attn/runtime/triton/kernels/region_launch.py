"""Launches the kernels generated for regions of queries x keys.

Operands are [batch..., heads..., query or key, width...]. A program handles one block of one side, and some tiles of
the heads. Results and gradients of operands with rows are stored by strides (region_store.py). Other outputs of
programs are contiguous: [batch, programs of each head, tiles of a program, sides].
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tensornet_attn.runtime.masks import run_time_mask
from tensornet_attn.runtime.operations import own_name
from tensornet_attn.runtime.triton.configure import CONFIGS, REGISTERS, configured, interpreted, padded, target_of
from tensornet_attn.runtime.triton.kernels.kept import KeptLaunch, keep_few
from tensornet_attn.runtime.triton.kernels.region_need import Footprint, need_elsewhere, need_of_cores, spread
from tensornet_attn.runtime.triton.kernels.region_parts import parts_for, processors_of
from tensornet_attn.runtime.triton.kernels.region_store import steps_of
from tensornet_attn.runtime.triton.kernels.tiles import tile_type

REGIONS: dict = {}  # name: Region
BUSY = 256  # programs that keep a GPU busy
BLOCKS = (  # (rows of the fixed side, of the other side, warps, stages)
    (128, 64, 8, 2),
    (64, 64, 4, 2),
    (64, 32, 4, 2),
    (64, 16, 4, 2),
    (32, 32, 4, 2),
)
LARGEST = 128  # maximum rows of a block
TRIED = ((128, 64, 8, 3), (64, 64, 4, 3), (128, 128, 8, 2), (64, 128, 4, 2))  # only used by tuning
SPLIT = ((16, 64, 8, 1), (16, 32, 8, 1), (16, 32, 4, 1))  # for many adjacent tiles: warps split columns
SMALL = ((32, 32, 8, 1), (16, 16, 8, 1), (16, 16, 4, 1))
HOPPER = (  # the same, the most values per thread, and the share of shared memory that a program may take
    (64, 64, 4, 3, 130, 1 / 2),
    (64, 64, 4, 2, 180, 1 / 2),
    (128, 64, 8, 2, 210, 2 / 3),
    (64, 64, 4, 1, 170, 1),
    (64, 32, 4, 2, 150, 1 / 2),
    (64, 32, 4, 1, 180, 1),
    (64, 16, 4, 1, 195, 1),
    (16, 64, 8, 2, 170, 1),
    (16, 32, 4, 1, 210, 1),
)  # for sm_90 and newer: the order fits times on an H200, see docs/results/blocks.py
HOPPER_KEYS = (64, 128, 4, 2, 200, 1 / 2)  # before these, for programs of keys without a band


def blocks_for(cores: bool, target: int) -> tuple:
    """The candidate blocks of a kernel, with limits.

    `cores`: tensor cores, which need no exchange if each warp has its own 16 rows. On sm_90, four warps with 64 rows
    multiply asynchronously.

    Without tensor cores, threads hold whole rows of operands, and large blocks exceed their registers, as measured for
    sm_80 and sm_90: small blocks come first, except in the interpreter, which has no registers.
    """
    blocks = BLOCKS + TRIED + SPLIT + SMALL if cores else BLOCKS + SMALL if interpreted() else SMALL + BLOCKS
    if cores and target >= 90:
        return HOPPER + tuple((*block, 0, 1) for block in blocks)
    return tuple((*block, REGISTERS, 1) for block in blocks)


@dataclass(frozen=True)
class RegionKernels:
    """A region: legs of operands and result, tiles per program, and kernels.

    `operands`: the legs of each, such as "g n d". `heads`: leg -> tiles of a program; a program has all tiles of
    `whole` legs. `widths`: the legs of each width. `others`: the legs of a mask besides query and key. `noise`:
    operands that are drawn unless given. `relative`: the leg of relative positions, if any. `tables`: operands indexed
    by the distance of query and key, their last leg. `reads`: for each map the tiles of the result that depend on it
    only; `normalized`: maps whose rows are divided by plain sums; `log`: the result is the log-sum-exp of the rows.
    `band`: how many keys a query sees at most, if masks limit it. `sizes`: sizes of heads that no operand
    shows. `biased`: the region for calls with a float mask, if it is another one.

    By kernel: `loops`: the head that programs loop over; `live`: live tiles of queries x keys; `sums`: scalar
    accumulators; widths, such as "d d", of the other `accumulators`, of `resident` operands, of operands `streamed` per
    block, and of `temporaries`.
    """

    sides: tuple[str, str]
    operands: dict[str, str]
    heads: dict[str, int]
    widths: dict[str, str]
    result: str
    others: str
    sizes: dict[str, int]
    reads: list[list[int]]
    live: dict[str, int]
    whole: tuple[str, ...]
    relative: str
    tables: tuple[str, ...]
    normalized: tuple[int, ...]
    log: bool
    random: bool
    noise: tuple[str, ...]
    loops: dict[str, str]
    sums: dict[str, int]
    accumulators: dict[str, str]
    resident: dict[str, str]
    streamed: dict[str, str]
    temporaries: dict[str, str]
    band: int
    biased: str
    kernels: dict

    @property
    def statistics(self) -> int:
        """The numbers that are saved for a row: one for each map; if there are softmaxes, the largest scores too."""
        return len(self.reads) * (1 + (len(self.normalized) < len(self.reads)))

    def legs_of_gradient(self, name: str) -> list[str]:
        """The legs of an operand's gradient as written by programs: a table has rows for each query."""
        legs = self.operands[name].split()
        return [*legs[:-1], self.sides[0], legs[-1]] if name in self.tables and self.sides[0] not in legs else legs


def region(name: str, **arguments) -> str:
    """Registers a region for `tiled` and returns its unique name. What is not given is empty."""
    name = own_name(name, REGIONS)
    empty = {field: kind() for field, kind in RegionKernels.__annotations__.items()}
    REGIONS[name] = RegionKernels(**(empty | arguments))
    return name


def with_batch(x: Tensor, sizes: list[int], batch: list[int]) -> Tensor:
    """[batch..., legs] as [one batch, legs], expanded along missing batch dimensions and legs of size 1."""
    return x.expand([*batch, *sizes]).reshape(math.prod(batch), *sizes)


def one_width(x: Tensor, legs: list[str], widths: dict[str, str]) -> Tensor:
    """Flattens the legs of a width, which are last."""
    count = next((len(width_legs.split()) for width_legs in widths.values() if width_legs.split()[-1] in legs), 1)
    return x if count == 1 else x.flatten(-count)


def launch_of(operands, mask, key_mask, seed, name, present, n, m, batch, numbers, training, cast) -> "Launch":
    """The launch of a call on tensors with memory. All that is derived is kept for calls that differ in values only."""
    tensors = (*operands, mask, key_mask, seed)
    key = (
        name, tuple(present), n, m, tuple(batch), tuple(numbers), training, cast,
        *(None if x is None else (x.shape, x.stride(), x.dtype, x.device) for x in tensors),
    )  # fmt: skip
    if (launch := CONFIGS.get(key)) is None:
        launch = Launch(operands, mask, key_mask, seed, name, present, n, m, batch, numbers, training, cast)
        launch.constants = launch.arguments(mask, key_mask)
        del launch.operands, launch.like  # tensors are not kept
        keep_few()
        CONFIGS[key] = launch
    return launch.of(operands, mask, key_mask, seed)


class Launch:
    """The arguments common to all kernels of one call.

    `tensors`: what kernels read, tensors of the call or, for names in `laid_out`, copies of them. `constants`: all
    other arguments. `known` and `kept`: configurations and launches so far.
    """

    tensors: dict
    constants: dict

    def __init__(self, operands, mask, key_mask, seed, name, present, n, m, batch, numbers, training, cast):
        self.region = region = REGIONS[name]
        self.present = present
        leg_counts = [
            len(operand_legs.split())
            for operand_legs, is_present in zip(region.operands.values(), present, strict=True)
            if is_present
        ]
        masks = [x.ndim > dims for x, dims in ((mask, 2), (key_mask, 1)) if x is not None]
        batched = (
            any(masks)
            or seed is not None
            or any(x.ndim > leg_count for x, leg_count in zip(operands, leg_counts, strict=True))
        )
        batch = batch if batched else []  # otherwise all elements of the batch are equal
        self.name, self.batch, self.count = name, batch, math.prod(batch)
        self.known, self.kept = {}, {}
        self.lengths = dict(zip(region.sides, (n, m), strict=True))
        self.lengths |= {region.relative: max(n + m - 1, 0)} if region.relative else {}
        remaining = iter(operands)
        self.operands = {
            operand: next(remaining) if is_present else None
            for operand, is_present in zip(region.operands, present, strict=True)
        }
        self.sizes = {**region.sizes, **self.seen_sizes()}
        self.programs = {leg: self.sizes[leg] // tiles for leg, tiles in region.heads.items()}
        for leg, tiles in region.heads.items():
            if self.sizes[leg] != tiles if leg in region.whole else self.sizes[leg] % tiles:
                raise ValueError(
                    f"'{name.split('.')[-1]}' is generated for tiles of {tiles} on leg '{leg}', which has size "
                    f"{self.sizes[leg]}."
                )
        self.pairs = self.count * math.prod(self.programs.values())
        self.width = {axis: math.prod(self.sizes[leg] for leg in legs.split()) for axis, legs in region.widths.items()}
        floats = {name: x for name, x in self.operands.items() if x is not None and x.is_floating_point()}
        width_legs = {leg for legs in region.widths.values() for leg in legs.split()}
        # in matrix products
        multiplied = [x for name, x in floats.items() if width_legs & {*region.operands[name].split()}]
        self.dtype = cast or max(
            (x.dtype for x in multiplied or floats.values()), key=lambda dtype: torch.finfo(dtype).bits
        )
        if self.dtype == torch.bfloat16 and interpreted():
            raise ValueError(
                f"'{name.split('.')[-1]}': the interpreter of triton rounds bfloat16 incorrectly; give float16 or "
                "float32."
            )
        longest = max(torch.finfo(x.dtype).bits for x in floats.values())
        self.sums = torch.float64 if longest > 32 else torch.float32
        self.out_dtype = self.sums if region.log else self.dtype
        self.like, self.numbers, self.training = operands[0], numbers, training

    def of(self, operands, mask, key_mask, seed) -> "Launch":
        """The launch of a call that differs from this one in the values of tensors only."""
        run, remaining = object.__new__(Launch), iter(operands)
        run.__dict__.update(self.__dict__)
        run.like, run.tensors = operands[0], {}
        run.operands = {
            name: next(remaining) if is_present else None
            for name, is_present in zip(self.region.operands, self.present, strict=True)
        }
        for name, x in (*run.operands.items(), ("mask", mask), ("key_mask", key_mask)):
            run.tensors[name] = run.like if x is None else run.arranged(name, x) if name in run.laid_out else x
        if run.region.random:
            run.tensors["seed"] = run.like if seed is None else seed
        return run

    def seen_sizes(self) -> dict[str, int]:
        """The size of each leg of an operand, the largest if some operands have size 1."""
        sizes: dict[str, int] = {}
        for name, legs in self.region.operands.items():
            if (x := self.operands[name]) is not None:
                operand_legs = legs.split()
                for leg, size in zip(operand_legs, x.shape[x.ndim - len(operand_legs) :], strict=True):
                    sizes[leg] = max(size, sizes.get(leg, 1))
        return {leg: size for leg, size in sizes.items() if size > 1 or leg not in self.region.sizes}

    def whole(self, legs: list[str]) -> list[int]:
        """The sizes of legs."""
        return [self.lengths[leg] if leg in self.lengths else self.sizes[leg] for leg in legs]

    def arranged(self, name: str, x: Tensor) -> Tensor:
        """A tensor of the call as [one batch, legs], widths in one dimension; booleans are bytes."""
        if name == "key_mask":
            return x.expand(*self.batch, x.shape[-1]).reshape(self.count, x.shape[-1]).view(torch.uint8)
        if name == "mask":
            mask_sizes = self.whole([*self.region.others.split(), *self.region.sides])
            x = x.reshape(self.mask_shape(x)).expand(*self.batch, *mask_sizes).reshape(self.count, *mask_sizes)
            return x.view(torch.uint8) if x.dtype == torch.bool else x
        legs = self.region.operands[name].split()
        return one_width(with_batch(x, self.whole(legs), self.batch), legs, self.region.widths)

    def mask_shape(self, mask: Tensor) -> list[int]:
        """The shape of a mask with all legs of its box."""
        others = len(self.region.others.split())
        shape = run_time_mask(mask, len(self.batch), others).shape
        inner = len(shape) - len(self.batch) if len(shape) > 2 else 2
        return [*shape[: len(shape) - inner], *[1] * (others + 2 - inner), *shape[len(shape) - inner :]]

    def arguments(self, mask, key_mask) -> dict:
        """The arguments of every kernel but tensors."""
        arguments: dict = {}
        region, self.laid_out = self.region, set()
        legs = region.operands | {"mask": " ".join([region.others, *region.sides]), "key_mask": region.sides[1]}
        for name, x in (*self.operands.items(), ("mask", mask), ("key_mask", key_mask)):
            step = (0,) * (1 + len(legs[name].split()))
            if x is not None:
                laid = self.arranged(name, x)
                step = tuple(0 if size == 1 else step for size, step in zip(laid.shape, laid.stride(), strict=True))
                self.laid_out |= {name} if laid.data_ptr() != x.data_ptr() or laid.dtype != x.dtype else set()
            arguments[f"{name}_step"] = step
        arguments |= {f"{leg}_end": length for leg, length in self.lengths.items()}
        arguments |= {f"{leg}_programs": self.programs[leg] for leg in region.heads if leg not in region.whole}
        arguments |= {f"number_{i}": number for i, number in enumerate(self.numbers)}
        for axis, size in self.width.items():
            arguments |= {f"{axis}_size": size, f"{axis}_wide": padded(size)}
        mask_kind = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
        arguments |= {"MASK": mask_kind, "KEYS": key_mask is not None}
        if region.random:
            arguments |= {"TRAIN": self.training}
            arguments |= {f"{name}_GIVEN": self.operands[name] is not None for name in region.noise}
        return arguments | {"DOT": tile_type(self.dtype), "SUMS": tile_type(self.sums)}

    @property
    def cores(self) -> bool:
        """Whether products use tensor cores, whose results are distributed over warps in parts of 16 x 8."""
        return self.dtype.itemsize < 4

    def config(self, kind: str) -> dict:
        """The block sizes of both sides and the compile options of a kernel, cached."""
        if kind not in self.known:
            largest = {leg: min(padded(length), LARGEST) for leg, length in self.lengths.items()}
            key = (self.name, kind, self.dtype, target_of(), *self.width.values(), *largest.values())
            if (config := CONFIGS.get(key)) is None:
                config = CONFIGS[key] = self.chosen(kind, largest)
            self.known[kind] = config
        return self.known[kind]

    def chosen(self, kind: str, largest: dict[str, int]) -> dict:
        """Selects the configuration among blocks that are at most `largest` on each side."""
        region, (n, m) = self.region, self.region.sides
        fixed, looped = (m, n) if kind == "keys" else (n, m)
        limits: dict = {}
        blocks = blocks_for(self.cores, 80 if region.relative else target_of())
        if blocks[0] == HOPPER[0] and kind == "keys" and not region.band:
            blocks = (HOPPER_KEYS, *blocks)
        for fixed_rows, looped_rows, warps, stages, *limit in blocks:
            config = {
                f"{fixed}_block": min(fixed_rows, largest[fixed]),
                f"{looped}_block": min(looped_rows, largest[looped]),
            }
            config |= {"num_warps": warps, "num_stages": stages} | (self.band(config) if region.relative else {})
            limits.setdefault(tuple(config.items()), limit)
        widths = {
            name: sum(padded(self.width[axis]) for axis in getattr(region, name).get(kind, "").split())
            for name in ("accumulators", "resident", "streamed", "temporaries")
        }
        tiles = region.live[kind] * spread(region.relative, self.cores)
        wide = 2 * sum(padded(size) for size in self.width.values())
        footprint = Footprint(tiles, region.sums.get(kind, 0), **widths, wide=wide)

        def need(num_warps, num_stages, **block):
            fixed_rows, looped_rows, rows = (block[f"{side}_block"] for side in (fixed, looped, self.rows(kind)))
            if self.cores:
                size = self.dtype.itemsize
                return need_of_cores(footprint, fixed_rows, looped_rows, rows, num_warps, num_stages, size, target_of())
            return need_elsewhere(footprint, fixed_rows, looped_rows, self.sums.itemsize)

        sizes, candidates = (self.dtype, *self.width.values()), [dict(config) for config in limits]
        return configured(f"{self.name}_{kind}", sizes, candidates, need, [*limits.values()])

    def band(self, config: dict) -> dict:
        """Equal blocks of queries and keys, and the block of their relative positions."""
        names = [f"{leg}_block" for leg in self.region.sides]
        size = min(config[name] for name in names)
        return dict.fromkeys(names, size) | {f"{self.region.relative}_block": 2 * size}

    def parts(self, kind: str) -> int:
        """Into how many parts a kernel of queries divides the keys, each for its own programs."""
        if (kind, "parts") not in self.known:
            query, key = self.region.sides
            config, seen_keys = self.config(kind), self.lengths[key]
            if self.region.band:
                seen_keys = min(seen_keys, self.region.band - 1 + config[f"{query}_block"])
            programs = self.blocks(kind, query) * self.count * math.prod(self.programs_of(kind).values())
            self.known[kind, "parts"] = parts_for(
                programs, -(-seen_keys // config[f"{key}_block"]), processors_of(self.like)
            )
        return self.known[kind, "parts"]

    def launch(self, kind: str, side: str, parts: int = 1, steps: dict | None = None, **special) -> None:
        """Launches a kernel with one program per block of a side, and for each of several parts of the keys."""
        steps = steps or {}
        key = (kind, parts, *steps.values(), *(None if x is None else x.dtype for x in special.values()))
        if key not in self.kept:
            self.kept[key] = self.prepared(kind, side, parts, steps, special)
        if self.kept[key].grid[0]:
            self.kept[key](self.tensors | special)

    def prepared(self, kind: str, side: str, parts: int, steps: dict, special: dict) -> KeptLaunch:
        """The launch of a kernel for these results."""
        blocks, programs = self.blocks(kind, side), self.programs_of(kind)
        kernel, constants = self.region.kernels[kind], self.constants | {"blocks": blocks, **self.config(kind), **steps}
        if "SPLIT" in kernel.arg_names:
            constants["SPLIT"] = parts > 1
            for name in ("out", "lse"):
                constants |= {f"{name}_part": special[name].stride(0)} if f"{name}_part" in kernel.arg_names else {}
        if leg := self.region.loops.get(kind):
            constants |= {f"{leg}_parts": programs[leg], f"{leg}_share": -(-self.programs[leg] // programs[leg])}
        splits_columns = constants[f"{self.rows(kind)}_block"] < 16 * constants["num_warps"]
        constants["PARTS"] = 0 if not self.cores else 1 + splits_columns
        if splits_columns and self.region.relative:
            constants["maxnreg"] = 255  # otherwise ptxas may allot 32 registers, and spill the rest
        return KeptLaunch(kernel, (blocks * self.count * math.prod(programs.values()), parts), constants)

    def rows(self, kind: str) -> str:
        """The side of the rows of a kernel's tiles: keys if its programs have keys, except with relative positions."""
        return self.region.sides[kind == "keys" and not self.region.relative]

    def programs_of(self, kind: str) -> dict[str, int]:
        """The programs of a kernel per head; for a looped head, only as many as keep a GPU busy."""
        leg = self.region.loops.get(kind)
        if leg is None:
            return self.programs
        others = self.count * math.prod(count for head, count in self.programs.items() if head != leg)
        side = self.region.sides[kind == "keys"]
        parts = min(self.programs[leg], max(1, BUSY // max(1, others * self.blocks(kind, side))))
        share = -(-self.programs[leg] // parts)
        return {**self.programs, leg: -(-self.programs[leg] // share)}

    def blocks(self, kind: str, side: str) -> int:
        """The blocks of a side that have programs; for relative positions, the differences of blocks."""
        if side == self.region.relative:
            return max(sum(self.blocks(kind, leg) for leg in self.region.sides) - 1, 0)
        return -(-self.lengths[side] // self.config(kind)[f"{side}_block"])

    def tiles(self, legs: list[str]) -> int:
        return math.prod(tiles for leg, tiles in self.region.heads.items() if leg in legs)

    def apart(self, kind: str, legs: list[str]) -> dict[str, int]:
        """Per head, the programs of a kernel that write separate parts of a tensor with these legs."""
        separate = self.region.loops.get(kind) in legs or {*self.region.sides} <= {*legs}
        return self.programs if separate else self.programs_of(kind)

    def gradient(self, x: Tensor) -> tuple[Tensor, dict]:
        """The gradient of the result, copied if kernels cannot read it by strides, and its strides."""
        legs = self.region.result.split()
        key = ("gradient", x.stride())
        if key not in self.known:
            step = steps_of(self, legs, x.shape, x.stride())
            scattered = legs[-1] != self.region.sides[0] and x.shape[-1] != 1 and x.stride(-1) != 1
            self.known[key] = None if step is None or scattered else {"gradient_step": step}
        if self.known[key] is None:
            x = x.contiguous()
            return x, {"gradient_step": steps_of(self, legs, x.shape, x.stride())}
        return x, self.known[key]

    def legs_of_gradient(self, name: str) -> list[str]:
        """The legs of the gradient of an operand or of the mask, as programs write it."""
        mask_legs = [*self.region.others.split(), *self.region.sides]
        return mask_legs if name == "mask" else self.region.legs_of_gradient(name)

    def room_of_gradient(self, name: str, kind: str, x: Tensor) -> Tensor:
        """A tensor for a gradient that programs do not store by strides: [pairs, (blocks), tiles, sides].

        Filled with zeros if not all of it is written: tables, and queries x keys, of which hidden blocks are skipped.
        Has the dtype of x, the operand or mask, if it has equally many elements, because then no parts are added.
        """
        legs, region = self.legs_of_gradient(name), self.region
        has_rows, side = {*region.sides} & {*legs}, region.relative if kind == "places" else region.sides[0]
        programs = self.apart(kind, legs) if has_rows else self.programs
        shape = [
            self.count * math.prod(programs.values()),
            *([] if has_rows else [self.blocks(kind, side)]),
            self.tiles(legs),
            *self.side_sizes(legs),
        ]
        same_size = has_rows and name not in region.tables and x.numel() == math.prod(shape)
        partly = self.distances() & {*legs} or {*region.sides} <= {*legs}
        allocate = torch.zeros if partly else torch.empty
        return allocate(shape, device=self.like.device, dtype=x.dtype if same_size else self.sums)

    def side_sizes(self, legs: list[str]) -> list[int]:
        sizes = [self.lengths[leg] for leg in self.region.sides if leg in legs]
        if self.region.relative in legs:
            sizes.append(self.config("places")[f"{self.region.relative}_block"])
        sizes += [self.sizes[leg] for leg in self.distances() if leg in legs]
        return sizes + [size for axis, size in self.width.items() if self.region.widths[axis].split()[0] in legs]

    def distances(self) -> set[str]:
        return {self.region.operands[name].split()[-1] for name in self.region.tables}

    def joined(self, x: Tensor, legs: list[str], programs: dict[str, int] | None = None) -> Tensor:
        """[pairs, tiles, sides] of all programs as [batch, legs]; parts from several programs are added."""
        heads, programs = self.region.heads, programs or self.programs
        own_heads = [leg for leg in heads if leg in legs]
        x = x.view(self.count, *programs.values(), *(heads[leg] for leg in own_heads), *x.shape[2:])
        absent = [1 + i for i, leg in enumerate(heads) if leg not in own_heads]
        if any(x.shape[dim] > 1 for dim in absent):
            x = x.sum(absent, keepdim=True)
        for dim in reversed(absent):
            x = x.squeeze(dim)
        count = len(own_heads)
        order = [0, *(dim for i in range(count) for dim in (1 + i, 1 + count + i)), *range(1 + 2 * count, x.ndim)]
        return x.permute(order).reshape(self.count, *self.whole(legs))
