"""The generated files with their contents, and the comparison with the committed files."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from docs.generate.catalogue import Catalogue, CatalogueEntry
from docs.generate.costs import FIGURES, picture
from docs.generate.page import decoding_page, index, kernels_of_designs, page, parity_page
from tensornet_attn import compiler, models, spec
from tensornet_attn.cli.cost import sweep
from tensornet_attn.cli.output import as_json_text, write
from tensornet_attn.draw.sweep import sweep_svg

ROOT = Path(__file__).resolve().parents[2]
LINES = 60  # maximum number of lines of a diff
Files = Iterator[tuple[Path, str]]


def codegen(catalogue: Catalogue) -> Files:
    """One module per design: the source that `compile` loads."""
    for entry in catalogue:
        yield Path("codegen", entry.family, f"{entry.name}.py"), compiler.emit_source(entry.design, package=True)


def kernels(catalogue: Catalogue) -> Files:
    """The Triton module of each design whose kernels differ from those of its ancestors."""
    sources = {entry.name: compiler.emit_source(entry.design, backend="triton", package=True) for entry in catalogue}
    own_kernels = {
        name: [chunk for chunk in source.split("\n\n\n") if chunk.startswith("@triton.jit")]
        for name, source in sources.items()
    }
    for entry in catalogue:
        if own_kernels[entry.name] and all(
            own_kernels[name] != own_kernels[entry.name] for name in catalogue.ancestors(entry)
        ):
            yield Path("codegen", entry.family, "triton", f"{entry.name}.py"), sources[entry.name]


def pages(catalogue: Catalogue) -> Files:
    """The index, the page on decoding caches, and for each design its page and cost plot."""
    yield Path("docs", "designs.md"), index(catalogue)
    yield Path("docs", "decoding_state.md"), decoding_page(catalogue)
    for entry in catalogue:
        yield Path("docs", "designs", f"{entry.name}.md"), page(entry, catalogue)
        yield Path("docs", "pictures", f"{entry.name}-cost.svg"), picture(entry, catalogue.against(entry))


def diagrams(catalogue: Catalogue) -> Files:
    """The diagram of each design."""
    from tensornet_attn.draw import to_svg

    for entry in catalogue:
        svg = to_svg(entry.graph, title=entry.name, about=entry.design.about or None)
        yield diagram_path(entry), svg


def plots(catalogue: Catalogue) -> Files:
    """The figures of docs/costs.md. Figures with unknown designs are skipped."""
    for name, request in FIGURES.items():
        designs = {*request.designs, *request.beside, *([request.against] if request.against else [])}
        if designs <= {*catalogue.entries}:
            yield Path("docs", "pictures", f"{name}.svg"), sweep_svg(sweep(request))


def diagram_path(entry: CatalogueEntry) -> Path:
    return Path("docs", "pictures", f"{entry.name}.svg")


def schema(catalogue: Catalogue) -> Files:
    """The JSON schemas of design files and of model files, for editors."""
    for name, document in (("design", spec.json_schema()), ("model", models.json_schema())):
        yield Path("docs", f"{name}.schema.json"), as_json_text(document)


def resources(catalogue: Catalogue) -> Files:
    """The resources of each design's Triton kernels on two GPUs."""
    yield Path("docs", "kernels-designs.md"), kernels_of_designs(catalogue)


def parity(catalogue: Catalogue) -> Files:
    """The comparison of designs with layers of other packages."""
    yield Path("docs", "parity.md"), parity_page()


PARTS: dict[str, tuple[Callable[[Catalogue], Files], ...]] = {
    "codegen": (codegen, kernels),
    "docs": (pages, diagrams, plots),
    "schema": (schema,),
}

# takes 15 minutes; needs other packages
ON_DEMAND: dict[str, tuple[Callable[[Catalogue], Files], ...]] = {"resources": (resources,), "parity": (parity,)}


def main(arguments: Sequence[str]) -> int:
    """Writes the parts, or with `--check` prints which files are stale. Returns the exit code."""
    parts = [argument for argument in arguments if argument != "--check"] or list(PARTS)
    all_parts = PARTS | ON_DEMAND
    if unknown := [part for part in parts if part not in all_parts]:
        print(f"error: there is no part '{unknown[0]}'; choose one of {', '.join(all_parts)}.", file=sys.stderr)
        return 2
    if "--check" in arguments:
        stale_files = stale()
        print(
            "\n".join(stale_files) or "all generated files are up to date.",
            file=sys.stderr if stale_files else sys.stdout,
        )
        return 1 if stale_files else 0
    catalogue = Catalogue()
    for part in parts:
        for make in all_parts[part]:
            for path, content in make(catalogue):
                (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
                write(str(ROOT / path), content)
                print(path)
    return 0


def stale(root: Path = ROOT) -> list[str]:
    """A message for each generated file that differs from its current content, and for each stray file.

    The bytes of a diagram depend on the version of Graphviz, so only the digest of its source is compared.
    """
    from tensornet_attn.draw.render import mark

    def committed(path: Path) -> str:
        return (root / path).read_text(encoding="utf-8") if (root / path).exists() else ""

    catalogue = Catalogue()
    messages, expected = [], {diagram_path(entry) for entry in catalogue}
    for entry in catalogue:
        drawn = f"title-{mark(entry.graph, entry.name, entry.design.about or None)}"
        if drawn not in committed(diagram_path(entry)):
            messages.append(f"{diagram_path(entry)}: drawn from another version of the design; run 'make docs'.")
    for make in (codegen, kernels, pages, plots, schema):
        for path, content in make(catalogue):
            expected.add(path)
            if committed(path) != content:
                messages.append(_difference(path, committed(path), content))
    places = (("codegen", "*.py"), ("docs/designs", "*"), ("docs/pictures", "*"))
    present = [path.relative_to(root) for folder, kind in places for path in sorted((root / folder).rglob(kind))]
    return [f"{path}: no design has this file; delete it." for path in present if path not in expected] + messages


def _difference(path: Path, old: str, new: str) -> str:
    if path.suffix == ".svg":
        return f"{path}: plotted from other figures; run 'make docs'."
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"{path} (committed)", "generated", lineterm="")
    return "\n".join(list(lines)[:LINES])
