"""Positions of queries and keys: tables, rotations and relative positions.

The last query is at the last key.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.runtime.maps import with_padding


def query_positions(n: int, m: int, device: torch.device | None = None) -> Tensor:
    """m - n ... m - 1: [n]; keys are at 0 ... m - 1."""
    return torch.arange(m - n, m, device=device)


def relative_positions(n: int, m: int, device: torch.device | None = None) -> Tensor:
    """1 - n ... m - 1: [n + m - 1], none if there are neither queries nor keys."""
    return torch.arange(1 - n, m + 1, device=device)[:-1]  # a comparison of the lengths would stay in traced code


def exactly(positions: Tensor) -> Tensor:
    """Positions in a dtype in which products lose no relevant digits: float64 if the device supports it."""
    return positions.to(torch.float32 if positions.device.type == "mps" else torch.float64)


def distance(n: int, m: int, device: torch.device | None = None) -> Tensor:
    """Query position minus key position: [n, m], integers."""
    return query_positions(n, m, device)[:, None] - torch.arange(m, device=device)


def sinusoid(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Entry 2i is sin(p * 10000 ** (-2i / width)), 2i + 1 its cosine: [p, width]."""
    positions, entry = exactly(positions), torch.arange(width, device=positions.device)  # late angles are large
    angle = positions[:, None] * 10000.0 ** (-2 * (entry // 2).to(positions.dtype) / width)
    return torch.where(entry % 2 == 0, angle.sin(), angle.cos()).to(dtype)


def buckets(positions: Tensor, count: int, furthest: int, both_sides: bool) -> Tensor:
    """The bucket of each distance (query position minus key position), as in T5: [p], integers.

    Half of the buckets hold one distance each, the others logarithmically growing ranges up to `furthest`. With
    `both_sides`, keys after the query use the second half of the buckets; otherwise they are in the first bucket.
    """
    if both_sides:
        count //= 2
        side, distance = (positions < 0) * count, positions.abs()
    else:
        side, distance = torch.zeros_like(positions), positions.clamp(min=0)
    exact = count // 2
    # in single precision and in this order, to match the bucket boundaries of trained models
    grown = torch.log(distance.float() / exact) / math.log(furthest / exact) * (count - exact)
    far = (exact + grown.clamp(min=0).to(positions.dtype)).clamp(max=count - 1)
    return side + torch.where(distance < exact, distance, far)


def log_buckets(positions: Tensor, count: int, furthest: int) -> Tensor:
    """The bucket of each distance (query position minus key position), as in DeBERTa: [p], integers.

    Distance 0 is in the middle. Half of the buckets hold one distance each, the others growing ranges up to `furthest`.
    """
    exact = count // 4
    distance = torch.where(positions.abs() < exact, exact - 1, positions.abs())
    ratio = torch.tensor((furthest - 1) / exact, dtype=torch.float32)  # single precision matches trained models
    grown = torch.log(distance.float() / exact) / torch.log(ratio) * (exact - 1)
    far = (torch.ceil(grown) + exact).to(positions.dtype) * positions.sign()
    return (torch.where(distance <= exact, positions, far) + count // 2).clamp(0, count - 1)


def one_of(index: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """One-hot vectors: [p] -> [p, count]."""
    return F.one_hot(index, count).to(dtype)


def alibi_slopes(heads: int, device: torch.device | None, dtype: torch.dtype) -> Tensor:
    """2 ** (-8 i / heads), i from 1; between powers of two, filled from the next power (Press et al. 2022): [heads]."""
    power = 2 ** (heads.bit_length() - 1)
    steps = [8 * i / power for i in range(1, power + 1)] + [4 * i / power for i in range(1, 2 * (heads - power), 2)]
    return torch.tensor([2.0**-step for step in steps], device=device, dtype=dtype)


def rotate(
    x: Tensor,
    positions: Tensor,
    sequence_dim: int,
    along_dim: int,
    base: float,
    width: int,
    interleaved: bool = False,
    scaling: tuple[str, *tuple[float, ...]] | None = None,
    axes: int | None = None,
) -> Tensor:
    """Rotates the first `width` entries by the positions on `sequence_dim`: (a cos - b sin, b cos + a sin).

    a and b are the two halves or, if `interleaved`, the even and the odd entries. `positions`: [n], or [..., n] with
    the dimensions of x except the rotated one; with `axes`, [..., n, axes], which share the pairs.
    """
    y = x.movedim((sequence_dim, along_dim), (-2, -1))  # ... n d
    cos, sin = rotations(positions, base, width, x.dtype, scaling, axes)
    half, rest = width // 2, y.shape[-1] - width
    if interleaved:
        pairs, *unrotated = y.split([width, rest], -1) if rest else [y]
        a, b = pairs.unflatten(-1, (half, 2)).unbind(-1)
    else:
        a, b, *unrotated = y.split([half, half, rest] if rest else half, -1)
    pieces = [a * cos - b * sin, b * cos + a * sin]
    pieces += [rest_piece.expand(*pieces[0].shape[:-1], rest) for rest_piece in unrotated]
    # joined where they belong, laid out as x: attention then lays out its result as its reader takes it, without a copy
    pieces = [piece.movedim((-2, -1), (sequence_dim, along_dim)) for piece in pieces]
    if interleaved:
        pieces[:2] = [torch.stack(pieces[:2], along_dim).flatten(along_dim - 1, along_dim)]
    return torch.cat(pieces, along_dim) if len(pieces) > 1 else pieces[0]


STEP: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}  # rotations of a single position, shared by all layers


def rotations(
    positions: Tensor,
    base: float,
    width: int,
    dtype: torch.dtype,
    scaling: tuple[str, *tuple[float, ...]] | None = None,
    axes: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position * rate per pair: [..., n, width / 2] each; cached for a single position."""
    step = type(positions) is Tensor and positions.shape == (1,) and positions.device.type == "cpu"
    traced = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0
    if not step or traced or torch._is_functional_tensor(positions) or positions.requires_grad or axes is not None:
        return angles_of(positions, base, width, dtype, scaling, axes)
    key = (positions.item(), base, width, dtype, scaling, torch.is_inference_mode_enabled())
    cos_sin = STEP.get(key)  # another thread may clear it
    if cos_sin is None:
        if len(STEP) >= 64:
            STEP.clear()
        STEP[key] = cos_sin = angles_of(positions, base, width, dtype, scaling)
    return cos_sin


def angles_of(
    positions: Tensor,
    base: float,
    width: int,
    dtype: torch.dtype,
    scaling: tuple[str, *tuple[float, ...]] | None = None,
    axes: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position * rate per pair: [..., n, width / 2] each."""
    p = exactly(positions)  # angles are large at late positions
    p = p[..., None] if axes is None else p  # ... n axes
    pairs = torch.arange(width // (2 * p.shape[-1]), device=p.device, dtype=p.dtype)
    rates = base ** (-2 * pairs * p.shape[-1] / width) if scaling is None else scaled_rates(p, pairs, base, *scaling)
    angles = (p[..., None] * rates).flatten(-2)
    cos, sin = angles.cos(), angles.sin()
    if scaling is not None and scaling[0] == "yarn":
        _, *numbers = scaling
        cos, sin = numbers[2] * cos, numbers[2] * sin
    return cos.to(dtype), sin.to(dtype)


def scaled_rates(positions: Tensor, pairs: Tensor, base: float, kind: str, *numbers: float) -> Tensor:
    """Radians per position, for each pair: base ** (-2 i / width), scaled for longer contexts.

    linear: factor. dynamic: factor, original length; depends on the last position. llama3: factor, low and high
    frequency, original length. yarn: factor, original length, multiplier of the cosines, rotations at the fast and the
    slow end, and whether these round to whole pairs. Values are those of rope_parameters in transformers.
    """
    width, factor = 2 * pairs.numel(), numbers[0]
    plain = base ** (-2 * pairs / width)
    if kind == "linear":
        return plain / factor
    if kind == "dynamic":
        if width == 2 or positions.numel() == 0:
            return plain
        length = (positions.detach().max() + 1).clamp(min=numbers[1])
        longer = factor * length / numbers[1] - (factor - 1)
        return plain * longer ** (-2 * pairs / (width - 2))
    if kind == "llama3":
        low, high, original = numbers[1:]
        turns = original * plain / (2 * math.pi)
        return torch.lerp(plain / factor, plain, ((turns - low) / (high - low)).clamp(0, 1))
    original, rounded = numbers[1], numbers[5]
    first, last = (width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in numbers[3:5])
    if rounded:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    share = ((pairs - first) / (last - first if last != first else 0.001)).clamp(0, 1)
    return torch.lerp(plain, plain / factor, share)


def relative_to_key(x: Tensor, n: int, m: int, reach: int | None = None) -> Tensor:
    """y[i, j] = x[i, position(i) - position(j)]: [..., n or 1, p] -> [..., n, m].

    p runs from 1 - n to m - 1, or from -reach to reach with distances beyond the range clamped. One row for all queries
    ([..., 1, p]) gives a matrix with constant diagonals.
    """
    x = x if reach is None else in_reach(x, 1 - n, n + m - 1, reach)
    return sheared(x.flip(-1), n, m)


def relative_to_query(x: Tensor, n: int, m: int, reach: int | None = None) -> Tensor:
    """y[j, i] = x[j, position(i) - position(j)] for key j and query i: [..., m or 1, p] -> [..., m, n].

    As seen from the keys, relative positions run in the opposite direction.
    """
    return sheared(x if reach is None else in_reach(x, 1 - n, n + m - 1, reach), m, n)


def sheared(x: Tensor, n: int, m: int) -> Tensor:
    """y[i, j] = x[i, n - 1 - i + j]: [..., n or 1, n + m - 1] -> [..., n, m], a view of contiguous rows."""
    spare = 0 if is_known(n) and n > 1 else 2  # for one row, and for symbols, which need one case for all lengths
    x = with_padding(x, (0, spare))
    # reinterpreted as rows one entry shorter: each row starts one entry earlier than the row above
    width = x.shape[-1] - 1
    rows = x.expand(*x.shape[:-2], n, width + 1).flatten(-2)[..., n - 1 : n - 1 + n * width]
    return rows.unflatten(-1, (n, width))[..., :m]


def sheared_gradient(gradient: Tensor) -> Tensor:
    """The gradient of x in `sheared`: [..., n, m] -> [..., n, n + m - 1]."""
    n, m = gradient.shape[-2:]
    x = gradient.new_zeros(*gradient.shape[:-2], n, max(n + m - 1, 0))
    if gradient.numel():
        x.as_strided(gradient.shape, (*x.stride()[:-2], n + m - 2, 1), n - 1).copy_(gradient)
    return x


def in_reach(x: Tensor, first: int, count: int, reach: int) -> Tensor:
    """The entries at `count` relative positions from `first` on, if any: [..., 2 reach + 1] -> [..., count].

    Distances beyond the reach are clamped.
    """
    if not is_known(count):
        at = torch.arange(first, first + count + 1, device=x.device)[:-1]
        return x.index_select(-1, at.clamp(-reach, reach) + reach)
    start, (below, inside, above) = places_in_reach(first, max(count, 0), reach)
    clamped_below, clamped_above = x[..., :1].expand(*x.shape[:-1], below), x[..., -1:].expand(*x.shape[:-1], above)
    return torch.cat((clamped_below, x.narrow(-1, start, inside), clamped_above), -1)


def is_known(length: int) -> bool:
    """Whether a length is a number; in traced code it may be a symbol, which no branch should compare."""
    return type(length) is int and not torch.compiler.is_compiling()


def in_reach_gradient(gradient: Tensor, first: int, reach: int) -> Tensor:
    """The gradient of x in `in_reach`: [..., count] -> [..., 2 reach + 1]."""
    start, parts = places_in_reach(first, gradient.shape[-1], reach)
    below, inside, above = gradient.split(parts, -1)
    x = F.pad(inside, (start, 2 * reach + 1 - start - parts[1]))
    x[..., 0] += below.sum(-1)
    x[..., -1] += above.sum(-1)
    return x


def places_in_reach(first: int, count: int, reach: int) -> tuple[int, list[int]]:
    """Where the first of `count` relative positions is in a table, and how many are below, in and above its reach."""
    below, above = (min(max(beyond - reach, 0), count) for beyond in (-first, first + count - 1))
    return min(max(first + reach, 0), 2 * reach + 1), [below, count - below - above, above]
