"""Measures what any computation on this machine is made of: products by shape, copies, exponentials.

`best` gives the shortest seconds of a call, because other load only adds time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from tensornet_attn import compiler
from tensornet_attn.bench.measure import Call
from tensornet_attn.cost.products import MeasuredRate, Shape
from tensornet_attn.cost.rates import DROPOUT, NOISE, SINUSOID, Each
from tensornet_attn.ops.maps import MAPS
from tensornet_attn.runtime.positions import sinusoid
from tensornet_attn.runtime.products import PROJECTED, onednn_from, projected

Best = Callable[[Call], float]
ONE, MANY, SIDE = 1, 16, 256
# Rows, columns and summed of a product: as large as possible; narrow; in the width of a head; with a long sum, as the
# gradient of a weight; queries times keys, weights times values, also of width 1; within a chunk.
SHAPES = (
    (ONE, 512, 512, 512),
    (ONE, 512, 64, 512),
    (ONE, 512, 8, 512),
    (ONE, 512, 512, 64),
    (ONE, 512, 512, 8),
    (ONE, 512, 8, 8),
    (ONE, 64, 64, 512),
    (ONE, 8, 8, 512),
    (MANY, 512, 512, 64),
    (MANY, 512, 512, 8),
    (MANY, 512, 64, 512),
    (MANY, 512, 8, 512),
    (MANY, 512, 512, 1),
    (MANY, 512, 1, 512),
    (MANY, 64, 64, 64),
    (MANY, 64, 64, 512),
    (MANY, 16, 16, 16),
)
WORK = {"cpu": 2**24, "cuda": 2**33}  # multiply-adds of a call, so that its overhead does not count
MAPPED = {"tensornet": 1, "name": "mapped", "legs": {"n": "query", "f": SIDE}, "inputs": {"x": "n f"}, "output": "y"}
POWERS = {"power": "power(1.5)", "power(2)": "power(2)", "power(3)": "power(3)"}  # torch multiplies for 2 and 3
LEAST = 1e-12  # seconds of a map that takes no longer than the fastest one
RESULTS = 4  # a result has at most a fourth as many numbers: on a CPU 16 MiB, without new pages of memory


def product_rates(best: Best, device: str, dtype: torch.dtype) -> tuple[MeasuredRate, ...]:
    """FLOPs per second of products of each shape. More work makes the longest side longer, or the batch larger."""
    rates = []
    for sizes in SHAPES:
        shape = filled(Shape(*sizes), WORK[torch.device(device).type])
        lead = () if shape.batch == 1 else (shape.batch,)
        left = torch.ones(*lead, shape.rows, shape.summed, device=device, dtype=dtype)
        right = torch.ones(*lead, shape.summed, shape.columns, device=device, dtype=dtype)
        operand_pairs = [(left, right)]
        if shape.columns < shape.rows:  # heads before positions, or after them
            operand_pairs.append((right.mT.contiguous(), left.mT.contiguous()))
        shortest = min(best(partial(torch.matmul, *operands)) for operands in operand_pairs)
        rates.append(MeasuredRate(shape, 2 * shape.macs / shortest))
    return tuple(rates)


def filled(shape: Shape, work: int) -> Shape:
    """The shape with enough rows, summed entries or matrices for this many multiply-adds, or a fourth as many results.

    >>> filled(Shape(1, 512, 8, 8), 2**24), filled(Shape(1, 8, 8, 512), 2**24).summed, filled(Shape(16, 4, 4, 4), 2**20)
    (Shape(batch=1, rows=262144, columns=8, summed=8), 262144, Shape(batch=16384, rows=4, columns=4, summed=4))
    >>> filled(Shape(16, 512, 512, 1), 2**24)
    Shape(batch=16, rows=512, columns=512, summed=1)
    """
    times = max(1, work // max(shape.macs, RESULTS * shape.batch * shape.rows * shape.columns))
    if shape.batch > 1:
        return Shape(shape.batch * times, shape.rows, shape.columns, shape.summed)
    if shape.rows < shape.summed:
        return Shape(1, shape.rows, shape.columns, shape.summed * times)
    return Shape(1, shape.rows * times, shape.columns, shape.summed)


def projected_rate(best: Best) -> tuple[int, float]:
    """Numbers of rows from which layers compute products with weights by oneDNN, and FLOPs per second of one."""
    least = onednn_from()
    rows, weight = torch.ones(2 * min(least, PROJECTED) // SIDE, SIDE), torch.ones(SIDE, SIDE)
    return least, 2 * rows.numel() * SIDE / best(partial(projected, rows, weight))


def copy_rate(best: Best, device: str, size: int) -> float:
    """Bytes per second that a copy of `size` bytes reads and writes."""
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size / best(lambda: target.copy_(source))


def map_rates(best: Best, elements: int) -> tuple[Each, ...]:
    """Seconds of maps, noise, dropout and sinusoids for a number, of tensors that stay in a cache of a CPU."""
    numbers, times_by_map = torch.randn(1, elements // SIDE, SIDE), dict[str, tuple[float, float]]()
    start = torch.ones_like(numbers)
    for name, expression in ({name: row.usage or name for name, row in MAPS.items()} | POWERS).items():
        layer = compiler.compile(MAPPED | {"diagram": {"y": {"map": expression, "of": "x"}}}, "torch")
        x = (numbers.abs() if layer(numbers).isnan().any() else numbers.clone()).requires_grad_()
        times_by_map[name] = best(torch.no_grad()(partial(layer, x))), best(partial(_gradient, layer, x, start))
    least = [min(times) for times in zip(*times_by_map.values(), strict=True)]
    times_by_map = {name: (forward - least[0], both - least[1]) for name, (forward, both) in times_by_map.items()}
    times_by_map[NOISE] = (best(partial(torch.randn, elements)),) * 2
    times_by_map[DROPOUT] = (best(partial(F.dropout, start, 0.1)),) * 2
    times_by_map[SINUSOID] = (best(partial(sinusoid, torch.arange(elements // SIDE), SIDE, torch.float32)),) * 2
    return tuple(
        Each(name, *(max(seconds, LEAST) / elements for seconds in times)) for name, times in times_by_map.items()
    )


def _gradient(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, start: torch.Tensor) -> object:
    return torch.autograd.grad(layer(x), x, start)


def exponential_rate(best: Best, device: str, dtype: torch.dtype, elements: int) -> float:
    """Exponentials per second, of a tensor that stays in a cache of a CPU."""
    source = torch.zeros(elements, device=device, dtype=dtype)
    target = torch.empty_like(source)
    return elements / best(lambda: torch.exp(source, out=target))
