"""The public API: load, check, cost, draw, compile. Torch is imported only when a module is created."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from ctypes import CDLL
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack
from warnings import warn

from tensornet_attn import spec
from tensornet_attn.cost.target import (
    TRAINING,
    CurrentOptions,
    Target,
    TargetOptions,
    current,
    target_from,
    target_on_cpu,
    target_priced,
)
from tensornet_attn.errors import DesignError, InputError, Problem, nearest, need_triton
from tensornet_attn.graph import Graph, build, problems_of
from tensornet_attn.graph.doubts import doubts_of_float16
from tensornet_attn.keywords import caller
from tensornet_attn.plan import auto
from tensornet_attn.plan.auto import Host, in_torch
from tensornet_attn.plan.cache import LruCache
from tensornet_attn.plan.make import BACKENDS, plan_of
from tensornet_attn.spec import library, read
from tensornet_attn.spec.read import Source
from tensornet_attn.verify.before_use import compare_before_use
from tensornet_attn.version import __version__

if TYPE_CHECKING:
    import torch

    from tensornet_attn.cost.report import Report
    from tensornet_attn.draw.kept import Marks
    from tensornet_attn.draw.overlay import Overlay
    from tensornet_attn.emit.module import Emitted
    from tensornet_attn.nn.executable import Executable
    from tensornet_attn.nn.module import CompiledDesign
    from tensornet_attn.plan.plan import Plan
    from tensornet_attn.runtime.triton.survey import Used

Overrides = Mapping[str, int | float | str]
_sources: LruCache[Emitted] = LruCache(most=256)


class CompileOptions(TargetOptions, total=False):
    """The keyword arguments of `compile` except `backend` and `causal`, for functions that forward them."""

    device: torch.device | str | None
    dtype: torch.dtype | None
    tune: bool
    verify_kernels: bool


class BackendOptions(CompileOptions, total=False):
    """`CompileOptions` and the backend."""

    backend: str


class Design(spec.Design):
    """A tensor diagram. Its arguments are the keys of the YAML: `Design(tensornet=1, name="mhsa", legs={...}, ...)`.

    Raises DesignError if a key or its form is invalid; `tensornet_attn.check` and every use check the diagram itself.
    `design.legs` maps each leg to its size (None: known at run time only); `declared_legs` holds the legs as written.
    """

    @cached_property
    def loss_weights(self) -> dict[str, float]:
        """The weight of each auxiliary loss in a trainer's total loss, by the loss's name. Raises DesignError."""
        return dict(build(self).loss_weights)

    @property
    def hash(self) -> str:
        """The hash of the diagram's canonical form: equal for designs that differ only in names and order."""
        return hash_of(self)

    def _repr_svg_(self) -> str:
        """The picture that notebooks show."""
        return picture(self).decode()


def list_designs(pattern: str = "*") -> list[str]:
    """The names of the shipped designs that match a glob pattern, in alphabetical order.

    >>> list_designs("mh*a")
    ['mhsa']
    """
    return library.names(pattern)


def load(source: Source, legs: Overrides | None = None, settings: Overrides | None = None) -> Design:
    """Loads and checks a design: the name of a shipped design, a path, YAML text, a dict or a Design.

    `legs` replaces the sizes of legs (a leg keeps its kind); `settings` replaces the values of settings. Raises
    DesignError with all errors of the design.

    >>> load("mhsa", legs={"f": 64}).legs["d"]
    8
    """
    reading = read(source, legs, settings, Design)
    problems = [problem for problem in problems_of(reading) if problem.severity == "error"]
    if problems or not isinstance(reading.design, Design):
        raise DesignError(problems)
    return reading.design


def check(source: Source, legs: Overrides | None = None, settings: Overrides | None = None) -> list[Problem]:
    """All errors and warnings of a design; an empty list if it has none. Parameters as in `load`.

    >>> check("mhsa")
    []
    """
    from tensornet_attn.special.lattice import check_contains

    reading = read(source, legs, settings, Design)
    problems_of(reading)
    check_contains(reading)
    return reading.reporter.problems()


def cost(
    design: Source,
    n: int | None = None,
    m: int | None = None,
    batch: int = 1,
    dtype: str = "float32",
    causal: bool | None = None,
) -> Report:
    """The cost of a design, as written and as planned: MACs, FLOPs = 2 MACs, bytes, and floats saved for backward.

    `n` and `m` are the numbers of queries and keys. `n` defaults to 1024 and `m` to `n`; defaults are limited to the
    maximum of the leg. Raises DesignError if the design is invalid, and InputError if a length or dtype is.

    >>> cost("mhsa").written.formula
    '2 n f h d + 2 m f h d + 2 n m h d'
    """
    return cost_of(build(_design(design), causal), n, m, batch, dtype)


