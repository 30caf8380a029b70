"""Whether results agree with a reference: modules with the same weights, equal values and gradients, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import tensornet_attn as ta


def modules(source: Any, backend: str = "torch", causal: bool | None = None, **options: Any) -> tuple[Any, Any]:
    """The reference and a compiled module with the same weights, in float64."""
    torch.manual_seed(0)
    oracle = ta.reference(source, causal, dtype=torch.float64)
    module = ta.compile(source, backend, causal, dtype=torch.float64, **options)
    module.load_state_dict(oracle.state_dict())
    return oracle, module


def in_one_graph(
    function: Callable[..., Tensor], draw: Callable[..., Sequence[Tensor]], sizes: Sequence[Sequence[int]]
) -> Iterator[tuple[Tensor, Sequence[Tensor]]]:
    """The traced results at several sizes, and their operands; from the third size on, nothing is traced again."""
    torch._dynamo.reset()
    traced = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for place, size in enumerate(sizes):
        given = draw(*size)
        with torch.compiler.set_stance("fail_on_recompile" if place > 1 else "default"):
            found = traced(*given)
        yield found, given


@torch.no_grad()
def in_chunks(module: Any, x: Tensor, cuts: Sequence[int]) -> Tensor:
    """The results of a module for chunks of x, one after the other with a cache."""
    cache = module.new_cache()
    return torch.cat([module(part, cache=cache) for part in x.split(cuts, 1)], 1)


def outcome(module: nn.Module, inputs: Sequence[Tensor], **options: Any) -> list[Tensor]:
    """The result, and the gradients of floating inputs and of weights under random weights of the result."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    y = module(*leaves, **options)
    learned = [x for x in (*leaves, *module.parameters()) if x.requires_grad]
    weights = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, learned, weights, materialize_grads=True)]


def same_outcome(
    module: nn.Module,
    oracle: nn.Module,
    inputs: Sequence[Tensor],
    rtol: float = 1e-9,
    atol: float = 1e-10,
    **options: Any,
) -> None:
    """Equal results, and equal gradients of inputs and weights."""
    found, wanted = outcome(module, inputs, **options), outcome(oracle, inputs, **options)
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)


def agree(found: Tensor, wanted: Tensor, leaves: list[Tensor]) -> None:
    """Equal values, and equal gradients under random weights; those of unused leaves are zero."""
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)
    weights = torch.randn_like(wanted)
    both = [torch.autograd.grad(y, leaves, weights, materialize_grads=True) for y in (found, wanted)]
    torch.testing.assert_close(*both, rtol=1e-9, atol=1e-10)
