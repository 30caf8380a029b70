"""Kernels beside the reference before anything uses them: C++ libraries when they are built, Triton where asked for."""

from __future__ import annotations

import ctypes
import json
import platform
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch

from tensornet_attn.files import write_whole
from tensornet_attn.graph.graph import Graph
from tensornet_attn.nn.call import Masks, Signature
from tensornet_attn.nn.initial import initial
from tensornet_attn.ops import OPS
from tensornet_attn.plan.plan import Plan
from tensornet_attn.reference import ReferenceRun
from tensornet_attn.runtime.cpp import (
    CPP_CHECK,
    CPP_CHECKING,
    cpp_compiler,
    cpp_folder,
    cpp_key,
    cpp_verdict,
    cpp_version,
    reason_against_folder,
)
from tensornet_attn.verify.core import Difference, VerifiedCall, expected, observed, observed_run
from tensornet_attn.version import __version__

Tensor = torch.Tensor
Result = TypeVar("Result")
# Queries, keys, batch: more than a tile of either, with masks, and one query. All sizes are odd.
SIZES = ((67, 261, 1), (13, 9, 2), (1, 5, 3))
PAIRS = 1 << 21  # entries of the largest step of queries x keys, which bounds the time of the first of them


@dataclass(frozen=True)
class Mismatch:
    """A call in which kernels differ from the reference."""

    sizes: str
    differences: list[Difference]

    def __str__(self) -> str:
        return f"{self.differences[0]} ({self.sizes})"


def reason_against(plan: Plan, text: str, path: Path, library: ctypes.CDLL, dtype: str) -> str:
    """Why the library of a text must not be used; empty if it agrees with the reference.

    The reference and the code of the plan run once for each library; a record beside the library says what was found.
    """
    reason = cpp_verdict(path, version=__version__)
    if reason is not None:
        return reason

    def compared() -> Mismatch | None:
        thread = threading.get_ident()
        CPP_CHECKING[thread] = cpp_key(text, dtype), library
        try:
            return mismatch(plan, getattr(torch, dtype))
        finally:
            del CPP_CHECKING[thread]

    try:
        difference = _in_a_thread(compared)
    except Exception as error:
        return f"kernels cannot be compared with the reference: {type(error).__name__}: {error}"
    report = path.with_suffix(".report.txt")
    reason = f"kernels differ from the reference: {difference}; please report the file {report}" if difference else ""
    with suppress(OSError):  # of a full disk: the next process compares again
        if difference is not None:
            write_whole(report, report_of(plan, difference, cpp_version(*cpp_compiler())).encode())
        record = {"library": path.stem.rpartition("-")[2], "version": __version__, "check": CPP_CHECK, "reason": reason}
        write_whole(path.with_suffix(".json"), json.dumps(record).encode())
    return reason


@lru_cache(256)
def reason_against_triton(plan: Plan, dtype: torch.dtype, device: str) -> str:
    """Why the Triton kernels of a plan must not be used on a device; empty if they agree with the reference."""
    small = range(1, len(SIZES)) if device == "cpu" else range(len(SIZES))  # the interpreter is slow
    difference = _in_a_thread(lambda: mismatch(plan, dtype, device, small))
    if difference is None:
        return ""
    reason, folder = f"kernels differ from the reference: {difference}", cpp_folder()
    if folder is not None and not reason_against_folder():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        report = folder / f"triton-{sha256(reason.encode()).hexdigest()[:16]}.report.txt"
        write_whole(report, report_of(plan, difference).encode())
        reason += f"; please report the file {report}"
    return reason


def mismatch(
    plan: Plan, dtype: torch.dtype, device: str = "cpu", places: Iterable[int] = range(len(SIZES))
) -> Mismatch | None:
    """The first of some calls in which a plan differs from the reference; None if it agrees in all of them.

    `places`: the calls, by their place in SIZES. A difference counts if other numbers show one too: with some, rounding
    decides a discrete choice, as of `topk`.
    """
    run = observed_run(plan)
    for index in places:
        for seed in (2 * index, 2 * index + 1):
            call, sizes = _call(plan, index, seed, dtype, device)
            compared = observed(plan, run, expected(plan.graph, call, dtype))
            wrong = [difference for difference in compared if not difference.agrees]
            if not any(difference.is_result for difference in wrong):
                break
        else:
            return Mismatch(sizes, wrong)
    return None