def cost_of(
    graph: Graph, n: int | None = None, m: int | None = None, batch: int = 1, dtype: object = "float32"
) -> Report:
    """`cost` for a graph. Raises InputError."""
    from tensornet_attn.plan.decoding import priced

    return priced(graph, plan_of(graph).schedule, n, m, batch, dtype)


def match_parameters(design: Source, like: Source, leg: str = "d", multiple: int = 4) -> int:
    """The largest size of `leg`, a multiple of `multiple`, at which `design` has at most as many parameters as `like`.

    All trainable parameters count, including the gates of experts. Few Heads Are Enough (EPA) chooses head widths by
    this rule. Raises InputError if the design has no such leg, if its parameters do not grow with the leg, or if even
    the smallest size has too many parameters.

    >>> match_parameters(load("epa", legs={"f": 412, "h": 2, "d": 64}), load("mhsa", legs={"f": 412, "h": 10, "d": 41}))
    64
    """
    from tensornet_attn.cost.sizes import largest_size, parameters

    design = _design(design)
    if leg not in design.legs:
        raise InputError(f"there is no leg '{leg}' in '{design.name}': {nearest(str(leg), design.legs)}")
    budget = parameters(build(_design(like)))
    return largest_size(lambda size: parameters(build(load(design, {leg: size}))), budget, design.name, leg, multiple)


def draw(
    design: Source,
    path: str | Path,
    format: str | None = None,
    *,
    causal: bool | None = None,
    cache: bool = False,
    theme: str = "light",
    overlay: str | None = None,
    n: int | None = None,
    m: int | None = None,
) -> None:
    """Draws a design to a file. The suffix selects the format: svg, png, dot, tex (TikZ), mmd (Mermaid) or txt.

    `format` overrides the suffix. `cache`: marks the results that a decoding cache stores. `theme`: light, dark or
    print. `overlay`: "plan" colours each region by its implementation; "cost" colours each step by its share of the
    work; both at lengths `n` and `m`. Raises DesignError and InputError.
    """
    from tensornet_attn.draw import draw as write_picture

    design = _design(design)
    graph = build(design, causal)
    marks, shown = _marks(graph, cache), overlay_of(graph, overlay, n, m)
    write_picture(
        graph, path, format, title=design.name, about=design.about or None, kept=marks, theme=theme, overlay=shown
    )


def picture(
    design: Source,
    format: str = "svg",
    causal: bool | None = None,
    cache: bool = False,
    theme: str = "light",
    overlay: str | None = None,
    n: int | None = None,
    m: int | None = None,
) -> bytes:
    """The picture of a design as the contents of a file. Parameters as in `draw`. Raises DesignError and InputError."""
    from tensornet_attn.draw.render import content

    design = _design(design)
    graph = build(design, causal)
    marks, shown = _marks(graph, cache), overlay_of(graph, overlay, n, m)
    return content(graph, format, design.name, design.about or None, marks, theme, shown)


def _marks(graph: Graph, cache: bool) -> Marks:
    from tensornet_attn.draw.kept import NOTHING, kept_marks

    return kept_marks(graph) if cache else NOTHING


def overlay_of(graph: Graph, name: str | None, n: int | None, m: int | None) -> Overlay:
    """The overlay of a picture by its name. Raises InputError, also for an unknown name."""
    from tensornet_attn.draw.overlay import NONE, cost_overlay, plan_overlay

    if name is None:
        return NONE
    if name == "plan":
        return plan_overlay(plan_of(graph, target=target_from(n=n, m=m)))
    if name == "cost":
        from tensornet_attn.cost.report import cost
        from tensornet_attn.cost.sizes import lengths_of, sizes_at

        lengths = lengths_of(graph, n, m)
        return cost_overlay(graph, cost(graph, lengths), sizes_at(graph, lengths))
    raise InputError(f"there is no overlay '{name}'; {nearest(name, ('plan', 'cost'))}")


def explain(design: Source, backend: str = "auto", causal: bool | None = None, **wanted: Unpack[TargetOptions]) -> str:
    """Describes the plan of a design: the implementation of each region, the rejected ones, and the reasons.

    Compiles nothing. `tensornet-attn explain` prints the same text. `wanted`: options as in `compile`; without
    `device_costs`, the plan is that of a module on a CPU. Raises DesignError if the design is invalid, and InputError
    if no plan meets the options.

    >>> explain("mhsa", workload="decoding").splitlines()[0]
    'mhsa: backend torch, for decoding on generic, product orders optimised for n 1, m 4096'
    """
    return plan_for(design, backend, causal, **wanted).explain()


