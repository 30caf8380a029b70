"""The command `cost`: a design step by step, a model, designs over sizes, or a paper's table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensornet_attn.cli.options import (
    Batch,
    Causal,
    Json,
    Legs,
    Mixer,
    Number,
    Pairs,
    Settings,
    Text,
    length,
    length_option,
    model_of,
    option,
    overrides,
    source_of,
)
from tensornet_attn.cli.output import print_json, show, write

if TYPE_CHECKING:
    from tensornet_attn.cost.sweep import Sweep, Swept
    from tensornet_attn.spec import Design


def cost(
    designs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DESIGN]...", help="Shipped names, YAML files, or - for stdin; or one model.", show_default=False
        ),
    ] = None,
    n: Annotated[Number, length_option("Length of the query leg; 1024, or a model's length, if absent.")] = None,
    m: Annotated[Number, length_option("Length of the key leg; n if absent.")] = None,
    batch: Batch = 1,
    dtype: Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")] = "float32",
    causal: Causal = None,
    design: Mixer = None,
    legs: Legs = None,
    settings: Settings = None,
    as_json: Json = False,
    table: Annotated[Text, option("A paper's table beside our counts: epa, fish, mgk, ..., or all.", "NAME")] = None,
    against: Annotated[Text, option("Divide by the costs of another design.", "DESIGN")] = None,
    against_legs: Annotated[Pairs, option("Its own sizes, which may be arithmetic: h=2*h.", "LEG=SIZE,...")] = None,
    beside: Annotated[list[str] | None, option("Add this design to both, e.g. mlp; repeatable.", "DESIGN")] = None,
    over: Annotated[list[str] | None, option("Sizes of a leg, or lengths n or m; repeatable.", "LEG=SIZE,...")] = None,
    measure: Annotated[Text, option("macs, routed, training, parameters, saved, peak.", "NAME,...")] = None,
    order: Annotated[Text, option("Of products: planned, written or fewest (FLOPs).", "NAME")] = None,
    plot: Annotated[Text, option("Draw it, as SVG; - is stdout.", "FILE")] = None,
) -> None:
    """Price a design step by step, or a model; designs over sizes and against another; or those of a paper's table."""
    from tensornet_attn import compiler

    given = (against, against_legs, beside, over, measure, order, plot)
    several = any(option is not None for option in given)
    if table is not None:
        own = (designs, n, m, batch, dtype, causal, design, legs, settings)
        if several or own != (None, None, None, 1, "float32", None, None, None, None):
            raise typer.BadParameter("a table has its own designs and sizes; besides it only --json is possible.")
        _show_table(table, as_json)
        return
    if not designs:
        raise typer.BadParameter("name a design, or a table with --table.")
    if several or len(designs) > 1:
        if design is not None:
            raise typer.BadParameter("it is for one model, by itself.", param_hint="'--design'")
        if plot is not None and plot != "-" and not plot.endswith(".svg"):
            raise typer.BadParameter(f"'{plot}' must end in .svg, or be - for stdout.", param_hint="'--plot'")
        if plot is not None and not over:
            raise typer.BadParameter("a plot needs sizes to vary: give them with --over.", param_hint="'--plot'")
        from tensornet_attn.cost.sizes import LENGTH
        from tensornet_attn.cost.sweep import Sweep
        from tensornet_attn.draw.sweep import sweep_svg

        chosen: dict[str, Any] = {"n": n if over else None, "m": m, "batch": batch, "dtype": dtype}
        if measure is not None:
            chosen["measures"] = tuple(name.strip() for name in measure.split(","))
        asked = Sweep(
            tuple(map(source_of, designs)),
            axes_of(over) or {"n": (LENGTH if n is None else n,)},
            against=None if against is None else source_of(against),
            against_legs=overrides(against_legs, "--against-legs"),
            beside=tuple(map(source_of, beside or ())),
            legs=overrides(legs, "--legs"),
            settings=overrides(settings, "--set"),
            order=order or "planned",
            **chosen,
        )
        found = sweep(asked, causal)
        show(found, as_json, plot, lambda: sweep_svg(found))
        return
    source = source_of(designs[0])
    model = model_of(source, design, legs, settings)
    if model is not None and causal is not None:
        raise typer.BadParameter("a model says itself what is causal in it.", param_hint="'--causal'")
    if model is not None:
        show(model.cost(n, batch, m, dtype), as_json)
    else:
        loaded = compiler.load(source, overrides(legs, "--legs"), overrides(settings, "--set"))
        show(compiler.cost(loaded, n=n, m=m, batch=batch, dtype=dtype, causal=causal), as_json)


def axes_of(items: list[str] | None) -> dict[str, tuple[int, ...]]:
    """`n=128,256` and `f=64`, each given once: sizes of a leg, in their order."""
    found: dict[str, tuple[int, ...]] = {}
    for item in items or ():
        name, sign, text = (piece.strip() for piece in item.partition("="))
        parts = [part.strip() for part in text.split(",")]
        try:
            sizes = tuple(map(length, parts)) if name and sign else ()
        except typer.BadParameter:
            sizes = ()
        if not sizes:
            raise typer.BadParameter(f"'{item}' is not LEG=SIZE,..., e.g. n=128,256,4k.", param_hint="'--over'")
        if name in found:
            raise typer.BadParameter(f"'{name}' is given twice: give all its sizes at once.", param_hint="'--over'")
        if list(sizes) != sorted(set(sizes)):
            raise typer.BadParameter(f"the sizes of '{name}' must ascend.", param_hint="'--over'")
        found[name] = sizes
    return found


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


def _show_table(name: str, as_json: bool) -> None:
    """Prints a paper's table beside our counts, products in the order of the fewest FLOPs. Raises InputError.

    Of `all`, text has the tables one after the other, and JSON a list of them.
    """
    from tensornet_attn.cost.devices import device_named
    from tensornet_attn.cost.paper import ALL, compare, tables_named
    from tensornet_attn.plan.order import split_best

    device = device_named("flops")
    tables = tables_named(name)
    found = [compare(table, lambda graph, sizes: split_best(graph, sizes, device)[0]) for table in tables]
    if as_json:
        dicts = [comparison.as_dict() for comparison in found]
        print_json(dicts if name == ALL else dicts[0])
    else:
        write("-", "\n".join(comparison.to_text() for comparison in found))
