"""Runs of compiled modules: the emitted forward, eagerly or under torch.compile."""

from __future__ import annotations

import torch

from tensornet_attn.emit.load import load_class, unload_with
from tensornet_attn.emit.module import call_options
from tensornet_attn.nn.made import Arguments, Result, Run
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.nn.tune import recalled
from tensornet_attn.plan.model import Plan
from tensornet_attn.runtime.triton.target import interpreting, mend_interpreter


def emitted_run(source: str, class_name: str, plan: Plan, inductor: bool = False) -> Run:
    """Returns a function that calls the forward of the emitted class with the compiled module as `self`."""
    if plan.backend == "triton" and interpreting():
        mend_interpreter()
    emitted = load_class(source, class_name, plan.graph.name).forward
    forward = torch.compile(emitted, fullgraph=True) if inductor else emitted
    if plan.backend == "triton" and torch.cuda.is_available():
        recalled(source)
    options = tuple(name for name, _ in call_options(plan.schedule))

    def run(module: CompiledDesign, given: Arguments) -> Result:
        if given.mask is None and given.key_mask is None and given.noise is None and not given.losses:
            return forward(module, *given.inputs)
        found = forward(module, *given.inputs, **{name: getattr(given, name) for name in options})
        return (found, {}) if given.losses and "losses" not in options else found

    unload_with(run, emitted)
    return run