def plan_for(
    design: Source, backend: str = "auto", causal: bool | None = None, **wanted: Unpack[TargetOptions]
) -> Plan:
    """The plan that `explain` describes; `plan.as_dict()` returns it as data. Raises the errors of `explain`."""
    design = _design(design)
    name = library.name_in_command(design.name, design.document.path)
    return auto.described(build(design, causal), backend, target_on_cpu(backend, wanted), _host(), name)


def warm(
    design: Source, causal: bool | None = None, dtype: str = "float32", **wanted: Unpack[TargetOptions]
) -> list[Path]:
    """Compiles the C++ kernels of a design into the cache, where `backend="auto"` finds them, and returns their files.

    They are compared with the reference in float64. Those of steps of decoding are for float32 and float64. An empty
    list: the plan has none. `dtype`: float32, float64, bfloat16 or float16; `wanted`: options as in `compile`, on a
    CPU. Raises DesignError, and InputError with the compiler's first error, or with the path of a report if the
    results of the kernels are wrong.
    """
    from tensornet_attn.plan.stages import plans_in_cpp
    from tensornet_attn.runtime.cpp import CPP_DTYPES, CPP_REALS, cpp_stored

    if dtype not in CPP_DTYPES:
        raise InputError(f"there are no C++ kernels for dtype '{dtype}'; {nearest(dtype, CPP_DTYPES)}")
    graph = build(_design(design), causal)
    plans = [plan_of(graph, "cpp", target_on_cpu("cpp", wanted))]
    with suppress(InputError):  # no cache is possible
        plans += plans_in_cpp(graph) if dtype in CPP_REALS else ()
    for plan in plans:
        if _native(plan) and (reasons := _against_cpp(dtype, plan)):
            raise InputError(f"{graph.name}: C++ kernels cannot be used: {'; '.join(reasons)}")
    sources = [source for plan in plans for source in _native(plan)]
    return [path for source in sources if (path := cpp_stored(source, CPP_DTYPES[dtype])) is not None]


def rewrites(design: Source, causal: bool | None = None) -> str:
    """The rewrites that apply to a design, as text: each rule with the steps before and after it.

    Rewrites of the whole diagram come first. `tensornet-attn explain --rewrites` prints the same text. Raises
    DesignError.

    >>> print(rewrites("skip_left").splitlines()[1])
      A.of: weights first: Z = .. + c * X[held] Y[held] .. -> Z = .. + c * {X Y} .. if only place
    """
    from tensornet_attn.rewrite.table import shown

    return shown(build(_design(design), causal))


def hash_of(design: Source, causal: bool | None = None) -> str:
    """The hash of a design's canonical form (SHA-256, hexadecimal): equal if only names and order differ.

    Raises DesignError.

    >>> hash_of("mhsa") == hash_of(load("mhsa").to_yaml().replace("Wq", "Query"))
    True
    """
    return build(_design(design), causal).hash


def compile(
    design: Source,
    backend: str = "auto",
    causal: bool | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    tune: bool = False,
    verify_kernels: bool = False,
    **wanted: Unpack[TargetOptions],
) -> CompiledDesign:
    """Compiles a design into an nn.Module, which is correct for all lengths, including those it is not optimised for.

    `backend`: reference (as written), torch (optimised PyTorch), inductor (torch.compile of the same source), cpp (C++
    kernels for regions with both queries and keys, on a CPU; compiled now, seconds each, compared with the reference,
    and cached), triton (kernels for all such regions; needs a GPU or triton's interpreter), or auto. auto is torch; on
    a CPU cpp, if `warm` or an earlier call has compiled its kernels, unless they are predicted to take 1.2 times as
    long; on a GPU the plan with the least predicted time. A module that is moved to a GPU is planned again. If triton
    or cpp cannot run, or its kernels differ from the reference, a warning gives the reason and the module uses torch.
    `causal` overrides the design's `causal`. `device`, `dtype`: of the module's parameters; in float16, a warning names
    sums that grow with the length and overflow.
    `tune`: measures each configuration of the Triton kernels on the GPU and uses the fastest. `verify_kernels`:
    compares Triton kernels with the reference, on this device and in this dtype, as C++ kernels always are.
    `workload`: training, prefill (no backward) or decoding (one query, many keys); `n`, `m`, `batch`: sizes to optimise
    for, by default those of the workload. `device_costs`: a name from the device table, `this` for measurements of this
    machine, or a Device; the default is cpu on a CPU, for decoding generic, and on a GPU the most similar one.
    `memory`: the limit of the predicted peak in bytes, such as "2GiB"; without it, C++ kernels may save a quarter of
    the free memory for their backward. `linear_memory`: no tensor has both a query and a key leg, except masks of the
    caller. `strict`: all regions run on `backend`.
    Raises DesignError if the design is invalid, and InputError if no plan meets the options.
    """
    from tensornet_attn.nn.initial import placed
    from tensornet_attn.nn.module import CompiledDesign

    design = _design(design)
    device, dtype = placed(design.name, device, dtype)
    graph = build(design, causal)
    planned = partial(_verified if verify_kernels else _planned, graph, backend, current(wanted))
    replan = planned if backend == "auto" else None
    realise = partial(_realise, compiles=backend != "auto")
    module = CompiledDesign(design, planned(device, dtype), realise, device, dtype, replan)
    for doubt in doubts_of_float16(graph, module.plan.schedule) if str(dtype) == "torch.float16" else ():
        warn(doubt, stacklevel=caller())
    if tune:
        from tensornet_attn.nn.tune import tune_design

        tune_design(module)
    return module


