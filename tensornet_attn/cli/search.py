"""`search`: designs of a space that are good at a task and cheap, begun or gone on with; `space`: how large it is."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tensornet_attn.cli.options import (
    Json,
    Number,
    Pairs,
    Real,
    TaskOptions,
    Text,
    length_option,
    option,
    overrides,
    source_of,
)
from tensornet_attn.cli.output import print_json, show

OTHER = ("out", "config", "workers", "storage", "name", "as_json", "objective", "bound", "rates", "space")


def search(
    out: Annotated[str, typer.Option("--out", "-o", metavar="FOLDER", help="Where the study is, or goes on.")],
    space: Annotated[
        Text, typer.Argument(metavar="SPACE", help="A YAML file that says 'space: 1'; that of the study if absent.")
    ] = None,
    config: Annotated[Text, option("A study file; the other options win over it.", "FILE")] = None,
    task: Annotated[Text, option("A task by name, e.g. mqar, or a function as module:function.", "NAME")] = None,
    options: TaskOptions = None,
    run: Annotated[Pairs, option("Keys of a run file, e.g. steps=500.", "NAME=VALUE,...")] = None,
    rates: Annotated[Text, option("Learning rates, each with equal compute; 0.001,0.002,0.004.", "LR,...")] = None,
    objective: Annotated[list[str] | None, option("quality, macs, parameters, ...; quality and macs.", "NAME")] = None,
    bound: Annotated[Pairs, option("The most of a cost, the least quality.", "NAME=NUMBER,...")] = None,
    trials: Annotated[Number, option("Different designs that each arm evaluates; 40.")] = None,
    baseline: Annotated[bool | None, option("Random search beside evolution; it runs.")] = None,
    seed: Annotated[Number, option("Of proposals and of training; 0.")] = None,
    population: Annotated[Number, option("Trials that parents are chosen from; 8.")] = None,
    tournament: Annotated[Number, option("Candidates for a parent; 4.")] = None,
    crossover: Annotated[Real, option("The share of proposals that have two parents; 0.3.")] = None,
    finalists: Annotated[Number, option("Of each arm, trained again with fresh seeds; 2.")] = None,
    fresh_seeds: Annotated[Number, option("How many, 5 at least; 5.")] = None,
    seconds: Annotated[Real, option("What one trial may take; 3600.")] = None,
    gibibytes: Annotated[Real, option("Main memory that one trial may take; any.")] = None,
    threads: Annotated[Number, option("Threads of torch in each trial; 1.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at a time on this machine.")] = 1,
    storage: Annotated[Text, option("A database, e.g. postgresql://HOST/NAME; study.db in the folder.", "URL")] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Of the study in its database.")] = "search",
    as_json: Json = False,
) -> None:
    """Search a space for designs that are good at a task and cheap.

    The folder holds the store, the runs, the designs of the Pareto front and report.html. The same command goes on with
    a study that was ended before its time, however that came about; on other machines it works for the same storage.
    """
    given = {key: value for key, value in locals().items() if key not in OTHER and value is not None}
    for key in ("options", "run"):
        if key in given:
            given[key] = overrides(given[key], f"--{key}")
    if bound is not None:
        given["bounds"] = overrides(bound, "--bound")
    if objective is not None:
        given["objectives"] = tuple(objective)
    if rates is not None:
        try:
            given["rates"] = [float(part) for part in rates.split(",")]
        except ValueError:
            raise typer.BadParameter(f"'{rates}' are no numbers, e.g. 0.001,0.002.", param_hint="'--rates'") from None
    if space is not None:
        given["space"] = source_of(space)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where a user's own module is found
    from tensornet_attn.search.start import search as run_study

    found = run_study(out=out, config=config, workers=workers, storage=storage, name=name, **given)
    print_json(found.as_dict()) if as_json else print(found)


def space(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A YAML file that says 'space: 1', or - for stdin.")],
    samples: Annotated[int, typer.Option(min=1, max=1000, help="How many different designs to show.")] = 12,
    n: Annotated[Number, length_option("Length of queries and keys; the file's if absent.", least=1)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the samples.")] = 0,
    output: Annotated[
        Text, typer.Option("-o", "--output", metavar="FILE", help="Write a page of HTML with pictures.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how large a search space is, samples of it, and the range of their costs.

    Each sample is checked and priced, and keeps to the bounds of the file.
    """
    from dataclasses import replace

    from tensornet_attn.search.read import load
    from tensornet_attn.search.survey import survey

    found = load(source_of(file))
    if n is not None:
        found = replace(found, bounds=replace(found.bounds, n=n))
    seen = survey(found, samples, seed)
    show(seen, as_json, output, seen.to_html)
