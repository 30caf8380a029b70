"""The command `check`: reads all files and reports all problems. The exit code is 1 if any file fails."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensornet_attn.cli.options import Json, Legs, Mixer, Settings, changes, flag, overrides, source_of, standard_input
from tensornet_attn.cli.output import print_json
from tensornet_attn.errors import DesignError, Problem

if TYPE_CHECKING:
    from tensornet_attn.graph.graph import Graph
    from tensornet_attn.models.read import ModelSpec

Numbers = dict[str, int | float | str]
Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="YAML files, shipped names, or - for stdin.")]


@dataclass(frozen=True)
class Finding:
    """The result for one file: its problems, and the graph of a design or the model, which are None on errors."""

    file: str
    problems: Sequence[Problem]
    graph: Graph | None = None
    model: ModelSpec | None = None

    def good(self, strict: bool) -> bool:
        return not any(strict or problem.severity == "error" for problem in self.problems)

    def facts(self) -> dict[str, Any]:
        """Name, size and parameter count; empty on errors. Steps inside a box are not counted."""
        if self.model is not None:
            cost, layers = self.model.cost(), {stack: len(blocks) for stack, blocks in self.model.stacks.items()}
            facts = {"name": self.model.name, "kind": self.model.kind, **layers}
            return facts | {"parameters": cost.parameters + cost.frozen}
        if self.graph is None:
            return {}
        steps = sum(not step.nested for step in self.graph.steps)
        weights = (self.graph.shape_of(weight.name) for weight in self.graph.of_role("weight"))
        count = sum(prod(size or 0 for size in shape) for shape in weights)
        return {"name": self.graph.name, "steps": steps, "parameters": count}

    def as_dict(self, strict: bool) -> dict[str, Any]:
        finding = {"file": self.file, "ok": self.good(strict), **self.facts()}
        return finding | {"problems": [problem.as_dict() for problem in self.problems]}

    def ok_line(self) -> str:
        facts, model = self.facts(), self.model
        kind = f"{model.kind}, " if model else ""
        count, unit = (sum(map(len, model.stacks.values())), "layer") if model else (facts["steps"], "step")
        counts = f"{count} {unit}{'s' * (count != 1)}, {facts['parameters']:,} parameters"
        return f"ok  {self.file}: {facts['name']}, {kind}{counts}"


def check(
    files: Files,
    strict: Annotated[bool, flag("--strict", "Treat warnings as errors.")] = False,
    design: Mixer = None,
    legs: Legs = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Check designs and models, and report all problems."""
    sizes, numbers = overrides(legs, "--legs"), overrides(settings, "--set")
    findings = []
    for file in files:
        finding = examine(file, sizes, numbers, design)
        findings.append(finding)
        for problem in () if as_json else finding.problems:
            print(problem, file=sys.stderr)
        if not as_json and finding.good(strict):
            print(finding.ok_line(), flush=True)  # flush, so that lines of both streams keep their order
    if as_json:
        print_json([finding.as_dict(strict) for finding in findings])
    if not all(finding.good(strict) for finding in findings):
        raise typer.Exit(1)


def examine(file: str, legs: Numbers, settings: Numbers, mixer: str | None = None) -> Finding:
    """Reads a file, applies the overrides, and checks its diagram, or every diagram of a model."""
    from tensornet_attn import graph
    from tensornet_attn.spec.read import read_document
    from tensornet_attn.spec.sources import document_of, text_document
    from tensornet_attn.special.lattice import check_contains

    name = "<stdin>" if file == "-" else file
    if file == "-" and not legs and not settings:
        document, reporter = text_document(standard_input(), "<stdin>", None)
    else:
        document, reporter = document_of(source_of(file), "design or model")
    if "model" in document.data:
        from tensornet_attn.models.read import override, read_model

        model, problems = read_model(document, reporter), reporter.problems()
        try:
            model = model and override(model, changes(mixer, legs, settings))
        except DesignError as error:
            model, problems = None, [*problems, *error.problems]
        return Finding(name, problems, model=model)
    if mixer is not None and document.data:
        raise typer.BadParameter(f"'{file}' is a design; --design is for models.", param_hint="'--design'")
    reading = read_document(document, reporter, legs, settings)
    built = graph.examine(reading)
    check_contains(reading)
    problems = reading.reporter.problems()
    wrong = any(problem.severity == "error" for problem in problems)
    return Finding(name, problems, None if wrong else built)
