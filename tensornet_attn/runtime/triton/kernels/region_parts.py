"""Several programs share the keys of a block of queries: into how many parts, and how their results are joined.

Each part has the result of its own keys and the statistics of its rows. A softmax weights the results by the sums of
the parts, relative to the largest score of all; everything else is a sum over the parts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensornet_attn.runtime.triton.configure import padded
from tensornet_attn.runtime.triton.kernels.region_inside import exp_in, load_2d, store_2d
from tensornet_attn.runtime.triton.kernels.tiles import tile_type

PROCESSORS = 108  # of a GPU that is not present: an A100
START = 2  # blocks of keys that take as long as the begin and the end of a program
JOINING = 8  # blocks of keys that take as long as joining the parts
ROWS = 16  # rows that a program joins


def parts_for(programs: int, blocks: int, processors: int) -> int:
    """The number of parts at which the longest program and the joining take the least time, in blocks of keys.

    `programs`: without parts; `blocks`: blocks of keys that each of them visits.
    """
    if not 0 < programs < processors:
        return 1
    least = blocks + START, 1
    for parts in range(2, min(blocks, 4 * processors // programs) + 1):
        rounds = -(-programs * parts // processors)
        least = min(least, (rounds * (-(-blocks // parts) + START) + JOINING, parts))
    return least[1]


def processors_of(x: Tensor) -> int:
    """The multiprocessors of the GPU that holds x."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else PROCESSORS


@triton.jit
def join_parts(
    out, lse, values, rows, parts, count, inner, width, step, VALUES: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr, MASK: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Joins the statistics of `count` rows and, with VALUES, [parts, count, width] results of a softmax.

    Statistics are [parts, count / inner, 2, inner]: sums, and the m_i that they are relative to.
    """
    i, d = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)
    at, in_bounds = i + i // inner * inner, i < count
    m_i, l_i = tl.full((BLOCK,), float("-inf"), SUMS), tl.zeros((BLOCK,), SUMS)
    acc = tl.zeros((BLOCK, WIDE), SUMS)
    for _part in range(parts):
        row = tl.load(rows + at + inner, in_bounds, 0)
        new_m_i = tl.maximum(m_i, row)
        shift = tl.where(new_m_i == float("-inf"), 0.0, new_m_i)
        alpha, share = exp_in(m_i - shift, MASK), exp_in(row - shift, MASK) * tl.load(rows + at, in_bounds, 0)
        l_i = l_i * alpha + share
        if VALUES:
            acc = acc * alpha[:, None] + share[:, None] * load_2d(values, i, width, count, d, 1, width)
            values += step
        m_i = new_m_i
        rows += 2 * count
    nonempty = l_i != 0
    divisor = tl.where(nonempty, l_i, 1.0)
    tl.store(lse + at, tl.where(nonempty, 1 / divisor, 0.0), in_bounds)
    tl.store(lse + at + inner, tl.where(nonempty, m_i, 0.0), in_bounds)
    if VALUES:
        store_2d(out, i, width, count, d, 1, width, acc / divisor[:, None])


def join_rows(lse: Tensor, rows: Tensor, normalized: tuple[int, ...], mask: int) -> None:
    """Writes the statistics of the rows of all maps, [pairs, maps, n], from those of the parts.

    With a softmax, its largest scores follow: [pairs, 2 maps, n]. `mask`: the kind of the mask of the call.
    """
    if rows.ndim == lse.ndim:  # one part, which is the same tensor
        return
    if len(normalized) < lse.shape[1]:
        _joined(lse, lse, rows, rows, mask, False)
    for i in normalized:
        total = rows[:, :, i].sum(0)
        lse[:, i] = torch.where(total == 0, 0, 1 / torch.where(total == 0, 1, total))


def join(
    out: Tensor, lse: Tensor, values: Tensor, rows: Tensor, reads: list, normalized: tuple[int, ...], mask: int
) -> None:
    """Writes the result, [pairs, tiles, n, width], and the statistics of its rows. `reads`: the tiles of each map."""
    maps = [next(i for i, tiles in enumerate(reads) if tile in tiles) for tile in range(out.shape[1])]
    if not normalized and maps == [*range(len(reads))]:
        _joined(out, lse, values, rows, mask, True)
        return
    join_rows(lse, rows, normalized, mask)
    if normalized:
        reciprocals = torch.stack([lse.select(1, i) for i in maps], 1)
        out.copy_(values.sum(0) * (reciprocals.unsqueeze(-1) if out.ndim > 3 else reciprocals))
    else:
        tile_rows = torch.stack([rows.select(2, i) for i in (*maps, *(len(reads) + i for i in maps))], 2)
        _joined(out, torch.empty_like(tile_rows[0]), values, tile_rows, mask, True)


def _joined(out: Tensor, lse: Tensor, values: Tensor, rows: Tensor, mask: int, has_values: bool) -> None:
    """Launches `join_parts` for tensors of which the first dimension of `values` and `rows` is that of the parts."""
    if count := lse.numel() // 2:
        width = out.numel() // count if has_values else 1
        join_parts[(-(-count // ROWS),)](
            out, lse, values, rows, len(rows), count, lse[0].numel() // 2, width, count * width, VALUES=has_values,
            BLOCK=ROWS, WIDE=padded(width), MASK=mask, SUMS=tile_type(rows.dtype),
        )  # fmt: skip
