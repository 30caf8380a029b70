"""Markdown pages: a page per design, the index, kernels, parity, and decoding caches. Templates contain their text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from math import prod
from pathlib import Path
from typing import Any

from jinja2 import Template

from docs.generate.catalogue import Catalogue, CatalogueEntry
from docs.generate.costs import TABLE, SequenceCosts, points
from tensornet_attn import compiler
from tensornet_attn.cost.sizes import LENGTH, human
from tensornet_attn.draw import to_text
from tensornet_attn.draw.words import call_words
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Leg, Tensor
from tensornet_attn.ir.arithmetic import to_text as arithmetic
from tensornet_attn.plan.decoding import as_decoder
from tensornet_attn.plan.parts import Decoding, Kept
from tensornet_attn.report.page import environment

SECTION_OF = {"input": "inputs", "weight": "weights", "constant": "constants", "noise": "noise", "state": "state"}
COSTS = ("MACs", "kept for backward", "peak of forward")
PARITY = ("layer", "design", "outputs", "gradients", "carried back", "in float32", "plan")
POSITIONS = 4096
CACHES = ("design", "cache", "elements per position", "constant elements", f"after {POSITIONS:,} positions")
_SIGNS = re.compile(r"[\\*<|~]|(?<!\w)_|_(?!\w)|\](?=\()")


def prose(text: str) -> str:
    """Escapes the special characters of Markdown.

    >>> prose("scale d ** -0.5 where g < h")
    'scale d \\\\*\\\\* -0.5 where g \\\\< h'
    """
    return _SIGNS.sub(lambda match: f"\\{match[0]}", text)


def code(text: str) -> str:
    """A text as code, with escaped bars, which would end a table cell."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def table(rows: Sequence[Sequence[str]], header: Sequence[str], right: Sequence[str] = ()) -> str:
    """A table. Columns in `right` are right-aligned, and empty columns are omitted.

    >>> print(table([("n", "8", "")], ("leg", "size", "note"), right=("size",)))
    | leg | size |
    | --- | ---: |
    | n | 8 |
    """
    columns = [column for column in range(len(header)) if any(row[column] for row in rows)]
    marks = ["---:" if name in right else "---" for name in header]
    return "\n".join("| " + " | ".join(row[column] for column in columns) + " |" for row in (header, marks, *rows))


def template(name: str) -> Template:
    """A template of these pages, with their filters."""
    return environment(Path(__file__).parent / "templates", False, (prose, code, table)).get_template(name)


def page(entry: CatalogueEntry, catalogue: Catalogue) -> str:
    """The page of a design: description, diagram, tensors, costs, related designs and file."""
    design, graph, baseline = entry.design, entry.graph, catalogue.against(entry)
    report = entry.cost(entry.at(LENGTH))
    ours = points(entry, TABLE)
    theirs = points(baseline, [point.n for point in ours]) if baseline else [None] * len(ours)

    def link(name: str) -> str:
        return f"[{name}]({name}.md)" if name in catalogue.entries else name

    def remark(section: str, name: str) -> str:
        return prose(entry.remark(section, name))

    files = {
        f"specs/{entry.family}/{entry.name}.yaml": "the design",
        f"codegen/{entry.family}/{entry.name}.py": "the module generated from it",
    }
    return template("design.md.jinja").render(
        entry=entry,
        design=design,
        other=baseline,
        parent=catalogue.entries.get(entry.parent or ""),
        link=link,
        files=files,
        equations=to_text(graph).partition("\n\n")[2].rstrip("\n"),  # the output of `show --text` without the title
        legs=[(code(leg.name), leg.kind, *_size(leg), remark("legs", leg.name)) for leg in graph.legs],
        settings=[(code(name), f"{setting:,}", remark("settings", name)) for name, setting in graph.settings],
        tensors=[_tensor(entry, tensor) for tensor in graph.tensors],
        stored=entry.cost(1).written,
        written=report.written.formula,
        planned=report.best.formula,
        routed=report.best.routed_formula,
        cost_columns=["n", *COSTS, *(f"{baseline.name}: {name}" if baseline else "-" for name in COSTS)],
        costs=[(f"{a.n:,}", *_cells(a), *_cells(b)) for a, b in zip(ours, theirs, strict=True)],
        masked=any(graph.masks(step) for step in graph.steps),
        cases={name: _condition(case.model_dump()) for name, case in design.contains.items()},
        holders=[link(name) for name in catalogue.holders(entry.name)],
    )


def _size(leg: Leg) -> tuple[str, str]:
    """A leg's size as written (if it is arithmetic), and its value."""
    if leg.sequence:
        return "", "at run time" if leg.maximum is None else f"at most {leg.maximum:,}"
    if leg.size is None:
        return "", "at run time"
    if leg.reach is not None:
        return code(f"relative {leg.reach}"), f"{leg.size:,}"
    written = arithmetic(leg.text) if leg.text is not None else ""
    return code(written) if written != str(leg.size) else "", f"{leg.size:,}"


def _tensor(entry: CatalogueEntry, tensor: Tensor) -> tuple[str, ...]:
    """The row of a tensor: name, role, legs, shape, values, parameters, remark."""
    legs = [entry.graph.leg[name] for name in tensor.legs]
    shape = " × ".join(leg.name if leg.stored is None else f"{leg.stored:,}" for leg in legs) or "scalar"
    count = f"{prod(size or 1 for size in entry.graph.shape_of(tensor.name)):,}" if tensor.role == "weight" else ""
    role = f"{'frozen ' * tensor.frozen}{tensor.role}"
    remark = prose(entry.remark(SECTION_OF[tensor.role], tensor.name))
    return code(tensor.name), role, code(" ".join(tensor.legs)), shape, _values(tensor), count, remark


