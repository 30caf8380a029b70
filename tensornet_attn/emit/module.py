"""Emits a plan as Python source: one readable nn.Module that imports the runtime or, standalone, only torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from textwrap import wrap
from typing import Protocol

from tensornet_attn.cost.kernels import KERNELS, deep_inside, traits_of
from tensornet_attn.cost.price import price_of
from tensornet_attn.cost.target import Target
from tensornet_attn.emit.boxes import emit_box
from tensornet_attn.emit.contract import emit_contraction
from tensornet_attn.emit.freed import freed
from tensornet_attn.emit.functions import all_names, carried, imported, names_read, replaced
from tensornet_attn.emit.functions import names as function_names
from tensornet_attn.emit.initial import init_lines
from tensornet_attn.emit.leaves import bind_leaves, bind_lengths, open_forward, stored
from tensornet_attn.emit.masks import name_biases, takes_key_mask, takes_mask
from tensornet_attn.emit.names import Names, class_name, docstring_text, harmless
from tensornet_attn.emit.position import emit_position
from tensornet_attn.emit.precision import in_precision, rounded
from tensornet_attn.emit.wrap import INDENT, WIDTH, indented, wrapped
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.attention import behind
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.precision import kept_wide, scores
from tensornet_attn.graph.signs import doubtful_normalizers
from tensornet_attn.ir.values import shape_comment
from tensornet_attn.rewrite.duplicate import beside_output
from tensornet_attn.rewrite.hidden import hiding
from tensornet_attn.tiles.cpp.step import PositionSteps

# Modules of the standard library that emitted code uses.
MODULES = (
    "contextlib",
    "ctypes",
    "functools",
    "hashlib",
    "importlib.util",
    "json",
    "math",
    "os",
    "pathlib",
    "shlex",
    "shutil",
    "subprocess",
    "sys",
    "threading",
    "warnings",
)


class Planned(Protocol):
    """The plan of a design, see `plan.plan.Plan`."""

    @property
    def graph(self) -> Graph: ...
    @property
    def schedule(self) -> Graph: ...
    @property
    def backend(self) -> str: ...
    @property
    def target(self) -> Target: ...
    @property
    def position(self) -> PositionSteps | None: ...


@dataclass(frozen=True)
class Emitted:
    """Source text, the name of the class it defines, and the texts of its C++ kernels."""

    source: str
    class_name: str
    native: tuple[str, ...]


def emit(
    plan: Planned,
    about: str = "",
    source: str = "",
    origin: str = "",
    header: Sequence[str] = (),
    version: str = "",
    alone: bool = False,
    observed: bool = False,
) -> Emitted:
    """Emits the module of a plan. `header`: the printed diagram; `origin`: what the source is generated from.

    `alone`: include the functions that the code calls, in plain forms if the backend is torch; otherwise import them
    from `tensornet_attn.runtime`. `observed`: `forward` returns the steps of the diagram that it computes, by name:
    (value, its layout as in the diagram).
    """
    name = class_name(plan.graph.name, (about, source), all_names())
    graph, names = hiding(plan.schedule, keys=True), Names(function_names() | {name})
    writer = Writer(graph, names, instead=replaced(plan.backend))
    wide_steps = kept_wide(plan.graph) & graph.step.keys()
    decodes = plan.target.workload == "decoding"
    writer.of_one = decodes and not any(graph.leg[leg].sequence for tensor in graph.tensors for leg in tensor.legs)
    if not writer.of_one:
        writer.wide = kept_wide(graph, wide_steps | scores(graph) if decodes else wide_steps)
    writer.memory, writer.cancelling = _kernel_memory(plan), bool(doubtful_normalizers(plan.graph))
    writer.target, writer.cpp = plan.target, plan.backend == "cpp"
    writer.plain = alone and plan.backend == "torch"
    forward = _forward(writer, plan.graph if observed else None, plan.position)
    init = init_lines(writer, plan.graph)
    lines, functions = ([], carried(writer.functions, writer.plain)) if alone else imported(writer.functions)
    body = "\n".join(line for line in ["", *indented([*init, "", *forward])])
    code = f"class {name}(nn.Module):{body}"
    head = _docstring(plan.graph, about, origin, header, version)
    imports = "\n".join([_imports(names_read("\n".join([code, *functions]))), *([""] if lines else []), *lines])
    return Emitted("\n\n\n".join([f"{head}\n\n{imports}", code, *functions]) + "\n", name, tuple(writer.native))


def _kernel_memory(plan: Planned) -> int | None:
    """The bytes that each C++ kernel may store or save for its backward: what the limit leaves beyond the peak.

    None without a limit: then a call takes a part of what is free.
    """
    native = [step for step in plan.schedule.steps if traits_of(step).native]
    if not native or plan.target.memory is None:
        return None
    peak = price_of(plan.schedule, plan.target.sizes(plan.graph), plan.target).bytes
    return max(0, plan.target.memory - peak) // len(native)


def _docstring(graph: Graph, about: str, origin: str, header: Sequence[str], version: str) -> str:
    legs = [f"{leg.name} {_leg_text(leg.kind, leg.size, leg.maximum, leg.reach)}" for leg in graph.legs]
    paragraphs = [
        wrap(docstring_text(about) or f"The design {graph.name}.", WIDTH - 3),
        wrap(
            f"Generated by tensornet-attn {version} from {docstring_text(origin)}. Do not edit: change the design.",
            WIDTH,
        ),
        [row for line in header for row in _block(harmless(line))],
        _block("   ".join(leg.replace(" ", "\0") for leg in legs)),
    ]
    content = "\n\n".join("\n".join(lines) for lines in paragraphs if lines)
    return '"""' + content.replace("\0", " ") + '\n"""'


def _block(line: str) -> list[str]:
    """Wraps a line of the docstring, but not inside brackets."""
    line = re.sub(r"\[[^\]]*\]", lambda legs: legs[0].replace(" ", "\0"), line)
    return wrap(line, WIDTH, initial_indent=INDENT, subsequent_indent=2 * INDENT, break_on_hyphens=False)


def _leg_text(kind: str, size: int | None, maximum: int | None, reach: int | None) -> str:
    if reach is not None or size is None:
        bound = reach if maximum is None else maximum
        return kind if bound is None else f"{kind} {bound}"
    return f"{kind} {size}" if kind != "size" else str(size)


def _imports(read: frozenset[str]) -> str:
    """The imports of a module whose code reads these global names; a local of the same name reads none."""
    standard_library = [f"import {name}" for name in MODULES if name.partition(".")[0] in read]
    standard_library += ["from dataclasses import dataclass"] if "dataclass" in read else []
    typing = ", ".join(name for name in ("Any", "NamedTuple") if name in read)
    standard_library += [f"from typing import {typing}"] if typing else []
    lines = [*standard_library, "", "import torch"] if standard_library else ["import torch"]
    lines += ["import torch.nn.functional as F"] if "F" in read else []
    lines += ["import triton\nimport triton.language as tl"] if {"triton", "tl"} & read else []
    return "\n".join([*lines, "from torch import Tensor, nn"])


def _forward(writer: Writer, observed: Graph | None, together: PositionSteps | None) -> list[str]:
    """The method `forward`; it returns the steps of the diagram `observed`, if there is one, in place of the output."""
    graph, parts = writer.graph, _parts(writer.graph)
    open_forward(writer, parts.always)
    if together is not None:
        _emit_steps(writer, [step for step in parts.always if step not in (*together.inside, *together.after)])
        emit_position(writer, together, partial(_emit_steps, writer))
    _emit_steps(writer, together.after if together else parts.always)
    blocks = [] if observed else [*_shared(writer, parts.both), *_stored(writer, parts.states)]
    if observed:
        blocks.append(_Block((), [[f"return {{{', '.join(_observed(writer, observed))}}}"]]))
    elif graph.losses:
        blocks += _with_losses(writer, parts.losses)
    elif graph.also:
        outputs = [writer.result(name, graph.step[name].legs).text for name in (graph.output, *graph.also)]
        blocks.append(_Block((), [[f"return {', '.join(outputs)}"]]))
    else:
        if blocks:  # the line of the output comes after these blocks
            writer.groups.append([])
        writer.values[graph.output] = rounded(writer, writer.values[graph.output])
        writer.output(graph.output, graph.step[graph.output].legs)
        if blocks:
            blocks.append(_Block((), [writer.groups.pop()]))
    bind_lengths(writer)
    name_biases(writer)
    options = [
        f"{name}: {kind} = False" if kind == "bool" else f"{name}: {kind} | None = None"
        for name, kind in call_options(graph)
    ]
    arguments = ", ".join(["self", *_inputs(writer), *(["*", *options] if options else [])])
    last_lines = [line for block in blocks for line in ["", *block.text()]]
    long = {"...", *(leg.name for leg in graph.legs if leg.sequence)}
    groups = freed(writer.groups, long, "\n".join(last_lines))
    lines = [*_call_text(graph, writer.local), *_paragraphs(groups, 2), *last_lines]
    return_type = "Tensor | tuple[Tensor, dict[str, Tensor]]" if graph.losses else "Tensor"
    return_type = f"tuple[{', '.join(['Tensor'] * (1 + len(graph.also)))}]" if graph.also else return_type
    return [*wrapped(f"def forward({arguments}) -> {return_type}:", len(INDENT)), *indented(lines)]


def _observed(writer: Writer, diagram: Graph) -> Iterator[str]:
    """The entries of a dictionary of steps: the value, and a function that lays it, or its gradient, as written."""
    for step in diagram.steps:
        value = writer.values.get(step.name)
        named = "." not in step.name or step.name in diagram.results
        if value is not None and named and value.text.isidentifier() and {*value.legs} == {*step.legs}:
            laid = value.unpacked.arranged(step.legs).text
            yield f"{step.name!r}: ({value.text}, lambda {value.text}: {laid})"


def _inputs(writer: Writer) -> list[str]:
    """The inputs as parameters. An optional input gets no default if a required one follows."""
    parameters: list[str] = []
    for tensor in reversed(writer.graph.of_role("input")):
        optional_after = all(parameter.endswith("= None") for parameter in parameters)
        optional = "Tensor | None = None" if optional_after else "Tensor | None"
        annotation = "Tensor" if tensor.default is None else optional
        parameters.insert(0, f"{writer.local[tensor.name]}: {annotation}")
    return parameters


@dataclass(frozen=True)
class _Block:
    """Lines under conditions of their own, after the other lines. Rendered last, because masks are named late."""

    under: tuple[str, ...]
    groups: list[list[str]]

    def text(self) -> list[str]:
        lines = _paragraphs(self.groups, 2 + len(self.under))
        for condition in reversed(self.under):
            lines = [condition, *indented(lines)]
        return lines


@dataclass(frozen=True)
class _ScheduleParts:
    """The steps of a schedule by use: `always` (the output), states and losses (`both`), or only one of the two."""

    always: list[Step]
    both: list[Step]
    states: list[Step]
    losses: list[Step]


def _parts(graph: Graph) -> _ScheduleParts:
    beside = beside_output(graph)
    states = behind(graph, [step for _, step in graph.updates])
    losses = behind(graph, [loss.step for loss in graph.losses])

    def steps_of(names: set[str]) -> list[Step]:
        return [step for step in graph.steps if step.name in names]

    always = [step for step in graph.steps if step.name not in beside]
    both = states & losses & beside
    return _ScheduleParts(
        always, steps_of(both), steps_of((states - both) & beside), steps_of((losses - both) & beside)
    )


def _emit_steps(writer: Writer, steps: Sequence[Step]) -> None:
    for _, group in groupby(steps, key=_group):
        writer.groups.append([])
        for step in group:
            with in_precision(writer, step):
                _emit_step(writer, step)


def _group(step: Step) -> tuple[str, bool]:
    """Groups lines: a named step with the steps nested in it; kernels separately."""
    return step.name.partition(".")[0], step.kernel is not None


def _emit_step(writer: Writer, step: Step) -> None:
    if step.contraction is not None:
        emit_contraction(writer, step)
    elif step.box is not None:
        emit_box(writer, step)
    elif step.kernel is not None:
        writer.hidden, writer.inside = dict(step.kernel.hidden), {inner.name: inner for inner in deep_inside(step)}
        KERNELS[step.kernel.kind].emit(writer, step)
        writer.hidden = {}


def _paragraphs(groups: Sequence[Sequence[str]], depth: int) -> list[str]:
    """Wraps the lines of a body at this depth, with blank lines around groups of several lines."""
    lines: list[str] = []
    length_before = 1
    for group in (group for group in groups if group):
        paragraph = [row for line in group for row in wrapped(line, depth * len(INDENT))]
        length = sum(not line.startswith("del ") for line in group)
        lines += [""] if lines and max(length_before, length) > 1 else []
        lines += paragraph
        length_before = length
    return lines


def call_options(graph: Graph) -> list[tuple[str, str]]:
    """The keyword arguments of a call: masks, noise and losses, if the design has them."""
    masks = {"mask": takes_mask(graph), "key_mask": takes_key_mask(graph)}
    options = [(name, "Tensor") for name, takes in masks.items() if takes]
    options += [("noise", "dict[str, Tensor]")] if graph.of_role("noise") else []
    return [*options, ("losses", "bool")] if graph.losses else options


def _call_text(graph: Graph, local: dict[str, str]) -> list[str]:
    """The docstring of `forward`: shapes by leg."""
    shapes = [f"{local[tensor.name]} is [{' '.join(['...', *tensor.legs])}]" for tensor in graph.of_role("input")]
    names = {name for name, _ in call_options(graph)}
    if "mask" in names:
        shapes.append(f"mask [{graph.query} {graph.key}] or [... {graph.query} {graph.key}]")
    if "key_mask" in names:
        shapes.append(f"key_mask [... {graph.key or graph.query}], True = visible")
    if "losses" in names:
        shapes.append("losses: return (output, scalar losses by name)")
    return wrap(f'"""{"; ".join(shapes)}."""', WIDTH - 2 * len(INDENT))


@contextmanager
def _set_apart(writer: Writer, steps: Sequence[Step]) -> Iterator[list[list[str]]]:
    """Yields the lines of steps that run under a condition, and other lines written meanwhile.

    Masks created here are not visible to later lines.
    """
    outer_groups, keeps = writer.groups, dict(writer.keeps)
    groups: list[list[str]] = [[]]
    writer.groups = groups
    bind_leaves(writer, steps)
    _emit_steps(writer, steps)
    groups.append([])
    yield groups
    writer.groups = outer_groups
    writer.past_keeps += [visible_keys for key, visible_keys in writer.keeps.items() if key not in keeps]
    writer.keeps = keeps


def _shared(writer: Writer, steps: Sequence[Step]) -> list[_Block]:
    """The steps that states and losses share."""
    with _set_apart(writer, steps) as groups:
        return [_Block(("if self.training or losses:",), groups)] if steps else []


def _stored(writer: Writer, steps: Sequence[Step]) -> list[_Block]:
    """The steps that only states need: training stores each state, the value of its step averaged over the batch.

    They run without gradients, because states do not pass gradients on.
    """
    inputs = [writer.values[tensor.name].text for tensor in writer.graph.of_role("input")]
    with _set_apart(writer, steps) as groups:
        for state, step in writer.graph.updates:
            tensor = writer.graph.tensor[state]
            value = writer.values[step].unpacked.arranged(tensor.legs)
            writer.line(writer.call("update_", stored(writer, tensor), value.text, *inputs))
    under = ("if self.training:", *(("with torch.no_grad():",) if steps else ()))
    return [_Block(under, groups)] if writer.graph.updates else []


def _with_losses(writer: Writer, steps: Sequence[Step]) -> list[_Block]:
    """The end of a forward with losses: each is the value of its step, averaged over the batch."""
    graph = writer.graph
    output = rounded(writer, writer.result(graph.output, graph.step[graph.output].legs))
    with _set_apart(writer, steps) as groups:
        values = {loss.name: writer.values[loss.step].unpacked.text for loss in graph.losses}
        entries = ", ".join(f'"{name}": {writer.call("batch_mean", loss)}' for name, loss in values.items())
        writer.line(f"return {output.text}, {{{entries}}}")
    output_only = _Block(("if not losses:",), [[f"return {output.text}  # {shape_comment(output)}"]])
    return [output_only, _Block((), groups)]
