"""Who can be measured: our backends, the reference, and what is written by hand; each says why it cannot run a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import torch

from tensornet_attn import compiler
from tensornet_attn.bench.baselines import LAYERS, layer_of
from tensornet_attn.bench.baselines.attend import Attend, Flex, eager, sdpa
from tensornet_attn.bench.baselines.fmm import FastWeights, in_chunks
from tensornet_attn.bench.case import FORWARD, Case
from tensornet_attn.bench.contestant import Contestant, SkippedError, need_compiler, within
from tensornet_attn.bench.guard import pair_bytes
from tensornet_attn.bench.ours import OURS, fused, ours
from tensornet_attn.cost.match import parameters

HEADS = 8  # of the yardstick, where the design has no leg h; of the dense layer
WIDE = 8  # what a dense head's width is a multiple of: attention of other widths is padded to it


def contestant(name: str, case: Case, kind: str, limit: float) -> Contestant:
    """Raises SkippedError where it cannot run the case, or is predicted to need more than `limit` bytes."""
    return MAKERS[name](case, kind, limit)


def reference(case: Case, kind: str, limit: float) -> Contestant:
    within(pair_bytes(case.graph, case, kept=True), limit)
    return Contestant(case.loaded(compiler.reference(case.design, case.causal)), case)


def by_hand(case: Case, kind: str, limit: float, attend: Attend = eager) -> Contestant:
    """The hand-written layer of a shipped design."""
    if not case.shipped:
        raise SkippedError(f"'{case.design.name}' is not a shipped design, so nobody has written it by hand.")
    made = LAYERS[case.design.name][0]
    linear = made.linear_causal if case.graph.causal else made.linear
    if attend is eager and not linear:
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


def dense(case: Case, kind: str, limit: float) -> Contestant:
    """mhsa by SDPA with about as many parameters: what a design with experts takes the place of."""
    width = case.sizes.get("f")
    if case.graph.key is None or not isinstance(width, int):
        raise SkippedError(f"'{case.design.name}' has no key leg and leg 'f', of which a dense layer would be made.")
    own = parameters(case.graph)
    size = max(WIDE, WIDE * round(own / (4 * width * HEADS * WIDE)))  # mhsa has four weights f h d
    design = compiler.load("mhsa", legs={"f": width, "h": HEADS, "d": size})
    plain = replace(case, design=design, causal=case.graph.causal)
    note = f"mhsa of f {width}, h {HEADS}, d {size}: {parameters(plain.graph):,} parameters, here {own:,}"
    return Contestant(by_sdpa(plain, kind, limit).module, plain, note)


def by_fla(case: Case, kind: str, limit: float) -> Contestant:
    """The layer of fast weights with the delta rule of flash-linear-attention, its near field by FlexAttention."""
    if not case.shipped or not issubclass(LAYERS[case.design.name][0], FastWeights):
        raise SkippedError(f"'{case.design.name}' is no layer of fast weights whose delta rule the package computes.")
    if find_spec("fla") is None:
        raise SkippedError("flash-linear-attention is not installed: pip install flash-linear-attention.")
    if not case.on_gpu or case.dtype not in ("bfloat16", "float16"):
        raise SkippedError("flash-linear-attention computes the delta rule on a GPU, in bfloat16 and float16.")
    found = by_hand(case, kind, limit, Flex())
    assert isinstance(found.module, FastWeights)
    found.module.delta = in_chunks
    return found


MAKERS: dict[str, Callable[[Case, str, float], Contestant]] = {
    **{backend: ours(backend) for backend in OURS},
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


def one_call(case: Case) -> None:
    """Raises SkippedError where no single call of attention computes the design."""
    if case.shipped and (why := LAYERS[case.design.name][0].mixed):
        raise SkippedError(f"'{case.design.name}' {why}: no call of attention computes it. 'softmax' is a yardstick.")