def reference(design: Source, causal: bool | None = None, **options: Unpack[CompileOptions]) -> CompiledDesign:
    """The design evaluated literally, step by step. All other backends are compared with it."""
    return compile(design, "reference", causal, **options)


def emit_source(
    design: Source,
    causal: bool | None = None,
    backend: str = "auto",
    package: bool = False,
    **wanted: Unpack[TargetOptions],
) -> str:
    """The Python source of a design: one nn.Module that imports only torch, and triton if `backend` is triton.

    A file that needs only torch calls plain torch; it is not tuned for a processor. `package`: returns the source that
    `compile` loads, which imports the faster functions of `tensornet_attn.runtime`. `wanted`: options as in `compile`;
    `device_costs` is generic by default. Raises DesignError, and InputError for `reference`, which has none.
    """
    if backend == "reference":
        raise InputError("backend 'reference' evaluates the diagram and has no source; use 'torch' or 'triton'.")
    design = _design(design)
    plan = plan_of(build(design, causal), backend, target_from(**current(wanted)))
    return _emitted(design, plan, alone=not package).source


def kernels(
    design: Source, target: int = 90, dtype: torch.dtype | None = None, causal: bool | None = None
) -> list[Used]:
    """The GPU resources of each Triton kernel of a design, forward and backward; no GPU is needed.

    `target`: 80 or 90 (sm_80, sm_90). `dtype`: bfloat16 by default. Registers and `stack` (bytes) are per thread,
    `shared` (bytes) is per program; `reasons_against` lists exceeded limits. Kernels are compiled for 256 queries and
    keys with the launcher's configurations. The list is empty if the design has no kernels. Raises MissingPartError if
    triton is not installed, and InputError in triton's interpreter or for another target.
    """
    need_triton()
    import torch

    from tensornet_attn.nn.module import CompiledDesign
    from tensornet_attn.runtime.triton.survey import TARGETS, used_by_module

    if target not in TARGETS:
        raise InputError(f"there is no target {target}: {' or '.join(map(str, TARGETS))}.")
    design = _design(design)
    plan = plan_of(build(design, causal), "triton")
    if "triton" not in plan.backends.values():
        return []
    return used_by_module(CompiledDesign(design, plan, _realise, None, dtype or torch.bfloat16), plan.graph, target)


def _design(source: Source) -> spec.Design:
    return source if isinstance(source, spec.Design) else load(source)


def _planned(
    graph: Graph, backend: str, wanted: CurrentOptions, device: torch.device | str | None, dtype: torch.dtype | None
) -> Plan:
    """The plan of a graph on a backend and a device, see `plan.auto.planned`."""
    import torch

    from tensornet_attn.runtime.triton.target import costs_for, on_gpu, reasons_against

    costs = costs_for(device, dtype, backend, wanted.get("workload", TRAINING.workload))
    host = _host(str(dtype or torch.get_default_dtype()).removeprefix("torch."))
    host = replace(host, gpu=on_gpu(device), against_triton=lambda: tuple(reasons_against(dtype)))
    return auto.planned(graph, backend, target_priced(costs, wanted, dtype), host)


