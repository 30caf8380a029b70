"""The command `cost`: a design step by step, a model, designs over sizes, or a paper's table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tensornet_attn.cli.options import Batch, Causal, Json, Legs, Mixer, Settings, model_of, overrides, source_of
from tensornet_attn.cli.sweep import (
    Against,
    AgainstLegs,
    Beside,
    Measures,
    Order,
    Over,
    Plot,
    show_sweep,
    sweep,
    sweep_of,
)
from tensornet_attn.cli.tables import TableName, show_table

if TYPE_CHECKING:
    from tensornet_attn.cost.report import Report
    from tensornet_attn.models.cost import ModelCost

Designs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DESIGN]...", help="Shipped names, YAML files, or - for stdin; or one model.", show_default=False
    ),
]


def cost(
    designs: Designs = None,
    n: Annotated[
        int | None, typer.Option("--n", min=0, help="Length of the query leg; 1024, or a model's length, if absent.")
    ] = None,
    m: Annotated[int | None, typer.Option("--m", min=0, help="Length of the key leg; n if absent.")] = None,
    batch: Batch = 1,
    dtype: Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")] = "float32",
    causal: Causal = None,
    design: Mixer = None,
    legs: Legs = None,
    settings: Settings = None,
    as_json: Json = False,
    table: TableName = None,
    against: Against = None,
    against_legs: AgainstLegs = None,
    beside: Beside = None,
    over: Over = None,
    measure: Measures = None,
    order: Order = None,
    plot: Plot = None,
) -> None:
    """Price a design step by step, or a model; designs over sizes and against another; or those of a paper's table."""
    from tensornet_attn import compiler
    from tensornet_attn.cli.output import print_json, write

    given = (against, against_legs, beside, over, measure, order, plot)
    swept = any(option is not None for option in given)
    if table is not None:
        own = (designs, n, m, batch, dtype, causal, design, legs, settings)
        if swept or own != (None, None, None, 1, "float32", None, None, None, None):
            raise typer.BadParameter("a table has its own designs and sizes; besides it only --json is possible.")
        show_table(table, as_json)
        return
    if not designs:
        raise typer.BadParameter("name a design, or a table with --table.")
    if swept or len(designs) > 1:
        if design is not None:
            raise typer.BadParameter("it is for one model, by itself.", param_hint="'--design'")
        if plot is not None and plot != "-" and not plot.endswith(".svg"):
            raise typer.BadParameter(f"'{plot}' must end in .svg, or be - for stdout.", param_hint="'--plot'")
        if plot is not None and not over:
            raise typer.BadParameter("a plot needs sizes to vary: give them with --over.", param_hint="'--plot'")
        sizes = (legs, settings, n, m, batch, dtype)
        asked = sweep_of(designs, against, against_legs, beside, over, measure, order, *sizes)
        show_sweep(sweep(asked, causal), as_json, plot)
        return
    source = source_of(designs[0])
    model = model_of(source, design, legs, settings)
    if model is not None and causal is not None:
        raise typer.BadParameter("a model says itself what is causal in it.", param_hint="'--causal'")
    report: Report | ModelCost
    if model is not None:
        report = model.cost(n, batch, m, dtype)
    else:
        loaded = compiler.load(source, overrides(legs, "--legs"), overrides(settings, "--set"))
        report = compiler.cost(loaded, n=n, m=m, batch=batch, dtype=dtype, causal=causal)
    if as_json:
        print_json(report.as_dict())
    else:
        write("-", report.to_text().rstrip("\n") + "\n")
