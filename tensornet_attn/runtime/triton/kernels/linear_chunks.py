"""Launches of the kernels of linear attention in chunks, whose states are stored in memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tensornet_attn.runtime.triton.configure import configured, distinct, held_for, padded, target_of
from tensornet_attn.runtime.triton.kernels.kept import KeptLaunch
from tensornet_attn.runtime.triton.kernels.linear_kernels import (
    linear_reads,
    linear_reads_all,
    linear_sums,
    row_products,
    sums_before,
)
from tensornet_attn.runtime.triton.kernels.tiles import precision_of, sums_of, tile_type

NO_STRIDES = (0, 0, 0)  # the strides of an operand that is not given
MAPPED = ("LEFT_MAP", "RIGHT_MAP", "VALUES_MAP", "OUT_MAP", "OUT_SLOPE")
SPAN = 16  # most chunks that one program sums or reads if the sums between them are not needed
PROGRAMS = 1024  # enough of them for any GPU; programs read more chunks if there are more
LINEAR = (  # chunk, block of a width, block of channels that decay, warps, stages
    (64, 64, 0, 4, 3),
    (64, 64, 0, 4, 2),
    (64, 64, 0, 8, 2),
    (64, 64, 0, 4, 1),
    (32, 32, 0, 4, 1),
    (32, 32, 0, 8, 1),
    (16, 16, 0, 4, 1),
)
CHANNELS = (
    (64, 128, 32, 8, 1),
    (64, 64, 32, 8, 1),
    (32, 64, 32, 8, 1),
    (32, 32, 16, 8, 1),
    (16, 16, 16, 4, 1),
)


@dataclass(frozen=True)
class Chunked:
    """The launch options of one call: positions per chunk, maximum block of a width, and others.

    `channels`: maximum block of the channels that decay at rates of their own.
    """

    causal: bool
    chunk: int
    block: int
    launch: tuple
    channels: int = 0

    def widths(self, features: int, width: int, by: str = "") -> dict:
        """The launch arguments of a kernel over these widths; `by`: the one whose channels decay, if any."""
        limits = {"features": (self.channels, self.block), "width": (self.channels,) * 2}.get(by, (self.block,) * 2)
        blocks = {"FEATURES": min(limits[0], padded(features)), "WIDTH": min(limits[1], padded(width))}
        return {"CHUNK": self.chunk, **blocks, **dict(self.launch)}


def chunked(
    x: Tensor, features: int, width: int, rows: int, causal: bool, maps: bool = False, channels: bool = False
) -> Chunked:
    """The launch options for operands like x, of these widths and lengths.

    `maps`: kernels apply maps to tiles. `channels`: scores decay at a rate of their own for each channel.
    """
    widest = max(padded(features), padded(width))
    size = 4 if x.dtype == torch.float16 else x.element_size()  # multiplied as float32 with sums
    candidates = [
        {"CHUNK": min(chunk, padded(rows)), "BLOCK": min(block, widest)}
        | ({"CHANNELS": channel_block} if channels else {})
        | {"num_warps": warps, "num_stages": stages}
        for chunk, block, channel_block, warps, stages in (CHANNELS if channels else LINEAR)
    ]

    def need(CHUNK: int, BLOCK: int, CHANNELS: int = 0, **launch: int) -> tuple[int, int]:
        if CHANNELS:
            numbers = CHUNK * (CHUNK + BLOCK + 6 * CHANNELS) * held_for(size)
            return numbers, 3 * size * CHUNK * BLOCK + max(4, size) * CHANNELS * BLOCK
        numbers = CHUNK * (2 * CHUNK + 3 * BLOCK) + BLOCK * BLOCK  # scores count twice where they are split
        numbers = numbers * 3 // 4 if size < 4 else numbers * held_for(size)  # as measured by compiling
        numbers += numbers // 8 if maps and causal and target_of() < 90 else 0  # mapped tiles pass through registers
        return numbers, 3 * size * CHUNK * BLOCK + max(4, size) * BLOCK * BLOCK

    sizes = (widest, min(padded(rows), 64), str(x.dtype).removeprefix("torch."))
    config = dict(configured("linear by channels" if channels else "linear", sizes, distinct(candidates), need))
    channel_block = config.pop("CHANNELS", 0)
    return Chunked(causal, config.pop("CHUNK"), config.pop("BLOCK"), tuple(config.items()), channel_block)


def chunk_sums(
    k: Tensor,
    v: Tensor | None,
    how: Chunked,
    scale: Tensor | None = None,
    weight: Tensor | None = None,
    first: int = 0,
    most: int | None = None,
    later: bool = False,
    total: bool = False,
    seen: Tensor | None = None,
    tile=None,
) -> tuple:
    """The sums of scale k v^T before each chunk, or after it if `later`: [b h, chunks, d, e]; with `total` also of
    weight k.

    k is the map `tile` of what is given; rows that are not `seen` [b h, rows] are 0. Without v, only the sums of
    weight k. Not causal: the sum of all rows, as one chunk. Row i of k is at position
    `first` + i of `most`, by default of its length.
    """
    batch, heads, length, features = k.shape
    width, span = 1 if v is None else v.shape[-1], 1 if how.causal else SPAN
    config = how.widths(features, width)
    positions = length if most is None or not how.causal else most
    parts = max(1, -(-positions // (how.chunk * span)))
    sums = None if v is None else k.new_empty(batch * heads, parts, features, width, dtype=sums_of(k))
    totals = k.new_empty(batch * heads, parts, features, dtype=sums_of(k)) if total else None
    values = k if v is None else v
    if batch * heads * features * width:
        linear_sums[(batch * heads * parts, -(-features // config["FEATURES"]), -(-width // config["WIDTH"]))](
            k, values, scale, weight, None, seen, sums, totals, None,
            *k.stride()[:3], *values.stride()[:3], *NO_STRIDES,
            heads, length, first if how.causal else 0, features, width, parts,
            span=span, MAP=tile, sign=1, BY_FEATURES=False,
            DTYPE=tile_type(sums_of(k)), PRECISION=precision_of(k, values), **config,
        )  # fmt: skip
    exclusive = (None if x is None else before(x, how, later) for x in (sums, totals))
    return next(exclusive), next(exclusive)


def referenced_sums(
    k: Tensor, v: Tensor, power: Tensor, sign: int, how: Chunked, first: int, places: int, later: bool
) -> tuple[Tensor, Tensor]:
    """`chunk_sums` of exp(sign power - reference) k v^T, and the references [b h, chunks, .] of all chunks.

    power [b, h, length, 1 or d]; the reference of a chunk is the largest exponent of the keys in its sum, or -inf.
    """
    (batch, heads, length, features), width, count = k.shape, v.shape[-1], power.shape[-1]
    config, parts = how.widths(features, width, "features" if count > 1 else ""), max(1, -(-places // how.chunk))
    sums = k.new_empty(batch * heads, parts, features, width, dtype=power.dtype)
    most = power.new_empty(2, batch * heads, parts, count)  # of each chunk, and of all before it
    if sums.numel():
        linear_sums[(batch * heads * parts, -(-features // config["FEATURES"]), -(-width // config["WIDTH"]))](
            k, v, None, None, power, None, sums, None, most,
            *k.stride()[:3], *v.stride()[:3], *power.stride()[:3], heads, length, first, features, width, parts,
            span=1, MAP=None, sign=sign, BY_FEATURES=count > 1,
            DTYPE=tile_type(power.dtype), PRECISION=precision_of(k, v), **config,
        )  # fmt: skip
    return before(sums, how, later, most), most[1]


def side_by_side(x: Tensor, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor [b, h, n, width] for x [b, h, n, .], the heads of a row side by side in memory.

    Heads and width then flatten as a view, as projections and their gradients have them.
    """
    batch, heads, length, _ = x.shape
    return x.new_empty(batch, length, heads, width, dtype=dtype).transpose(1, 2)


