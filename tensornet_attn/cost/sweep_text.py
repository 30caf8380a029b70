"""A sweep as text: for each measure a row for what else varies, a column for each size of the first axis."""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.cost.sweep import MEASURES, ORDERS, Point, Swept
from tensornet_attn.cost.table import human


def to_text(found: Swept) -> str:
    """The head says which sizes are fixed, and how everything is counted."""
    lines = [head(found)]
    for measure in found.sweep.measures:
        divided = f", divided by those of {found.against}" if found.against else ""
        lines += ["", f"{measure}: {MEASURES[measure]}{divided}", *_rows(found, measure)]
    return "\n".join(lines) + "\n"


def head(found: Swept) -> str:
    """`gfish against mhsa, beside mlp: g = 2; batch 1, float32, as planned`."""
    sweep = found.sweep
    names = ", ".join(dict.fromkeys(point.design for point in found.points))
    against = f" against {found.against}" if found.against else ""
    beside = f", beside {' and '.join(found.beside)}" if found.beside else ""
    lengths = {"n": sweep.n, "m": sweep.m}
    given = {name: size for name, size in lengths.items() if size is not None and name not in sweep.axes}
    sizes = ", ".join(f"{name} = {size}" for name, size in {**sweep.legs, **sweep.settings, **given}.items())
    own = ", ".join(f"{name} = {size}" for name, size in sweep.against_legs.items())
    other = f"; {found.against} {own}" if own else ""
    return f"{names}{against}{beside}: {f'{sizes}{other}; ' if sizes or other else ''}{_counted(found)}"


def _counted(found: Swept) -> str:
    return f"batch {found.sweep.batch}, {found.sweep.dtype}, {ORDERS[found.sweep.order]}"


def _rows(found: Swept, measure: str) -> Iterable[str]:
    series = found.series()
    axis, sizes = next(iter(found.sweep.axes.items()))
    rows = [[f"{axis} =", *(str(size) for size in sizes)]]
    rows += [[name, *(cell(point, measure) for point in points)] for name, points in series.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([f"{first:<{widths[0]}}", *cells])


def cell(point: Point, measure: str) -> str:
    """A ratio with three decimals, a count with a suffix."""
    value = point.shown(measure)
    if value is None:
        return "-"
    return f"{value:.3f}" if point.against is not None else human(int(value))