def _verified(
    graph: Graph, backend: str, wanted: CurrentOptions, device: torch.device | str | None, dtype: torch.dtype | None
) -> Plan:
    """`_planned`, unless its Triton kernels differ from the reference: then the plan of torch."""
    import torch

    plan = _planned(graph, backend, wanted, device, dtype)
    if "triton" not in plan.backends.values():
        return plan
    from tensornet_attn.runtime.triton.target import interpreting, on_gpu
    from tensornet_attn.verify.kernels import reason_against_triton

    checked_on = "cpu" if interpreting() else str(device) if on_gpu(device) else "cuda"
    reason = reason_against_triton(plan, dtype or torch.get_default_dtype(), checked_on)
    return in_torch(graph, plan.target, "triton", (reason,)) if reason else plan


def cached_cpp(graph: Graph, target: Target = TRAINING, dtype: str = "float32") -> Plan | None:
    """The plan with C++ kernels, if all of them are in the cache and agreed with the reference; compiles nothing."""
    return auto.cached_cpp(graph, target, _host(dtype))


def _host(dtype: str = "float32") -> Host:
    """What a module may run on a CPU, in the dtype of this name."""
    from tensornet_attn.runtime.cpp import CPP_DTYPES, cpp_folder, reason_against_cpp, reason_against_folder

    folder = cpp_folder()
    in_cache = partial(_in_cache, dtype) if dtype in CPP_DTYPES and folder and folder.is_dir() else None
    against_cache = reason_against_folder() if folder else ""
    return Host(partial(_against_cpp, dtype), in_cache, reason_against_cpp, against_cache)


def _against_cpp(dtype: str, plan: Plan) -> tuple[str, ...]:
    """Why C++ kernels cannot run; empty after they have been compiled and compared with the reference."""
    from tensornet_attn.runtime.cpp import CPP_DTYPES, cpp_loaded, reason_against_cpp

    sources = _native(plan)
    if dtype not in CPP_DTYPES:
        return (f"it takes {', '.join(CPP_DTYPES)}, not {dtype}",)
    if reason := reason_against_cpp():
        return (reason,)
    import torch  # its libraries must be loaded  # noqa: F401

    libraries = [cpp_loaded(source, CPP_DTYPES[dtype]) for source in sources]
    reasons = (reason for reason in libraries if not isinstance(reason, CDLL))
    return tuple(dict.fromkeys(reason or "it has failed before" for reason in reasons))


def _in_cache(dtype: str, plan: Plan) -> bool:
    """Whether a plan has C++ kernels, and all of them are in the cache and agreed with the reference."""
    from tensornet_attn.runtime.cpp import CPP_DTYPES, cpp_stored, cpp_verdict

    sources = _native(plan)
    verdicts = (cpp_verdict(cpp_stored(source, CPP_DTYPES[dtype]), version=__version__) for source in sources)
    return bool(sources) and all(verdict == "" for verdict in verdicts)


def module_of(design: spec.Design, plan: Plan) -> CompiledDesign:
    """The module of a plan that the caller has made."""
    from tensornet_attn.nn.module import CompiledDesign

    return CompiledDesign(design, plan, _realise)


def _realise(design: spec.Design, plan: Plan, compiles: bool = True) -> Executable:
    """The source of a plan and the function that runs it; `compiles`: also the C++ of a step of decoding."""
    from tensornet_attn.nn.executable import Executable
    from tensornet_attn.nn.runs import emitted_run
    from tensornet_attn.reference import evaluate, reference_run

    if plan.backend == "reference":
        return Executable("", reference_run, evaluate)
    emitted = _emitted(design, plan)
    compare_before_use(plan, emitted.native)
    compiled = True
    if emitted.native and plan.graph.also:  # a step of decoding: its first call does not wait
        import torch

        dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        compiled = compiles or _in_cache(dtype, plan)
        if compiles:
            _against_cpp(dtype, plan)
    run = emitted_run(emitted.source, emitted.class_name, plan, plan.backend == "inductor")
    return Executable(emitted.source, run, evaluate, compiled)


def _emitted(design: spec.Design, plan: Plan, alone: bool = False) -> Emitted:
    from tensornet_attn.draw.text import step_lines
    from tensornet_attn.emit.module import emit

    provenance = design.about, design.source, library.origin(design.name, design.document.path)
    return _sources.get(
        (plan, plan.graph.to_text(), provenance, alone),
        lambda: emit(plan, *provenance, step_lines(plan.graph), __version__, alone),
    )


def _native(plan: Plan) -> tuple[str, ...]:
    """The texts of the C++ kernels of a plan."""
    from tensornet_attn.emit.module import emit

    sources = _sources.get((plan, plan.graph.to_text()), lambda: emit(plan)).native
    compare_before_use(plan, sources)
    return sources


__all__ = [
    "BACKENDS",
    "Graph",
    "check",
    "compile",
    "cost",
    "draw",
    "emit_source",
    "list_designs",
    "load",
    "plan_of",
    "reference",
]
