"""The command `cost`: costs of a design step by step, of a model, of designs over sizes, or of a paper's table."""

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
            metavar="[DESIGN]...",
            help="Designs: shipped names, YAML files, or - for stdin; or one model.",
            show_default=False,
        ),
    ] = None,
    n: Annotated[Number, length_option("Length of the query leg. [default: 1024, or the model's length]")] = None,
    m: Annotated[Number, length_option("Length of the key leg. [default: n]")] = None,
    batch: Batch = 1,
    dtype: Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")] = "float32",
    causal: Causal = None,
    design: Mixer = None,
    legs: Legs = None,
    settings: Settings = None,
    as_json: Json = False,
    table: Annotated[
        Text, option("Compare a paper's table with our counts: epa, fish, mgk, tuformer, fmm, swin or all.", "NAME")
    ] = None,
    against: Annotated[Text, option("Print ratios to the costs of this design.", "DESIGN")] = None,
    against_legs: Annotated[
        Pairs, option("Leg sizes of the --against design; arithmetic is possible, e.g. h=2*h.", "LEG=SIZE,...")
    ] = None,
    beside: Annotated[
        list[str] | None, option("Add the costs of this design to both sides, e.g. mlp; repeatable.", "DESIGN")
    ] = None,
    over: Annotated[
        list[str] | None, option("Vary a leg size or a length, e.g. n=128,4k; repeatable.", "LEG=SIZE,...")
    ] = None,
    measure: Annotated[Text, option("macs, routed, training, parameters, saved, peak.", "NAME,...")] = None,
    order: Annotated[
        Text, option("Order of products: planned, written or fewest (FLOPs). [default: planned]", "NAME")
    ] = None,
    plot: Annotated[Text, option("Plot the costs of --over as SVG; - is stdout.", "FILE")] = None,
) -> None:
    """Print the costs of designs, a model, or a paper's table.

    For one design: the costs of each step. For a model: the costs of each design in it. With several designs, --over or
    --against: a table of costs or ratios.
    """
    from tensornet_attn import compiler

    if table is not None:
        _show_table(table, as_json)
        return
    sweeping = any(option is not None for option in (against, against_legs, beside, over, measure, order, plot))
    if not designs:
        raise typer.BadParameter("name a design, or a table with --table.")
    if sweeping or len(designs) > 1:
        if design is not None:
            raise typer.BadParameter("this option is for a single model.", param_hint="'--design'")
        if plot is not None and plot != "-" and not plot.endswith(".svg"):
            raise typer.BadParameter(f"'{plot}' does not end in .svg; - is stdout.", param_hint="'--plot'")
        if plot is not None and not over:
            raise typer.BadParameter("a plot needs sizes to vary; give them with --over.", param_hint="'--plot'")
        from tensornet_attn.cost.sizes import LENGTH
        from tensornet_attn.cost.sweep import Sweep
        from tensornet_attn.draw.sweep import sweep_svg

        chosen: dict[str, Any] = {"n": n if over else None, "m": m, "batch": batch, "dtype": dtype}
        if measure is not None:
            chosen["measures"] = tuple(name.strip() for name in measure.split(","))
        request = Sweep(
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
        swept = sweep(request, causal)
        show(swept, as_json, plot, lambda: sweep_svg(swept))
        return
    source = source_of(designs[0])
    model = model_of(source, design, legs, settings)
    if model is not None and causal is not None:
        raise typer.BadParameter("a model file defines which layers are causal.", param_hint="'--causal'")
    if model is not None:
        show(model.cost(n, batch, m, dtype), as_json)
    else:
        loaded = compiler.load(source, overrides(legs, "--legs"), overrides(settings, "--set"))
        show(compiler.cost(loaded, n=n, m=m, batch=batch, dtype=dtype, causal=causal), as_json)


def axes_of(assignments: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Parses `n=128,256` and `f=64`: sizes by leg, in ascending order. Raises BadParameter."""
    axes: dict[str, tuple[int, ...]] = {}
    for assignment in assignments or ():
        name, sign, listing = (piece.strip() for piece in assignment.partition("="))
        words = [word.strip() for word in listing.split(",")]
        try:
            sizes = tuple(map(length, words)) if name and sign else ()
        except typer.BadParameter:
            sizes = ()
        if not sizes:
            raise typer.BadParameter(f"'{assignment}' is not LEG=SIZE,..., e.g. n=128,256,4k.", param_hint="'--over'")
        if name in axes:
            raise typer.BadParameter(f"'{name}' is given twice; give all its sizes at once.", param_hint="'--over'")
        if list(sizes) != sorted(set(sizes)):
            raise typer.BadParameter(f"the sizes of '{name}' must ascend.", param_hint="'--over'")
        axes[name] = sizes
    return axes


def sweep(request: Sweep, causal: bool | None = None) -> Swept:
    """Computes the costs of a sweep. Raises InputError and DesignError."""
    from tensornet_attn import compiler
    from tensornet_attn.cost import device_named, sizes_at
    from tensornet_attn.cost.order import split_best
    from tensornet_attn.cost.sweep import Priced, swept
    from tensornet_attn.graph import build

    device = device_named("flops")

    def price(design: Design) -> Priced:
        graph = build(design, causal)
        if request.order == "fewest":
            return Priced(graph, lambda lengths: split_best(graph, sizes_at(graph, lengths), device)[0])
        planned = compiler.plan_of(graph).schedule if request.order == "planned" else None
        return Priced(graph, lambda lengths: planned or graph)

    return swept(request, lambda source, legs, settings: compiler.load(source, legs=legs, settings=settings), price)


def _show_table(name: str, as_json: bool) -> None:
    """Prints a paper's table and our counts, with products in the order of fewest FLOPs. Raises InputError.

    For `all`, text output has all tables in sequence, and JSON output a list of tables.
    """
    from tensornet_attn.cost.devices import device_named
    from tensornet_attn.cost.order import split_best
    from tensornet_attn.cost.paper import ALL, compare, tables_named

    device = device_named("flops")
    tables = tables_named(name)
    comparisons = [compare(table, lambda graph, sizes: split_best(graph, sizes, device)[0]) for table in tables]
    if as_json:
        dicts = [comparison.as_dict() for comparison in comparisons]
        print_json(dicts if name == ALL else dicts[0])
    else:
        write("-", "\n".join(comparison.to_text() for comparison in comparisons))