def _values(tensor: Tensor) -> str:
    """The initial values and updates of a tensor."""
    if tensor.role == "noise":
        return f"Gaussian, std {code(arithmetic(tensor.std))}" + (", in evaluation too" if tensor.always else "")
    if tensor.role == "input":
        return f"default {code(tensor.default)}" if tensor.default else ""
    first = code(call_words(tensor.init)) if tensor.init is not None else ""
    return f"{first}, then {code(tensor.update)}" if tensor.update else first


def _cells(point: SequenceCosts | None) -> tuple[str, str, str]:
    if point is None:
        return "", "", ""
    return human(point.macs), f"{human(point.kept)}B", f"{human(point.peak)}B"


def _condition(case: Mapping[str, Any]) -> str:
    """The conditions of a special case, `: legs ..., weights ...; both causal`. Equal names are omitted."""
    conditions = [
        f"{section} " + ", ".join(code(f"{name} = {value}") for name, value in case[section].items())
        for section in ("legs", "settings", "weights")
        if case[section]
    ]
    conditions += ["both causal"] if case["causal"] else []
    return f": {'; '.join(conditions)}" if conditions else ""


def index(catalogue: Catalogue) -> str:
    """docs/designs.md: the designs by family, with links to their pages."""
    families = catalogue.families()
    links = [f"[{family}](#{family})" for family in families]
    return template("index.md.jinja").render(families=families, links=links, length=LENGTH)


def kernels_of_designs(catalogue: Catalogue) -> str:
    """The resources of each design's Triton kernels on two GPU models. Raises MissingPartError without triton."""
    from tensornet_attn.runtime.triton.survey import TARGETS, head

    rows = []
    for entry in catalogue:
        kernels_by_target = [compiler.kernels(entry.design, target) for target in TARGETS]
        if kernels_by_target[0]:
            names = ("registers", "stack", "shared")
            largest = [
                f"{max(getattr(kernel, name) for kernel in used):,}" for used in kernels_by_target for name in names
            ]
            rows.append([f"[{entry.name}](designs/{entry.name}.md)", str(len(kernels_by_target[0])), *largest])
    numbers = [f"{name}, sm_{target}" for target in TARGETS for name in ("registers", "stack", "shared memory")]
    return template("kernels.md.jinja").render(
        head="\n".join(head()), columns=["design", "kernels", *numbers], rows=rows
    )


def parity_page() -> str:
    """docs/parity.md: the layers of other packages beside designs. Raises MissingPartError without a package."""
    from tests.parity import LAYERS, compare

    shipped, packages = set(compiler.list_designs()), dict[str, list[tuple[str, ...]]]()
    for layer in LAYERS:
        comparison, name = compare(layer), layer.design_name
        shown = f"[{name}](designs/{name}.md)" if name in shipped else name
        shown += ", changed" if layer.reading is not None and layer.reading.extra else ""
        figures = (
            f"{number:.0e}" if number else "0" for number in (comparison.output, comparison.gradients, comparison.back)
        )
        packages.setdefault(layer.package, []).append(
            (code(layer.name), shown, *figures, layer.single, comparison.plan)
        )
    titles = {name: f"{name} {metadata.version(name)}" for name in packages}
    return template("parity.md.jinja").render(packages=packages, titles=titles, columns=PARITY, count=len(LAYERS))


def decoding_page(catalogue: Catalogue) -> str:
    """docs/decoding_state.md: one line per design, by family; for designs without a cache, the reason."""
    families, refused = dict[str, list[tuple[str, ...]]](), list[tuple[str, str]]()
    for family, entries in catalogue.families().items():
        for entry in entries:
            try:
                decoding = as_decoder(build(entry.design))
            except InputError as error:
                refused.append((entry.name, str(error).split(": ", 2)[-1]))  # NAME: no cache can be kept: REASON
            else:
                families.setdefault(family, []).append(_cache_row(entry, decoding))
    return template("decoding.md.jinja").render(families=families, refused=refused, columns=CACHES, length=POSITIONS)


def _cache_row(entry: CatalogueEntry, decoding: Decoding) -> tuple[str, ...]:
    """The cells: design, cached tensors, elements per position, constant elements, elements at POSITIONS positions."""
    growing = sum(decoding.elements(tensor) for tensor in decoding.kept if _grows(tensor))
    fixed = sum(
        decoding.elements(tensor) * (tensor.rows(POSITIONS) if tensor.leg else 1)
        for tensor in decoding.kept
        if not _grows(tensor)
    )
    kept = ", ".join(map(_words, decoding.kept)) or "nothing"
    name = f"[{entry.name}](designs/{entry.name}.md)"
    return name, kept, f"{growing:,}", f"{fixed:,}", f"{decoding.floats(POSITIONS):,}"


def _grows(tensor: Kept) -> bool:
    return tensor.leg is not None and tensor.reach is None


def _words(tensor: Kept) -> str:
    last = "" if tensor.reach is None else f" of the last {tensor.reach + 1:,}"
    return code(f"{tensor.name}[{' '.join(tensor.legs)}]") + last
