"""Work of a call on the CPU as torch sees it: FLOPs, custom operations looked into, and bytes allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from tensornet_attn.runtime import blockwise, experts, scan


def flops(run: Callable[[], object]) -> int:
    """FLOPs of all products that `run` makes, also inside the custom operations of the runtime."""
    return flops_with(run, [one for part in (blockwise, experts, scan) for one in vars(part).values()])


def flops_with(run: Callable[[], object], operations: Any) -> int:
    """FLOPs of all products that `run` makes, also inside of those of `operations` that are custom operations.

    >>> flops_with(lambda: torch.ones(2, 3) @ torch.ones(3, 5), ())
    60
    """
    mapping: dict[Any, Any] = dict(ATTENTION)
    mapping |= {one._opoverload.overloadpacket: _inside(one) for one in operations if hasattr(one, "_opoverload")}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        run()
    return int(counter.get_total_flops())


def _attention(query: Any, key: Any, value: Any, *_: object, **more: object) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: object, **more: object) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))


ATTENTION = {  # torch has these formulas for the fused attention of GPUs alone
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


def _inside(operation: Any) -> Callable[..., int]:
    """The FLOPs of a custom operation: those of its body, which runs once more."""

    def count(*arguments: Any, out_val: Any = None, **more: Any) -> int:
        with FlopCounterMode(display=False) as counter:
            operation._init_fn(*arguments, **more)
        return int(counter.get_total_flops())

    count._get_raw = True  # type: ignore[attr-defined]  # called with tensors, not with their shapes
    return count


class Reads(TorchFunctionMode):
    """Counts the tensors whose values Python reads, for which a GPU would wait."""

    count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += getattr(function, "__name__", "") in ("__bool__", "__int__", "__float__", "item", "tolist")
        return function(*args, **(kwargs or {}))


def reads(run: Callable[[], object]) -> int:
    """How many tensors `run` reads.

    >>> reads(lambda: bool(torch.ones(2).all()))
    1
    """
    with Reads() as mode:
        run()
    return mode.count


def allocated(run: Callable[[], object]) -> int:
    """Bytes of all tensors that `run` allocates, however short they live.

    >>> 8000 <= allocated(lambda: torch.zeros(1000) + 1) < 9000
    True
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    return sum(max(0, e.nbytes()) for e in profile.profiler.kineto_results.events() if e.name() == "[memory]")
