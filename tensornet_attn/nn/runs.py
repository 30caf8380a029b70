"""Runs of compiled modules: the emitted forward, eagerly or under torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from tensornet_attn.emit.load import load_class, unload_with
from tensornet_attn.emit.module import call_options
from tensornet_attn.errors import InputError
from tensornet_attn.nn.executable import Arguments, Result, Run
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.nn.tune import recalled
from tensornet_attn.plan.plan import Plan
from tensornet_attn.runtime.triton.target import interpreting, mend_interpreter

COMPILATIONS = 64  # of one text: its dtypes times its kinds of masks, sizes 0, 1 and others, with gradients and without


def emitted_run(source: str, class_name: str, plan: Plan, inductor: bool = False) -> Run:
    """Returns a function that calls the forward of the emitted class with the compiled module as `self`."""
    if plan.backend == "triton" and interpreting():
        mend_interpreter()
    emitted = load_class(source, class_name, plan.graph.name).forward
    forward = compiled_forward(emitted, plan.graph.name) if inductor else emitted
    if plan.backend == "triton" and torch.cuda.is_available():
        recalled(source)
    options = tuple(name for name, _ in call_options(plan.schedule))

    def run(module: CompiledDesign, arguments: Arguments) -> Result:
        if arguments.mask is None and arguments.key_mask is None and arguments.noise is None and not arguments.losses:
            return forward(module, *arguments.inputs)
        output = forward(module, *arguments.inputs, **{name: getattr(arguments, name) for name in options})
        return (output, {}) if arguments.losses and "losses" not in options else output

    unload_with(run, emitted)
    return run


def compiled_forward(emitted: Callable[..., Any], name: str) -> Callable[..., Any]:
    """An emitted forward under torch.compile, which all layers of this text share.

    torch compiles it again for each dtype and kind of mask. Raises InputError after too many times.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit

    limit: dict[str, Any] = {"recompile_limit": COMPILATIONS}
    takes_limit = limit.keys() <= signature(torch.compile).parameters.keys()  # in newer releases of torch
    compiled: Any = torch.compile(emitted, fullgraph=True, **(limit if takes_limit else {}))

    def forward(*inputs: Any, **options: Any) -> Any:
        try:
            return compiled(*inputs, **options)
        except FailOnRecompileLimitHit as error:
            raise InputError(
                f"{name}: torch.compile has compiled this layer too often: give calls fewer dtypes, kinds of masks and "
                "numbers of batch dimensions, or compile with backend='torch'."
            ) from error

    return forward