def report_of(plan: Plan, difference: Mismatch, compiler: str = "") -> str:
    """The text of a report: the design, where it differs, and versions."""
    regions = [f"{r.name}: {', '.join(r.steps)}" for r in plan.regions if r.backend == plan.backend and not r.plain]
    return "\n".join(
        [
            f"The kernels of '{plan.graph.name}' on backend '{plan.backend}' differ from the reference: {difference}",
            *(f"region: {region}" for region in regions),
            *map(str, difference.differences),
            f"tensornet-attn {__version__}, torch {torch.__version__}, {compiler}, {platform.platform()}",
            plan.graph.to_text(),
            "",
        ]
    )


def _call(plan: Plan, index: int, seed: int, dtype: torch.dtype, device: str) -> tuple[VerifiedCall, str]:
    """A call of the plan's design with random numbers, and its sizes in words."""
    graph, signature = plan.graph, Signature.of(plan.graph, plan.schedule)
    lengths, batch = _lengths(graph, index)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tensors = {tensor.name: _drawn(graph, tensor) for tensor in graph.tensors if tensor.role in ("weight", "state")}
        for tensor in graph.of_role("input"):
            if tensor.default is None or index != 1:
                tensors[tensor.name] = torch.randn(
                    batch, *ReferenceRun(graph, tensors, lengths, False, None, None).sizes(tensor.legs)
                )
        inputs = tuple(tensors.get(tensor.name) for tensor in graph.of_role("input"))
        lengths = signature.check(inputs, None, None, None)  # type: ignore[arg-type]
        for tensor in graph.of_role("noise"):
            tensors[tensor.name] = torch.randn(
                batch, *ReferenceRun(graph, tensors, lengths, False, None, None).sizes(tensor.legs)
            )
        mask, key_mask = _masks(graph, signature.masks, index, batch, lengths)
    call = VerifiedCall({name: x.to(device, torch.float64) for name, x in tensors.items()}, lengths)
    masks = [x if x is None else x.to(device) for x in (mask, key_mask)]
    words = [f"{leg} {size}" for leg, size in lengths.items()]
    words += [f"batch {batch}", str(dtype).removeprefix("torch.")]
    words += [f"a {'boolean' if mask.dtype == torch.bool else 'float'} mask"] if mask is not None else []
    words += ["a key mask"] if key_mask is not None else []
    return VerifiedCall(call.tensors, lengths, *masks), ", ".join(words)


def _lengths(graph: Graph, index: int) -> tuple[dict[str, int], int]:
    """Lengths of the sequence legs for inputs, within their maxima, and the size of the batch."""
    n, m, batch = SIZES[index]
    legs = [leg for leg in graph.legs if leg.sequence]
    if index == 0:
        pairs = [step.legs for step in graph.steps if {graph.query, graph.key} <= {*step.legs}]
        widths = [prod(graph.leg[leg].size or 1 for leg in legs) for legs in pairs]
        m = max(n, min(m, PAIRS // (n * max(widths, default=1))))
    else:
        batch = max(batch, torch.get_num_threads())  # kernels of linear attention have a head for each thread
    tied = graph.tied or (index == 1 and any(tensor.default is not None for tensor in graph.of_role("input")))
    lengths = {leg.name: m if tied or leg.name == graph.key else n for leg in legs}
    return {leg.name: min(lengths[leg.name], leg.maximum or lengths[leg.name]) for leg in legs}, batch


def _drawn(graph: Graph, tensor: Any) -> Tensor:
    """A weight or state; one that starts constant, such as a gate of zeros, is changed, as training would."""
    start = initial(tensor, graph, "cpu", torch.float32)
    constant = start.numel() and bool((start == start.flatten()[0]).all())
    return start + 0.1 * torch.randn_like(start) if constant and not tensor.frozen else start


def _masks(
    graph: Graph, masks: Masks, index: int, batch: int, lengths: dict[str, int]
) -> tuple[Tensor | None, Tensor | None]:
    """The masks of a call, which hide all keys of a query; none in the first call, a float mask in the second."""
    if index == 0 or graph.key is None:
        return None, None
    n, m = lengths[masks.query], lengths[masks.key]
    mask = key_mask = None
    if masks.places and masks.recurrence is None:
        mask = torch.rand(batch, n, m) < 0.7
        mask[0, n // 2] = False
        if index == 1 and not masks.maps and all(OPS[kind].takes_float_mask for _, kind, _ in masks.places):
            mask = torch.where(mask, torch.randn(batch, n, m), -torch.inf)
    if masks.keys:
        key_mask = torch.rand(batch, m) < 0.7
    return mask, key_mask


def _in_a_thread(function: Callable[[], Result]) -> Result:
    """The result of a function in another thread, where no mode of the caller is active: no autocast, no tracing."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
