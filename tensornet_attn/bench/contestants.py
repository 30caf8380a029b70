"""Who can be measured: our backends, the reference, and what is written by hand; each says why it cannot run a case."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch
from torch import nn

from tensornet_attn import compiler
from tensornet_attn.bench.baselines import LAYERS, layer_of
from tensornet_attn.bench.baselines.attend import Attend, Flex, eager, sdpa
from tensornet_attn.bench.case import FORWARD, Case
from tensornet_attn.bench.guard import gibibytes, pair_bytes

OURS = ("torch", "inductor")
HEADS = 8  # of the yardstick, where the design has no leg h


class SkippedError(Exception):
    """A contestant cannot run a case; the message says why."""


@dataclass(frozen=True)
class Contestant:
    """A module that is ready to run, the case that it computes, and a note on what it is."""

    module: nn.Module
    case: Case
    note: str = ""


def contestant(name: str, case: Case, kind: str, limit: float) -> Contestant:
    """Raises SkippedError where it cannot run the case, or is predicted to need more than `limit` bytes."""
    return MAKERS[name](case, kind, limit)


def ours(backend: str) -> Callable[[Case, str, float], Contestant]:
    def make(case: Case, kind: str, limit: float) -> Contestant:
        if backend == "inductor":
            need_compiler(case.device)
        module = compiler.compile(case.design, backend, case.causal)
        within(pair_bytes(module.plan.schedule, case, kind != FORWARD), limit)
        return Contestant(case.loaded(module), case)

    return make


def reference(case: Case, kind: str, limit: float) -> Contestant:
    within(pair_bytes(case.graph, case, kept=True), limit)
    return Contestant(case.loaded(compiler.reference(case.design, case.causal)), case)


def by_hand(case: Case, kind: str, limit: float, attend: Attend = eager) -> Contestant:
    """The hand-written layer of a shipped design."""
    if not case.shipped:
        raise SkippedError(f"'{case.design.name}' is not a shipped design, so nobody has written it by hand.")
    made = LAYERS[case.design.name][0]
    dense = case.graph.causal or not made.linear
    if attend is eager and dense:
        within(pair_bytes(case.graph, case, kind != FORWARD), limit)
    return Contestant(case.loaded(layer_of(case.design.name, case.sizes, case.graph.causal, attend)), case)


def compiled(case: Case, kind: str, limit: float) -> Contestant:
    """torch.compile of the hand-written layer, for this length alone."""
    need_compiler(case.device)
    found = by_hand(case, kind, limit)
    return replace(found, module=torch.compile(found.module, dynamic=False))


def by_sdpa(case: Case, kind: str, limit: float) -> Contestant:
    one_call(case)
    return by_hand(case, kind, limit, sdpa)


def by_flex(case: Case, kind: str, limit: float) -> Contestant:
    one_call(case)
    if kind != FORWARD and torch.device(case.device).type == "cpu":
        raise SkippedError("flex_attention has no backward on the CPU.")
    need_compiler(case.device)
    return by_hand(case, kind, limit, Flex())


def yardstick(case: Case, kind: str, limit: float) -> Contestant:
    """Softmax attention of the same width by SDPA: another function, at the cost that readers know."""
    if case.graph.key is None:
        raise SkippedError(f"'{case.design.name}' has no key leg: it is no attention.")
    width = case.sizes.get("f")
    if not isinstance(width, int):
        raise SkippedError(f"'{case.design.name}' has no leg 'f', whose width softmax attention would take.")
    heads = next(h for h in (case.sizes.get("h"), HEADS, 1) if isinstance(h, int) and width % h == 0)
    design = compiler.load("mhsa", legs={"f": width, "h": heads})
    plain = replace(case, design=design, causal=case.graph.causal)
    return Contestant(by_sdpa(plain, kind, limit).module, plain, f"mhsa of f {width}, h {heads}: another function")


MAKERS: dict[str, Callable[[Case, str, float], Contestant]] = {
    **{backend: ours(backend) for backend in OURS},
    "reference": reference,
    "eager": by_hand,
    "compile": compiled,
    "sdpa": by_sdpa,
    "softmax": yardstick,
    "flex": by_flex,
}
AGAINST = tuple(name for name in MAKERS if name not in OURS)


def one_call(case: Case) -> None:
    """Raises SkippedError where no single call of attention computes the design."""
    if case.shipped and (why := LAYERS[case.design.name][0].mixed):
        raise SkippedError(f"'{case.design.name}' {why}: no call of attention computes it. 'softmax' is a yardstick.")


def within(size: float, limit: float) -> None:
    if size > limit:
        raise SkippedError(
            f"its tensors over pairs of positions would take about {gibibytes(size)}, above the limit of "
            f"{gibibytes(limit)} (--memory)."
        )


def need_compiler(device: str) -> None:
    """Raises SkippedError where torch.compile has nothing to compile with."""
    if torch.device(device).type == "cuda":
        if find_spec("triton") is None:
            raise SkippedError("torch.compile needs triton on a GPU, and it is not installed.")
    elif not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))):
        raise SkippedError("torch.compile needs a C++ compiler on the CPU, and none of g++ and clang++ is on the PATH.")
