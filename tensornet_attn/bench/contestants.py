"""The contestants: our backends, the reference and handwritten layers, with the reasons why one cannot run a case."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import cast

import torch
from torch import nn

from tensornet_attn import compiler
from tensornet_attn.bench.baselines import LAYERS, layer_of
from tensornet_attn.bench.baselines.kernels import FastWeights, in_chunks
from tensornet_attn.bench.baselines.layer import Attend, Flex, eager, sdpa
from tensornet_attn.bench.case import FORWARD, Case
from tensornet_attn.bench.compare import WrongError
from tensornet_attn.bench.floor import pair_bytes
from tensornet_attn.bench.measure import is_gpu
from tensornet_attn.bench.own import OwnLayer, own_layer
from tensornet_attn.cost.sizes import parameters
from tensornet_attn.cost.target import target_from
from tensornet_attn.kernels.attention import FUSED
from tensornet_attn.plan.make import candidates
from tensornet_attn.rewrite.fused import FusedAttention
from tensornet_attn.verify.kernels import reason_against_triton

OURS = ("auto", "torch", "inductor", "cpp", "triton")
FORCED = f"{FUSED.name} forced"  # the way to plan
HEADS = 8  # of 'softmax' if the design has no leg h, and of 'dense'
WIDE = 8  # the head width of 'dense' is a multiple of it, because SDPA pads other widths


class SkippedError(Exception):
    """A contestant cannot run a case; the message is the reason."""


@dataclass(frozen=True)
class Contestant:
    """A module with weights, its case, and a note for the report. `layer`: the layer, if it is one of the user."""

    module: nn.Module
    case: Case
    note: str = ""
    layer: OwnLayer | None = None


def contestant(name: str, case: Case, kind: str, limit: float) -> Contestant:
    """A contestant by name. Raises SkippedError if it cannot run the case, or may need more than `limit` bytes."""
    if ":" in name:
        layer = own_layer(name, case)
        return Contestant(layer.module, case, layer=layer)
    return MAKERS[name](case, kind, limit)


def within(size: float, limit: float, what: str = "tensors over pairs of positions") -> None:
    if size > limit:
        sizes = f"{size / 2**30:.1f} GiB, more than the limit of {limit / 2**30:.1f} GiB (--memory)"
        raise SkippedError(f"its {what} would take about {sizes}.")


def need_kernels(case: Case) -> None:
    """Raises SkippedError if Triton kernels cannot run."""
    from tensornet_attn.runtime.triton.target import interpreting, reasons_against

    reasons = reasons_against(case.torch_dtype)
    if not reasons and not case.on_gpu and not interpreting():
        reasons = ["Triton kernels need a GPU; add --device cuda"]
    if reasons:
        raise SkippedError(f"{'; '.join(reasons)}.")


def need_compiler(device: str) -> None:
    """Raises SkippedError if torch.compile has no compiler."""
    if is_gpu(device):
        if find_spec("triton") is None:
            raise SkippedError("torch.compile needs triton on a GPU, which is not installed.")
    elif not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))):
        raise SkippedError("torch.compile needs a C++ compiler on the CPU; neither g++ nor clang++ is on the PATH.")


def need_parts(backend: str, case: Case) -> None:
    """Raises SkippedError if one of our backends cannot run."""
    if backend == "inductor":
        need_compiler(case.device)
    if backend == "triton":
        need_kernels(case)


def ours(backend: str, case: Case, kind: str, limit: float) -> Contestant:
    """A design compiled on one of the backends."""
    need_parts(backend, case)
    module = compiler.compile(case.design, backend, case.causal, **case.wanted(kind))
    within(pair_bytes(module.plan.schedule, case, kind != FORWARD), limit)
    loaded = case.loaded(module)
    plan = module.plan
    triton = "triton" in plan.backends.values()
    if triton and (reason := reason_against_triton(plan, case.torch_dtype, case.device)):
        raise WrongError(reason)
    if plan.backend == "triton" and case.tune:
        from tensornet_attn.nn.tune import tune_design  # needs triton

        tune_design(module)
    # regions on another backend, except plain products and boxes
    others = [f"'{region.name}'" for region in plan.regions if region.backend != plan.backend and not region.plain]
    notes = [plan.backend if backend == "auto" else "", f"{', '.join(others)} on torch" if others else ""]
    return Contestant(loaded, case, ", ".join(filter(None, notes)))


def fused(case: Case, kind: str, limit: float) -> Contestant:
    """Our torch backend with fused attention wherever rewrites of scores allow it, whether it pays off or not.

    It prevents a good ratio that is only due to a bad plan of `torch`.
    """
    target = target_from(**case.wanted(kind))
    plan = candidates(case.graph, target, (FORCED,))[FORCED]
    if not any(isinstance(step.form, FusedAttention) for step in plan.schedule.steps):
        raise SkippedError(f"no rewrite of '{case.design.name}' at n = {case.n} allows fused attention.")
    if plan.schedule.to_text() == compiler.plan_of(case.graph, "torch", target).schedule.to_text():
        raise SkippedError("it is the same as 'torch'.")
    within(pair_bytes(plan.schedule, case, kind != FORWARD), limit)
    return Contestant(case.loaded(compiler.module_of(case.design, plan)), case)


def reference(case: Case, kind: str, limit: float) -> Contestant:
    within(pair_bytes(case.graph, case, kept=True), limit)
    return Contestant(case.loaded(compiler.reference(case.design, case.causal)), case)


def by_hand(case: Case, kind: str, limit: float, attend: Attend = eager) -> Contestant:
    """The handwritten layer of a shipped design."""
    if not case.shipped:
        raise SkippedError(f"'{case.design.name}' is not a shipped design, so it has no handwritten layer.")
    if case.design.name not in LAYERS:
        raise SkippedError(f"'{case.design.name}' has no handwritten layer; docs/parity.md lists other layers.")
    layer_class = LAYERS[case.design.name][0]
    linear = layer_class.linear_causal if case.graph.causal else layer_class.linear
    if attend is eager and not linear:
        within(pair_bytes(case.graph, case, kind != FORWARD), limit)
    return Contestant(case.loaded(layer_of(case.design.name, case.sizes, case.graph.causal, attend)), case)


def compiled(case: Case, kind: str, limit: float) -> Contestant:
    """The handwritten layer with torch.compile, for this length only."""
    need_compiler(case.device)
    layer = by_hand(case, kind, limit)
    return replace(layer, module=cast(nn.Module, torch.compile(layer.module, dynamic=False)))  # typed for functions


def one_call(case: Case) -> None:
    """Raises SkippedError if no single call of fused attention computes the design."""
    if case.shipped and case.design.name in LAYERS and (why := LAYERS[case.design.name][0].mixed):
        reason = f"'{case.design.name}' {why}, so fused attention cannot compute it"
        raise SkippedError(f"{reason}; compare with 'softmax' instead.")


def by_sdpa(case: Case, kind: str, limit: float) -> Contestant:
    one_call(case)
    return by_hand(case, kind, limit, sdpa)


def by_flex(case: Case, kind: str, limit: float) -> Contestant:
    one_call(case)
    if kind != FORWARD and not case.on_gpu:
        raise SkippedError("flex_attention has no backward on the CPU.")
    need_compiler(case.device)
    return by_hand(case, kind, limit, Flex())


def yardstick(case: Case, kind: str, limit: float) -> Contestant:
    """mhsa of the same width by SDPA: another function, for comparison."""
    if case.graph.key is None:
        raise SkippedError(f"'{case.design.name}' has no key leg, so it is not an attention.")
    width = case.sizes.get("f")
    if not isinstance(width, int):
        raise SkippedError(f"'{case.design.name}' has no leg 'f' with the width of its input.")
    heads = next(h for h in (case.sizes.get("h"), HEADS, 1) if isinstance(h, int) and width % h == 0)
    plain = case.of_softmax(f=width, h=heads)
    return Contestant(by_sdpa(plain, kind, limit).module, plain, f"mhsa of f {width}, h {heads}: another function")


def dense(case: Case, kind: str, limit: float) -> Contestant:
    """mhsa by SDPA with about the same number of parameters: the dense alternative to a design with experts."""
    width = case.sizes.get("f")
    if case.graph.key is None or not isinstance(width, int):
        raise SkippedError(f"'{case.design.name}' lacks a key leg or a leg 'f', which a dense layer needs.")
    count = parameters(case.graph)
    size = max(WIDE, WIDE * round(count / (4 * width * HEADS * WIDE)))  # mhsa has four weights f h d
    plain = case.of_softmax(f=width, h=HEADS, d=size)
    note = f"mhsa of f {width}, h {HEADS}, d {size}: {parameters(plain.graph):,} parameters, here {count:,}"
    return Contestant(by_sdpa(plain, kind, limit).module, plain, note)


def by_fla(case: Case, kind: str, limit: float) -> Contestant:
    """The layer of fast weights with the delta rule of flash-linear-attention, and its near field by flex_attention."""
    row = LAYERS.get(case.design.name) if case.shipped else None
    if row is None or not issubclass(row[0], FastWeights):
        raise SkippedError(f"'{case.design.name}' has no delta rule that flash-linear-attention computes.")
    if find_spec("fla") is None:
        raise SkippedError("flash-linear-attention is not installed: pip install flash-linear-attention.")
    if not case.on_gpu or case.dtype not in ("bfloat16", "float16"):
        raise SkippedError("the delta rule of flash-linear-attention needs a GPU and bfloat16 or float16.")
    handwritten = by_hand(case, kind, limit, Flex())
    assert isinstance(handwritten.module, FastWeights)
    handwritten.module.delta = in_chunks
    return handwritten


MAKERS: dict[str, Callable[[Case, str, float], Contestant]] = {
    **{backend: partial(ours, backend) for backend in OURS},
    "reference": reference,
    "eager": by_hand,
    "compile": compiled,
    "sdpa": by_sdpa,
    "softmax": yardstick,
    "flex": by_flex,
    "fused": fused,
    "dense": dense,
    "fla": by_fla,
}
AGAINST = tuple(name for name in MAKERS if name not in OURS)
