"""The commands `search`, which starts or resumes a study, and `space`, which describes a search space."""

from __future__ import annotations

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
    out: Annotated[str, typer.Option("--out", "-o", metavar="FOLDER", help="Study folder, new or to resume.")],
    space: Annotated[
        Text, typer.Argument(metavar="SPACE", help="A YAML file with 'space: 1'. [default: the space of the study]")
    ] = None,
    config: Annotated[Text, option("Study file; the other options override it.", "FILE")] = None,
    task: Annotated[
        Text, option("Name of the task, e.g. mqar, or module:name of your recipe or function.", "NAME")
    ] = None,
    options: TaskOptions = None,
    run: Annotated[Pairs, option("Keys of a run file, e.g. steps=500.", "NAME=VALUE,...")] = None,
    rates: Annotated[
        Text, option("Learning rates, with equal compute for each. [default: 0.001,0.002,0.004]", "LR,...")
    ] = None,
    objective: Annotated[
        list[str] | None,
        option("Objective: quality, macs, parameters, ...; repeatable. [default: quality and macs]", "NAME"),
    ] = None,
    bound: Annotated[Pairs, option("Maximum of a cost, or minimum of the quality.", "NAME=NUMBER,...")] = None,
    trials: Annotated[Number, option("Number of designs per arm. [default: 40]")] = None,
    baseline: Annotated[bool | None, option("Also run random search. [default: baseline]")] = None,
    seed: Annotated[Number, option("Seed of proposals and training. [default: 0]")] = None,
    population: Annotated[Number, option("Number of trials that parents come from. [default: 8]")] = None,
    tournament: Annotated[Number, option("Number of candidates per parent. [default: 4]")] = None,
    crossover: Annotated[Real, option("Share of proposals with two parents. [default: 0.3]")] = None,
    finalists: Annotated[Number, option("Designs per arm to train again with fresh seeds. [default: 2]")] = None,
    fresh_seeds: Annotated[Number, option("Number of fresh seeds, at least 5. [default: 5]")] = None,
    seconds: Annotated[Real, option("Time limit of a trial. [default: 3600]")] = None,
    gibibytes: Annotated[Real, option("Main memory limit of a trial. [default: no limit]")] = None,
    threads: Annotated[Number, option("Torch threads per trial. [default: 1]")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of parallel trials on this machine.")] = 1,
    storage: Annotated[
        Text, option("Database URL, e.g. postgresql://HOST/NAME. [default: study.db in the folder]", "URL")
    ] = None,
    name: Annotated[str, typer.Option(metavar="NAME", help="Name of the study in the database.")] = "search",
    as_json: Json = False,
) -> None:
    """Search a space for good and cheap designs, or resume a study.

    The study folder contains the database, the runs, the designs of the Pareto front and report.html. Repeat the
    command to resume an interrupted study, or run it on other machines with the same --storage to add workers.
    """
    chosen = {key: argument for key, argument in locals().items() if key not in OTHER and argument is not None}
    for key in ("options", "run"):
        if key in chosen:
            chosen[key] = overrides(chosen[key], f"--{key}")
    if bound is not None:
        chosen["bounds"] = overrides(bound, "--bound")
    if objective is not None:
        chosen["objectives"] = tuple(objective)
    if rates is not None:
        try:
            chosen["rates"] = [float(rate) for rate in rates.split(",")]
        except ValueError:
            raise typer.BadParameter(f"'{rates}' is not LR,..., e.g. 0.001,0.002.", param_hint="'--rates'") from None
    if space is not None:
        chosen["space"] = source_of(space)
    from tensornet_attn.search.start import search as run_study

    study = run_study(out=out, config=config, workers=workers, storage=storage, name=name, **chosen)
    print_json(study.as_dict()) if as_json else print(study)


def space(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A YAML file with 'space: 1', or - for stdin.")],
    samples: Annotated[int, typer.Option(min=1, max=1000, help="Number of different designs to print.")] = 12,
    n: Annotated[Number, length_option("Length of queries and keys. [default: from the file]", least=1)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples.")] = 0,
    output: Annotated[
        Text, typer.Option("-o", "--output", metavar="FILE", help="Write an HTML page with pictures.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the size of a search space, samples, and their costs.

    Each sample is valid and satisfies the bounds of the file.
    """
    from dataclasses import replace

    from tensornet_attn.search.read import load
    from tensornet_attn.search.survey import survey

    search_space = load(source_of(file))
    if n is not None:
        search_space = replace(search_space, bounds=replace(search_space.bounds, n=n))
    surveyed = survey(search_space, samples, seed)
    show(surveyed, as_json, output, surveyed.to_html)
