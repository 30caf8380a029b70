"""`cost` over sizes: ratios of designs to another one, as tables, JSON or a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tensornet_attn.cli.options import Pairs, overrides, source_of

if TYPE_CHECKING:
    from tensornet_attn.cost.sweep import Sweep, Swept
    from tensornet_attn.spec import Design

Against = Annotated[
    str | None, typer.Option("--against", metavar="DESIGN", help="Divide by the costs of another design.")
]
AgainstLegs = Annotated[
    Pairs,
    typer.Option("--against-legs", metavar="LEG=SIZE,...", help="Its own sizes, which may be arithmetic: h=2*h."),
]
Beside = Annotated[
    list[str] | None, typer.Option("--beside", metavar="DESIGN", help="Add this design to both, e.g. mlp; repeatable.")
]
Over = Annotated[
    list[str] | None,
    typer.Option("--over", metavar="LEG=SIZE,...", help="Sizes of a leg, or lengths n or m; repeatable."),
]
Measures = Annotated[
    str | None,
    typer.Option("--measure", metavar="NAME,...", help="macs, routed, training, parameters, saved, peak."),
]
Order = Annotated[
    str | None, typer.Option("--order", metavar="NAME", help="Of products: planned, written or fewest (FLOPs).")
]
Plot = Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Draw it, as SVG; - is stdout.")]


def axes_of(items: list[str] | None) -> dict[str, tuple[int, ...]]:
    """`n=128,256` and `f=64`, each given once: sizes of a leg, in their order."""
    found: dict[str, tuple[int, ...]] = {}
    for item in items or ():
        name, sign, text = (piece.strip() for piece in item.partition("="))
        parts = [part.strip() for part in text.split(",")]
        if not (name and sign and all(part.isascii() and part.isdigit() for part in parts)):
            raise typer.BadParameter(f"'{item}' is not LEG=SIZE,..., e.g. n=128,256,512.", param_hint="'--over'")
        sizes = tuple(int(part) for part in parts)
        if name in found:
            raise typer.BadParameter(f"'{name}' is given twice: give all its sizes at once.", param_hint="'--over'")
        if list(sizes) != sorted(set(sizes)):
            raise typer.BadParameter(f"the sizes of '{name}' must ascend.", param_hint="'--over'")
        found[name] = sizes
    return found


def sweep_of(
    designs: list[str],
    against: str | None,
    against_legs: Pairs,
    beside: list[str] | None,
    over: list[str] | None,
    measure: str | None,
    order: str | None,
    legs: Pairs,
    settings: Pairs,
    n: int | None,
    m: int | None,
    batch: int,
    dtype: str,
) -> Sweep:
    """What is asked for; without `--over` one length of the queries."""
    from tensornet_attn.cost.sizes import LENGTH
    from tensornet_attn.cost.sweep import Sweep

    chosen: dict[str, tuple[str, ...]] = {}
    if measure is not None:
        chosen = {"measures": tuple(name.strip() for name in measure.split(","))}
    return Sweep(
        tuple(source_of(design) for design in designs),
        axes_of(over) or {"n": (LENGTH if n is None else n,)},
        against=None if against is None else source_of(against),
        against_legs=overrides(against_legs, "--against-legs"),
        beside=tuple(source_of(design) for design in beside or ()),
        legs=overrides(legs, "--legs"),
        settings=overrides(settings, "--set"),
        n=n if over else None,
        m=m,
        batch=batch,
        dtype=dtype,
        order=order or "planned",
        **chosen,
    )


def sweep(asked: Sweep, causal: bool | None = None) -> Swept:
    """The costs that are asked for. Raises InputError and DesignError."""
    from tensornet_attn import compiler
    from tensornet_attn.cost import device_named, sizes_at
    from tensornet_attn.cost.sweep import Priced, swept
    from tensornet_attn.graph import build
    from tensornet_attn.plan.order import split_best

    device = device_named("flops")

    def price(design: Design) -> Priced:
        graph = build(design, causal)
        if asked.order == "fewest":
            return Priced(graph, lambda lengths: split_best(graph, sizes_at(graph, lengths), device)[0])
        planned = compiler.plan_of(graph).schedule if asked.order == "planned" else None
        return Priced(graph, lambda lengths: planned or graph)

    return swept(asked, lambda source, legs, settings: compiler.load(source, legs=legs, settings=settings), price)


def show_sweep(found: Swept, as_json: bool, plot: str | None) -> None:
    """Prints tables or JSON, and draws the plot that is asked for. A plot on standard output stands alone."""
    from tensornet_attn.cli.output import print_json, write
    from tensornet_attn.draw.sweep import sweep_svg

    if plot is not None:
        write(plot, sweep_svg(found))
    if plot == "-":
        return
    if as_json:
        print_json(found.as_dict())
    else:
        write("-", found.to_text())
