"""`search`: designs of a space that are good at a task and cheap; begun, gone on with, or found finished."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from tensornet_attn.cli.options import Json, Pairs, overrides, source_of

Text = str | None
Number = int | None
Real = float | None
Space = Annotated[
    Text, typer.Argument(metavar="SPACE", help="A YAML file that says 'space: 1'; that of the study if absent.")
]
Objectives = Annotated[
    list[str] | None,
    typer.Option(
        "--objective", metavar="NAME", help="quality, macs, parameters, ...; quality and macs.", show_default=False
    ),
]
Limits = Annotated[
    Pairs, typer.Option("--bound", metavar="NAME=NUMBER,...", help="The most of a cost, the least quality.")
]
Given = Annotated[Pairs, typer.Option("--options", metavar="NAME=VALUE,...", help="Options of the task.")]
Run = Annotated[Pairs, typer.Option("--run", metavar="NAME=VALUE,...", help="Keys of a run file, e.g. steps=500.")]


def _option(help_text: str, metavar: str | None = None) -> Any:
    return typer.Option(help=help_text, metavar=metavar, show_default=False)


def search(
    out: Annotated[str, typer.Option("--out", "-o", metavar="FOLDER", help="Where the study is, or goes on.")],
    space: Space = None,
    config: Annotated[Text, _option("A study file; the other options win over it.", "FILE")] = None,
    task: Annotated[Text, _option("A task by name, e.g. mqar, or a function as module:function.", "NAME")] = None,
    options: Given = None,
    run: Run = None,
    rates: Annotated[Text, _option("Learning rates, each with equal compute; 0.001,0.002,0.004.", "LR,...")] = None,
    objective: Objectives = None,
    bound: Limits = None,
    trials: Annotated[Number, _option("Different designs that each arm evaluates; 40.")] = None,
    baseline: Annotated[
        bool | None, typer.Option("--baseline/--no-baseline", help="Random search beside evolution; it runs.")
    ] = None,
    seed: Annotated[Number, _option("Of proposals and of training; 0.")] = None,
    population: Annotated[Number, _option("Trials that parents are chosen from; 8.")] = None,
    tournament: Annotated[Number, _option("Candidates for a parent; 4.")] = None,
    crossover: Annotated[Real, _option("The share of proposals that have two parents; 0.3.")] = None,
    finalists: Annotated[Number, _option("Of each arm, trained again with fresh seeds; 2.")] = None,
    fresh_seeds: Annotated[Number, _option("How many, 5 at least; 5.")] = None,
    seconds: Annotated[Real, _option("What one trial may take; 3600.")] = None,
    gibibytes: Annotated[Real, _option("Main memory that one trial may take; any.")] = None,
    threads: Annotated[Number, _option("Threads of torch in each trial; 1.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at a time on this machine.")] = 1,
    storage: Annotated[Text, _option("A database, e.g. postgresql://HOST/NAME; study.db in the folder.", "URL")] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Of the study in its database.")] = "search",
    as_json: Json = False,
) -> None:
    """Search a space for designs that are good at a task and cheap.

    The folder holds the store, the runs, the designs of the Pareto front and report.html. The same command goes on with
    a study that was ended before its time, however that came about; on other machines it works for the same storage.
    """
    given = {key: value for key, value in locals().items() if key not in _OTHER and value is not None}
    for key, option in (("options", "--options"), ("run", "--run")):
        if given.get(key) is not None:
            given[key] = overrides(given[key], option)
    if bound is not None:
        given["bounds"] = overrides(bound, "--bound")
    if objective is not None:
        given["objectives"] = tuple(objective)
    if rates is not None:
        given["rates"] = _numbers(rates)
    if space is not None:
        given["space"] = source_of(space)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where a user's own module is found
    from tensornet_attn.cli.output import print_json
    from tensornet_attn.search.start import search as run_study

    found = run_study(out=out, config=config, workers=workers, storage=storage, name=name, **given)
    print_json(found.as_dict()) if as_json else print(found)


_OTHER = ("out", "config", "workers", "storage", "name", "as_json", "objective", "bound", "rates", "space")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"'{text}' are no numbers, e.g. 0.001,0.002.", param_hint="'--rates'") from None