def operand_shapes(g, q, k, v, *others) -> tuple[Tensor, Tensor, Tensor]:
    """The shapes of the gradients of q, k and v."""
    return side_by_side(q, q.shape[-1]), side_by_side(k, k.shape[-1]), side_by_side(v, v.shape[-1])


def before(sums: Tensor, how: Chunked, later: bool, most: Tensor | None = None) -> Tensor:
    """Exclusive sums over the parts [b h, parts, ...], in place; or the sum of all parts, as one."""
    if not how.causal:
        return sums.sum(1, keepdim=True)
    if sums.numel():
        lead, parts, size = sums.flatten(2).shape
        block = min(1024, padded(size))
        sums_before[(lead, -(-size // block))](
            sums, most, parts, size, size if most is None else size // most.shape[-1],
            REVERSE=later, DTYPE=tile_type(sums.dtype), BLOCK=block, num_warps=4,
        )  # fmt: skip
    return sums


def read_chunks(
    left: Tensor,
    right: Tensor,
    values: Tensor,
    sums,
    how: Chunked,
    total: Tensor | None = None,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    later: bool = False,
    eps: float | None = None,
    dtype: torch.dtype | None = None,
    powers: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
    by: str = "",
    slopes: Tensor | None = None,
    seen: Tensor | None = None,
    tiles: tuple = (None, None, None),
    of: tuple | None = None,
    apart: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The values that `left` reads by `linear_reads`, in the dtype of `left` or another one.

    With `eps`, they are divided by the row sums; the reciprocals are the second result. `powers`: the exponents of
    scores that decay, of both sides [b, h, rows, .] and of each chunk, with one number for each row, or `by` "features"
    or "width" for each channel; `slopes` receives the gradients of the first exponents, if the result is that of the
    tensor in `of`. `seen` [b h, rows]: the keys that are read. `tiles`: maps of
    left, right and values. With `of`, a tensor, its map and slope, the result is the gradient of that tensor. The
    heads of a row are side by side in memory, unless `apart`.
    """
    batch, heads, length, features = left.shape
    others, width = values.shape[-2:]
    out = left.new_empty(batch, heads, length, width, dtype=dtype) if apart else side_by_side(left, width, dtype)
    inverse = None if eps is None else left.new_empty(batch, heads, length, dtype=sums_of(left))
    if not how.causal:
        read_whole(left, sums, total, out, inverse, how, scale, bias, later, eps, seen if later else None, tiles[0], of)
        return out, inverse
    ahead = length - others if later else others - length  # position of the first query
    left_first, right_first = (0, ahead) if later else (ahead, 0)
    start, config = left_first // how.chunk, how.widths(features, width, by)
    chunks = -(-(left_first + length) // how.chunk) - start
    inner, *derived = of or (None, None, None)
    if out.numel():
        strides = NO_STRIDES if sums is None else (*sums.stride()[2:], sums.shape[1])
        linear_reads[(batch * heads * chunks, -(-width // config["WIDTH"]))](
            left, right, values, sums, total, scale, bias, *powers, seen, inner, out, slopes, inverse,
            *left.stride()[:3], *right.stride()[:3], *values.stride()[:3],
            *(stride for x in (*powers[:2], inner) for stride in (NO_STRIDES if x is None else x.stride()[:3])),
            *out.stride()[:3], *strides,
            heads, length, others, left_first, right_first, features, width, chunks, start,
            LATER=later, EPS=eps, sign=1 if later else -1, BY_FEATURES=by == "features", BY_WIDTH=by == "width",
            **dict(zip(MAPPED, (*tiles, *derived), strict=True)), DTYPE=tile_type(sums_of(left)),
            PRECISION=precision_of(left, right, values), **config,
        )  # fmt: skip
    return out, inverse


def read_whole(
    left: Tensor,
    sums: Tensor,
    total: Tensor | None,
    out: Tensor,
    inverse: Tensor | None,
    how: Chunked,
    scale: Tensor | None,
    bias: Tensor | None,
    later: bool,
    eps: float | None,
    seen: Tensor | None,
    tile,
    of: tuple | None,
) -> None:
    """`read_chunks` into `out` and `inverse` where all rows see the same rows. `seen`: rows of left, all by default."""
    batch, heads, length, features = left.shape
    width = out.shape[-1]
    config, (inner, *derived) = how.widths(features, width), of or (None, None, None)
    chunks = -(-length // how.chunk)
    span = max(1, min(SPAN, batch * heads * chunks // PROGRAMS))
    if out.numel():
        programs = -(-chunks // span)
        linear_reads_all[(batch * heads * programs, -(-width // config["WIDTH"]))](
            left, sums, total, None if later else scale, bias, seen, inner, out, inverse,
            *left.stride()[:3], *(NO_STRIDES if inner is None else inner.stride()[:3]), *out.stride()[:3],
            *sums.stride()[2:], heads, length, features, width, programs, span,
            LATER=later, EPS=eps, LEFT_MAP=tile, **dict(zip(MAPPED[3:], derived, strict=True)),
            DTYPE=tile_type(sums_of(left)), PRECISION=precision_of(left, sums), ONCE=features <= config["FEATURES"],
            **config,
        )  # fmt: skip


def row_sums_gradient(g: Tensor, out: Tensor, inverse: Tensor | None) -> Tensor:
    """The gradient of the row sums that divide `out`, from that of `out`: -inverse <g, out>; without inverse <g, out>.

    g and out [b, h, n, e] with contiguous e; inverse, if given, and the result [b, h, n].
    """
    dots = out.new_empty(out.shape[:-1], dtype=sums_of(out))
    if dots.numel():
        row_products_of(g, out, dots)({"a": g, "b": out, "factor": inverse, "out": dots})
    return dots


def row_products_of(a: Tensor, b: Tensor, out: Tensor) -> KeptLaunch:
    """The launch of `row_products` for tensors like these, [b, h, n, e] with contiguous e."""
    batch, heads, length, width = a.shape
    names = (f"{name}_{dim}" for name in "ab" for dim in ("batch", "head", "row"))
    constants = dict(zip(names, (*a.stride()[:3], *b.stride()[:3]), strict=True))
    constants |= {"heads": heads, "length": length, "width": width, "DTYPE": tile_type(out.dtype)}
    constants |= {"ROWS": 64, "WIDTH": min(64, padded(width)), "num_warps": 4}
    return KeptLaunch(row_products, (batch * heads * -(-length // 64),), constants)
