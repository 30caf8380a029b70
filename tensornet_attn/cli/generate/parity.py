"""docs/parity.md: comparisons of layers of other packages with designs."""

from __future__ import annotations

from tensornet_attn.cli.generate.page import code, template
from tensornet_attn.compiler import list_designs

COLUMNS = ("layer", "design", "outputs", "gradients", "carried back", "in float32", "plan")


def parity_page() -> str:
    """Compares all layers. Raises MissingPartError if a package is not installed."""
    from tensornet_attn.parity import LAYERS, compare, version_of

    shipped, packages = set(list_designs()), dict[str, list[tuple[str, ...]]]()
    for layer in LAYERS:
        found = compare(layer)
        design = layer.design_name
        if layer.reading is not None and layer.reading.extra:
            shown = f"{_link(design, shipped)}, changed"
        else:
            shown = _link(design, shipped)
        row = (code(layer.name), shown, *map(_figure, (found.output, found.gradients, found.back)))
        packages.setdefault(layer.package, []).append((*row, layer.single, found.plan))
    titles = {name: f"{name} {version_of(name)}" for name in packages}
    return template("parity.md.jinja").render(packages=packages, titles=titles, columns=COLUMNS, count=len(LAYERS))


def _link(name: str, shipped: set[str]) -> str:
    return f"[{name}](designs/{name}.md)" if name in shipped else name


def _figure(number: float) -> str:
    return f"{number:.0e}" if number else "0"
